"""Variants of one training step in MindSpore, in float16 but the first: CPU has no bfloat16."""

from __future__ import annotations

import sys
from pathlib import Path

import mindspore as ms
from mindspore import Parameter, Tensor, amp, nn, ops

import mpcore as mp

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "char_transformer"))


def set_threads(count: int) -> None:
    ms.runtime.launch_blocking()
    ms.device_context.cpu.op_tuning.threads_num(count)


def versions() -> dict[str, str]:
    return {"mindspore": ms.__version__, "mpcore": mp.__version__}


def build(name: str) -> nn.Cell:
    ms.set_seed(0)
    if name == "transformer":
        from model_mindspore import Transformer

        return Transformer(65, 32, 128, 4, 2).set_train()
    if name == "mlp":
        hidden = [cell for _ in range(3) for cell in (nn.Dense(256, 256), nn.ReLU())]
        return nn.SequentialCell(*hidden, nn.Dense(256, 10)).set_train()

    def conv(channels_in, channels_out):
        return nn.Conv2d(channels_in, channels_out, 3, pad_mode="valid", has_bias=True)

    return nn.SequentialCell(
        conv(1, 32), nn.ReLU(), nn.MaxPool2d(2, 2),
        conv(32, 64), nn.ReLU(), nn.MaxPool2d(2, 2),
        nn.Flatten(), nn.Dense(1600, 128), nn.ReLU(), nn.Dense(128, 10),
    ).set_train()  # fmt: skip


class Loss(nn.Cell):
    def __init__(self, net) -> None:
        super().__init__()
        self.net = net

    def construct(self, x, y):
        logits = self.net(x).astype(ms.float32)
        return ops.cross_entropy(logits.reshape((-1, logits.shape[-1])), y.reshape((-1,)))


class Native(nn.Cell):
    """amp.DynamicLossScaler and amp.all_finite by hand: no other native route works on CPU."""

    def __init__(self, loss, optimizer) -> None:
        super().__init__(auto_prefix=False)
        self.loss, self.optimizer = loss, optimizer
        self.scaler = amp.DynamicLossScaler(2**16, 2, 2000)
        self.grad = ms.value_and_grad(self.forward, None, optimizer.parameters, has_aux=True)

    def forward(self, x, y):
        loss = self.loss(x, y)
        return self.scaler.scale(loss), loss

    def construct(self, x, y):
        (_, loss), grads = self.grad(x, y)
        grads = self.scaler.unscale(grads)
        finite = amp.all_finite(grads)
        if finite:
            loss = ops.depend(loss, self.optimizer(grads))
        return ops.depend(loss, self.scaler.adjust(finite))


def _unscale(inverse, grad):
    return grad.astype(ms.float32) * inverse


def _finite(grad):
    return ops.isfinite(grad).all()


class Minimum(nn.Cell):
    """One unscaling, one check, one conditional update."""

    def __init__(self, loss, optimizer) -> None:
        super().__init__(auto_prefix=False)
        self.loss, self.optimizer = loss, optimizer
        self.scale = Parameter(Tensor(2.0**16, ms.float32), requires_grad=False)
        self.grad = ms.value_and_grad(self.forward, None, optimizer.parameters, has_aux=True)
        self.map = ops.HyperMap()

    def forward(self, x, y):
        loss = self.loss(x, y)
        return loss * self.scale, loss

    def construct(self, x, y):
        (_, loss), grads = self.grad(x, y)
        grads = self.map(ops.partial(_unscale, 1.0 / self.scale), grads)
        if ops.stack(self.map(_finite, grads)).all():
            loss = ops.depend(loss, self.optimizer(grads))
        return loss


def variants(name: str, x, y) -> dict:
    x, y = Tensor(x), Tensor(y)

    def adam(net):
        return nn.Adam(net.trainable_params(), 1e-4)

    def lowered(net):
        """What mpcore lowers, by MindSpore's own to_float, leaf by leaf."""
        for cell in net.cells():
            lowered(cell)
        if isinstance(net, nn.Dense | nn.Conv2d | nn.Embedding):
            net.to_float(ms.float16)
        elif isinstance(net, nn.LayerNorm | nn.Softmax):
            net.to_float(ms.float32)
        return net

    def plain():
        net = build(name)
        return nn.TrainOneStepCell(Loss(net), adam(net)).set_train()

    def by_hand(kind):
        net = lowered(build(name))
        return kind(Loss(net), adam(net)).set_train()

    def ours(policy):
        net = build(name)
        prepared = mp.prepare(net, adam(net), policy)
        return prepared, Loss(net)

    eager, loss = ours("mixed_float16")
    cell = ours("mixed_float16")
    compiled = ms.jit(_Call(cell[0].train_cell(cell[1])).run)
    native_compiled = ms.jit(_Call(by_hand(Native)).run)
    plain_cell, native_cell, minimum_cell = plain(), by_hand(Native), by_hand(Minimum)
    simulated, simulated_loss = ours("mixed_bfloat16")
    return {
        "float32": lambda: plain_cell(x, y).asnumpy(),
        "native": lambda: native_cell(x, y).asnumpy(),
        "minimum": lambda: minimum_cell(x, y).asnumpy(),
        "mpcore by layer": lambda: eager.step(loss, x, y).loss,
        "mpcore simulated bf16": lambda: simulated.step(simulated_loss, x, y).loss,
        "native, ms.jit": lambda: native_compiled(x, y).asnumpy(),
        "mpcore, ms.jit": lambda: compiled(x, y)[0].asnumpy(),
    }


class _Call:
    def __init__(self, cell) -> None:
        self.cell = cell

    def run(self, x, y):
        return self.cell(x, y)

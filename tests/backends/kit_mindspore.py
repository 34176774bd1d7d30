"""The conformance kit of the MindSpore backend."""

from __future__ import annotations

from collections import OrderedDict

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

import mpcore as mp
from mpcore.conformance.harness import DriverKit
from mpcore.numerics.dtypes import round_to
from mpcore_mindspore import emulated_ascend

ms.runtime.launch_blocking()  # ten times faster on two cores


def _transition(rule):
    def run(finite, *state):
        return mp.transition(rule, state, finite, ops.where, _same)

    return run


def _same(value):
    return value


def _compiled(cell):
    def run(*args):
        return cell(*args)

    return ms.jit(run, fullgraph=True)


class _Kit(DriverKit):
    name = "mindspore"
    modes = ("eager", "compiled")
    differentiates = changes_model = optimizer_holds_parameters = True
    saturating_steps = 20  # eager mode takes a quarter of a second for one, on an emulated device

    def model(self):
        ms.set_seed(0)
        net = nn.SequentialCell(
            OrderedDict(
                fc1=nn.Dense(8, 16),
                bn=nn.BatchNorm1d(16, eps=1e-5, momentum=0.9),
                act=nn.ReLU(),
                fc2=nn.Dense(16, 4),
            )
        )
        return net.set_train()

    def sgd(self, model, learning_rate, momentum):
        return nn.Momentum(model.trainable_params(), learning_rate, momentum)

    def adam(self, model, learning_rate):
        return nn.Adam(model.trainable_params(), learning_rate)

    def loss_fn(self, model):
        def loss_fn(x, y, boost):
            return ops.cross_entropy(model(x), y) * boost

        return loss_fn

    def batch(self, x, y, boost):
        return Tensor(x), Tensor(y.astype("i4")), Tensor(boost, ms.float32)

    def stepper(self, amp, loss_fn, mode, **call):
        if mode == "eager":
            return lambda *batch: amp.step(loss_fn, *batch, keep_grads=True, **call)
        run = _compiled(amp.train_cell(loss_fn, keep_grads=True, **call))
        optimizer = call.get("optimizer")
        return lambda *batch: amp.result(run(*batch), optimizer=optimizer)

    def sgd_over(self, model, layers, learning_rate):
        params = [p for p in model.trainable_params() if p.name.partition(".")[0] in layers]
        return nn.Momentum(params, learning_rate, 0.9)

    def losses(self, model):
        def steady(x, y, boost):
            return ops.cross_entropy(model(x), y)

        return {"a": steady, "b": self.loss_fn(model)}

    def counter(self):
        count = Parameter(Tensor(0, ms.int32), name="count", requires_grad=False)

        def add():
            ops.assign_add(count, Tensor(1, ms.int32))

        return add, lambda: int(count.asnumpy())

    def memory(self, model):
        memory = Parameter(Tensor(np.zeros(16, "f4")), name="memory", requires_grad=False)

        def loss_fn(x, y, boost):
            ops.assign_add(memory, ops.ones_like(memory))
            return ops.cross_entropy(model(x), y) * boost

        return memory, loss_fn, lambda: memory.asnumpy().copy()

    def emulated_ascend(self):
        return emulated_ascend()

    def snapshot(self, model, optimizer, amp):
        cells = (model, *amp.optimizers.values())
        held = {id(p): p for cell in cells for p in cell.get_parameters()}
        return {p.name: p.value().astype(ms.float32).asnumpy().copy() for p in held.values()}

    def layer_dtypes(self, model, amp, x):
        seen, handles = {}, []
        for path, cell in model.name_cells().items():

            def hook(_cell, _inputs, output, path=path):
                values = output.asnumpy()
                low = amp.policy.compute
                rounds = amp.simulated and np.array_equal(
                    round_to(values, low), values, equal_nan=True
                )
                seen[path] = low if rounds else str(output.dtype).lower()

            handles.append(cell.register_forward_hook(hook))
        with amp.autocast():
            model(Tensor(x))
        for handle in handles:
            handle.remove()
        return seen

    def transition(self, rule, state, finite, mode):
        key = (rule, mode)
        if key not in self._transitions:
            run = _transition(rule)
            self._transitions[key] = run if mode == "eager" else ms.jit(run, fullgraph=True)
        tensors = [Tensor(state[0], ms.float32), *(Tensor(n, ms.int32) for n in state[1:])]
        moved = self._transitions[key](Tensor(finite), *tensors)
        assert [value.dtype for value in moved] == [ms.float32, *[ms.int32] * 7]
        return tuple(value.asnumpy().item() for value in moved)

    def __init__(self):
        self._transitions = {}


kit = _Kit()

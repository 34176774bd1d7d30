"""What torch really runs: seen kernel by kernel, and left as it was."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from collections import OrderedDict

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import mpcore as mp
from mpcore.tools.inspection.observe import dry_run

X = torch.from_numpy(np.random.default_rng(3).normal(size=(16, 8)).astype("f4"))
Y = torch.arange(16) % 4


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        OrderedDict(
            fc1=nn.Linear(8, 8),
            norm=nn.BatchNorm1d(8),
            drop=nn.Dropout(0.5),
            act=nn.ReLU(),
            fc2=nn.Linear(8, 4),
        )
    )


def prepared(policy: str, model: nn.Module | None = None):
    model = net() if model is None else model
    amp = mp.prepare(model, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), policy)
    return amp, lambda x, y: functional.cross_entropy(model(x), y)


def state(amp: mp.Amp) -> list[torch.Tensor]:
    model, optimizer = amp.model, amp.optimizer
    found = [t.clone() for t in (*model.parameters(), *model.buffers())]
    found += [p.grad.clone() for p in model.parameters() if p.grad is not None]
    found += [s["momentum_buffer"].clone() for s in optimizer.state.values()]
    return [*found, torch.get_rng_state()]


@pytest.mark.parametrize("policy", ["mixed_float16", "autocast_bfloat16", "model_bfloat16"])
def test_nothing_is_left_changed(policy: str) -> None:
    amp, loss_fn = prepared(policy)
    amp.step(loss_fn, X, Y)
    before, scale = state(amp), amp.state
    hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in amp.model.modules()]
    found = mp.observe(amp, X, Y, loss_fn=loss_fn)
    assert found.agreement == 1
    for ours, theirs in zip(before, state(amp), strict=True):
        assert torch.equal(ours, theirs)
    assert amp.state == scale
    assert hooks == [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in amp.model.modules()]
    after = amp.step(loss_fn, X, Y).loss
    twin, twin_loss = prepared(policy)
    for _ in range(2):
        result = twin.step(twin_loss, X, Y)
    assert after == result.loss


def test_gradients_of_others_are_left_alone() -> None:
    teacher, stepped = nn.Linear(8, 4), []
    amp, _ = prepared("mixed_bfloat16")
    for param in amp.model.parameters():  # as optimizers in the backward pass do
        param.register_post_accumulate_grad_hook(stepped.append)
    x = X.clone().requires_grad_()
    mp.observe(amp, x, loss_fn=lambda x: (amp.model(x) - teacher(x)).square().mean())
    assert (x.grad, teacher.weight.grad, x._backward_hooks or None, stepped) == (
        None,
        None,
        None,
        [],
    )


def test_a_compiled_model_is_seen() -> None:
    amp, _ = prepared("mixed_bfloat16")
    compiled = torch.compile(amp.model, backend="eager")
    found = mp.observe(amp, X, Y, loss_fn=lambda x, y: functional.cross_entropy(compiled(x), y))
    assert found.agreement == 1
    assert found["fc1"].seen.calls[0].kernels == ("bfloat16",)


def test_kernels_forward_and_backward() -> None:
    amp, loss_fn = prepared("mixed_bfloat16")
    (call,) = mp.observe(amp, X, Y, loss_fn=loss_fn)["fc2"].seen.calls
    low = ("bfloat16",)
    assert (call.came, call.params, call.kernels, call.went) == (low, ("float32",), low, low)
    assert (call.grad_came, call.grad_kernels, call.grad_went) == (low, low, low)


@pytest.mark.parametrize("where", ["compute", "output"])
def test_a_layer_that_does_something_else_is_found(where: str) -> None:
    amp, loss_fn = prepared("mixed_bfloat16")
    layer = amp.model.fc1
    planned = layer.forward
    if where == "compute":
        layer.forward = lambda x: functional.linear(x, layer.weight, layer.bias).bfloat16()
    else:
        layer.forward = lambda x: planned(x).float()
    found = mp.observe(amp, X, Y, loss_fn=loss_fn)
    assert [row.path for row in found.differing] == ["fc1"]
    words = {"compute": "computed in float32", "output": "handed on float32"}
    assert words[where] in str(found)


class Attends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q = nn.Linear(8, 8)

    def forward(self, x):
        q = self.q(x)
        return functional.softmax(q @ q.T, dim=-1) @ q


def test_why_softmax_is_low_on_cpu_and_full_on_cuda() -> None:
    amp, _ = prepared("autocast_bfloat16", Attends())
    here = {row.seen.name: row for row in mp.observe(amp, X).ops}
    there = {row.seen.name: row for row in mp.explain(Attends(), amp.policy, X, device="cuda").ops}
    assert here["F.softmax"].seen.kernels == ("bfloat16",)
    assert here["F.softmax"].why == "torch_cpu does not list softmax: follow"
    assert there["F.softmax"].seen.went == ("float32",)
    assert there["F.softmax"].why == "torch_cuda lists softmax: full"
    assert not any(row.faults for row in (*here.values(), *there.values()))


@pytest.mark.parametrize("native", [True, False])
def test_recomputation_in_another_dtype_is_told(native: bool) -> None:
    class Recomputes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(8, 4)

        def forward(self, x):
            if native:
                return checkpoint(self.fc, x, use_reentrant=False)
            return Drifts.apply(x, self.fc.weight, self)

    class Drifts(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight, model):
            ctx.model, ctx.x = model, x.detach()
            return model.fc(x)

        @staticmethod
        def backward(ctx, grad):
            with torch.enable_grad(), torch.autocast("cpu", enabled=False):
                again = ctx.model.fc(ctx.x.requires_grad_())
                grads = torch.autograd.grad(again, (ctx.x, ctx.model.fc.weight), grad.float())
            return *grads, None

    amp, _ = prepared("autocast_bfloat16", Recomputes())
    notes = mp.observe(amp, X.clone().requires_grad_()).notes
    assert len(notes) == (not native)
    assert native or "it was recomputed for the backward pass" in notes[0]


def test_whole_numbers_that_are_rounded_are_told() -> None:
    amp, loss_fn = prepared("mixed_bfloat16")
    years = torch.full_like(X, 2909.0)
    (note,) = mp.observe(amp, years, Y, loss_fn=loss_fn).notes
    assert "fc1: whole numbers up to 2909" in note
    assert mp.observe(amp, X, Y, loss_fn=loss_fn).notes == ()


def test_a_plain_model_is_seen_as_it_runs() -> None:
    model = net()
    found = mp.observe(model, X)
    assert found.agreement == 1
    assert all(param.grad is None for param in model.parameters())
    with torch.autocast("cpu", torch.bfloat16):
        low = mp.observe(model, X, policy="autocast_bfloat16")
    assert low["fc1"].seen.calls[0].kernels == ("bfloat16",)
    assert [row.path for row in low.differing] == [""]  # nobody casts its output back


def test_what_is_refused() -> None:
    amp, loss_fn = prepared("mixed_bfloat16")
    with pytest.raises(mp.BackendError, match="`policy` must be left out"):
        mp.observe(amp, X, policy="float32")
    with pytest.raises(mp.BackendError, match="`batch` must hold at least one tensor"):
        mp.observe(amp)
    before = state(amp)
    with pytest.raises(mp.BackendError, match="must return one number"):
        mp.observe(amp, X, Y, loss_fn=lambda x, y: amp.model(x))
    assert all(torch.equal(a, b) for a, b in zip(before, state(amp), strict=True))
    again = lambda x: checkpoint(amp.model, x, use_reentrant=True).sum()  # noqa: E731
    with pytest.raises(mp.BackendError, match="use_reentrant=False"):
        mp.observe(amp, X.clone().requires_grad_(), loss_fn=again)
    with amp.autocast():
        amp.backward(loss_fn(X, Y))
    with pytest.raises(mp.BackendError, match="wait"):
        mp.observe(amp, X, Y, loss_fn=loss_fn)
    assert amp.apply().stepped


# --- foretold -------------------------------------------------------------------------------------

LAYERS = {
    "linear": (lambda: nn.Linear(8, 8), (4, 8)),
    "conv": (lambda: nn.Conv2d(3, 4, 3), (2, 3, 8, 8)),
    "max_pool2d": (lambda: nn.MaxPool2d(2), (2, 3, 8, 8)),
    "max_pool3d": (lambda: nn.MaxPool3d(2), (2, 3, 8, 8, 8)),
    "avg_pool": (lambda: nn.AvgPool2d(2), (2, 3, 8, 8)),
    "layer_norm": (lambda: nn.LayerNorm(8), (4, 8)),
    "group_norm": (lambda: nn.GroupNorm(2, 4), (2, 4, 8)),
    "softmax": (lambda: nn.Softmax(-1), (4, 8)),
    "log_softmax": (lambda: nn.LogSoftmax(-1), (4, 8)),
    "gelu": (lambda: nn.GELU(), (4, 8)),
    "softplus": (lambda: nn.Softplus(), (4, 8)),
    "prelu": (lambda: nn.PReLU(), (4, 8)),
}


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("list_", ["native", "portable"])
@pytest.mark.parametrize("kind", LAYERS)
def test_the_column_of_a_device_is_what_its_autocast_does(kind: str, list_: str, device: str):
    """The table against torch's own kernels, without the device."""
    make, shape = LAYERS[kind]
    model = nn.Sequential(OrderedDict(low=nn.Linear(shape[-1], shape[-1]), it=make()))
    policy = f"autocast_bfloat16, op_list={list_}"
    found = dry_run(model, policy, np.zeros(shape, "f4"), device=device)
    assert found["it"].judged
    assert found.differing == ()


def test_foretelling_leaves_the_model_alone() -> None:
    model = Attends()
    before = [p.clone() for p in model.parameters()]
    found = mp.explain(model, "mixed_bfloat16", X, device="cuda")
    assert "foretold" in found.how
    assert found["q"].seen.calls[0].kernels == ("bfloat16",)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert not any("forward" in vars(module) for module in model.modules())
    assert not torch.is_autocast_enabled("cuda")


def test_what_cannot_be_foretold() -> None:
    with pytest.raises(mp.BackendError, match="`device` must be one of cpu, cuda"):
        mp.explain(net(), "autocast_bfloat16", X, device="npu")
    with pytest.raises(mp.BackendError, match="`device` needs an example"):
        mp.explain(net(), "autocast_bfloat16", device="cuda")

    class Looks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(8, 4)

        def forward(self, x):
            return self.fc(x) if x.sum().item() > 0 else self.fc(-x)

    with pytest.raises(mp.BackendError, match="must not depend on values"):
        mp.explain(Looks(), "mixed_bfloat16", X)


def test_not_strict_trains_what_strict_refuses() -> None:
    if torch.ops.mkldnn._is_mkldnn_fp16_supported():
        pytest.skip("this CPU runs LSTMs in float16")
    model = nn.Sequential(OrderedDict(fc=nn.Linear(8, 8), rnn=nn.LSTM(8, 8)))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    policy = mp.Policy.named("autocast_float16").with_loss_scale("static(8)")
    with pytest.raises(mp.BackendError, match="rnn is an LSTM"):
        mp.prepare(model, optimizer, policy)
    with pytest.warns(mp.MpcoreWarning, match="rnn stay float32"):
        amp = mp.prepare(model, optimizer, policy, strict=False)
    assert amp.step(lambda x: model(x)[0].float().sum(), X).stepped
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = mp.observe(amp, X, loss_fn=lambda x: model(x)[0].float().sum())
    assert found["rnn"].seen.calls[0].kernels == ("float32",)
    assert found["rnn"].rule.startswith("degraded: absent in torch on cpu")


EXPERIMENT = """
import numpy as np
from mpcore import Data, OptimizerSpec

name, loss, steps, batch = "small", "cross_entropy", 2, 8
optimizer = OptimizerSpec("sgd", learning_rate=0.1, momentum=0.9)


def data():
    x = np.random.default_rng(0).normal(size=(32, 8)).astype("f4")
    y = (np.arange(32) % 4).astype("i4")
    return Data(x, y, x, y)


def build_torch():
    from torch import nn

    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
"""


def test_the_command(tmp_path) -> None:
    (tmp_path / "exp.py").write_text(EXPERIMENT, encoding="utf-8")
    code = "from mpcore.cli import main; main()"
    command = [sys.executable, "-c", code, "explain", "exp.py", "--observe", "--format", "json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    (found,) = json.loads(done.stdout)["runs"]
    assert (found["backend"], found["agreement"]) == ("torch", 1.0)
    assert found["layers"][1]["seen"]["calls"][0]["kernels"] == ["bfloat16"]
    refused = subprocess.run(
        [*command, "--device", "cuda"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert refused.returncode == 2
    assert "`--device` must be left out with --observe" in refused.stderr

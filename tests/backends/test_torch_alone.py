"""Calls of a torch step that run alone: what they hand on is what a prepared model hands on."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

import mpcore as mp
from mpcore.backend.backend import load_backend
from mpcore.backend.parts import CALLS
from mpcore.tools.profiling.prediction import Predictor

torch = pytest.importorskip("torch")
from processors_torch import with_lstm  # noqa: E402

pytestmark = pytest.mark.backend("torch")


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.qkv = torch.nn.Embedding(7, 8), torch.nn.Linear(8, 24)
        self.norm, self.act = torch.nn.LayerNorm(8), torch.nn.ReLU(inplace=True)
        self.out = torch.nn.Linear(8, 7)

    def forward(self, x):
        h = self.embed(x)
        q, k, v = self.qkv(h).chunk(3, -1)
        a = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        return self.out(self.act(self.norm(h + a)) + 0.5)


def loss_of(model):
    return lambda x, y: torch.nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())


@pytest.mark.parametrize(
    "policy",
    [
        "float32",
        "mixed_bfloat16",
        "mixed_bfloat16; full path=qkv",
        "mixed_bfloat16; full>lower path=qkv; lower path=norm",
        "autocast_bfloat16",
        "autocast_bfloat16; full op=attention",
        "autocast_bfloat16; full path=out; lower path=norm",
        "portable_bfloat16; lower op=relu",
    ],
)
def test_dtypes_that_are_followed_are_those_of_a_prepared_model(policy: str) -> None:
    x = torch.from_numpy(np.arange(10).reshape(2, 5) % 7)
    batch = (x, (x + 1) % 7)
    model = Net()
    heard = CALLS.of("torch")(model, loss_of(model), batch)
    predictor = Predictor(heard, load_backend("torch").layers(model), "cpu")
    ways = predictor.ways(policy)
    told = {
        call.layer: (way.came, went)
        for call, (way, went) in zip(heard.calls, ways, strict=True)
        if call.layer is not None
    }
    assert [way.key for way, _ in ways if not predictor.runs(way)] == []
    own = Net()
    seen = {}

    def keep(path):
        def hook(module, args, output):
            floats = [str(a.dtype)[6:] for a in (*args, output) if a.is_floating_point()]
            seen[path] = (tuple(floats[:-1]), (floats[-1],))

        return hook

    for path in told:
        own.get_submodule(path).register_forward_hook(keep(path))
    optimizer = torch.optim.SGD(own.parameters(), 0.1)
    mp.prepare(own, optimizer, policy).step(loss_of(own), *batch)
    assert told == seen


def test_a_layer_that_cannot_be_copied_counts_as_nothing() -> None:
    class Own(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = torch.nn.Linear(8, 8), torch.nn.Linear(8, 7)
            self.head.scale = self.head.weight.sum()  # no leaf of the graph

        def forward(self, x):
            return self.head(self.body(x))

    model = Own()
    heard = CALLS.of("torch")(model, lambda x: model(x).chunk(2)[1].sum(), (torch.ones(4, 8),))
    predictor = Predictor(heard, load_backend("torch").layers(model), "cpu")
    seconds = predictor("mixed_bfloat16").calls
    told = {call.layer: own for call, own in zip(heard.calls, seconds, strict=True)}
    assert told["head"] == 0.0 < told["body"]


def test_what_runs_the_same_kernels_is_known_as_such() -> None:
    batch = (torch.zeros(2, 5, dtype=torch.int64), torch.zeros(2, 5, dtype=torch.int64))
    model = Net()
    heard = CALLS.of("torch")(model, loss_of(model), batch)
    predictor = Predictor(heard, load_backend("torch").layers(model), "cpu")

    def ways(policy):
        return [way for way, _ in predictor.ways(policy)]

    own = ways("autocast_bfloat16")
    assert ways("autocast_bfloat16; full op=exp") == own  # an op that it does not run
    assert ways("autocast_bfloat16; full op=linear") != own


def test_an_op_list_that_meets_nothing_hears_the_whole_step() -> None:
    model = torch.nn.Linear(4, 3)
    heard = CALLS.of("torch")(model, lambda x: model(x).sum(), (torch.ones(2, 4),))
    seen = []

    class Sees(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    values = []
    for listed in (False, True):
        with Sees():
            values.append(heard.step(listed=listed)())
    assert torch.nn.functional.linear in seen
    assert torch.equal(*values)


class Shared(torch.nn.Module):
    """One tensor that is query, key and value; tensors that several calls take; an LSTM's state."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.attend = torch.nn.Embedding(7, 8), torch.nn.MultiheadAttention(8, 2)
        self.up, self.down = torch.nn.Linear(8, 16), torch.nn.Linear(16, 8)
        self.lstm, self.out = torch.nn.LSTM(8, 8), torch.nn.Linear(8, 7)

    def forward(self, x):
        h = self.embed(x)
        h = h + self.attend(h, h, h, need_weights=False)[0]
        h = h + self.down(torch.relu(self.up(h)))
        return self.out(self.lstm(h)[0] + h * 0.5)


class Kernels(torch.utils._python_dispatch.TorchDispatchMode):
    """Counts what runs below autograd."""

    def __init__(self) -> None:
        super().__init__()
        self.ran: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.ran[str(func).removeprefix("aten.").partition(".")[0].rstrip("_")] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16", "autocast_bfloat16"])
@pytest.mark.parametrize("kind", [Net, Shared])
def test_the_kernels_of_all_calls_alone_are_those_of_a_step(kind, policy: str) -> None:
    if kind is Shared and policy.startswith("autocast"):
        policy = with_lstm(policy)  # where this processor has no LSTM for the region
    x = torch.from_numpy(np.arange(10).reshape(2, 5) % 7)
    batch = (x, (x + 1) % 7)
    model = kind()
    heard = CALLS.of("torch")(model, loss_of(model), batch)
    predictor = Predictor(heard, load_backend("torch").layers(model), "cpu")
    alone, own = Kernels(), kind()
    for way, _ in predictor.ways(policy):
        ready = predictor._ready[way]
        if ready is not None:
            with alone:
                ready.run()
    amp = mp.prepare(own, torch.optim.SGD(own.parameters(), 0.1), policy)
    step = Kernels()
    with step, amp.unguarded():  # a backward pass without a loss scaler
        with amp.autocast():
            loss = loss_of(own)(*batch)
        loss.backward()
    free = {
        "detach",
        "view",
        "ones_like",
    }  # no numbers move; the gradient of the loss is one number
    names = {name for name in (*alone.ran, *step.ran) if name not in free}
    assert {n: alone.ran[n] for n in names} == {n: step.ran[n] for n in names}


def test_what_is_heard_is_the_models_and_its_gradients_stay() -> None:
    model = Shared()
    x = torch.arange(10).reshape(2, 5) % 7
    heard = CALLS.of("torch")(model, loss_of(model), (x, x))
    assert not [call.key for call in heard.calls if "clone" in call.key or "detach" in call.key]
    assert all(parameter.grad is None for parameter in model.parameters())
    sums = [call for call in heard.calls if call.key.startswith("sum of gradients")]
    assert len(sums) == 3  # two residuals, and what the LSTM and the product after it take
    assert all(left == right for left, right in (call.came for call in sums))


def test_gradients_that_come_back_alone_are_those_of_the_step() -> None:
    class Last(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)

        def forward(self, x):
            return self.b(self.a(x))[:, -1]  # of b's rows one in five gets a gradient

    model, seen = Last(), []

    class Heard(torch.nn.Linear):
        def __deepcopy__(self, memo):
            copied = torch.nn.Linear(8, 8)
            copied.register_full_backward_hook(lambda module, came, went: seen.append(went[0]))
            return copied

    model.b = Heard(8, 8)
    x = torch.randn(3, 5, 8, requires_grad=True)
    heard = CALLS.of("torch")(model, lambda x: model(x).square().sum(), (x,))
    predictor = Predictor(heard, load_backend("torch").layers(model), "cpu")
    predictor.measure(["float32"])
    assert seen
    assert all(not gradient[:, :-1].any() and gradient[:, -1].all() for gradient in seen)
    assert 0.5 <= float(seen[0].abs().max()) < 1.0


@pytest.mark.parametrize("loss", ["none", "cut"])
def test_a_step_that_gives_no_gradients_is_heard_forward(loss: str) -> None:
    model = torch.nn.Linear(4, 3)
    ends = {"none": lambda x: None, "cut": lambda x: model(x).detach().sum()}
    heard = CALLS.of("torch")(model, lambda x: (model(x), ends[loss](x))[1], (torch.ones(2, 4),))
    predictor = Predictor(heard, load_backend("torch").layers(model), "cpu")
    assert predictor("float32").seconds > 0

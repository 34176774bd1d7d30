"""Parameters that a forward pass writes: a skipped step puts them back, a taken one keeps them."""

from __future__ import annotations

import contextlib
import copy
import signal
import warnings
from functools import partial
from typing import Any

import pytest

import mpcore as mp
from mpcore.errors import MpcoreWarning

torch = pytest.importorskip("torch")
from planted import PlantedError, lines, package  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

pytestmark = pytest.mark.backend("torch")

POLICIES = [
    "float32",
    "mixed_bfloat16",
    "mixed_float16",
    "autocast_bfloat16",
    "model_bfloat16",
    "model_bfloat16, master=split",
    "model_bfloat16, master=kahan",
    "model_bfloat16, master=stochastic:5",
    "model_bfloat16, master=none",
]


MASTERS = [policy for policy in POLICIES if policy.startswith("model") and "none" not in policy]


class Own(nn.Module):
    """A running mean as a Parameter, written in one of several ways."""

    def __init__(self, how: str, *, trains: bool) -> None:
        super().__init__()
        self.how = how
        self.mean = nn.Parameter(torch.linspace(0.5, 1.0, 8), requires_grad=trains)

    def forward(self, x: Any) -> Any:
        if self.training:
            new = x.detach().mean(0).to(self.mean.dtype)
            if self.how == "no_grad":
                with torch.no_grad():
                    self.mean.mul_(0.5).add_(0.5 * new)
            elif self.how == "data":
                self.mean.data.mul_(0.5).add_(0.5 * new)
            elif self.how == "assign":
                self.mean.data = 0.5 * self.mean.data + 0.5 * new
            elif self.how == "view":
                self.mean.detach()[2:5].copy_(new[2:5])
            elif self.how == "out":
                with torch.no_grad():
                    torch.add(self.mean, new, out=self.mean)
            elif self.how == "foreach":
                with torch.no_grad():
                    torch._foreach_lerp_([self.mean], [new], 0.5)
        return x - self.mean.detach().to(x.dtype) + 0 * self.mean.to(x.dtype)


class Plain(nn.Module):
    def __init__(self, how: str = "no_grad", *, trains: bool = False) -> None:
        super().__init__()
        self.first, self.own, self.last = nn.Linear(8, 8), Own(how, trains=trains), nn.Linear(8, 4)

    def forward(self, x: Any) -> Any:
        return self.last(self.own(self.first(x)))


class Halved(Plain):
    """Writes a weight that is trained, and kept in 16 bits under by="model"."""

    def forward(self, x: Any) -> Any:
        if self.training:
            with torch.no_grad():
                self.first.weight.mul_(0.5)
            self.last.weight.data = self.last.weight.data * 0.5
        return super().forward(x)


class MoCo(nn.Module):
    """A momentum encoder that the forward pass updates, and a queue."""

    def __init__(self) -> None:
        super().__init__()
        self.q = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
        self.k = copy.deepcopy(self.q).requires_grad_(False)
        self.head = nn.Linear(4, 4)
        with torch.no_grad():
            for param in self.k.parameters():
                param.add_(0.25)

    def forward(self, x: Any) -> Any:
        if self.training:
            for q, k in zip(self.q.parameters(), self.k.parameters(), strict=True):
                k.data = k.data * 0.5 + q.data * 0.5
        with torch.no_grad():
            keys = self.k(x)
        return self.head(self.q(x)) * keys


class Codebook(nn.Module):
    """Vector quantisation: the code book is a moving mean, its rows are written by index."""

    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Linear(8, 8)
        self.codes = nn.Parameter(torch.arange(32.0).view(4, 8) / 16, requires_grad=False)
        self.sizes = nn.Parameter(torch.ones(4), requires_grad=False)

    def forward(self, x: Any) -> Any:
        z = self.into(x)
        near = torch.cdist(z.detach().float(), self.codes.float()).argmin(1)
        if self.training:
            with torch.no_grad():
                self.sizes.index_add_(0, near, torch.ones_like(near, dtype=self.sizes.dtype))
                self.codes[near] = z.detach().to(self.codes.dtype) * 0.5
        return z - self.codes[near].to(z.dtype)


def _x(seed: int = 0) -> Any:
    return torch.randn(4, 8, generator=torch.Generator().manual_seed(seed))


def _made(make: Any, policy: str, **options: Any) -> tuple[Any, Any]:
    torch.manual_seed(0)
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.125)
    return model, mp.prepare(model, optimizer, policy, **options)


def _values(model: Any, amp: Any) -> dict[str, Any]:
    found = {name: param.detach().clone() for name, param in model.named_parameters()}
    return found | {f"{n} as float32": amp.float32_of(p) for n, p in model.named_parameters()}


def _same(one: dict[str, Any], two: dict[str, Any]) -> list[str]:
    return [name for name, value in one.items() if not torch.equal(value, two[name])]


MODELS = {
    **{f"{how}, {t}": (lambda h=how, t=t: Plain(h, trains=t))
       for how in ("no_grad", "data", "assign", "view", "out", "foreach") for t in (False, True)},
    "halved": Halved,
    "moco": MoCo,
    "codebook": Codebook,
}  # fmt: skip


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", MODELS)
def test_a_skipped_step_puts_back_what_its_forward_pass_wrote(name: str, policy: str) -> None:
    model, amp = _made(MODELS[name], policy)

    def loss(x: Any, factor: float) -> Any:
        return model(x).float().sum() * factor

    for number, factor in enumerate([float("inf"), 1.0, float("inf"), float("inf"), 1.0]):
        before = _values(model, amp)
        result = amp.step(loss, _x(number), factor)
        assert not result.stepped if factor != 1.0 else result.stepped or "float16" in policy
        changed = _same(before, _values(model, amp))
        assert bool(changed) == bool(result.stepped), changed


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", MODELS)
def test_a_loop_of_ones_own_puts_it_back_too(name: str, policy: str) -> None:
    model, amp = _made(MODELS[name], policy)
    for number, factor in enumerate([float("inf"), 1.0, float("inf")]):
        before = _values(model, amp)
        for part in range(2):
            with amp.autocast():
                loss = model(_x(10 * number + part)).float().sum() * (factor if part else 1.0)
            amp.backward(loss)
        result = amp.apply()
        assert not result.stepped if factor != 1.0 else result.stepped or "float16" in policy
        assert bool(_same(before, _values(model, amp))) == bool(result.stepped)


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16", "model_bfloat16"])
@pytest.mark.parametrize("name", MODELS)
def test_a_dropped_micro_batch_leaves_no_trace(name: str, policy: str) -> None:
    def run(*, bad: bool) -> Any:
        model, amp = _made(MODELS[name], policy, on_bad_micro_batch="drop")
        for number in range(3):
            for part in range(2):
                factor = float("inf") if part == 0 else 1.0
                if part or bad:
                    with amp.autocast():
                        loss = model(_x(10 * number + part)).float().sum() * factor
                    amp.backward(loss)
            assert amp.apply(mean=True).stepped
        return _values(model, amp)

    assert not _same(run(bad=True), run(bad=False))


@pytest.mark.parametrize("name", MODELS)
def test_micro_batches_of_a_step(name: str) -> None:
    model, amp = _made(MODELS[name], "mixed_bfloat16", on_bad_micro_batch="drop")
    factors = torch.tensor([1.0, 1.0, 1.0, 1.0])

    def loss(x: Any, factor: Any) -> Any:
        return (model(x).float().sum(1) * factor).sum()

    for number in range(3):
        before = _values(model, amp)
        assert not amp.step(loss, _x(number), factors * float("inf"), micro_batches=2).stepped
        assert not _same(before, _values(model, amp))
        assert amp.step(loss, _x(number), factors, micro_batches=2).stepped


@pytest.mark.parametrize("name", MODELS)
def test_a_step_that_is_taken_is_that_of_torch(name: str) -> None:
    model, amp = _made(MODELS[name], "float32")
    torch.manual_seed(0)
    native = MODELS[name]()
    optimizer = torch.optim.SGD(native.parameters(), lr=0.125)
    for number in range(4):
        amp.step(lambda x: model(x).sum(), _x(number))
        optimizer.zero_grad()
        native(_x(number)).sum().backward()
        optimizer.step()
    own = dict(model.named_parameters())
    assert all(torch.equal(own[key], value) for key, value in native.named_parameters())


@pytest.mark.parametrize("policy", MASTERS)
def test_float32_values_follow_what_a_taken_step_assigned(policy: str) -> None:
    model, amp = _made(Halved, policy)
    for number in range(3):  # the third is not watched any more
        low = [model.first.weight.detach() * 0.5, model.last.weight.detach() * 0.5]
        assert amp.step(lambda x: model(x).float().sum() * 1e-20, _x(number)).stepped
        assert torch.equal(model.first.weight, low[0])
        assert torch.equal(model.last.weight, low[1])
        assert torch.allclose(amp.float32_of(model.first.weight), low[0].float(), rtol=1e-6)
        assert torch.allclose(amp.float32_of(model.last.weight), low[1].float(), rtol=1e-6)


def test_an_error_in_the_forward_pass_puts_it_back() -> None:
    model, amp = _made(MoCo, "mixed_bfloat16")

    def loss(x: Any) -> Any:
        model(x)
        raise KeyError

    before = _values(model, amp)
    with pytest.raises(KeyError):
        amp.step(loss, _x())
    assert not _same(before, _values(model, amp))
    assert not torch._C._len_torch_dispatch_stack()


@pytest.mark.parametrize(
    ("name", "policy"), [("halved", "model_bfloat16, master=split"), ("moco", "mixed_bfloat16")]
)
def test_a_fault_anywhere_in_the_first_step_leaves_one_of_two_states(
    name: str, policy: str
) -> None:
    folders = [package("mpcore"), package("mpcore_torch")]

    def run(at: int | None) -> int:
        model, amp = _made(MODELS[name], policy)
        before = _values(model, amp)
        with lines(folders, at) as seen, contextlib.suppress(PlantedError):
            amp.step(lambda x: model(x).float().sum(), _x())
        assert bool(_same(before, _values(model, amp))) == bool(amp.optimizer_steps), seen[-1]
        assert not torch._C._len_torch_dispatch_stack(), seen[-1]
        before = _values(model, amp)
        amp.step(lambda x: model(x).float().sum() * float("inf"), _x())
        assert not _same(before, _values(model, amp)), seen[-1]
        return len(seen)

    handler = signal.getsignal(signal.SIGINT)
    try:
        for at in range(0, run(None), 29):
            run(at)
    finally:  # a fault where interrupts begin to be held leaves them held
        signal.signal(signal.SIGINT, handler)


def test_one_region_around_a_whole_loop_guards_no_more_than_that() -> None:
    model, amp = _made(Plain, "autocast_bfloat16")
    held = len(amp.transaction._buffers._places)
    with amp.autocast():
        for number in range(3):
            amp.backward(model(_x(number)).float().sum())
            assert amp.apply().stepped
    assert len(amp.transaction._buffers._places) == held + 1


def test_a_model_that_writes_nothing_has_nothing_guarded() -> None:
    def make() -> Any:
        return nn.Sequential(nn.Linear(8, 8), nn.Dropout(), nn.utils.spectral_norm(nn.Linear(8, 4)))

    for policy in POLICIES:
        model, amp = _made(make, policy)
        held = len(amp.transaction._buffers._places)
        for number in range(4):
            amp.step(lambda x, m=model: m(x).float().sum(), _x(number))
        assert len(amp.transaction._buffers._places) == held


class Later(Plain):
    """Begins to write late."""

    def forward(self, x: Any) -> Any:
        self.count = getattr(self, "count", 0) + 1
        self.own.how = "no_grad" if self.count > 4 else "none"
        return super().forward(x)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "model_bfloat16"])
def test_what_is_written_late_is_said_and_guarded_from_then_on(policy: str) -> None:
    model, amp = _made(lambda: Later(trains=True), policy)

    def loss(x: Any, factor: float) -> Any:
        return model(x).float().sum() * factor

    for number in range(4):
        amp.step(loss, _x(number), 1.0)
    with pytest.warns(MpcoreWarning, match=r"'own\.mean'"):
        amp.step(loss, _x(), float("inf"))
    before = _values(model, amp)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        amp.step(loss, _x(), float("inf"))
    assert not _same(before, _values(model, amp))


def test_weights_that_are_loaded_inside_a_step_are_none() -> None:
    model, amp = _made(Plain, "mixed_bfloat16")
    state = copy.deepcopy(model.state_dict())
    for number in range(4):
        amp.step(lambda x: model(x).float().sum(), _x(number))
    held = len(amp.transaction._buffers._places)
    loss = model(_x()).float().sum()
    model.load_state_dict(state)
    amp.backward(loss)
    amp.apply()
    assert len(amp.transaction._buffers._places) == held


def test_checkpointed_activations() -> None:
    class Model(Plain):
        def forward(self, x: Any) -> Any:
            return checkpoint(super().forward, x, use_reentrant=False)

    model, amp = _made(Model, "mixed_bfloat16")
    before = _values(model, amp)
    assert not amp.step(lambda x: model(x).float().sum() * float("inf"), _x()).stepped
    assert not _same(before, _values(model, amp))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("how", ["data", "assign"])
def test_a_write_past_the_counts_is_seen_where_something_else_was_compiled(how, policy) -> None:
    torch.compile(torch.sin, backend="eager")(torch.ones(2))
    model, amp = _made(partial(Plain, how, trains=False), policy)
    before = _values(model, amp)
    assert not amp.step(lambda x: model(x).float().sum() * float("inf"), _x()).stepped
    assert not _same(before, _values(model, amp))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("whole", [False, True])
def test_the_first_write_of_a_compiled_model_is_put_back(backend, whole) -> None:
    torch._dynamo.reset()
    counters = torch._dynamo.utils.counters
    counters.clear()
    model, amp = _made(partial(Plain, "no_grad", trains=False), "mixed_bfloat16")

    def loss(x: Any, factor: Any) -> Any:
        return run(x).float().sum() * factor

    run = model if whole else torch.compile(model, backend=backend)
    step = torch.compile(loss, backend=backend) if whole else loss
    graphs = []
    try:
        for number, factor in enumerate([float("inf"), 1.0, float("inf"), 1.0, float("inf")]):
            before = _values(model, amp)
            result = amp.step(step, _x(number), torch.tensor(factor))
            assert bool(_same(before, _values(model, amp))) == result.stepped
            graphs.append(counters["frames"]["ok"])
        assert len(set(graphs)) == 1  # not compiled anew when nothing is watched any more
    finally:
        torch._dynamo.reset()


def test_a_compiled_model_stays_one_graph() -> None:
    torch._dynamo.reset()
    graphs: list[Any] = []

    def backend(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    try:
        model, amp = _made(Plain, "mixed_bfloat16")
        run = torch.compile(model, backend=backend)

        def loss(x: Any, factor: float) -> Any:
            return run(x).float().sum() * factor

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", MpcoreWarning)
            for number in range(3):
                amp.step(loss, _x(number), 1.0)
        assert len(graphs) == 1
        before = _values(model, amp)
        assert not amp.step(loss, _x(), float("inf")).stepped
        assert not _same(before, _values(model, amp))
    finally:
        torch._dynamo.reset()


def _still(optimizer: Any) -> None:
    for group in optimizer.param_groups:
        group["lr"] = 0.0


@pytest.mark.parametrize("policy", POLICIES)
def test_weights_that_are_clamped_between_steps_stay_clamped(policy: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    amp = mp.prepare(model, optimizer, policy)
    for number in range(3):
        amp.step(lambda x: model(x).float().square().mean(), _x(number))
        with torch.no_grad():
            for param in model.parameters():
                param.clamp_(-0.0625, 0.0625)
    _still(optimizer)
    amp.step(lambda x: model(x).float().square().mean(), _x())
    assert max(abs(value).max() for value in amp.weights().values()) <= 0.0625 * (1 + 1 / 128)


@pytest.mark.parametrize("policy", ["model_bfloat16", "model_float16"])
def test_what_is_not_written_keeps_its_float32_values(policy: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    amp = mp.prepare(model, optimizer, policy)
    for number in range(2):
        amp.step(lambda x: model(x).float().square().mean(), _x(number))
    before = amp.weights()
    with torch.no_grad():
        model[0].weight[0, 0] = 3.0
        model[2].weight.copy_(model[2].weight.clone())
        kept = model[2].bias.clone()
        model[2].bias.zero_()  # an average, say, to evaluate with
        model[2].bias.copy_(kept)
    _still(optimizer)
    amp.step(lambda x: model(x).float().square().mean(), _x())
    after = amp.weights()
    before["0.weight"][0, 0] = 3.0
    assert all((after[name] == before[name]).all() for name in before)


@pytest.mark.parametrize("policy", MASTERS)
def test_what_was_written_is_saved_and_released(policy: str, tmp_path: Any) -> None:
    def made() -> Any:
        torch.manual_seed(0)
        model = nn.Linear(8, 4)
        amp = mp.prepare(model, torch.optim.SGD(model.parameters(), 0.1), policy)
        amp.step(lambda x: model(x).float().square().mean(), _x())
        return model, amp

    model, amp = made()
    with torch.no_grad():
        model.bias.fill_(0.25)
    near = partial(torch.testing.assert_close, rtol=2**-7, atol=2**-7)
    near(torch.from_numpy(amp.weights()["bias"]), torch.full((4,), 0.25))
    amp.save(tmp_path / "run.amp", weights=True)
    whole = copy.deepcopy([model.state_dict(), amp.state_dict()])
    amp.release()
    near(model.bias.detach(), torch.full((4,), 0.25))
    model, amp = made()
    amp.load(tmp_path / "run.amp")
    near(model.bias.detach().float(), torch.full((4,), 0.25))
    model, amp = made()
    model.load_state_dict(whole[0])
    amp.load_state_dict(whole[1])
    near(torch.from_numpy(amp.weights()["bias"]), torch.full((4,), 0.25))

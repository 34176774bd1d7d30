"""The shim of apex.amp: old scripts, recorded scales, and what ``safe=True`` mends."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path

import pytest

from mpcore.errors import MpcoreWarning, OptimizerError, PolicyError

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

import mpcore_compat.apex  # noqa: E402
from mpcore_compat import apex  # noqa: E402
from mpcore_compat.apex import amp  # noqa: E402
from mpcore_compat.apex.optimizers import stash_of  # noqa: E402

pytestmark = pytest.mark.backend("torch")

TRACES = json.loads(
    (Path(__file__).parents[1] / "golden" / "loss_scale_traces.json").read_text(encoding="utf-8")
)
LEVELS = ["O0", "O1", "O2", "O3"]
LOW = torch.float16


@pytest.fixture(autouse=True)
def _anew():
    torch.manual_seed(0)
    yield
    amp._amp_state.__init__()
    amp._REGISTERED.clear()


class Net(nn.Module):
    """As small as a classifier of images can be."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.bn = nn.BatchNorm2d(4)
        self.fc = nn.Linear(4 * 16, 3)
        self.seen = []

    def forward(self, x, factor=1.0):
        x = self.conv(x)
        self.seen.append(x.dtype)
        return self.fc(functional.relu(self.bn(x)).flatten(1)) * factor


def ready(level="O1", count=1, optimizer=torch.optim.SGD, **options):
    options.setdefault("verbosity", 0)
    torch.manual_seed(1)
    models = [Net() for _ in range(count)]
    made = [optimizer(model.parameters(), lr=0.01) for model in models]
    amp.initialize(models, made, opt_level=level, **options)
    return (*models, *made)


def batch(seed=0):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(8, 1, 4, 4, generator=g), torch.randint(3, (8,), generator=g)


def train(model, optimizer, seeds, *, bad=(), loss_id=0, clip=None):
    """The loop of the apex examples; in steps of ``bad`` the loss overflows."""
    for seed in seeds:
        x, y = batch(seed)
        loss = functional.cross_entropy(model(x), y) * (math.inf if seed in bad else 1.0)
        optimizer.zero_grad()
        with amp.scale_loss(loss, optimizer, loss_id=loss_id) as scaled_loss:
            scaled_loss.backward()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(amp.master_params(optimizer), clip)
        optimizer.step()


def snapshot(*things):
    return [
        value.detach().clone()
        for thing in things
        for value in (thing.state_dict().values() if isinstance(thing, nn.Module) else thing)
    ]


def equal(xs, ys):
    return all(torch.equal(x, y) for x, y in zip(xs, ys, strict=True))


# Levels


def dtypes(model):
    return {name: param.dtype for name, param in model.named_parameters()}


def test_it_is_found_where_apex_was():
    assert apex.amp is amp
    assert mpcore_compat.apex.amp.initialize is amp.initialize


@pytest.mark.parametrize("level", LEVELS)
def test_levels_store_and_compute_as_in_apex(level):
    model, optimizer = ready(level)
    x, _ = batch()
    out = model(x)
    stored = LOW if level in ("O2", "O3") else torch.float32
    assert dtypes(model)["conv.weight"] == stored
    assert dtypes(model)["bn.weight"] == (LOW if level == "O3" else torch.float32)
    assert model.bn.running_mean.dtype == (LOW if level == "O3" else torch.float32)
    assert model.seen[-1] == (torch.float32 if level == "O0" else LOW)
    assert out.dtype == torch.float32
    updated = {param.dtype for param in amp.master_params(optimizer)}
    assert updated == {LOW if level == "O3" else torch.float32}
    assert {value.dtype for value in model.state_dict().values()} <= {torch.float32, torch.int64}


@pytest.mark.parametrize("safe", [False, True])
@pytest.mark.parametrize("level", LEVELS)
def test_an_old_script_learns(level, safe):
    """Initialize, scale, clip, step: the loss falls under every level."""
    model, optimizer = ready(level, safe=safe)
    x, y = batch(0)
    before = functional.cross_entropy(model(x), y).item()
    train(model, optimizer, [0] * 40, clip=5.0)
    assert functional.cross_entropy(model(x), y).item() < before - 0.05


def test_o2_follows_a_float32_run():
    losses = []
    for level in ("O0", "O2"):
        model, optimizer = ready(level)
        train(model, optimizer, [0] * 20)
        x, y = batch(0)
        losses.append(functional.cross_entropy(model(x), y).item())
    assert losses[1] == pytest.approx(losses[0], rel=5e-3)  # a few ulp of float16


def test_overrides():
    model, _ = ready("O2", keep_batchnorm_fp32="False")
    assert dtypes(model)["bn.weight"] == LOW
    model, _ = ready("O3", keep_batchnorm_fp32="True")
    assert dtypes(model)["bn.weight"] == torch.float32
    model, optimizer = ready("O2", cast_model_type=torch.bfloat16)
    assert dtypes(model)["fc.weight"] == torch.bfloat16
    train(model, optimizer, [0])
    model, optimizer = ready("O2", master_weights=False)
    assert {p.dtype for p in amp.master_params(optimizer)} == {LOW, torch.float32}
    model, _ = ready("O1", cast_model_outputs=LOW)
    assert model(batch()[0]).dtype == LOW
    ready("O0", loss_scale="128.0")
    assert amp.state_dict()["loss_scaler0"]["loss_scale"] == 128.0


@pytest.mark.parametrize(
    ("error", "words", "options"),
    [
        (RuntimeError, "`opt_level` must be", {"level": "02"}),
        (RuntimeError, "`cast_model_type` must not be", {"level": "O1", "cast_model_type": LOW}),
        (RuntimeError, "`patch_torch_functions` must", {"level": "O2", "patch_torch_functions": 1}),
        (RuntimeError, "`keep_batchnorm_fp32` must not", {"keep_batchnorm_fp32": True}),
        (RuntimeError, "`master_weights` must not", {"master_weights": False}),
        (AssertionError, "`keep_batchnorm_fp32` must be", {"keep_batchnorm_fp32": "yes"}),
        (ValueError, "could not convert", {"loss_scale": "dynamics"}),
        (PolicyError, "`max_scale` must be", {"min_loss_scale": 2.0**25, "safe": True}),
    ],
)
def test_contradictions_are_refused(error, words, options):
    with pytest.raises(error, match=words):
        ready(options.pop("level", "O1"), **options)
    assert not amp._amp_state.initialized


def test_what_initialize_refuses():
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(TypeError, match="`models` must be a Module or a list"):
        amp.initialize((model,), optimizer)
    with pytest.raises(TypeError, match="`optimizers` must be a Optimizer or a list"):
        amp.initialize(model, "SGD")
    with pytest.raises(RuntimeError, match="before they are wrapped"):
        amp.initialize(nn.DataParallel(model), optimizer)
    with pytest.raises(RuntimeError, match=r"conv\.weight is torch\.float16"):
        amp.initialize(copy.deepcopy(model).half(), optimizer)
    amp.initialize(model, optimizer, opt_level="O2", verbosity=0)
    with pytest.raises(RuntimeError, match="once, this one did before"):
        amp.initialize(Net(), optimizer, opt_level="O2")


def test_it_returns_what_it_was_given():
    model = Net()
    assert amp.initialize(model, opt_level="O1", verbosity=0) is model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    models, optimizers = amp.initialize([model], [optimizer], verbosity=0)
    assert (models, optimizers) == ([model], [optimizer])


def test_turned_off_nothing_happens():
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert amp.initialize(model, optimizer, enabled=False) == (model, optimizer)
    assert not hasattr(optimizer, "_amp_stash")
    loss = torch.ones((), dtype=LOW)
    with amp.scale_loss(loss, optimizer) as scaled:
        assert scaled is loss
    assert amp.state_dict() == {}


def test_order_of_calls():
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with (
        pytest.raises(RuntimeError, match=r"`amp\.initialize` must be called before"),
        amp.scale_loss(torch.ones(()), optimizer),
    ):
        pass
    ready("O1")
    with (
        pytest.raises(OptimizerError, match=r"must come from amp\.initialize, got SGD"),
        amp.scale_loss(torch.ones(()), optimizer),
    ):
        pass


# The loss scale


def test_recorded_runs_are_reproduced():
    traces = [t for t in TRACES if t["implementation"] == "apex.amp.LossScaler"]
    assert len(traces) >= 38
    for trace in traces:
        param = nn.Linear(1, 1, bias=False)
        optimizer = torch.optim.SGD(param.parameters(), lr=0.0)
        amp.initialize(param, optimizer, opt_level="O0", loss_scale="dynamic", verbosity=0)
        amp._amp_state.loss_scalers[0] = amp.LossScaler("dynamic", **trace["config"])
        scales, counts, skips = [], [], []
        for bad in trace["found_inf"]:
            optimizer.zero_grad()
            loss = param.weight.sum() * (math.inf if bad else 0.0)
            with amp.scale_loss(loss, optimizer) as scaled:
                scaled.backward()
            optimizer.step()
            state = amp.state_dict()["loss_scaler0"]
            scales.append(state["loss_scale"])
            counts.append(state["unskipped"])
            skips.append(int(amp._amp_state.last_skipped))
        assert scales == [float(s) for s in trace["scale_after"]], trace["id"]
        assert counts == trace["tracker_after"]["_unskipped"], trace["id"]
        assert skips == [int(bool(bad)) for bad in trace["found_inf"]]


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_an_overflow_skips_the_step(level, capsys):
    model, optimizer = ready(level, verbosity=1)
    capsys.readouterr()
    train(model, optimizer, [0])
    before = snapshot(list(model.parameters()), amp.master_params(optimizer))
    train(model, optimizer, [1], bad={1})
    assert equal(before, snapshot(list(model.parameters()), amp.master_params(optimizer)))
    assert capsys.readouterr().out == (
        "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 32768.0\n"
    )
    assert amp.state_dict() == {"loss_scaler0": {"loss_scale": 2.0**15, "unskipped": 0}}
    train(model, optimizer, [2])
    assert not equal(before, snapshot(list(model.parameters()), amp.master_params(optimizer)))
    assert capsys.readouterr().out == ""


def test_constant_scales_are_judged_with_safe_only():
    for safe, stays in ((False, False), (True, True)):
        model, optimizer = ready("O0", loss_scale=64.0, safe=safe)
        before = snapshot(list(model.parameters()))
        train(model, optimizer, [0], bad={0})
        assert equal(before, snapshot(list(model.parameters()))) == stays
        assert amp.state_dict()["loss_scaler0"]["loss_scale"] == 64.0


def test_without_a_scale_the_loss_goes_through():
    model, optimizer = ready("O3")
    loss = model(batch()[0]).sum()
    with amp.scale_loss(loss, optimizer) as scaled:
        assert scaled.item() == loss.item()
        scaled.backward()
    assert next(model.parameters()).grad is not None


@pytest.mark.parametrize("level", LEVELS)
def test_gradients_are_the_true_ones(level):
    """After scale_loss those that amp.master_params holds, whatever the scale."""
    grads = []
    for scale in ("dynamic", 1.0):
        model, optimizer = ready(level, loss_scale=scale)
        x, y = batch()
        with amp.scale_loss(functional.cross_entropy(model(x), y), optimizer) as scaled:
            scaled.backward()
        grads.append([p.grad.float() for p in amp.master_params(optimizer)])
    for one, two in zip(*grads, strict=True):
        torch.testing.assert_close(one, two, rtol=2e-2, atol=2e-5)  # float16 without a scale


@pytest.mark.parametrize("delay", [False, True])
@pytest.mark.parametrize("level", ["O0", "O1", "O2"])
def test_accumulation_over_iterations(level, delay):
    """Two halves of a batch give the gradients of the whole; masters keep theirs meanwhile."""
    results = []
    for parts in (1, 2):
        model, optimizer = ready(level, loss_scale="dynamic")
        model.eval()  # statistics of half a batch are others
        optimizer.zero_grad()
        x, y = batch()
        for index in range(parts):
            rows = slice(index * 8 // parts, (index + 1) * 8 // parts)
            loss = functional.cross_entropy(model(x[rows]), y[rows]) / parts
            last = index == parts - 1
            with amp.scale_loss(loss, optimizer, delay_unscale=delay and not last) as scaled:
                scaled.backward()
        results.append([p.grad for p in amp.master_params(optimizer)])
    for one, two in zip(*results, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-2, atol=1e-4)


def test_delayed_overflow_checks():
    for safe, skipped in ((False, False), (True, True)):
        model, optimizer = ready("O0", loss_scale="dynamic", safe=safe)
        for delay in (True, False):
            loss = model(batch()[0]).sum() * (math.inf if delay else 1.0)
            with amp.scale_loss(loss, optimizer, delay_overflow_check=delay) as scaled:
                scaled.backward()
            assert amp.state_dict()["loss_scaler0"]["unskipped"] == (not delay and not safe)
        optimizer.step()
        assert amp._amp_state.last_skipped == skipped


def test_one_scale_per_loss():
    first, second, opt_a, opt_b = ready("O1", count=2, num_losses=2)
    train(first, opt_a, [0, 1], bad={1}, loss_id=0)
    train(second, opt_b, [0, 1], loss_id=1)
    assert amp.state_dict() == {
        "loss_scaler0": {"loss_scale": 2.0**15, "unskipped": 0},
        "loss_scaler1": {"loss_scale": 2.0**16, "unskipped": 2},
    }


def together(bad, **options):
    """Two losses, then two steps; returns which model moved."""
    first, second, *optimizers = ready("O2", count=2, num_losses=2, **options)
    before = [snapshot(first), snapshot(second)]
    for index, (model, optimizer) in enumerate(zip((first, second), optimizers, strict=True)):
        loss = model(batch()[0]).pow(2).mean() * (math.inf if index in bad else 1.0)
        with amp.scale_loss(loss, optimizer, loss_id=index) as scaled:
            scaled.backward()
    for optimizer in optimizers:
        optimizer.step()
    return [not equal(b, snapshot(m)) for b, m in zip(before, (first, second), strict=True)]


def test_all_or_none_with_safe(capsys):
    assert together(set()) == together(set(), safe=True) == [True, True]
    for bad in ({0}, {1}):
        moved = together(bad)
        assert moved[1 - min(bad)]
        assert together(bad, safe=True, verbosity=1) == [False, False]
        assert capsys.readouterr().out.count(f"loss scaler {min(bad)} reducing") == 2


def test_one_loss_for_two_optimizers():
    first, second, opt_a, opt_b = ready("O2", count=2)
    before = snapshot(list(first.parameters()), list(second.parameters()))
    for factor in (math.inf, 1.0):
        for optimizer in (opt_a, opt_b):
            optimizer.zero_grad()
        x, _ = batch()
        loss = (first(x) + second(x)).pow(2).mean() * factor
        with amp.scale_loss(loss, [opt_a, opt_b]) as scaled:
            scaled.backward()
        for optimizer in (opt_a, opt_b):
            optimizer.step()
        moved = not equal(before, snapshot(list(first.parameters()), list(second.parameters())))
        assert moved == (factor == 1.0)


def test_gan_blocks_with_safe():
    """What moved before a later backward pass stays; the next block is free again."""
    d, g, opt_d, opt_g = ready("O1", count=2, safe=True)
    weights = [snapshot(list(d.parameters())), snapshot(list(g.parameters()))]
    for bad_d, bad_g in ((False, True), (True, False), (False, False)):
        for model, optimizer, bad in ((d, opt_d, bad_d), (g, opt_g, bad_g)):
            train(model, optimizer, [0], bad={0} if bad else ())
        now = [snapshot(list(d.parameters())), snapshot(list(g.parameters()))]
        assert [not equal(a, b) for a, b in zip(weights, now, strict=True)] == [
            not bad_d,
            not bad_g,
        ]
        weights = now


@pytest.mark.parametrize("level", ["O0", "O1", "O2"])
def test_buffers_after_a_skipped_step(level):
    """apex leaves NaN statistics behind; with safe they are what they were."""
    for safe in (False, True):
        model, optimizer = ready(level, loss_scale="dynamic", safe=safe)
        train(model, optimizer, [0])
        before = snapshot(list(model.buffers()))
        x, y = batch(1)
        for part in (x, x * math.nan):  # the second micro-batch is bad
            with amp.scale_loss(functional.cross_entropy(model(part), y), optimizer) as scaled:
                scaled.backward()
        optimizer.step()
        assert amp._amp_state.last_skipped
        assert equal(before, snapshot(list(model.buffers()))) == safe
        if safe:
            train(model, optimizer, [2])
            assert not equal(before, snapshot(list(model.buffers())))


def test_floors():
    """200 overflows: apex's scale goes on to 2^-184, ours stays at 1."""
    for safe, scale in ((False, 2.0**-184), (True, 1.0)):
        model = nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        amp.initialize(model, optimizer, loss_scale="dynamic", verbosity=0, safe=safe)
        for _ in range(200):
            with amp.scale_loss(model.weight.sum() * math.nan, optimizer) as scaled:
                scaled.backward()
            optimizer.step()
        assert amp.state_dict()["loss_scaler0"]["loss_scale"] == scale
    for safe in (False, True):
        model = nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        options = {"min_loss_scale": 2.0**15, "max_loss_scale": 2.0**14 * 3.0}
        amp.initialize(model, optimizer, verbosity=0, safe=safe, **options)
        assert amp.state_dict()["loss_scaler0"]["loss_scale"] == 2.0**14 * 3.0
        for _ in range(3):
            with amp.scale_loss(model.weight.sum() * math.nan, optimizer) as scaled:
                scaled.backward()
            optimizer.step()
        assert amp.state_dict()["loss_scaler0"]["loss_scale"] == 2.0**15


# Checkpoints


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam])
def test_resume_goes_on_as_if_nothing_had_been(level, optimizer):
    if level == "O3" and optimizer is torch.optim.Adam:
        pytest.skip("Adam's eps of 1e-8 is 0 in float16: its first step divides 0 by 0")
    options = {"loss_scale": "dynamic", "optimizer": optimizer}
    model, made = ready(level, **options)
    train(model, made, range(6), bad={3})
    saved = copy.deepcopy([model.state_dict(), made.state_dict(), amp.state_dict()])
    train(model, made, range(6, 10))
    expected = snapshot(model, amp.master_params(made)), amp.state_dict()
    again, second = ready(level, **options)
    again.load_state_dict(saved[0])
    second.load_state_dict(saved[1])
    amp.load_state_dict(saved[2])
    train(again, second, range(6, 10))
    assert equal(snapshot(again, amp.master_params(second)), expected[0])
    assert amp.state_dict() == expected[1]


def test_state_of_other_runs(capsys):
    ready("O1", num_losses=2, verbosity=1)
    capsys.readouterr()
    state = {"loss_scaler0": {"loss_scale": 8.0, "unskipped": 5}}
    amp.load_state_dict(state)
    assert "contains 1 entries, while 2" in capsys.readouterr().out
    assert amp.state_dict()["loss_scaler0"] == state["loss_scaler0"]
    with pytest.raises(RuntimeError, match="`state_dict` must hold loss scalers only, got epoch"):
        amp.load_state_dict({**state, "epoch": 3})
    into = {}
    assert amp.state_dict(into) is into
    ready("O1", safe=True)
    with pytest.warns(MpcoreWarning, match="outside the safe range and becomes 1"):
        amp.load_state_dict({"loss_scaler0": {"loss_scale": 2.0**-140, "unskipped": 0}})
    assert amp._amp_state.loss_scalers[0].loss_scale() == 1.0


def test_scripts_that_set_the_scale_by_hand():
    model, optimizer = ready("O1")
    held = amp._amp_state
    held.loss_scalers[0]._loss_scale = 4.0
    held.loss_scalers[0]._unskipped = 1999
    train(model, optimizer, [0])
    assert held.loss_scalers[0].loss_scale() == held.loss_scalers[0]._loss_scale == 8.0
    ready("O1")
    assert amp._amp_state is held


# Optimizers


def test_closures_are_refused():
    model, optimizer = ready("O2")
    with pytest.raises(RuntimeError, match="`closure` must not be given under amp"):
        optimizer.step(lambda: 1.0)
    model, optimizer = ready("O1")
    train(model, optimizer, [0])
    assert optimizer.step(lambda: torch.ones(())).item() == 1.0
    with amp.scale_loss(model(batch()[0]).sum() * math.inf, optimizer) as scaled:
        scaled.backward()
    with pytest.raises(RuntimeError, match="`closure` must not be given under amp"):
        optimizer.step(closure=lambda: 1.0)


@pytest.mark.parametrize("set_to_none", [True, False])
def test_zero_grad_reaches_model_and_masters(set_to_none):
    model, optimizer = ready("O2")
    x, y = batch()
    with amp.scale_loss(functional.cross_entropy(model(x), y), optimizer) as scaled:
        scaled.backward()
    optimizer.zero_grad(set_to_none=set_to_none)
    for low, master in stash_of(optimizer).pairs:
        assert master.grad is None
        assert low.grad is None if set_to_none else not low.grad.any()


@pytest.mark.parametrize("level", LEVELS)
def test_a_group_added_later_trains(level):
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.conv.parameters(), lr=0.01)
    amp.initialize(model, optimizer, opt_level=level, verbosity=0)
    optimizer.add_param_group({"params": list(model.fc.parameters()), "lr": 0.1})
    before = snapshot([model.fc.weight])
    train(model, optimizer, [0])
    assert not equal(before, snapshot([model.fc.weight]))
    kinds = {p.dtype for p in amp.master_params(optimizer)}
    assert kinds == {LOW if level == "O3" else torch.float32}


@pytest.mark.parametrize("before", [True, False])
def test_schedulers_go_around_it(before):
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    if before:
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    amp.initialize(model, optimizer, opt_level="O2", verbosity=0)
    if not before:
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    train(model, optimizer, [0])
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 0.5


def test_sparse_gradients():
    for level in ("O0", "O1", "O2"):
        model = nn.Embedding(4, 2, sparse=True)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        options = {"loss_scale": "dynamic", "max_loss_scale": 2.0**10}  # 2**16 is inf in float16
        amp.initialize(model, optimizer, opt_level=level, verbosity=0, **options)
        before = snapshot([model.weight])[0]
        with amp.scale_loss(model(torch.tensor([1, 1, 2])).sum(), optimizer) as scaled:
            scaled.backward()
        optimizer.step()
        moved = (before - snapshot([model.weight])[0]).float()
        expected = torch.tensor([[0.0, 0.0], [1.0, 1.0], [0.5, 0.5], [0.0, 0.0]])
        torch.testing.assert_close(moved, expected, rtol=0, atol=4e-3)


# O1's own


def test_casts_can_be_turned_off():
    model, _ = ready("O1")
    x, _ = batch()
    with torch.autocast("cpu", LOW), amp.disable_casts():
        assert functional.linear(x.flatten(1), torch.ones(2, 16)).dtype == torch.float32
    model(x)
    assert model.seen[-1] == LOW
    assert amp._amp_state.casts


def test_functions_that_say_their_dtype():
    seen = []

    def look(*tensors, more=()):
        seen.append([t.dtype for t in (*tensors, *more)])
        return torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype

    x, h, i = torch.ones(2), torch.ones(2, dtype=LOW), torch.ones(2, dtype=torch.int64)
    half, full = amp.half_function(look), amp.float_function(look)
    widest = amp.promote_function(look)
    for wrapped in (half, full, widest):
        wrapped(x, h, i)
    assert seen == [[torch.float32, LOW, torch.int64]] * 3  # amp is not initialized
    seen.clear()
    ready("O1")
    with torch.autocast("cpu", LOW):
        products = [half(x, h, i), full(x, more=[h]), widest(h, more=(x,)), widest(h, h), widest(i)]
    f = torch.float32
    assert seen == [[LOW, LOW, torch.int64], [f, f], [f, f], [LOW, LOW], [torch.int64]]
    assert products[:2] == [LOW, torch.float32]
    seen.clear()
    with amp.disable_casts():
        half(x)
    ready("O2")
    half(x)
    assert seen == [[f], [f]]


def test_registered_functions():
    class Module:
        half = staticmethod(lambda x: x.dtype)
        full = staticmethod(lambda x: x.dtype)
        widest = staticmethod(lambda x, y: (x.dtype, y.dtype))

    amp.register_half_function(Module, "half")
    amp.register_float_function(Module, "full")
    amp.register_promote_function(Module, "widest")
    with pytest.raises(ValueError, match="`name` must be a function of"):
        amp.register_half_function(Module, "other")
    x, h = torch.ones(2), torch.ones(2, dtype=LOW)
    ready("O2")
    assert Module.half(x) == torch.float32
    ready("O1")
    assert (Module.half(x), Module.full(h)) == (LOW, torch.float32)
    assert Module.widest(x, h) == (torch.float32, torch.float32)


def test_copies_of_a_prepared_model_stand_alone():
    model, optimizer = ready("O2")
    twin = copy.deepcopy(model)
    train(model, optimizer, [0])
    assert not equal(snapshot(list(twin.parameters())), snapshot(list(model.parameters())))
    assert {value.dtype for value in twin.state_dict().values()} <= {torch.float32, torch.int64}
    before = snapshot(amp.master_params(optimizer))
    twin.load_state_dict({k: torch.zeros_like(v) for k, v in twin.state_dict().items()})
    assert equal(before, snapshot(amp.master_params(optimizer)))

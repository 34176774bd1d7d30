"""The MindSpore shim beside mindspore.amp: the same numbers, the same defects, and on CPU more."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest

ms = pytest.importorskip("mindspore")
from mindspore import Parameter, Tensor, nn, ops  # noqa: E402
from mindspore import amp as native  # noqa: E402
from mindspore import dataset as ds  # noqa: E402

import mpcore_compat.mindspore as shim  # noqa: E402
from mpcore import LossScale, LossScaleError, PolicyError  # noqa: E402
from mpcore.scaling.transition import advance, initial_state  # noqa: E402
from mpcore_mindspore.guard import guarded  # noqa: E402

pytestmark = pytest.mark.backend("mindspore")


TRACES = json.loads(
    (Path(__file__).parents[1] / "golden" / "loss_scale_traces.json").read_text(encoding="utf-8")
)
RNG = np.random.default_rng(7)
X = RNG.normal(size=(32, 8)).astype("f4")
Y = RNG.integers(0, 4, 32).astype("i4")
MODES = pytest.mark.parametrize("mode", ["eager", "jit", "graph"])
# A native scaler whose predecessor is gone may unscale by that one's scale: none goes.
KEPT = []
NUMBERS = itertools.count()
PATTERNS = {
    "seldom": np.random.default_rng(1).random(60) < 0.1,
    "often": np.random.default_rng(2).random(60) < 0.5,
    "quiet": np.zeros(40, bool),
    "bad": np.ones(40, bool),
}


@pytest.fixture(autouse=True)
def _scratch(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # MindSpore writes rank_0/ into the working directory


@pytest.fixture(scope="module", autouse=True)
def _quick():
    ms.runtime.launch_blocking()


@pytest.fixture
def graph_mode():
    ms.set_context(mode=ms.GRAPH_MODE)
    yield
    ms.set_context(mode=ms.PYNATIVE_MODE)


class Caller(nn.Cell):
    """A function as a Cell, which GRAPH_MODE compiles."""

    def __init__(self, function):
        super().__init__(auto_prefix=False)
        self.function = function

    def construct(self, *args):
        return self.function(*args)


def in_mode(function, mode, request):
    if mode == "eager":
        return function
    if mode == "jit":
        return ms.jit(function, fullgraph=True)
    request.getfixturevalue("graph_mode")
    return Caller(function)


def traces(name):
    found = [t for t in TRACES if t["implementation"] == name]
    assert len(found) >= 9
    return [pytest.param(t, id=t["id"]) for t in found]


def number(value):
    return value.asnumpy().item()


def adjusting(scaler):
    def adjust(finite):
        scaler.adjust(finite)
        return scaler.scale_value.value(), scaler.counter.value()

    return adjust


# --- DynamicLossScaler


@pytest.mark.parametrize("trace", traces("mindspore.amp.DynamicLossScaler"))
def test_recorded_trajectories_of_the_scaler(trace):
    scaler = shim.DynamicLossScaler(**trace["config"])
    adjust = adjusting(scaler)
    for step, bad in enumerate(trace["found_inf"]):
        scale, counter = adjust(Tensor(not bad))
        assert number(scale) == float(trace["scale_after"][step])
        assert number(counter) == trace["tracker_after"]["counter"][step]


SCALERS = [
    (2**10, 2, 3),
    (3.7, 3, 1),
    (2.0**125, 2, 2),
    (1, 1, 2),
    (1e30, 7, 4),
    (1.5, 16777217, 2),
]


def side_by_side(steps):
    """Return one function that runs ``steps`` one after the other: one graph for all."""

    def run(*inputs):
        return tuple([step(*inputs) for step in steps])

    return run


def renamed(thing):
    """Return a scaler or cell; in one graph no two parameters may have the same name."""
    cell = isinstance(thing, nn.Cell)
    found = thing.get_parameters() if cell else vars(thing).values()
    for param in [value for value in found if isinstance(value, Parameter)]:
        param.name = f"{param.name}{next(NUMBERS)}"
    return thing


def assert_pairs_are_equal(found, count):
    """Check that the first ``count`` results, ours, are those of the natives behind them."""
    values = [[number(value) for value in result] for result in found]
    assert len(values) == 2 * count
    assert values[:count] == values[count:]


@MODES
def test_scalers_equal_the_natives(mode, request):
    made = [module.DynamicLossScaler(*a) for module in (shim, native) for a in SCALERS]
    scalers = [renamed(scaler) for scaler in made]
    run = in_mode(side_by_side([adjusting(scaler) for scaler in scalers]), mode, request)
    for pattern in PATTERNS.values():
        for bad in pattern:
            assert_pairs_are_equal(run(Tensor(not bad)), len(SCALERS))


@pytest.mark.parametrize("counter", range(9))
@pytest.mark.parametrize("finite", [True, False])
def test_a_counter_beyond_the_window_equals_the_natives(counter, finite):
    seen = []
    for module in (shim, native):
        scaler = module.DynamicLossScaler(64, 2, 3)
        ops.assign(scaler.counter, Tensor(counter, ms.int32))
        adjust = adjusting(scaler)
        seen.append([number(v) for ok in (finite, True, True) for v in adjust(Tensor(ok))])
    assert seen[0] == seen[1]


def using(scaler, finite):
    def use(loss, grads):
        return scaler.scale(loss), scaler.unscale(grads), finite(grads)

    return use


@MODES
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_scale_unscale_and_all_finite_equal_the_natives(dtype, mode, request):
    """Ten scalers in one graph: five scales, dynamic and static, ours and then the natives."""
    dtype = getattr(ms, dtype)
    grads = tuple(Tensor(RNG.normal(size=4).astype("f4"), dtype) for _ in range(3))
    bad = (*grads, Tensor([1.0, math.nan], dtype))
    steps = []
    for module in (shim, native):
        for scale in (1.0, 2.0**15, 2.0**16, 2.0**25, 3.3):
            for scaler in (module.DynamicLossScaler(scale, 2, 3), module.StaticLossScaler(scale)):
                KEPT.append(renamed(scaler))
                steps.append(using(scaler, module.all_finite))
    use = in_mode(side_by_side(steps), mode, request)
    for inputs in (grads, bad):
        results = []
        for loss, unscaled, finite in use(Tensor(2.5, dtype), inputs):
            kept = [loss, *unscaled, finite]
            results.append([(v.dtype, v.asnumpy().tobytes()) for v in kept])
        assert len(results) == 20
        assert results[:10] == results[10:]


def test_gradients_of_a_scale_near_the_end_of_float32_come_back():
    """Above 2**126 the reciprocal is subnormal: 0 to some of MindSpore's threads, not to others."""
    for scale, can_be in ((2.0**126, [[1.0, 0.5]]), (2.55e38, [[1.0, 0.5], [0.0, 0.0]])):
        grads = (Tensor(np.array([scale, scale / 2], "f4")),)
        (found,) = shim.DynamicLossScaler(scale, 2, 3).unscale(grads)
        assert any(np.allclose(found.asnumpy(), one, rtol=1e-6) for one in can_be)


def test_containers_are_those_of_the_native():
    one, two = Tensor([1.0]), Tensor([2.0])
    for inputs in ([one], (one, (two,)), one, ()):
        results = []
        for module in (shim, native):
            KEPT.append(module.StaticLossScaler(8.0))
            results.append([KEPT[-1].scale(inputs), KEPT[-1].unscale(inputs)])
        assert str(results[0]) == str(results[1])
    for module in (shim, native):
        KEPT.append(module.StaticLossScaler(8.0))
        with pytest.raises(TypeError, match="'mutable'"):
            KEPT[-1].unscale(None)


def one_after_the_other(module):
    """Return (scale, what unscale divided by) of scalers that are made and let go in turn."""
    seen = []
    for power in range(40):
        scaler = module.DynamicLossScaler(2.0**power, 2, 3)
        use = using(scaler, module.all_finite)
        for count in (1, 2):  # two shapes of the inputs, two compiled functions in the native
            _, grads, _ = use(Tensor(1.0), (Tensor([1.0]),) * count)
            seen.append((2.0**power, 1 / number(grads[0])))
    return seen


def test_a_scaler_never_uses_the_scale_of_one_that_is_gone():
    """The native of 2.10 may, where a new scaler gets the address of a freed one."""
    assert all(scale == used for scale, used in one_after_the_other(shim))


def test_static_scaler_adjusts_nothing():
    scaler = shim.StaticLossScaler(8)
    assert scaler.adjust(Tensor(False)) is False
    assert number(scaler.scale_value) == 8.0


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        pytest.param((0.5, 2, 3), ValueError, id="below-1"),
        pytest.param(("8", 2, 3), TypeError, id="text"),
        pytest.param((8, 1.5, 3), TypeError, id="factor"),
        pytest.param((8, 0, 3), ValueError, id="factor-0"),
        pytest.param((8, 2, 0), ValueError, id="window-0"),
        pytest.param((8, 2, 2.0), TypeError, id="window"),
    ],
)
def test_scaler_refuses_as_the_native_does(arguments, error):
    for module in (shim, native):
        with pytest.raises(error) as caught:
            module.DynamicLossScaler(*arguments)
        assert type(caught.value) is error


def test_what_it_is_an_instance_of():
    assert isinstance(shim.DynamicLossScaler(8, 2, 3), native.LossScaler)
    assert isinstance(shim.StaticLossScaler(8), native.LossScaler)
    assert isinstance(shim.DynamicLossScaleManager(), native.LossScaleManager)
    assert isinstance(shim.FixedLossScaleManager(), native.LossScaleManager)
    names = {name for name in native.__all__ if not hasattr(shim, name)}
    assert names == set()


# --- the safe scaler


@MODES
def test_safe_scaler_follows_the_cores_rule(mode, request):
    rule = LossScale.of(init_scale=2.0**22, growth_interval=2, backoff_op="div", backoff_factor=2.0)
    scaler, state = shim.DynamicLossScaler(2**22, 2, 2, safe=True), initial_state(rule)
    adjust = in_mode(adjusting(scaler), mode, request)
    for pattern in PATTERNS.values():
        for bad in pattern:
            scale, counter = adjust(Tensor(not bad))
            state = advance(rule, state, not bad)
            assert (number(scale), number(counter)) == (state.scale, state.good_steps)


@MODES
def test_float16_gradients_vanish_in_the_native_and_not_under_safe(mode, request):
    grads = (Tensor([60000.0, 1.0], ms.float16),)
    for module in (native, shim):
        scaler = module.StaticLossScaler(2.0**25)
        KEPT.append(scaler)
        use = in_mode(using(scaler, module.all_finite), mode, request)
        _, unscaled, finite = use(Tensor(1.0), grads)
        assert unscaled[0].asnumpy().tolist() == [0.0, 0.0]
        assert number(finite)
    for scaler in (
        shim.StaticLossScaler(2.0**25, safe=True),
        shim.DynamicLossScaler(2.0**24, 2, 50, safe=True),
    ):
        use = in_mode(using(scaler, shim.all_finite), mode, request)
        loss, unscaled, _ = use(Tensor(4.0, ms.float16), grads)
        scale = number(scaler.scale_value)
        assert unscaled[0].asnumpy().tolist() == [60000.0 / scale, 1.0 / scale]
        assert (loss.dtype, number(loss)) == (ms.float32, 4.0 * scale)
        assert unscaled[0].dtype == ms.float32


def test_float16_loss_overflows_in_the_native():
    for module in (native, shim):
        scaler = module.DynamicLossScaler(2**16, 2, 3)
        KEPT.append(scaler)
        assert math.isinf(number(scaler.scale(Tensor(1.0, ms.float16))))


@pytest.mark.parametrize("dead", [0.0, math.inf, 2.0**100])
def test_safe_scaler_recovers_from_a_dead_scale(dead):
    scaler = shim.DynamicLossScaler(8, 2, 1, safe=True)
    ops.assign(scaler.scale_value, Tensor(dead, ms.float32))
    scaler.adjust(Tensor(False))  # inf times anything, 0 divided by 0: not finite
    assert 1.0 <= number(scaler.scale_value) <= 2.0**24


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        pytest.param((2.0**25, 2, 3), "`init_scale` must be finite and in", id="cap"),
        pytest.param((8, 1, 3), "`growth_factor` must be finite and > 1", id="factor"),
    ],
)
def test_safe_scaler_refuses_what_it_could_not_leave(arguments, match):
    with pytest.raises(PolicyError, match=match):
        shim.DynamicLossScaler(*arguments, safe=True)


# --- all_finite


def test_all_finite_takes_both_spellings():
    status = shim.init_status()
    assert status is None  # no flag on this device
    good, bad = (Tensor([1.0]), Tensor([2.0])), [Tensor([1.0]), Tensor([-math.inf])]
    assert number(shim.all_finite(good, status))
    assert not number(shim.all_finite(bad, status))
    assert number(shim.all_finite(good, status=status, safe=True))
    assert not number(shim.all_finite(bad, safe=True))


def test_all_finite_of_nothing_raises_as_the_native_and_is_true_under_safe():
    for module in (native, shim):
        with pytest.raises(ValueError, match="AddN"), guarded():
            module.all_finite(())
    assert number(shim.all_finite((), safe=True))


@MODES
def test_all_finite_of_bfloat16_needs_safe_on_cpu(mode, request):
    def check(grads):
        return shim.all_finite(grads, safe=True)

    run = in_mode(check, mode, request)
    assert number(run((Tensor([1.0], ms.bfloat16), Tensor([1.0]))))
    assert not number(run((Tensor([math.inf], ms.bfloat16), Tensor([1.0]))))


# --- managers


@pytest.mark.parametrize("trace", traces("mindspore.amp.DynamicLossScaleManager"))
def test_recorded_trajectories_of_the_manager(trace):
    manager, scales, raised = shim.DynamicLossScaleManager(**trace["config"]), [], []
    for step, bad in enumerate(trace["found_inf"]):
        try:
            manager.update_loss_scale(bool(bad))
        except RuntimeError:
            raised.append(step)
        scales.append(manager.get_loss_scale())
        for name, values in trace["tracker_after"].items():
            if step < len(values) and not raised:
                assert getattr(manager, name) == values[step]
    assert scales == trace["scale_after"]
    assert raised == [error["step"] for error in trace["errors"]]


def state_of(manager):
    names = ("loss_scale", "cur_iter", "last_overflow_iter", "bad_step")
    return [(getattr(manager, name), type(getattr(manager, name))) for name in names]


@pytest.mark.parametrize("init", [2**24, 2.0**24, 1, 1.0, 5, 3.3])
@pytest.mark.parametrize("factor", [2, 2.0, 3, 0.5, 1, 1.1])
@pytest.mark.parametrize("window", [1, 3])
def test_manager_equals_the_native_in_value_and_type(init, factor, window):
    pair = [m.DynamicLossScaleManager(init, factor, window) for m in (shim, native)]
    for pattern in PATTERNS.values():
        for bad in pattern:
            for manager in pair:
                manager.update_loss_scale(bool(bad))
            assert state_of(pair[0]) == state_of(pair[1])


def test_manager_ends_the_run_at_the_same_step_in_the_same_state():
    pair = [m.DynamicLossScaleManager(8, 2, 3) for m in (shim, native)]
    for manager in pair:
        for _ in range(1000):
            manager.update_loss_scale(True)
        with pytest.raises(RuntimeError):
            manager.update_loss_scale(True)
    assert state_of(pair[0]) == state_of(pair[1])
    assert pair[0].bad_step == 1001
    with pytest.raises(LossScaleError, match="more than 1000 steps in a row"):
        pair[0].update_loss_scale(True)


def test_manager_follows_attributes_that_are_set():
    pair = [m.DynamicLossScaleManager(2.0**10, 2, 3) for m in (shim, native)]
    for manager in pair:
        manager.scale_window, manager.increase_ratio, manager.decrease_ratio = 2, 3.0, 0.25
        manager.bad_step_max, manager.cur_iter = 3, 10
        for bad in (False, True, False, False, True, True, True):
            manager.update_loss_scale(bad)
    assert state_of(pair[0]) == state_of(pair[1])
    for manager in pair:
        with pytest.raises(RuntimeError):
            manager.update_loss_scale(True)


@pytest.mark.parametrize("arguments", [(0.5,), (8, 0), (8, -1), (8, 2, 0), (8, 2, 1.5)])
def test_manager_refuses_as_the_native_does(arguments):
    kinds = []
    for module in (shim, native):
        with pytest.raises((TypeError, ValueError)) as caught:
            module.DynamicLossScaleManager(*arguments)
        kinds.append((type(caught.value), str(caught.value)))
    assert kinds[0] == kinds[1]


def test_safe_manager_has_a_floor_and_a_cap():
    manager = shim.DynamicLossScaleManager(2**24, 2, 1, safe=True)
    assert native.DynamicLossScaleManager(2**24, 2, 1).get_loss_scale() == 2**24
    for _ in range(5):
        manager.update_loss_scale(False)
    assert manager.get_loss_scale() == 2**24
    for _ in range(40):
        manager.update_loss_scale(True)
    assert manager.get_loss_scale() == 1
    manager.loss_scale = math.inf
    manager.update_loss_scale(True)
    assert manager.get_loss_scale() == 2**23
    with pytest.raises(PolicyError, match="`init_scale`"):
        shim.DynamicLossScaleManager(2**25, safe=True)


def test_fixed_manager_and_its_cell():
    for module in (shim, native):
        manager = module.FixedLossScaleManager()
        assert (manager.get_loss_scale(), manager.get_drop_overflow_update()) == (128.0, True)
        assert manager.get_update_cell().get_loss_scale() == 128.0
        assert module.FixedLossScaleManager(8.0, False).get_update_cell() is None
        with pytest.raises(ValueError, match="must be >= 1"):
            module.FixedLossScaleManager(0.5)
    assert isinstance(shim.FixedLossScaleManager().get_update_cell(), shim.FixedLossScaleUpdateCell)


# --- update cells


def updating(cell, scale):
    def update(overflow):
        overflow = cell(scale, overflow)
        return overflow, scale.value(), cell.cur_iter.value(), cell.last_overflow_iter.value()

    return update


@pytest.mark.parametrize("trace", traces("mindspore.nn.DynamicLossScaleUpdateCell"))
def test_recorded_trajectories_of_the_update_cell(trace):
    cell = shim.DynamicLossScaleUpdateCell(**trace["config"])
    scale = Parameter(Tensor(cell.get_loss_scale(), ms.float32), name="scale_sense")
    for step, bad in enumerate(trace["found_inf"]):
        assert number(cell(scale, Tensor(bool(bad)))) == bool(bad)
        assert number(scale) == float(trace["scale_after"][step])
        for name, values in trace["tracker_after"].items():
            assert number(getattr(cell, name)) == values[step]


CELLS = [(2**12, 2, 3), (3.7, 3, 1), (2.0**125, 2, 2), (4.0, 1.1, 2), (8, 0.5, 2), (8, 2, 0)]


@MODES
def test_update_cells_equal_the_natives(mode, request):
    updates = []
    for module in (shim, nn):
        for arguments in CELLS:
            cell = renamed(module.DynamicLossScaleUpdateCell(*arguments))
            name = f"scale_sense{len(updates)}"
            scale = Parameter(Tensor(cell.get_loss_scale(), ms.float32), name=name)
            updates.append(updating(cell, scale))
    run = in_mode(side_by_side(updates), mode, request)
    for pattern in PATTERNS.values():
        for bad in pattern:
            assert_pairs_are_equal(run(Tensor(bool(bad))), len(CELLS))


@pytest.mark.parametrize("safe", [False, True])
def test_update_cell_reaches_inf_unless_safe(safe):
    cell = shim.DynamicLossScaleUpdateCell(2.0**20, 2, 1, safe=safe)
    scale = Parameter(Tensor(cell.get_loss_scale(), ms.float32), name="scale_sense")
    for _ in range(120):
        cell(scale, Tensor(False))
    assert number(scale) == (2.0**24 if safe else math.inf)
    for _ in range(40):
        cell(scale, Tensor(True))
    assert number(scale) == (1.0 if safe else math.inf)


# --- training


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Dense(8, 16)
        self.bn = nn.BatchNorm1d(16)
        self.fc2 = nn.Dense(16, 4)

    def construct(self, x):
        return self.fc2(ops.relu(self.bn(self.fc1(x))))


def made():
    ms.set_seed(3)
    net = Net().set_train()
    return net, nn.Momentum(net.trainable_params(), 0.1, 0.9)


def weights(*cells):
    held = {id(p): p for cell in cells for p in cell.get_parameters()}
    return {p.name: p.asnumpy().copy() for p in held.values()}


def same(left, right):
    assert left.keys() == right.keys()
    for name in left:
        np.testing.assert_array_equal(left[name], right[name], err_msg=name)


def common_loop(amp, mode, request, **arguments):
    """The loop that MindSpore's tutorials teach; ``amp`` is the module it imports."""
    net, optimizer = made()
    scaler = amp.DynamicLossScaler(2**10, 2, 4, **arguments)
    KEPT.append(scaler)

    def forward(x, y):
        return scaler.scale(ops.cross_entropy(net(x), y))

    grad_fn = ms.value_and_grad(forward, None, optimizer.parameters)

    def train(x, y):
        loss, grads = grad_fn(x, y)
        loss = scaler.unscale(loss)
        grads = scaler.unscale(grads)
        finite = amp.all_finite(grads)
        if finite:
            loss = ops.depend(loss, optimizer(grads))
        scaler.adjust(finite)
        return loss, finite

    step, seen = in_mode(train, mode, request), []
    for index in range(14):
        boost = math.inf if index in (5, 9) else 1.0
        loss, finite = step(Tensor(X * np.float32(boost)), Tensor(Y))
        seen.append((number(loss), number(finite), number(scaler.scale_value)))
    return seen, weights(net, optimizer)


@MODES
def test_a_script_that_changes_its_import_line_trains_the_same(mode, request):
    ours, theirs = (common_loop(module, mode, request) for module in (shim, native))
    assert [item[1:] for item in ours[0]] == [item[1:] for item in theirs[0]]
    np.testing.assert_array_equal([item[0] for item in ours[0]], [item[0] for item in theirs[0]])
    same(ours[1], theirs[1])
    assert [finite for _, finite, _ in ours[0]].count(False) == 2
    safe, _ = common_loop(shim, mode, request, safe=True)
    # All gradients are float32 here and all scales powers of two: nothing differs.
    np.testing.assert_array_equal([item[0] for item in ours[0]], [item[0] for item in safe])


def train_step(cls, scale_sense, **arguments):
    net, optimizer = made()
    loss = nn.WithLossCell(net, nn.CrossEntropyLoss())
    return net, optimizer, cls(loss, optimizer, scale_sense, **arguments).set_train()


def test_the_native_train_step_is_refused_on_cpu():
    cell = nn.DynamicLossScaleUpdateCell(2**12, 2, 2)
    _, _, step = train_step(nn.TrainOneStepWithLossScaleCell, cell)
    with pytest.raises(RuntimeError, match="NPUGetFloatStatusV2"), guarded():
        step(Tensor(X), Tensor(Y))


def by_hand(scale, batches):
    """The same training, written out, with a constant scale that grows by hand."""
    net, optimizer = made()
    loss_fn, scales = nn.CrossEntropyLoss(), iter(scale)

    def forward(x, y, scale):
        return loss_fn(net(x), y) * scale

    grad_fn = ms.value_and_grad(forward, None, optimizer.parameters)
    for batch, good in batches:
        now = next(scales)
        _, grads = grad_fn(batch, Tensor(Y), Tensor(now, ms.float32))
        if good:
            optimizer(tuple(grad * (1 / now) for grad in grads))
    return weights(net, optimizer)


@MODES
@pytest.mark.parametrize("safe", [False, True])
def test_train_step_trains_on_cpu(safe, mode, request):
    cell = shim.DynamicLossScaleUpdateCell(2**12, 2, 2, safe=safe)
    net, optimizer, step = train_step(shim.TrainOneStepWithLossScaleCell, cell, safe=safe)
    step.set_train()
    run = step if mode == "graph" else in_mode(Calling(step), mode, request)
    if mode == "graph":
        request.getfixturevalue("graph_mode")
    batches = [(Tensor(X * np.float32(f)), f == 1) for f in (1, 1, 1e38, 1, 1, 1)]
    seen = []
    for batch, good in batches:
        before = weights(net, optimizer)
        loss, overflow, _ = run(batch, Tensor(Y))
        assert loss.shape == ()
        seen.append((number(overflow), number(step.scale_sense)))
        if not good:
            after = weights(net, optimizer)
            kept = [name for name in before if "moving" not in name]
            same({n: before[n] for n in kept}, {n: after[n] for n in kept})
    assert [overflow for overflow, _ in seen] == [False, False, True, False, False, False]
    assert [scale for _, scale in seen] == [2**12, 2**13, 2**12, 2**12, 2**13, 2**13]
    expected = by_hand([2**12, 2**12, 2**13, 2**12, 2**12, 2**13], batches)
    for name, value in weights(net, optimizer).items():
        if name in expected and "moving" not in name:
            np.testing.assert_allclose(value, expected[name], rtol=1e-5, atol=1e-6, err_msg=name)


class Calling:
    def __new__(cls, cell):
        def run(*batch):
            return cell(*batch)

        return run


def test_train_step_takes_a_tensor_scale():
    scale = Tensor(64.0, ms.float32)
    _, _, step = train_step(shim.TrainOneStepWithLossScaleCell, scale)
    _, overflow, now = step(Tensor(X), Tensor(Y))
    assert (number(overflow), number(now)) == (False, 64.0)
    step.set_sense_scale(Tensor(32.0, ms.float32))
    assert number(step(Tensor(X), Tensor(Y))[2]) == 32.0
    with pytest.raises(TypeError, match="must be Tensor"):
        step.set_sense_scale(32.0)


@pytest.mark.parametrize(("scale", "error"), [(3.0, TypeError), (Tensor([1.0, 2.0]), ValueError)])
def test_train_step_refuses_as_the_native_does(scale, error):
    for cls in (shim.TrainOneStepWithLossScaleCell, nn.TrainOneStepWithLossScaleCell):
        with pytest.raises(error, match="scale_sense"):
            train_step(cls, scale)


@MODES
def test_train_step_asks_the_native_on_other_devices(mode, request, monkeypatch):
    """What an Ascend would do cannot run here; that it is asked, in a graph too, can."""
    monkeypatch.setattr(nn.TrainOneStepWithLossScaleCell, "get_overflow_status", stub)
    cell = shim.DynamicLossScaleUpdateCell(2**12, 2, 2)
    _, _, step = train_step(shim.TrainOneStepWithLossScaleCell, cell)
    step.by_values = False
    run = in_mode(Calling(step), mode, request)
    assert number(run(Tensor(X), Tensor(Y))[1])  # the stub's answer


def stub(self, status, grads):
    return ops.isfinite(grads[0]).all()


class Half(nn.Cell):
    """Float16 parameters, and a float32 loss that is small."""

    def __init__(self):
        super().__init__()
        self.weight = Parameter(Tensor([1.0, 2.0], ms.float16), name="weight")

    def construct(self, x):
        return ((self.weight * x).astype(ms.float32) * 2.0**-20).sum()


@MODES
def test_float16_gradients_reach_the_optimizer_under_safe(mode, request):
    x = np.array([1.0, 3.0], "f2")
    seen = {}
    for safe in (False, True):
        net = Half().set_train()
        optimizer = Kept(net.trainable_params())
        step = shim.TrainOneStepWithLossScaleCell(
            net, optimizer, Tensor(2.0**25, ms.float32), safe=safe
        ).set_train()
        _, overflow, _ = in_mode(Calling(step), mode, request)(Tensor(x))
        seen[safe] = (number(overflow), optimizer.seen.asnumpy().tolist())
    assert seen[False] == (False, [0.0, 0.0])  # lost, and nobody noticed
    assert seen[True] == (False, [2.0**-20, 3 * 2.0**-20])


class Kept(nn.Optimizer):
    """An optimizer that keeps its gradient."""

    def __init__(self, params):
        super().__init__(0.1, params)
        self.seen = Parameter(Tensor([0.0, 0.0], ms.float32), name="seen", requires_grad=False)

    def construct(self, grads):
        return ops.assign(self.seen, grads[0].astype(ms.float32))


# --- build_train_network and Model


MANAGERS = {
    "dynamic": lambda m: m.DynamicLossScaleManager(2**10, 2, 3),
    "fixed": lambda m: m.FixedLossScaleManager(2.0**10),
}


@pytest.mark.parametrize("manager", MANAGERS)
def test_build_train_network_takes_what_the_native_refuses(manager):
    net, optimizer = made()
    arguments = (net, optimizer, nn.CrossEntropyLoss())
    with pytest.raises(ValueError, match="are supported on device `CPU`"):
        native.build_train_network(*arguments, loss_scale_manager=MANAGERS[manager](native))
    step = shim.build_train_network(*arguments, loss_scale_manager=MANAGERS[manager](shim))
    before = weights(net)
    loss, overflow, _ = step(Tensor(X), Tensor(Y))
    assert not number(overflow)
    assert number(loss) > 0
    assert not np.array_equal(before["fc1.weight"], net.fc1.weight.asnumpy())


def test_build_train_network_without_a_skipping_manager_is_the_natives():
    results = []
    for module in (shim, native):
        net, _ = made()
        optimizer = nn.Momentum(net.trainable_params(), 0.1, 0.9, loss_scale=64.0)
        manager = module.FixedLossScaleManager(64.0, False)
        step = module.build_train_network(
            net, optimizer, nn.CrossEntropyLoss(), loss_scale_manager=manager
        )
        assert type(step) is nn.TrainOneStepCell
        for _ in range(3):
            step(Tensor(X), Tensor(Y))
        results.append(weights(net))
    same(*results)


def test_build_train_network_o2_trains_on_cpu():
    net, optimizer = made()
    with pytest.raises(ValueError, match="are supported on device `CPU`"):
        native.build_train_network(net, optimizer, nn.CrossEntropyLoss(), level="O2")
    net, optimizer = made()
    step = shim.build_train_network(net, optimizer, nn.CrossEntropyLoss(), level="O2")
    losses = [step(Tensor(X), Tensor(Y)) for _ in range(12)]
    overflows = [number(item[1]) for item in losses]
    assert overflows.count(False) >= 3
    assert number(losses[-1][0]) < number(losses[0][0])


def data():
    return ds.NumpySlicesDataset({"x": X, "y": Y}, shuffle=False).batch(8)


def model(cls, manager):
    net, optimizer = made()
    return net, cls(net, nn.CrossEntropyLoss(), optimizer, loss_scale_manager=manager)


@pytest.mark.parametrize("manager", MANAGERS)
def test_model_trains_with_a_manager_where_the_native_refuses(manager):
    with pytest.raises(ValueError, match="are supported on device `CPU`"):
        model(ms.Model, MANAGERS[manager](native))
    ours = MANAGERS[manager](shim)
    net, trainer = model(shim.Model, ours)
    before = weights(net)
    trainer.train(2, data(), dataset_sink_mode=False)
    assert not np.array_equal(before["fc1.weight"], net.fc1.weight.asnumpy())
    assert trainer._loss_scale_manager is ours
    if manager == "dynamic":
        # Eight steps: the host's counters move, and so does the scale in the step.
        assert (ours.cur_iter, ours.get_loss_scale()) == (9, 2**12)
        assert number(trainer.train_network.scale_sense) == 2**12


def test_model_passes_safe_on():
    _, trainer = model(shim.Model, shim.DynamicLossScaleManager(2**10, 2, 3, safe=True))
    assert trainer.train_network.safe
    assert trainer.train_network.loss_scaling_manager.safe
    _, trainer = model(shim.Model, shim.FixedLossScaleManager(64.0, safe=True))
    assert trainer.train_network.safe


def test_model_without_a_manager_is_the_natives():
    results = []
    for cls in (shim.Model, ms.Model):
        net, optimizer = made()
        trainer = cls(net, nn.CrossEntropyLoss(), optimizer)
        trainer.train(1, data(), dataset_sink_mode=False)
        results.append(weights(net))
    same(*results)


def test_model_o2_trains_on_cpu():
    net, optimizer = made()
    trainer = shim.Model(net, nn.CrossEntropyLoss(), optimizer, amp_level="O2")
    trainer.train(3, data(), dataset_sink_mode=False)
    assert type(trainer.train_network) is shim.TrainOneStepWithLossScaleCell
    assert number(trainer.train_network.scale_sense) < 2**24


def test_a_train_step_can_be_the_network_of_a_plain_model():
    cell = shim.DynamicLossScaleUpdateCell(2**10, 2, 3)
    net, _, step = train_step(shim.TrainOneStepWithLossScaleCell, cell)
    before = weights(net)
    ms.Model(step).train(1, data(), dataset_sink_mode=False)
    assert not np.array_equal(before["fc1.weight"], net.fc1.weight.asnumpy())


def test_states_exchange_with_the_native(tmp_path):
    """The Parameters have the native's names, so a checkpoint of one is one of the other."""
    ours, theirs = shim.DynamicLossScaler(8, 2, 3), native.DynamicLossScaler(2**12, 2, 3)
    for bad in (False, False, True, False):
        theirs.adjust(Tensor(not bad))
    held = [theirs.scale_value, theirs.counter]
    path = str(tmp_path / "scaler.ckpt")
    ms.save_checkpoint([{"name": p.name, "data": p} for p in held], path)
    for name, value in ms.load_checkpoint(path).items():
        ops.assign(getattr(ours, name), value)
    for bad in PATTERNS["seldom"]:
        seen = [[number(v) for v in adjusting(s)(Tensor(not bad))] for s in (ours, theirs)]
        assert seen[0] == seen[1]
    names = [
        [p.name for p in module.DynamicLossScaleUpdateCell(8, 2, 3).get_parameters()]
        for module in (shim, nn)
    ]
    assert names[0] == names[1]

"""Options of a MindSpore step beyond the suite for all: GRAPH_MODE, guards, detectors, Model."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from types import SimpleNamespace

import numpy as np
import pytest

import mpcore as mp
from mpcore.numerics.dtypes import FORMATS
from mpcore.numerics.overflow import saturate

ms = pytest.importorskip("mindspore")
from mindspore import Parameter, Tensor, nn, ops  # noqa: E402

from mpcore_mindspore import StatusRegister, emulated_ascend  # noqa: E402
from mpcore_mindspore.ascend import saturated  # noqa: E402
from mpcore_mindspore.overflow import Agreed, Values  # noqa: E402

pytestmark = pytest.mark.backend("mindspore")

RNG = np.random.default_rng(7)
X = RNG.normal(size=(32, 8)).astype("f4")
Y = RNG.integers(0, 4, 32).astype("i4")
INF = float("inf")
FLOAT32 = mp.Policy.parse("float32, loss_scale=dynamic(init_scale=1024, growth_interval=4)")


@pytest.fixture(autouse=True)
def _scratch(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # MindSpore writes rank_0/ into the working directory


@pytest.fixture(scope="module", autouse=True)
def _quick():
    ms.runtime.launch_blocking()


class Net(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Dense(8, 16)
        self.bn = nn.BatchNorm1d(16)
        self.fc2 = nn.Dense(16, 4)

    def construct(self, x):
        return self.fc2(ops.relu(self.bn(self.fc1(x))))


def prepared(policy=FLOAT32, *, two=False, **options):
    ms.set_seed(3)
    net = Net().set_train()
    if two:
        first = [*net.fc1.trainable_params(), *net.bn.trainable_params()]
        groups = {"body": first, "head": net.fc2.trainable_params()}
        optimizer = {name: nn.Momentum(params, 0.1, 0.9) for name, params in groups.items()}
    else:
        optimizer = nn.Momentum(net.trainable_params(), 0.1, 0.9)
    return net, mp.prepare(net, optimizer, policy, **options)


def loss_of(net):
    def loss_fn(x, y, boost):
        return ops.cross_entropy(net(x), y) * boost

    return loss_fn


def batch(boost=1.0, x=X):
    return Tensor(x), Tensor(Y), Tensor(boost, ms.float32)


def values(net, bound):
    cells = (net, *bound.optimizers.values())
    held = {id(p): p for cell in cells for p in cell.get_parameters()}
    return {p.name: p.value().astype(ms.float32).asnumpy().copy() for p in held.values()}


def same(before, after):
    assert before.keys() == after.keys()
    for name in before:
        np.testing.assert_array_equal(before[name], after[name], err_msg=name)


def counter():
    count = Parameter(Tensor(0, ms.int32), name="count", requires_grad=False)

    def add():
        ops.assign_add(count, ops.ones_like(count))

    return count, add


def jitted(cell):
    def run(*args):
        return cell(*args)

    return ms.jit(run, fullgraph=True)


both_ways = pytest.mark.parametrize("wrap", [lambda cell: cell, jitted], ids=["eager", "jit"])


# --- GRAPH_MODE

GRAPH = """
import sys
sys.path.insert(0, {folder!r})
import numpy as np, mindspore as ms
import test_mindspore_step as t
if sys.argv[1] == "graph":
    ms.set_context(mode=ms.GRAPH_MODE)
ms.runtime.launch_blocking()
spoilt = t.X.copy()
spoilt[10] = np.inf
for way in ("skip", "drop"):
    count, add = t.counter()
    net, bound = t.prepared(two=True, on_bad_micro_batch=way, after_step=[add])
    loss = t.loss_of(net)
    for x in (t.X, spoilt, t.X):
        r = bound.step(loss, *t.batch(x=x), micro_batches=4)
        print(r.loss, r.stepped, r.dropped, r.grad_norm, r.scale, r.next_scale, count.asnumpy())
    r = bound.step({{"body": loss, "head": loss}}, *t.batch(), optimizer=["body", "head"])
    print(r.loss, *r.stepped_by.values(), r.dropped, r.grad_norm, r.scale)
    # not fc1.bias: batch norm follows, so its true gradient is 0 and only noise moves it
    held = t.values(net, bound)
    print(*[float(np.abs(v).sum()) for n, v in held.items() if "fc1.bias" not in n])
    try:
        bound.step(loss, *t.batch(), micro_batches=5)
    except t.mp.BackendError as error:
        print("refused" if "divide the batch evenly" in str(error) else error)
"""


def numbers(row):
    return [float({"True": 1, "False": 0}.get(item, item)) for item in row]


@pytest.mark.slow
def test_windows_and_several_optimizers_in_graph_mode(tmp_path):
    script = tmp_path / "graph_mode.py"
    script.write_text(GRAPH.format(folder=os.path.dirname(__file__)))
    lines = []
    for mode in ("eager", "graph"):
        done = subprocess.run(
            [sys.executable, str(script), mode],
            capture_output=True,
            text=True,
            check=True,
            timeout=600,
            env={**os.environ, "GLOG_v": "3"},
        )
        lines.append([line.split() for line in done.stdout.splitlines()])
    assert len(lines[0]) == len(lines[1]) == 12
    for eager, graph in zip(*lines, strict=True):
        if "refused" in eager:
            assert graph == eager
        else:
            np.testing.assert_allclose(numbers(graph), numbers(eager), rtol=1e-4, atol=1e-6)
    stepped = [row[1] for row in lines[0] if len(row) == 7]
    assert stepped == ["True", "False", "True", "True", "True", "True"]
    assert [row[2] for row in lines[0] if len(row) == 7] == ["0", "0", "0", "0", "1", "0"]


# --- windows


def test_second_copies_are_made_for_windows_that_drop_only():
    net, bound = prepared(on_bad_micro_batch="drop")
    bound.step(loss_of(net), *batch())
    assert bound._bindings.saved.micro_batch_buffers == []
    bound.step(loss_of(net), *batch(), micro_batches=2)
    made = bound._bindings.saved.micro_batch_buffers
    assert len(made) == len(bound._bindings.saved.buffers) == 2
    bound.train_cell(loss_of(net), micro_batches=4)
    assert bound._bindings.saved.micro_batch_buffers is made
    net, bound = prepared()
    bound.step(loss_of(net), *batch(), micro_batches=2)
    assert bound._bindings.saved.micro_batch_buffers == []


def test_compiled_window_refuses_an_uneven_batch():
    net, bound = prepared()
    run = jitted(bound.train_cell(loss_of(net), micro_batches=3))
    with pytest.raises(ValueError, match="`micro_batches` must divide the batch evenly"):
        run(*batch())


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("two", [False, True], ids=["one", "two"])
def test_huge_finite_gradients_are_finite(compiled, two):
    """The square of 1e25 is inf in float32: a norm alone would call the step bad."""
    net, amp = prepared(mp.Policy.parse("float32, loss_scale=static(1)"), two=two)
    loss_fn = loss_of(net)
    cell = amp.train_cell(dict.fromkeys(amp.optimizers, loss_fn) if two else loss_fn)

    def whole(x, y, boost):
        return cell(x, y, boost)

    run = ms.jit(whole) if compiled else cell

    def step(boost):
        _, stepped, norms, *_ = run(*batch(boost))
        return bool(stepped.asnumpy().all()), norms.asnumpy()

    taken, norms = step(1.0)
    assert taken
    assert np.isfinite(norms).all()
    taken, norms = step(1e25)
    assert taken
    assert np.isinf(norms).any()
    taken, _ = step(INF)
    assert not taken


@pytest.mark.parametrize("way", ["skip", "drop"])
@pytest.mark.parametrize("policy", [FLOAT32, "mixed_bfloat16"], ids=["float32", "simulated"])
def test_failing_micro_batch_leaves_everything_as_it_was(policy, way):
    net, bound = prepared(policy, on_bad_micro_batch=way)
    bound.step(loss_of(net), *batch())
    before = values(net, bound)
    calls = []

    def failing(x, y, boost):
        loss = loss_of(net)(x, y, boost)
        calls.append(1)
        if len(calls) == 2:
            msg = "planted"
            raise RuntimeError(msg)
        return loss

    with pytest.raises(RuntimeError, match="planted"):
        bound.step(failing, *batch(), micro_batches=4)
    same(before, values(net, bound))
    assert bound.step(loss_of(net), *batch(), micro_batches=4).stepped


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "model_bfloat16", "model_float16"])
def test_window_of_equal_parts_equals_the_step(policy):
    """Four times the same rows: the mean over the window is the gradient of one part."""
    grads = []
    for count in (1, 4):
        net, bound = prepared(mp.Policy.named(policy).with_loss_scale("static(1024)"))
        net.set_train(False)  # batch statistics would differ
        rows = np.tile(X[:8], (count, 1)), np.tile(Y[:8], count)
        parts = (Tensor(rows[0]), Tensor(rows[1]), Tensor(1.0))
        result = bound.step(loss_of(net), *parts, micro_batches=count, keep_grads=True)
        grads.append({name: grad.asnumpy() for name, grad in result.grads.items()})
    for name, value in grads[0].items():
        np.testing.assert_allclose(grads[1][name], value, rtol=1e-6, err_msg=name)


# --- guards, and several optimizers


@both_ways
def test_cells_and_lists_and_dicts_are_guarded(wrap):
    teacher = nn.BatchNorm1d(8).set_train()
    teacher.update_parameters_name("teacher.")
    queue = Parameter(Tensor(np.zeros(3, "f4")), name="queue", requires_grad=False)
    other = Parameter(Tensor(np.zeros(3, "i4")), name="other", requires_grad=False)
    net, bound = prepared(restore_on_skip=[teacher, {"queue": [queue]}, (other,)])

    def loss_fn(x, y, boost):
        ops.assign_add(queue, ops.ones_like(queue))
        ops.assign_add(other, ops.ones_like(other))
        return ops.cross_entropy(net(x), y) * boost + teacher(x).mean() * 0.0

    run = wrap(bound.train_cell(loss_fn))
    run(*batch())
    before = teacher.moving_mean.asnumpy().copy()
    assert before.any()
    assert not bound.result(run(*batch(INF))).stepped
    np.testing.assert_array_equal(teacher.moving_mean.asnumpy(), before)
    np.testing.assert_array_equal(queue.asnumpy(), np.ones(3))
    np.testing.assert_array_equal(other.asnumpy(), np.ones(3))


def test_tensors_are_refused_with_the_reason():
    with pytest.raises(
        mp.BackendError, match=r"`restore_on_skip` must hold Cells.*only a Parameter can be"
    ):
        prepared(restore_on_skip=[[Tensor(1.0)]])


def test_guarding_the_network_does_not_undo_the_optimizer_that_stepped():
    policy = mp.Policy().with_loss_scale(mp.LossScale(init_scale=8.0, skip_scope="optimizer"))
    ms.set_seed(3)
    net = Net().set_train()
    optimizers = {
        "body": nn.Momentum(net.fc1.trainable_params(), 0.1, 0.9),
        "head": nn.Momentum(net.fc2.trainable_params(), 0.1, 0.9),
    }
    bound = mp.prepare(net, optimizers, policy, restore_on_skip=[net])

    def spoilt(x, y, boost):
        return loss_of(net)(x, y, boost) * INF

    before = values(net, bound)
    result = bound.step({"body": loss_of(net), "head": spoilt}, *batch())
    assert result.stepped_by == {"body": True, "head": False}
    after = values(net, bound)
    assert (before["fc1.weight"] != after["fc1.weight"]).any()
    np.testing.assert_array_equal(before["fc2.weight"], after["fc2.weight"])
    np.testing.assert_array_equal(before["bn.moving_mean"], after["bn.moving_mean"])


def test_the_only_optimizer_is_refused_where_there_are_several():
    net, bound = prepared(two=True)
    with pytest.raises(mp.BackendError, match=r"read amp\.optimizers\['body'\], amp\.optim"):
        _ = bound.optimizer
    names = [p.name for p in bound.optimizers["head"].get_parameters()]
    assert "head.global_step" in names
    assert "fc2.weight" in names
    cell = bound.train_cell(loss_of(net), optimizer="head")
    result = bound.result(cell(*batch()), optimizer="head")
    assert result.stepped_by == {"head": True}
    assert {p.name for p in cell.get_parameters()} >= {"head.global_step", "head.moments.fc2.bias"}


# --- detectors


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@both_ways
def test_saturation_is_that_of_the_core(wrap, dtype):
    top = float(FORMATS[dtype].max)
    drawn = RNG.normal(size=200) * 10.0 ** RNG.uniform(-8, 39, 200)
    array = np.concatenate([drawn, [np.inf, -np.inf, np.nan, 0.0, top, -top]])
    with np.errstate(over="ignore"):
        array = array.astype(dtype)

    def run(value):
        return saturated(value, top)

    kept = wrap(run)(Tensor(array)).asnumpy()
    np.testing.assert_array_equal(kept.astype("f4"), saturate(array, dtype)[0])


def test_evaluation_raises_the_flag_of_the_emulated_device():
    with emulated_ascend() as device:
        net, bound = prepared("mixed_float16")
        assert mp.load_backend("mindspore").capabilities(net).overflow == "status_register"
        with bound.autocast():
            out = net(Tensor(X * np.float32(1e6))).asnumpy()
        assert np.isfinite(out).all()
        assert device.overflowed
        device.clear()
        assert not device.overflowed
    assert mp.load_backend("mindspore").capabilities(net).overflow == "values"


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16", "model_float16"])
def test_emulated_device_sees_each_loss_and_each_micro_batch(policy):
    policy = mp.Policy.named(policy).with_loss_scale("static(128, on_collapse=ignore)")
    with emulated_ascend() as device:
        net, bound = prepared(policy, two=True)
        losses = {"body": loss_of(net), "head": loss_of(net)}
        assert bound.step(losses, *batch(), micro_batches=2).stepped
        big = X.copy()
        big[20] = 3e38  # in the second part
        result = bound.step(losses, *batch(x=big), micro_batches=2)
        assert result.stepped_by == {"body": False, "head": False}
        assert "overflow flag" in result.reason
        assert bound.step(losses, *batch(), micro_batches=2).stepped
        assert not device.overflowed


class Device:
    """mindspore.amp as it is on a device that saturates: its flag is a Parameter here.

    ``old`` speaks as the versions with init_status do.
    """

    def __init__(self, *, old):
        flag = Parameter(Tensor(0.0, ms.float32), name="flag", requires_grad=False)
        self.flag = flag

        def init_status():
            ops.assign(flag, ops.zeros_like(flag))
            return ops.zeros((8,), ms.float32)

        def all_finite_of_old(grads, status):
            # Not before the gradients exist, nor before the status was made.
            return ops.depend(flag.value(), (grads, status)) <= 0

        def all_finite(grads):
            quiet = ops.depend(flag.value(), grads) <= 0
            ops.assign(flag, ops.zeros_like(flag) * quiet.astype(ms.float32))
            return quiet

        self.all_finite = all_finite_of_old if old else all_finite
        if old:
            self.init_status = init_status


@both_ways
@pytest.mark.parametrize("old", [False, True], ids=["2.10", "init_status"])
def test_register_of_the_device_is_cleared_before_and_read_after(old, wrap):
    device = Device(old=old)
    flag = device.flag
    net, bound = prepared(detector=StatusRegister(device))

    def loss_fn(x, y, boost):
        # An overflow that no value shows, in the forward pass.
        ops.assign(flag, ops.maximum(flag.value(), (boost > 1).astype(ms.float32)))
        return ops.cross_entropy(net(x), y)

    run = wrap(bound.train_cell(loss_fn))
    ops.assign(flag, Tensor(1.0))  # left by earlier work
    assert bound.result(run(*batch())).stepped
    skipped = bound.result(run(*batch(2.0)))
    assert not skipped.stepped
    assert "overflow flag" in skipped.reason
    assert bound.result(run(*batch())).stepped
    assert bound.state.skipped_steps == 1


def test_register_is_read_once_for_all_optimizers_and_micro_batches():
    log = []
    device = Device(old=False)
    inner = device.all_finite

    def all_finite(grads):
        log.append(len(grads))
        return inner(grads)

    device.all_finite = all_finite
    net, bound = prepared(two=True, detector=StatusRegister(device), on_bad_micro_batch="drop")

    def loss_fn(x, y, boost):
        log.append("forward")
        return loss_of(net)(x, y, boost)

    bound.step(loss_fn, *batch(), micro_batches=2)
    assert log == [1, "forward", "forward", 6]


def test_agreement_asks_every_rank():
    """The other rank is bad for the second optimizer."""

    def add(bad):
        return bad + Tensor([0.0, 1.0])

    detector = Agreed(Values(), add)
    verdicts = detector.reduce((Tensor(True), Tensor(True)), None)
    assert [bool(v) for v in verdicts] == [True, False]
    assert (detector.kind, detector.begin(), detector.read(()), detector.clear()) == (
        *("values", None, None, None),
    )


def test_unknown_detector_is_refused():
    with pytest.raises(mp.PolicyError, match="`detector` must be one of 'auto', 'values'"):
        prepared(detector="status_register")


# --- ms.Model


def pairs_of(net):
    def loss_fn(x, y):
        return ops.cross_entropy(net(x), y)

    return loss_fn


def dataset(factor, steps):
    rows = [(X * np.float32(factor), Y)] * steps
    return ms.dataset.GeneratorDataset(rows, ["x", "y"], shuffle=False)


def trained(rule, factor, epochs, steps):
    net, bound = prepared(mp.Policy().with_loss_scale(rule))
    model = ms.Model(bound.train_cell(pairs_of(net)))
    model.train(
        epochs, dataset(factor, steps), callbacks=[bound.callback()], dataset_sink_mode=False
    )
    return bound


def test_model_train_reports_a_collapse():
    rule = mp.LossScale(patience=5)
    with pytest.warns(mp.MpcoreWarning, match=r"5 steps in a row were skipped, the loss scale is"):
        bound = trained(rule, INF, 2, 3)
    assert not bound.last.stepped
    rule = mp.LossScale(patience=5, on_collapse="raise")
    with pytest.raises(mp.LossScaleError, match="5 steps in a row were skipped"):
        trained(rule, INF, 2, 3)


def test_model_train_reports_none_where_there_is_none():
    with warnings.catch_warnings():
        warnings.simplefilter("error", mp.MpcoreWarning)
        bound = trained(mp.LossScale(patience=2), 1.0, 2, 3)
        trained(mp.LossScale(patience=5), INF, 1, 4)  # fewer than its patience
    assert bound.last.stepped
    assert bound.last.grad_norm > 0
    assert bound.state.good_steps == 6


def test_callback_counts_the_steps_of_a_sink():
    """There MindSpore calls back once an epoch, with the last step's outputs."""
    net, bound = prepared(mp.Policy().with_loss_scale(mp.LossScale(patience=5)))
    cell = bound.train_cell(pairs_of(net))
    callback = bound.callback()
    asked = SimpleNamespace(train_network=cell, cur_step_num=0, net_outputs=None)
    context = SimpleNamespace(original_args=lambda: asked)
    callback.on_train_begin(context)
    for _ in range(6):
        asked.net_outputs = cell(Tensor(X * np.float32(INF)), Tensor(Y))
    asked.cur_step_num = 6
    with pytest.warns(mp.MpcoreWarning, match="6 steps in a row were skipped"):
        callback.on_train_step_end(context)


def test_callback_of_another_network_is_refused():
    net, bound = prepared()
    model = ms.Model(net, nn.CrossEntropyLoss(), bound.optimizer)
    with pytest.raises(mp.BackendError, match="`callback` must follow a Model of one train cell"):
        model.train(1, dataset(1.0, 1), callbacks=[bound.callback()], dataset_sink_mode=False)

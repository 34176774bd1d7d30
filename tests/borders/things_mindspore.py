"""What people do to a prepared MindSpore network; see ``fuzz``."""

from __future__ import annotations

import copy
import os
import signal
import tempfile
import threading
from collections import OrderedDict
from contextlib import contextmanager, suppress
from pathlib import Path

import mindspore as ms
import numpy as np
from fuzz import (
    COMMON,
    Case,
    Run,
    Things,
    fresh,
    main,
    no_more_than_rounding,
    same_but_for_rounding,
)
from mindspore import Parameter, Tensor, mint, nn, ops

import mpcore as mp

ms.runtime.launch_blocking()  # ten times faster on two cores

thing = Things(COMMON)


class Centred(nn.Cell):
    """Keeps a running mean in a Parameter that its forward pass assigns."""

    def __init__(self, width):
        super().__init__()
        self.kept = Parameter(Tensor(np.zeros(width, "f4")), name="kept", requires_grad=False)

    def construct(self, x):
        mean = x.astype(ms.float32).mean(0)
        ops.assign(self.kept, 0.9 * self.kept + 0.1 * ops.stop_gradient(mean))
        return x - self.kept.astype(x.dtype)


def _mlp():
    return nn.SequentialCell(
        OrderedDict(fc1=nn.Dense(8, 16), bn=nn.BatchNorm1d(16), act=nn.ReLU(), fc2=nn.Dense(16, 4))
    )


def _centred():
    return nn.SequentialCell(
        OrderedDict(
            fc1=nn.Dense(8, 16), own=Centred(16), ln=nn.LayerNorm((16,)), fc2=nn.Dense(16, 4)
        )
    )


class MindsporeWorld:
    models = ("mlp", "centred")
    policies = ("mixed_float16", "mixed_bfloat16", "model_float16", "model_bfloat16, master=split")
    optimizers = ("sgd", "adam")
    bad = (frozenset({2}), frozenset({1, 4}))
    steps = 5

    def build(self, case: Case) -> Run:
        ms.set_seed(0)
        net = {"mlp": _mlp, "centred": _centred}[case.model]().set_train()
        optimizer = {
            "sgd": lambda: nn.Momentum(net.trainable_params(), 0.05, 0.9),
            "adam": lambda: nn.Adam(net.trainable_params(), 1e-2),
        }[case.optimizer]()
        amp = mp.prepare(net, optimizer, case.policy)
        return Run(case, amp, net, optimizer, loss_of(net), batches(case), self)

    def digest(self, run: Run) -> dict[str, bytes]:
        found = {f"weight {k}": v.tobytes() for k, v in run.amp.weights().items()}
        for number, param in enumerate(run.model.get_parameters()):
            found[f"parameter {number}"] = _bytes(param)
        for number, param in enumerate(run.optimizer.get_parameters()):
            found[f"slot {number}"] = _bytes(param)
        found["scale"] = repr(tuple(float(x) for x in run.amp.state)).encode()
        return found

    def keep_buffers(self, run: Run):
        kept = [(p, p.asnumpy().copy()) for p in run.model.get_parameters() if not p.requires_grad]
        return lambda: [p.set_data(Tensor(x)) for p, x in kept]


def _bytes(param):
    return str(param.dtype).encode() + param.value().astype(ms.float32).asnumpy().tobytes()


def loss_of(net):
    def loss_fn(x, y, boost):
        return ops.cross_entropy(net(x).astype(ms.float32), y) * boost.max()

    return loss_fn


def batches(case: Case):
    rng = np.random.default_rng(1)
    made = []
    for number in range(8):
        x = Tensor(rng.normal(size=(8, 8)).astype("f4"))
        y = Tensor(rng.integers(0, 4, size=8).astype("i4"))
        made.append((x, y, Tensor(np.full(8, np.inf if number in case.bad else 1.0, "f4"))))
    return made


def gradients(run):
    _, found = ms.value_and_grad(run.loss_fn, None, run.optimizer.parameters)(*run.batch)
    return found


# --- Another loop trains it


@thing(trains=True)
def own_loop(run):
    run.optimizer(gradients(run))


@thing(trains=True)
def own_loop_compiled(run):
    optimizer = run.optimizer
    function = ms.value_and_grad(run.loss_fn, None, optimizer.parameters)

    @ms.jit
    def train(x, y, boost):
        loss, found = function(x, y, boost)
        optimizer(found)
        return loss

    train(*run.batch)


def another(run):
    return nn.Adam(run.model.trainable_params(), 1e-2)


@thing(trains=True)
def second_optimizer(run):
    other = another(run)
    _, found = ms.value_and_grad(run.loss_fn, None, other.parameters)(*run.batch)
    other(found)


@thing(trains=True)
def second_optimizer_compiled(run):
    other = another(run)
    function = ms.value_and_grad(run.loss_fn, None, other.parameters)

    @ms.jit
    def train(x, y, boost):
        loss, found = function(x, y, boost)
        return ops.depend(loss, other(found))

    train(*run.batch)


@thing(trains=True)
def second_optimizer_in_model(run):
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    ms.Model(run.model, loss, another(run)).train(1, dataset(run), dataset_sink_mode=False)


class WithLoss(nn.Cell):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def construct(self, x, y):
        return ops.cross_entropy(self.net(x).astype(ms.float32), y)


@thing(trains=True)
def train_one_step_cell(run):
    nn.TrainOneStepCell(WithLoss(run.model), run.optimizer)(*run.batch[:2])


@thing(trains=True)
def train_one_step_with_scale(run):
    scale = nn.DynamicLossScaleUpdateCell(2.0**10, 2, 1000)
    nn.TrainOneStepWithLossScaleCell(WithLoss(run.model), run.optimizer, scale)(*run.batch[:2])


def dataset(run):
    x, y, _ = (part.asnumpy() for part in run.batch)
    return ms.dataset.NumpySlicesDataset((x, y), shuffle=False).batch(8)


@thing(trains=True)
def model_train(run):
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    ms.Model(run.model, loss, run.optimizer).train(1, dataset(run), dataset_sink_mode=False)


@thing(trains=True)
def model_train_with_level(run):
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    model = ms.Model(run.model, loss, run.optimizer, amp_level="O2")
    model.train(1, dataset(run), dataset_sink_mode=False)


@thing(trains=True)
def amp_cell(run):
    call = {"clip_norm": run.case.clip, "micro_batches": run.case.micro}
    run.amp.train_cell(run.loss_fn, **call)(*run.batch)


@thing()
def amp_cell_compiled(run):
    call = {"clip_norm": run.case.clip, "micro_batches": run.case.micro}
    here, there = fresh(run), fresh(run)
    here.step()
    cell = there.amp.train_cell(there.loss_fn, **call)

    @ms.jit
    def train(x, y, boost):
        return cell(x, y, boost)

    train(*there.batch)
    no_more_than_rounding(here, there)


@thing()
def loss_of_another_network(run):
    run.amp.step(loss_of(_mlp().set_train()), *run.batch)


# --- The plan is changed


@thing()
def to_float_root(run):
    run.model.to_float(ms.float16)


@thing()
def to_float_layer(run):
    run.model.fc1.to_float(ms.float32)


@thing()
def to_dtype(run):
    for param in run.model.get_parameters():
        param.set_dtype(ms.float16)


@thing()
def auto_mixed_precision(run):
    ms.amp.auto_mixed_precision(run.model, "O3")


@thing()
def build_train_network(run):
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    cell = ms.amp.build_train_network(run.model, run.optimizer, loss, level="O2")
    cell(*run.batch[:2])


@thing()
def swapped_cell(run):
    run.model.fc2 = nn.Dense(16, 4)


@thing()
def construct_replaced(run):
    layer = run.model.fc2
    layer.construct = lambda x: ops.matmul(x.astype(ms.float32), layer.weight.astype(ms.float32).T)


@thing()
def cell_appended(run):
    run.model.append(nn.Dense(4, 3))


@thing(fits=lambda case: case.model == "mlp")  # the other assigns its mean in evaluation too
def evaluated(run):
    run.model.set_train(False)
    with run.amp.autocast():
        run.model(run.batch[0])
    run.model.set_train(True)


@thing()
def forward_hook(run):
    run.model.fc2.register_forward_hook(lambda cell, args, out: None)


# --- Prepared again


# --- Copied and saved


@thing(fits=lambda case: case.model == "mlp", warns=True)  # an emulated dtype: it is told
def copied_deep(run):
    other = copy.deepcopy(run.model)
    run.model.set_train(False)
    other.set_train(False)
    with run.amp.autocast():
        left, right = run.model(run.batch[0]), other(run.batch[0])
    run.model.set_train(True)
    if left.dtype != right.dtype or not np.array_equal(
        left.astype(ms.float32).asnumpy(), right.astype(ms.float32).asnumpy()
    ):
        msg = "the copy computes something else, without a word"
        raise AssertionError(msg)


def put(new, run):
    for mine, theirs in zip(
        new.optimizer.get_parameters(), run.optimizer.get_parameters(), strict=True
    ):
        mine.set_data(theirs.value().copy())


@thing()
def checkpoint_saved_and_loaded(run):
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, "net.ckpt"))
        ms.save_checkpoint(run.model, path)
        ms.load_param_into_net(run.model, ms.load_checkpoint(path))


@thing()
def resumed_from_dicts(run):
    new = fresh(run)
    for mine, theirs in zip(new.model.get_parameters(), run.model.get_parameters(), strict=True):
        mine.set_data(theirs.value().copy())
    put(new, run)
    new.amp.load_state_dict(copy.deepcopy(run.amp.state_dict()))
    return new


@thing()
def resumed_from_files(run):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "run.amp")
        run.amp.save(path, weights=True)
        new = fresh(run)
        put(new, run)
        new.amp.load(path)
    return new


@thing(warns=True)
def resumed_without_amp(run):
    new = fresh(run)
    for mine, theirs in zip(new.model.get_parameters(), run.model.get_parameters(), strict=True):
        mine.set_data(theirs.value().copy())
    put(new, run)
    new.amp.state = run.amp.state
    return new


# --- Changed by hand, in the middle of a run


def apart(run):
    """Return another run, one good step further: what it does is not neutral."""
    new = fresh(run)
    new.index = next(n for n in range(8) if n not in run.case.bad)
    return new


def first_weight(run):
    return next(iter(run.amp.weights().items()))


@thing()
def rate_by_hand(run):
    new = apart(run)
    ops.assign(new.optimizer.learning_rate, Tensor(0.0, ms.float32))
    name, before = first_weight(new)
    new.step()
    assert np.array_equal(before, new.amp.weights()[name]), "the rate is 0, it moved"


@thing()
def zeros_by_set_data(run):
    new = apart(run)
    param = new.model.fc1.weight
    param.set_data(ops.zeros_like(param))
    assert not new.amp.weights()["fc1.weight"].any(), "the step goes on from other values"


@thing()
def zeros_by_load_param_into_net(run):
    new = apart(run)
    new.step()
    zeros = {p.name: Parameter(ops.zeros_like(p), p.name) for p in new.model.trainable_params()}
    ms.load_param_into_net(new.model, zeros)
    assert not new.amp.weights()["fc1.weight"].any(), "the step goes on from other values"


@thing()
def float32_values_by_load_param_into_net(run):
    values = {k: Parameter(Tensor(v), k) for k, v in run.amp.weights().items()}
    ms.load_param_into_net(run.model, values)


# Under by="model" nobody hears of it: docs/guarantees.md.
@thing(fits=lambda case: case.policy.startswith("mixed"))
def zeros_by_assign(run):
    new = apart(run)
    new.step()
    param = new.model.fc1.weight
    ops.assign(param, ops.zeros_like(param))
    rate = new.optimizer.learning_rate
    ops.assign(rate, ops.zeros_like(rate))
    new.index -= 1
    new.step()
    assert not new.amp.weights()["fc1.weight"].any(), "the step went on from other values"


@thing()
def frozen_and_back(run):
    for param in run.model.get_parameters():
        param.keep = param.requires_grad
        param.requires_grad = False
    for param in run.model.get_parameters():
        param.requires_grad = param.keep


@thing()
def renamed(run):
    run.model.update_parameters_name("student.")


@thing()
def exported(run):
    with tempfile.TemporaryDirectory() as folder:
        run.model.set_train(False)
        ms.export(run.model, run.batch[0], file_name=str(Path(folder, "net")), file_format="MINDIR")
        run.model.set_train(True)


@thing()
def recomputed(run):
    run.model.fc2.recompute()


@thing()
def shared_layer_prepared_again(run):
    other = nn.SequentialCell(run.model.fc1, nn.Dense(16, 2)).set_train()
    mp.prepare(other, nn.Momentum(other.trainable_params(), 0.1, 0.9), run.case.policy)


def model_of_cell(run, **given):
    cell = run.amp.train_cell(run.loss_fn, clip_norm=run.case.clip, micro_batches=run.case.micro)
    parts = tuple(part.asnumpy() for part in run.batch)
    data = ms.dataset.NumpySlicesDataset(parts, shuffle=False).batch(8)
    ms.Model(cell, **given).train(1, data, dataset_sink_mode=False)


@thing(trains=True)
def model_of_the_cell(run):
    model_of_cell(run)


@thing(trains=True)
def model_of_the_cell_with_a_level(run):
    model_of_cell(run, amp_level="O2")


@thing(trains=True)
def model_of_the_cell_with_a_scale_manager(run):
    model_of_cell(run, loss_scale_manager=ms.FixedLossScaleManager(1024.0))


@thing(trains=True)
def step_inside_jit(run):
    @ms.jit
    def train(x, y, boost):
        return run.amp.step(run.loss_fn, x, y, boost).loss

    train(*run.batch)


@thing()
def copy_trained(run):
    other = copy.deepcopy(run.model)
    optimizer = nn.SGD(other.trainable_params(), 0.1)
    nn.TrainOneStepCell(WithLoss(other), optimizer)(*run.batch[:2])


@contextmanager
def _graph_mode():
    ms.set_context(mode=ms.GRAPH_MODE)
    try:
        yield
    finally:
        ms.set_context(mode=ms.PYNATIVE_MODE)


@thing()
def graph_mode_for_a_while(run):
    same_but_for_rounding(run, _graph_mode())


@thing(trains=True)
def another_optimizer_over_the_cell(run):
    cell = run.amp.train_cell(run.loss_fn)
    nn.TrainOneStepCell(cell, another(run))(*run.batch)


@thing()
def failed_call(run):
    with suppress(ValueError):
        run.model(run.batch[0][:, :3])


@thing()
def failed_layer(run):
    with suppress(ValueError):
        run.model.fc2(run.batch[0][:, :3])


@thing()
def failed_gradients(run):
    x = run.batch[0][:, :3]
    with suppress(ValueError):
        ms.value_and_grad(lambda x: run.model(x).sum(), None, run.optimizer.parameters)(x)


@thing(trains=True)
def native_scaler(run):
    scaler = ms.amp.DynamicLossScaler(1024.0, 2, 10)
    scaled = ms.value_and_grad(
        lambda *batch: scaler.scale(run.loss_fn(*batch)), None, run.optimizer.parameters
    )
    run.optimizer(scaler.unscale(scaled(*run.batch)[1]))


@thing(trains=True)
def optimizer_of_mint(run):
    other = mint.optim.AdamW(run.model.trainable_params(), 1e-2)
    _, found = ms.value_and_grad(run.loss_fn, None, run.model.trainable_params())(*run.batch)
    other(found)


@thing(trains=True)
def forward_value_and_grad(run):
    weights = ms.ParameterTuple(run.model.trainable_params())
    cell = nn.ForwardValueAndGrad(WithLoss(run.model), weights=weights, get_by_list=True)
    run.optimizer(cell(*run.batch[:2])[1])


# --- Interrupted


@thing()
def signal_while_it_steps(run):
    timer = threading.Timer(0.02, os.kill, (os.getpid(), signal.SIGINT))
    try:
        timer.start()
        run.step()
        timer.join()
    finally:
        timer.join()
        run.index = run.case.at


# --- Mistakes


@thing()
def wrong_shape(run):
    x, y, boost = run.batch
    run.amp.step(run.loss_fn, x[:, :3], y, boost)


@thing()
def loss_of_each_row(run):
    def rows(x, y, boost):
        return ops.cross_entropy(run.model(x).astype(ms.float32), y, reduction="none")

    run.amp.step(rows, *run.batch)


WORLD = MindsporeWorld()

if __name__ == "__main__":
    main(WORLD, thing)

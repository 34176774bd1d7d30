"""``ms.Model`` as the host of a prepared network: the run of ``amp.step``, bit for bit."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

import mpcore as mp
from mpcore.errors import MpcoreWarning

ms = pytest.importorskip("mindspore")
from mindspore import nn, ops  # noqa: E402
from mindspore.experimental import optim  # noqa: E402
from mindspore.train import Callback, CheckpointConfig, LossMonitor, ModelCheckpoint  # noqa: E402

pytestmark = pytest.mark.backend("mindspore")

STEPS, BAD, HALF = 10, (3,), 5  # one step in ten overflows
RNG = np.random.default_rng(3)
X = RNG.normal(size=(STEPS, 8, 6)).astype("f4")
Y = RNG.integers(0, 3, (STEPS, 8)).astype("i4")
BOOST = np.ones((STEPS, 8), "f4")
BOOST[list(BAD), 2] = np.inf
CALL = {"clip_norm": 0.5, "micro_batches": 2}


@pytest.fixture(autouse=True)
def _scratch(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ms.runtime.launch_blocking()


class Net(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Dense(6, 12)
        self.bn = nn.BatchNorm1d(12)
        self.fc2 = nn.Dense(12, 3)

    def construct(self, x):
        return self.fc2(ops.relu(self.bn(self.fc1(x))))


class Run:
    """A network, what trains it, and what follows it."""

    def __init__(self, policy, seed=1) -> None:
        ms.set_seed(seed)
        self.net = Net().set_train()
        rate = nn.CosineDecayLR(0.001, 0.1, STEPS)
        self.optimizer = nn.Momentum(self.net.trainable_params(), rate, 0.9)
        self.amp = mp.prepare(self.net, self.optimizer, policy)
        self.average = mp.EMA(self.amp, decay=0.9)

    def loss_fn(self, x, y, boost):
        return (ops.cross_entropy(self.net(x), y, reduction="none") * boost).mean()

    def state(self):
        each = (*self.net.get_parameters(), *self.optimizer.get_parameters())
        held = {p.name: p.value().astype(ms.float32).asnumpy().copy() for p in each}
        held |= {f"float32 {name}": value for name, value in self.amp.weights().items()}
        held["scale"] = np.array([float(number) for number in self.amp.state])
        return held

    def averages(self):
        return self.average.weights()


class Norms(Callback):
    """Logs the true norm, as a user does: behind the callback of ``amp``."""

    def __init__(self, amp) -> None:
        super().__init__()
        self.amp, self.seen = amp, []

    def on_train_step_end(self, run_context):
        last = self.amp.last
        self.seen.append((bool(last.stepped), float(last.grad_norm), float(last.loss)))


def batches(start, stop):
    rows = (X[start:stop].reshape(-1, 6), Y[start:stop].reshape(-1), BOOST[start:stop].reshape(-1))
    return ms.dataset.NumpySlicesDataset(rows, ["x", "y", "boost"], shuffle=False).batch(8)


def by_steps(run, start, stop):
    seen = []
    for n in range(start, stop):
        result = run.amp.step(run.loss_fn, X[n], Y[n], BOOST[n], **CALL)
        seen.append((bool(result.stepped), float(result.grad_norm), float(result.loss)))
    return seen


def by_model(run, start, stop, *callbacks):
    cell = run.amp.train_cell(run.loss_fn, **CALL)
    norms = Norms(run.amp)
    each = [run.amp.callback(), norms, LossMonitor(1000), *callbacks]
    ms.Model(cell).train(1, batches(start, stop), callbacks=each, dataset_sink_mode=False)
    return cell, norms.seen


def assert_same(left, right):
    assert left.keys() == right.keys()
    for name, value in left.items():
        np.testing.assert_array_equal(value, right[name], err_msg=name)


SCALE = "loss_scale=dynamic(init_scale=256, growth_interval=4)"
POLICIES = [
    f"mixed_float16, {SCALE}",
    f"model_bfloat16, master=split, {SCALE}",
]


@cache
def plain_run(policy):
    # MindSpore tries out thread counts in the first calls of a kernel, and sums in that order.
    by_steps(Run(policy), 0, STEPS)
    plain = Run(policy)
    return by_steps(plain, 0, STEPS), plain.state(), plain.averages()


@pytest.mark.parametrize("policy", POLICIES)
def test_model_train_is_the_run_of_step_and_resumes_from_its_checkpoint(policy):
    expected, state, averages = plain_run(policy)
    assert [n for n, (stepped, *_) in enumerate(expected) if not stepped] == list(BAD)

    whole = Run(policy)
    config = CheckpointConfig(save_checkpoint_steps=HALF, keep_checkpoint_max=2)
    _, seen = by_model(whole, 0, STEPS, ModelCheckpoint("run", "kept", config))
    np.testing.assert_allclose(np.array(seen), np.array(expected), rtol=1e-6)
    assert_same(whole.state(), state)
    assert_same(whole.averages(), averages)
    assert int(whole.optimizer.global_step.asnumpy()[0]) == STEPS - len(BAD)

    second = Run(policy, seed=77)
    cell = second.amp.train_cell(second.loss_fn, **CALL)
    left_out, _ = ms.load_param_into_net(cell, ms.load_checkpoint(f"kept/run-1_{HALF}.ckpt"))
    assert left_out == []
    by_model(second, HALF, STEPS)
    assert_same(second.state(), state)


def test_checkpoints_of_its_parts_resume_with_the_state_of_amp():
    policy = POLICIES[1]
    _, state, _ = plain_run(policy)
    first = Run(policy)
    by_model(first, 0, HALF)
    with pytest.warns(MpcoreWarning, match=r"16-bit values .* `amp\.state_dict\(\)`"):
        ms.save_checkpoint(first.net, "net.ckpt")
    ms.save_checkpoint(first.optimizer, "optimizer.ckpt")
    np.savez("amp.npz", state=np.array(first.amp.state_dict(), object))
    second = Run(policy, seed=77)
    second.amp.load_state_dict(np.load("amp.npz", allow_pickle=True)["state"].item())
    ms.load_param_into_net(second.net, ms.load_checkpoint("net.ckpt"))
    ms.load_param_into_net(second.optimizer, ms.load_checkpoint("optimizer.ckpt"))
    by_model(second, HALF, STEPS)
    assert_same(second.state(), state)


def test_a_schedule_of_the_loop_is_held_on_skips():
    run = Run(POLICIES[0])
    run.amp.release()
    optimizer = optim.SGD(run.net.trainable_params(), lr=0.1)
    amp = mp.prepare(run.net, optimizer, POLICIES[0])
    schedule = amp.scheduler(optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5))

    class Follow(Callback):
        def on_train_step_end(self, run_context):
            schedule.step()

    cell = amp.train_cell(run.loss_fn)
    callbacks = [amp.callback(), Follow()]
    ms.Model(cell).train(1, batches(0, 6), callbacks=callbacks, dataset_sink_mode=False)
    rate = float(optimizer.param_groups[0]["lr"].asnumpy())
    assert rate == pytest.approx(0.1 * 0.5**5)  # six steps, one of them skipped


def test_a_hook_on_gradients_sees_them_times_the_scale():
    seen = {}
    for scale in (1, 64):
        net = nn.Dense(4, 2, weight_init="ones", has_bias=False)
        optimizer = nn.SGD(net.trainable_params(), 0.1)
        amp = mp.prepare(net, optimizer, f"mixed_float16, loss_scale={scale}")
        found = seen[scale] = []

        def heard(grad, found=found):
            found.append(float(ops.norm(grad.astype(ms.float32)).asnumpy()))

        net.weight.register_hook(heard)
        amp.step(lambda x, net=net: net(x).square().mean(), ms.Tensor(np.ones((8, 4), "f4")))
    assert seen[64][0] / seen[1][0] == pytest.approx(64, rel=0.02)

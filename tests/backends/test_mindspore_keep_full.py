"""``on_overflow="keep full"`` in MindSpore: eager, compiled and train-cell steps, and resuming."""

from __future__ import annotations

import numpy as np
import pytest

import mpcore as mp

ms = pytest.importorskip("mindspore")
from mindspore import nn, ops  # noqa: E402

pytestmark = pytest.mark.backend("mindspore")

RULE = mp.LossScale(init_scale=1024.0, growth_interval=1000)
POLICY = mp.Policy.named("mixed_float16").with_loss_scale(RULE)
KEPT = "keep full"


class Net(nn.Cell):
    """A net whose layer ``big`` leaves float16 where the input is large."""

    def __init__(self):
        super().__init__()
        ms.set_seed(3)
        self.first, self.big, self.last = nn.Dense(8, 8), nn.Dense(8, 8), nn.Dense(8, 4)
        self.big.weight.set_data(ops.full((8, 8), 200.0, dtype=ms.float32))

    def construct(self, x):
        return self.last(self.big(ops.relu(self.first(x))) / 1000)


def batch(size, number=0):
    rng = np.random.default_rng(number)
    x = (rng.random((16, 8)) * size).astype(np.float32)
    return ms.Tensor(x), ms.Tensor(rng.integers(0, 4, 16).astype(np.int32))


def ready(policy=POLICY, **options):
    net = Net()
    optimizer = nn.SGD(net.trainable_params(), 1e-3)
    amp = mp.prepare(net, optimizer, policy, on_overflow=KEPT, **options)

    def loss_fn(x, y):
        return ops.cross_entropy(net(x).astype(ms.float32), y)

    return net, amp, loss_fn


def twice(amp, *step):
    return [amp.step(*step) for _ in range(2)]


def told(layer="big"):
    return pytest.warns(mp.MpcoreWarning, match=f"`{layer}` overflowed.*compiled anew")


def test_the_second_overflow_of_a_layer_keeps_it_full():
    net, amp, loss_fn = ready()
    assert amp.step(loss_fn, *batch(1.0)).stepped
    assert not amp.step(loss_fn, *batch(1000.0)).stepped
    assert amp.kept_full == ()
    with told():
        amp.step(loss_fn, *batch(1000.0))
    assert amp.kept_full == ("full path=big",)
    assert amp.plan["big"].compute == "float32"
    assert amp.step(loss_fn, *batch(1000.0)).stepped
    x, _ = batch(1000.0, 5)
    weights = {p.name: p.asnumpy() for p in net.get_parameters()}

    def as_net(policy):
        other = Net()
        for param in other.get_parameters():
            param.set_data(ms.Tensor(weights[param.name]))
        if policy is not None:
            mp.prepare(other, nn.SGD(other.trainable_params(), 1e-3), policy)
        return other(x).asnumpy()

    assert np.array_equal(net(x).asnumpy(), as_net(amp.policy))
    amp.release()
    assert np.array_equal(net(x).asnumpy(), as_net(None))


def test_by_op_the_op_becomes_full():
    policy = mp.Policy.named("autocast_float16").with_loss_scale(RULE)
    _, amp, loss_fn = ready(policy)
    with told():
        twice(amp, loss_fn, *batch(1000.0))
    (rule,) = amp.kept_full
    assert rule.startswith("full op=")
    assert amp.step(loss_fn, *batch(1000.0)).stepped


@pytest.mark.day(12)  # each way is made anew by code of its own
@pytest.mark.parametrize("way", ["always", "cell", "compiled cell"])
def test_compiled_steps_and_train_cells_are_made_anew(way):
    _, amp, loss_fn = ready(compile="always" if way == "always" else "never")
    if way == "always":

        def run(size):
            return amp.step(loss_fn, *batch(size))
    else:
        cell = amp.train_cell(loss_fn, compiled=way == "compiled cell")

        def run(size):
            return amp.result(cell(*batch(size)))

    assert run(1.0).stepped
    assert not run(1000.0).stepped
    with told():
        assert not run(1000.0).stepped
    assert amp.kept_full == ("full path=big",)
    assert run(1000.0).stepped


def test_a_graph_of_ones_own_is_told_that_its_batch_is_not_known():
    _, amp, loss_fn = ready()
    cell = amp.train_cell(loss_fn)

    @ms.jit
    def run(x, y):
        return cell(x, y)

    with pytest.warns(mp.MpcoreWarning, match="batch is not known") as found:
        done = [amp.result(run(*batch(1000.0))) for _ in range(2)]
    assert not any(result.stepped for result in done)
    assert len(found) == 1
    assert amp.kept_full == ()


def test_a_run_that_resumes_goes_on_bit_for_bit(tmp_path):
    _, amp, loss_fn = ready()
    with told():
        twice(amp, loss_fn, *batch(1000.0))
    amp.step(loss_fn, *batch(1000.0, 1))
    amp.save(tmp_path / "run.amp", weights=True)
    _, again, own = ready()
    assert again.load(tmp_path / "run.amp") == []
    assert again.kept_full == ("full path=big",)
    one = [amp.step(loss_fn, *batch(1000.0, n)).loss for n in range(2)]
    assert [again.step(own, *batch(1000.0, n)).loss for n in range(2)] == one


@pytest.mark.parametrize(
    ("policy", "says"),
    [("model_float16", "by='model'.*16 bits"), ("mixed_bfloat16", "bfloat16 is simulated")],
)
def test_what_cannot_be_insured_is_refused(policy, says):
    with pytest.raises(mp.BackendError, match=says):
        ready(mp.Policy.named(policy))

"""``on_overflow="keep full"`` in torch: planted layers, resuming, what is refused."""

from __future__ import annotations

import copy
import pickle

import pytest

import mpcore as mp

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

pytestmark = pytest.mark.backend("torch")

RULE = mp.LossScale(init_scale=1024.0, growth_interval=1000)
KEPT = "keep full"


class Net(nn.Module):
    """A net whose layer ``big`` leaves float16 where the input is large."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first, self.big, self.last = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 4)
        with torch.no_grad():
            self.big.weight.fill_(200.0)

    def forward(self, x):
        return self.last(self.big(torch.relu(self.first(x))) / 1000)


class Divides(nn.Module):
    """A net whose own code leaves float16, not one of its layers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x):
        h = self.first(x)
        return self.last(h * h * h / 1e6)


def batch(size: float, number: int = 0):
    g = torch.Generator().manual_seed(number)
    return torch.rand(16, 8, generator=g) * size, torch.randint(4, (16,), generator=g)


def ready(policy="mixed_float16", net=Net, **options):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    policy = mp.Policy.of(policy).with_loss_scale(RULE)
    return model, mp.prepare(model, optimizer, policy, on_overflow=KEPT, **options)


def entropy(model):
    return lambda x, y: functional.cross_entropy(model(x), y)


def twice(amp, *step):
    return [amp.step(*step) for _ in range(2)]


def told(layer="big"):
    return pytest.warns(mp.MpcoreWarning, match=f"`{layer}` overflowed.*float32 from now on")


@pytest.mark.parametrize("policy", ["mixed_float16", "autocast_float16"])
@pytest.mark.parametrize("way", ["step", "apply"])
def test_the_second_overflow_of_a_layer_within_ten_steps_keeps_it_full(policy, way):
    model, amp = ready(policy)
    loss_fn = entropy(model)

    def run(size):
        if way == "step":
            return amp.step(loss_fn, *batch(size))
        with amp.autocast():
            loss = loss_fn(*batch(size))
        amp.backward(loss)
        return amp.apply()

    assert run(1.0).stepped
    assert not run(1000.0).stepped
    assert amp.kept_full == ()
    assert run(1.0).stepped
    with told():
        assert not run(1000.0).stepped
    assert amp.kept_full == ("full path=big",)
    assert str(amp.policy.rules[-1]) == "full path=big"
    assert amp.plan["big"].compute == "float32"
    assert run(1000.0).stepped
    assert amp.plan["first"].compute != "float32"


def test_what_runs_afterwards_is_what_the_policy_with_the_rule_computes():
    model, amp = ready()
    with told():
        twice(amp, entropy(model), *batch(1000.0))
    other = Net()
    other.load_state_dict(model.state_dict())
    mp.prepare(other, torch.optim.SGD(other.parameters(), 1e-3), amp.policy)
    x, _ = batch(1000.0, 7)
    assert torch.equal(model(x), other(x))
    amp.release()
    plain = Net()
    plain.load_state_dict(model.state_dict())
    assert torch.equal(model(x), plain(x))
    assert not model._forward_pre_hooks


def test_code_between_layers_is_cured_by_the_layer_before_it():
    model, amp = ready(net=Divides)
    with pytest.warns(mp.MpcoreWarning, match="float32 from now on"):
        twice(amp, entropy(model), *batch(300.0))
    assert amp.kept_full == ("full path=first",)
    assert amp.step(entropy(model), *batch(300.0)).stepped


def test_overflows_that_lie_apart_change_nothing():
    model, amp = ready()
    loss_fn = entropy(model)
    for _ in range(2):
        assert not amp.step(loss_fn, *batch(1000.0)).stepped
        for _ in range(9):
            amp.step(loss_fn, *batch(1.0))
    assert amp.kept_full == ()
    with told():
        twice(amp, loss_fn, *batch(1000.0))


def test_a_loss_scale_that_finds_its_place_keeps_nothing_full():
    model = Net()
    rule = mp.LossScale(init_scale=2.0**24, growth_interval=1000)
    policy = mp.Policy.named("mixed_float16").with_loss_scale(rule)
    amp = mp.prepare(model, torch.optim.SGD(model.parameters(), 1e-3), policy, on_overflow=KEPT)
    skipped = sum(not amp.step(entropy(model), *batch(1.0)).stepped for _ in range(12))
    assert skipped >= 3
    assert amp.kept_full == ()


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_batch_that_float32_does_not_hold_either_keeps_nothing_full(bad):
    model, amp = ready()
    x, y = batch(1.0)
    x[0, 0] = bad
    for _ in range(3):
        assert not amp.step(entropy(model), x, y).stepped
    assert amp.kept_full == ()


def test_a_micro_batch_that_is_dropped_counts():
    model, amp = ready(on_bad_micro_batch="drop")
    x = torch.cat([batch(1.0)[0], batch(1000.0)[0]])
    y = torch.cat([batch(1.0)[1]] * 2)
    with told():
        for _ in range(2):
            assert amp.step(entropy(model), x, y, micro_batches=2).dropped == 1
    assert amp.kept_full == ("full path=big",)
    assert amp.step(entropy(model), x, y, micro_batches=2).dropped == 0


def test_running_the_batch_again_leaves_no_trace():
    def net():
        torch.manual_seed(1)
        inside = [nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 4)]
        return nn.Sequential(*inside)

    def trained(option):
        model = net()
        policy = mp.Policy.named("mixed_float16").with_loss_scale(RULE)
        optimizer = torch.optim.Adam(model.parameters(), 1e-2)
        amp = mp.prepare(model, optimizer, policy, on_overflow=option)
        torch.manual_seed(5)
        x, y = batch(1.0)
        for number in range(6):
            # Once too large for float16 as it comes in: the plan of neither run changes.
            amp.step(entropy(model), x * (1e5 if number == 2 else 1.0), y)
        return model.state_dict(), amp.state

    (one, state), (other, same) = trained("skip"), trained(KEPT)
    assert state == same
    assert state.skipped_steps == 1
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("how", ["save", "state_dict"])
@pytest.mark.parametrize("skips", [1, 2])
def test_a_run_that_resumes_goes_on_bit_for_bit(tmp_path, how, skips):
    model, amp = ready()
    loss_fn = entropy(model)
    if skips == 2:
        with told():
            twice(amp, loss_fn, *batch(1000.0))
    else:
        amp.step(loss_fn, *batch(1000.0))
    weights = copy.deepcopy(model.state_dict())
    saved = copy.deepcopy(amp.state_dict())
    amp.save(tmp_path / "run.amp")

    def goes_on(model, amp):
        if skips == 1:
            with told():
                amp.step(entropy(model), *batch(1000.0))
        losses = [amp.step(entropy(model), *batch(500.0, n)).loss for n in range(3)]
        return losses, amp.kept_full, amp.state

    other, again = ready()
    other.load_state_dict(weights)
    if how == "save":
        assert again.load(tmp_path / "run.amp") == []
    else:
        assert again.load_state_dict(saved) == []
    assert len(again.kept_full) == skips - 1
    assert goes_on(other, again) == goes_on(model, amp)


def test_a_run_without_the_insurance_is_told_of_the_rule_that_a_file_has(tmp_path):
    model, amp = ready()
    with told():
        twice(amp, entropy(model), *batch(1000.0))
    amp.save(tmp_path / "run.amp")
    plain = Net()
    policy = mp.Policy.named("mixed_float16").with_loss_scale(RULE)
    other = mp.prepare(plain, torch.optim.SGD(plain.parameters(), 1e-3), policy)
    with pytest.raises(mp.CheckpointError, match="full path=big"):
        other.load(tmp_path / "run.amp")
    assert other.kept_full == ()


def test_a_load_that_fails_leaves_the_plan_as_it_was():
    model, amp = ready()
    with told():
        twice(amp, entropy(model), *batch(1000.0))
    state = amp.state_dict()
    state["masters"] = {"none": torch.zeros(1)}
    state["sums"] = {"none": 0}
    _, other = ready()
    with pytest.raises(mp.CheckpointError):
        other.load_state_dict(state)
    assert other.kept_full == ()
    assert other.plan["big"].compute == "float16"


@pytest.mark.parametrize(
    ("policy", "options", "says"),
    [
        ("model_float16", {}, "by='model'.*stored in 16 bits"),
        ("mixed_float16", {"sync_overflow": False}, "`sync_overflow` must be True"),
        ("graph_float16", {"example": torch.zeros(2, 8)}, "by='graph'.*proved"),
    ],
)
def test_what_cannot_be_insured_is_refused_and_nothing_has_changed(policy, options, says):
    model = Net()
    if policy == "graph_float16":
        policy = mp.Policy("float32", "float16", "float32", by="graph")
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    with pytest.raises(mp.BackendError, match=says):
        mp.prepare(model, optimizer, policy, on_overflow=KEPT, **options)
    assert "forward" not in vars(model)


def test_an_unknown_word_is_refused():
    with pytest.raises(mp.BackendError, match="`on_overflow` must be one of"):
        mp.prepare(Net(), None, "mixed_float16", on_overflow="keep")


def test_a_loss_that_cannot_be_run_again_is_said_once():
    model, amp = ready()
    runs = []

    def once(x, y):
        runs.append(1)
        if len(runs) in (2, 4):
            msg = "used up"
            raise RuntimeError(msg)
        return functional.cross_entropy(model(x), y)

    with pytest.warns(mp.MpcoreWarning, match="cannot be run again: .*used up") as found:
        twice(amp, once, *batch(1000.0))
    assert len(found) == 1
    assert amp.step(once, *batch(1.0)).stepped


def test_copies_and_pickles_of_the_model_are_not_noted():
    model, amp = ready()
    average = copy.deepcopy(model)
    loaded = pickle.loads(pickle.dumps(model))

    def loss_fn(x, y):
        for other in (average, loaded):
            other(x * 1e9)
        return functional.cross_entropy(model(x), y)

    for _ in range(3):
        with amp.autocast():
            loss = loss_fn(*batch(1.0))
        amp.backward(loss)
        assert amp.apply().stepped
    assert amp.kept_full == ()


def test_a_compiled_model_runs_the_new_plan():
    model, amp = ready()
    compiled = torch.compile(model, backend="eager")

    def loss_fn(x, y):
        return functional.cross_entropy(compiled(x), y)

    with told():
        twice(amp, loss_fn, *batch(1000.0))
    assert amp.step(loss_fn, *batch(1000.0)).stepped

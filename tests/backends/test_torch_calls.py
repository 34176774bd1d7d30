"""The order of calls in torch: the table, each way out, and random orders against plain torch."""

from __future__ import annotations

import copy
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

import mpcore as mp

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from mpcore_torch.calls import IDLE, TABLE, TORN, Calls  # noqa: E402

pytestmark = pytest.mark.backend("torch")

CALLS = ("forward", "backward", "unscale", "apply", "abort_step", "step", "save", "load")
SCALED = mp.Policy().with_loss_scale("static(1024)")
POLICIES = ["float32", "mixed_float16", "model_float16", "autocast_bfloat16"]


def net():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))


def batch(number=0, rows=16):
    g = torch.Generator().manual_seed(number)
    return torch.randn(rows, 8, generator=g), torch.randint(4, (rows,), generator=g)


def ready(policy=SCALED, lr=0.05, **options):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr, momentum=0.9)
    return model, mp.prepare(model, optimizer, policy, **options)


def loss_of(model, number=0, boost=1.0):
    x, y = batch(number)
    return functional.cross_entropy(model(x), y) * boost


def state_of(model, amp):
    taken = dict(model.state_dict())
    for number, slots in enumerate(amp.optimizer.state.values()):
        taken |= {f"{number}:{n}": torch.as_tensor(v) for n, v in slots.items() if v is not None}
    return {name: value.detach().clone() for name, value in taken.items()}


def assert_same(one, two):
    assert one.keys() == two.keys()
    for name in one:
        torch.testing.assert_close(one[name], two[name], rtol=0, atol=0, equal_nan=True, msg=name)


def test_what_is_loaded_mends_a_torn_step_and_no_other_state():
    calls = Calls()
    calls.tear()
    calls.mend()
    assert calls.state == IDLE
    for state in set(TABLE) - {TORN}:
        calls.state = state
        calls.mend()
        assert calls.state == state


def test_table_knows_every_call_in_every_state():
    for row in TABLE.values():
        assert tuple(row) == CALLS
    reached = {IDLE}
    for _ in TABLE:
        reached |= {row[c] for s, row in TABLE.items() if s in reached for c in CALLS} & {*TABLE}
    assert reached | {TORN} == set(TABLE)  # no call leads there, only a fault
    assert TORN not in reached
    for state, row in TABLE.items():
        assert row["abort_step"] == IDLE or state == "stepping", state


# --- unscale


@pytest.mark.parametrize("policy", POLICIES)
def test_unscaled_gradients_are_the_true_ones_and_apply_changes_nothing_more(policy):
    (one, amp), (two, other) = ready(policy), ready(policy)
    for number in range(3):
        for model, own in ((one, amp), (two, other)):
            with own.autocast():
                loss = loss_of(model, number)
            own.backward(loss)
        amp.unscale()
        read = {p: amp.masters.get(p, p).grad.clone() for p in one.parameters()}
        result = amp.apply(keep_grads=True)
        assert result.stepped
        for grad, (param, seen) in zip(result.grads.values(), read.items(), strict=True):
            assert torch.equal(grad, seen)
            assert seen.dtype == torch.float32, param
        assert result.grad_norm == other.apply().grad_norm
    assert_same(state_of(one, amp), state_of(two, other))


def test_second_unscale_does_nothing():
    """P8: torch raises."""
    model, amp = ready()
    amp.backward(loss_of(model))
    amp.unscale()
    before = [p.grad.clone() for p in model.parameters()]
    amp.unscale()
    assert all(torch.equal(p.grad, b) for p, b in zip(model.parameters(), before, strict=True))
    assert amp.apply().stepped


@pytest.mark.parametrize("policy", POLICIES)
def test_what_is_changed_after_unscale_is_what_moves_the_weights(policy):
    model, amp = ready(policy)
    before = [amp.masters.get(p, p).detach().clone() for p in model.parameters()]
    with amp.autocast():
        loss = loss_of(model)
    amp.backward(loss)
    amp.unscale()
    for param in model.parameters():
        amp.masters.get(param, param).grad.fill_(2.0)
    result = amp.apply()
    assert result.grad_norm == pytest.approx(2 * math.sqrt(sum(p.numel() for p in before)))
    for param, old in zip(model.parameters(), before, strict=True):
        torch.testing.assert_close(amp.masters.get(param, param), old - 0.05 * 2.0)


def test_torch_clipping_after_unscale_is_clip_norm():
    (one, amp), (two, other) = ready(), ready()
    amp.backward(loss_of(one))
    amp.unscale()
    norm = nn.utils.clip_grad_norm_(one.parameters(), 0.1)
    amp.apply()
    other.backward(loss_of(two))
    # One total in float64, one in float32: equal but for the last rounding.
    assert other.apply(clip_norm=0.1).grad_norm == pytest.approx(float(norm), rel=1e-6)
    assert_same(state_of(one, amp), state_of(two, other))


@pytest.mark.parametrize("bad", ["before", "after"])
def test_non_finite_gradients_are_skipped_also_after_unscale(bad):
    model, amp = ready()
    before = state_of(model, amp)
    amp.backward(loss_of(model, boost=math.inf if bad == "before" else 1.0))
    amp.unscale()
    if bad == "after":
        model[3].bias.grad[1] = math.nan
    result = amp.apply()
    assert not result.stepped
    assert result.culprit == ("0.weight" if bad == "before" else "3.bias")
    assert_same(before, state_of(model, amp))


def test_gradient_that_is_taken_away_after_unscale_moves_nothing():
    model, amp = ready()
    before = model[0].weight.detach().clone()
    amp.backward(loss_of(model))
    amp.unscale()
    model[0].weight.grad = None
    assert amp.apply().stepped
    assert torch.equal(model[0].weight, before)


# --- abort_step


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("when", ["forward", "backward", "unscale"])
def test_discarded_step_leaves_no_trace(policy, when):
    (one, amp), (two, other) = ready(policy), ready(policy)
    for number in range(3):
        with amp.autocast():
            loss = loss_of(one, number + 10)
        if when != "forward":
            amp.backward(loss)
        if when == "unscale":
            amp.unscale()
        amp.abort_step()
        amp.abort_step()
        assert amp.step(lambda n=number: loss_of(one, n)).stepped
        assert other.step(lambda n=number: loss_of(two, n)).stepped
    assert_same(state_of(one, amp), state_of(two, other))
    assert amp.state == other.state


def test_native_scaler_does_not_forget_a_step_that_was_not_taken():
    model = net()
    optimizer, scaler = torch.optim.SGD(model.parameters(), 0.1), torch.amp.GradScaler("cpu")
    scaler.scale(loss_of(model)).backward()
    scaler.unscale_(optimizer)  # and then the user decides to skip
    optimizer.zero_grad()
    scaler.scale(loss_of(model)).backward()
    with pytest.raises(RuntimeError, match="unscale_\\(\\) has already been called"):
        scaler.unscale_(optimizer)


# --- refusals


def test_backward_after_unscale_is_refused_and_the_step_goes_on():
    model, amp = ready()
    amp.backward(loss_of(model))
    amp.unscale()
    with pytest.raises(mp.BackendError, match="`backward` must not follow `unscale`"):
        amp.backward(loss_of(model))
    assert amp.apply().stepped


def test_saving_and_loading_wait_for_the_gradients(tmp_path):
    model, amp = ready()
    amp.save(tmp_path / "run.amp")
    amp.backward(loss_of(model))
    for call in (amp.save, amp.load):
        with pytest.raises(mp.BackendError, match="must not be called while the gradients"):
            call(tmp_path / "run.amp")
    with pytest.raises(mp.BackendError, match="`load` must not be called while the gradients"):
        amp.state = amp.state
    assert amp.apply().stepped
    amp.save(tmp_path / "run.amp")
    assert amp.load(tmp_path / "run.amp") == []


@pytest.mark.parametrize("call", ["backward", "unscale", "apply", "abort_step", "step"])
@pytest.mark.parametrize("where", ["loss", "after_step"])
def test_no_call_inside_a_step(call, where):
    model = net()
    calls = {
        "backward": lambda: amp.backward(loss_of(model)),
        "unscale": lambda: amp.unscale(),
        "apply": lambda: amp.apply(),
        "abort_step": lambda: amp.abort_step(),
        "step": lambda: amp.step(lambda: loss_of(model)),
    }
    inside = {where: True}

    def loss_fn():
        if inside.pop("loss", False):
            calls[call]()
        return loss_of(model)

    def follow():
        if inside.pop("after_step", False):
            calls[call]()

    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    amp = mp.prepare(model, optimizer, SCALED, after_step=[follow])
    with pytest.raises(mp.BackendError, match=f"`{call}` must not be called inside a step"):
        amp.step(loss_fn)
    assert not inside
    assert amp.step(loss_fn).stepped


def test_failing_backward_pass_gives_the_step_up():
    class Broken(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            msg = "planted"
            raise RuntimeError(msg)

    model, amp = ready()
    before = state_of(model, amp)
    amp.backward(loss_of(model))
    with pytest.raises(RuntimeError, match="planted"):
        amp.backward(Broken.apply(loss_of(model, 1)))
    assert_same(before, state_of(model, amp))
    with pytest.raises(mp.BackendError, match="`apply` must follow `backward`"):
        amp.apply()
    assert amp.step(lambda: loss_of(model)).stepped


def test_bad_arguments_leave_the_step_open():
    model, amp = ready()
    amp.backward(loss_of(model))
    with pytest.raises(mp.BackendError, match="`clip_norm` must be finite"):
        amp.apply(clip_norm=-1.0)
    with pytest.raises(mp.BackendError, match="`optimizer` must be one of 'optimizer'"):
        amp.apply(optimizer="other")
    amp.unscale()
    with pytest.raises(mp.BackendError, match="`mean` must be given to `unscale`"):
        amp.apply(mean=True)
    assert amp.apply().stepped


# --- random orders


class Plain:
    """What a loop by hand does, with copies of everything that a skipped step puts back."""

    def __init__(self):
        self.model = net()
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.05, momentum=0.9)
        self.saved, self.loss = None, None

    def forward(self, number, boost):
        if self.saved is None:
            self.saved = copy.deepcopy(self.model.state_dict())
            self.optimizer.zero_grad()
        self.loss = loss_of(self.model, number, boost)

    def put_back(self):
        if self.saved is not None:
            for name, buffer in self.model.named_buffers():
                buffer.copy_(self.saved[name])
        self.saved = self.loss = None

    def apply(self):
        if all(bool(torch.isfinite(p.grad).all()) for p in self.model.parameters()):
            self.optimizer.step()
            self.saved = self.loss = None
        else:
            self.put_back()


class Both:
    """Ours and the loop by hand, driven by the same calls."""

    def __init__(self, path):
        self.model, self.amp = ready()
        self.plain, self.path, self.loss = Plain(), path, None
        self.amp.save(path)

    @property
    def state(self):
        return self.amp._tx.calls.state

    def call(self, name, number, bad):
        before, expected = state_of(self.model, self.amp), TABLE[self.state][name]
        if expected in TABLE:
            getattr(self, name)(number, math.inf if bad else 1.0)
            return
        message = re.escape(expected.format(call=name))
        with pytest.raises(mp.BackendError, match=f"^{message}$"):
            getattr(self, name)(number, 1.0)
        assert_same(before, state_of(self.model, self.amp))

    def forward(self, number, boost):
        with self.amp.autocast():
            self.loss = loss_of(self.model, number, boost)
        self.plain.forward(number, boost)

    def backward(self, number, boost):
        if TABLE[self.state]["backward"] not in TABLE:
            self.amp.backward(torch.ones((), requires_grad=True))
        if self.loss is None:
            self.forward(number, boost)
        self.amp.backward(self.loss)
        self.plain.loss.backward()
        self.loss = None

    def unscale(self, number, boost):
        self.amp.unscale()
        if number % 2 and self.state == "unscaled":
            for param, own in zip(
                self.model.parameters(), self.plain.model.parameters(), strict=True
            ):
                param.grad.mul_(0.5)
                own.grad.mul_(0.5)

    def apply(self, number, boost):
        self.amp.apply()
        self.plain.apply()
        self.loss = None

    def abort_step(self, number, boost):
        self.amp.abort_step()
        self.plain.put_back()
        self.loss = None

    def step(self, number, boost):
        self.amp.step(lambda: loss_of(self.model, number, boost))
        self.loss = self.plain.saved = None
        self.plain.forward(number, boost)
        self.plain.loss.backward()
        self.plain.apply()

    def save(self, number, boost):
        self.amp.save(self.path)

    def load(self, number, boost):
        self.amp.load(self.path)

    def finish(self):
        """Whatever came before, the model trains on and is where the loop by hand is."""
        self.abort_step(0, 1.0)
        for number in range(2):
            self.step(number, 1.0)
        assert self.amp.last.stepped
        theirs = dict(self.plain.model.state_dict())
        for name, value in self.model.state_dict().items():
            assert torch.equal(value, theirs[name]), name
        for ours, own in zip(
            self.amp.optimizer.state.values(), self.plain.optimizer.state.values(), strict=True
        ):
            assert torch.equal(ours["momentum_buffer"], own["momentum_buffer"])


@given(
    st.lists(
        st.tuples(st.sampled_from(CALLS), st.integers(0, 5), st.sampled_from([False] * 4 + [True])),
        max_size=20,
    )
)
def test_any_order_gives_documented_errors_only_and_equals_a_loop_by_hand(tmp_path_factory, orders):
    both = Both(tmp_path_factory.getbasetemp() / "run.amp")
    for name, number, bad in orders:
        both.call(name, number, bad)
    both.finish()

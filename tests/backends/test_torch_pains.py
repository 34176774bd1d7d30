"""What people suffer from in torch's own AMP, by number: the native failing, ours beside it.

F1, F2, F6, F7 and P12 are in test_torch.py, F5 and P14 in test_torch_windows.py, P8 in
test_torch_calls.py, P17 in tests/ranks.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import warnings

import numpy as np
import pytest
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import mpcore as mp
from mpcore.scaling.transition import initial_state

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.optim import lr_scheduler  # noqa: E402
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn  # noqa: E402

pytestmark = pytest.mark.backend("torch")

POLICIES = ["float32", "mixed_float16", "mixed_bfloat16", "model_float16", "autocast_float16"]
BY = ["mixed_float16", "autocast_float16", "model_float16"]
BAD = {0, 17, 18, 40, 41, 42, 66, 80, 98, 99}  # ten steps of a hundred


def net():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))


def batch(number=0, rows=16):
    g = torch.Generator().manual_seed(number)
    return torch.randn(rows, 8, generator=g), torch.randint(4, (rows,), generator=g)


def entropy(model):
    return lambda x, y, boost=1.0: functional.cross_entropy(model(x), y) * boost


def ready(policy="float32", lr=0.05, rule=None, **options):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr, momentum=0.9)
    policy = mp.Policy.parse(policy).with_loss_scale(rule or mp.LossScale(init_scale=1024.0))
    return model, optimizer, mp.prepare(model, optimizer, policy, **options)


def native(model, optimizer, scaler, number, boost=1.0):
    optimizer.zero_grad()
    x, y = batch(number)
    scaler.scale(entropy(model)(x, y, boost)).backward()
    scaler.step(optimizer)
    scaler.update()


# --- F8, P1: schedules

SCHEDULES = {
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=90),
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda step: 1 / (1 + step)),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 90),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.ConstantLR(o), lr_scheduler.ExponentialLR(o, 0.9)], milestones=[10]
    ),
}


def test_native_schedule_runs_ahead_and_warns():
    """F8, P1: torch's own advice is a comparison of scales by hand."""
    model = net()
    optimizer, scaler = torch.optim.SGD(model.parameters(), 0.1), torch.amp.GradScaler("cpu")
    schedule = lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)

    def loop():
        for number in range(100):
            native(model, optimizer, scaler, number, math.inf if number in BAD else 1.0)
            schedule.step()

    with pytest.warns(UserWarning, match=r"lr_scheduler\.step\(\)` before `optimizer\.step"):
        loop()
    assert schedule.last_epoch == 100


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("way", ["amp.scheduler", "after_step", "loop"])
def test_schedule_counts_real_steps(name, way):
    """F8, P1: 100 steps, 10 overflows: count 90, no warning; the rates are those of 90 steps."""
    model, follow = net(), []
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    schedule = SCHEDULES[name](optimizer)
    amp = mp.prepare(model, optimizer, "float32", after_step=[lambda: [f() for f in follow]])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        if way == "after_step":
            follow.append(schedule.step)
        stepper = amp.scheduler(schedule)
        for number in range(100):
            boost = math.inf if number in BAD else 1.0
            if way == "loop":
                amp.backward(entropy(model)(*batch(number), boost))
                amp.apply()
            else:
                amp.step(entropy(model), *batch(number), boost)
            if way != "after_step":
                stepper.step()
    assert schedule.last_epoch == 90
    plain = torch.optim.SGD(net().parameters(), 0.05)
    expected = SCHEDULES[name](plain)
    for _ in range(schedule.last_epoch):
        plain.step()
        expected.step()
    assert schedule.get_last_lr() == expected.get_last_lr()


def test_schedule_goes_on_after_a_save():
    states, rates = [], []
    for again in (False, True):
        model, optimizer, amp = ready()
        schedule = amp.scheduler(lr_scheduler.ExponentialLR(optimizer, 0.9))
        if again:
            schedule.load_state_dict(states[0][0])
            optimizer.load_state_dict(states[0][1])
        for number in range(5 if again else 0, 10):
            amp.step(entropy(model), *batch(number), math.inf if number in (2, 7) else 1.0)
            schedule.step()
            if number == 4:
                states.append(copy.deepcopy((schedule.state_dict(), optimizer.state_dict())))
        rates.append(schedule.get_last_lr())
        assert schedule.last_epoch == 8
    assert rates[0] == rates[1] == [pytest.approx(0.05 * 0.9**8)]


def test_plateau_schedule_hears_real_steps_only():
    model, optimizer, amp = ready()
    schedule = amp.scheduler(lr_scheduler.ReduceLROnPlateau(optimizer, patience=2))
    for number in range(12):
        result = amp.step(entropy(model), *batch(), math.inf if number % 2 else 1.0)
        schedule.step(1.0 if result.stepped else math.nan)
    assert schedule.last_epoch == 6
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.005)


def test_skipped_steps_count_where_the_rule_says_so():
    rule = mp.LossScale(init_scale=1024.0, count_skipped_steps=True)
    model, optimizer, amp = ready(rule=rule)
    schedule = amp.scheduler(lr_scheduler.ExponentialLR(optimizer, 0.9))
    for boost in (1.0, math.inf, math.inf):
        amp.step(entropy(model), *batch(), boost)
        schedule.step()
    assert schedule.last_epoch == 3


@pytest.mark.parametrize("way", ["step", "loop"])
def test_collapse_is_reported_at_the_line_of_the_user(way):
    model, _, amp = ready(rule=mp.LossScale(init_scale=1024.0, patience=2))
    step = lambda: amp.step(entropy(model), *batch(), math.inf)  # noqa: E731
    if way == "loop":
        amp.backward(entropy(model)(*batch(), math.inf))
        amp.apply()
        amp.backward(entropy(model)(*batch(), math.inf))
        step = amp.apply
    else:
        step()
    with pytest.warns(mp.MpcoreWarning, match="2 steps in a row were skipped") as seen:
        step()
    assert [warning.filename for warning in seen] == [__file__]  # the line that called it


# --- P2, P3: what was skipped, and what moves along


@pytest.mark.parametrize("policy", POLICIES)
def test_counts_equal_the_injected_overflows(policy):
    """P2."""
    model, _, amp = ready(policy)
    results = [
        amp.step(entropy(model), *batch(number), math.inf if number in BAD else 1.0)
        for number in range(100)
    ]
    assert {n for n, result in enumerate(results) if not result.stepped} == BAD
    assert amp.state.skipped_steps == len(BAD)
    assert all(result.reason for n, result in enumerate(results) if n in BAD)


@pytest.mark.parametrize("way", ["after_step", "loop"])
@pytest.mark.parametrize("policy", POLICIES)
def test_average_of_the_weights_equals_that_of_a_run_without_the_bad_batches(policy, way):
    """P3: torch.optim.swa_utils' own average, its buffers and its count included."""
    ends = []
    for bad in (BAD, set()):
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        policy_ = mp.Policy.parse(policy).with_loss_scale(mp.LossScale.static(64.0))
        averages = []

        def follow(model=model, averages=averages):
            averages[0].update_parameters(model)

        after_step = [follow] if way == "after_step" else []
        amp = mp.prepare(model, optimizer, policy_, after_step=after_step)
        average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
        averages.append(average)
        for number in range(100):
            if number in BAD and not bad:
                continue
            result = amp.step(entropy(model), *batch(number), math.inf if number in bad else 1.0)
            if way == "loop" and result.stepped:
                average.update_parameters(model)
        assert average.n_averaged == 90
        ends.append([*average.state_dict().values(), *model.state_dict().values()])
    for one, two in zip(*ends, strict=True):
        assert torch.equal(one, two)


def test_native_average_takes_a_broken_batch_norm_along():
    model = net()
    optimizer, scaler = torch.optim.SGD(model.parameters(), 0.1), torch.amp.GradScaler("cpu")
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
    x, y = batch()
    for boost in (1e6, 1.0):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = functional.cross_entropy(model(x * boost), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        average.update_parameters(model)
    assert not torch.isfinite(average.module[1].running_mean).any()


# --- P5, P6: floor and cap


@pytest.mark.parametrize("policy", BY)
def test_losses_that_need_a_scale_below_one(policy):
    """P5: with gradients near the top of float16 the floor has to be below 1."""
    learnt = {}
    for floor in (1.0, 2.0**-10):
        rule = mp.LossScale(init_scale=1.0, min_scale=floor, on_collapse="ignore")
        model, _, amp = ready(policy, 1e-9, rule)
        results = [amp.step(entropy(model), *batch(), 2.0**24) for _ in range(30)]
        learnt[floor] = (results[-1].stepped, results[-1].scale)
        if floor < 1:
            taken = [result.loss for result in results if result.stepped]
            assert taken[-1] < taken[0]
    assert learnt[1.0] == (False, 1.0)
    assert learnt[2.0**-10][0]
    assert learnt[2.0**-10][1] <= 2.0**-6


def test_any_number_of_good_steps_stays_finite():
    """P6: the machine alone, growing whenever it may."""
    rule = mp.LossScale(growth_interval=1)
    state = initial_state(rule)
    pick = lambda condition, x, y: x if condition else y  # noqa: E731
    for _ in range(100):
        before, state = state, mp.transition(rule, state, True, pick, float)
    assert before == state  # so that more of them change nothing
    assert state[0] == rule.max_scale


def test_steps_at_the_cap_train_on():
    """P6: and the native, which torch stops only at the top of float32."""
    model, _, amp = ready(rule=mp.LossScale(growth_interval=1))
    losses = [amp.step(entropy(model), *batch()).loss for _ in range(300)]
    assert amp.scale == 2.0**24
    assert losses[-1] < losses[0]
    twin = net()
    optimizer = torch.optim.SGD(twin.parameters(), 0.01)
    scaler = torch.amp.GradScaler("cpu", growth_interval=1)
    largest = 0.0
    for _ in range(300):
        native(twin, optimizer, scaler, 0)
        largest = max(largest, scaler.get_scale())
    assert largest > 2.0**100


# --- P9, P10: gradients in float16, and none


@pytest.mark.parametrize("way", ["step", "loop"])
def test_float16_gradients_are_taken_by_the_same_call(way):
    """P9, F7: a model of float16 parameters trains on masters."""
    model, _, amp = ready("model_float16")
    assert model[0].weight.dtype == torch.float16
    losses = []
    for _ in range(20):
        if way == "step":
            losses.append(amp.step(entropy(model), *batch()).loss)
        else:
            amp.backward(entropy(model)(*batch()))
            losses.append(amp.apply().loss)
    assert model[0].weight.grad.dtype == torch.float16
    assert losses[-1] < losses[0] / 2


def test_native_refuses_an_optimizer_without_gradients():
    """P10."""
    model = net()
    optimizer = torch.optim.SGD(model[0].parameters(), 0.1)
    model[0].requires_grad_(False)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(entropy(model)(*batch())).backward()
    with pytest.raises(AssertionError, match="No inf checks were recorded"):
        scaler.step(optimizer)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("way", ["step", "losses", "alone", "loop"])
def test_frozen_optimizer_beside_a_trained_one_passes(policy, way):
    """P10: no gradient is a finite one."""
    model = net()
    model[0].requires_grad_(False)
    optimizers = {
        "frozen": torch.optim.SGD(model[0].parameters(), 0.1),
        "trained": torch.optim.SGD(model[3].parameters(), 0.1),
    }
    amp = mp.prepare(model, optimizers, policy)
    x, y = batch()
    constant = lambda x, y: model[0](x).float().mean()  # noqa: E731
    before = model[0].weight.detach().clone()
    if way == "step":
        result = amp.step(entropy(model), x, y, clip_norm=1.0)
    elif way == "losses":
        result = amp.step({"frozen": constant, "trained": entropy(model)}, x, y)
    elif way == "alone":
        result = amp.step(entropy(model), x, y, optimizer="frozen")
        assert result.grad_norm == 0.0
    else:
        with amp.autocast():
            loss = constant(x, y)
        amp.backward(loss, optimizer="frozen")
        result = amp.apply(clip_norm=1.0)
    assert all(result.stepped_by.values())
    assert torch.equal(before, model[0].weight)


def test_loss_that_depends_on_nothing_is_still_refused_for_who_trains():
    model = net()
    optimizers = {
        "a": torch.optim.SGD(model[0].parameters(), 0.1),
        "b": torch.optim.SGD(model[3].parameters(), 0.1),
    }
    amp = mp.prepare(model, optimizers, "float32")
    model[0].requires_grad_(False)
    for asked in ("b", None):
        with pytest.raises(mp.BackendError, match="`loss` must depend on parameters"):
            amp.step(lambda: torch.ones(()), optimizer=asked)
    model[3].requires_grad_(False)
    with pytest.raises(mp.BackendError, match="or every parameter is frozen"):
        amp.step(lambda: torch.ones(()), optimizer="a")


# --- P11: several optimizers and losses: a GAN


class Gan(nn.Module):
    """Real-shaped and small: convolutions, BatchNorm in both halves, 8 x 8 images."""

    def __init__(self, norm=True):
        super().__init__()
        torch.manual_seed(4)
        batch_norm = nn.BatchNorm2d if norm else lambda _: nn.Identity()
        self.g = nn.Sequential(
            nn.Linear(4, 32), nn.Unflatten(1, (8, 2, 2)), nn.ConvTranspose2d(8, 8, 4, 2, 1),
            batch_norm(8), nn.ReLU(), nn.ConvTranspose2d(8, 1, 4, 2, 1), nn.Tanh(),
        )  # fmt: skip
        self.d = nn.Sequential(
            nn.Conv2d(1, 8, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(8, 8, 4, 2, 1),
            batch_norm(8), nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(32, 1),
        )  # fmt: skip

    def d_loss(self, real, noise):
        fake = self.g(noise).detach()
        return functional.softplus(self.d(fake)).mean() + functional.softplus(-self.d(real)).mean()

    def g_loss(self, real, noise):
        return functional.softplus(-self.d(self.g(noise))).mean()


def gan_data(number):
    g = torch.Generator().manual_seed(number)
    return torch.randn(8, 1, 8, 8, generator=g), torch.randn(8, 4, generator=g)


def gan(policy, scale=64.0):
    model = Gan()
    optimizers = {
        "g": torch.optim.Adam(model.g.parameters(), 2e-3, betas=(0.5, 0.99)),
        "d": torch.optim.Adam(model.d.parameters(), 2e-3, betas=(0.5, 0.99)),
    }
    policy = mp.Policy.parse(policy).with_loss_scale(mp.LossScale.static(scale))
    return model, mp.prepare(model, optimizers, policy)


def gan_state(model, amp):
    slots = [
        s for o in amp.optimizers.values() for state in o.state.values() for s in state.values()
    ]
    return [t.detach().clone() for t in (*model.state_dict().values(), *slots)]


@pytest.mark.parametrize("way", ["alternating", "loop", "at once"])
@pytest.mark.parametrize("policy", POLICIES)
def test_gan_with_bad_batches_equals_one_without(policy, way):
    """P11: one scaler, two optimizers; every overflow leaves both and all statistics alone."""
    ends = []
    for bad in ({2, 5}, set()):
        model, amp = gan(policy)
        losses = {"d": model.d_loss, "g": model.g_loss}
        skipped = 0
        for number in range(8):
            if number in {2, 5} and not bad:
                continue
            real, noise = gan_data(number)
            if number in bad:
                real, noise = real * math.inf, noise * math.inf
            if way == "at once":
                results = [amp.step(losses, real, noise)]
            elif way == "alternating":
                results = [amp.step(losses[n], real, noise, optimizer=n) for n in ("d", "g")]
            else:
                results = []
                for name in ("d", "g"):
                    with amp.autocast():
                        loss = losses[name](real, noise)
                    amp.backward(loss, optimizer=name)
                    results.append(amp.apply())
            assert all(r.stepped is (number not in bad) for r in results)
            skipped += sum(not r.stepped for r in results)
        assert amp.state.skipped_steps == skipped == len(bad) * (1 if way == "at once" else 2)
        ends.append(gan_state(model, amp))
    for one, two in zip(*ends, strict=True):
        assert torch.equal(one, two)


@pytest.mark.parametrize("policy", BY)
def test_gan_step_of_one_half_leaves_the_other_without_gradients(policy):
    model, amp = gan(policy)
    real, noise = gan_data(0)
    amp.step(model.g_loss, real, noise, optimizer="g")
    assert all(p.grad is None for p in model.d.parameters())
    before = [p.detach().clone() for p in model.d.parameters()]
    amp.step(model.g_loss, real, noise, optimizer="g")
    assert all(map(torch.equal, before, model.d.parameters()))


def test_gan_at_once_uses_the_weights_before_the_step():
    """Both losses are taken before either optimizer moves: as by hand, bit for bit."""
    model, amp = gan("float32", 1.0)
    hand = Gan()
    made = {
        n: torch.optim.Adam(getattr(hand, n).parameters(), 2e-3, betas=(0.5, 0.99)) for n in "gd"
    }
    for number in range(3):
        real, noise = gan_data(number)
        assert amp.step({"d": model.d_loss, "g": model.g_loss}, real, noise).stepped
        d_params, g_params = list(hand.d.parameters()), list(hand.g.parameters())
        d_grads = torch.autograd.grad(hand.d_loss(real, noise), d_params)
        g_grads = torch.autograd.grad(hand.g_loss(real, noise), g_params)
        for param, grad in zip([*d_params, *g_params], [*d_grads, *g_grads], strict=True):
            param.grad = grad
        for optimizer in made.values():
            optimizer.step()
    for one, two in zip(model.state_dict().values(), hand.state_dict().values(), strict=True):
        assert torch.equal(one, two)


# --- P13: gradient penalties


def critic_loss(model, gradient):
    """WGAN-GP's loss of the critic; Gulrajani et al. 2017, arXiv:1704.00028, algorithm 1."""

    def loss(real, noise, mix):
        fake = model.g(noise).detach()
        between = mix * real + (1 - mix) * fake
        grad = gradient(model.d, between)
        penalty = (grad.flatten(1).norm(dim=1) - 1).pow(2).mean()
        return model.d(fake).float().mean() - model.d(real).float().mean() + 10 * penalty

    return loss


def by_hand(function, x):
    x = x.detach().requires_grad_()
    return torch.autograd.grad(function(x).float().sum(), x, create_graph=True)[0]


@pytest.mark.parametrize("scale", [1.0, 2.0**10])
@pytest.mark.parametrize("policy", [*BY, "mixed_bfloat16", "float32"])
def test_gradient_penalty_equals_float32(policy, scale):
    """P13: a WGAN-GP critic step, double backward through the casts included."""
    plain, model = Gan(norm=False), Gan(norm=False)
    optimizer = torch.optim.SGD(model.d.parameters(), 0.1)
    parsed = mp.Policy.parse(policy).with_loss_scale(mp.LossScale.static(scale))
    amp = mp.prepare(model, optimizer, parsed)
    (real, noise), mix = gan_data(0), torch.rand(8, 1, 1, 1)
    result = amp.step(critic_loss(model, amp.gradient), real, noise, mix, keep_grads=True)
    expected = critic_loss(plain, by_hand)(real, noise, mix)
    expected.backward()
    assert result.stepped
    # With avx512_fp16 torch sums float16 by other kernels: 0.022 where others give less than 0.02.
    low = 6e-3 if torch.ops.mkldnn._is_mkldnn_fp16_supported() else 5e-3
    close = {"float32": 1e-5, "mixed_bfloat16": 5e-2}.get(policy, low)
    assert result.loss == pytest.approx(expected.item(), rel=close)
    for name, param in plain.d.named_parameters():
        error = (result.grads[f"d.{name}"] - param.grad).norm() / (param.grad.norm() + 1e-3)
        assert error < 4 * close, name


def test_gradients_that_float16_loses_without_the_scale():
    """P13: a first-order gradient of 1e-6 of its size is nothing in float16."""
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    twin = copy.deepcopy(model)
    small = lambda m: lambda x: m(x).float() * 1e-8  # noqa: E731
    amp = mp.prepare(model, torch.optim.SGD(model.parameters(), 0.1), "mixed_float16")
    x, _ = batch()
    expected = by_hand(small(twin), x)
    with amp.autocast():
        lost, kept = by_hand(small(model), x), amp.gradient(small(model), x)
    assert lost.count_nonzero() < lost.numel()
    assert kept.dtype == torch.float32
    torch.testing.assert_close(kept, expected, rtol=2e-2, atol=1e-11)
    assert not x.requires_grad


def test_gradient_for_an_input_that_has_a_graph_keeps_it():
    model = nn.Linear(8, 1)
    amp = mp.prepare(model, torch.optim.SGD(model.parameters(), 0.1), "float32")
    x = torch.randn(4, 8, requires_grad=True)
    grad = amp.gradient(lambda z: model(z) ** 2, x * 2)
    grad.sum().backward()
    assert x.grad is not None


@pytest.mark.parametrize(
    ("function", "inputs", "match"),
    [
        (
            lambda x: x,
            (torch.ones(3, dtype=torch.int64),),
            "floating-point tensor, got torch.int64",
        ),
        (lambda x: x, (3.0,), "floating-point tensor, got float"),
        (lambda x: x.detach(), (torch.ones(3),), "`function` must depend on"),
    ],
)
def test_gradient_of_nothing_is_a_clear_error(function, inputs, match):
    _, _, amp = ready()
    with pytest.raises(mp.BackendError, match=match):
        amp.gradient(function, *inputs)


# --- P15, P16, P18


@pytest.mark.parametrize(
    "policy", ["mixed_bfloat16", "model_bfloat16", "autocast_bfloat16", "float32"]
)
def test_bfloat16_runs_without_a_scale(policy):
    """P15."""
    model = net()
    amp = mp.prepare(model, torch.optim.AdamW(model.parameters(), 1e-2), policy)
    losses = [amp.step(entropy(model), *batch()).loss for _ in range(20)]
    assert amp.scale == 1.0
    assert losses[-1] < losses[0]
    assert not amp.step(entropy(model), *batch(), math.nan).stepped
    assert amp.scale == 1.0


class NoFloat64(TorchDispatchMode):
    """Stands for a device without float64: no operation may read or write such a tensor."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves((args, kwargs, result)):
            if isinstance(leaf, torch.Tensor) and leaf.dtype == torch.float64:
                msg = f"{func} touches float64"
                raise TypeError(msg)
        return result


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("drop", ["skip", "drop"])
def test_no_step_needs_float64_on_the_device(policy, drop):
    """P16."""
    model, _, amp = ready(policy, on_bad_micro_batch=drop)
    with NoFloat64():
        for boost in (1.0, math.inf, 1e30):
            result = amp.step(entropy(model), *batch(), boost, clip_norm=1.0, micro_batches=2)
            assert math.isnan(result.grad_norm) or result.grad_norm > 0
            assert result.to_dict()
            with amp.autocast():
                loss = entropy(model)(*batch(), boost)
            amp.backward(loss)
            amp.unscale()
            amp.apply()
            amp.gradient(lambda x: model(x), batch()[0])
        amp.step(entropy(model), *batch())
    with pytest.raises(TypeError, match="touches float64"), NoFloat64():
        torch.ones(1).double()


@pytest.mark.parametrize("scope", ["all", "optimizer"])
@pytest.mark.parametrize("kind", ["dynamic", "static", "none"])
def test_nothing_ever_moves_by_a_non_finite_gradient(kind, scope):
    """P18: under no rule, not even without a scale."""
    rule = {
        "dynamic": mp.LossScale(),
        "static": mp.LossScale.static(8.0),
        "none": mp.LossScale.none(),
    }[kind]
    rule = dataclasses.replace(rule, skip_scope=scope, on_collapse="ignore")
    rng = np.random.default_rng(0)
    model, _, amp = ready(rule=rule)
    amp.step(entropy(model), *batch())
    params = list(model.parameters())
    for _ in range(50):
        before = [p.detach().clone() for p in params]
        amp.backward(entropy(model)(*batch()))
        hurt = params[rng.integers(len(params))].grad.view(-1)
        hurt[rng.integers(len(hurt))] = rng.choice([math.nan, math.inf, -math.inf])
        with amp.unguarded():  # changing scaled gradients is refused otherwise
            assert not amp.apply().stepped
        assert all(map(torch.equal, before, params))

"""What is torch's own: modules, optimizers and wrappers, and its defects failing beside ours."""

from __future__ import annotations

import copy
import dataclasses
import io
import math
from collections import OrderedDict, namedtuple

import numpy as np
import pytest

import mpcore as mp

torch = pytest.importorskip("torch")
from processors_torch import runs_lstm, with_lstm  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.nn.utils import parametrizations, rnn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

pytestmark = pytest.mark.backend("torch")

POLICIES = [
    "float32",
    "mixed_float16",
    "mixed_bfloat16",
    "model_float16",
    "model_bfloat16",
    "autocast_float16",
    "autocast_bfloat16",
]
LOW = [name for name in POLICIES if name != "float32"]
SCALED = mp.LossScale(init_scale=2.0**10)
OPTIMIZERS = ["SGD", "Adam", "AdamW", "Adagrad", "RMSprop", "NAdam", "Adafactor"]


@pytest.fixture(scope="module", autouse=True)
def _warm():
    """Pay once, outside the tests, for what torch imports at its first float16 step."""
    run(ready(model := nn.Linear(8, 4), "autocast_float16")[0], square(model), batch()[0])
    torch.amp.GradScaler("cpu").scale(torch.ones(()))


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def net():
    torch.manual_seed(1)
    layers = OrderedDict(
        fc1=nn.Linear(8, 16), bn=nn.BatchNorm1d(16), act=nn.ReLU(), fc2=nn.Linear(16, 4)
    )
    return nn.Sequential(layers)


def batch(number=0, rows=32):
    g = torch.Generator().manual_seed(number)
    return torch.randn(rows, 8, generator=g), torch.randint(4, (rows,), generator=g)


def ready(model, policy="float32", optimizer="SGD", lr=0.05, **options):
    """Return (amp, optimizer) for ``model``."""
    made = getattr(torch.optim, optimizer)(model.parameters(), lr=lr, **options)
    return mp.prepare(model, made, policy), made


def entropy(model):
    return lambda x, y: functional.cross_entropy(model(x), y)


def square(model):
    """A loss over whatever tensor the model returns first."""

    def loss(*inputs, **kwargs):
        out = model(*inputs, **kwargs)
        out = out if isinstance(out, torch.Tensor) else out[0]
        return out.float().pow(2).mean()

    return loss


def run(amp, loss_fn, *inputs, way="step", **options):
    """One step, whole or in its parts; the two must be the same."""
    if way == "step":
        return amp.step(loss_fn, *inputs, **options)
    with amp.autocast():
        loss = loss_fn(*inputs)
    amp.backward(loss)
    return amp.apply(**options)


both_ways = pytest.mark.parametrize("way", ["step", "parts"])


def copies(model, optimizer=None):
    taken = {name: value.clone() for name, value in model.state_dict().items()}
    if optimizer is not None:
        for number, (param, slots) in enumerate(optimizer.state.items()):
            taken[f"{number}"] = param.detach().clone()
            taken |= {f"{number}:{n}": torch.as_tensor(v).clone() for n, v in slots.items()}
    return taken


def assert_same(one, two):
    assert one.keys() == two.keys()
    for name in one:
        assert one[name].dtype == two[name].dtype, name
        np.testing.assert_array_equal(
            one[name].float().numpy(), two[name].float().numpy(), err_msg=name
        )


# --- the natives' defects, and ours beside them


def test_native_scaler_skips_the_step_but_keeps_batch_norm_broken():
    model = net()
    optimizer, scaler = torch.optim.SGD(model.parameters(), 0.1), torch.amp.GradScaler("cpu")
    x, y = batch()
    for _ in range(8):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = functional.cross_entropy(model(x * 1e6), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    assert scaler.get_scale() == 2.0**16 * 0.5**8  # all eight were skipped
    assert torch.isfinite(model.fc1.weight).all()
    assert not torch.isfinite(model.bn.running_mean).any()
    assert model.bn.num_batches_tracked == 8


@both_ways
@pytest.mark.parametrize("policy", ["mixed_float16", "autocast_float16", "model_float16"])
def test_forward_overflow_leaves_every_buffer_bit_equal(policy, way):
    model = net()
    amp, optimizer = ready(model, policy, momentum=0.9)
    x, y = batch()
    assert run(amp, entropy(model), x, y, way=way).stepped
    before = copies(model, optimizer)
    for _ in range(8):
        result = run(amp, entropy(model), x * 1e6, y, way=way)
        assert not result.stepped
        assert "forward pass" in result.reason
        assert_same(before, copies(model, optimizer))
    assert model.bn.num_batches_tracked == 1
    assert amp.state.skipped_steps == 8


def test_guard_holds_where_the_loss_calls_a_method_and_not_the_model():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = net()

        def training_loss(self, x, y):
            return functional.cross_entropy(self.body(x), y)

    model = Net()
    amp, _ = ready(model, "mixed_float16")
    x, y = batch()
    before = copies(model)
    assert not run(amp, model.training_loss, x * 1e6, y, way="parts").stepped
    assert_same(before, copies(model))


def test_native_scale_reaches_zero_and_then_writes_non_finite_weights():
    model = nn.Linear(2, 1)
    optimizer, scaler = torch.optim.SGD(model.parameters(), 0.1), torch.amp.GradScaler("cpu")
    for boost in [math.inf] * 166 + [1.0]:
        optimizer.zero_grad()
        scaler.scale(model(torch.ones(1, 2)).sum() * boost).backward()
        scaler.step(optimizer)
        scaler.update()
    assert scaler.get_scale() == 0.0
    assert not torch.isfinite(model.weight).any()


def test_scale_stays_at_the_floor_and_recovers():
    model = nn.Linear(2, 1)
    amp, _ = ready(model, mp.Policy().with_loss_scale(mp.LossScale(growth_interval=2)))
    loss = lambda boost: model(torch.ones(1, 2)).sum() * boost  # noqa: E731
    overflows = lambda: [amp.step(loss, math.inf).stepped for _ in range(166)]  # noqa: E731
    with pytest.warns(mp.MpcoreWarning, match="25 steps in a row were skipped"):
        assert not any(overflows())
    assert amp.scale == amp.policy.scaling.min_scale == 1.0
    assert [amp.step(loss, 1.0).next_scale for _ in range(4)] == [1.0, 2.0, 2.0, 4.0]
    assert torch.isfinite(model.weight).all()


def test_native_step_returns_nothing_and_ours_says_what_happened():
    model = net()
    optimizer, scaler = torch.optim.SGD(model.parameters(), 0.1), torch.amp.GradScaler("cpu")
    scaler.scale(entropy(model)(*batch())).backward()
    assert scaler.step(optimizer) is None
    amp, _ = ready(net(), "mixed_float16")
    good = amp.step(entropy(amp.model), *batch())
    assert (good.stepped, good.reason, good.culprit) == (True, None, None)
    bad = amp.step(lambda x, y: entropy(amp.model)(x, y) * 1e38, *batch())
    assert (bad.stepped, bad.scale, bad.next_scale) == (False, 2.0**16, 2.0**15)
    assert bad.culprit in bad.reason
    assert bad.culprit == "fc1.weight"


def test_native_scaler_refuses_float16_gradients():
    model = nn.Linear(8, 4).half()
    optimizer, scaler = torch.optim.SGD(model.parameters(), 0.1), torch.amp.GradScaler("cpu")
    scaler.scale(model(batch()[0].half()).float().mean()).backward()
    with pytest.raises(ValueError, match="Attempting to unscale FP16 gradients"):
        scaler.step(optimizer)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_pure_low_model_trains_on_masters_made_before_rounding(dtype):
    low = getattr(torch, dtype)
    model, twin = net(), net()
    amp, optimizer = ready(model, f"model_{dtype}", "Adam", lr=0.01)
    assert model.fc1.weight.dtype == low
    assert model.bn.weight.dtype == torch.float32
    master = amp.masters[model.fc1.weight]
    assert torch.equal(master, twin.fc1.weight)  # not rounded through 16 bits
    assert not torch.equal(master, model.fc1.weight.float())
    losses = [amp.step(entropy(model), *batch()).loss for _ in range(10)]
    assert losses[-1] < losses[0]
    assert model.fc1.weight.grad.dtype == low
    assert {p.dtype for g in optimizer.param_groups for p in g["params"]} == {torch.float32}
    assert torch.equal(amp.masters[model.fc1.weight].to(low), model.fc1.weight)


def test_float16_loss_of_one_element_overflows_natively_and_not_here():
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**15)
    native = nn.Parameter(torch.full((1,), 4.0, dtype=torch.float16))
    assert torch.isinf(scaler.scale(native)).all()
    model = nn.Linear(8, 1)
    rule = mp.LossScale(init_scale=2.0**15)
    amp, _ = ready(model, mp.Policy(compute="float16", output="float16", loss_scale=rule))
    result = amp.step(lambda: model(torch.full((1, 8), 1e-3)).reshape(1) * 0.5 + 4.0)
    assert result.stepped
    assert result.loss == pytest.approx(4.0, abs=0.5)


def test_native_clip_needs_an_unscale_and_a_second_one_is_an_error():
    model = net()
    optimizer, scaler = torch.optim.SGD(model.parameters(), 0.1), torch.amp.GradScaler("cpu")
    scaler.scale(entropy(model)(*batch())).backward()
    scaler.unscale_(optimizer)
    with pytest.raises(RuntimeError, match="unscale_\\(\\) has already been called"):
        scaler.unscale_(optimizer)


# --- bit equality with native where nothing overflows


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW"])
def test_autocast_float16_is_bit_equal_to_native_amp(name, fused):
    native, ours = net(), net()
    options = {"fused": fused} | ({"momentum": 0.9} if name == "SGD" else {})
    optimizer = getattr(torch.optim, name)(native.parameters(), lr=0.01, **options)
    scaler = torch.amp.GradScaler("cpu")
    policy = mp.Policy.named("autocast_float16").with_loss_scale(mp.LossScale())
    amp, own = ready(ours, policy, name, lr=0.01, **options)
    for number in range(20):
        x, y = batch(number)
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = functional.cross_entropy(native(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        result = amp.step(entropy(ours), x, y)
        assert result.stepped
        assert result.loss == loss.item()
        assert result.next_scale == scaler.get_scale()
    assert_same(copies(native, optimizer), copies(ours, own))


@both_ways
@pytest.mark.parametrize("clip", [None, 0.1])
def test_float32_policy_is_bit_equal_to_a_plain_loop(way, clip):
    plain, ours = net(), net()
    optimizer = torch.optim.Adam(plain.parameters(), 0.01)
    amp, own = ready(ours, "float32", "Adam", lr=0.01)
    for number in range(10):
        x, y = batch(number)
        optimizer.zero_grad()
        loss = functional.cross_entropy(plain(x), y)
        loss.backward()
        if clip is not None:
            norm = nn.utils.clip_grad_norm_(plain.parameters(), clip)
            assert norm > clip
        optimizer.step()
        result = run(amp, entropy(ours), x, y, way=way, clip_norm=clip)
        assert result.loss == loss.item()
    assert_same(copies(plain, optimizer), copies(ours, own))


def test_mixed_bfloat16_is_bit_equal_to_casts_written_by_hand():
    hand, ours = net(), net()
    optimizer = torch.optim.SGD(hand.parameters(), 0.05)
    amp, own = ready(ours, "mixed_bfloat16")
    low = torch.bfloat16

    def forward(x):
        fc1, fc2 = hand.fc1, hand.fc2
        h = functional.linear(x.to(low), fc1.weight.to(low), fc1.bias.to(low))
        h = functional.relu(hand.bn(h))  # low in, low out, float32 inside
        return functional.linear(h, fc2.weight.to(low), fc2.bias.to(low)).float()

    for number in range(10):
        x, y = batch(number)
        optimizer.zero_grad()
        loss = functional.cross_entropy(forward(x), y)
        loss.backward()
        optimizer.step()
        assert amp.step(entropy(ours), x, y).loss == loss.item()
    assert_same(copies(hand, optimizer), copies(ours, own))


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16", "autocast_float16"])
def test_clip_norm_is_that_of_the_float32_run(policy):
    plain, ours = net(), net()
    entropy(plain)(*batch()).backward()
    norm = nn.utils.clip_grad_norm_(plain.parameters(), 0.1).item()
    amp, _ = ready(ours, policy)
    tolerance = 1e-3 if "float16" in policy and "b" not in policy else 1e-2
    assert amp.step(entropy(ours), *batch(), clip_norm=0.1).grad_norm == pytest.approx(
        norm, rel=tolerance
    )
    clipped = math.sqrt(sum(float(p.grad.pow(2).sum()) for p in ours.parameters()))
    assert clipped == pytest.approx(0.1, rel=1e-4)


# --- the two ways, accumulation, misuse


@pytest.mark.parametrize("policy", POLICIES)
def test_the_two_ways_are_bit_equal(policy):
    states = []
    for way in ("step", "parts"):
        model = net()
        amp, optimizer = ready(model, policy, momentum=0.9)
        for number in range(4):
            x, y = batch(number)
            run(amp, entropy(model), x * (1e6 if number == 2 else 1), y, way=way, clip_norm=1.0)
        states.append(copies(model, optimizer))
    assert_same(*states)


@pytest.mark.parametrize("policy", ["float32", mp.Policy().with_loss_scale(SCALED)])
def test_micro_batches_equal_one_big_batch(policy):
    models = [nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    x, y = batch()
    big, _ = ready(models[0], policy)
    whole = big.step(entropy(models[0]), x, y)
    small, _ = ready(models[1], policy)
    for part in range(4):
        rows = slice(8 * part, 8 * part + 8)
        with small.autocast():
            loss = entropy(models[1])(x[rows], y[rows]) / 4
        small.backward(loss)
    result = small.apply()
    assert result.grad_norm == pytest.approx(whole.grad_norm, rel=1e-6)
    for one, two in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("bad", [0, 1, 2])
@pytest.mark.parametrize("policy", ["mixed_float16", "model_float16"])
def test_one_bad_micro_batch_skips_the_window_with_buffers_as_before_it(bad, policy):
    model = net()
    amp, optimizer = ready(model, policy)
    run(amp, entropy(model), *batch(), way="parts")
    before = copies(model, optimizer)
    for part in range(3):
        x, y = batch(part)
        with amp.autocast():
            loss = entropy(model)(x * (1e6 if part == bad else 1), y)
        amp.backward(loss)
    assert not amp.apply().stepped
    assert_same(before, copies(model, optimizer))
    assert run(amp, entropy(model), *batch(), way="parts").stepped
    assert model.bn.num_batches_tracked == 2


def test_apply_without_backward_is_refused():
    model = net()
    amp, _ = ready(model)
    with pytest.raises(mp.BackendError, match="`apply` must follow `backward`"):
        amp.apply()
    run(amp, entropy(model), *batch(), way="parts")
    with pytest.raises(mp.BackendError, match="`apply` must follow `backward`"):
        amp.apply()
    model(batch()[0])  # opens a step, but there is no loss
    with pytest.raises(mp.BackendError, match="`apply` must follow `backward`"):
        amp.apply()


def test_step_in_an_open_window_is_refused_until_it_is_given_up():
    model = net()
    amp, _ = ready(model)
    amp.backward(entropy(model)(*batch()))
    with pytest.raises(mp.BackendError, match=r"`step` must not be called while .* `abort_step`"):
        amp.step(entropy(model), *batch(1))
    amp.abort_step()
    assert amp.step(entropy(model), *batch(1)).stepped
    model(batch(2)[0])
    with pytest.raises(mp.BackendError, match="`apply` must follow `backward`"):
        amp.apply()


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16", "model_bfloat16"])
def test_gradient_of_an_unused_layer_does_not_linger(policy):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(8, 4), nn.Linear(8, 4)

        def forward(self, x, which):
            return getattr(self, which)(x)

    model = Net()
    amp, _ = ready(model, policy)
    x, _ = batch()
    amp.step(square(model), x, "a")
    before = model.a.weight.detach().clone()
    assert amp.step(square(model), x, "b").stepped
    assert torch.equal(model.a.weight, before)


@pytest.mark.parametrize("policy", POLICIES)
def test_frozen_layers_stay_and_the_rest_trains(policy):
    model = net()
    model.fc1.requires_grad_(False)
    amp, _ = ready(model, policy)
    before = copies(model)
    assert amp.step(entropy(model), *batch()).stepped
    after = copies(model)
    assert torch.equal(before["fc1.weight"], after["fc1.weight"])
    assert not torch.equal(before["fc2.weight"], after["fc2.weight"])


def test_optimizer_without_any_gradient_passes():
    model = net()
    optimizer = torch.optim.SGD(model.fc1.parameters(), 0.1)
    amp = mp.prepare(model, optimizer, "mixed_float16")
    model.fc1.requires_grad_(False)
    result = amp.step(entropy(model), *batch(), clip_norm=1.0)
    assert result.stepped
    assert result.grad_norm == 0.0


LOSSES = {
    "shape": (lambda out: out.mean(dim=0), r"`loss` must be a tensor with one element, got \(4,\)"),
    "float": (lambda out: float(out.detach().mean()), "one element, got float"),
    "none": (lambda out: None, "one element, got NoneType"),
    "detached": (lambda out: out.detach().mean(), "`loss` must depend on parameters"),
}


@both_ways
@pytest.mark.parametrize("case", LOSSES)
def test_bad_loss_is_a_clear_error_and_changes_nothing(case, way):
    reduce, message = LOSSES[case]
    model = net()
    amp, optimizer = ready(model, "mixed_float16", momentum=0.9)
    run(amp, entropy(model), *batch(), way=way)
    before, state = copies(model, optimizer), amp.state
    with pytest.raises(mp.BackendError, match=message):
        run(amp, lambda x, y: reduce(model(x)), *batch(), way=way)
    assert amp.state == state
    if way == "step":
        assert_same(before, copies(model, optimizer))
    assert run(amp, entropy(model), *batch(), way=way).stepped


@pytest.mark.parametrize("policy", ["mixed_float16", "autocast_float16", "model_float16"])
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_interrupted_loss_function_leaves_everything_as_it_was(error, policy):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.up = nn.ConvTranspose1d(8, 8, 1)
            self.bn = nn.BatchNorm1d(8)

        def forward(self, x, *, fail=False):
            self.bn(x)
            self.up.register_forward_pre_hook(lambda *_: None)
            out = self.up(x.unsqueeze(-1).expand(-1, -1, -1 if not fail else 2))
            if fail:
                raise error
            return out

    model = Net()
    amp, optimizer = ready(model, policy, momentum=0.9)
    x, _ = batch()
    amp.step(square(model), x)
    before = copies(model, optimizer)
    with pytest.raises(error):
        amp.step(lambda: model(x, fail=True))
    assert_same(before, copies(model, optimizer))
    assert not torch.is_autocast_enabled("cpu")
    assert isinstance(model.up.weight, nn.Parameter)
    assert amp.step(square(model), x).stepped


def test_parameters_come_back_when_a_layer_raises_inside_its_casts():
    model = nn.Sequential(nn.ConvTranspose1d(8, 8, 1))
    own = model[0].weight
    ready(model, "mixed_bfloat16")
    with pytest.raises(RuntimeError):
        model(torch.ones(2, 3, 4))
    assert model[0].weight is own


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("policy", POLICIES)
def test_non_finite_batch_is_skipped_and_named(policy, value):
    model = net()
    amp, optimizer = ready(model, policy)
    before = copies(model, optimizer)
    x, y = batch()
    x[3, 2] = value
    result = amp.step(entropy(model), x, y)
    assert not result.stepped
    assert result.reason
    assert_same(before, copies(model, optimizer))


@pytest.mark.parametrize("policy", [name for name in LOW if "autocast" not in name])
def test_float64_batch_is_cast_like_any_other(policy):
    model = net()
    amp, _ = ready(model, policy)
    x, y = batch()
    assert amp.step(entropy(model), x.double(), y).stepped
    assert model(x.double()).dtype == torch.float32
    with (  # the op list of torch leaves float64 alone
        pytest.raises(RuntimeError, match="must have the same dtype"),
        torch.autocast("cpu", torch.bfloat16),
    ):
        net()(x.double())


@pytest.mark.parametrize("size", [1e19, 1e20, 1e30])
def test_finite_gradients_whose_norm_overflows_are_taken(size):
    model = nn.Linear(4, 2, bias=False)
    amp, _ = ready(model, lr=1e-30)
    before = model.weight.detach().clone()
    result = amp.step(lambda: model(torch.ones(1, 4)).sum() * size)
    assert result.stepped
    torch.testing.assert_close(model.weight.detach(), before - 1e-30 * size)


def test_one_infinite_among_huge_gradients_is_seen():
    model = nn.Linear(4, 2, bias=False)
    amp, _ = ready(model)
    x = torch.tensor([[1e20, 1e20, math.inf, 1.0]])
    assert not amp.step(lambda: model(x).sum()).stepped


def test_overflow_that_only_the_unscaling_makes_is_skipped():
    rule = mp.LossScale(init_scale=2.0**-10, min_scale=2.0**-20)
    model = nn.Linear(4, 2, bias=False)
    nn.init.zeros_(model.weight)
    amp, _ = ready(model, mp.Policy().with_loss_scale(rule))
    # the scaled gradient is 1e36, the true one 1e39
    result = amp.step(lambda: (model(torch.full((1, 4), 1e20)) * 1e19).sum())
    assert not result.stepped
    assert result.loss == 0.0
    assert (model.weight == 0).all()
    assert amp.step(lambda: (model(torch.full((1, 4), 1e20)) * 1e17).sum()).stepped


# --- rules


def watch(model):
    seen = {}
    for path, module in model.named_modules():

        def hook(_module, _args, out, path=path):
            seen[path] = str(out.dtype).removeprefix("torch.")

        module.register_forward_hook(hook)
    return seen


def test_rule_takes_one_layer_out_of_the_autocast_region():
    model = net()
    amp, _ = ready(model, mp.Policy.named("autocast_bfloat16").full("fc1"))
    seen = watch(model)
    assert amp.step(entropy(model), *batch()).stepped
    assert (seen["fc1"], seen["fc2"], seen[""]) == ("float32", "bfloat16", "float32")


def test_rule_in_the_region_reaches_a_layer_called_by_keyword_only():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 4)

        def forward(self, *, x):
            return self.b(input=self.a(input=x))

    model = Net()
    amp, _ = ready(model, mp.Policy.named("autocast_bfloat16").full("b"))
    seen = watch(model)
    amp.step(lambda x: model(x=x).pow(2).mean(), batch()[0])
    assert (seen["a"], seen["b"]) == ("bfloat16", "float32")


@pytest.mark.parametrize("base", ["float32", "mixed_bfloat16", "autocast_bfloat16"])
def test_rule_with_a_dtype_of_its_own_is_observed(base):
    model = net()
    policy = mp.Policy.parse(f"{base}; float16 path=fc2")
    amp, _ = ready(model, policy)
    seen = watch(model)
    assert amp.step(entropy(model), *batch()).stepped
    first = "float32" if base == "float32" else "bfloat16"
    assert (seen["fc1"], seen["fc2"]) == (first, "float16")


def test_rule_on_a_model_of_low_parameters_keeps_that_layer_float32():
    model = net()
    amp, _ = ready(model, mp.Policy.named("model_bfloat16").full("fc2"))
    assert model.fc2.weight.dtype == torch.float32
    assert model.fc1.weight.dtype == torch.bfloat16
    assert amp.step(entropy(model), *batch()).stepped
    assert amp.plan["fc2"].param == "float32"


# --- optimizers


def groups_of(model, lr):
    return [
        {"params": model.fc1.parameters(), "lr": lr, "weight_decay": 0.1},
        {"params": model.fc2.parameters(), "lr": lr / 10},
    ]


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "model_bfloat16"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizer_with_groups_scheduler_and_resumption(name, policy):
    kind = getattr(torch.optim, name)

    def start():
        model = net()
        optimizer = kind(groups_of(model, 0.01), lr=0.01)
        amp = mp.prepare(model, optimizer, policy)
        optimizer.add_param_group({"params": model.bn.parameters(), "lr": 0.5})
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        return model, optimizer, amp, schedule

    def train(model, amp, schedule, numbers):
        losses = []
        for number in numbers:
            result = amp.step(entropy(model), *batch(number))
            if result.stepped:
                schedule.step()
            losses.append(result.loss)
        return losses

    model, optimizer, amp, schedule = start()
    train(model, amp, schedule, range(3))
    assert [group["lr"] for group in optimizer.param_groups] == [
        pytest.approx(lr / 8) for lr in (0.01, 0.001, 0.5)
    ]
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict(), schedule.state_dict()))
    masters = {p: m.detach().clone() for p, m in amp.masters.items()}
    expected = train(model, amp, schedule, range(3, 6))

    again, optimizer2, amp2, schedule2 = start()
    again.load_state_dict(saved[0])
    optimizer2.load_state_dict(saved[1])
    schedule2.load_state_dict(saved[2])
    by_name = dict(model.named_parameters())
    for path, param in again.named_parameters():  # masters are not in torch's own checkpoint
        if param in amp2.masters:
            amp2.masters[param].data.copy_(masters[by_name[path]])
    assert train(again, amp2, schedule2, range(3, 6)) == expected
    assert_same(copies(model, optimizer), copies(again, optimizer2))


@pytest.mark.parametrize("form", ["parameter", "generator", "named"])
@pytest.mark.parametrize("policy", ["mixed_float16", "model_float16"])
def test_group_added_after_prepare_trains(policy, form):
    model = net()
    optimizer = torch.optim.SGD(model.fc2.named_parameters(), 0.05)
    if form != "named":
        optimizer = torch.optim.SGD(model.fc2.parameters(), 0.05)
    amp = mp.prepare(model, optimizer, policy)
    params = {
        "parameter": model.fc1.weight,
        "generator": model.fc1.parameters(),
        "named": model.fc1.named_parameters(),
    }[form]
    optimizer.add_param_group({"params": params})
    before = model.fc1.weight.detach().clone()
    result = amp.step(entropy(model), *batch(), keep_grads=True)
    assert result.stepped
    assert not torch.equal(before, model.fc1.weight)
    step = before.float() - model.fc1.weight.float()
    error = 0.05 * result.grads["fc1.weight"] - step  # the weights are rounded, the step is not
    assert error.abs().max() <= 2.0**-10


def test_state_made_before_prepare_moves_to_low_parameters_without_masters():
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    entropy(model)(*batch()).backward()
    optimizer.step()
    policy = mp.Policy(param="bfloat16", compute="bfloat16", by="model")
    amp = mp.prepare(model, optimizer, policy)
    assert not amp.masters
    assert amp.step(entropy(model), *batch()).stepped
    assert optimizer.state[model.fc1.weight]["exp_avg"].dtype == torch.bfloat16
    assert optimizer.state[model.fc1.weight]["step"] == 2


def test_state_made_before_prepare_stays_with_the_masters():
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    entropy(model)(*batch()).backward()
    optimizer.step()
    amp = mp.prepare(model, optimizer, "model_bfloat16")
    assert amp.step(entropy(model), *batch()).stepped
    assert optimizer.state[amp.masters[model.fc1.weight]]["step"] == 2


@pytest.mark.parametrize("policy", ["model_float16", "model_bfloat16"])
def test_loading_weights_reaches_the_masters_unrounded(policy):
    model, other = net(), nn.Sequential(OrderedDict(net().named_children()))
    nn.init.normal_(other.fc1.weight)
    amp, _ = ready(model, policy, lr=0.0)
    model.load_state_dict(other.state_dict())
    assert torch.equal(amp.masters[model.fc1.weight], other.fc1.weight)
    amp.step(entropy(model), *batch())
    assert torch.equal(model.fc1.weight, other.fc1.weight.to(model.fc1.weight.dtype))
    model.fc1.load_state_dict(net().fc1.state_dict())  # a part of the model alone
    assert torch.equal(amp.masters[model.fc1.weight], net().fc1.weight)


@pytest.mark.parametrize("policy", POLICIES)
def test_scheduler_that_follows_real_steps_is_not_warned_about(policy):
    model = net()
    amp, optimizer = ready(model, policy)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    loss = lambda boost: entropy(model)(*batch()) * boost  # noqa: E731
    for boost in (math.inf, 1.0, math.inf, 1.0):
        if amp.step(loss, boost).stepped:
            schedule.step()
    assert optimizer.param_groups[0]["lr"] == 0.05 / 4


# --- modules


class Calls(nn.Module):
    """A model given by its parts and a function of them and the input."""

    def __init__(self, function, **parts):
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)
        self.function = function

    def forward(self, *args, **kwargs):
        return self.function(self, *args, **kwargs)


class Scale(nn.Module):
    """A leaf of nobody's category."""

    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.seen = None

    def forward(self, x):
        self.seen = (x.dtype, self.weight.dtype)
        return x * self.weight


class AdaNorm(nn.LayerNorm):
    """A norm with a second input."""

    def forward(self, x, shift):
        return super().forward(x) + shift


class LowRank(nn.Linear):
    """A layer of a known category with layers inside."""

    def __init__(self, a, b):
        super().__init__(a, b)
        self.down, self.up = nn.Linear(a, 2, bias=False), nn.Linear(2, b, bias=False)

    def forward(self, x):
        return super().forward(x) + self.up(self.down(x))


def attend(m, x):
    mask = torch.zeros(3, 3).masked_fill(torch.triu(torch.ones(3, 3), 1).bool(), -math.inf)
    pad = torch.tensor([[False, False, True], [False, False, False]])
    h = m.pre(x)
    out, weights = m.attn(
        query=h,
        key=h,
        value=h,
        need_weights=True,
        average_attn_weights=False,
        attn_mask=mask,
        key_padding_mask=torch.zeros(2, 3).masked_fill(pad, -math.inf),
    )
    assert out.dtype == weights.dtype
    return m.post(out)


def tower(*layers):
    return nn.Sequential(nn.Linear(8, 8), *layers, nn.Linear(8, 4))


def images(layer, dims):
    size = (2, 3) + (6,) * dims
    convs = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
    return nn.Sequential(convs[dims](3, 3, 1), layer), torch.randn(size)


def sequence(function=None, **parts):
    return Calls(function, **parts), torch.randn(2, 3, 8)


def reused():
    one = nn.Linear(8, 8)
    block = nn.Sequential(one, nn.ReLU())
    return nn.Sequential(block, one, nn.Sequential(block, nn.Linear(8, 4)))


def tied():
    model = nn.Sequential(OrderedDict(embed=nn.Embedding(11, 8), head=nn.Linear(8, 11, False)))
    model.head.weight = model.embed.weight
    return model


def packed(m, x):
    h = rnn.pack_padded_sequence(m.pre(x), torch.tensor([3, 2]), batch_first=True)
    return rnn.pad_packed_sequence(m.rnn(h)[0], batch_first=True)[0]


def gain(layer):
    return parametrizations.weight_norm(layer)


def spectral(layer):
    return parametrizations.spectral_norm(layer)


TOKENS = torch.tensor([[1, 2, 3], [4, 1, 1]])
MODULES = {
    "conv1d": lambda: images(nn.Conv1d(3, 4, 3), 1),
    "conv2d": lambda: images(nn.Conv2d(3, 4, 3, padding="same"), 2),
    "conv3d": lambda: images(nn.Conv3d(3, 4, 3), 3),
    "circular": lambda: images(nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular"), 2),
    "reflect": lambda: images(nn.Conv1d(3, 4, 3, padding=1, padding_mode="reflect"), 1),
    "conv_transpose": lambda: images(nn.ConvTranspose2d(3, 4, 3), 2),
    "batch_norm2d": lambda: images(nn.BatchNorm2d(3), 2),
    "group_norm": lambda: images(nn.GroupNorm(3, 3), 2),
    "instance_norm": lambda: images(nn.InstanceNorm2d(3, affine=True, track_running_stats=True), 2),
    "local_response_norm": lambda: images(nn.LocalResponseNorm(2), 2),
    "layer_norm": lambda: (tower(nn.LayerNorm(8)), batch()[0]),
    "rms_norm": lambda: (tower(nn.RMSNorm(8)), batch()[0]),
    "norm_with_two_inputs": lambda: sequence(
        lambda m, x: m.norm(m.fc(x), 0.5), fc=nn.Linear(8, 8), norm=AdaNorm(8)
    ),
    "prelu": lambda: (tower(nn.PReLU()), batch()[0]),
    "bilinear": lambda: sequence(
        lambda m, x: m.bi(m.fc(x), x), fc=nn.Linear(8, 8), bi=nn.Bilinear(8, 8, 4)
    ),
    "lstm": lambda: sequence(
        lambda m, x: m.rnn(m.pre(x))[0],
        pre=nn.Linear(8, 8),
        rnn=nn.LSTM(8, 5, 2, batch_first=True, bidirectional=True),
    ),
    "lstm_with_state": lambda: sequence(
        lambda m, x: m.rnn(x, (torch.zeros(1, 2, 5), torch.zeros(1, 2, 5)))[1][0],
        rnn=nn.LSTM(8, 5, batch_first=True),
    ),
    "gru": lambda: sequence(
        lambda m, x: m.rnn(m.pre(x))[0],
        pre=nn.Linear(8, 8),
        rnn=nn.GRU(8, 5, batch_first=True, bidirectional=True),
    ),
    "packed": lambda: sequence(packed, pre=nn.Linear(8, 8), rnn=nn.GRU(8, 5, batch_first=True)),
    "gru_cell": lambda: sequence(lambda m, x: m.cell(x[0]), cell=nn.GRUCell(8, 5)),
    "attention": lambda: sequence(
        attend,
        pre=nn.Linear(8, 8),
        attn=nn.MultiheadAttention(8, 2, batch_first=True),
        post=nn.Linear(8, 4),
    ),
    "attention_own_widths": lambda: sequence(
        lambda m, x: m.attn(x, x[..., :4], x[..., :6])[0],
        attn=nn.MultiheadAttention(8, 2, kdim=4, vdim=6, batch_first=True),
    ),
    "encoder_layer": lambda: (
        nn.Sequential(nn.Linear(8, 8), nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)),
        torch.randn(2, 3, 8),
    ),
    "encoder": lambda: (
        nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2),
        torch.randn(2, 3, 8),
    ),
    "transformer": lambda: sequence(
        lambda m, x: m.t(x, x), t=nn.Transformer(8, 2, 1, 1, 16, batch_first=True)
    ),
    "embedding_bag": lambda: (nn.Sequential(nn.EmbeddingBag(11, 8), nn.Linear(8, 4)), TOKENS),
    "weighted_bag": lambda: (
        Calls(
            lambda m, t: m.bag(t, per_sample_weights=m.fc(torch.ones(2, 3))),
            bag=nn.EmbeddingBag(11, 8, mode="sum"),
            fc=nn.Linear(3, 3),
        ),
        TOKENS,
    ),
    "tied": lambda: (tied(), TOKENS),
    "weight_norm": lambda: (tower(gain(nn.Linear(8, 8))), batch()[0]),
    "weight_norm_transposed": lambda: images(gain(nn.ConvTranspose2d(3, 4, 3)), 2),
    "spectral_norm": lambda: (tower(spectral(nn.Linear(8, 8))), batch()[0]),
    "spectral_norm_transposed": lambda: images(spectral(nn.ConvTranspose2d(3, 4, 3)), 2),
    "spectral_norm_hook": lambda: images(
        nn.Sequential(
            nn.utils.spectral_norm(nn.ConvTranspose2d(3, 4, 3)),
            nn.utils.spectral_norm(nn.Conv2d(4, 4, 3)),
        ),
        2,
    ),
    "orthogonal": lambda: (tower(parametrizations.orthogonal(nn.Linear(8, 8))), batch()[0]),
    "custom_leaf": lambda: (tower(Scale(8)), batch()[0]),
    "low_rank": lambda: (tower(LowRank(8, 8)), batch()[0]),
    "reused": lambda: (reused(), batch()[0]),
    "called_twice": lambda: sequence(lambda m, x: m.fc(m.fc(x)), fc=nn.Linear(8, 8)),
    "module_list": lambda: sequence(
        lambda m, x: sum(layer(x) for layer in m.all) + m.named["a"](x),
        all=nn.ModuleList([nn.Linear(8, 4), nn.Linear(8, 4)]),
        named=nn.ModuleDict({"a": nn.Linear(8, 4)}),
    ),
    "own_parameter": lambda: sequence(
        lambda m, x: m.fc(m.norm(x + m.table)),
        table=nn.Parameter(torch.zeros(3, 8)),
        norm=nn.LayerNorm(8),
        fc=nn.Linear(8, 4),
    ),
    "one_linear": lambda: (nn.Linear(8, 4), batch()[0]),
    "one_lstm": lambda: (nn.LSTM(8, 4, batch_first=True), torch.randn(2, 3, 8)),
    "one_attention": lambda: (
        Calls(lambda m, x: m.attn(x, x, x)[0], attn=nn.MultiheadAttention(8, 2)),
        torch.randn(3, 2, 8),
    ),
}


# Torch's op list leaves these alone, so that they meet inputs of two dtypes.
NATIVE_FAILS = ("bilinear", "weighted_bag")


def lstm_in_region(model, policy):
    lstm = any(isinstance(m, nn.LSTM) for m in model.modules())
    return lstm and policy.startswith("autocast")


def natively_trains(model, x, dtype):
    """With avx512_fp16 oneDNN runs float16 LSTMs; trains those alone whose inputs are float16."""
    try:
        with torch.autocast("cpu", getattr(torch, dtype)):
            model(x)
    except RuntimeError:
        return False
    return True


@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")  # autocast's own
@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("case", MODULES)
def test_module_trains_evaluates_and_stays_near_float32(case, policy):
    model, x = MODULES[case]()
    twin = copy.deepcopy(model)
    if case in NATIVE_FAILS and policy.startswith("autocast"):
        with (
            torch.autocast("cpu", getattr(torch, policy.removeprefix("autocast_"))),
            pytest.raises(RuntimeError, match=r"same (dtype|type)"),
        ):
            model(x)
        return
    region = policy.removeprefix("autocast_")
    if lstm_in_region(model, policy) and not runs_lstm(region):
        with pytest.raises(mp.BackendError, match=r"LSTM.*use by='layer'.* or the rule"):
            ready(model, policy)
        return
    if lstm_in_region(model, policy) and not natively_trains(model, x, region):
        amp, _ = ready(model, policy)
        with pytest.raises(RuntimeError, match="primitive descriptor for the LSTM"):
            amp.step(square(model), x)
        return
    if policy.endswith("_float16"):
        policy = mp.Policy.named(policy).with_loss_scale(SCALED)
    amp, optimizer = ready(model, policy, lr=0.01, momentum=0.9)
    plain, _ = ready(twin, "float32", lr=0.01, momentum=0.9)
    # no dropout: the two draw different numbers in different formats
    for module in (*model.modules(), *twin.modules()):
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if isinstance(module, nn.MultiheadAttention):
            module.dropout = 0.0
    loss = []
    for _ in range(3):
        loss.append((amp.step(square(model), x).loss, plain.step(square(twin), x).loss))
    assert amp.state.skipped_steps == 0
    for got, want in loss:
        assert got == pytest.approx(want, rel=0.05, abs=1e-3)
    for group in optimizer.param_groups:
        for param in group["params"]:
            assert param.dtype == torch.float32
    for param in model.parameters():
        assert param.grad is None or param.grad.dtype == param.dtype
    model.eval()
    with torch.no_grad(), amp.autocast():
        out = model(x)
    assert (out if isinstance(out, torch.Tensor) else out[0]).dtype == torch.float32


@pytest.mark.parametrize("policy", POLICIES)
def test_skipped_step_leaves_spectral_vectors_alone(policy):
    model = tower(spectral(nn.Linear(8, 8)))
    amp, _ = ready(model, policy)
    before = copies(model)
    assert not amp.step(lambda x: square(model)(x) * math.inf, batch()[0]).stepped
    assert_same(before, copies(model))


def test_float32_gradients_reach_the_float32_weights_of_a_low_lstm():
    model = nn.LSTM(8, 4, batch_first=True, bidirectional=True)
    amp, _ = ready(model, "mixed_bfloat16")
    result = amp.step(square(model), torch.randn(2, 3, 8), keep_grads=True)
    assert {g.dtype for g in result.grads.values()} == {torch.float32}
    assert set(result.grads) == {name for name, _ in model.named_parameters()}
    assert all(p is q for p, q in zip(model._flat_weights, model.parameters(), strict=True))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype")
def test_native_encoder_fails_on_padding_in_a_cpu_autocast_region():
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)
    pad = torch.tensor([[False, False, True], [False, True, True]])
    model.eval()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        x = torch.randn(2, 3, 8)
        with pytest.raises(RuntimeError, match="expected scalar type"):
            model(x, src_key_padding_mask=pad)


@pytest.mark.parametrize("policy", LOW)
def test_encoder_in_evaluation_is_the_encoder_in_training(policy):
    model = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0), 2
    )
    amp, _ = ready(model, policy)
    pad = torch.tensor([[False, False, True], [False, False, False]])
    x = torch.randn(2, 3, 8)
    outs = []
    for mode in (True, False):
        model.train(mode)
        with torch.no_grad(), amp.autocast():
            outs.append(model(x, src_key_padding_mask=pad))
    assert torch.equal(outs[0][~pad], outs[1][~pad])


@pytest.mark.parametrize("kind", ["attention", "encoder_layer"])
def test_root_that_is_cast_as_one(kind):
    roots = {
        "attention": nn.MultiheadAttention(8, 2, batch_first=True),
        "encoder_layer": nn.TransformerEncoderLayer(8, 2, 16, batch_first=True),
    }
    for policy in LOW:
        model = copy.deepcopy(roots[kind])
        amp, _ = ready(model, policy)
        x = torch.randn(2, 3, 8)
        inputs = (x, x, x) if kind == "attention" else (x,)
        assert amp.step(square(model), *inputs).stepped
    plan = mp.explain(nn.MultiheadAttention(8, 2), "mixed_bfloat16")
    assert [(e.path, e.compute) for e in plan.layers] == [("", "bfloat16")]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", ["SparseAdam", "SGD"])
def test_sparse_embedding_gradients_train_and_skip(policy, name):
    model = nn.Sequential(nn.Embedding(11, 8, sparse=True))
    amp, _ = ready(model, policy, name, lr=1.0)
    loss = lambda boost: square(model)(TOKENS) * boost  # noqa: E731
    before = model[0].weight.detach().clone()
    assert not amp.step(loss, math.inf).stepped
    assert torch.equal(before, model[0].weight)
    result = amp.step(loss, 1.0, clip_norm=0.5, keep_grads=True)
    assert result.stepped
    assert result.grads["0.weight"].is_sparse
    assert torch.equal(before[7], model[0].weight[7])
    assert not torch.equal(before[1], model[0].weight[1])


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "model_bfloat16", "autocast_bfloat16"])
def test_weight_read_past_its_layer_meets_low_inputs_only_by_layer(policy):
    model = Calls(
        lambda m, t: functional.linear(m.norm(m.embed(t)), m.embed.weight),
        embed=nn.Embedding(11, 8),
        norm=nn.LayerNorm(8),
    )
    amp, _ = ready(model, policy)
    if policy == "mixed_bfloat16":  # no layer, so no cast: give both to layers, or use by="op"
        with pytest.raises(RuntimeError, match="expected m1 and m2 to have the same dtype"):
            amp.step(square(model), TOKENS)
    else:
        assert amp.step(square(model), TOKENS).stepped


@pytest.mark.parametrize("policy", LOW)
def test_gradient_penalty_goes_through_the_casts_twice(policy):
    def penalty(model):
        def loss(x):
            x = x.clone().requires_grad_()
            (grad,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
            return (grad.norm(dim=1) - 1).pow(2).mean()

        return loss

    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    plain = copy.deepcopy(model)
    amp, _ = ready(model, policy)
    x, _ = batch()
    expected = penalty(plain)(x).item()
    result = amp.step(penalty(model), x)
    assert result.loss == pytest.approx(expected, rel=0.05)
    assert result.stepped


@pytest.mark.parametrize("policy", LOW)
def test_functional_call_runs_on_the_weights_that_it_is_given(policy):
    model = nn.Sequential(nn.Linear(8, 8), nn.ConvTranspose1d(4, 4, 1))
    ready(model, policy)
    zeros = {name: torch.zeros_like(param) for name, param in model.named_parameters()}
    x = torch.randn(2, 4, 8)
    assert model(x).abs().sum() > 0
    assert torch.func.functional_call(model, zeros, (x,)).abs().sum() == 0


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "model_bfloat16", "autocast_bfloat16"])
def test_tied_weights_stay_one_parameter_and_get_both_gradients(policy):
    model, plain = tied(), tied()
    plain.load_state_dict(model.state_dict())
    amp, optimizer = ready(model, policy)
    assert model.embed.weight is model.head.weight
    assert len(optimizer.param_groups[0]["params"]) == 1
    loss = lambda m: functional.cross_entropy(m(TOKENS).reshape(6, 11), TOKENS.reshape(6))  # noqa: E731
    result = amp.step(lambda: loss(model), keep_grads=True)
    loss(plain).backward()
    torch.testing.assert_close(
        result.grads["embed.weight"], plain.embed.weight.grad, rtol=0.05, atol=0.02
    )
    assert model.embed.weight is model.head.weight


def test_tied_weight_that_one_layer_wants_full_is_float32_for_both():
    model, plain = tied(), tied()
    plain.load_state_dict(model.state_dict())
    amp, _ = ready(model, mp.Policy.named("model_bfloat16").full("head"))
    assert model.embed.weight is model.head.weight
    assert model.head.weight.dtype == torch.float32
    loss = lambda m: functional.cross_entropy(m(TOKENS).reshape(6, 11), TOKENS.reshape(6))  # noqa: E731
    result = amp.step(lambda: loss(model), keep_grads=True)
    loss(plain).backward()
    torch.testing.assert_close(
        result.grads["embed.weight"], plain.embed.weight.grad, rtol=0.05, atol=0.02
    )


def test_custom_leaf_runs_in_float32_and_an_activation_in_what_comes_in():
    model = tower(Scale(8), nn.PReLU())
    ready(model, "mixed_bfloat16")
    seen = watch(model)
    model(batch()[0])
    assert model[1].seen == (torch.float32, torch.float32)
    assert (seen["0"], seen["1"], seen["2"]) == ("bfloat16", "float32", "float32")


@pytest.mark.parametrize("low", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "norm",
    [
        nn.BatchNorm2d(3),
        nn.InstanceNorm2d(3, affine=True, track_running_stats=True),
        nn.GroupNorm(3, 3),
        nn.LayerNorm(4),
        nn.RMSNorm(4),
        nn.LocalResponseNorm(2),
    ],
    ids=lambda norm: type(norm).__name__,
)
def test_norm_computes_in_float32_and_rounds_once(norm, low):
    name = str(low).removeprefix("torch.")
    model, twin = nn.Sequential(copy.deepcopy(norm)), copy.deepcopy(norm)
    for param in (*model.parameters(), *twin.parameters()):
        torch.manual_seed(3)
        nn.init.normal_(param)
    ready(nn.Sequential(model, nn.Linear(4, 4)), f"mixed_{name}")
    x = (torch.randn(2, 3, 4, 4) * 300).to(low)  # squares leave the range of float16
    out = model(x)
    assert out.dtype == low
    assert torch.equal(out, twin(x.float()).to(low))
    # Sums run in another order in the kernel that reads 16 bits: the last digit may differ.
    for one, two in zip(model[0].buffers(), twin.buffers(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-6, atol=1e-6)


Pair = namedtuple("Pair", "first second")


@dataclasses.dataclass(frozen=True)
class Output:
    logits: torch.Tensor
    steps: int = 3


class Record(OrderedDict):
    """A dict with attributes, as model libraries return them."""

    @property
    def logits(self):
        return self["logits"]


OUTPUTS = {
    "tuple": (lambda h: (h, 1, None), lambda out: out[0]),
    "list": (lambda h: [h, "a"], lambda out: out[0]),
    "dict": (lambda h: {"logits": h}, lambda out: out["logits"]),
    "namedtuple": (lambda h: Pair(h, torch.tensor(3)), lambda out: out.first),
    "dataclass": (lambda h: Output(h), lambda out: out.logits),
    "dict with attributes": (lambda h: Record(logits=h), lambda out: out.logits),
    "nested": (lambda h: {"a": [Pair(h, (h,))]}, lambda out: out["a"][0].second[0]),
    "structseq": (lambda h: h.max(dim=1), lambda out: out.values),
}


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "model_bfloat16", "autocast_bfloat16"])
@pytest.mark.parametrize("case", OUTPUTS)
def test_output_of_any_kind_keeps_its_type_and_is_float32(case, policy):
    wrap, pick = OUTPUTS[case]
    model = Calls(lambda m, x: wrap(m.fc(x)), fc=nn.Linear(8, 4))
    kind = type(wrap(torch.ones(2, 2)))
    amp, _ = ready(model, policy)
    x, _ = batch()
    with amp.autocast():
        out = model(x)
    assert type(out) is kind
    assert pick(out).dtype == torch.float32
    assert amp.step(lambda: pick(model(x)).pow(2).mean()).stepped


def test_integers_and_masks_pass_through_uncast():
    seen = {}

    def forward(m, *, tokens, mask, x):
        seen.update(tokens=tokens.dtype, mask=mask.dtype)
        return (m.embed(tokens) * mask.unsqueeze(-1) + m.fc(input=x)).mean(1)

    model = Calls(forward, embed=nn.Embedding(11, 8), fc=nn.Linear(8, 8))
    amp, _ = ready(model, "mixed_float16")
    loss = lambda: model(tokens=TOKENS, mask=TOKENS > 1, x=torch.randn(2, 3, 8)).pow(2).mean()  # noqa: E731
    assert amp.step(loss).stepped
    assert seen == {"tokens": torch.int64, "mask": torch.bool}


@both_ways
@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("policy", POLICIES)
def test_activation_checkpointing_gives_the_same_gradients(policy, reentrant, way):
    def forward(m, x):
        h = m.fc1(x)
        h = checkpoint(m.block, h, use_reentrant=reentrant) if m.use else m.block(h)
        return m.fc2(h)

    results, buffers = [], []
    for use in (False, True):
        torch.manual_seed(5)
        block = nn.Sequential(nn.Conv1d(8, 8, 1), nn.ConvTranspose1d(8, 8, 1), nn.BatchNorm1d(8))
        model = Calls(forward, fc1=nn.Linear(4, 4), block=block, fc2=nn.Linear(4, 4))
        model.use = use
        amp, _ = ready(model, policy)
        x = torch.randn(4, 8, 4, generator=torch.Generator().manual_seed(9))
        results.append(run(amp, square(model), x, way=way, keep_grads=True))
        before = copies(model)
        assert not run(amp, square(model), x * math.nan, way=way).stepped
        buffers.append((before, copies(model)))
    for name, grad in results[0].grads.items():
        assert torch.equal(grad, results[1].grads[name]), name
    for before, after in buffers:
        assert_same(before, after)


@pytest.mark.parametrize("reentrant", [False, True])
def test_guard_holds_where_the_whole_model_is_checkpointed(reentrant):
    model = net()
    amp, _ = ready(model, "mixed_float16")
    x, y = batch()
    before = copies(model)
    bad = (x * 1e6).requires_grad_()  # the reentrant kind needs an input with a gradient
    with amp.autocast():
        loss = functional.cross_entropy(checkpoint(model, bad, use_reentrant=reentrant), y)
    amp.backward(loss)
    assert not amp.apply().stepped
    assert_same(before, copies(model))


def test_guard_knows_buffers_that_come_go_and_cannot_be_written():
    class Tracker(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("late", None)
            self.register_buffer("early", torch.ones(3))
            self.register_buffer("wide", torch.ones(1).expand(3))
            self.register_buffer("hidden", torch.zeros(()), persistent=False)

        def forward(self, x):
            self.late = x.detach().mean() if self.late is None else self.late + 1
            self.early = None if self.early is not None else torch.zeros(2)
            self.hidden += 1
            return x * self.wide[0]

    model = tower(Tracker())
    amp, _ = ready(model, "mixed_bfloat16")
    x, _ = batch()
    loss = lambda boost: square(model)(x) * boost  # noqa: E731
    tracker = model[1]
    assert not amp.step(loss, math.nan).stepped
    assert (tracker.late, tracker.hidden.item()) == (None, 0.0)
    assert torch.equal(tracker.early, torch.ones(3))
    assert amp.step(loss, 1.0).stepped
    late = tracker.late
    assert not amp.step(loss, math.nan).stepped
    assert tracker.late is late
    assert (tracker.early, tracker.hidden.item()) == (None, 1.0)


# --- copies, files, evaluation


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("root", ["net", "linear", "lstm"])
def test_copy_of_the_model_uses_its_own_weights_and_begins_no_step(policy, root):
    if root == "lstm" and policy.startswith("autocast"):
        policy = with_lstm("autocast_bfloat16")
    model = {"net": net, "linear": lambda: nn.Linear(8, 4), "lstm": lambda: nn.LSTM(8, 4)}[root]()
    amp, _ = ready(model, policy)
    x, _ = batch()
    average = copy.deepcopy(model)
    with torch.no_grad():
        for param in average.parameters():
            param.zero_()
    average(x)
    assert amp._tx._open is None
    average.eval()
    with torch.no_grad():
        out = average(x)
    assert (out if root != "lstm" else out[0]).abs().sum() == 0
    assert amp.step(square(model), x).stepped
    assert all(param.abs().sum() == 0 for param in average.parameters())
    average.load_state_dict(model.state_dict())
    assert torch.equal(
        next(iter(average.parameters())).float(), next(iter(model.parameters())).float()
    )


def test_averaged_model_of_torch_follows_a_prepared_one():
    model = net()
    amp, _ = ready(model, "mixed_bfloat16")
    average = torch.optim.swa_utils.AveragedModel(model)
    for number in range(3):
        amp.step(entropy(model), *batch(number))
        average.update_parameters(model)
    average.eval()
    model.eval()
    assert average(batch()[0]).dtype == torch.float32
    assert not torch.equal(average(batch()[0]), model(batch()[0]))


@pytest.mark.parametrize("policy", POLICIES)
def test_state_dict_goes_through_a_file(policy):
    model, other = net(), net()
    amp, _ = ready(model, policy)
    amp.step(entropy(model), *batch())
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    assert set(model.state_dict()) == set(net().state_dict())
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(one.float(), two)


@pytest.mark.parametrize("policy", POLICIES)
def test_pickled_model_has_its_values_and_can_be_prepared(policy):
    model = net()
    amp, _ = ready(model, policy)
    amp.step(entropy(model), *batch())
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    twin = torch.load(file, weights_only=False)
    assert_same(copies(twin), copies(model))
    if amp.policy.by != "model":
        ready(twin, policy)


@pytest.mark.parametrize("policy", POLICIES)
def test_evaluation_returns_float32_and_opens_no_step(policy):
    model = net()
    amp, _ = ready(model, policy)
    x, _ = batch()
    model.eval()
    with amp.autocast():
        assert model(x).dtype == torch.float32
    model.train()
    with torch.no_grad(), amp.autocast():
        model(x)
    assert amp._tx._open is None


@both_ways
def test_forward_pass_for_a_log_does_not_move_the_guard(way):
    model = net()
    amp, _ = ready(model, "mixed_float16")
    with torch.no_grad():
        model(batch(1)[0])  # counts, as it does without mpcore
    before = copies(model)
    x, y = batch()
    assert not run(amp, entropy(model), x * 1e6, y, way=way).stepped
    assert_same(before, copies(model))
    assert model.bn.num_batches_tracked == 1


def test_forward_pass_with_gradients_before_step_keeps_its_statistics():
    model = net()
    amp, _ = ready(model, "mixed_float16")
    model(batch(1)[0])
    before = copies(model)
    x, y = batch()
    assert not amp.step(entropy(model), x * 1e6, y).stepped
    assert_same(before, copies(model))


# --- torch.compile and DDP


def quickly(thing):
    return torch.compile(thing, backend="aot_eager")


@pytest.mark.slow
@pytest.mark.usefixtures("dynamo")
@pytest.mark.filterwarnings("ignore")  # the compiler's own
@pytest.mark.parametrize("when", ["before", "after", "loss"])
@pytest.mark.parametrize("policy", POLICIES)
def test_compiled_training_is_that_of_eager(policy, when):
    x, y = batch()
    records, states = [], []
    for compiled in (False, True):
        model = net()
        called = quickly(model) if compiled and when == "before" else model
        amp, _ = ready(called, policy)
        assert [e.path for e in amp.plan.layers] == ["", "fc1", "bn", "act", "fc2"]
        called = quickly(model) if compiled and when == "after" else called
        loss = entropy(called)
        loss = quickly(loss) if compiled and when == "loss" else loss
        for number in range(3):
            for way in ("step", "parts"):
                result = run(amp, loss, x * (1e6 if number == 1 else 1), y, way=way)
                records.append(result)
        assert amp.step(lambda model=called: model(x * math.nan).sum()).culprit == "fc1.weight"
        states.append(copies(model))
    half = len(records) // 2
    assert [r.stepped for r in records[:half]] == [r.stepped for r in records[half:]]
    for one, two in zip(*states, strict=True):
        torch.testing.assert_close(states[0][one], states[1][two], rtol=1e-2, atol=1e-2)


@pytest.mark.slow
@pytest.mark.usefixtures("dynamo")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("policy", ["mixed_bfloat16", "model_bfloat16"])
def test_compiled_model_is_not_compiled_anew_each_step(policy):
    from torch._dynamo.utils import counters

    model = tower(nn.PReLU(), nn.LayerNorm(8))
    amp, _ = ready(model, policy)
    compiled = quickly(model)
    x, _ = batch()
    for way in ("step", "parts") * 2:
        run(amp, square(compiled), x, way=way)
    counters.clear()
    for way in ("step", "parts") * 3:
        assert run(amp, square(compiled), x, way=way).stepped
    assert not counters["stats"].get("unique_graphs", 0)


@pytest.mark.slow
@pytest.mark.usefixtures("dynamo")
@pytest.mark.filterwarnings("ignore")
def test_inductor_compiles_a_prepared_model():
    model = net()
    amp, _ = ready(model, "mixed_bfloat16")
    compiled = torch.compile(model)
    losses = [amp.step(entropy(compiled), *batch()).loss for _ in range(5)]
    assert losses[-1] < losses[0]


def test_layer_compiled_inside_a_model_has_a_plain_path():
    model = net()
    model.fc1 = torch.compile(model.fc1, backend="eager")
    paths = [e.path for e in mp.explain(model, "mixed_bfloat16").layers]
    assert paths == ["", "fc1", "bn", "act", "fc2"]


def test_layer_that_is_called_module_keeps_its_name():
    model = Calls(lambda m, x: m.module(x), module=nn.Linear(8, 4), other=nn.Linear(8, 4))
    plan = mp.explain(model, "mixed_bfloat16")
    assert [e.path for e in plan.layers] == ["", "module", "other"]
    ready(model, "mixed_bfloat16")
    seen = watch(model)
    model(batch()[0])
    assert seen["module"] == "bfloat16"


@pytest.fixture
def ranks(tmp_path):
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("ranks")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("wrapped", ["before", "after"])
@pytest.mark.parametrize("policy", POLICIES)
def test_ddp_trains_like_the_model_alone(policy, wrapped):
    alone, model = net(), net()
    if wrapped == "before" and policy.startswith("model"):
        with pytest.raises(mp.BackendError, match="prepared before it is wrapped in Distributed"):
            ready(nn.parallel.DistributedDataParallel(model), policy)
        return
    amp, _ = ready(alone, policy)
    if wrapped == "before":
        called = nn.parallel.DistributedDataParallel(model)
        own, _ = ready(called, policy)
    else:
        own, _ = ready(model, policy)
        called = nn.parallel.DistributedDataParallel(model)
    assert [e.path for e in own.plan.layers] == ["", "fc1", "bn", "act", "fc2"]
    for number in range(4):
        x, y = batch(number)
        x = x * (1e6 if number == 2 else 1)
        way = "step" if number % 2 else "parts"
        one = run(amp, entropy(alone), x, y, way=way)
        two = run(own, entropy(called), x, y, way=way)
        assert (one.stepped, one.culprit) == (two.stepped, two.culprit)
    assert_same(copies(alone), copies(model))


# --- refusals


def test_a_float64_model_is_refused_at_prepare():
    model = net().to(torch.float64)
    with pytest.raises(mp.BackendError, match=r"must hold float32 parameters.*fc1\.weight"):
        ready(model, "mixed_bfloat16")


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is:DeprecationWarning")  # used on purpose
def test_scripted_modules_are_refused():
    scripted = torch.jit.script(nn.Linear(2, 2))
    for model in (scripted, nn.Sequential(OrderedDict(a=nn.Linear(2, 2), b=scripted))):
        with pytest.raises(mp.BackendError, match=r"(it|b) is TorchScript"):
            mp.prepare(model, torch.optim.SGD(model.parameters(), 0.1), "mixed_bfloat16")


def test_lazy_layer_is_refused_until_it_knows_its_shape():
    model = nn.Sequential(OrderedDict(a=nn.Linear(8, 8), b=nn.LazyLinear(4)))
    with pytest.raises(mp.BackendError, match="b is a LazyLinear that saw no batch"):
        mp.prepare(model, torch.optim.SGD(model.parameters(), 0.1), "mixed_bfloat16")
    model(batch()[0])
    amp, _ = ready(model, "mixed_bfloat16")
    assert amp.step(square(model), batch()[0]).stepped


def test_lbfgs_is_refused_with_the_reason():
    with pytest.raises(mp.OptimizerError, match="LBFGS, which evaluates the loss several times"):
        ready(net(), "float32", "LBFGS")


def test_optimizer_of_another_model_is_refused_and_nothing_is_changed():
    model = net()
    with pytest.raises(mp.OptimizerError, match="6 of its 6"):
        mp.prepare(model, torch.optim.SGD(net().parameters(), 0.1), "mixed_bfloat16")
    assert "forward" not in vars(model.fc1)
    ready(model, "mixed_bfloat16")


@pytest.mark.parametrize("policy", POLICIES)
def test_model_is_prepared_once(policy):
    model = net()
    ready(model, policy)
    with pytest.raises(mp.BackendError, match=r"must not be prepared twice|must hold float32"):
        ready(model, "float32")


def test_optimizer_of_another_framework_is_refused():
    with pytest.raises(mp.OptimizerError, match=r"must be a torch\.optim\.Optimizer.*, got"):
        mp.prepare(net(), object(), "float32")


def test_refused_model_is_left_unchanged():
    if torch.ops.mkldnn._is_mkldnn_fp16_supported():
        pytest.skip("this CPU runs LSTMs in float16")
    model = nn.Sequential(OrderedDict(fc=nn.Linear(8, 8), rnn=nn.LSTM(8, 8)))
    with pytest.raises(mp.BackendError, match="rnn is an LSTM"):
        ready(model, "autocast_float16")
    assert "forward" not in vars(model)
    ready(model, mp.Policy.named("autocast_float16").full(layer="LSTM"))


@pytest.mark.parametrize("count", [1, 2])
def test_a_norm_beyond_float32_does_not_make_weights_undefined(count):
    model = nn.Sequential(*[nn.Linear(4, 1, bias=False) for _ in range(count)])
    amp = mp.prepare(model, torch.optim.SGD(model.parameters(), 1e-3), "float32")
    weights = torch.cat([layer.weight.flatten() for layer in model])
    # Each value is finite, the root of the sum of their squares is not.
    result = amp.step(lambda: sum((3e38 * layer.weight).sum() for layer in model), clip_norm=1.0)
    after = torch.cat([layer.weight.flatten() for layer in model])
    assert after.isfinite().all()
    assert math.isinf(result.grad_norm)
    assert torch.equal(weights, after)  # clipped to nothing, as torch's own clip does

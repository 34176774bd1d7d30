"""Nobody but its own step moves a prepared torch model: the optimizer's step raises before."""

from __future__ import annotations

import contextlib
import copy
import gc
import pickle

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from torch.nn import functional
from torch.optim.optimizer import register_optimizer_step_pre_hook

import mpcore as mp
from mpcore.errors import GuardError

POLICIES = [
    "float32",
    "mixed_bfloat16",
    "mixed_float16",
    "autocast_bfloat16",
    "model_bfloat16",
    "model_bfloat16, master=split",
    "model_bfloat16, master=none",
]


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))


def batch(number: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(number)
    x = torch.randn(16, 8, generator=generator)
    return x, torch.randint(4, (16,), generator=generator)


def adam(model: nn.Module, **options) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), 0.01, **options)


def entropy(model):
    return lambda x, y: functional.cross_entropy(model(x).float(), y)


def everything(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    slots = [slot for slots in optimizer.state.values() for slot in slots.values()]
    params = [param for group in optimizer.param_groups for param in group["params"]]
    return [torch.as_tensor(t).detach().clone() for t in [*model.parameters(), *params, *slots]]


def assert_untouched(before, model, optimizer):
    after = everything(model, optimizer)
    assert len(before) == len(after)
    for one, two in zip(before, after, strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("policy", POLICIES)
def test_an_own_loop_is_refused_before_anything_moves(policy):
    model = net()
    optimizer = adam(model)
    amp = mp.prepare(model, optimizer, policy)
    assert amp.step(entropy(model), *batch()).stepped
    before = everything(model, optimizer)
    with amp.autocast():
        loss = entropy(model)(*batch())
    loss.backward()
    with pytest.raises(GuardError) as caught:
        optimizer.step()
    for name in ("amp.step", "amp.backward", "amp.apply", "amp.unguarded()", "amp.release()"):
        assert name in str(caught.value)
    assert_untouched(before, model, optimizer)
    assert amp.step(entropy(model), *batch(1)).stepped  # the refusal leaves nothing behind


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")  # torch imports it
@pytest.mark.parametrize("kind", ["foreach", "fused", "compiled"])
def test_every_kind_of_update_is_refused_and_works_inside_a_step(kind):
    model = net()
    optimizer = adam(model, **({kind: True} if kind != "compiled" else {}))
    if kind == "compiled":
        optimizer.step = torch.compile(optimizer.step, backend="eager")
    amp = mp.prepare(model, optimizer, "mixed_bfloat16")
    before = everything(model, optimizer)
    entropy(model)(*batch()).backward()
    with pytest.raises(GuardError):
        optimizer.step()
    assert_untouched(before, model, optimizer)
    weight = model[0].weight.detach().clone()
    assert amp.step(entropy(model), *batch()).stepped
    assert not torch.equal(weight, model[0].weight)
    with pytest.raises(GuardError):  # a compiled step may not have learnt that the guard is open
        optimizer.step()


def test_a_closure_does_not_run_before_the_refusal():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    mp.prepare(model, optimizer, "mixed_bfloat16")
    calls = []
    with pytest.raises(GuardError):
        optimizer.step(lambda: calls.append(1))
    assert not calls


def scaled_step(model, optimizer, scaler, *, overflow, unscale=False):
    optimizer.zero_grad()
    loss = entropy(model)(*batch()) * (float("inf") if overflow else 1.0)
    scaler.scale(loss).backward()
    if unscale:
        scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()


@pytest.mark.parametrize("overflow", [False, True])
@pytest.mark.parametrize("unscale", [False, True])
@pytest.mark.parametrize("fused", [False, True])
def test_torchs_grad_scaler_on_top_is_refused(overflow, unscale, fused):
    model = net()
    optimizer = adam(model, fused=fused)
    amp = mp.prepare(model, optimizer, "mixed_float16")
    with pytest.raises(GuardError, match=r"amp\.grad_scaler"):
        scaled_step(
            model, optimizer, torch.amp.GradScaler("cpu"), overflow=overflow, unscale=unscale
        )
    assert not {"grad_scale", "found_inf"} & {*vars(optimizer)}  # they would divide once more
    assert amp.step(entropy(model), *batch(1)).stepped


class Divides(torch.optim.RMSprop):
    """Says for its class that it divides by the scale."""

    _step_supports_amp_scaling = True

    def step(self, closure=None):
        if getattr(self, "found_inf", 0):
            return
        for group in self.param_groups:
            for param in group["params"]:
                param.grad /= getattr(self, "grad_scale", 1)
        super().step(closure)


@pytest.mark.parametrize("kind", ["plain", "fused", "of a class"])
@pytest.mark.parametrize("way", ["unguarded", "released", "copied"])
def test_torchs_grad_scaler_finds_the_optimizer_as_it_was(kind, way):
    make = {
        "plain": adam,
        "fused": lambda model: adam(model, fused=True),
        "of a class": lambda model: Divides(model.parameters(), 0.1),
    }[kind]
    model, alone = net(), net()
    optimizer, own = make(model), make(alone)
    was = vars(optimizer).get("_step_supports_amp_scaling")
    amp = mp.prepare(model, optimizer, "float32")
    if way == "copied":
        model, optimizer = copy.deepcopy((net(), pickle.loads(pickle.dumps(optimizer))))
        optimizer.param_groups[0]["params"] = list(model.parameters())
    elif way == "released":
        amp.release()
        assert vars(optimizer).get("_step_supports_amp_scaling") is was
    for overflow in (True, False, False):
        scalers = torch.amp.GradScaler("cpu"), torch.amp.GradScaler("cpu")
        with amp.unguarded() if way == "unguarded" else contextlib.nullcontext():
            scaled_step(model, optimizer, scalers[0], overflow=overflow)
        scaled_step(alone, own, scalers[1], overflow=overflow)
    assert all(map(torch.equal, model.parameters(), alone.parameters()))


@pytest.mark.parametrize("policy", POLICIES)
def test_an_optimizer_made_later_over_its_parameters_is_refused(policy):
    model = net()
    amp = mp.prepare(model, adam(model), policy)
    other = torch.optim.SGD(model[3].parameters(), 0.1)
    elsewhere = net()
    third = torch.optim.SGD(elsewhere.parameters(), 0.1)
    for _ in range(2):
        entropy(elsewhere)(*batch()).backward()
        third.step()  # another model's: nobody minds
        with amp.autocast():
            loss = entropy(model)(*batch())
        loss.backward()
        with pytest.raises(GuardError, match="not the prepared model's"):
            other.step()
    third.add_param_group({"params": [*model[0].parameters()]})
    with pytest.raises(GuardError):
        third.step()


def test_an_optimizer_over_the_masters_is_refused():
    model = net()
    amp = mp.prepare(model, adam(model), "model_bfloat16")
    with pytest.raises(GuardError):
        torch.optim.SGD(amp.masters.values(), 0.1).step()


def test_an_update_inside_the_backward_pass_is_refused():
    model = net()
    optimizer = adam(model)
    amp = mp.prepare(model, optimizer, "mixed_float16")
    weight = model[0].weight
    inner = torch.optim.SGD([weight], 0.1)
    weight.register_post_accumulate_grad_hook(lambda _: inner.step())
    before = everything(model, optimizer)
    with pytest.raises(GuardError):
        amp.step(entropy(model), *batch())
    assert_untouched(before, model, optimizer)


def test_a_copy_that_is_trained_by_its_own_optimizer_is_refused():
    model = net()
    amp = mp.prepare(model, adam(model), "mixed_float16")
    twin = copy.deepcopy(model)
    optimizer = torch.optim.SGD(twin.parameters(), 0.1)
    entropy(twin)(*batch()).backward()
    before = everything(twin, optimizer)
    with pytest.raises(GuardError):
        optimizer.step()
    assert_untouched(before, twin, optimizer)
    with amp.unguarded():
        optimizer.step()
    assert not torch.equal(twin[0].weight, model[0].weight)


def test_model_and_optimizer_copied_together_are_refused():
    model = net()
    optimizer = adam(model)
    mp.prepare(model, optimizer, "mixed_float16")
    twin, other = copy.deepcopy((model, optimizer))
    entropy(twin)(*batch()).backward()
    with pytest.raises(GuardError):
        other.step()


def test_two_prepared_models_train_side_by_side():
    one, two = net(), net()
    first = mp.prepare(one, adam(one), "mixed_bfloat16")
    second = mp.prepare(two, adam(two), "mixed_float16")
    for number in range(3):
        assert first.step(entropy(one), *batch(number)).stepped
        assert second.step(entropy(two), *batch(number)).stepped


def test_an_optimizer_that_passed_once_is_looked_at_again():
    first, second = net(), net()
    amps = [mp.prepare(first, adam(first), "float32")]
    other = adam(second)
    for param in second.parameters():
        param.grad = torch.zeros_like(param)
    other.step()  # it is nobody's
    amps.append(mp.prepare(second, adam(second), "float32"))
    with pytest.raises(GuardError, match="not the prepared model's"):
        other.step()
    third = torch.optim.SGD([nn.Parameter(torch.zeros(2))], 0.1)
    third.step()
    third.add_param_group({"params": [next(first.parameters())]})
    with pytest.raises(GuardError, match="not the prepared model's"):
        third.step()


def test_unguarded_lets_the_native_step_pass():
    ours, plain = net(), net()
    optimizer, native = adam(ours), adam(plain)
    amp = mp.prepare(ours, optimizer, "float32")
    for number in range(2):
        for model, one in ((ours, optimizer), (plain, native)):
            one.zero_grad()
            entropy(model)(*batch(number)).backward()
            with amp.unguarded():
                one.step()
    for a, b in zip(ours.parameters(), plain.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("policy", POLICIES)
def test_after_release_nothing_of_ours_is_on_the_optimizer(policy):
    model = net()
    optimizer = adam(model)
    state = set(vars(optimizer))
    amp = mp.prepare(model, optimizer, policy)
    amp.step(entropy(model), *batch())
    amp.release()
    assert not optimizer._optimizer_step_pre_hooks
    assert set(vars(optimizer)) == state
    entropy(model)(*batch()).backward()
    optimizer.step()


def test_a_model_may_die_while_torch_goes_through_its_hooks():
    held = []
    dies = register_optimizer_step_pre_hook(lambda *_: (held.clear(), gc.collect(), None)[-1])
    model, plain = net(), net()
    held += [model, mp.prepare(model, adam(model), "mixed_bfloat16")]
    del model
    torch.optim.SGD(plain.parameters(), 0.1).step()
    assert not held
    dies.remove()


def test_the_guard_is_not_in_a_checkpoint_nor_in_a_copy_of_the_optimizer():
    model = net()
    optimizer = adam(model)
    plain = set(optimizer.state_dict())
    amp = mp.prepare(model, optimizer, "mixed_bfloat16")
    amp.step(entropy(model), *batch())
    assert set(optimizer.state_dict()) == plain
    twin = copy.deepcopy(optimizer)
    assert not twin._optimizer_step_pre_hooks
    twin.step()  # over copies of the parameters, which no model has
    optimizer.load_state_dict(optimizer.state_dict())
    with pytest.raises(GuardError):
        optimizer.step()


def test_a_failing_optimizer_leaves_the_guard_closed():
    class Fails(torch.optim.SGD):
        broken = True

        def step(self, closure=None):
            if self.broken:
                raise ArithmeticError
            return super().step(closure)

    model = net()
    optimizer = Fails(model.parameters(), 0.1)
    amp = mp.prepare(model, optimizer, "mixed_bfloat16")
    with pytest.raises(ArithmeticError):
        amp.step(entropy(model), *batch())
    with pytest.raises(GuardError):
        optimizer.step()
    optimizer.broken = False
    assert amp.step(entropy(model), *batch()).stepped


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "model_bfloat16"])
def test_distributed_checkpoints_may_make_the_slots(policy):
    model = net()
    optimizer = adam(model)
    mp.prepare(model, optimizer, policy)
    before = [param.detach().clone() for param in model.parameters()]
    entry = get_optimizer_state_dict(model, optimizer) if policy == "mixed_bfloat16" else None
    if entry is None:  # its names are those of the model's own parameters
        from torch.distributed.checkpoint.state_dict import _init_optim_state

        _init_optim_state(optimizer)
    assert optimizer.state
    for old, param in zip(before, model.parameters(), strict=True):
        assert torch.equal(old, param)
    entropy(model)(*batch()).backward()
    with pytest.raises(GuardError):
        optimizer.step()


def test_a_learning_rate_of_zero_is_no_way_around():
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), 0.0)
    mp.prepare(model, optimizer, "mixed_bfloat16")
    entropy(model)(*batch()).backward()
    with pytest.raises(GuardError):
        optimizer.step()


@pytest.mark.parametrize(
    "policy",
    ["mixed_bfloat16", "mixed_float16, loss_scale=dynamic(init_scale=16)", "model_bfloat16"],
)
@pytest.mark.parametrize("take", ["optimizer", "model", "one"])
def test_gradients_that_are_gone_before_apply_are_missed(policy, take):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 2))
    amp = mp.prepare(model, torch.optim.SGD(model.parameters(), 0.1), policy)
    before = amp.weights()
    with amp.autocast():
        loss = model(torch.ones(4, 4)).float().square().mean()
    amp.backward(loss)
    if take == "one":
        next(model.parameters()).grad = None
    else:
        (amp.optimizer if take == "optimizer" else model).zero_grad()
    with pytest.raises(mp.MpcoreError, match=r"zero_grad|gradients"):
        amp.apply()
    amp.abort_step()
    for name, value in amp.weights().items():
        assert (value == before[name]).all()
    assert amp.step(lambda x: model(x).float().square().mean(), torch.ones(4, 4)).stepped


@pytest.mark.parametrize("policy", ["mixed_float16", "model_bfloat16"])
def test_hooks_on_gradients_see_them_times_the_scale_and_the_optimizers_hooks_do_not(policy):
    seen = {}
    for scale in (1, 64):
        model = net()
        optimizer = adam(model)
        amp = mp.prepare(model, optimizer, f"{policy}, loss_scale={scale}")
        found = seen[scale] = []
        model[0].weight.register_hook(lambda grad, found=found: found.append(grad.float().norm()))
        optimizer.register_step_pre_hook(
            lambda own, *_, found=found: found.append(own.param_groups[0]["params"][0].grad.norm())
        )
        amp.step(entropy(model), *batch())
    (plain, plain_step), (scaled, scaled_step) = seen[1], seen[64]
    assert scaled / plain == pytest.approx(64, rel=0.02)
    assert scaled_step / plain_step == pytest.approx(1, rel=0.02)

"""What changes a prepared torch model behind its plan is refused, or computes as the plan says."""

from __future__ import annotations

import contextlib
import copy
import functools
import pickle
import warnings
from functools import partialmethod
from types import MethodType

import pytest
import torch
from torch import distributed, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional
from torch.nn.utils import clip_grad_norm_, parametrize, prune

import mpcore as mp
from mpcore.errors import BackendError, GuardError, MpcoreWarning

BY_LAYER = "mixed_bfloat16"
SCALED = "mixed_float16, loss_scale=static(1024)"
POLICIES = [
    "float32",
    BY_LAYER,
    "autocast_bfloat16",
    "model_bfloat16",
    "model_bfloat16, master=split",
]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm = nn.Linear(8, 16), nn.BatchNorm1d(16)
        self.rest = nn.Sequential(nn.ReLU(), nn.Linear(16, 4))

    def forward(self, x):
        return self.rest(self.norm(self.first(x)))


def prepared(policy: str = BY_LAYER, learning_rate: float = 0.1):
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), learning_rate)
    return model, mp.prepare(model, optimizer, policy)


def batch(number: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(number)
    x = torch.randn(16, 8, generator=generator)
    return x, torch.randint(4, (16,), generator=generator)


def entropy(model):
    return lambda x, y: functional.cross_entropy(model(x).float(), y)


def values(model) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def assert_same(one, two):
    assert one.keys() == two.keys()
    for name, value in one.items():
        assert value.dtype == two[name].dtype, name
        assert torch.equal(value, two[name]), name


def assert_trains_as_if_untouched(model, amp, policy):
    """A refusal must leave nothing behind: the next step is that of a model nobody touched."""
    other, own = prepared(policy)
    result, expected = amp.step(entropy(model), *batch()), own.step(entropy(other), *batch())
    assert result.loss == expected.loss
    assert_same(values(model), values(other))


CASTS = {
    "half": lambda model: model.half(),
    "bfloat16": lambda model: model.bfloat16(),
    "double": lambda model: model.double(),
    "to dtype": lambda model: model.to(torch.float16),
    "to device and dtype": lambda model: model.to("cpu", torch.float16),
    "type": lambda model: model.type(torch.float16),
    "part": lambda model: model.rest.half(),
    "layer": lambda model: model.first.to(torch.float16),
    "wrapper": lambda model: nn.Sequential(model).half(),
    "compiled": lambda model: torch.compile(model, backend="eager").half(),
}


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")  # torch imports it
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("cast", CASTS)
def test_casts_after_prepare_are_refused(policy, cast):
    if (cast, policy.split(",")[0]) == ("bfloat16", "model_bfloat16"):
        pytest.skip("only its float32 buffers would change: the next test")
    model, amp = prepared(policy)
    before = values(model)
    with pytest.raises(GuardError, match=r"the policy does the casting.*amp\.unguarded"):
        CASTS[cast](model)
    assert_same(values(model), before)
    assert_trains_as_if_untouched(model, amp, policy)


@pytest.mark.parametrize("master", ["copy", "split", "kahan", "none"])
def test_float_and_bfloat16_are_refused_where_parameters_are_stored_low(master):
    model, amp = prepared(f"model_bfloat16, master={master}")
    for cast in (nn.Module.float, nn.Module.bfloat16):
        if cast is nn.Module.bfloat16 and all(
            t.dtype == torch.bfloat16 for t in model.state_dict().values() if t.is_floating_point()
        ):
            continue
        with pytest.raises(GuardError):
            cast(model)
    assert amp.step(entropy(model), *batch()).stepped


@pytest.mark.parametrize("policy", [*POLICIES, "model_float16, master=none"])
def test_what_changes_no_dtype_is_allowed(policy):
    model, amp = prepared(policy)
    model.to("cpu")
    model.to(memory_format=torch.channels_last)
    model.cpu().share_memory()
    if "model" not in policy:
        model.float()
    assert amp.step(entropy(model), *batch()).stepped
    model.to("meta")
    assert model.first.weight.is_meta


def test_a_release_gives_casts_back():
    model, amp = prepared()
    amp.release()
    assert model.half().first.weight.dtype == torch.float16
    assert "_apply" not in vars(model.first)


def test_unguarded_lets_a_cast_pass():
    model, amp = prepared()
    with amp.unguarded():
        model.double()
    assert model.first.weight.dtype == torch.float64


@pytest.mark.parametrize("way", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies_refuse_casts_too(way):
    model, _ = prepared()
    with pytest.raises(GuardError):
        way(model).half()


def other_layer(model):
    model.first = nn.Linear(8, 16)


def other_entry(model):
    model.rest[1] = nn.Linear(16, 4)


def other_by_add_module(model):
    model.add_module("first", nn.Linear(8, 16))


def other_in_the_dict(model):
    model._modules["first"] = nn.Linear(8, 16)


def other_parameter(model):
    model.first.weight = nn.Parameter(torch.zeros(16, 8))


def other_bias(model):
    model.rest[1].register_parameter("bias", nn.Parameter(torch.zeros(4)))


def assigned(model):
    state = {name: value.clone() for name, value in model.state_dict().items()}
    model.load_state_dict(state, assign=True)


def other_forward(model):
    model.first.forward = lambda x: functional.linear(x, model.first.weight)


def forward_of_the_class(model):
    del model.first.forward


def other_root(model):
    model.forward = MethodType(Net.forward, model)


def float8_like(model):
    """Swap layers as torchao's convert_to_float8_training does."""

    class Rounded(nn.Linear):
        def forward(self, x):
            return functional.linear(x, self.weight, self.bias)

    for parent in [*model.modules()]:
        for name, child in [*parent.named_children()]:
            if isinstance(child, nn.Linear):
                new = Rounded(child.in_features, child.out_features)
                new.weight, new.bias = child.weight, child.bias
                setattr(parent, name, new)


SWAPS = [
    other_layer, other_entry, other_by_add_module, other_in_the_dict, other_parameter, other_bias,
    assigned, other_forward, forward_of_the_class, other_root, float8_like,
]  # fmt: skip


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("swap", SWAPS)
def test_what_is_put_in_the_place_of_a_part_is_refused(swap, policy):
    model, amp = prepared(policy)
    if "forward" not in vars(model.first) and swap in (other_forward, forward_of_the_class):
        pytest.skip("such a plan replaces no forward of that layer")
    before = values(model)
    with pytest.raises((GuardError, BackendError), match=r"prepare|assign"):
        swapped_and_stepped(swap, model, amp)
    if swap is not other_in_the_dict:  # that one nobody is told of
        assert_same(values(model), before)


def swapped_and_stepped(swap, model, amp):
    swap(model)
    amp.step(entropy(model), *batch())


class Doubled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


class Named(nn.Linear):
    """As FSDP2 and parametrizations give a layer a class of its own, with the same forward."""


class Bound(nn.Module):
    """Its forward is made anew whenever it is read."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 4)

    def run(self, x, factor):
        return self.first(x) * factor

    forward = partialmethod(run, factor=2)


def class_of_a_layer(model, _):
    model.first.__class__ = Doubled


def forward_of_a_class_of_layers(_, monkeypatch):
    monkeypatch.setattr(nn.Linear, "forward", Doubled.forward)


def forward_of_the_models_class(model, monkeypatch):
    before = type(model).forward
    monkeypatch.setattr(type(model), "forward", lambda *args: 2 * before(*args))


@pytest.mark.parametrize(
    "swap", [class_of_a_layer, forward_of_a_class_of_layers, forward_of_the_models_class]
)
@pytest.mark.parametrize("policy", ["mixed_bfloat16", "model_bfloat16"])
def test_another_class_or_forward_of_a_class_is_refused(swap, policy, monkeypatch):
    model, amp = prepared(policy)
    before = values(model)
    with monkeypatch.context() as patched:
        swap(model, patched)
        with pytest.raises(GuardError, match="of its class"):
            amp.step(entropy(model), *batch())
        assert_same(values(model), before)
        with amp.unguarded():
            pass  # meant
        assert amp.step(entropy(model), *batch()).stepped


def test_a_class_with_the_same_forward_and_a_patch_that_is_gone_pass(monkeypatch):
    model, amp = prepared()
    model.first.__class__ = Named
    assert amp.step(entropy(model), *batch()).stepped
    with monkeypatch.context() as patched:
        forward_of_a_class_of_layers(model, patched)
    assert amp.step(entropy(model), *batch()).stepped
    other = Bound()
    amp = mp.prepare(other, torch.optim.SGD(other.parameters(), 0.1), "mixed_bfloat16")
    for _ in range(2):
        assert amp.step(entropy(other), *batch()).stepped


@pytest.mark.parametrize("swap", [other_in_the_dict, other_forward, other_root])
def test_a_loop_of_ones_own_meets_it_before_gradients(swap):
    model, amp = prepared()
    swap(model)
    loss = entropy(model)(*batch())
    with pytest.raises(GuardError):
        amp.backward(loss)
    assert model.rest[1].weight.grad is None


def test_a_refused_swap_leaves_the_layer():
    model, amp = prepared()
    for swap in (other_layer, other_entry, other_parameter, float8_like):
        with pytest.raises(GuardError):
            swap(model)
    assert_trains_as_if_untouched(model, amp, BY_LAYER)


def test_what_is_swapped_unguarded_is_taken_as_it_is():
    model, amp = prepared()
    with amp.unguarded():
        other_forward(model)
        model._modules["norm"] = nn.Identity()
        model.rest[1] = nn.Linear(16, 4)
    assert amp.step(entropy(model), *batch()).stepped


def decorated(forward):
    @functools.wraps(forward)
    def wrapper(*args, **kwargs):
        return forward(*args, **kwargs)

    return wrapper


def closed_over(forward):
    return lambda *args: forward(*args)


def hooked_as_accelerate_does(forward):
    module = forward.__self__
    module._old_forward = forward

    def new_forward(module, *args, **kwargs):
        return module._old_forward(*args, **kwargs)

    return functools.update_wrapper(functools.partial(new_forward, module), forward)


class Called:
    def __init__(self, forward) -> None:
        self.inner = forward

    def __call__(self, *args):
        return self.inner(*args)


def method_of_the_function(forward):
    return MethodType(torch.no_grad()(forward.__func__), forward.__self__)


WRAPS = [decorated, closed_over, hooked_as_accelerate_does, Called, functools.partial]


@pytest.mark.parametrize("wrap", WRAPS)
@pytest.mark.parametrize("place", ["first", ""])
def test_a_wrapper_around_a_forward_is_no_swap(wrap, place):
    model, amp = prepared()
    module = model.get_submodule(place)
    module.forward = wrap(module.forward)
    assert_trains_as_if_untouched(model, amp, BY_LAYER)


def test_a_wrapped_function_of_a_method_is_found_too():
    model, amp = prepared()
    model.norm.forward = method_of_the_function(model.norm.forward)
    assert amp.step(entropy(model), *batch()).stepped


def test_wrapped_layers_and_those_taken_away_are_no_swaps():
    model, amp = prepared()
    model.first = nn.Sequential(model.first)  # as LoRA and others hold the layer
    model.rest = checkpoint_wrapper(model.rest)
    model.extra = nn.Linear(2, 2)
    model.norm = None
    model.forward_without_norm = True
    model.add_module("norm", None)
    type(model).forward  # noqa: B018
    result = amp.step(
        lambda x, y: functional.cross_entropy(model.rest(model.first(x)), y), *batch()
    )
    assert result.stepped
    assert amp.step(lambda x, y: functional.cross_entropy(model.rest(model.first(x)), y), *batch())


def test_pruning_and_parametrizations_after_prepare_still_work():
    model, amp = prepared()
    prune.l1_unstructured(model.first, "weight", amount=0.5)
    parametrize.register_parametrization(model.rest[1], "weight", nn.Identity())
    assert amp.step(entropy(model), *batch()).stepped
    assert int((model.first.weight == 0).sum()) == 64


def test_other_models_are_none_of_its_business():
    model, amp = prepared()
    plain = Net()
    plain.first = nn.Linear(8, 16)
    plain.first.weight = nn.Parameter(torch.zeros(16, 8))
    plain.half()
    assert amp.step(entropy(model), *batch()).stepped


def test_scripting_is_refused_in_words():
    model, amp = prepared()
    for module in (model, model.first, model.rest):
        with pytest.raises(BackendError, match=r"torch\.compile or torch\.export"):
            script(module)
    assert amp.step(entropy(model), *batch()).stepped
    amp.release()
    script(model)


def script(module):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of torch.jit, used on purpose
        return torch.jit.script(module)


@pytest.fixture
def alone():
    """A process group of one, for sharding."""
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield distributed.device_mesh.init_device_mesh("cpu", (1,))
    distributed.destroy_process_group()


def test_casts_of_fsdp_beside_those_of_the_plan_are_refused(alone):
    model = Net()
    low = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    fully_shard(model.rest, mesh=alone, mp_policy=low)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for policy in (BY_LAYER, "autocast_bfloat16"):
        with pytest.raises(BackendError, match=r"`mp_policy` of fully_shard.*rest has param_dtype"):
            mp.prepare(model, optimizer, policy)
    assert "forward" not in vars(model.first)


def test_fsdp_may_reduce_in_a_dtype_of_its_own(alone):
    model = Net()
    wide = MixedPrecisionPolicy(reduce_dtype=torch.float32)
    fully_shard(model, mesh=alone, mp_policy=wide)
    amp = mp.prepare(model, torch.optim.SGD(model.parameters(), 0.1), BY_LAYER)
    assert amp.step(entropy(model), *batch()).stepped


# --- regions of others


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16; full rest*", "model_bfloat16"])
def test_an_outer_autocast_changes_nothing_inside_the_model(policy):
    model, amp = prepared(policy)
    other, own = prepared(policy)

    def inside(x, y):
        with torch.autocast("cpu", torch.bfloat16):
            out = model(x)
        return functional.cross_entropy(out.float(), y)

    for number in range(2):
        with pytest.warns(MpcoreWarning, match="no effect") as told:
            result = amp.step(inside, *batch(number))
        assert told[0].filename == __file__
        assert result.loss == own.step(entropy(other), *batch(number)).loss
    assert_same(values(model), values(other))
    with pytest.warns(MpcoreWarning, match="no effect"), torch.autocast("cpu", torch.bfloat16):
        loss = entropy(model)(*batch())
    amp.backward(loss)
    amp.apply()
    own.step(entropy(other), *batch())
    assert_same(values(model), values(other))


def test_a_forward_pass_without_the_region_is_refused_by_backward():
    model, amp = prepared("autocast_bfloat16")
    before = values(model)
    loss = entropy(model)(*batch())
    with pytest.raises(GuardError, match=r"amp\.autocast\(\)"):
        amp.backward(loss)
    assert model.first.weight.grad is None
    with amp.autocast():  # what ran before does not matter then
        loss = entropy(model)(*batch())
    amp.backward(loss)
    assert amp.apply().stepped
    other, own = prepared("autocast_bfloat16")
    entropy(other)(*batch())
    before = own.step(entropy(other), *batch())
    assert before.stepped


def test_torchs_own_region_of_the_same_dtype_is_the_same():
    model, amp = prepared("autocast_bfloat16")
    other, own = prepared("autocast_bfloat16")
    with torch.autocast("cpu", torch.bfloat16):
        loss = entropy(model)(*batch())
    amp.backward(loss)
    amp.apply()
    own.step(entropy(other), *batch())
    assert_same(values(model), values(other))


def test_a_region_of_another_dtype_is_refused_in_the_forward_pass():
    model, amp = prepared("autocast_bfloat16")
    before = values(model)

    def inside(x, y):
        with torch.autocast("cpu", torch.float16):
            return entropy(model)(x, y)

    with pytest.raises(GuardError, match="float16 instead of bfloat16"):
        amp.step(inside, *batch())
    assert_same(values(model), before)
    assert amp.step(entropy(model), *batch()).stepped


def test_evaluation_needs_no_region():
    model, _ = prepared("autocast_bfloat16")
    model.eval()
    model(batch()[0])
    model.train()
    with torch.no_grad():
        model(batch()[0])


# --- gradients


@pytest.mark.parametrize("policy", ["float32", SCALED, "autocast_bfloat16", "model_bfloat16"])
def test_a_loss_of_another_model_is_refused(policy):
    model, amp = prepared(policy)
    other = Net()
    before, scale = values(model), amp.scale
    with pytest.raises(BackendError, match="no parameter got a gradient"):
        amp.step(entropy(other), *batch())
    with amp.autocast():
        loss = entropy(other)(*batch())
    amp.backward(loss)
    with pytest.raises(BackendError, match="no parameter got a gradient"):
        amp.apply()
    assert_same(values(model), before)
    assert amp.scale == scale
    assert amp.step(entropy(model), *batch()).stepped


def test_a_loss_of_a_copy_is_refused():
    model, amp = prepared()
    with pytest.raises(BackendError, match="no parameter got a gradient"):
        amp.step(entropy(copy.deepcopy(model)), *batch())


def test_a_part_of_the_model_may_go_without_gradients():
    model, amp = prepared()
    assert amp.step(lambda x: model.first(x).float().sum(), batch()[0]).stepped
    for param in model.first.parameters():
        param.requires_grad_(False)
    assert amp.step(entropy(model), *batch()).stepped


def clip(model):
    clip_grad_norm_(model.parameters(), 0.1)


def clip_values(model):
    nn.utils.clip_grad_value_(model.parameters(), 0.1)


def one_is_replaced(model):
    model.first.weight.grad = model.first.weight.grad * 0.5


def one_is_divided(model):
    model.rest[1].bias.grad.div_(2)


CHANGES = [clip, clip_values, one_is_replaced, one_is_divided]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("end", ["apply", "unscale", "backward"])
def test_scaled_gradients_are_not_to_be_changed(change, end):
    model, amp = prepared(SCALED)
    before = values(model)
    amp.backward(entropy(model)(*batch()))
    change(model)
    loss = entropy(model)(*batch())
    with pytest.raises(GuardError, match=r"amp\.unscale\(\).*amp\.abort_step\(\)"):
        amp.backward(loss) if end == "backward" else getattr(amp, end)()
    amp.abort_step()
    assert_same(values(model), before)
    assert amp.step(entropy(model), *batch()).stepped


@pytest.mark.parametrize("policy", [SCALED, "model_float16, loss_scale=static(1024)", BY_LAYER])
@pytest.mark.parametrize("change", CHANGES)
def test_true_gradients_may_be_changed(policy, change):
    model, amp = prepared(policy)
    amp.backward(entropy(model)(*batch()))
    amp.unscale()
    if "model" in policy:
        clip_grad_norm_(amp.masters.values(), 0.1)
    else:
        change(model)
    assert amp.apply().stepped


def test_without_a_scale_gradients_are_true_at_once():
    model, amp = prepared(BY_LAYER)
    other, own = prepared(BY_LAYER)
    for end in (entropy, entropy):
        amp.backward(end(model)(*batch()))
        clip_grad_norm_(model.parameters(), 0.1)
        amp.apply()
        own.step(entropy(other), *batch(), clip_norm=0.1)
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(one, two)


def test_micro_batches_are_no_change():
    model, amp = prepared(SCALED)
    for number in range(3):
        amp.backward(entropy(model)(*batch(number)) / 3)
    assert amp.apply(clip_norm=1.0).stepped


@pytest.mark.parametrize(
    "policy",
    [
        "model_float16, loss_scale=static(1024)",
        "model_bfloat16, master=split, loss_scale=static(1024)",
    ],
)
def test_clipping_16_bit_gradients_without_unscale_is_refused(policy):
    model, amp = prepared(policy)
    amp.backward(entropy(model)(*batch()))
    clip(model)
    with pytest.raises(GuardError):
        amp.apply()


def test_unguarded_allows_a_change_of_scaled_gradients():
    model, amp = prepared(SCALED)
    amp.backward(entropy(model)(*batch()))
    one_is_divided(model)
    with amp.unguarded():
        assert amp.apply().stepped


# --- copies


@pytest.mark.parametrize("way", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_is_prepared_to_be_trained(way):
    model, amp = prepared()
    amp.step(entropy(model), *batch())
    twin = way(model)
    optimizer = torch.optim.SGD(twin.parameters(), 0.1)
    entropy(twin)(*batch(1)).backward()
    before = values(twin)
    with pytest.raises(GuardError):
        optimizer.step()
    assert_same({**before}, values(twin))
    optimizer.zero_grad()
    twin.load_state_dict(model.state_dict())
    own = mp.prepare(twin, optimizer, BY_LAYER)
    with contextlib.ExitStack():
        for number in range(2):
            one = amp.step(entropy(model), *batch(number))
            assert own.step(entropy(twin), *batch(number)).loss == one.loss
    assert_same(values(model), values(twin))
    own.release()
    optimizer.step()
    with pytest.raises(BackendError, match="prepared twice"):
        mp.prepare(nn.Sequential(model), torch.optim.SGD(model.parameters(), 0.1), BY_LAYER)

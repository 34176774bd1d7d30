"""What torch's own tools do to a prepared model; see ``fuzz`` and ``things_torch``."""

from __future__ import annotations

import copy
import warnings

import numpy as np
import torch
from fuzz import fresh, main, no_more_than_rounding
from things_torch import WORLD, first_linear, loss_of, plain, thing
from torch import nn
from torch.nn import functional as F  # noqa: N812, as torch's own documents
from torch.nn.utils import parametrizations, parametrize, prune
from torch.utils.checkpoint import checkpoint

__all__ = ["WORLD", "thing"]


def step_by(run, loss_fn):
    """Take the step with another loss function, which should be the same."""
    clip, micro = run.case.clip, run.case.micro
    run.amp.step(loss_fn, *run.batch, clip_norm=clip, micro_batches=micro)


def step_through(run, model):
    step_by(run, loss_of(model))


# --- Layers and parameters


class Same(nn.Module):
    def forward(self, weight):
        return weight


def renames(run, change):
    """Assert that a step of a model whose parameters have other names is the same."""
    here, there = fresh(run), fresh(run)
    change(first_linear(there.model))
    for new in (here, there):
        new.step()
    left, right = (list(new.model.parameters()) for new in (here, there))
    left, right = (sorted(map(_bits, params)) for params in (left, right))
    assert left == right, "the step was another"


def _bits(param):
    return param.detach().float().numpy().tobytes()


@thing(fits=lambda case: case.model != "conv")
def parametrized(run):
    renames(run, lambda layer: parametrize.register_parametrization(layer, "weight", Same()))


@thing(fits=lambda case: case.model != "conv")
def weight_norm_added(run):
    parametrizations.weight_norm(first_linear(run.model))


@thing(fits=lambda case: case.model != "conv")
def old_weight_norm_added(run):
    nn.utils.weight_norm(first_linear(run.model))


@thing(fits=lambda case: case.model != "conv")
def spectral_norm_added(run):
    new = apart(run)
    layer = first_linear(new.model)
    weight = parametrizations.spectral_norm(layer).parametrizations.weight.original
    before = weight.detach().clone()
    new.step()
    assert not torch.equal(before, weight), "the step did not move it"


@thing(fits=lambda case: case.model == "conv", forwards=True)
def spectral_norm_removed(run):
    new = apart(run)
    weight = new.model.fc.parametrizations.weight.original
    parametrize.remove_parametrizations(new.model.fc, "weight")  # by="op" it can be
    before = weight.detach().clone()
    new.step()
    assert not torch.equal(before, new.model.fc.weight), "the step did not move it"


@thing(fits=lambda case: case.model != "conv")
def pruned_by_nothing(run):
    renames(run, lambda layer: prune.l1_unstructured(layer, "weight", amount=0))


@thing()
def emptied_and_loaded(run):
    state = copy.deepcopy(run.model.state_dict())
    run.model.to_empty(device="cpu")
    run.model.load_state_dict(state)


@thing()
def loaded_by_assignment(run):
    run.model.load_state_dict(copy.deepcopy(run.model.state_dict()), assign=True)


@thing()
def part_of_the_state_loaded(run):
    state = run.model.state_dict()
    run.model.load_state_dict(dict(list(state.items())[:2]), strict=False)


@thing()
def shared_between_processes(run):
    run.model.share_memory()


@thing()
def channels_last(run):
    run.model.to(memory_format=torch.channels_last)


@thing(fits=lambda case: case.model == "block")
def weights_tied_later(run):
    run.model.out.weight = run.model.inp.weight


@thing(fits=lambda case: case.model != "block")
def batch_norm_synchronized(run):
    nn.SyncBatchNorm.convert_sync_batchnorm(run.model)


@thing()
def swapped_for_an_average_and_back(run):
    kept = [param.detach().clone() for param in run.model.parameters()]
    for param in run.model.parameters():
        param.data.mul_(0.5)
    run.model.eval()
    with torch.no_grad():
        run.model(run.batch[0])
    run.model.train()
    for param, value in zip(run.model.parameters(), kept, strict=True):
        param.data.copy_(value)


@thing()
def average_with_its_own_statistics(run):
    average = torch.optim.swa_utils.AveragedModel(run.model)
    average.update_parameters(run.model)
    torch.optim.swa_utils.update_bn([run.batch[0]], average)


# --- The optimizer


@thing()
def group_added(run):
    run.optimizer.add_param_group({"params": [nn.Parameter(torch.ones(3))]})


@thing()
def parameter_exchanged_in_a_group(run):
    params = run.optimizer.param_groups[0]["params"]
    params[0] = nn.Parameter(params[0].detach().clone())


@thing()
def parameter_taken_out_of_a_group(run):
    run.optimizer.param_groups[0]["params"].pop(0)


@thing()
def parameter_twice_in_a_group(run):
    params = run.optimizer.param_groups[0]["params"]
    params.append(params[0])


@thing()
def groups_made_anew(run):
    run.optimizer.param_groups = [
        {**group, "params": list(group["params"])} for group in run.optimizer.param_groups
    ]


@thing()
def step_of_the_optimizer_wrapped(run):
    before = run.optimizer.step
    run.optimizer.step = lambda *args, **kwargs: before(*args, **kwargs)


@thing(trains=True)
def copy_of_the_optimizer_steps(run):
    other = copy.deepcopy(run.optimizer)
    for group in other.param_groups:
        for param in group["params"]:
            param.grad = torch.ones_like(param)
    other.step()
    run.step()
    run.index -= 1


@thing(fits=lambda case: case.optimizer != "sgd")
def fused_for_a_step(run):
    here, there = fresh(run), fresh(run)
    for group in there.optimizer.param_groups:
        group["foreach"], group["fused"] = False, True
    here.step()
    there.step()
    no_more_than_rounding(here, there)


@thing()
def zero_grad_inside_the_loss(run):
    new = fresh(run)
    clip, micro = run.case.clip, run.case.micro
    new.amp.step(
        lambda *batch: (new.optimizer.zero_grad(), new.loss_fn(*batch))[1],
        *run.batch,
        clip_norm=clip,
        micro_batches=micro,
    )
    other = fresh(run)
    other.step()
    same = WORLD.digest(new), WORLD.digest(other)
    assert same[0] == same[1], "a gradient was lost, without a word"


# --- Another way through the model


@thing(trains=True)
def functional_call(run):
    def through(x, y, boost):
        named = dict(run.model.named_parameters())
        logits = torch.func.functional_call(run.model, named, (x,))
        return F.cross_entropy(logits.float(), y) * boost.max()

    step_by(run, through)


@thing(trains=True)
def compiled_afterwards(run):
    step_through(run, torch.compile(run.model, backend="eager"))


@thing(trains=True)
def compiled_in_place(run):
    run.model.compile(backend="eager")
    run.step()
    run.index -= 1


@thing(trains=True, fits=lambda case: case.model == "block")  # BatchNorm's would move twice
def recomputed(run):
    step_through(run, lambda x: checkpoint(run.model, x, use_reentrant=False))


@thing(trains=True, fits=lambda case: case.model == "block")
def recomputed_reentrantly(run):
    step_through(run, lambda x: checkpoint(run.model, x.requires_grad_(), use_reentrant=True))
    run.batch[0].requires_grad_(False)


@thing(trains=True)
def traced_by_fx(run):
    step_through(run, torch.fx.symbolic_trace(run.model))


@thing(trains=True)
def gradients_of_functions(run):
    params = dict(run.model.named_parameters())

    def loss(named, x, y):
        return F.cross_entropy(torch.func.functional_call(run.model, named, (x,)).float(), y)

    found = torch.func.grad(loss)(params, *run.batch[:2])
    for name, grad in found.items():
        params[name].grad = grad
    run.optimizer.step()


@thing(trains=True)
def activations_kept_elsewhere(run):
    with torch.autograd.graph.save_on_cpu():
        run.step()
    run.index -= 1


@thing(trains=True)
def anomalies_looked_for(run):
    bad = run.index in run.case.bad
    try:
        with torch.autograd.set_detect_anomaly(mode=True, check_nan=not bad):
            run.step()
    finally:
        run.index = run.case.at


@thing()
def gradients_switched_off(run):
    torch.set_grad_enabled(False)
    try:
        run.amp.step(run.loss_fn, *run.batch)
    finally:
        torch.set_grad_enabled(True)


@thing(trains=True)
def gradients_of_another_dtype(run):
    hooks = [param.register_hook(lambda grad: grad.double()) for param in run.model.parameters()]
    try:
        run.step()
    finally:
        for hook in hooks:
            hook.remove()
        run.index = run.case.at


# --- What is not neutral: it does what it says


def apart(run):
    """Return another run at a good batch."""
    new = fresh(run)
    new.index = next(n for n in range(8) if n not in run.case.bad)
    return new


@thing()
def rate_by_hand(run):
    new = apart(run)
    for group in new.optimizer.param_groups:
        group["lr"] = 0.0
    before = new.amp.weights()
    new.step()
    after = new.amp.weights()
    for name, _ in new.model.named_parameters():
        # Of a tie of kahan `weights` shows the neighbour that loads as the same two halves.
        unit = np.spacing(np.abs(before[name])) if "kahan" in run.case.policy else 0
        assert (np.abs(after[name] - before[name]) <= unit).all(), f"the rate is 0, {name} moved"


@thing()
def layer_frozen(run):
    new = apart(run)
    if new.index:
        new.step()
    layer = first_linear(new.model)
    held = list(layer.parameters())
    for param in held:
        param.requires_grad_(False)
    before = [param.detach().clone() for param in held]
    new.index = next(n for n in range(8) if n not in run.case.bad)
    new.step()
    assert all(map(torch.equal, before, held)), "the layer is frozen, it moved"


@thing()
def weights_clamped_between_steps(run):
    new = apart(run)
    new.step()
    # Kahan's correction is one to what the weight was.
    largest = max(param.detach().abs().max().item() for param in new.model.parameters())
    rest = largest / 256 if "kahan" in run.case.policy else 0
    with torch.no_grad():
        for param in new.model.parameters():
            param.clamp_(-0.01, 0.01)
    for group in new.optimizer.param_groups:
        group["lr"] = 0.0
    new.index = next(n for n in range(8) if n not in run.case.bad)
    new.step()
    names = [name for name, _ in new.model.named_parameters()]
    most = max(np.abs(new.amp.weights()[name]).max() for name in names)
    assert most <= 0.01 * (1 + 1 / 64) + rest, f"what was clamped to 0.01 is {most}"


@thing()
def zeros_loaded(run):
    new = apart(run)
    new.step()
    new.model.load_state_dict({k: torch.zeros_like(v) for k, v in new.model.state_dict().items()})
    assert not any(w.any() for w in new.amp.weights().values()), "it goes on from other values"


# --- What people do in the middle of a run


@thing(trains=True, fits=lambda case: case.micro == 1 and case.clip is None)
def evaluated_between_backward_and_apply(run):
    with run.amp.autocast():
        loss = plain(run)
    run.amp.backward(loss)
    run.model.eval()
    with torch.no_grad(), run.amp.autocast():
        run.model(run.batch[0])
    run.model.train()
    run.amp.apply()


@thing(trains=True)
def evaluated_inside_the_loss(run):
    def evaluates(*batch):
        run.model.eval()
        with torch.no_grad():
            run.model(batch[0])
        run.model.train()
        return run.loss_fn(*batch)

    step_by(run, evaluates)


@thing()
def slots_put_by_hand(run):
    for param, slots in list(run.optimizer.state.items()):
        run.optimizer.state[param] = {
            name: value.clone() if isinstance(value, torch.Tensor) else value
            for name, value in slots.items()
        }


@thing()
def slots_of_a_copy_loaded(run):
    other = copy.deepcopy(run.optimizer)
    run.optimizer.load_state_dict(other.state_dict())


@thing(trains=True)
def native_scaler_that_is_off(run):
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    scaler.scale(plain(run)).backward()
    scaler.unscale_(run.optimizer)
    scaler.step(run.optimizer)
    scaler.update()


@thing(trains=True)
def second_optimizer_under_a_native_scaler(run):
    other = torch.optim.SGD(run.model.parameters(), 0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    boost = run.batch[2].clamp(max=1.0)  # it overflows nowhere: see docs/guarantees.md
    scaler.scale(run.loss_fn(*run.batch[:2], boost)).backward()
    scaler.step(other)


@thing(trains=True, fits=lambda case: case.model == "mlp")
def part_recomputed_without_the_whole(run):
    fc1, norm, act, fc2 = run.model

    def by_parts(x, y, boost):
        hidden = act(norm(fc1(x)))
        logits = checkpoint(fc2, hidden, use_reentrant=False)
        return F.cross_entropy(logits.float(), y) * boost.max()

    step_by(run, by_parts)


@thing(trains=True)
def loss_function_compiled(run):
    step_by(run, torch.compile(run.loss_fn, backend="eager"))


@thing(trains=True)
def scheduler_made_later_steps(run):
    scheduler = torch.optim.lr_scheduler.ConstantLR(run.optimizer, 1.0, 1)
    run.step()
    run.index -= 1
    scheduler.step()


@thing(trains=True, fits=lambda case: case.micro == 1)
def parametrizations_cached(run):
    with parametrize.cached():
        run.step()
    run.index -= 1


@thing()
def gradients_cleared_to_zeros(run):
    run.model.zero_grad(set_to_none=False)
    run.optimizer.zero_grad(set_to_none=False)


@thing(trains=True)
def backward_hook_of_a_layer(run):
    seen = []
    handle = first_linear(run.model).register_full_backward_hook(lambda *args: seen.append(1))
    try:
        run.step()
    finally:
        handle.remove()
        run.index = run.case.at
    assert seen, "the hook was not called"


@thing(trains=True)
def call_with_copies_of_the_parameters(run):
    def through(x, y, boost):
        named = {
            name: param.detach().clone().requires_grad_()
            for name, param in run.model.named_parameters()
        }
        logits = torch.func.functional_call(run.model, named, (x,))
        return F.cross_entropy(logits.float(), y) * boost.max()

    step_by(run, through)


@thing(trains=True)
def traced_by_jit(run):
    keep = WORLD.keep_buffers(run)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            traced = torch.jit.trace(run.model, run.batch[0], check_trace=False)
    finally:
        keep()
    step_through(run, traced)


@thing()
def data_rebound(run):
    for param in run.model.parameters():
        param.data = param.data.clone()


@thing()
def copied_onto_itself(run):
    with torch.no_grad():
        for param in run.model.parameters():
            param.copy_(param.clone())


@thing()
def average_loaded_back(run):
    average = torch.optim.swa_utils.AveragedModel(run.model)
    average.update_parameters(run.model)
    run.model.load_state_dict(average.module.state_dict())


@thing()
def averaged_over_all_and_loaded_back(run):
    decay = torch.optim.swa_utils.get_ema_multi_avg_fn(0.0)
    average = torch.optim.swa_utils.AveragedModel(run.model, multi_avg_fn=decay)
    for _ in range(2):
        average.update_parameters(run.model)
    run.model.load_state_dict(average.module.state_dict())


@thing()
def requires_grad_turned(run):
    run.model.requires_grad_(requires_grad=False)
    run.model.requires_grad_(requires_grad=True)


@thing(trains=True)
def deterministic_for_a_step(run):
    torch.use_deterministic_algorithms(mode=True)
    try:
        run.step()
        run.index -= 1
    finally:
        torch.use_deterministic_algorithms(mode=False)


@thing(fits=lambda case: case.model == "mlp")
def fused_for_evaluation(run):
    run.model.eval()
    fused = torch.nn.utils.fusion.fuse_linear_bn_eval(run.model.fc1, run.model.bn)
    run.model.train()
    assert fused.weight.dtype == run.model.fc1.weight.dtype


if __name__ == "__main__":
    main(WORLD, thing)

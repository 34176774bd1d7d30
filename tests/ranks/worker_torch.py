"""One rank of a distributed run: reads names of scenarios, writes what they saw as JSON.

    python worker_torch.py RANK WORLD STORE

Each scenario is a function of the rank; test_torch.py compares what the ranks say.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import sys
import traceback
import warnings

import torch
from torch import distributed, nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import mpcore as mp

SCENARIOS = {}
RULE = mp.LossScale(init_scale=1024.0, growth_interval=4)
FLOAT32 = mp.Policy().with_loss_scale(RULE)


def scenario(function):
    SCENARIOS[function.__name__] = function
    return function


def net():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))


def batch(number, rank, rows=8):
    g = torch.Generator().manual_seed(100 * number + rank)
    return torch.randn(rows, 8, generator=g), torch.randint(4, (rows,), generator=g)


def ready(model, policy=FLOAT32, over=None, **options):
    optimizer = torch.optim.SGD((over or model).parameters(), 0.05, momentum=0.9)
    return mp.prepare(model, optimizer, policy, **options)


def entropy(model):
    return lambda x, y: functional.cross_entropy(model(x), y)


def ddp(model, **options):
    return DistributedDataParallel(model, broadcast_buffers=False, **options)


def digest(tensors):
    """Return a fingerprint of all bits."""
    whole = hashlib.sha256()
    for tensor in tensors:
        tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
        whole.update(tensor.detach().float().numpy().tobytes())
    return whole.hexdigest()


def weights(model, amp):
    params = [*model.parameters(), *amp.masters.values()]
    return digest([*params, *(s["momentum_buffer"] for s in amp.optimizer.state.values())])


def report(model, amp, results):
    return {
        "weights": weights(model, amp),
        "state": list(amp.state),
        "stepped": [result.stepped for result in results],
        "dropped": [result.dropped for result in results],
    }


# --- torch's own


@scenario
def native_scaler_without_a_word_between_ranks(rank):
    model = net()
    optimizer, scaler = torch.optim.SGD(model.parameters(), 0.1), torch.amp.GradScaler("cpu")
    x, y = batch(0, 0)
    scaler.scale(entropy(model)(x, y) * (torch.inf if rank else 1.0)).backward()
    scaler.step(optimizer)
    scaler.update()
    return {"scale": scaler.get_scale(), "weights": digest(model.parameters())}


# --- replicas that are averaged by hand


def replicas(rank, *, sync_overflow, average=True, bad_layer=None, steps=4):
    """Rank 1 gets an inf in one layer, in step 2, that nobody sends around."""
    model = net()
    amp = ready(model, sync_overflow=sync_overflow)
    results = []
    for number in range(steps):
        amp.backward(entropy(model)(*batch(number, rank)))
        for name, param in model.named_parameters():
            if average and not (number == 2 and name == bad_layer):
                distributed.all_reduce(param.grad)
                param.grad /= 2
        if number == 2 and rank == 1 and bad_layer:
            model.get_parameter(bad_layer).grad.view(-1)[3] = torch.inf
        if number == 2 and rank == 0 and bad_layer:
            model.get_parameter(bad_layer).grad.fill_(0.5)
        before = weights(model, amp), digest(model.buffers())
        with amp.unguarded():  # gradients are averaged while the scale is on them
            result = amp.apply()
        results.append(result)
        if not result.stepped:
            results_same = weights(model, amp) == before[0]
            assert results_same
    return report(model, amp, results)


@scenario
def local_inf_stops_all_ranks(rank):
    return replicas(rank, sync_overflow=True, bad_layer="3.weight")


@scenario
def ranks_that_do_not_agree_part(rank):
    return replicas(rank, sync_overflow=False, bad_layer="3.weight")


@scenario
def replicas_drop_the_same_micro_batches(rank):
    """Nobody sends the gradients around before they are divided."""
    model = net()
    amp = ready(model, on_bad_micro_batch="drop")
    for index in range(4):
        x, y = batch(index, rank)
        amp.backward(entropy(model)(x * (torch.inf if index == 1 + rank else 1.0), y))
    amp.unscale(mean=True)
    for param in model.parameters():
        distributed.all_reduce(param.grad)
    return report(model, amp, [amp.apply()])


@scenario
def step_that_one_rank_overflows_in(rank):
    model = net()
    amp = ready(model)
    before = [b.clone() for b in model.buffers()]
    x, y = batch(0, 0)
    x = x * (torch.inf if rank == 1 else 1.0)
    result = amp.step(entropy(model), x, y, clip_norm=1.0)
    same = all(torch.equal(b, a) for b, a in zip(before, model.buffers(), strict=True))
    return {**report(model, amp, [result]), "buffers": same, "culprit": result.culprit}


# --- DDP


def mixed_steps(rank, policy, pattern, way, bucket_view=False):
    model = net()
    amp = ready(model, policy)
    called = ddp(model, gradient_as_bucket_view=bucket_view)
    results, good = [], 0
    for bad in pattern:
        x, y = batch(good, rank)
        x = x * (torch.inf if bad == rank else 1.0)
        buffers = digest(model.buffers())
        if way == "step":
            result = amp.step(entropy(called), x, y)
        else:
            with amp.autocast():
                loss = entropy(called)(x, y)
            amp.backward(loss)
            result = amp.apply()
        results.append(result)
        if bad is not None:
            assert digest(model.buffers()) == buffers
        good += bad is None
    return {**report(model, amp, results), "weights_alone": digest(model.parameters())}


PATTERN = [None, 0, None, 1, 1, None, 0, None, None, 1, None, None, 0, 0, 1, None, None, 1, 0, None]


@scenario
def ddp_mixed_steps(rank):
    told = {}
    for policy in ("mixed_float16", "model_bfloat16", "autocast_bfloat16", "float32"):
        rule = mp.LossScale.static(64.0)
        policy = mp.Policy.parse(policy).with_loss_scale(rule)
        for way in ("step", "parts"):
            told[f"{policy.compute} {policy.by} {way}"] = mixed_steps(rank, policy, PATTERN, way)
        good = mixed_steps(rank, policy, [None] * PATTERN.count(None), "step", bucket_view=True)
        told[f"{policy.compute} {policy.by} good"] = good
    return told


def window(amp, called, parts, *, sync=None, mean=False):
    for index, (x, y) in enumerate(parts):
        quiet = sync is not None and not sync[index]
        with called.no_sync() if quiet else contextlib.nullcontext(), amp.autocast():
            loss = entropy(called)(x, y)
            amp.backward(loss if mean else loss / len(parts))
    return amp.apply(mean=mean)


@scenario
def ddp_windows_under_no_sync(rank):
    told = {}
    for name, sync in (("quiet", [False, False, True]), ("loud", [True] * 3)):
        model = net()
        amp = ready(model)
        called = ddp(model)
        results = []
        for number in range(3):
            parts = [batch(10 * number + i, rank) for i in range(3)]
            if number == 1 and rank == 1:
                parts[1] = (parts[1][0] * torch.inf, parts[1][1])
            before = weights(model, amp), digest(model.buffers())
            results.append(window(amp, called, parts, sync=sync))
            if number == 1:
                assert before == (weights(model, amp), digest(model.buffers()))
        told[name] = report(model, amp, results)
        told[name]["values"] = model[3].weight.tolist()
    return told


@scenario
def no_sync_where_gradients_are_added_up_apart_is_refused(rank):
    told = {}
    for name, policy, options in (
        ("drop", FLOAT32, {"on_bad_micro_batch": "drop"}),
        ("low", "model_bfloat16", {}),
    ):
        model = net()
        amp = ready(model, policy, **options)
        called = ddp(model)
        parts = [batch(i, rank) for i in range(2)]
        try:
            window(amp, called, parts, sync=[False, True])
            told[name] = "no error"
        except mp.BackendError as exc:
            told[name] = str(exc)
        amp.abort_step()
        told[f"{name} after"] = window(amp, called, parts).stepped
    return told


@scenario
def ranks_drop_the_same_micro_batches(rank):
    told = {}
    for policy in (FLOAT32, mp.Policy.parse("model_bfloat16").with_loss_scale(RULE)):
        for bucket_view in (False, True):
            for way in ("step", "parts"):
                ends = []
                for bad in (True, False):
                    model = net()
                    amp = ready(model, policy, on_bad_micro_batch="drop")
                    called = ddp(model, gradient_as_bucket_view=bucket_view)
                    parts = [batch(i, rank) for i in range(4)]
                    if bad:
                        broken = 1 + rank  # rank 0 the second, rank 1 the third
                        parts[broken] = (parts[broken][0] * torch.inf, parts[broken][1])
                    else:
                        parts = [parts[0], parts[3]]
                    if way == "parts":
                        result = window(amp, called, parts, mean=True)
                    else:
                        x, y = (torch.cat(item) for item in zip(*parts, strict=True))
                        result = amp.step(entropy(called), x, y, micro_batches=len(parts))
                    ends.append((weights(model, amp), digest(model.buffers())))
                    if bad:
                        told[f"{policy.by} {bucket_view} {way}"] = report(model, amp, [result])
                assert ends[0] == ends[1]
    return told


@scenario
def two_optimizers_and_losses_under_ddp(rank):
    """Against one process that sees both halves of the batch."""
    ends = []
    for distributed_run in (True, False):
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
        torch.manual_seed(2)
        for param in model.parameters():
            nn.init.normal_(param, 0, 0.1)
        optimizers = {
            "a": torch.optim.SGD(model[0].parameters(), 0.1),
            "b": torch.optim.SGD(model[2].parameters(), 0.1),
        }
        amp = mp.prepare(model, optimizers, FLOAT32, sync_overflow=distributed_run)
        called = ddp(model) if distributed_run else model
        losses = {"a": entropy(called), "b": lambda x, y, m=called: m(x).pow(2).mean()}
        for number in range(3):
            halves = [batch(number, r) for r in range(2)]
            x, y = halves[rank]
            if not distributed_run:
                x, y = (torch.cat(item) for item in zip(*halves, strict=True))
            assert amp.step(losses, x, y).stepped
            assert amp.step(losses["a"], x, y, optimizer="a").stepped
        ends.append(model)
    for one, two in zip(*(model.parameters() for model in ends), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-7)
    return {"weights": digest(ends[0].parameters())}


class Grows(nn.Module):
    """Its layer ``big`` leaves float16 where the input is large."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.first, self.big, self.last = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 4)
        with torch.no_grad():
            self.big.weight.fill_(200.0)

    def forward(self, x):
        return self.last(self.big(torch.relu(self.first(x))) / 1000)


@scenario
def ranks_keep_the_same_layer_full(rank):
    told = {}
    for wrapped in ("before", "after"):
        model = Grows()
        prepared = ddp(model) if wrapped == "before" else model
        policy = mp.Policy.named("mixed_float16").with_loss_scale(RULE)
        amp = ready(prepared, policy, on_overflow="keep full")
        loss_fn = entropy(ddp(prepared) if wrapped == "after" else prepared)
        stepped = []
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            for step in range(6):
                x, y = batch(step, rank)
                large = rank == 1 and step in (1, 3, 4)  # what the other rank has is harmless
                stepped.append(
                    amp.step(loss_fn, x.abs().clamp(max=1.0) * (1000 if large else 1), y).stepped
                )
        said = [str(entry.message) for entry in found if "keep full" in str(entry.message)]
        told[wrapped] = [stepped, list(amp.kept_full), weights(model, amp), said]
    return told


@scenario
def sharded_models_are_not_kept_full(rank):
    try:
        ready(sharded(), mp.Policy.named("mixed_float16"), on_overflow="keep full")
    except mp.BackendError as error:
        return {"error_said": str(error)}
    return {}


# --- FSDP2


def tower():
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Linear(8, 17), nn.LayerNorm(17), nn.GELU(), nn.Linear(17, 3, bias=False), nn.Linear(3, 4)
    )


def sharded():
    model = tower()
    fully_shard(model[0])
    fully_shard(model)
    return model


@scenario
def fsdp_equals_one_process(rank):
    told = {}
    for policy in ("float32", "mixed_bfloat16", "autocast_bfloat16"):
        policy = mp.Policy.parse(policy).with_loss_scale(RULE)
        model, alone = sharded(), tower()
        amp, own = ready(model, policy), ready(alone, policy, sync_overflow=False)
        norms = []
        for number in range(4):
            halves = [batch(number, r) for r in range(2)]
            both = tuple(torch.cat(item) for item in zip(*halves, strict=True))
            clip = 0.05 if number % 2 else None
            result = amp.step(entropy(model), *halves[rank], clip_norm=clip)
            expected = own.step(entropy(alone), *both, clip_norm=clip)
            norms.append((result.grad_norm, expected.grad_norm))
            assert result.stepped
        close = {"float32": 1e-5}.get(policy.compute, 2e-2)
        for one, two in norms:
            assert abs(one - two) <= close * two
        for one, two in zip(model.parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(one.full_tensor(), two, rtol=close, atol=close)
        name = f"{policy.compute} {policy.by}"
        told[name] = {"norms": [one for one, _ in norms], "weights": weights(model, amp)}
    return told


@scenario
def fsdp_skips_on_all_ranks(rank):
    told = {}
    for way in ("step", "parts"):
        model = sharded()
        amp = ready(model)
        results = []
        for number, bad in enumerate([None, 1, None, 0]):
            x, y = batch(number, rank)
            before = weights(model, amp) if amp.optimizer.state else None
            loss_fn = entropy(model)
            boost = torch.inf if bad == rank else 1.0
            if way == "step":
                result = amp.step(lambda x, y, f=loss_fn, b=boost: f(x, y) * b, x, y, clip_norm=1.0)
            else:
                for _ in range(2):
                    with amp.autocast():
                        loss = loss_fn(x, y) * boost / 2
                    amp.backward(loss)
                amp.unscale()
                result = amp.apply(clip_norm=1.0)
            results.append(result)
            if bad is not None:
                assert weights(model, amp) == before
        told[way] = {**report(model, amp, results), "culprit": results[1].culprit}
    return told


@scenario
def fsdp_local_inf_in_one_shard(rank):
    """The inf lies in the part of one gradient that one rank holds."""
    model = sharded()
    amp = ready(model)
    amp.backward(entropy(model)(*batch(0, rank)))
    if rank == 1:
        model[0].weight.grad.to_local().view(-1)[0] = torch.nan
    result = amp.apply()
    return {**report(model, amp, [result]), "culprit": result.culprit}


@scenario
def fsdp_huge_finite_gradients(rank):
    model = sharded()
    amp = ready(model)
    loss_fn = entropy(model)
    result = amp.step(
        lambda *b: loss_fn(*b) * 1e23, *batch(0, rank), clip_norm=1.0, keep_grads=True
    )
    total = sum(float(g.full_tensor().double().pow(2).sum()) for g in result.grads.values()) ** 0.5
    return {"stepped": result.stepped, "norm": result.grad_norm, "expected": total}


@scenario
def fsdp_beside_replicas(rank):
    """A layer that is not sharded overflows on one rank alone: no rank waits for another."""
    told = {}
    for clip in (None, 1.0):
        for boost in (torch.inf, torch.nan, 1e25):
            model = tower()
            fully_shard(model, ignored_params=set(model[4].parameters()))
            amp = ready(model)
            amp.backward(entropy(model)(*batch(0, rank)))
            model[4].bias.grad.fill_(boost if rank else 1.0)
            with amp.unguarded():  # the scale is still on it
                result = amp.apply(clip_norm=clip)
            told[f"{clip} {boost}"] = result.stepped
    return told


@scenario
def fsdp_drops_micro_batches(rank):
    ends = []
    for bad in (True, False):
        model = sharded()
        amp = ready(model, on_bad_micro_batch="drop")
        parts = [batch(i, rank) for i in range(3)]
        if bad and rank == 0:
            parts[1] = (parts[1][0] * torch.inf, parts[1][1])
        x, y = (torch.cat(i) for i in zip(*(parts if bad else parts[::2]), strict=True))
        result = amp.step(entropy(model), x, y, micro_batches=3 if bad else 2)
        ends.append((weights(model, amp), result.stepped, result.dropped))
    assert ends[0][0] == ends[1][0]
    return {"weights": ends[0][0], "dropped": [end[2] for end in ends], "stepped": ends[0][1]}


@scenario
def fsdp_refusals(rank):
    told = {}
    model = sharded()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    try:
        mp.prepare(model, optimizer, "model_bfloat16")
    except mp.BackendError as exc:
        told["model"] = str(exc)
    model = tower()
    amp = ready(model)
    fully_shard(model)
    try:
        amp.step(entropy(model), *batch(0, rank))
    except mp.BackendError as exc:
        told["late"] = str(exc)
    model = sharded()
    amp = ready(model, on_bad_micro_batch="drop")
    model.set_requires_gradient_sync(False)
    try:
        amp.backward(entropy(model)(*batch(0, rank)))
    except mp.BackendError as exc:
        told["quiet"] = str(exc)
    return told


@scenario
def fsdp_guarded_teacher(rank):
    teacher, model = sharded(), sharded()
    amp = ready(model, restore_on_skip=[teacher])

    def loss_fn(x, y, boost):
        with torch.no_grad():
            for param in teacher.parameters():
                param.mul_(0.9)
        return entropy(model)(x, y) * boost

    x, y = batch(0, rank)
    before = digest(teacher.parameters())
    assert not amp.step(loss_fn, x, y, torch.inf if rank else 1.0).stepped
    assert digest(teacher.parameters()) == before
    assert amp.step(loss_fn, x, y, 1.0).stepped
    return {"changed": digest(teacher.parameters()) != before}


@scenario
def fsdp_two_losses(rank):
    model, alone = sharded(), tower()
    amps = []
    for net_, agree in ((model, True), (alone, False)):
        optimizers = {
            "a": torch.optim.SGD(net_[0].parameters(), 0.1),
            "b": torch.optim.SGD(net_[3].parameters(), 0.1),
        }
        amps.append(mp.prepare(net_, optimizers, FLOAT32, sync_overflow=agree))
    for number in range(2):
        halves = [batch(number, r) for r in range(2)]
        both = tuple(torch.cat(item) for item in zip(*halves, strict=True))
        for net_, amp, data in ((model, amps[0], halves[rank]), (alone, amps[1], both)):
            losses = {"a": entropy(net_), "b": lambda x, y, m=net_: m(x).pow(2).mean()}
            assert amp.step(losses, *data).stepped
    for one, two in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(one.full_tensor(), two, rtol=1e-5, atol=1e-7)
    return {}


def main():
    rank, world, path = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    store = distributed.FileStore(path, world)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=world)
    torch.set_num_threads(1)
    for line in sys.stdin:
        try:
            told = {"told": SCENARIOS[line.strip()](rank)}
        except Exception:
            told = {"error": traceback.format_exc()}
        print(json.dumps(told), flush=True)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()

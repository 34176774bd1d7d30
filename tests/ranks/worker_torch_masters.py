"""One rank of two, which checks master weights under DDP and FSDP2.

python worker_torch_masters.py RANK STORE
"""

from __future__ import annotations

import datetime
import math
import sys

import numpy as np
import torch
from torch import distributed, nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import mpcore as mp

SCHEMES = ("copy", "copy:away", "split", "split:nearest", "kahan", "stochastic:3")


def net(seed=1):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def batch(number, rank, rows=8):
    g = torch.Generator().manual_seed(100 * number + rank)
    return torch.randn(rows, 8, generator=g), torch.randint(4, (rows,), generator=g)


def prepared(model, policy):
    return mp.prepare(
        model, torch.optim.AdamW(model.parameters(), 1e-2), policy, count_lost_updates="off"
    )


def same_on_both(weights):
    """Check that the other rank has the same bits."""
    for name, value in weights.items():
        everybody = [torch.empty(value.shape) for _ in range(2)]
        distributed.all_gather(everybody, torch.from_numpy(value))
        assert torch.equal(*everybody), name


def under_ddp(rank):
    """Ranks that began with other weights train on rank 0's truth, which stays equal."""
    runs = {}
    for scheme in SCHEMES:
        model = net(seed=1 + rank)
        truth = {name: p.detach().clone() for name, p in net(1).named_parameters()}
        amp = prepared(model, f"model_bfloat16, master={scheme}")
        wrapped = DistributedDataParallel(model)
        losses = []
        for number in range(6):
            boost = math.inf if number == 2 and rank == 1 else 1.0
            before = amp.weights()
            result = amp.step(
                lambda x, y, b=boost, w=wrapped: functional.cross_entropy(w(x), y) * b,
                *batch(number, rank),
            )
            assert result.stepped == (number != 2)
            losses.append(result.loss)
            weights = amp.weights()
            moved = any((weights[name] != before[name]).any() for name in weights)
            assert moved == (number != 2)
        same_on_both(weights)
        assert any((weights[name] != truth[name].numpy()).any() for name in truth)
        runs[scheme] = (losses, weights)
    for one, two in (("copy:away", "split"), ("copy", "split:nearest")):
        assert runs[one][0] == runs[two][0]
        for name, value in runs[one][1].items():
            np.testing.assert_array_equal(value, runs[two][1][name])


def first_truth_is_rank_0s(rank):
    model = net(seed=1 + rank)
    amp = prepared(model, "model_bfloat16, master=split")
    wrapped = DistributedDataParallel(model)
    wrapped(batch(0, rank)[0])
    amp.abort_step()
    for name, value in amp.weights().items():
        np.testing.assert_array_equal(value, net(1).get_parameter(name).detach().numpy())


def under_fsdp(rank):
    """Shards in float32 are the masters: nothing is kept beside them, and the truth is whole."""
    model = net()
    for layer in (model[0], model[2]):
        fully_shard(layer)
    fully_shard(model)
    before = {name: p.detach().numpy().copy() for name, p in net().named_parameters()}
    amp = prepared(model, "mixed_bfloat16")
    for name, value in amp.weights().items():
        np.testing.assert_array_equal(value, before[name])
    loss_fn = lambda x, y: functional.cross_entropy(model(x), y)  # noqa: E731
    for number in range(2):
        assert amp.step(loss_fn, *batch(number, rank)).stepped
    found, count = amp.array_bytes(), sum(value.size for value in before.values())
    assert found["masters"] == 0
    both = torch.tensor([found["parameters"], found["optimizer"]])
    distributed.all_reduce(both)
    assert both[0] == 4 * count
    assert 8 * count <= both[1] < 8 * count + 100
    trained = amp.weights()
    same_on_both(trained)
    amp.load_weights(before)
    for name, value in amp.weights().items():
        np.testing.assert_array_equal(value, before[name])
    refusal = ""
    try:
        prepared(model, "model_bfloat16, master=split")
    except mp.BackendError as exc:
        refusal = str(exc)
    assert "must not be prepared twice" in refusal
    other = net()
    fully_shard(other)
    try:
        prepared(other, "model_bfloat16, master=split")
    except mp.BackendError as exc:
        refusal = str(exc)
    assert "already are float32 masters, in shards" in refusal


def main():
    rank = int(sys.argv[1])
    distributed.init_process_group(
        "gloo",
        store=distributed.FileStore(sys.argv[2], 2),
        rank=rank,
        world_size=2,
        timeout=datetime.timedelta(seconds=600),
    )
    torch.set_num_threads(1)
    for check in (under_ddp, first_truth_is_rank_0s, under_fsdp):
        check(rank)
    distributed.destroy_process_group()
    print("all held")


if __name__ == "__main__":
    main()

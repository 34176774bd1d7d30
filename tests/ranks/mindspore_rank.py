"""One rank of test_mindspore.py, started by msrun; prints its findings as one line of JSON."""

from __future__ import annotations

import hashlib
import json
import sys

import mindspore as ms
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, amp, nn, ops
from mindspore.communication import get_rank, init

import mpcore as mp

INF = float("inf")
RULE = mp.LossScale(init_scale=1024.0, growth_interval=4)


def network():
    ms.set_seed(3)
    return nn.SequentialCell(
        nn.Dense(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dense(16, 4)
    ).set_train()


def loss_of(net):
    def loss_fn(x, y, boost):
        return ops.cross_entropy(net(x), y) * boost

    return loss_fn


def batch(rank, boost):
    rng = np.random.default_rng(rank)
    x, y = rng.normal(size=(16, 8)).astype("f4"), rng.integers(0, 4, 16).astype("i4")
    return Tensor(x), Tensor(y), Tensor(boost, ms.float32)


def digest(params):
    joined = b"".join(param.asnumpy().tobytes() for param in params)
    return hashlib.sha256(joined).hexdigest()


class OneRank(mp.OverflowDetector, nn.Cell):
    """A register that only rank 1 has raised: no value shows it, on no rank."""

    kind = "status_register"

    def __init__(self, rank) -> None:
        nn.Cell.__init__(self, auto_prefix=False)
        self.down = Parameter(Tensor(rank != 1), requires_grad=False)

    def read(self, grads):
        return self.down.value()

    def reduce(self, each, quiet):
        return tuple([ops.logical_and(finite, quiet) for finite in each])


def prepared(**options):
    net = network()
    optimizer = nn.Momentum(net.trainable_params(), 0.1, 0.9)
    policy = mp.Policy().with_loss_scale(RULE)
    return net, optimizer, mp.prepare(net, optimizer, policy, **options)


def jitted(cell):
    def run(*args):
        return cell(*args)

    return ms.jit(run, fullgraph=True)


def mixed_steps(rank, *, compiled):
    """Twenty steps, of which each rank spoils others."""
    net, optimizer, bound = prepared()
    cell = bound.train_cell(loss_of(net))
    run = jitted(cell) if compiled else cell
    faults = np.random.default_rng(11).random((2, 20)) < 0.15
    stepped = []
    buffers = [p for p in net.get_parameters() if not p.requires_grad]
    kept = True
    for step in range(20):
        before = [p.asnumpy().copy() for p in buffers]
        result = bound.result(run(*batch(rank, INF if faults[rank, step] else 1.0)))
        stepped.append(result.stepped)
        if not result.stepped:
            pairs = zip(before, buffers, strict=True)
            kept = kept and all((b == p.asnumpy()).all() for b, p in pairs)
    return {
        "stepped": stepped,
        "expected": (~faults.any(0)).tolist(),
        "scale": bound.scale,
        "kept_buffers": bool(kept),
        "weights": digest([*net.trainable_params(), *optimizer.moments]),
        "skipped": bound.state.skipped_steps,
    }


def dropped_parts(rank):
    """A micro-batch that overflows on one rank is left out on both."""
    net, _, bound = prepared(on_bad_micro_batch="drop")
    x, y, boost = batch(rank, 1.0)
    if rank == 1:
        x[0, 0] = INF
    result = bound.step(loss_of(net), x, y, boost, micro_batches=2)
    return {
        "stepped": result.stepped,
        "dropped": result.dropped,
        "weights": digest(net.trainable_params()),
    }


def hidden_overflow(rank, *, sync_overflow):
    net, _, bound = prepared(detector=OneRank(rank), sync_overflow=sync_overflow)
    return bound.step(loss_of(net), *batch(rank, 1.0)).stepped


def native(rank):
    """P17: amp.all_finite before the gradients are averaged asks this rank alone."""
    net = network()
    params = ParameterTuple(net.trainable_params())
    grads = ms.grad(loss_of(net), None, params)(*batch(rank, INF if rank == 1 else 1.0))
    return bool(amp.all_finite(grads).asnumpy())


def main() -> None:
    ms.runtime.launch_blocking()
    ms.set_device("CPU")
    init()
    ms.set_auto_parallel_context(parallel_mode="data_parallel", gradients_mean=True)
    rank = get_rank()
    found = {
        "eager": mixed_steps(rank, compiled=False),
        "jit": mixed_steps(rank, compiled=True),
        "parts": dropped_parts(rank),
        "agreed": hidden_overflow(rank, sync_overflow=True),
        "alone": hidden_overflow(rank, sync_overflow=False),
        "native": native(rank),
    }
    with open(f"{sys.argv[1]}/rank{rank}.json", "w") as file:
        json.dump(found, file)


if __name__ == "__main__":
    main()

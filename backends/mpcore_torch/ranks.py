"""What the ranks of a distributed run say to each other, and the shards that they hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from mpcore.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = [
    "agree",
    "gathered",
    "in_group",
    "largest",
    "local",
    "over_shards",
    "several",
    "unsynced",
]

_ALONE = (
    "mpcore: rank {rank} of {ranks} got no answer when it asked all ranks whether the gradients "
    "are finite: another one has ended, died, or runs other steps; each must run the same number"
)
_JOINED = (
    "ranks with unequal numbers of batches cannot train under torch's Join: all of them vote on "
    "every step. Give each the same number: DistributedSampler(..., drop_last=True), or stop all "
    "at the smallest"
)


def _no() -> bool:
    return False


in_group: Callable[[], bool] = distributed.is_initialized if distributed.is_available() else _no
"""Return whether this process belongs to a distributed run, be it the only one."""


def several() -> bool:
    """Return whether this process is one of several ranks."""
    return in_group() and bool(distributed.get_world_size() > 1)


def agree(verdicts: Iterable[bool], device: torch.device) -> tuple[bool, ...]:
    """Return for each verdict whether it holds on every rank; one small collective.

    Args:
        verdicts: as many on each rank.
        device: where the collective runs, that of the parameters.
    """
    votes = torch.tensor([float(verdict) for verdict in verdicts], device=device)
    try:
        distributed.all_reduce(votes, distributed.ReduceOp.MIN)
    except RuntimeError as exc:
        exc.add_note(_ALONE.format(rank=distributed.get_rank(), ranks=distributed.get_world_size()))
        raise
    return tuple(vote > 0 for vote in votes.tolist())


def gathered(value: Any) -> list[Any]:
    """Return what each rank has for ``value``, a small thing that pickle takes."""
    found: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(found, value)
    return found


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Return the part of a DTensor that this rank holds, in the same memory; others as they are."""
    if type(tensor) is torch.Tensor or not hasattr(tensor, "to_local"):
        return tensor
    with torch.no_grad():
        return tensor.to_local()


def over_shards(norms: torch.Tensor, grads: list[torch.Tensor]) -> torch.Tensor:
    """Return the norms of whole gradients from those of their shards; one collective a mesh.

    Args:
        norms: L2 norm of what this rank holds of each gradient, shape (tensors,).
        grads: the gradients; only those that are DTensors are added up.
    """
    for group, rows in _shards(grads).items():
        squares = norms[rows].square()
        distributed.all_reduce(squares, group=group)
        norms[rows] = squares.sqrt()
    return norms


def largest(values: torch.Tensor, grads: list[torch.Tensor]) -> torch.Tensor:
    """Return for each gradient the largest of ``values`` over the ranks that hold its shards."""
    for group, rows in _shards(grads).items():
        mine = values[rows]
        distributed.all_reduce(mine, distributed.ReduceOp.MAX, group=group)
        values[rows] = mine
    return values


def _shards(grads: list[torch.Tensor]) -> dict[Any, list[int]]:
    """Return which gradients are sharded over which group of ranks."""
    rows: dict[Any, list[int]] = {}
    for row, grad in enumerate(grads):
        if type(grad) is not torch.Tensor and hasattr(grad, "placements"):
            for axis, placement in enumerate(grad.placements):
                if placement.is_shard():
                    rows.setdefault(grad.device_mesh.get_group(axis), []).append(row)
    return rows


def unsynced() -> bool:
    """Return whether the forward pass that runs is DDP's, under its ``no_sync``.

    Raises:
        BackendError: it is under ``Join``, which lets ranks that have ended answer DDP alone: they
            would take the vote on an overflow for a part of its gradients.
    """
    wrapper = getattr(DistributedDataParallel, "_active_ddp_module", None)
    if wrapper is None:
        return False
    if wrapper._join_config.enable:
        raise BackendError(_JOINED)
    return not wrapper.require_backward_grad_sync

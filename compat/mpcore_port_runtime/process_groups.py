"""Groups of processes: what torch's collectives take as ``group``, and what of them one has.

The only group is that of all processes; of one process every collective gives it its own. Source:
torch/distributed/distributed_c10d.py, torch 2.13.0.
"""

from __future__ import annotations

from typing import Any

from mpcore.errors import BackendError
from mpcore_port_runtime.in_place import put

__all__ = [
    "WORLD",
    "Done",
    "ProcessGroup",
    "gather_object",
    "gather_to",
    "new_group",
    "scatter_from",
]


class ProcessGroup:
    """The group of all processes."""

    def size(self) -> int:
        """Return the number of processes."""
        return _count()

    def rank(self) -> int:
        """Return the number of this process, from 0."""
        from mpcore_port_runtime.device import get_rank

        return get_rank()


WORLD = ProcessGroup()
"""torch.distributed.group.WORLD."""


class Done:
    """What an asynchronous collective returns: it has been waited for."""

    def wait(self, timeout: Any = None) -> bool:
        """Return True."""
        del timeout
        return True

    def is_completed(self) -> bool:
        """Return True."""
        return True


def new_group(ranks: Any = None, *_: Any, **__: Any) -> ProcessGroup:
    """Return the group of all processes; how torch's are reached means nothing.

    Raises:
        BackendError: it is to be one of some of them.
    """
    everyone = list(range(_count()))
    if ranks is not None and sorted(int(rank) for rank in ranks) != everyone:
        msg = (
            f"`ranks` must be those of all processes, {everyone}, got {list(ranks)}: groups of "
            "some are named in MindSpore, mindspore.communication.create_group"
        )
        raise BackendError(msg)
    return WORLD


def gather_to(
    tensor: Any, gather_list: Any = None, dst: int = 0, group: Any = None, async_op: bool = False
) -> Done | None:
    """Give the list the tensor of this process, in place.

    Raises:
        BackendError: there are several processes.
    """
    del dst, group
    _alone("gather")
    if gather_list:
        put(gather_list[0], tensor)
    return Done() if async_op else None


def scatter_from(
    tensor: Any, scatter_list: Any = None, src: int = 0, group: Any = None, async_op: bool = False
) -> Done | None:
    """Give the tensor what the list has for this process, in place.

    Raises:
        BackendError: there are several processes.
    """
    del src, group
    _alone("scatter")
    if scatter_list:
        put(tensor, scatter_list[0])
    return Done() if async_op else None


def gather_object(
    obj: Any, object_gather_list: Any = None, dst: int = 0, group: Any = None
) -> None:
    """Give the list the object of this process, in place.

    Raises:
        BackendError: there are several processes.
    """
    del dst, group
    _alone("gather_object")
    if object_gather_list:
        object_gather_list[0] = obj


def _alone(name: str) -> None:
    if _count() > 1:
        msg = f"{name} was not run in {_count()} processes: use port.all_gather"
        raise BackendError(msg)


def _count() -> int:
    from mpcore_port_runtime.device import get_world_size

    return get_world_size()

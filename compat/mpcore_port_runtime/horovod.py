"""horovod.torch in one process: a step is the optimizer's own, and what is reduced is its own.

Whoever says that there are several processes is refused by ``init``. Two things that horovod does
to a process that is alone show in its numbers, and are done here as well: an optimizer that is
wrapped starts anew, and ``broadcast_optimizer_state`` steps once, by gradients of zeros, where
there is no state yet.

Source: horovod/torch/__init__.py, compression.py, functions.py, mpi_ops.py and optimizer.py,
horovod 0.28.1.
"""

from __future__ import annotations

import copy
import os
from collections import Counter, defaultdict
from contextlib import nullcontext
from enum import IntEnum
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import mindspore as ms
from mindspore import Tensor, ops

from mpcore.errors import BackendError
from mpcore_port_runtime.device import get_world_size
from mpcore_port_runtime.groups import Optimizer
from mpcore_port_runtime.optimizers import SGD
from mpcore_port_runtime.own_optimizers import OwnOptimizer
from mpcore_port_runtime.training import step

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "Max",
    "Min",
    "Product",
    "Sum",
    "allgather",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "grouped_allreduce",
    "init",
    "is_initialized",
    "join",
    "poll",
    "rank",
    "shutdown",
    "size",
    "synchronize",
]

_SIZES = (
    *("HOROVOD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS", "MS_WORKER_NUM"),
    "WORLD_SIZE",
)
"""What launchers call the number of processes: horovodrun, MPI's, slurm's, msrun and torchrun."""


class _Op(IntEnum):
    """How processes are put together; what one gives is its own."""

    Average = 0
    Sum = 1
    Adasum = 2
    Min = 3
    Max = 4
    Product = 5


Average, Sum, Adasum, Min, Max, Product = _Op

_JOINED: list[bool] = []


def init(*_: Any, **__: Any) -> None:
    """Begin, in one process.

    Raises:
        NotImplementedError: the environment says that there are several.
    """
    said = {name: os.environ[name] for name in _SIZES if os.environ.get(name, "").isdigit()}
    several = [f"{name}={value}" for name, value in said.items() if int(value) > 1]
    if several or get_world_size() > 1:
        msg = (
            f"`horovod` is ported for one process, here are several ({', '.join(several)}): use "
            "torch.distributed with DistributedDataParallel, and port that"
        )
        raise NotImplementedError(msg)
    _JOINED[:] = [True]


def shutdown() -> None:
    """End."""
    _JOINED.clear()


def is_initialized() -> bool:
    """Return whether ``init`` was called."""
    return bool(_JOINED)


def _check() -> None:
    if not _JOINED:
        msg = "horovod has not been initialized; use hvd.init()"
        raise ValueError(msg)


def rank() -> int:
    """Return the number of this process: 0."""
    _check()
    return 0


def size() -> int:
    """Return the number of processes: 1."""
    _check()
    return 1


def barrier(**_: Any) -> None:
    """Wait for nobody."""


def join(device: int = -1) -> int:
    """Return the number of the process that came last."""
    del device
    return rank()


class _NoneCompressor:
    """Hands on what it is given."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Return the tensor."""
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Return the tensor."""
        del ctx
        return tensor


class _FP16Compressor:
    """Rounds to float16 on the way."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Return the tensor in float16, and what it was in."""
        floats = tensor.dtype.is_floating_point
        return (tensor.astype(ms.float16) if floats else tensor), tensor.dtype

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Return the tensor in what it was in."""
        return tensor.astype(ctx) if ctx.is_floating_point else tensor


class Compression:
    """What tensors are on the way."""

    none = _NoneCompressor
    fp16 = _FP16Compressor


def _op(op: Any, average: Any) -> None:
    if op is not None and average is not None:
        msg = "`average` must be left out where there is `op`"
        raise ValueError(msg)


def _scaled(tensor: Any, *factors: float) -> Any:
    """Return a copy times numbers, one after the other, rounded to the tensor's own each time."""
    made = tensor.copy()
    for factor in factors:
        if factor == 1.0:
            continue
        wide = tensor.dtype in (ms.float16, ms.float32)
        made = (made.astype(ms.float32 if wide else ms.float64) * factor).astype(tensor.dtype)
    return made


def allreduce(
    tensor: Any,
    average: Any = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """Return a copy times both factors; rounded to float16 on the way where that was asked for."""
    del name
    _check()
    _op(op, average)
    packed, ctx = compression.compress(tensor)
    return compression.decompress(_scaled(packed, prescale_factor, postscale_factor), ctx)


def grouped_allreduce(
    tensors: Any,
    average: Any = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Any]:
    """Return what ``allreduce`` returns of each."""
    made = (average, name, compression, op, prescale_factor, postscale_factor)
    return [allreduce(one, *made) for one in tensors]


def allreduce_(
    tensor: Any,
    average: Any = None,
    name: str | None = None,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """Multiply the tensor by both factors, in place; return it."""
    del name
    _check()
    _op(op, average)
    if (prescale_factor, postscale_factor) != (1.0, 1.0):
        tensor.copy_(_scaled(tensor, prescale_factor, postscale_factor))
    return tensor


class _Handle:
    """Something that was begun, and is done."""

    def __init__(self, value: Any) -> None:
        self.value = value


def allreduce_async(
    tensor: Any,
    average: Any = None,
    name: str | None = None,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> _Handle:
    """Return what ``synchronize`` returns a copy times both factors of."""
    del name
    _check()
    _op(op, average)
    return _Handle(_scaled(tensor, prescale_factor, postscale_factor))


def allreduce_async_(
    tensor: Any,
    average: Any = None,
    name: str | None = None,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> _Handle:
    """Return what ``synchronize`` returns the tensor of, multiplied in place."""
    return _Handle(allreduce_(tensor, average, name, op, prescale_factor, postscale_factor))


def poll(handle: _Handle) -> bool:
    """Return whether it is done: it is."""
    del handle
    return True


def synchronize(handle: _Handle) -> Any:
    """Return what was begun."""
    return handle.value


def allgather(tensor: Any, name: str | None = None) -> Any:
    """Return a copy: the parts of all processes along the first axis are its own.

    Raises:
        ValueError: the tensor has no axis.
    """
    del name
    _check()
    if tensor.ndim == 0:
        msg = "`tensor` must have an axis along which parts are put together"
        raise ValueError(msg)
    return tensor.copy()


def _check_root(root_rank: int) -> None:
    _check()
    if root_rank != 0:
        msg = f"`root_rank` must be 0, the one process, got {root_rank}"
        raise ValueError(msg)


def broadcast(tensor: Any, root_rank: int, name: str | None = None) -> Any:
    """Return a copy."""
    del name
    _check_root(root_rank)
    return tensor.copy()


def broadcast_(tensor: Any, root_rank: int, name: str | None = None) -> Any:
    """Return the tensor."""
    del name
    _check_root(root_rank)
    return tensor


def broadcast_object(obj: Any, root_rank: int = 0, name: str | None = None) -> Any:
    """Return the object."""
    del name
    _check_root(root_rank)
    return obj


def allgather_object(obj: Any, name: str | None = None) -> list[Any]:
    """Return a list of a copy."""
    del name
    _check()
    return [copy.deepcopy(obj)]


def broadcast_parameters(params: Any, root_rank: int) -> None:
    """Leave them as they are.

    Raises:
        ValueError: they are neither in a dictionary nor in a list.
    """
    if not isinstance(params, (dict, list)):
        msg = f"`params` must be a dictionary or a list, got {type(params)}"
        raise ValueError(msg)  # as horovod does
    _check_root(root_rank)


def broadcast_optimizer_state(optimizer: Any, root_rank: int, model: Any = None) -> None:
    """Step once by gradients of zeros where the optimizer has no state yet; that is all.

    With a decay of weights it moves them, Adam's count of steps is 1 behind it, and gradients stay
    zeros: horovod makes a state so. Plain SGD has none, and steps each time.

    Args:
        optimizer: a port's.
        root_rank: 0.
        model: means nothing: gradients are dense.
    """
    del model
    _check_root(root_rank)
    _check_kind(optimizer)
    if _has_state(optimizer):
        return
    for group in optimizer.param_groups:
        for param in group["params"]:
            if param.requires_grad:
                param.grad = ops.zeros(param.shape, ms.float32)
    step(optimizer)


def _check_kind(optimizer: Any) -> None:
    if not isinstance(optimizer, (Optimizer, OwnOptimizer)):
        msg = f"`optimizer` must be one of a port's, which keep torch's state, got {optimizer!r}"
        raise BackendError(msg)


def _has_state(optimizer: Any) -> bool:
    """Return whether torch's optimizer would have a state of any parameter."""
    if isinstance(optimizer, OwnOptimizer):
        return any(bool(held) for held in optimizer.state.values())
    if isinstance(optimizer, SGD):  # torch keeps no more of it than momentum
        momenta = [g["momentum"] for g in optimizer.param_groups for _ in g["params"]]
    else:
        momenta = [1.0] * len(optimizer.counts)
    return any(
        momentum and float(count.value()) > 0
        for momentum, count in zip(momenta, optimizer.counts, strict=True)
    )


def _forget(optimizer: Any) -> None:
    """Have an optimizer start anew, its groups as they are."""
    if isinstance(optimizer, OwnOptimizer):
        optimizer.state = defaultdict(dict)
        return
    for name in optimizer.keeps:
        fresh = optimizer.parameters.clone(prefix=f"{name}_", init=optimizer._start(name))
        for held, start in zip(getattr(optimizer, name), fresh, strict=True):
            ops.assign(held, start.value())
    for count in optimizer.counts:
        ops.assign(count, Tensor(0.0, ms.float32))


def DistributedOptimizer(  # noqa: N802  # horovod's name
    optimizer: Any,
    named_parameters: Any = None,
    compression: Any = Compression.none,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    sparse_as_dense: bool = False,
) -> Any:
    """Return the optimizer, its state forgotten, with horovod's methods.

    In one process horovod reduces nothing: neither ``compression`` nor
    ``gradient_predivide_factor`` rounds a gradient, and nobody counts backward passes.

    Raises:
        NotImplementedError: ``add_param_group`` of what is returned.
        ValueError: arguments that horovod does not take.
    """
    del compression, sparse_as_dense
    _check()
    _check_kind(optimizer)
    if gradient_predivide_factor != 1.0 and op != Average:
        msg = "`gradient_predivide_factor` must be 1 where `op` is not Average"
        raise ValueError(msg)
    if backward_passes_per_step <= 0:
        msg = f"`backward_passes_per_step` must be > 0, got {backward_passes_per_step}"
        raise ValueError(msg)
    _check_names(optimizer, named_parameters)
    _check_groups(num_groups if groups is None and num_groups else groups)
    _forget(optimizer)
    optimizer.backward_passes_per_step = backward_passes_per_step
    optimizer.synchronize = barrier
    optimizer.skip_synchronize = _skip_synchronize
    optimizer.set_backward_passes_per_step = partial(_set_passes, optimizer)
    optimizer.add_param_group = _no_more_groups
    return optimizer


def _check_names(optimizer: Any, named: Any) -> None:
    if named is None:
        return
    listed = list(named)
    if any(not isinstance(one, tuple) for one in listed):
        msg = "`named_parameters` must be tuples (name, parameter), as model.named_parameters() has"
        raise ValueError(msg)
    twice = [name for name, times in Counter(name for name, _ in listed).items() if times > 1]
    if twice:
        msg = f"`named_parameters` must have each name once, not {', '.join(twice)}"
        raise ValueError(msg)
    ids = {id(param) for _, param in listed}
    if any(id(param) not in ids for group in optimizer.param_groups for param in group["params"]):
        msg = "`named_parameters` must name all that the optimizer moves, some are not named"
        raise ValueError(msg)


def _check_groups(groups: Any) -> None:
    if groups is not None and not (isinstance(groups, list) or groups > 0):
        msg = f"`groups` must be a number > 0 or a list of lists, got {groups!r}"
        raise ValueError(msg)


def _skip_synchronize() -> AbstractContextManager[None]:
    return nullcontext()


def _set_passes(optimizer: Any, passes: int) -> None:
    optimizer.backward_passes_per_step = passes


def _no_more_groups(*_: Any, **__: Any) -> NoReturn:
    msg = "`add_param_group` must be called before DistributedOptimizer: horovod forgets defaults"
    raise NotImplementedError(msg)

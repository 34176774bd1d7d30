"""horovod.torch over torch.distributed: the same names, started by torchrun.

What is reduced has horovod's scaling: a factor before the sum, one behind it, each rounded to the
tensor's own dtype, and the mean is a factor of one over the number of processes. Gradients are
reduced in ``synchronize`` or ``step``, one after the other; horovod begins with them in the
backward pass. Communication through HCCL was not run; gloo's was.

Source: horovod/torch/__init__.py, compression.py, functions.py, mpi_ops.py and optimizer.py, and
horovod/common/operations.cc, horovod 0.28.1.
"""

from __future__ import annotations

import copy
import os
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from collections.abc import Iterator

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
    "cross_rank",
    "cross_size",
    "grouped_allreduce",
    "init",
    "is_initialized",
    "local_rank",
    "local_size",
    "nccl_built",
    "poll",
    "rank",
    "shutdown",
    "size",
    "synchronize",
]

Average, Sum, Adasum, Min, Max, Product = range(6)

_OTHERS = ("HOROVOD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
"""What horovodrun's and MPI's launchers call the number of processes."""
_STATE = {"joined": False, "began": False}


def _backend() -> str:
    npu = getattr(torch, "npu", None)
    if npu is not None and npu.is_available():
        return "cpu:gloo,npu:hccl"
    return "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"


def init() -> None:
    """Join the processes that torchrun started; of one that is alone nothing is asked.

    Raises:
        RuntimeError: another launcher says that there are several.
    """
    if not dist.is_initialized():
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            dist.init_process_group(_backend())
            _STATE["began"] = True
        elif several := [name for name in _OTHERS if int(os.environ.get(name, "1")) > 1]:
            msg = f"processes must be started by torchrun, {several[0]} says another launcher did"
            raise RuntimeError(msg)
    _STATE["joined"] = True


def shutdown() -> None:
    """Leave the other processes."""
    if _STATE["began"] and dist.is_initialized():
        dist.destroy_process_group()
    _STATE.update(joined=False, began=False)


def is_initialized() -> bool:
    """Return whether ``init`` was called."""
    return _STATE["joined"]


def _check() -> None:
    if not _STATE["joined"]:
        msg = "horovod has not been initialized; use hvd.init()"
        raise ValueError(msg)


def _said(name: str, alone: int) -> int:
    _check()
    return int(os.environ.get(name, alone)) if dist.is_initialized() else alone


def size() -> int:
    """Return the number of processes."""
    _check()
    return dist.get_world_size() if dist.is_initialized() else 1


def rank() -> int:
    """Return the number of this process."""
    _check()
    return dist.get_rank() if dist.is_initialized() else 0


def local_size() -> int:
    """Return the number of processes on this machine."""
    return _said("LOCAL_WORLD_SIZE", 1)


def local_rank() -> int:
    """Return the number of this process on this machine."""
    return _said("LOCAL_RANK", 0)


def cross_size() -> int:
    """Return the number of machines."""
    return _said("GROUP_WORLD_SIZE", 1)


def cross_rank() -> int:
    """Return the number of this machine."""
    return _said("GROUP_RANK", 0)


def nccl_built() -> int:
    """Return 0: torch.distributed communicates."""
    return 0


def barrier() -> None:
    """Wait for all processes."""
    if size() > 1:
        dist.barrier()


class NoneCompressor:
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


class FP16Compressor:
    """Rounds to float16 on the way."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Return the tensor in float16, and what it was in."""
        floats = tensor.dtype.is_floating_point
        return (tensor.to(torch.float16) if floats else tensor), tensor.dtype

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Return the tensor in what it was in."""
        return tensor.to(ctx) if ctx.is_floating_point else tensor


class Compression:
    """What tensors are on the way."""

    none = NoneCompressor
    fp16 = FP16Compressor


_OPS = {
    Average: dist.ReduceOp.SUM,
    Sum: dist.ReduceOp.SUM,
    Min: dist.ReduceOp.MIN,
    Max: dist.ReduceOp.MAX,
    Product: dist.ReduceOp.PRODUCT,
}


def _asked(op: int | None, average: bool | None) -> int:
    if op is not None and average is not None:
        msg = "`average` must be left out where there is `op`"
        raise ValueError(msg)
    if op is None:
        op = Sum if average is False else Average
    if op not in _OPS and not (op == Adasum and size() == 1):
        msg = f"`op` must be Average, Sum, Min, Max or Product of several processes, got {op}"
        raise NotImplementedError(msg)
    return op


def _scale(tensor: Any, factor: float) -> None:
    """Multiply in place: 16 bits over float32, whole numbers over float64, and cut off."""
    if factor == 1.0:
        return
    whole = not tensor.dtype.is_floating_point
    wide = torch.float64 if whole or tensor.dtype == torch.float64 else torch.float32
    by = torch.tensor(factor, dtype=wide, device=tensor.device)
    tensor.copy_((tensor.to(wide) * by).to(tensor.dtype))


def _reduce(tensor: Any, op: int, before: float = 1.0, behind: float = 1.0) -> Any:
    ranks = size()
    with torch.no_grad():
        _scale(tensor, before)
        if ranks > 1:
            dist.all_reduce(tensor, _OPS[op])
        _scale(tensor, behind / ranks if op == Average else behind)
    return tensor


class _Allreduce(torch.autograd.Function):  # type: ignore[misc]  # torch is untyped here
    @staticmethod
    def forward(ctx: Any, tensor: Any, *asked: Any) -> Any:
        ctx.asked = asked
        return _reduce(tensor.detach().clone(memory_format=torch.contiguous_format), *asked)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return _Allreduce.apply(grads[0], *ctx.asked), None, None, None


def allreduce(
    tensor: Any,
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """Return the mean over processes, or what ``op`` says; gradients are reduced alike."""
    del name
    asked = (_asked(op, average), prescale_factor, postscale_factor)
    packed, ctx = compression.compress(tensor)
    return compression.decompress(_Allreduce.apply(packed, *asked), ctx)


def grouped_allreduce(
    tensors: Any,
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Any]:
    """Return what ``allreduce`` returns of each."""
    made = (average, name, compression, op, prescale_factor, postscale_factor)
    return [allreduce(one, *made) for one in tensors]


def allreduce_(
    tensor: Any,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """Reduce in place; return the tensor."""
    del name
    return _reduce(tensor, _asked(op, average), prescale_factor, postscale_factor)


class _Handle:
    def __init__(self, value: Any) -> None:
        self.value = value


def allreduce_async(
    tensor: Any,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> _Handle:
    """Reduce a copy now; ``synchronize`` returns it."""
    made = tensor.detach().clone(memory_format=torch.contiguous_format)
    return _Handle(allreduce_(made, average, name, op, prescale_factor, postscale_factor))


def allreduce_async_(
    tensor: Any,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> _Handle:
    """Reduce in place now; ``synchronize`` returns the tensor."""
    return _Handle(allreduce_(tensor, average, name, op, prescale_factor, postscale_factor))


def poll(handle: _Handle) -> bool:
    """Return whether it is done: it is."""
    del handle
    return True


def synchronize(handle: _Handle) -> Any:
    """Return what was reduced."""
    return handle.value


class _Allgather(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, tensor: Any) -> Any:
        sizes = [torch.zeros(1, dtype=torch.int64, device=tensor.device) for _ in range(size())]
        dist.all_gather(sizes, torch.tensor([len(tensor)], device=tensor.device))
        ctx.counts = [int(one) for one in sizes]
        own = tensor.detach().contiguous()
        parts = [tensor.new_empty((count, *tensor.shape[1:])) for count in ctx.counts]
        widest = max(ctx.counts)  # gloo gathers equal shapes
        padded = own.new_zeros((widest, *tensor.shape[1:]))
        padded[: len(own)] = own
        whole = [torch.empty_like(padded) for _ in parts]
        dist.all_gather(whole, padded)
        return torch.cat([one[:count] for one, count in zip(whole, ctx.counts, strict=True)])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        start, count = sum(ctx.counts[: rank()]), ctx.counts[rank()]
        return _reduce(grads[0].clone(), Average).narrow(0, start, count)


def allgather(tensor: Any, name: str | None = None) -> Any:
    """Return the tensors of all processes along their first axis, which may differ in length.

    Raises:
        ValueError: the tensor has no axis.
    """
    del name
    _check()
    if tensor.ndim == 0:
        msg = "`tensor` must have an axis along which parts are put together"
        raise ValueError(msg)
    return _Allgather.apply(tensor) if size() > 1 else tensor.clone()


class _Broadcast(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, tensor: Any, root_rank: int) -> Any:
        ctx.root_rank = root_rank
        return broadcast_(tensor.detach().clone(), root_rank)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        made = _reduce(grads[0].clone(), Average)
        return made if rank() == ctx.root_rank else made * 0, None


def _check_root(root_rank: int) -> None:
    if not 0 <= root_rank < size():
        msg = f"`root_rank` must be one of {size()} processes, got {root_rank}"
        raise ValueError(msg)


def broadcast(tensor: Any, root_rank: int, name: str | None = None) -> Any:
    """Return a copy of one process's tensor."""
    del name
    _check_root(root_rank)
    return _Broadcast.apply(tensor, root_rank)


def broadcast_(tensor: Any, root_rank: int, name: str | None = None) -> Any:
    """Give the tensor one process's values; return it."""
    del name
    _check_root(root_rank)
    if size() > 1:
        with torch.no_grad():
            dist.broadcast(tensor.detach(), root_rank)
    return tensor


def broadcast_object(obj: Any, root_rank: int = 0, name: str | None = None) -> Any:
    """Return one process's object."""
    del name
    _check_root(root_rank)
    held = [obj]
    if size() > 1:
        dist.broadcast_object_list(held, root_rank)
    return obj if rank() == root_rank else held[0]


def allgather_object(obj: Any, name: str | None = None) -> list[Any]:
    """Return the objects of all processes, copies each."""
    del name
    if size() == 1:
        return [copy.deepcopy(obj)]
    held: list[Any] = [None] * size()
    dist.all_gather_object(held, obj)
    return held


def broadcast_parameters(params: Any, root_rank: int) -> None:
    """Give tensors in a dictionary or a list, named or not, one process's values.

    Raises:
        ValueError: they are in neither.
    """
    if isinstance(params, dict):
        listed = sorted(params.items())
    elif isinstance(params, list):
        listed = [one if isinstance(one, tuple) else (None, one) for one in params]
    else:
        msg = f"`params` must be a dictionary or a list, got {type(params)}"
        raise ValueError(msg)  # as horovod does
    for _, tensor in listed:
        broadcast_(tensor, root_rank)


def broadcast_optimizer_state(optimizer: Any, root_rank: int, model: Any = None) -> None:
    """Give an optimizer one process's state, rates and settings.

    One that has no state yet steps once by gradients of zeros, on every process: with a decay of
    weights it moves them, and Adam's count is 1 behind it. Gradients stay zeros.

    Args:
        optimizer: of torch, or what DistributedOptimizer returned.
        root_rank: the process.
        model: means nothing: gradients are dense.
    """
    del model
    if isinstance(optimizer, torch.optim.LBFGS):
        msg = "`optimizer` must be another than LBFGS, whose state is not broadcast"
        raise ValueError(msg)  # as horovod does
    if not optimizer.state_dict()["state"]:
        _step_once(optimizer)
    state = optimizer.state_dict()
    if not state["state"]:
        return
    scalars: dict[Any, Any] = {}
    for index, group in enumerate(state["param_groups"]):
        scalars |= {(index, key): value for key, value in group.items() if key != "params"}
        for number in group["params"]:
            for name, value in state["state"].get(number, {}).items():
                if torch.is_tensor(value):
                    broadcast_(value, root_rank)
                else:
                    scalars[number, name, ""] = value
    for place, value in broadcast_object(scalars, root_rank).items():
        if len(place) == 2:  # of a group
            optimizer.param_groups[place[0]][place[1]] = value
        else:
            state["state"][place[0]][place[1]] = value


def _step_once(optimizer: Any) -> None:
    for group in optimizer.param_groups:
        for param in group["params"]:
            if param.requires_grad:
                param.grad = torch.zeros_like(param)
    if isinstance(optimizer, _Distributed):
        super(type(optimizer), optimizer).step()  # type: ignore[misc]  # the class is made below
    else:
        optimizer.step()


class _Distributed:
    """What an optimizer of several processes has besides; a class is made of it and torch's."""


_TOO_OFTEN = (
    "gradients were computed more than backward_passes_per_step times before step() or "
    "synchronize(): give DistributedOptimizer a larger backward_passes_per_step"
)
_TOO_EARLY = (
    "zero_grad() was called behind loss.backward() and in front of step() or synchronize(): "
    "gradients would be lost"
)
_AGAIN = (
    "step() was called behind synchronize() and outside of skip_synchronize(): gradients are "
    "reduced once more"
)


def _class_around(base: type[Any]) -> type[Any]:
    """Return a subclass of torch's optimizer class that reduces gradients before it steps."""

    class Around(base, _Distributed):  # type: ignore[misc]
        def __init__(self, params: Any, settings: dict[str, Any]) -> None:
            base.__init__(self, params)
            self.backward_passes_per_step = settings["passes"]
            self._settings = settings
            self._should_synchronize, self._synchronized = True, False
            self._passes: dict[Any, int] = {}
            every = [param for group in self.param_groups for param in group["params"]]
            self._moved = [param for param in every if param.requires_grad] if size() > 1 else []
            for param in self._moved:
                param.register_post_accumulate_grad_hook(self._counted)

        def _counted(self, param: Any) -> None:
            count = self._passes.get(param, 0)
            if count >= self.backward_passes_per_step:
                raise AssertionError(_TOO_OFTEN)
            self._passes[param] = count + 1

        def set_backward_passes_per_step(self, passes: int) -> None:
            self.backward_passes_per_step = passes

        def load_state_dict(self, *args: Any, **kwargs: Any) -> None:
            self._passes.clear()
            self._synchronized, self._should_synchronize = False, True
            base.load_state_dict(self, *args, **kwargs)

        def synchronize(self) -> None:
            for param in self._moved:
                _reduce_gradient(param, **self._settings)
            self._passes.clear()
            self._synchronized = True

        @contextmanager
        def skip_synchronize(self) -> Iterator[None]:
            self._should_synchronize = False
            try:
                yield
            finally:
                self._should_synchronize = True

        def step(self, closure: Any = None) -> Any:
            if self._should_synchronize:
                if self._synchronized:
                    warnings.warn(_AGAIN, stacklevel=2)
                self.synchronize()
            self._synchronized = False
            return base.step(self, closure)

        def zero_grad(self, set_to_none: bool = True) -> None:
            if self._passes:
                raise AssertionError(_TOO_EARLY)
            base.zero_grad(self, set_to_none)

    Around.__name__ = Around.__qualname__ = base.__name__
    return Around


def _reduce_gradient(param: Any, *, compression: Any, op: int, before: float, passes: int) -> None:
    del passes
    if param.grad is None:  # another process may have one
        param.grad = torch.zeros_like(param)
    if param.grad.is_sparse:
        msg = "sparse gradients of several processes are not reduced here: make the layer dense"
        raise NotImplementedError(msg)
    packed, ctx = compression.compress(param.grad)
    before, behind = (1.0 / before, before) if op == Average else (1.0, 1.0)
    param.grad.copy_(compression.decompress(_reduce(packed, op, before, behind), ctx))


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
    """Return an optimizer of the same class and groups, without a state, that reduces gradients.

    Args:
        optimizer: torch's; what it is given, ``param_groups``, is shared.
        named_parameters: names of all that it moves, which mean nothing but that.
        compression: what gradients are on the way.
        backward_passes_per_step: how many passes there may be before a step.
        op: Average or Sum.
        gradient_predivide_factor: splits the mean into a factor before the sum and one behind it.
        num_groups: means nothing, as ``groups``.
        groups: mean nothing: tensors are reduced one by one.
        sparse_as_dense: means nothing: sparse gradients of several processes raise.
    """
    if gradient_predivide_factor != 1.0 and op != Average:
        msg = "`gradient_predivide_factor` must be 1 where `op` is not Average"
        raise ValueError(msg)
    if backward_passes_per_step <= 0:
        msg = f"`backward_passes_per_step` must be > 0, got {backward_passes_per_step}"
        raise ValueError(msg)
    asked = num_groups if groups is None and num_groups else groups
    if asked is not None and not (isinstance(asked, list) or asked > 0):
        msg = f"`groups` must be a number > 0 or a list of lists, got {asked!r}"
        raise ValueError(msg)
    del sparse_as_dense
    settings = {"compression": compression, "op": _asked(op, None)}
    settings |= {"before": gradient_predivide_factor, "passes": backward_passes_per_step}
    _check_names(optimizer, named_parameters)
    return _class_around(type(optimizer))(optimizer.param_groups, settings)


def _check_names(optimizer: Any, named: Any) -> None:
    if named is None:
        return
    listed = list(named)
    if any(not isinstance(one, tuple) for one in listed):
        msg = "`named_parameters` must be tuples (name, parameter), as model.named_parameters() has"
        raise ValueError(msg)
    names = [name for name, _ in listed]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        msg = f"`named_parameters` must have each name once, not {', '.join(twice)}"
        raise ValueError(msg)
    ids = {id(param) for _, param in listed}
    if any(id(param) not in ids for group in optimizer.param_groups for param in group["params"]):
        msg = "`named_parameters` must name all that the optimizer moves, some are not named"
        raise ValueError(msg)

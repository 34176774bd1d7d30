"""Devices and ranks."""

from __future__ import annotations

import os
import platform
import time
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import mindspore as ms
from mindspore import nn, ops

from mpcore.errors import BackendError
from mpcore_port_runtime.in_place import put
from mpcore_port_runtime.process_groups import Done

__all__ = [
    "DataParallel",
    "DistributedDataParallel",
    "Event",
    "OptimizedModule",
    "accelerator",
    "all_gather",
    "all_gather_object",
    "all_reduce",
    "barrier",
    "broadcast",
    "broadcast_object_list",
    "data_parallel",
    "destroy_process_group",
    "device",
    "device_capability",
    "device_count",
    "device_name",
    "device_of",
    "device_properties",
    "environment",
    "gather_outputs",
    "gathered",
    "get_rank",
    "get_world_size",
    "grad_reducer",
    "init_process_group",
    "is_accelerator",
    "is_available",
    "is_initialized",
    "mem_get_info",
    "memory_stats",
    "parallel_apply",
    "replicate",
    "run_on_devices",
    "scatter_inputs",
    "spawn",
    "synchronize",
]


# What torchrun calls what msrun says (mindspore 2.10, parallel/cluster/process_entity/_api.py).
_SAID_BY_MSRUN = {
    "WORLD_SIZE": "MS_WORKER_NUM",
    "RANK": "RANK_ID",
    "LOCAL_RANK": "DEVICE_ID",
    "MASTER_ADDR": "MS_SCHED_HOST",
    "MASTER_PORT": "MS_SCHED_PORT",
}


def _say_as_torchrun() -> None:
    """Have the environment that scripts read from torchrun, in a process that msrun started."""
    if os.environ.get("MS_ROLE") != "MS_WORKER":
        return
    for name, source in _SAID_BY_MSRUN.items():
        if source in os.environ:
            os.environ.setdefault(name, os.environ[source])


_say_as_torchrun()


class device:  # noqa: N801, torch's name of it
    """What a script asks a device for; moves to it mean nothing, all tensors are on one.

    MindSpore itself is set by ``ms.set_device``. A class as torch's is: scripts ask
    ``isinstance(where, torch.device)``, and make things in ``with torch.device(...):``, which
    says nothing here: of ``"meta"`` too they are made with values, and where all others are.

    Args:
        type: a device, its number, or its name as torch or MindSpore writes it.
        index: number of the device, where the name says none.

    Attributes:
        type: ``"cpu"``, ``"meta"`` or ``"npu"``.
        index: number of the device, or None.
    """

    type: str
    index: int | None

    def __init__(self, type: Any = "cpu", index: int | None = None) -> None:
        if isinstance(type, device):
            self.type, self.index = type.type, type.index
        elif isinstance(type, int):
            self.type, self.index = "npu", type
        else:
            kind, _, number = str(type).partition(":")
            self.type = kind if kind in ("cpu", "meta") else "npu"
            self.index = int(number) if number else index

    def __enter__(self) -> device:
        """Return the device: all is made on the one of the process anyway."""
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the region, and let what was raised in it go on."""

    def __str__(self) -> str:
        """Return torch's way of writing it."""
        return self.type if self.index is None else f"{self.type}:{self.index}"

    def __eq__(self, other: object) -> bool:
        """Return whether both are of one kind, and no two numbers: one without is any."""
        if not isinstance(other, device) or self.type != other.type:
            return False
        return self.index is None or other.index is None or self.index == other.index

    def __hash__(self) -> int:
        """Return a number that equal ones share."""
        return hash(self.type)


def device_of(holder: Any) -> Any:
    """Return where a tensor lies, the one device of a process; of others their own ``device``."""
    if not isinstance(holder, ms.Tensor):
        return holder.device
    if ms.get_context("device_target") == "CPU":
        return device("cpu")
    return device("npu", int(ms.get_context("device_id")))


def is_available() -> bool:
    """Return whether an Ascend device is there."""
    return bool(ms.hal.is_available("Ascend"))


def device_count() -> int:
    """Return the number of Ascend devices; one where there is none, as ports say there is one."""
    return max(int(ms.hal.device_count("Ascend")), 1) if is_available() else 1


def replicate(network: Any, devices: Any = None, detach: bool = False) -> list[Any]:
    """Return what torch.nn.parallel.replicate does for the one device of a process."""
    del devices, detach
    return [network]


def scatter_inputs(inputs: Any, target_gpus: Any = None, dim: int = 0) -> list[Any]:
    """Return what torch.nn.parallel.scatter does for the one device of a process."""
    del target_gpus, dim
    return [inputs]


def parallel_apply(
    modules: Any, inputs: Any, kwargs_tup: Any = None, devices: Any = None
) -> list[Any]:
    """Return what each network gives of its own inputs, one after the other."""
    del devices
    rows = [one if isinstance(one, tuple | list) else (one,) for one in inputs]
    named = kwargs_tup or [{}] * len(rows)
    return [net(*row, **more) for net, row, more in zip(modules, rows, named, strict=True)]


def gather_outputs(outputs: Any, target_device: Any = None, dim: int = 0) -> Any:
    """Return what torch.nn.parallel.gather does: the outputs behind one another."""
    del target_device
    first = outputs[0]
    if len(outputs) == 1:
        return first
    if isinstance(first, dict):
        return {key: gather_outputs([one[key] for one in outputs], None, dim) for key in first}
    if isinstance(first, tuple | list):
        return type(first)(
            gather_outputs(list(part), None, dim) for part in zip(*outputs, strict=True)
        )
    return ops.cat(list(outputs), axis=dim)


def device_name(_: Any = None) -> str:
    """Return the name of the device target."""
    return str(ms.get_context("device_target"))


_CAPABILITY = (8, 0)
"""Of a CUDA device with bfloat16 and without float8, which Ascend 910B is nearest to."""


def device_capability(_: Any = None) -> tuple[int, int]:
    """Return what scripts choose kinds of numbers by; the same for every device of MindSpore."""
    return _CAPABILITY


class _Properties:
    """What is known of a device; anything else of torch's raises NotImplementedError."""

    def __init__(self, name: str, total_memory: int, free_memory: int) -> None:
        self.name, self.total_memory, self.free_memory = name, total_memory, free_memory
        self.major, self.minor = _CAPABILITY

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        known = "name, total_memory, major and minor are"
        msg = f"`{name}` is not known of a device of MindSpore: {known}"
        raise NotImplementedError(msg)


def device_properties(_: Any = None) -> _Properties:
    """Return the name of the device and its memory in bytes; 0 on CPU."""
    found = ms.hal.get_device_properties(ms.get_context("device_id")) if is_available() else None
    total, free = (int(getattr(found, f"{one}_memory", 0)) for one in ("total", "free"))
    return _Properties(device_name(), total, free)


def mem_get_info(_: Any = None) -> tuple[int, int]:
    """Return how much memory of the device is free, and how much there is; 0 on CPU."""
    found = device_properties()
    return found.free_memory, found.total_memory


def memory_stats(_: Any = None) -> dict[str, int]:
    """Return what MindSpore counts of the device's memory by torch's keys; 0 on CPU."""
    counted = {
        "allocated_bytes.all.current": ms.runtime.memory_allocated(),
        "allocated_bytes.all.peak": ms.runtime.max_memory_allocated(),
        "reserved_bytes.all.current": ms.runtime.memory_reserved(),
        "reserved_bytes.all.peak": ms.runtime.max_memory_reserved(),
    }
    return {name: int(count) for name, count in counted.items()}


def environment() -> str:
    """Return what runs here, for a log: versions of MindSpore, Python and the system."""
    rows = {
        "MindSpore": ms.__version__,
        "device target": device_name(),
        "Python": platform.python_version(),
        "system": platform.platform(),
    }
    return "\n".join(f"{name}: {said}" for name, said in rows.items())


def synchronize(_: Any = None) -> None:
    """Wait for the device."""
    ms.runtime.synchronize()


class Event:
    """torch.cuda.Event by the clock: it waits for the device where it records."""

    def __init__(self) -> None:
        self._at = 0.0

    def record(self, stream: Any = None) -> None:
        """Wait for the device, and keep the time."""
        del stream
        synchronize()
        self._at = time.perf_counter()

    def elapsed_time(self, end_event: Event) -> float:
        """Return the milliseconds until another event."""
        return (end_event._at - self._at) * 1e3

    def synchronize(self) -> None:
        """Do nothing: what was recorded has happened."""

    def wait(self, stream: Any = None) -> None:
        """Do nothing: what was recorded has happened."""

    def query(self) -> bool:
        """Return whether it has happened: always."""
        return True


def accelerator() -> device:
    """Return the Ascend device of this process."""
    return device("npu")


def spawn(
    function: Any,
    args: tuple[Any, ...] = (),
    nprocs: int = 1,
    join: bool = True,
    daemon: bool = False,
    start_method: str = "spawn",
) -> None:
    """Run ``function(number, *args)`` here; msrun starts the processes, one for each number.

    Raises:
        BackendError: more processes are asked for than msrun has started.
    """
    del join, daemon, start_method
    started = int(os.environ.get("MS_WORKER_NUM", "1"))
    if nprocs not in (0, 1, started):
        msg = (
            f"`nprocs` must be what msrun starts, {started} here, got {nprocs}: "
            f"run msrun --worker_num {nprocs} SCRIPT"
        )
        raise BackendError(msg)
    if nprocs > 0:
        function(int(os.environ.get("RANK_ID", "0")) if nprocs > 1 else 0, *args)


_ALONE = [False]
"""Whether a process that is alone has asked to join: torch has a group of one then."""


def init_process_group() -> None:
    """Join the processes that msrun started, in data parallel mode; alone, remember it."""
    _ALONE[0] = True
    if int(os.environ.get("MS_WORKER_NUM", "1")) > 1:
        from mindspore.communication import init

        init()


def _joined() -> bool:
    from mindspore.communication import GlobalComm

    return bool(GlobalComm.INITED)


def is_initialized() -> bool:
    """Return whether processes have joined, one that is alone too."""
    return _ALONE[0] or _joined()


def destroy_process_group(group: Any = None) -> None:
    """Leave the other processes."""
    del group
    _ALONE[0] = False
    if _joined():
        from mindspore.communication import release

        release()


def get_rank(group: Any = None) -> int:
    """Return the number of this process, from 0; the only group is that of all."""
    del group
    if not _joined():
        return 0
    from mindspore.communication import get_rank as rank

    return int(rank())


def get_world_size(group: Any = None) -> int:
    """Return the number of processes; the only group is that of all."""
    del group
    if not _joined():
        return 1
    from mindspore.communication import get_group_size

    return int(get_group_size())


def barrier(group: Any = None, async_op: bool = False, device_ids: Any = None) -> Done | None:
    """Wait for all processes, which are the only group; each has one device."""
    del group, device_ids
    if _joined():
        from mindspore import ops

        ops.Barrier()()
    return Done() if async_op else None


def all_reduce(
    tensor: Any, op: str = "sum", group: Any = None, async_op: bool = False
) -> Done | None:
    """Give ``tensor`` the sum, mean, product, maximum or minimum over processes, in place."""
    del group
    if get_world_size() > 1:
        _reduce(tensor, op)
    return Done() if async_op else None


def _reduce(tensor: Any, op: str) -> None:
    ranks = get_world_size()
    from mindspore import ops

    kinds = {"sum": ops.ReduceOp.SUM, "mean": ops.ReduceOp.SUM}
    kinds |= {"max": ops.ReduceOp.MAX, "min": ops.ReduceOp.MIN, "prod": ops.ReduceOp.PROD}
    made = ops.AllReduce(kinds[op])(tensor)
    tensor.copy_(made / ranks if op == "mean" else made)


def all_gather(
    tensor_list: list[Any], tensor: Any, group: Any = None, async_op: bool = False
) -> Done | None:
    """Give the tensors of the list the values of all processes, in place; of one its own."""
    del group
    if get_world_size() == 1:
        put(tensor_list[0], tensor)
    else:
        _gather(tensor_list, tensor)
    return Done() if async_op else None


def _gather(tensor_list: list[Any], tensor: Any) -> None:
    from mindspore import ops

    parts = ops.AllGather()(tensor.reshape((1, -1)))  # one row a process
    for place, held in enumerate(tensor_list):
        put(held, parts[place].reshape(held.shape))


def all_gather_object(object_list: list[Any], obj: Any, group: Any = None) -> None:
    """Give the list the objects of all processes, in place; of one process its own."""
    del group
    ranks = get_world_size()
    if ranks > 1:
        msg = f"all_gather_object was not run in {ranks} processes: gather tensors"
        raise BackendError(msg)
    object_list[0] = obj


def gathered(tensor: Any, group: Any = None) -> tuple[Any, ...]:
    """Return the tensors of all processes, through which gradients go; of one its own.

    Raises:
        BackendError: there are several.
    """
    del group
    ranks = get_world_size()
    if ranks > 1:
        msg = f"gradients through all_gather were not run in {ranks} processes"
        raise BackendError(msg)
    return (tensor,)


def broadcast(tensor: Any, src: int = 0, group: Any = None, async_op: bool = False) -> Done | None:
    """Give ``tensor`` the values of one process, in place; of one process its own."""
    del group
    if get_world_size() > 1:
        put(tensor, _of_one(tensor, src))
    return Done() if async_op else None


def broadcast_object_list(object_list: list[Any], src: int = 0, group: Any = None) -> None:
    """Leave the objects of a process that is alone.

    Raises:
        BackendError: there are several.
    """
    del object_list, src, group
    ranks = get_world_size()
    if ranks > 1:
        msg = f"broadcast_object_list was not run in {ranks} processes: broadcast tensors"
        raise BackendError(msg)


class OptimizedModule:
    """The class of what torch.compile gives: in a port nothing is of it."""


class _Around(nn.Cell):  # type: ignore[misc]  # nn.Cell is untyped
    """A Cell around another, by torch's name for it."""

    def __init__(self, module: Any) -> None:
        super().__init__()
        self.module = module

    def construct(self, *args: Any, **kwargs: Any) -> Any:
        """Run the Cell."""
        return self.module(*args, **kwargs)


class DataParallel(_Around):
    """A Cell on the one device that a process has, as torch runs it where there is one.

    Classes that derive from it have their own ``scatter`` asked for the part of that device.
    Source: torch/nn/parallel/data_parallel.py, torch 2.13.0.
    """

    def __init__(
        self, module: Any, device_ids: Any = None, output_device: Any = None, dim: int = 0
    ) -> None:
        super().__init__(module)
        self.device_ids, self.output_device, self.dim = [0], 0, dim

    def construct(self, *inputs: Any, **kwargs: Any) -> Any:
        """Run the Cell; by what an heir's ``scatter`` gives the device, where it has one."""
        if type(self).scatter is DataParallel.scatter:
            return super().construct(*inputs, **kwargs)
        args, words = self.scatter(inputs, kwargs, self.device_ids)
        return self.module(*(args[0] if args else ()), **(words[0] if words else {}))

    def scatter(self, inputs: Any, kwargs: Any, device_ids: Any) -> Any:
        """Return what each device gets: the one has all."""
        return [inputs], [kwargs]


def run_on_devices(module: Any, inputs: Any, module_kwargs: Any = None) -> Any:
    """Run a Cell as torch.nn.parallel.data_parallel does, on the one device of a process."""
    given = inputs if isinstance(inputs, tuple) else (inputs,)
    return module(*given, **(module_kwargs or {}))


class DistributedDataParallel(_Around):
    """A Cell whose gradients are averaged over all processes, from the values of the first one.

    It begins MindSpore's data parallel mode. Buffers, such as BatchNorm's statistics, are the first
    process's at first; then they are each process's own, where torch goes on handing out those of
    the first. Where a script hands the class on, what torch's takes besides says nothing here.
    Run with two processes on CPU; not on several devices.
    """

    def __init__(self, module: Any, *_: Any, **__: Any) -> None:
        super().__init__(module)
        ranks = get_world_size()
        if ranks == 1:
            return
        ms.set_auto_parallel_context(parallel_mode="data_parallel", gradients_mean=True)
        for param in module.get_parameters():
            _take_first(param)
        for param in module.trainable_params():
            param.mpcore_ranks = ranks

    def no_sync(self) -> AbstractContextManager[None]:
        """Return a region in which gradients are averaged all the same: their sum is then, too."""
        return nullcontext()


def _take_first(param: Any) -> None:
    """Give a Parameter the first process's value."""
    param.set_data(_of_one(param.value(), 0))


def _of_one(tensor: Any, src: int) -> Any:
    """Return the values that one process has: the sum over all, of which others are zero."""
    own = tensor if get_rank() == src else ops.zeros_like(tensor)
    # MindSpore's CPU build sums these alone; every narrower number is one of them.
    wide = ms.float32 if tensor.dtype.is_floating_point else ms.int32
    return ops.AllReduce()(own.astype(wide)).astype(tensor.dtype)


def is_accelerator(device: Any) -> bool:
    """Return whether a word, or a device, means the one that MindSpore runs on: no ``"cpu"``.

    Args:
        device: ``"cuda"``, ``"npu:0"``, a device, or the name that MindSpore has for its own.
    """
    word = str(getattr(device, "type", device))
    if word == ms.get_context("device_target"):
        return True
    return word.lower().partition(":")[0] in ("cuda", "npu", "ascend", "gpu")


def grad_reducer(params: Any) -> Any:
    """Return what averages the gradients of a data parallel network's Parameters over processes.

    Args:
        params: Parameters, in the order of the gradients.

    Returns:
        MindSpore's ``nn.DistributedGradReducer``; a Cell that hands on where they are of one
        process, or of a network that is not data parallel.
    """
    params = tuple(params)
    if not any(getattr(param, "mpcore_ranks", 1) > 1 for param in params):
        return nn.Identity()
    return nn.DistributedGradReducer(params, True, get_world_size())


def data_parallel(module: Any) -> DistributedDataParallel:
    """Return what stands for torch.nn.parallel.DistributedDataParallel."""
    return DistributedDataParallel(module)

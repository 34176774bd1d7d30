"""Let ``torch`` take ``"cuda"`` or ``"npu"`` for the CPU, in this process, for good.

Tensors live on the CPU and say so (``x.device.type`` is ``"cpu"``); which of them a script has put
on the device is kept beside them: ``x.is_npu``, and what NPU's scaler asks. What a script asks
of the device (counts, streams, memory, seeds) is answered plausibly; autocast regions of the
device are those of the CPU, with the device's default dtype float16. The module of the device is
``torch.cuda`` or ``torch.npu``, and distributed backends become gloo.
"""

from __future__ import annotations

import collections
import functools
import multiprocessing
import os
import re
import sys
import time
import types
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _device

__all__ = ["DEVICE", "all_placed", "install", "is_on_device", "migrate"]

_MARK = "_mpcore_on_device"
_ALIASES = {  # as torch_npu.npu has them: no DoubleTensor
    "BFloat16Tensor": torch.bfloat16,
    "BoolTensor": torch.bool,
    "ByteTensor": torch.uint8,
    "CharTensor": torch.int8,
    "FloatTensor": torch.float32,
    "HalfTensor": torch.float16,
    "IntTensor": torch.int32,
    "LongTensor": torch.int64,
    "ShortTensor": torch.int16,
}

_MOVED_TO_CPU = torch.device("cpu")
DEVICE = torch.device("cpu:0")  # the device that is stood in for; the CPU itself has no number
_QUIET = (  # calls that change nothing a CPU has
    "set_device",
    "synchronize",
    "empty_cache",
    "manual_seed",
    "manual_seed_all",
    "seed",
    "seed_all",
    "init",
    "reset_peak_memory_stats",
    "reset_accumulated_host_memory_stats",
    "reset_accumulated_memory_stats",
    "reset_max_memory_allocated",
    "reset_max_memory_cached",
    "reset_peak_host_memory_stats",
    "change_current_allocator",
    "set_sync_debug_mode",
    "set_rng_state",
    "set_rng_state_all",
    "ipc_collect",
    "set_per_process_memory_fraction",
    "set_stream",
)

_STATISTICS = ("memory_stats", "host_memory_stats")


class _Event:
    """An event of the device: the time at which it was recorded."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self._at = 0.0

    def record(self, *_: Any) -> None:
        self._at = time.perf_counter()

    def elapsed_time(self, other: _Event) -> float:
        """Return milliseconds until ``other``."""
        return (other._at - self._at) * 1e3

    def synchronize(self) -> None:
        """Do nothing: the CPU has no queue."""

    def query(self) -> bool:
        return True

    def wait(self, *_: Any) -> None:
        """Do nothing."""


class _Stream(_Event):
    """A stream of the device; also the context that works on it."""

    def wait_stream(self, *_: Any) -> None:
        """Do nothing."""

    wait_event = wait_stream

    def record_event(self, *_: Any) -> _Event:
        event = _Event()
        event.record()
        return event

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing."""


def _silent() -> Any:
    """Return a function that does nothing; torch.compile wants each name to have its own."""
    return lambda *_, **__: None


def _answers(kind: str) -> dict[str, Any]:
    """Return what the module of the device answers."""
    properties = types.SimpleNamespace(
        name=f"CPU as {kind}", total_memory=2**34, major=8, minor=0, multi_processor_count=1
    )
    memory = ("allocated", "reserved", "cached")
    zeros = [f"{most}memory_{name}" for name in memory for most in ("", "max_")]
    zeros += ["current_blas_handle", "get_sync_debug_mode", "utilization"]
    return {
        **{name: _silent() for name in _QUIET},
        **{name: lambda *_, **__: 0 for name in zeros},
        **{name: lambda *_, **__: collections.defaultdict(int) for name in _STATISTICS},
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "is_bf16_supported": lambda *_, **__: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "get_device_name": lambda *_: properties.name,
        "get_device_capability": lambda *_: (8, 0),
        "get_device_properties": lambda *_: properties,
        "mem_get_info": lambda *_: (2**33, 2**34),
        "memory_stats_as_nested_dict": lambda *_: {},
        "host_memory_stats_as_nested_dict": lambda *_: {},
        "memory_snapshot": lambda *_, **__: [],
        "memory_summary": lambda *_, **__: "",
        "get_per_process_memory_fraction": lambda *_, **__: 1.0,
        "get_allocator_backend": lambda: "native",
        "can_device_access_peer": lambda *_, **__: False,
        "is_current_stream_capturing": lambda: False,
        "initial_seed": torch.initial_seed,
        "get_rng_state": lambda *_, **__: torch.random.get_rng_state(),
        "get_rng_state_all": lambda: [torch.random.get_rng_state()],
        "current_stream": lambda *_: _Stream(),
        "default_stream": lambda *_: _Stream(),
        "stream": lambda stream: stream or _Stream(),
        "StreamContext": lambda stream: stream or _Stream(),
        "device": lambda *_: _Stream(),
        "device_of": lambda *_: _Stream(),
        "MemPool": _Stream,
        "use_mem_pool": lambda *_, **__: _Stream(),
        "Stream": _Stream,
        "ExternalStream": _Stream,
        "Event": _Event,
        "_is_in_bad_fork": lambda: False,
        "_lazy_init": _silent(),
    }


def is_on_device(value: Any) -> bool:
    """Return whether a tensor, or something that it came from, was put on the device."""
    return bool(getattr(value, _MARK, False))


def _marked(value: Any) -> Any:
    """Return ``value`` with its tensors noted as the device's."""
    if isinstance(value, torch.Tensor):
        setattr(value, _MARK, True)
    elif isinstance(value, (list, tuple)):
        for one in value:
            _marked(one)
    return value


def _any_on_device(values: Any) -> bool:
    return any(
        is_on_device(value)
        if isinstance(value, torch.Tensor)
        else isinstance(value, (list, tuple)) and _any_on_device(value)
        for value in values
    )


class _Move(TorchFunctionMode):  # type: ignore[misc]  # torch is untyped here
    """Give functions of torch the CPU wherever they are given the device."""

    def __init__(self, moved: Any, kind: str) -> None:
        super().__init__()
        self._moved, self._kind = moved, kind

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        on_device = _any_on_device(args)
        if func is torch.Tensor.to and len(args) > 1 and type(args[1]) is int:
            args = (args[0], DEVICE, *args[2:])  # `to(0)`: an index of the device
        if func is torch.device:  # `torch.device("cuda", 0)`: the kind in one word with its index
            given = [*args, *((kwargs or {}).get(name) for name in ("type", "index"))]
            if self._kind in given or (len(args) == 1 and type(args[0]) is int):
                return DEVICE
        kwargs = {name: self._moved(value) for name, value in (kwargs or {}).items()}
        if type(kwargs.get("device")) is int:
            kwargs["device"] = DEVICE
        args = tuple(map(self._moved, args))
        moves = any(map(_names_device, (*args, *kwargs.values()))) or (
            kwargs.get("device") is None
            and _names_device(_device.CURRENT_DEVICE)
            and func in _device._device_constructors()
        )
        result = func(*args, **kwargs)
        if func is _SET_DATA and _any_on_device(args[1:]):
            _marked(args[0])
        if func in (torch.Tensor.cpu, torch.Tensor.numpy) or not (on_device or moves):
            return result
        return _marked(result)


def _names_device(value: Any) -> bool:
    return (
        value == "cpu:0"
        if isinstance(value, str)
        else isinstance(value, torch.device) and (value == DEVICE)
    )


_SET_DATA = torch.Tensor.data.__set__


def install(kind: str) -> types.ModuleType:
    """Let the CPU stand in for ``"cuda"`` or ``"npu"``; return the module of the device."""
    torch.Tensor.is_npu = property(is_on_device)
    named = functools.partial(_named, kind)
    moved = functools.partial(named, place=_MOVED_TO_CPU)

    if kind == "npu":
        torch.utils.rename_privateuse1_backend("npu")
        module = types.ModuleType("torch.npu")
        vars(module).update(_answers(kind) | _aliases())
        torch._register_device_module("npu", module)
        torch._C._get_accelerator = lambda *_: _MOVED_TO_CPU
    else:
        module = torch.cuda
        vars(module).update(_answers(kind) | _aliases())
        torch.Tensor.is_cuda = property(is_on_device)
    _move_accelerator(kind)
    _move_methods(kind)
    _move_modules(functools.partial(named, place=DEVICE))
    _move_autocast(kind, moved)
    _move_loading(moved)
    _move_generators(moved)
    _move_parallel(kind)
    _Move(functools.partial(named, place=DEVICE), kind).__enter__()  # for the life of the process
    return module


def _named(kind: str, value: Any, place: torch.device) -> Any:
    """Return ``place`` where ``value`` names a device of this kind, else ``value``."""
    if isinstance(value, torch.device):
        return place if value.type == kind else value
    is_named = isinstance(value, str) and re.fullmatch(rf"{kind}(:\d+)?", value)
    return str(place) if is_named else value


def migrate() -> None:
    """Let names of CUDA be the NPU's, as ``torch_npu.contrib.transfer_to_npu`` does."""
    vars(torch.cuda).update(_answers("npu"))
    _move_methods("cuda")
    _Move(functools.partial(_named, "cuda", place=DEVICE), "cuda").__enter__()


def _move_accelerator(kind: str) -> None:
    """Let scripts find the device as torch's accelerator.

    What torch itself does for one (barriers, pinned memory) finds none.
    """

    def of_torch() -> bool:
        return str(sys._getframe(2).f_globals.get("__name__")).startswith("torch.")

    held = torch.accelerator
    held.is_available = lambda: not of_torch()
    held.current_accelerator = lambda *_, **__: None if of_torch() else _Accelerator(kind)
    held.device_count = lambda: 0 if of_torch() else 1
    for name in ("current_device_index", "current_device_idx"):
        setattr(held, name, lambda: 0)
    for name in ("set_device_index", "set_device_idx", "set_stream", "synchronize"):
        setattr(held, name, _silent())
    held.current_stream = lambda *_: _Stream()


def _move_methods(kind: str) -> None:
    setattr(torch.Tensor, kind, lambda self, *_, **__: _placed(self))
    setattr(torch.nn.Module, kind, lambda self, *_, **__: all_placed(self))
    torch.Tensor.pin_memory = lambda self, *_, **__: self
    torch.Tensor.record_stream = _silent()


def _move_modules(moved: Any) -> None:
    original = torch.nn.Module.to

    @functools.wraps(original)
    def to(self: Any, *args: Any, **kwargs: Any) -> Any:
        given = [moved(value) for value in (*args, *kwargs.values())]
        if any(_names_device(value) or type(value) is int for value in given):
            all_placed(self)
        here = [DEVICE if type(value) is int else value for value in args]
        return original(self, *here, **kwargs)

    torch.nn.Module.to = to


def _placed(tensor: Any) -> Any:
    """Return a tensor as the device's: another one, as of a copy."""
    return tensor if is_on_device(tensor) else _marked(tensor.view_as(tensor))


def all_placed(model: Any) -> Any:
    """Return a network whose weights are noted as the device's."""
    for tensor in (*model.parameters(), *model.buffers()):
        _marked(tensor)
    return model


class _Accelerator(str):
    """The device without a number, as ``torch.accelerator`` names it."""

    type = property(str.__str__)
    index = None  # type: ignore[assignment]  # a device's, no text's


class _TypeOfTensor(type):
    """The class of ``torch.cuda.FloatTensor``: called, asked of, and given to ``x.type(...)``."""

    dtype: Any

    def __call__(cls, *args: Any) -> Any:
        plain = all(type(arg) is int for arg in args)
        if plain:
            return _marked(torch.empty(args, dtype=cls.dtype))
        return _marked(torch.tensor(*args, dtype=cls.dtype))

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, torch.Tensor) and value.dtype == cls.dtype and is_on_device(value)


def _aliases() -> dict[str, Any]:
    original = torch.Tensor.type

    @functools.wraps(original)
    def to_type(self: Any, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
        if isinstance(dtype, _TypeOfTensor):
            return _marked(self.to(dtype.dtype).view_as(self))
        return original(self, dtype, *args, **kwargs)

    torch.Tensor.type = to_type
    torch.set_default_tensor_type = _default_type(torch.set_default_tensor_type)
    return {n: _TypeOfTensor(n, (), {"dtype": dtype}) for n, dtype in _ALIASES.items()}


def _default_type(original: Any) -> Any:
    """Let the device's types be the default: all is on the CPU, and their dtype is what is left."""

    @functools.wraps(original)
    def call(kind: Any) -> None:
        name = kind.__name__ if isinstance(kind, _TypeOfTensor) else str(kind).rpartition(".")[2]
        on_device = isinstance(kind, _TypeOfTensor) or re.search(r"\.(cuda|npu)\.", str(kind))
        if on_device and name in _ALIASES:
            torch.set_default_dtype(_ALIASES[name])
        else:
            original(kind)

    return call


def _first_moved(function: Any, moved: Any) -> Any:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*map(moved, args), **{k: moved(v) for k, v in kwargs.items()})

    return call


def _move_autocast(kind: str, moved: Any) -> None:
    region = torch.amp.autocast_mode.autocast
    original = region.__init__

    @functools.wraps(original)
    def enter(self: Any, device_type: str, dtype: Any = None, *args: Any, **kwargs: Any) -> None:
        if device_type == kind and dtype is None:
            dtype = torch.float16  # the device's default; the CPU's is bfloat16
        if "enabled" in kwargs:
            kwargs["enabled"] = bool(kwargs["enabled"])  # a setting that is not there has a truth
        original(self, moved(device_type), dtype, *args, **kwargs)

    region.__init__ = enter
    for name in ("is_autocast_enabled", "get_autocast_dtype", "set_autocast_enabled"):
        setattr(torch, name, _with_default(getattr(torch, name), moved))
    torch.set_autocast_dtype = _first_moved(torch.set_autocast_dtype, moved)


def _with_default(function: Any, moved: Any) -> Any:
    """Let the spelling without a device, which means CUDA, mean the CPU too."""

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        if not args or isinstance(args[0], bool):
            args = ("cpu", *args)
        return function(*map(moved, args))

    return call


def _move_loading(moved: Any) -> None:
    original = torch.load

    @functools.wraps(original)
    def load(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        if isinstance(map_location, dict):
            map_location = {k: moved(v) for k, v in map_location.items()}
        place = moved(map_location)
        # A file knows of no CPU with a number, which stands for the device here.
        return original(f, _MOVED_TO_CPU if _names_device(place) else place, *args, **kwargs)

    torch.load = load


def _move_generators(moved: Any) -> None:
    original = torch.Generator

    class Generator(original):  # type: ignore[misc,valid-type]  # torch is untyped here
        """A stream of random numbers, on the CPU wherever it is asked for."""

        def __new__(cls, device: Any = "cpu") -> Any:
            return original.__new__(cls, device=moved(device))

    Generator.__module__, Generator.__qualname__ = "torch", "Generator"
    torch.Generator = Generator


def _network(module: Any) -> Any:
    """Return a network; what stands in for one is no ``nn.Module`` itself."""
    made = getattr(module, "_mpcore_module", None)
    return module if made is None else made()


def _pass(*_: Any) -> None:
    """Do nothing: layers that are synchronized may stand on the CPU, where devices are."""


def _of_one_rank(synchronized: Any, plain: Any) -> Any:
    """Return the forward pass of ``SyncBatchNorm``: with one rank the plain one, on any device."""

    @functools.wraps(synchronized)
    def forward(self: Any, x: Any) -> Any:
        group = torch.distributed
        many = group.is_initialized() and group.get_world_size(self.process_group) > 1
        return synchronized(self, x) if many else plain(self, x)

    return forward


def _move_parallel(kind: str) -> None:
    group = torch.distributed.init_process_group
    wrapped = torch.nn.parallel.DistributedDataParallel.__init__

    @functools.wraps(group)
    def init_process_group(backend: Any = None, *args: Any, **kwargs: Any) -> Any:
        kwargs.pop("device_id", None)
        alone = os.environ.get("WORLD_SIZE", "1") == "1"
        if multiprocessing.parent_process() is not None:  # the script has begun others like it
            alone = alone and kwargs.get("world_size", -1) in (-1, 1)
        if alone and not args and "store" not in kwargs:  # a port would be shared by two runs
            kwargs.pop("init_method", None)
            kwargs |= {"store": torch.distributed.HashStore(), "rank": 0, "world_size": 1}
        return group("gloo", *args, **kwargs)

    @functools.wraps(wrapped)
    def init(self: Any, module: Any, device_ids: Any = None, *args: Any, **kwargs: Any) -> None:
        kwargs.pop("output_device", None)
        if not torch.distributed.is_initialized():  # another file of the project does it
            init_process_group()
        wrapped(self, _network(module), None, *args, **kwargs)

    @functools.wraps(torch.nn.DataParallel.__init__)
    def alone(self: Any, module: Any, *_: Any, **__: Any) -> None:
        torch.nn.Module.__init__(self)
        own = type(self).scatter is not parts  # it is asked for the part of the one device
        self.module, self.device_ids = _network(module), [0] if own else []
        self.dim, self.output_device = 0, 0

    @functools.wraps(torch.nn.DataParallel.forward)
    def run(self: Any, *inputs: Any, **kwargs: Any) -> Any:
        if not self.device_ids:
            return self.module(*inputs, **kwargs)
        args, words = self.scatter(inputs, kwargs, self.device_ids)
        return self.module(*(args[0] if args else ()), **(words[0] if words else {}))

    parts = torch.nn.DataParallel.scatter
    held = torch.nn.Module.__setattr__

    @functools.wraps(held)
    def hold(self: Any, name: str, value: Any) -> None:
        held(self, name, _network(value) if name == "module" else value)

    torch.nn.Module.__setattr__ = hold  # of what wraps a network
    torch.distributed.init_process_group = init_process_group
    torch.distributed.is_nccl_available = lambda: True
    torch.distributed.is_hccl_available = lambda: True
    torch.nn.parallel.DistributedDataParallel.__init__ = init
    torch.nn.parallel.DistributedDataParallel._passing_sync_batchnorm_handle = _pass
    norm = torch.nn.SyncBatchNorm
    norm.forward = _of_one_rank(norm.forward, torch.nn.modules.batchnorm._BatchNorm.forward)

    @functools.wraps(torch.nn.DataParallel.__init__)
    def refused(*_: Any, **__: Any) -> None:
        msg = "DataParallel is not supported on an NPU (torch_npu's docs, torch-nn.md)"
        raise RuntimeError(msg)

    torch.nn.DataParallel.__init__ = refused if kind == "npu" else alone
    if kind != "npu":
        torch.nn.DataParallel.forward = run

"""Where the time of a torch step goes, by torch.profiler; and its kernels, timed alone.

Time belongs to the outermost op that the model, autograd or the optimizer asked for, with all
that runs inside it; a cast inside of it is taken out and stands for itself. A node of the backward
pass belongs to the op that made it: both carry one sequence number.

Tried with torch 2.13.0 on CPU. On other devices times are those of the device's kernels; there
it was not run.
"""

from __future__ import annotations

import contextlib
import inspect
import time
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import ProfilerActivity, profile, record_function

from mpcore.backend.profiler import CAST, LOSS, OpTime, Recording, summed
from mpcore.errors import BackendError
from mpcore.tools.inspection.trace import neutral_op, widest, words
from mpcore_torch.layers import device_of, leaves
from mpcore_torch.replay import kernels
from mpcore_torch.tap import layer_calls

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from mpcore.amp.amp import Amp

__all__ = ["kernels", "record", "set_up"]

_STEP, _LAYER, _LOSS = "mpcore.step", "mpcore.layer ", "mpcore.loss"
_NODE = "autograd::engine::evaluate_function: "
_FLOATS = {
    "float": "float32",
    "double": "float64",
    "c10::BFloat16": "bfloat16",
    "c10::Half": "float16",
}
_CASTING = words("aten::to aten::_to_copy aten::copy_ aten::type_as aten::float")
_OWN_FIRST = "scaled_dot_product"  # beside its operands it gets float32 sums: the first one counts


def set_up() -> int:
    """Return the number of threads inside an op; nothing needs to be set."""
    return int(torch.get_num_threads())


def record(amp: Amp, loss_fn: Callable[..., Any], batches: Sequence[tuple[Any, ...]]) -> Recording:
    """Run a step on each batch under torch.profiler; see ``profiling.values.Profiler``."""
    if "input_dtypes" not in inspect.signature(FunctionEvent).parameters:
        msg = (
            f"`profile` needs a newer torch than {torch.__version__}: it was run on 2.13, and the "
            "events of 2.11 do not tell their dtypes"
        )
        raise BackendError(msg)
    model = amp.model  # type: ignore[attr-defined]
    device = device_of(model)
    activities = [ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)

    def loss(*batch: Any) -> Any:
        with record_function(_LOSS):
            return loss_fn(*batch)

    seconds = []
    with _marked(model), profile(activities=activities, record_shapes=True) as profiler:
        for batch in batches:
            start = time.perf_counter()
            with record_function(_STEP):
                amp.step(loss, *batch).loss  # noqa: B018  # waits for the device
            seconds.append(time.perf_counter() - start)
    reader = _Reader(on_device=device.type != "cpu")
    for event in profiler.events():
        if event.cpu_parent is None:
            reader.read(event)
    notes = () if device.type == "cpu" else (f"on {device.type} this was not run by its authors",)
    return Recording(
        len(seconds),
        tuple(seconds),
        tuple(reader.found()),
        f"torch.profiler of torch {torch.__version__}",
        notes,
    )


@contextlib.contextmanager
def _marked(model: torch.nn.Module) -> Iterator[None]:
    """Let every layer's call be a range of the profiler."""
    open_: list[tuple[str, Any]] = []

    def enter(path: str, *_: Any) -> None:
        mark = record_function(_LAYER + path)
        mark.__enter__()
        open_.append((path, mark))

    def leave(path: str, _: Any) -> None:
        while open_:  # a call that raised may have left some open
            own, mark = open_.pop()
            mark.__exit__(None, None, None)
            if own == path:
                return

    with layer_calls(leaves(model), enter, leave):
        yield


class _Unit:
    """One op that was asked for, and all that ran for it."""

    def __init__(self, op: str, phase: str, layer: str | None, cause: str = "") -> None:
        self.op, self.phase, self.layer, self.cause = op, phase, layer, cause
        self.seconds, self.dtype = 0.0, ""
        self.kernels: dict[str, tuple[int, float]] = {}
        self._heaviest = -1.0

    def add(self, event: Any, seconds: float, kernel: str) -> None:
        """Take the time that an event spent by itself, inside of ``kernel`` if there is one."""
        self.seconds += seconds
        floats = _floats(event)
        if floats and seconds > self._heaviest and event.name.startswith("aten::"):
            self._heaviest = seconds
            self.dtype = floats[0] if _OWN_FIRST in event.name else widest(floats)
        if kernel:
            calls, before = self.kernels.get(kernel, (0, 0.0))
            self.kernels[kernel] = (calls, before + seconds)

    def set_cast(self, dtypes: str) -> None:
        """Be a cast."""
        self.dtype, self._heaviest = dtypes, float("inf")

    def begin(self, kernel: str) -> None:
        """Count a call of a kernel."""
        calls, before = self.kernels.get(kernel, (0, 0.0))
        self.kernels[kernel] = (calls + 1, before)

    def time(self) -> OpTime:
        """Return the neutral form."""
        return OpTime(
            self.op, self.phase, self.dtype, self.layer, self.seconds, 1, self.cause, self.kernels
        )


def _floats(event: Any) -> list[str]:
    return [_FLOATS[name] for name in event.input_dtypes or () if name in _FLOATS]


@cache
def _is_made_of_others(name: str) -> bool:
    """Return whether an op of aten is written in others, so that no dispatch mode sees it."""
    return any(
        torch._C._dispatch_has_kernel_for_dispatch_key(full, "CompositeImplicitAutograd")
        for full in _full_names().get(name, ())
    )


@cache
def _full_names() -> dict[str, list[str]]:
    """Return the names with overloads, by the name without."""
    found: dict[str, list[str]] = {}
    for full in torch._C._dispatch_get_all_op_names():
        found.setdefault(full.partition(".")[0], []).append(full)
    return found


def kernel_name(name: str, shapes: Sequence[Any], floats: Sequence[str]) -> str:
    """Return what tells calls of a kernel apart: its shapes, and dtypes of its floats."""
    sizes = [
        "x".join(map(str, shape)) for shape in shapes if shape and not isinstance(shape[0], list)
    ]
    return f"{name.removeprefix('aten::')}({', '.join(sizes)}; {', '.join(floats)})"


class _Reader:
    """Reads the profiler's tree of events."""

    def __init__(self, *, on_device: bool) -> None:
        self._on_device = on_device
        self._units: list[_Unit] = []
        self._made: dict[int, _Unit] = {}  # number of a node of the graph -> who made it

    def read(self, event: Any) -> None:
        """Read one root of the tree."""
        if event.name == _STEP or event.name.startswith(_NODE):
            self._walk(event, "step", None, None)

    def found(self) -> list[OpTime]:
        """Return what ran, alike calls as one."""
        times = [unit.time() for unit in self._units if unit.seconds > 0]
        return summed(times, "op", "phase", "dtype", "layer", "cause")

    def _walk(
        self, event: Any, phase: str, layer: str | None, unit: _Unit | None, kernel: str = ""
    ) -> None:
        name = event.name
        if name.startswith(_LAYER):
            phase = "forward" if phase == "step" else phase
            layer = name.removeprefix(_LAYER)
        elif name == _LOSS:
            phase, layer = "forward", LOSS
        elif name.startswith("Optimizer."):
            phase = "optimizer"
        elif name.startswith(_NODE):
            phase = "backward"
            unit = self._node(event)
            layer, kernel = unit.layer, ""
        elif name.startswith("aten::"):
            unit = self._op(event, phase, layer, unit)
        if unit is not None:
            if not kernel and name.startswith("aten::") and not _is_made_of_others(name):
                floats = _floats(event)
                kernel = kernel_name(name, event.input_shapes, floats) if floats else ""
                if kernel:
                    unit.begin(kernel)
            unit.add(event, self._seconds(event), kernel)
        for child in event.cpu_children:
            self._walk(child, phase, layer, unit, kernel)

    def _seconds(self, event: Any) -> float:
        taken = event.self_device_time_total if self._on_device else event.self_cpu_time_total
        return float(taken) / 1e6

    def _new(self, op: str, phase: str, layer: str | None, cause: str = "") -> _Unit:
        self._units.append(_Unit(op, phase, layer, cause))
        return self._units[-1]

    def _node(self, event: Any) -> _Unit:
        maker = self._made.get(event.sequence_nr)
        if maker is None:
            name = event.name.removeprefix(_NODE).rpartition("::")[2]
            return self._new(name, "backward", None)
        unit = self._new(maker.op, "backward", maker.layer, maker.cause)
        if maker.op == CAST:
            unit.set_cast(" > ".join(reversed(maker.dtype.split(" > "))))
        return unit

    def _op(self, event: Any, phase: str, layer: str | None, unit: _Unit | None) -> _Unit:
        kinds = None if unit is not None and unit.op == CAST else _cast(event)
        if kinds is not None:
            cause = "" if unit is None else unit.op
            unit = self._new(CAST, phase, layer, cause)
            unit.set_cast(kinds)
        elif unit is None:
            unit = self._new(_neutral(event.name), phase, layer)
        if phase == "forward" and event.sequence_nr >= 0:
            self._made[event.sequence_nr] = unit  # the last that began before the node was made
        return unit


def _cast(event: Any) -> str | None:
    """Return the dtypes of a cast that ``event`` is the outermost call of; None for no cast."""
    while event.name in _CASTING:
        if event.name == "aten::copy_":
            return _direction(event)
        inside = [child for child in event.cpu_children if child.name in _CASTING]
        if not inside:
            return None
        event = inside[-1]
    return None


def _direction(copy: Any) -> str | None:
    dtypes = [_FLOATS.get(name, "") for name in (copy.input_dtypes or ())[:2]]
    if len(set(dtypes)) != 2 or "" in dtypes:
        return None
    if "float64" in dtypes and not copy.input_shapes[0]:
        return None  # a number of Python's, no tensor of the model's
    return f"{dtypes[1]} > {dtypes[0]}"


def _neutral(name: str) -> str:
    return neutral_op("torch", name, name.rstrip("_")) or name.removeprefix("aten::")

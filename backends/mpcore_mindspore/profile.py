"""Where the time of a MindSpore step goes, by its Profiler; and primitives, timed alone.

On CPU the Profiler writes, for each kernel, when it began (nanoseconds of the clock) and how long
it ran: ``FRAMEWORK/cpu_op_execute_timestamp_*.txt``. It tells neither layer nor dtype. Cells, the
loss function and the parts of a step are watched by the same clock, and gradients as they pass
between Cells; a kernel belongs to what was open when it began. The dtype is what
``mpcore.tools.inspection.observe`` sees in that layer.

Tried with mindspore 2.10.0 on CPU, in eager mode; on Ascend it was not run.
"""

from __future__ import annotations

import os
import re
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mindspore as ms
from mindspore.profiler import ProfilerActivity, tensorboard_trace_handler

from mpcore.backend.backend import find_backend
from mpcore.backend.profiler import CAST, OpTime, Recording, summed
from mpcore.errors import BackendError
from mpcore.tools.inspection.observe import trace_dtypes
from mpcore.tools.inspection.trace import neutral_op
from mpcore.tools.profiling.timing import Event, cores, own_times
from mpcore_mindspore.replay import kernels
from mpcore_mindspore.timeline import Place, Timeline, watched

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from mpcore.amp.amp import Amp
    from mpcore.tools.inspection.trace import Trace

__all__ = ["kernels", "record", "set_up"]

_LOW = ("float16", "bfloat16")
_NUMBER = re.compile(r"-op\d+$")
_NOTES = (
    "eager mode; MindSpore's Profiler tells kernels and times, layers are told by the clock, "
    "dtypes are those that mpcore.tools.inspection.observe sees in the layer",
    "a cast counts as one where its layer mixes float dtypes; kernels alone: forward primitives",
)


def set_up() -> int:
    """Return the number of threads inside a kernel; nothing needs to be set."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    return int(asked) if asked.isdigit() else cores()


def record(amp: Amp, loss_fn: Callable[..., Any], batches: Sequence[tuple[Any, ...]]) -> Recording:
    """Run a step on each batch under MindSpore's Profiler; see ``profiling.values.Profiler``.

    Raises:
        BackendError: in GRAPH_MODE, where no Cell is called; or the Profiler wrote nothing.
    """
    if ms.get_context("mode") != ms.PYNATIVE_MODE:
        msg = (
            "`profile` must run in PYNATIVE_MODE, got GRAPH_MODE, where no Cell is called and "
            "kernels cannot be told by layer"
        )
        raise BackendError(msg)
    model: Any = amp.model  # type: ignore[attr-defined]
    seen = trace_dtypes(find_backend(model), model, amp, batches[0], loss_fn)
    timeline = Timeline(model)
    loss = timeline.around(loss_fn)
    with watched(timeline):
        amp.step(loss, *batches[0]).loss  # noqa: B018  # compiles what a new loss needs
    seconds = []
    with tempfile.TemporaryDirectory(prefix="mpcore-profile-") as folder:
        handler = tensorboard_trace_handler(dir_name=folder, analyse_flag=False)
        with (
            watched(timeline),
            ms.profiler.profile(activities=[ProfilerActivity.CPU], on_trace_ready=handler),
        ):
            for batch in batches:
                start = time.perf_counter()
                amp.step(loss, *batch).loss  # noqa: B018  # waits for the device
                seconds.append(time.perf_counter() - start)
        events = [
            event
            for path in Path(folder).rglob("cpu_op_execute_timestamp_*.txt")
            for event in _events(path.read_text(encoding="utf-8"))
        ]
    if not events:
        msg = f"the Profiler of mindspore {ms.__version__} wrote no kernels of this device"
        raise BackendError(msg)
    spent = own_times([event for event, _ in events])
    dtypes = _Dtypes(seen)
    found = [
        _op_time(kind, timeline.place(int(event.start)), own / 1e9, dtypes)
        for (event, kind), own in zip(events, spent, strict=True)
        if own > 0
    ]
    alike = summed(found, "op", "phase", "dtype", "layer", "cause")
    source = f"the Profiler of mindspore {ms.__version__}"
    return Recording(len(seconds), tuple(seconds), tuple(alike), source, _NOTES)


def _events(text: str) -> Iterator[tuple[Event, str]]:
    """Yield (when, type) of each kernel; lines are ``name;where;begin ns,ms,thread ...``."""
    for line in text.splitlines():
        name, _, runs = line.split(";")[:3]
        kind = _NUMBER.sub("", name.rpartition("/")[2])
        for run in runs.split():
            begin, lasted, thread = run.split(",")[:3]
            start = int(begin)
            yield Event(start, start + float(lasted) * 1e6, int(thread)), kind


class _Dtypes:
    """What layers, and primitives outside of them, were seen to run in."""

    def __init__(self, seen: Trace) -> None:
        self._layers = {path: layer.calls for path, layer in seen.layers.items()}
        self._ops = {(op.path, op.name): op.kernels for op in seen.ops}

    def of(self, kind: str, layer: str | None) -> str:
        """Return the dtype of a kernel; ``""`` where it is not known."""
        if layer is None:
            return ""
        found = self._ops.get((layer, kind)) or next(
            (call.kernels for call in self._layers.get(layer, ()) if call.kernels), ()
        )
        return found[0] if found else ""

    def casts(self, place: Place) -> str:
        """Return the direction of casts in a layer that mixes dtypes; else ``""``."""
        calls = self._layers.get(place.layer or "(none)", ())
        for call in calls:
            dtypes = {*call.came, *call.params, *call.kernels, *call.went}
            low = next((dtype for dtype in _LOW if dtype in dtypes), "")
            if low and len(dtypes) > 1:
                lowers = (low in call.kernels) == (place.phase == "forward")
                return f"float32 > {low}" if lowers else f"{low} > float32"
        return ""


def _op_time(kind: str, place: Place, seconds: float, dtypes: _Dtypes) -> OpTime:
    phase, layer = place
    if kind == "Cast":
        casts = dtypes.casts(place)
        if casts:
            return OpTime(CAST, phase, casts, layer, seconds, 1)
        return OpTime(kind, phase, "", layer, seconds, 1)
    dtype = dtypes.of(kind, layer)
    known = {f"{kind} in {layer}": (1, seconds)} if phase == "forward" and dtype else {}
    return OpTime(
        neutral_op("mindspore", f"P.{kind}") or kind, phase, dtype, layer, seconds, 1, kernels=known
    )

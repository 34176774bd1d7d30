"""Where the time of a Keras step goes, by tf.profiler; and its kernels, timed alone.

The profiler's trace (an XSpace protobuf) is read with ``tensorflow.tsl.profiler.protobuf``, which
TensorFlow ships: no plugin of TensorBoard is needed. It names each operation of the graph that
ran. Layer, phase and dtype are those of the operation when the step was traced; what grappler
fused counts for the product in it. Where operations of several threads overlap,
each gets its part of the time.

Tried with TensorFlow 2.21 on CPU. On other devices it was not run.
"""

from __future__ import annotations

import os
import re
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from mpcore.backend.profiler import CAST, KernelTime, OpTime, Recording, summed
from mpcore.tools.inspection.trace import neutral_op
from mpcore.tools.profiling.timing import Event, cores, own_times
from mpcore_tensorflow.replay import timed
from mpcore_tensorflow.traced import Made, Traced, watched

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from mpcore.amp.amp import Amp

__all__ = ["kernels", "record", "set_up"]

_REWRITTEN = re.compile(r"(ArithmeticOptimizer|LayoutOptimizer)/?([A-Za-z]+_(Leaf_\d+_)?)?")
_PREFIX = re.compile(r"^_+(Mkl|MKL)?(Native)?(Fused)?")
_SHARED = ("SquaredDifference",)  # of losses and of norms
_BRANCH = re.compile(r"^.*/(then|else)/_\d+/")  # in front of what a branch was inlined from


def set_up() -> int:
    """Run operations one after the other, so that each can be told; return threads inside one."""
    tf.config.threading.set_inter_op_parallelism_threads(1)
    asked = os.environ.get("TF_NUM_INTRAOP_THREADS", "")
    own = int(tf.config.threading.get_intra_op_parallelism_threads())
    return own or (int(asked) if asked.isdigit() else cores())


def record(amp: Amp, loss_fn: Callable[..., Any], batches: Sequence[tuple[Any, ...]]) -> Recording:
    """Run a step on each batch under tf.profiler; see ``profiling.values.Profiler``."""
    made, loss = _traced(amp, loss_fn, batches[0])
    amp.step(loss, *batches[0]).loss  # noqa: B018  # the second run of a graph is slower too
    seconds = []
    options = tf.profiler.experimental.ProfilerOptions(
        host_tracer_level=2, python_tracer_level=0, device_tracer_level=1
    )
    with tempfile.TemporaryDirectory(prefix="mpcore-profile-") as folder:
        with tf.profiler.experimental.Profile(folder, options):
            for batch in batches:
                start = time.perf_counter()
                amp.step(loss, *batch).loss  # noqa: B018  # waits for the device
                seconds.append(time.perf_counter() - start)
        events = [event for path in Path(folder).rglob("*.xplane.pb") for event in _events(path)]
    spent = own_times([event for event, _, _ in events])
    found = [
        _op_time(made, name, kind, own / 1e12)
        for (_, name, kind), own in zip(events, spent, strict=True)
        if own > 0
    ]
    alike = summed(found, "op", "phase", "dtype", "layer", "cause")
    source = f"tf.profiler of TensorFlow {tf.__version__}"
    return Recording(len(seconds), tuple(seconds), tuple(alike), source, _NOTES)


_NOTES = (
    "operations run one after the other here (inter-op threads: 1), so that each can be timed",
    "what grappler fused counts for the product in it, which alone is timed by itself",
)


def kernels(
    amp: Amp,
    loss_fn: Callable[..., Any],
    batch: tuple[Any, ...],
    heaviest: Sequence[str],
    low: str,
) -> list[KernelTime]:
    """Time kernels alone, on the shapes of one step; see ``profiling.values.Profiler``."""
    made, _ = _traced(amp, loss_fn, batch)
    return timed(made, heaviest, low)


def _traced(
    amp: Amp, loss_fn: Callable[..., Any], batch: tuple[Any, ...]
) -> tuple[Traced, Callable[..., Any]]:
    """Take a step with a loss function that is new to ``amp``, and so is traced."""
    inner = [one.inner_optimizer.name for one in amp.optimizers.values()]
    traced = Traced(amp.model, inner)  # type: ignore[attr-defined]

    def loss(*given: Any) -> Any:
        with traced.forward():
            return loss_fn(*given)

    with watched(traced):
        amp.step(loss, *batch).loss  # noqa: B018  # waits for the device
    return traced, loss


def _events(path: Path) -> Iterator[tuple[Event, str, str]]:
    """Yield operations of a trace: when they ran (in picoseconds), name and type."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2  # only a profile needs it

    space = xplane_pb2.XSpace()
    space.ParseFromString(path.read_bytes())
    for plane in space.planes:
        names = {
            key: (meta.name.removesuffix(f":{meta.display_name}"), meta.display_name)
            for key, meta in plane.event_metadata.items()
            if meta.display_name and meta.name.endswith(f":{meta.display_name}")
        }
        for line in plane.lines:
            begin = line.timestamp_ns * 1000
            for event in line.events:
                if event.metadata_id in names:
                    start = begin + event.offset_ps
                    span = Event(start, start + event.duration_ps, line.id)
                    yield span, *names[event.metadata_id]


def _op_time(traced: Traced, name: str, kind: str, seconds: float) -> OpTime:
    plain = _PREFIX.sub("", kind).removesuffix("WithBias")
    made = _made(traced, name)
    heart = _heart(traced, made, plain, fused="Fused" in kind)
    told = heart or made
    phase, layer = _place(traced, name, told)
    if heart is not None and heart.casts:
        return OpTime(CAST, phase, heart.casts, layer, seconds, 1)
    dtype = told.dtype if told is not None else ""
    known = {heart.kernel: (1, seconds)} if heart is not None and dtype else {}
    return OpTime(_neutral(plain, phase), phase, dtype, layer, seconds, 1, kernels=known)


def _made(traced: Traced, name: str) -> Made | None:
    """Return what was traced under a name, or under the one that grappler made it from."""
    plain = _REWRITTEN.sub("", name).replace("//", "/")
    inlined = _BRANCH.sub("", plain)
    spellings = (name, plain, inlined, inlined.partition("/")[2])
    return next((traced.ops[found] for found in spellings if found in traced.ops), None)


def _heart(traced: Traced, made: Made | None, kind: str, *, fused: bool) -> Made | None:
    """Return the operation of type ``kind`` that a kernel is, or that was fused with ``made``."""
    for _ in range(3 if fused else 1):  # a product, its bias, its activation
        if made is None or made.kind == kind:
            return made
        first = made.op.inputs[0].op if made.op is not None and len(made.op.inputs) else None
        made = None if first is None else traced.ops.get(first.name)
    return None


def _place(traced: Traced, name: str, made: Made | None) -> tuple[str, str | None]:
    if made is not None and made.phase != "step":
        return made.phase, made.layer
    if traced.updates(name):
        return "optimizer", None
    return ("step", None) if made is not None else traced.place(name)


def _neutral(kind: str, phase: str) -> str:
    if kind in _SHARED or (phase == "backward" and "Backprop" in kind):
        return kind
    return neutral_op("tf", kind) or kind

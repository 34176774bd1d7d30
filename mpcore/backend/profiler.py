"""Where the time of a step goes in one framework: the profiler, and the values that it returns."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from statistics import quantiles
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from mpcore.amp.amp import Amp

__all__ = [
    "CAST",
    "LOSS",
    "PHASES",
    "KernelTime",
    "OpTime",
    "Profiler",
    "Recording",
    "Spread",
    "summed",
]

PHASES = ("forward", "backward", "optimizer", "step")
"""``"step"`` is what the step does around: scaling, checks, norms, master weights."""

CAST = "cast"
"""What ``OpTime.op`` is for a cast between two float dtypes."""

LOSS = "(loss)"
"""What ``OpTime.layer`` is for ops of the loss function, outside of the model."""


@dataclass(frozen=True)
class OpTime:
    """Time of one op in one layer, over all recorded steps; no time is counted twice.

    Attributes:
        op: neutral name of ``mpcore.numerics.ops`` where the table knows it, else the framework's;
            or ``CAST``.
        phase: one of ``PHASES``.
        dtype: widest float dtype of what it got, ``"a > b"`` for a cast; ``""`` if not known.
        layer: dotted path, ``""`` for the model itself, ``LOSS``; None where it cannot be told.
        seconds: of all calls, >= 0.
        calls: number of them, >= 1.
        cause: for a cast, the op that asked for it, where one did.
        kernels: by name, (calls, seconds) of the kernels that ``KernelTime`` may know.
    """

    op: str
    phase: str
    dtype: str
    layer: str | None
    seconds: float
    calls: int
    cause: str = ""
    kernels: Mapping[str, tuple[int, float]] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class Recording:
    """What a framework's profiler saw.

    Attributes:
        steps: number of recorded steps, >= 1.
        seconds: wall time of each step while the profiler ran.
        ops: what ran in them.
        source: profiler, in words, with its version.
        notes: what it cannot tell, in sentences.
    """

    steps: int
    seconds: tuple[float, ...]
    ops: tuple[OpTime, ...]
    source: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Spread:
    """Repeated measurements: the median, and the quartiles around it; seconds."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Return the quartiles of at least one value.

        Examples:
            >>> Spread.of([3.0, 1.0, 2.0])
            Spread(median=2.0, low=1.5, high=2.5)
        """
        if len(values) == 1:
            return cls(values[0], values[0], values[0])
        low, median, high = quantiles(values, n=4, method="inclusive")
        return cls(median, low, high)


@dataclass(frozen=True)
class KernelTime:
    """One kernel on its real shapes, alone, in the dtype that it ran in and in the other one.

    Attributes:
        name: what ``OpTime.kernels`` calls it.
        dtype: that it ran in, in the step.
        other: the other one: float32, or the policy's dtype.
        now: seconds a call.
        then: seconds a call in the other dtype; None if it refused.
        saves: seconds a call that the other dtype saves, of neighbouring runs; None likewise.
        refused: why it did not run in the other dtype; empty if it did.
    """

    name: str
    dtype: str
    other: str
    now: Spread
    then: Spread | None = None
    saves: Spread | None = None
    refused: str = ""


class Profiler(Protocol):
    """The time of a step in one framework."""

    def set_up(self) -> int:
        """Set what the process needs before its framework runs anything; return its threads."""
        ...

    def record(
        self, amp: Amp, loss_fn: Callable[..., Any], batches: Sequence[tuple[Any, ...]], /
    ) -> Recording:
        """Run a step on each batch under the framework's profiler."""
        ...

    def kernels(
        self,
        amp: Amp,
        loss_fn: Callable[..., Any],
        batch: tuple[Any, ...],
        heaviest: Sequence[str],
        low: str,
        /,
    ) -> list[KernelTime]:
        """Time kernels of ``OpTime.kernels`` alone, in their dtype and in ``low`` or float32."""
        ...


def summed(ops: Iterable[OpTime], *fields: str) -> list[OpTime]:
    """Return one entry for all that agree in ``fields``, the heaviest first.

    The other fields of an entry are those of its heaviest member; kernels are added up.
    """
    found: dict[tuple[Any, ...], list[OpTime]] = {}
    for op in ops:
        found.setdefault(tuple(getattr(op, name) for name in fields), []).append(op)
    sums = []
    for members in found.values():
        first = asdict(max(members, key=lambda op: op.seconds))
        first |= {
            "seconds": sum(op.seconds for op in members),
            "calls": sum(op.calls for op in members),
            "kernels": _added(op.kernels for op in members),
        }
        sums.append(OpTime(**first))
    return sorted(sums, key=lambda op: -op.seconds)


def _added(parts: Iterable[Mapping[str, tuple[int, float]]]) -> dict[str, tuple[int, float]]:
    total: dict[str, tuple[int, float]] = {}
    for part in parts:
        for name, (calls, seconds) in part.items():
            before = total.get(name, (0, 0.0))
            total[name] = (before[0] + calls, before[1] + seconds)
    return total

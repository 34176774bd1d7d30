"""What each call and each cast of a graph takes, and what another dtype would change of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from mpcore._lib.columns import in_columns
from mpcore._lib.records import to_plain
from mpcore.errors import GraphError
from mpcore.graph.ir import is_16_bit

if TYPE_CHECKING:
    from mpcore.graph.ir import Cast, GraphPlan

__all__ = ["CallTime", "CastTime", "Timed", "refuse_timing"]


@dataclass(frozen=True)
class CallTime:
    """One call, alone, on the example.

    Attributes:
        name: of the node.
        op: its neutral op.
        compute: what it computes in.
        forward: seconds.
        backward: seconds; 0 where no gradient flows.
        other: seconds of both in the other dtype, float32 or 16 bits; None where it was not run.
        error: of its results in that dtype, relative to their norm; None likewise.
    """

    name: str
    op: str
    compute: str
    forward: float
    backward: float
    other: float | None = None
    error: float | None = None

    @property
    def seconds(self) -> float:
        """Forward and backward."""
        return self.forward + self.backward


@dataclass(frozen=True)
class CastTime:
    """One cast, alone, on the example.

    Attributes:
        cast: the cast.
        elements: that it reads.
        forward: seconds.
        backward: seconds of the cast back of its gradient.
    """

    cast: Cast
    elements: int
    forward: float
    backward: float

    @property
    def seconds(self) -> float:
        """Forward and backward."""
        return self.forward + self.backward


@dataclass(frozen=True)
class Timed:
    """The calls and casts of one plan, in the order in which they run.

    Attributes:
        plan: the plan.
        calls: each call.
        casts: each cast.
        values: seconds of a cast of each floating-point value that a call makes, by name.
    """

    plan: GraphPlan
    calls: tuple[CallTime, ...]
    casts: tuple[CastTime, ...]
    values: dict[str, float]

    @property
    def seconds(self) -> float:
        """All calls and casts, forward and backward."""
        return sum(c.seconds for c in self.calls) + sum(c.seconds for c in self.casts)

    def __str__(self) -> str:
        """Return the calls that take longest, then the casts."""
        return self.table(20)

    def table(self, rows: int) -> str:
        """Return at most ``rows`` calls and as many casts, those that take longest first."""
        cast = sum(c.seconds for c in self.casts)
        lines = [
            f"{len(self.calls)} calls and {len(self.casts)} casts, each alone: "
            f"{_ms(self.seconds)} ms, {_share(cast, self.seconds)} of it casts",
            "",
            *in_columns(
                ("call", "computes in", "forward ms", "backward ms", "in the other dtype ms"),
                [
                    (c.name, c.compute, _ms(c.forward), _ms(c.backward), _ms(c.other))
                    for c in sorted(self.calls, key=lambda c: -c.seconds)[:rows]
                ],
                ruled=False,
            ),
            "",
            *in_columns(
                ("cast of", "to", "read by", "elements", "ms", "placed by"),
                [
                    (
                        c.cast.value,
                        c.cast.dtype,
                        ", ".join(user or "(output)" for user in c.cast.users[:3]),
                        f"{c.elements:,}",
                        _ms(c.seconds),
                        c.cast.rule,
                    )
                    for c in sorted(self.casts, key=lambda c: -c.seconds)[:rows]
                ],
                ruled=False,
            ),
        ]
        slower = [c for c in self.calls if is_16_bit(c.compute) and c.other and c.other < c.seconds]
        if slower:
            worst = sorted(slower, key=lambda c: (c.other or 0) - c.seconds)[:3]
            names = ", ".join(c.name for c in worst)
            lines += ["", f"{len(slower)} calls were slower in 16 bits than in float32: {names}"]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, ready for JSON."""
        return {
            "seconds": self.seconds,
            "calls": [dict(to_plain(call)) for call in self.calls],
            "casts": [dict(to_plain(cast)) for cast in self.casts],
        }


def refuse_timing(model: str, framework: str) -> NoReturn:
    """Raise GraphError: a framework's calls are not timed one by one."""
    msg = (
        f"the calls of {model} are not timed one by one: in {framework} a graph runs as a whole; "
        "use `mpcore profile` without --graph, which times its ops"
    )
    raise GraphError(msg)


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:.3f}"


def _share(part: float, whole: float) -> str:
    return f"{part / whole:.1%}" if whole else "0 %"

"""What entries of a search come to: the answer so far, and what stands behind it."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isfinite
from typing import TYPE_CHECKING, Any, NamedTuple

from mpcore.policy.policy import Policy

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mpcore.tools.tune.log import Entry

__all__ = ["LEVELS", "Evidence", "Point", "gather"]

LEVELS = ("proven", "measured", "screened", "predicted")
"""How a policy is known: trained beside float32; whole steps; one step; by its kernels alone."""

_STAGES = {"named": "measured", "champion": "measured"}


class Point(NamedTuple):
    """One policy in the picture.

    Attributes:
        policy: it.
        time: a step's, over float32's; None where it is not known.
        low: lower quartile of it; None likewise, or where it is predicted.
        high: upper quartile.
        rho: error of one step over the noise of batches; None where it was not screened.
        level: one of ``LEVELS``.
    """

    policy: str
    time: float | None
    low: float | None
    high: float | None
    rho: float | None
    level: str


@dataclass
class Evidence:
    """The answer of a search, and all that is known.

    Attributes:
        policy: the answer; ``""`` while there is none.
        level: how it is known, one of ``LEVELS``; ``""`` while there is none.
        entries: by kind, in order.
    """

    policy: str = ""
    level: str = ""
    entries: dict[str, list[Entry]] = field(default_factory=dict)

    def of(self, kind: str) -> list[Entry]:
        """Return the entries of a kind."""
        return self.entries.get(kind, [])

    def last(self, kind: str) -> Entry:
        """Return the last entry of a kind; empty if there is none."""
        return (self.of(kind) or [{}])[-1]

    @property
    def speed_known(self) -> bool:
        """Whether times mean anything here."""
        return bool(self.last("speed").get("known", True))

    @property
    def best_named(self) -> str:
        """The named policy that none of the others beats; ``""`` while it is not known."""
        found = [e["policy"] for e in self.of("winner") if e["stage"] == "named"]
        return str(found[-1]) if found else ""

    def duel(self, champion: str, challenger: str) -> Entry | None:
        """Return the duel of two policies that counts most: one with fresh models, or the last."""
        found = [
            e for e in self.of("duel") if (e["champion"], e["challenger"]) == (champion, challenger)
        ]
        confirmed = [e for e in found if e["stage"] == "confirm"]
        return confirmed[-1] if confirmed else found[-1] if found else None

    def against(self, base: str, policy: str) -> Entry | None:
        """Return the duel of a policy against another, whichever of them was the challenger."""
        own, turned = self.duel(base, policy), self.duel(policy, base)
        if turned is None or (own is not None and turned["stage"] != "confirm"):
            return own
        ends = {"low": 1 / turned["high"], "high": 1 / turned["low"]}
        flipped = {"faster": "slower", "slower": "faster"}.get(turned["decision"], "")
        return turned | ends | {"ratio": 1 / turned["ratio"], "decision": flipped}

    def points(self) -> list[Point]:
        """Return every policy of which something is known, those of the answer's kind first."""
        policies = dict.fromkeys(
            [
                *(e["policy"] for kind in ("time", "screen", "promise") for e in self.of(kind)),
                *(e["challenger"] for e in self.of("duel")),
            ]
        )
        found = [self._point(policy) for policy in policies]
        return sorted(found, key=lambda point: (LEVELS.index(point.level), point.time or 9.0))

    def by_layer(self) -> Point | None:
        """Return the fastest policy by layer that was measured, where the answer is one by op.

        Policies by layer run in every framework, op rules in some.
        """
        if not self.policy or Policy.parse(self.policy).by == "layer":
            return None
        fitting = [
            p for p in self.points()
            if p.level in ("proven", "measured") and p.policy != "float32"
            and p.time is not None and p.time < 1 and Policy.parse(p.policy).by == "layer"
        ]  # fmt: skip
        return min(fitting, key=lambda p: p.time or 1.0, default=None)

    def _point(self, policy: str) -> Point:
        rho = next((e["rho"] for e in self.of("screen") if e["policy"] == policy), None)
        if policy == "float32":
            return Point(policy, 1.0, 1.0, 1.0, 0.0, "proven")
        rho = float(rho) if rho is not None and isfinite(float(rho)) else None
        time, low, high, measured = self._time(policy)
        if any(e["policy"] == policy and e["passed"] for e in self.of("proof")):
            level = "proven"
        else:
            level = "measured" if measured else "predicted" if time is not None else "screened"
        return Point(policy, time, low, high, rho, level)

    def _time(self, policy: str) -> tuple[float | None, float | None, float | None, bool]:
        own = self.against("float32", policy)
        if own is not None:
            return own["ratio"], own["low"], own["high"], True
        for duel in self.of("duel"):  # by way of the champion that it met
            base = self.against("float32", duel["champion"])
            if duel["challenger"] == policy and base is not None:
                by = base["ratio"]
                return duel["ratio"] * by, duel["low"] * by, duel["high"] * by, True
        for kind in ("time", "promise"):
            for entry in self.of(kind):
                if entry["policy"] == policy:
                    return max(0.0, entry["ratio"]), None, None, kind == "time"
        return None, None, None, False

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, ready for JSON."""
        return {
            "policy": self.policy,
            "level": self.level,
            "best_named": self.best_named,
            "speed_known": self.speed_known,
            "points": [point._asdict() for point in self.points()],
            **{kind: found for kind, found in self.entries.items() if kind != "winner"},
        }


def gather(entries: Iterable[Entry]) -> Evidence:
    """Return what the entries of a search come to, in order; it may have been cut off anywhere."""
    found = Evidence()
    for entry in entries:
        fields = {name: value for name, value in entry.items() if name != "kind"}
        found.entries.setdefault(entry["kind"], []).append(fields)
        if entry["kind"] == "winner":
            stage = str(entry["stage"])
            found.policy, found.level = entry["policy"], _STAGES.get(stage, stage)
    return found

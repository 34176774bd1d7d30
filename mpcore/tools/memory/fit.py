"""The most exact scheme of master weights that fits into a budget."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mpcore._lib.sizes import parse_bytes, show_bytes
from mpcore.backend.backend import check_policy, find_backend
from mpcore.errors import BackendError, PolicyError, check_choice
from mpcore.policy.policy import Policy
from mpcore.tools.memory.estimate import MemoryEstimate, estimate_memory

if TYPE_CHECKING:
    from mpcore.backend.backend import Capabilities

__all__ = ["CANDIDATES", "MemoryFit", "fit_memory", "propose"]

CANDIDATES: tuple[tuple[str, str], ...] = (
    ("mixed_{compute}", "float32 parameters"),
    ("model_{compute}, master=copy", "float32 copies"),
    ("model_{compute}, master=split", "every bit of float32 copies"),
    ("model_{compute}, master=kahan", "17 of 24 bits"),
    ("model_{compute}, master=split, optimizer_state=bfloat16", "every bit, moments of 8 bits"),
    ("model_{compute}, master=kahan, optimizer_state=bfloat16", "17 bits, moments of 8 bits"),
    ("model_{compute}, master=stochastic", "8 bits, right on average"),
    (
        "model_{compute}, master=stochastic, optimizer_state=bfloat16",
        "8 bits, right on average, moments of 8 bits",
    ),
)
"""What ``fit_memory`` tries, the most exact first: the policy, and what it keeps."""


@dataclass(frozen=True)
class MemoryFit:
    """What fits into a budget.

    Attributes:
        budget: bytes.
        rows: each candidate with what it keeps exact, and why it is refused (``""`` if not).
    """

    budget: int
    rows: tuple[tuple[MemoryEstimate, str, str], ...]

    @property
    def chosen(self) -> MemoryEstimate | None:
        """The most exact that fits and that the framework has; None if nothing does."""
        fits = [row for row, _, refused in self.rows if not refused and row.total <= self.budget]
        return fits[0] if fits else None

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, ready for JSON."""
        chosen = self.chosen
        return {
            "budget": self.budget,
            "chosen": None if chosen is None else str(chosen.policy),
            "candidates": [
                row.to_dict()
                | {"keeps": keeps, "refused": refused, "fits": row.total <= self.budget}
                for row, keeps, refused in self.rows
            ],
        }

    def __str__(self) -> str:
        """Return the list, then what was chosen and why."""
        lines = [
            f"{'*' if row == self.chosen else ' '} {show_bytes(row.total):>9}  "
            f"{row.per_parameter:4.3g} a parameter  {row.policy}: "
            + (refused or keeps + ("" if row.total <= self.budget else "; too large"))
            for row, keeps, refused in self.rows
        ]
        return "\n".join([*lines, self.verdict])

    @property
    def verdict(self) -> str:
        """What was chosen, in a sentence; or what is missing."""
        chosen, budget = self.chosen, show_bytes(self.budget)
        if chosen is not None:
            return f"the most exact within {budget}: {chosen.policy} ({show_bytes(chosen.total)})"
        possible = [row for row, _, refused in self.rows if not refused]
        least = min(possible, key=lambda row: row.total, default=None)
        if least is None:
            return "none of these is possible with this framework"
        return (
            f"nothing fits into {budget}: the smallest, {least.policy}, needs "
            f"{show_bytes(least.total)}; use an optimizer with less state, such as SGD, or a "
            "smaller model"
        )


def fit_memory(
    model: Any, optimizer: Any, budget: str | float, *, compute: str = "bfloat16"
) -> MemoryFit:
    """Return the most exact scheme of master weights that fits, and the list it came from.

    Args:
        model: as for ``memory``.
        optimizer: as for ``memory``.
        budget: bytes between steps, without activations: a number, or a text such as
            ``"1.5GB"`` or ``"800 MiB"``.
        compute: 16-bit dtype to compute in; with ``"float16"`` there is only ``copy``.

    Raises:
        PolicyError: ``budget`` is no size, or ``compute`` no 16-bit dtype.
        BackendError: as for ``memory``.
    """
    can = None
    if not isinstance(model, list | tuple):
        can = find_backend(model).capabilities(model)
    return propose(model, optimizer, parse_bytes(budget), can, compute)


def propose(
    model: Any, optimizer: Any, budget: int, can: Capabilities | None, compute: str = "bfloat16"
) -> MemoryFit:
    """Return ``fit_memory`` for a model that is not at hand: its layers, what its backend can."""
    check_choice("compute", compute, ("bfloat16", "float16"))
    rows: list[tuple[MemoryEstimate, str, str]] = []
    for text, keeps in CANDIDATES:
        try:
            policy = Policy.parse(text.format(compute=compute))
        except PolicyError:
            if compute == "bfloat16":
                raise
            continue  # float16 has no further bits to keep
        rows.append((estimate_memory(model, optimizer, policy), keeps, _refused(policy, can)))
    return MemoryFit(budget, tuple(rows))


def _refused(policy: Policy, can: Capabilities | None) -> str:
    if can is None:
        return ""
    try:
        check_policy(policy, can)
    except BackendError as exc:
        return str(exc)
    return ""

"""Is each number of a comparison within what noise explains, and what would have shown?"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from mpcore.numerics.dtypes import FORMATS
from mpcore.tools.compare.step_sizes import QUANTITIES
from mpcore.tools.report.result import Kink, Lockstep, Number

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mpcore.tools.compare.step_sizes import Apart, StepSizes

    Noise = Sequence[Mapping[str, Mapping[str, float]]]

__all__ = ["Judged", "accuracy_number", "floor_of", "judge", "noise_of"]

MARGIN = 3.0
"""The largest of a few moved steps underestimates what noise can do."""

_MARGINS = {True: (5.0, 1.5), False: (MARGIN, MARGIN)}
"""In 16 bits, and in float32: of one step over the largest noise, of most steps over the usual.

In 16 bits every moved weight is another one, while two implementations share the weights and
round their sums alike but at the borders: at most steps they lie nearer than noise. A single
step, whose gradient may be small by chance, says less."""

_FLOORS = {
    # relative: what two frameworks' kernels differ by where moved weights hardly tell
    "loss": 1e-5,
    "gradient": 1e-4,
    "update": 1e-4,
    "statistics": 1e-4,
    "zeros": 0.01,
}
_LOW_FLOORS = {
    # spacings of a 16-bit format at 1.0
    "loss": 1.0,
    "gradient": 4.0,
    "update": 4.0,
    "statistics": 2.0,
}
_ERRORS = [float(e) for e in np.logspace(-6, 0, 25)]
_NOTHING = 0.5  # noise this large leaves a tensor no direction: its distance is not shown
_SHOWS = 0.9  # of the tensors, for an error to be said to show


def floor_of(quantity: str, compute: str) -> float:
    """Return the smallest tolerance of a quantity of one step, relative."""
    least = _FLOORS[quantity]
    if compute == "float32" or quantity not in _LOW_FLOORS:
        return least
    return max(least, _LOW_FLOORS[quantity] * FORMATS[compute].spacing)


def noise_of(moved: Sequence[StepSizes]) -> dict[str, dict[str, float]]:
    """Return how far noise alone moves each tensor of one step: the largest of moved steps."""
    found: dict[str, dict[str, float]] = {}
    for sizes in moved:
        for quantity, tensors in sizes.items():
            into = found.setdefault(quantity, {})
            for name, apart in tensors.items():
                into[name] = max(into.get(name, 0.0), apart.relative)
    return found


@dataclass(frozen=True)
class Judged:
    """What single steps tell of two runs.

    Attributes:
        lockstep: their sizes.
        numbers: one a quantity, with its worst tensor.
        kinks: steps that lie apart alone, and may be a ReLU at its kink; not proved.
        tensors: by quantity, all tensors that are beyond noise.
    """

    lockstep: Lockstep
    numbers: tuple[Number, ...]
    kinks: tuple[Kink, ...] = ()
    tensors: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def beyond(self) -> bool:
        """Whether noise does not explain a number, kinks apart."""
        return any(number.beyond for number in self.numbers)


@dataclass
class _Tensor:
    """One tensor over all steps."""

    quantity: str
    name: str
    floor: float
    margins: tuple[float, float]
    steps: list[int] = field(default_factory=list)
    aparts: list[Apart] = field(default_factory=list)
    noise: list[float] = field(default_factory=list)

    def tolerances(self) -> tuple[float, float]:
        """Return what is explained at a step, and what at most of them."""
        known = [n for n in self.noise if n < inf]
        if len(known) < len(self.noise):
            return inf, inf  # noise alone decides whether it is finite
        return (
            max(self.floor, self.margins[0] * max(known, default=0.0)),
            max(self.floor, self.margins[1] * median(known) if known else 0.0),
        )

    def beyond(self, sizes: Sequence[float]) -> tuple[bool, list[int]]:
        """Return whether most steps lie beyond, and those that do by themselves."""
        once, most = self.tolerances()
        usual = bool(sizes) and median(sizes) > most
        alone = [k for k, size in zip(self.steps, sizes, strict=True) if not size <= once]
        # Zeros come and go with single activations; only what stays is told.
        return usual, [] if self.quantity == "zeros" else alone

    @property
    def sizes(self) -> list[float]:
        return [apart.relative for apart in self.aparts]

    def shows(self) -> float:
        """Return the smallest error of one factor that would have been beyond; inf for none."""
        if self.quantity in ("loss", "zeros"):
            return max(self.floor, self.tolerances()[1])
        for error in _ERRORS:
            usual, alone = self.beyond([apart.scaled(error) for apart in self.aparts])
            if usual or len(alone) > _isolated(len(self.steps)):
                return error
        return inf


def _isolated(steps: int) -> int:
    """Return how many steps of so many may lie apart alone and be taken for a kink."""
    return max(1 if steps >= 10 else 0, steps // 20)


def judge(compute: str, steps: Sequence[StepSizes], noise: Noise) -> Judged:
    """Return what single steps from the same states tell.

    A tensor is beyond noise if most of its steps lie farther apart than a margin over what moved
    weights change at most of them, or if one does than a margin over that at any. A few
    isolated steps of the second kind, whose loss agrees, may be kinks: an input of ReLU or
    max-pooling that two implementations round to different sides. They are set apart here and
    proved elsewhere.

    Args:
        compute: compute dtype of the policy.
        steps: what ``step_sizes`` returned for each.
        noise: what ``noise_of`` returned for each; empty where nothing was moved.
    """
    tensors = _tensors(compute, steps, noise)
    usual: dict[tuple[str, str], bool] = {}
    alone: dict[int, list[_Tensor]] = {}
    for tensor in tensors:
        often, single = tensor.beyond(tensor.sizes)
        usual[tensor.quantity, tensor.name] = often
        for step in single:
            alone.setdefault(step, []).append(tensor)
    kinks = _kinks(len(steps), alone, usual)
    apart = {kink.step for kink in kinks}
    rest = [index for index in range(len(steps)) if index not in apart]
    numbers = tuple(
        number
        for quantity in ("loss", *QUANTITIES)
        if (number := _number(quantity, tensors, usual, apart)) is not None
    )
    first = _first(rest, alone, tensors, usual)
    loss, gradient, update = (_largest(q, tensors, apart) for q in ("loss", "gradient", "update"))
    lockstep = Lockstep(len(steps), loss, gradient, update, first=first)
    beyond: dict[str, tuple[str, ...]] = {}
    for t in tensors:
        if usual[t.quantity, t.name] or any(
            t in alone[step] for step in alone if step not in apart
        ):
            beyond[t.quantity] = (*beyond.get(t.quantity, ()), t.name)
    return Judged(lockstep, numbers, kinks, beyond)


def _tensors(compute: str, steps: Sequence[StepSizes], noise: Noise) -> list[_Tensor]:
    found: dict[tuple[str, str], _Tensor] = {}
    for index, sizes in enumerate(steps):
        for quantity, tensors in sizes.items():
            for name, apart in tensors.items():
                key = quantity, name
                if quantity == "update" and _aimless(compute, sizes, name):
                    continue
                if key not in found:
                    margins = _MARGINS[compute != "float32"]
                    found[key] = _Tensor(quantity, name, floor_of(quantity, compute), margins)
                found[key].steps.append(index)
                found[key].aparts.append(apart)
                moved = noise[index].get(quantity, {}).get(name) if index < len(noise) else None
                if moved is not None:
                    found[key].noise.append(moved)
    return list(found.values())


def _aimless(compute: str, sizes: StepSizes, name: str) -> bool:
    """Return whether rounding alone decides where a tensor moves: its gradient is nothing else.

    Adam moves a bias before a normalisation, whose gradient is zero but for rounding, as far as
    any other parameter, to either side.
    """
    gradient = sizes.get("gradient", {}).get(name)
    return gradient is not None and gradient.share < floor_of("gradient", compute)


def _kinks(
    count: int, alone: Mapping[int, Sequence[_Tensor]], usual: Mapping[tuple[str, str], bool]
) -> tuple[Kink, ...]:
    if any(usual.values()) or not alone or len(alone) > _isolated(count):
        return ()
    if any(tensor.quantity == "loss" for tensors in alone.values() for tensor in tensors):
        return ()
    return tuple(
        Kink(step, _at(step, alone[step], "gradient"), _at(step, alone[step], "update"))
        for step in sorted(alone)
    )


def _at(step: int, tensors: Sequence[_Tensor], quantity: str) -> float:
    sizes = [t.sizes[t.steps.index(step)] for t in tensors if t.quantity == quantity]
    return max(sizes, default=0.0)


def _first(
    rest: Sequence[int],
    alone: Mapping[int, object],
    tensors: Sequence[_Tensor],
    usual: Mapping[tuple[str, str], bool],
) -> int | None:
    single = [step for step in rest if step in alone]
    often = [
        step
        for t in tensors
        if usual[t.quantity, t.name]
        for step, size in zip(t.steps, t.sizes, strict=True)
        if size > t.tolerances()[1]
    ]
    return min([*single, *often], default=None)


def _largest(quantity: str, tensors: Sequence[_Tensor], apart: set[int]) -> float:
    sizes = [
        size
        for t in tensors
        if t.quantity == quantity
        for step, size in zip(t.steps, t.sizes, strict=True)
        if step not in apart and not (t.noise and median(t.noise) > _NOTHING)
    ]
    return max(sizes, default=0.0)


def _number(
    quantity: str,
    tensors: Sequence[_Tensor],
    usual: Mapping[tuple[str, str], bool],
    apart: set[int],
) -> Number | None:
    own = [t for t in tensors if t.quantity == quantity]
    found = []
    for tensor in own:
        once, most = tensor.tolerances()
        kept = [
            (size, step)
            for size, step in zip(tensor.sizes, tensor.steps, strict=True)
            if step not in apart
        ]
        if not kept:
            continue
        size, step = max(kept)
        alone = not size <= once and quantity != "zeros"
        often = usual[quantity, tensor.name]
        if often and not alone:
            # The step in the middle stands for all of them.
            size, step = sorted(kept)[len(kept) // 2]
            once = most
        elif quantity == "zeros":
            size, step = sorted(kept)[len(kept) // 2]
            once = most
        # A tensor beyond comes before one that is near; then how many times the tolerance.
        ratio = size / once if once < inf else 0.0
        found.append(((often or alone), ratio, size, once, tensor.name, step))
    if not found:
        return None
    beyond, _, size, tolerance, name, step = max(found, key=lambda f: (f[0], f[1]))
    shows = sorted(tensor.shows() for tensor in own)
    reached = shows[min(int(_SHOWS * len(shows)), len(shows) - 1)]
    blind = sum(value == inf for value in shows)
    return Number(
        name=quantity,
        size=size,
        tolerance=tolerance,
        beyond=beyond,
        tensor=name,
        step=step,
        count=sum(usual[quantity, t.name] or bool(t.beyond(t.sizes)[1]) for t in own),
        shows=None if reached == inf else reached,
        blind=blind,
    )


def accuracy_number(reference: float, own: float, moved: Sequence[float], examples: int) -> Number:
    """Return how far two test accuracies lie apart beside what moved runs change.

    Args:
        reference: share of the examples that are right, in [0, 1].
        own: of the other run.
        moved: of runs whose first weights were moved by a rounding.
        examples: how many were tested; three of them may always fall to the other side.
    """
    size = abs(own - reference)
    known = [abs(other - reference) for other in moved]
    tolerance = MARGIN * max([*known, 1.0 / max(examples, 1)])
    shows = tolerance if tolerance < 1 else None
    return Number("accuracy", size, tolerance, size > tolerance * (1 + 1e-9), shows=shows)

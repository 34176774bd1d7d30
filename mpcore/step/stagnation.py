"""Updates that are lost to rounding: counted in each step, told when they are most of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mpcore.errors import BackendError, check_choice
from mpcore.numerics.dtypes import is_low
from mpcore.step.result import shares

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from mpcore.policy.policy import Policy
    from mpcore.step.result import StepResult

__all__ = ["JUDGED_STEPS", "MOST", "StagnationDetector", "count_lost", "measures", "sample"]

JUDGED_STEPS = 20
"""Steps that are judged together."""

MOST = 4096
"""Elements of a tensor that are looked at."""

_LIMIT = 0.5  # share of lost updates that is told


def measures(policy: Policy, option: str) -> bool:
    """Return whether steps under ``policy`` count lost updates.

    Args:
        policy: the policy.
        option: ``"on"``, ``"off"``, or ``"auto"``: where 16-bit parameters have no float32
            master values, under master weights ``none`` and ``stochastic``.

    Raises:
        BackendError: an unknown option.
    """
    check_choice("count_lost_updates", option, ("auto", "on", "off"), BackendError)
    without = is_low(policy.param) and policy.scheme.name in ("none", "stochastic")
    return option == "on" or (option == "auto" and without)


def sample(size: int) -> npt.NDArray[np.int64]:
    """Return flat indices, evenly spaced, of the elements to look at in a tensor of ``size``.

    Examples:
        >>> sample(3).tolist(), sample(8192)[:3].tolist(), len(sample(10**6))
        ([0, 1, 2], [0, 2, 4], 4096)
    """
    count = min(size, MOST)
    return np.arange(count, dtype=np.int64) * size // max(count, 1)


def count_lost(
    before: npt.NDArray[Any], after: npt.NDArray[Any], grad: npt.NDArray[Any]
) -> tuple[int, int]:
    """Return how many updates of one tensor were lost, and how many there were to lose.

    An update is an element with a non-zero gradient; it is lost if what is stored did not change.

    Args:
        before: the sampled elements before the step: the 16-bit parameter, or the float32
            master value where the scheme keeps one.
        after: the same after a step that was taken.
        grad: true gradients of the same elements.
    """
    moving = grad != 0
    return int(np.count_nonzero(moving & (before == after))), int(np.count_nonzero(moving))


class StagnationDetector:
    """Looks back over every ``JUDGED_STEPS`` steps, and tells once if most updates were lost.

    Steps are judged together, so that the device is waited for once in ``JUDGED_STEPS`` steps.
    Stochastic rounding is not warned of: what one step does not move, the mean of many does.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._waiting: list[StepResult] = []
        self._real = 0
        self._sums: dict[str, npt.NDArray[np.float64]] = {}
        self._done = policy.scheme.name == "stochastic"

    def add(self, result: StepResult) -> str:
        """Take the result of one step, and return what to tell; skipped steps do not count."""
        if self._done or not result.counts_lost:
            return ""
        self._waiting.append(result.lost_only())
        return self._read() if len(self._waiting) + self._real >= JUDGED_STEPS else ""

    def _read(self) -> str:
        for result in self._waiting:
            if result.stepped:
                self._real += 1
                for name, pair in result.lost_counts().items():
                    self._sums[name] = self._sums.get(name, np.zeros(2)) + pair
        self._waiting = []
        if self._real < JUDGED_STEPS:
            return ""
        found = self.judge(self._sums)
        self._real, self._sums = 0, {}
        self._done = bool(found)
        return found

    def judge(self, sums: Mapping[str, Sequence[float] | npt.NDArray[Any]]) -> str:
        """Return what to tell about (lost, updates) by parameter path; empty if all is well."""
        if not sums:
            return ""
        pairs = np.array([sums[name] for name in sums], np.float64)
        by_layer = {k: s for k, s in shares(sums, pairs).items() if s > _LIMIT}
        if not by_layer:
            return ""
        worst = sorted(by_layer, key=lambda layer: -by_layer[layer])
        listed = ", ".join(f"{layer or '(model)'} {by_layer[layer]:.0%}" for layer in worst[:3])
        more = f" and {len(worst) - 3} more" if len(worst) > 3 else ""
        lost, of = pairs.sum(0)
        return (
            f"most updates of {listed}{more} were lost to rounding in the last {JUDGED_STEPS} "
            f"steps ({lost / of:.0%} over the model): {self._advice()}"
        )

    def _advice(self) -> str:
        if is_low(self._policy.param) and self._policy.scheme.name == "none":
            kind = self._policy.param
            others = "split, kahan or stochastic" if kind == "bfloat16" else "copy"
            return (
                f"a {kind} parameter cannot hold steps that small. Keep float32 master values: "
                f"master={others} in the policy (see docs/master-weights.md)"
            )
        return "even the float32 master values did not change: the learning rate is too small"

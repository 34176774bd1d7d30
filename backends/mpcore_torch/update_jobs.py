"""What ``update_kernels.c`` is given: one job for each tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from mpcore_torch.update_kernels import kernel
from mpcore_torch.update_rules import RULES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mpcore.numerics.master_weights import MasterWeights
    from mpcore_torch.update_rules import Rule

__all__ = ["Job", "run", "scheme_of", "table_of", "threads_for"]

_EACH = 2**18  # values for one thread, at least
_SCHEMES = (
    "copy:nearest",
    "copy:away",
    "copy:truncate",
    "split:away",
    "split:truncate",
    "kahan",
    "stochastic",
    "plain",
)  # as in update_kernels.c
_TABLE = np.dtype(
    [(name, "u8") for name in ("low", "beside", "grad", "first", "second", "step", "root_of")]
    + [("count", "i8"), ("key", "u4"), ("scheme", "i4"), ("rule", "i4"), ("narrow", "i4")]
    + [(name, "f4") for name in ("now", "decay", "first_weight", "second_keep", "second_weight")]
    + [(name, "f4") for name in ("root", "eps", "rate", "momentum")],
    align=True,
)


class Job(NamedTuple):
    """One tensor in one step.

    Attributes:
        scheme: of ``scheme_of``.
        rule: of its group.
        low: the 16-bit parameter; None where ``scheme`` is ``"plain"``.
        beside: what is kept beside it, or the float32 parameter; None for nothing.
        grad: float32.
        slots: moments, in the order of ``rule.slots``.
        step: the optimizer's count.
        now: what that becomes.
        key: tells the noise.
        root: address of the square root; 0 for the machine's own.
        numbers: of ``numbers_of``.
    """

    scheme: str
    rule: Rule
    low: torch.Tensor | None
    beside: torch.Tensor | None
    grad: torch.Tensor
    slots: tuple[torch.Tensor, ...]
    step: torch.Tensor | None
    now: float
    key: int
    root: int
    numbers: tuple[float, ...]

    @property
    def written(self) -> list[torch.Tensor]:
        """What the kernel writes."""
        return [
            part for part in (self.low, self.beside, *self.slots, self.step) if part is not None
        ]


def scheme_of(scheme: MasterWeights) -> str | None:
    """Return the kernel's name of a scheme of master weights; None if it has none."""
    name = scheme.name
    if name in ("copy", "split"):
        name += f":{scheme.rounding}"
    return name if name in _SCHEMES else None


def _address(tensor: torch.Tensor | None) -> int:
    return 0 if tensor is None else int(tensor.data_ptr())


def _row(job: Job) -> tuple[float, ...]:
    first, second = (*job.slots, None, None)[:2]
    parts = (job.low, job.beside, job.grad, first, second, job.step)
    narrow = bool(job.slots) and job.slots[0].dtype is torch.bfloat16
    places = (_SCHEMES.index(job.scheme), RULES.index(job.rule.name), narrow)
    about = (job.grad.numel(), job.key, *places, job.now)
    return (*map(_address, parts), job.root, *about, *job.numbers)


def table_of(jobs: Sequence[Job]) -> np.ndarray[tuple[int], np.dtype[np.void]]:
    """Return the kernel's own form of ``jobs``, which must outlive it."""
    return np.array([_row(job) for job in jobs], _TABLE)


def threads_for(jobs: Sequence[Job]) -> int:
    """Return how many threads are worth it."""
    values: int = sum(job.grad.numel() for job in jobs)
    most: int = torch.get_num_threads()
    return max(1, min(most, values // _EACH))


def run(jobs: Sequence[Job]) -> None:
    """Run ``jobs`` now."""
    table = table_of(jobs)
    kernel()(table.ctypes.data, len(jobs), threads_for(jobs))

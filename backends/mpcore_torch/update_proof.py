"""Does the kernel move values as the optimizer does? It is tried, before it is used.

Three steps of both on some thousand values, with weights, gradients and moments of many sizes;
every bit of what is stored must be the same. It takes some milliseconds for each kind of group.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from mpcore.numerics.master_weights import MasterWeights
from mpcore_torch.master_state import MasterState, master_state_for
from mpcore_torch.optimizer_state import Moments
from mpcore_torch.update_jobs import Job, run
from mpcore_torch.update_kernels import mkl_root
from mpcore_torch.update_rules import numbers_of

if TYPE_CHECKING:
    from mpcore_torch.update_rules import Rule

__all__ = ["root_that_fits"]

_SIZE = 5024  # whole vectors; many strips, and a part of one
_REST = 13  # of a vector
_STEPS = 3
_KEY = 0x9E3779B9


def root_that_fits(
    optimizer: torch.optim.Optimizer,
    group: dict[str, Any],
    rule: Rule,
    scheme: str,
    *,
    narrow: bool,
) -> int | None:
    """Return the square root with which the kernel computes what ``optimizer`` does.

    Args:
        optimizer: of torch.
        group: one of its.
        rule: of ``group``.
        scheme: as the kernel calls it.
        narrow: whether moments are kept in bfloat16.

    Returns:
        0 for the machine's own, or an address; None if it computes something else.
    """
    roots = dict.fromkeys((0, mkl_root())) if rule.counted else (0,)
    return next((r for r in roots if _fits(type(optimizer), group, rule, scheme, narrow, r)), None)


def _fits(
    kind: type[torch.optim.Optimizer],
    group: dict[str, Any],
    rule: Rule,
    scheme: str,
    narrow: bool,
    root: int,
) -> bool:
    eager, own = (_Probe(kind, group, rule, scheme, narrow=narrow) for _ in range(2))
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for step in range(1, _STEPS + 1):
            grad = _values(eager.size, draw, -8, 2)
            eager.step(grad)
            if step == 1 and rule.slots:
                own.step(grad)  # it makes the slots
            else:
                own.step_by_kernel(grad.clone(), step, root)
            if not all(map(_same, eager.stored(), own.stored())):
                return False
    return True


class _Probe:
    """One parameter under a scheme, and an optimizer of it."""

    def __init__(
        self,
        kind: type[torch.optim.Optimizer],
        group: dict[str, Any],
        rule: Rule,
        scheme: str,
        *,
        narrow: bool,
    ) -> None:
        self.size = _SIZE if rule.fused else _SIZE + _REST
        values = _values(self.size, torch.Generator().manual_seed(0), -40, 2)
        values[:8] = torch.tensor(
            [0.0, -0.0, 1.0, -1.0, 3e38, -3e38, torch.inf, 1.00390625], device="cpu"
        )
        self._group, self._rule, self._scheme = group, rule, scheme
        self._master = nn.Parameter(values)
        self._state: MasterState | None = None
        if scheme != "plain":
            low = nn.Parameter(values.bfloat16())
            self._state = master_state_for(low, self._master, MasterWeights.parse(scheme))
        self._optimizer = kind([self._master], lr=group["lr"])
        self._optimizer.param_groups[0].update(
            {name: value for name, value in group.items() if name != "params"}
        )
        self._moments = Moments(self._optimizer) if narrow else None

    def step(self, grad: torch.Tensor) -> None:
        """Let the optimizer step, as ``Masters`` does."""
        if self._moments is not None:
            self._moments.open([self._master])
        if self._state is not None:
            self._state.open(_room)
        self._master.grad = grad
        with torch.enable_grad():
            self._optimizer.step()
        if self._state is not None:
            self._state.close(_KEY)
        if self._moments is not None:
            self._moments.close([self._master])

    def step_by_kernel(self, grad: torch.Tensor, step: int, root: int) -> None:
        """Let the kernel step."""
        slots = self._optimizer.state[self._master]
        moments = tuple(slots[name] for name in self._rule.slots)
        low = beside = None
        if self._state is None:
            beside = self._master
        else:
            low, beside = self._state.low, next(iter(self._state.parts()), None)
        count = slots["step"] if self._rule.counted else None
        numbers = numbers_of(self._rule, self._group, step)
        job = Job(
            self._scheme, self._rule, low, beside, grad, moments, count, step, _KEY, root, numbers
        )
        run([job])

    def stored(self) -> list[torch.Tensor]:
        """Return all that is there between steps."""
        kept = [self._master] if self._state is None else [self._state.low, *self._state.parts()]
        slots = self._optimizer.state[self._master]
        return [part.detach() for part in (*kept, *slots.values()) if part is not None]


def _room(like: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(like, dtype=torch.float32, requires_grad=False)


def _values(size: int, draw: torch.Generator, least: int, most: int) -> torch.Tensor:
    """Return random values of many sizes, 10 to the ``least`` up to 10 to the ``most``."""
    where: Any = {"generator": draw, "dtype": torch.float32, "device": "cpu"}
    return torch.randn(size, **where) * 10.0 ** (torch.rand(size, **where) * (most - least) + least)


def _same(one: torch.Tensor, two: torch.Tensor) -> bool:
    """Return whether two tensors hold the same bits; whichever bits a NaN has."""
    if one.dtype.is_floating_point:
        both = one.isnan() & two.isnan()
        one, two = one.masked_fill(both, 0), two.masked_fill(both, 0)
        bits = torch.int16 if one.itemsize == 2 else torch.int32
        return bool(torch.equal(one.view(bits), two.view(bits)))
    return bool(torch.equal(one, two))

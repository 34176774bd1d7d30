"""Which of torch's optimizers the kernel of ``one_pass`` knows, and the numbers of their steps."""

from __future__ import annotations

import inspect
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["KINDS", "RULES", "Rule", "numbers_of", "rule_of", "steps_itself"]

KINDS = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD)
RULES = ("adam", "adamw", "sgd", "momentum", "nesterov")  # as in update_kernels.c
_OPTIM = Path(inspect.getfile(torch.optim)).parent
_UNKNOWN = ("amsgrad", "maximize", "capturable", "differentiable")


class Rule(NamedTuple):
    """How a group of parameters moves; two with the same have the same arithmetic.

    Attributes:
        name: one of ``RULES``.
        slots: its moments, as torch calls them.
        fused: whether torch's fused kernel is meant, which rounds in other ways.
        decays: whether there is weight decay.
        blends: whether a gradient counts less than half in its first moment.
    """

    name: str
    slots: tuple[str, ...]
    fused: bool
    decays: bool
    blends: bool

    @property
    def counted(self) -> bool:
        """Whether there is a count of steps beside the moments."""
        return len(self.slots) > 1


def rule_of(optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> Rule | str:
    """Return how a group of an optimizer of ``KINDS`` moves, or why the kernel does not know."""
    kind = type(optimizer)
    numbers: list[Any] = [group.get("lr"), group.get("weight_decay")]
    numbers += group.get("betas", (group.get("momentum"), group.get("dampening")))
    for name in _UNKNOWN:
        if group.get(name):
            return f"{kind.__name__} with {name} is not in the kernel"
    if not all(isinstance(number, int | float) and math.isfinite(number) for number in numbers):
        return (
            "a learning rate or a coefficient that is a tensor, or not finite, is not in the kernel"
        )
    fused, decays = bool(group.get("fused")), group["weight_decay"] != 0
    if kind is torch.optim.SGD:
        if not group["momentum"]:
            return Rule("sgd", (), fused, decays, blends=True)
        name = "nesterov" if group["nesterov"] else "momentum"
        return Rule(name, ("momentum_buffer",), fused, decays, blends=True)
    apart = group.get("decoupled_weight_decay", kind is torch.optim.AdamW)
    blends = 1 - group["betas"][0] < 0.5
    name = "adamw" if apart else "adam"
    return Rule(name, ("exp_avg", "exp_avg_sq"), fused, decays, blends)


def numbers_of(rule: Rule, group: dict[str, Any], step: float) -> tuple[float, ...]:
    """Return the factors of one step, in double precision as torch has them; see ``job``.

    Args:
        rule: of ``group``.
        group: of the optimizer's ``param_groups``.
        step: the number of this one, from 1.
    """
    rate, decay = group["lr"], group["weight_decay"]
    if not rule.counted:
        momentum = group["momentum"]
        return (decay, 1 - group["dampening"], 0.0, 0.0, 1.0, 0.0, -rate, momentum)
    first, second = group["betas"]
    left = 1 - second**step
    root = math.sqrt(left) if rule.fused else left**0.5
    factor = 1 - rate * decay if rule.name == "adamw" else decay
    size = rate / (1 - first**step)
    return (factor, 1 - first, second, 1 - second, root, group["eps"], -size, 0.0)


def steps_itself(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether ``optimizer.step`` is that of ``torch.optim``, with its own wrappers alone."""
    step: Callable[..., Any] | None = optimizer.step
    while step is not None:
        code = getattr(step, "__code__", None)
        if code is None or not Path(code.co_filename).is_relative_to(_OPTIM):
            return False
        step = getattr(step, "__wrapped__", None)
    return all(getattr(optimizer, name, None) is None for name in ("grad_scale", "found_inf"))

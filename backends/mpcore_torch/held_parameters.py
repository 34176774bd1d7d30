"""Which parameters the optimizers of a prepared model hold: the same at each step, or more.

``optimizer.param_groups`` are plain lists. One that is taken out of them, or exchanged, would stay
as it is from then on without a word; one that is in them twice would be moved twice. Groups that
are added (``add_param_group``) are taken in.
"""

from __future__ import annotations

import weakref
from operator import is_
from typing import TYPE_CHECKING

from torch import nn

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mpcore.amp.guard import Guard

__all__ = ["HeldParameters"]

_INSTEAD = (
    "put back what was there, or `release()` and `prepare` again; a parameter that is not to be "
    "trained has requires_grad=False"
)


class HeldParameters:
    """What each optimizer holds; looked at when a step begins, before it moves anything.

    Attributes:
        lists: that, by the optimizer's name; a step asks when one differs.
    """

    def __init__(self, model: nn.Module, held: Mapping[str, Sequence[nn.Parameter]]) -> None:
        """Take what they hold now for what they have to hold."""
        self.lists = {name: list(params) for name, params in held.items()}
        held_now = {param for params in self.lists.values() for param in params}
        self._homes = weakref.WeakKeyDictionary[nn.Module, list[nn.Parameter]]()
        for module in model.modules():
            own = [param for param in module._parameters.values() if param in held_now]
            if own:
                self._homes[module] = own

    def look(self, model: nn.Module, guard: Guard) -> None:
        """Raise GuardError if a layer has parameters that nobody trains, for some that are trained.

        So does a ``weight_norm`` that comes later: it makes two parameters of one.
        """
        now = set(model.parameters())
        for module in model.modules():
            own = self._homes.get(module, [])
            lost = [param for param in own if param not in now]
            held = {param for params in self.lists.values() for param in params} if lost else set()
            if lost and any(p.requires_grad and p not in held for p in module.parameters()):
                what = "new parameters of a layer (weight_norm) in the place of the optimizer's"
                guard.check(what, "change the model before `prepare`, or take the change back")

    def check(self, now: Mapping[str, list[nn.Parameter]], guard: Guard) -> None:
        """Raise GuardError if an optimizer lacks a parameter that it had, or has one twice."""
        for name, before in self.lists.items():
            params = now[name]
            if len(params) != len(before) or not all(map(is_, params, before)):
                known = set(params)
                if len(known) < len(params) or not known.issuperset(before):
                    what = "another parameter in `optimizer.param_groups`, one less, or one twice,"
                    guard.check(what, _INSTEAD)
                self.lists[name] = params

"""Classes of ``nn.Sequential`` that get their layers as attributes: a row of Cells runs its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.mindspore.rules.place import PortRule, wording

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["SequentialRule"]

_SEQUENTIAL = ("torch.nn.Sequential", "torch.nn.modules.container.Sequential")


class SequentialRule(PortRule):
    """``class Block(nn.Sequential)`` with ``self.conv = ...`` runs what it holds, as in torch."""

    name = "row of layers"
    reason = "nn.SequentialCell does not run what it gets as an attribute"
    visits = (cst.Arg,)

    def act(self, old: cst.Arg, new: cst.Arg, at: At) -> Any:
        """Replace one base of a class."""
        owner = at.names.parents.get(old)
        if not isinstance(owner, cst.ClassDef) or all(base is not old for base in owner.bases):
            return None
        if at.names.qualified(old.value) not in _SEQUENTIAL or not _sets_attributes(owner, at):
            return None
        made = cst.parse_expression(wording(at, "port.Sequential"))
        at.note(self, old.value, made)
        return new.with_changes(value=made)


def _sets_attributes(owner: cst.ClassDef, at: At) -> bool:
    """Return whether methods of a class set attributes of it."""
    return any(one is owner for one, text in at.names._attributes if text.startswith("self."))

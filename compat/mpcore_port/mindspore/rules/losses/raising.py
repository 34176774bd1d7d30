"""Branches that raise in front of an ``else`` that trains: what else says stands behind them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.mindspore.rules.changes.shared import losses
from mpcore_port.mindspore.rules.place import PortRule
from mpcore_port.names import code_of

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["RaisingRule"]


class RaisingRule(PortRule):
    """``if isnan(part): raise ...``, ``else: loss = part * 2; ...``: the loss joins its network."""

    name = "raising"
    reason = "every branch before raises: what `else` says comes behind them"
    visits = (cst.If,)

    def idle(self, at: At) -> bool:
        """Whether nothing raises or has a backward pass, or the script is a port."""
        return super().idle(at) or not all(word in at.code for word in ("raise ", ".backward("))

    def act(self, old: Any, new: Any, at: At) -> Any:
        """Put the statements of one ``else`` behind its branches."""
        parent = at.names.parents.get(old)
        branches, last = _branches(old)
        if isinstance(parent, cst.If) or not isinstance(last, cst.Else):
            return None
        if not all(_raises(one) for one in branches) or not _makes_loss(last, at):
            return None
        inside = list(_branches(new)[1].body.body)
        at.note(self, last, "\n".join(code_of(one) for one in last.body.body))
        lead = [*_branches(new)[1].leading_lines, *getattr(inside[0], "leading_lines", ())]
        inside[0] = inside[0].with_changes(leading_lines=lead)
        return cst.FlattenSentinel([_without_else(new), *inside])


def _branches(node: Any) -> tuple[list[cst.If], Any]:
    """Return the branches with conditions, and what comes last: an ``else``, or None."""
    found = []
    while isinstance(node, cst.If):
        found.append(node)
        node = node.orelse
    return found, node


def _raises(branch: cst.If) -> bool:
    last: Any = branch.body.body[-1]
    return isinstance(last, cst.SimpleStatementLine) and isinstance(last.body[-1], cst.Raise)


def _makes_loss(last: cst.Else, at: At) -> bool:
    """Return whether an ``else`` gives a loss its value, and has its backward pass."""
    if not isinstance(last.body, cst.IndentedBlock) or ".backward(" not in code_of(last):
        return False
    lines = [one for one in last.body.body if isinstance(one, cst.SimpleStatementLine)]
    made = [one.body[0].targets[0].target for one in lines if isinstance(one.body[0], cst.Assign)]
    return any(code_of(target) in at.once(losses) for target in made)


def _without_else(node: cst.If) -> cst.If:
    below = node.orelse
    return node.with_changes(orelse=_without_else(below) if isinstance(below, cst.If) else None)

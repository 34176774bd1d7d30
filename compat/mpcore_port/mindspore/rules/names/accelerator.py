"""Questions whether an accelerator is there: in a port the answer is yes.

MindSpore is built for one device; a port is for Ascend. ``torch.cuda.is_available()``, a device
that is made by it, and comparisons of that device with ``"cuda"`` are known then, and so are the
choices that hang on them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.mindspore.rules.names.there import has_equal, lists_equal
from mpcore_port.mindspore.rules.place import PortRule
from mpcore_port.names import code_of, string_of

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["AcceleratorRule"]

_THERE = {"torch.cuda.is_available", "torch.npu.is_available", "torch.accelerator.is_available"}
_KINDS = ("cuda", "npu")
_EFFECT = "the branch for an accelerator runs on every device"
_ASKED = "a port has what the porter knows an equal of"
_ONE_BRANCH = "one branch is left"
_DEPTH = 6
_ATOMS = (cst.Name, cst.Attribute, cst.Call, cst.Subscript, cst.BaseNumber, cst.BaseString)


class AcceleratorRule(PortRule):
    """Choices by whether an accelerator is there are made."""

    name = "accelerator"
    reason = "a port is for Ascend: an accelerator is there"
    visits = (
        cst.IfExp,
        cst.BooleanOperation,
        cst.IndentedBlock,
        cst.Module,
        cst.Call,
        cst.Comparison,
    )

    def act(self, old: Any, new: Any, at: At) -> Any:
        """Fold one expression, or the branches in one block."""
        if isinstance(old, (cst.IndentedBlock, cst.Module)):
            return self._block(old, new, at)
        if isinstance(old, cst.IfExp):
            known = _truth(old.test, at)
            made = None if known is None else new.body if known else new.orelse
        elif isinstance(old, cst.BooleanOperation):
            made = self._both(old, new, at)
        else:
            known = _truth(old, at)
            made = None if known is None else cst.Name(str(known))
        if made is not None and old.lpar and not made.lpar and not isinstance(made, _ATOMS):
            made = made.with_changes(lpar=old.lpar, rpar=old.rpar)  # '%d' % (a / b if there else 0)
        if made is None or not _is_outermost(old, at):
            return made
        whole = not isinstance(old, cst.IfExp) or _device(old, at) is not None
        why = _ASKED if "hasattr(" in code_of(getattr(old, "test", old)) else ""
        at.note(self, old, made, "exact" if whole else "changed", why, "" if whole else _EFFECT)
        return made

    def _both(self, old: cst.BooleanOperation, new: cst.BooleanOperation, at: At) -> Any:
        known = _truth(old, at)
        if known is not None:
            return cst.Name(str(known))
        neutral = isinstance(old.operator, cst.And)
        if _truth(old.left, at) is neutral:
            return new.right
        return new.left if _truth(old.right, at) is neutral else None

    def _block(self, old: Any, new: Any, at: At) -> Any:
        body: list[Any] = []
        changed = False
        for before, now in zip(old.body, new.body, strict=True):
            known = _truth(before.test, at) if isinstance(before, cst.If) else None
            kept = None if known is None else _branch(now, known=known)
            if kept is None:
                body.append(now)
                continue
            changed = True
            asked = "hasattr(" in code_of(before.test)
            why, effect = (_ASKED, _ONE_BRANCH) if asked else ("", _EFFECT)
            at.note(self, before, "\n".join(code_of(s) for s in kept), "changed", why, effect)
            if kept and hasattr(kept[0], "leading_lines"):
                lead = [*before.leading_lines, *kept[0].leading_lines]
                kept = [kept[0].with_changes(leading_lines=lead), *kept[1:]]
            body += kept
        if not changed:
            return None
        if not body and isinstance(old, cst.IndentedBlock):
            body = [cst.SimpleStatementLine([cst.Pass()])]
        return new.with_changes(body=body)


def _branch(node: cst.If, *, known: bool) -> list[Any] | None:
    """Return the statements that are left of an ``if``; None if they cannot stand alone."""
    part: Any = node.body if known else node.orelse
    if part is None:
        return []
    if isinstance(part, cst.If):  # elif
        return [part]
    block = part if known else part.body
    return list(block.body) if isinstance(block, cst.IndentedBlock) else None


def _is_outermost(node: cst.CSTNode, at: At) -> bool:
    """Return whether no larger expression is folded around ``node``."""
    for outer in at.names.ancestors(node):
        if isinstance(outer, cst.BaseStatement):
            return not (isinstance(outer, cst.If) and _truth(outer.test, at) is not None)
        folds = (cst.IfExp, cst.BooleanOperation, cst.UnaryOperation, cst.Comparison)
        if isinstance(outer, folds) and _truth(outer, at) is not None:
            return False
        if isinstance(outer, cst.IfExp) and _truth(outer.test, at) is not None:
            return False
    return True


def _truth(node: Any, at: At, depth: int = 0) -> bool | None:
    """Return what an expression is where an accelerator is there; None if that is not known."""
    if depth > _DEPTH:
        return None
    if isinstance(node, cst.Call):
        there = at.names.called(node) in _THERE and not node.args
        return True if there else has_equal(node, at)
    if isinstance(node, cst.UnaryOperation) and isinstance(node.operator, cst.Not):
        inner = _truth(node.expression, at, depth + 1)
        return None if inner is None else not inner
    if isinstance(node, cst.BooleanOperation):
        sides = [_truth(side, at, depth + 1) for side in (node.left, node.right)]
        short = isinstance(node.operator, cst.Or)
        if short in sides or _is_elsewhere(node, sides):
            return short
        return None if None in sides else not short
    if isinstance(node, cst.Comparison):
        listed = lists_equal(node, at)
        return _compared(node, at, depth) if listed is None else listed
    if isinstance(node, (cst.Name, cst.Attribute)):
        known = {_truth(value, at, depth + 1) for value in _values(node, at)} or {None}
        return known.pop() if len(known) == 1 else None
    return None


def _is_elsewhere(node: cst.BooleanOperation, sides: list[bool | None]) -> bool:
    """Return whether this is ``not x.is_cuda and torch.cuda.is_available()``, in either order.

    Where an accelerator is there, all tensors of a port are on it.
    """
    asked = (side for side in (node.left, node.right) if isinstance(side, cst.UnaryOperation))
    return (
        isinstance(node.operator, cst.And)
        and True in sides
        and any(
            isinstance(side.operator, cst.Not)
            and isinstance(side.expression, cst.Attribute)
            and side.expression.attr.value == "is_cuda"
            for side in asked
        )
    )


def _compared(node: cst.Comparison, at: At, depth: int) -> bool | None:
    if len(node.comparisons) != 1:
        return None
    part = node.comparisons[0]
    left: Any = node.left
    if isinstance(left, cst.Attribute) and left.attr.value == "type":
        left = left.value
    elif isinstance(left, cst.Call) and code_of(left.func) == "str" and len(left.args) == 1:
        left = left.args[0].value
    word = string_of(part.comparator)
    device = _device(left, at, depth + 1)
    if word is None or device is None:
        return None
    same = device.partition(":")[0] == word.partition(":")[0]
    if isinstance(part.operator, cst.Equal):
        return same
    return not same if isinstance(part.operator, cst.NotEqual) else None


def _device(node: Any, at: At, depth: int = 0) -> str | None:
    """Return the device that an expression surely names, such as ``"cuda"``; else None."""
    if depth > _DEPTH:
        return None
    text = string_of(node)
    if text is not None:
        return text if text.partition(":")[0] in (*_KINDS, "cpu", "mps") else None
    if isinstance(node, cst.IfExp):
        known = _truth(node.test, at, depth + 1)
        return (
            None if known is None else _device(node.body if known else node.orelse, at, depth + 1)
        )
    if isinstance(node, cst.Call):
        if at.names.called(node) == "torch.accelerator.current_accelerator":
            return "npu"
        if at.names.called(node) != "torch.device" or not node.args:
            return None
        return _device(node.args[0].value, at, depth + 1)
    if isinstance(node, (cst.Name, cst.Attribute)):
        found = {_device(value, at, depth + 1) for value in _values(node, at)} or {None}
        return found.pop() if len(found) == 1 else None
    return None


def _values(node: Any, at: At) -> list[Any]:
    """Return all that a name is ever assigned; nothing if that is not known."""
    if isinstance(node, cst.Attribute) and code_of(node.value) != "self":
        return []  # an option of the command line has values from elsewhere
    held = at.names.held(node)
    if any(binding.kind != "value" or binding.value is None for binding in held):
        return []
    scope = at.names.scope(node)
    if isinstance(node, cst.Name) and scope.outer.get(node.value):
        return []
    return [binding.value for binding in held]

"""A loss that is computed and differentiated in one expression gets a line and a name of its own.

``criterion(model(x), y).backward()`` becomes ``loss_2 = criterion(model(x), y)`` and
``loss_2.backward()``: what a loss is made of is looked for in the lines before its backward pass.
"""

from __future__ import annotations

import builtins
import re
from typing import Any

import libcst as cst

from mpcore_port.children import calls_in

__all__ = ["Changer", "changed", "named_losses"]

# A loss that has a name, scaled or not, is no expression to take apart.
_BACKWARD = re.compile(
    r"^(?![ \t]*[\w.]+\.scale\([\w.]+\)\.backward\()[^#\n]*\)\s*\.backward\(", re.M
)


def named_losses(text: str, module: cst.Module | None = None) -> str:
    """Return ``text`` with such lines taken apart; all else stays, byte for byte.

    ``module`` is what ``text`` was parsed to, if it was.
    """
    if not _BACKWARD.search(text):
        return text
    return changed(text, _Hoister(text), module)


class Changer(cst.CSTTransformer):
    """A transformer that counts, as ``found``, what it changes."""

    found = 0


def changed(text: str, by: Changer, module: cst.Module | None = None) -> str:
    """Return ``text`` after a transformer; as it is, where libcst would write it otherwise."""
    if module is None:
        module = cst.parse_module(text)
        if module.code != text:
            return text
    made = module.visit(by)
    return made.code if by.found else text


class _Hoister(Changer):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text

    def leave_SimpleStatementLine(self, original_node: Any, updated_node: Any) -> Any:  # noqa: N802
        """Make two lines of one."""
        if len(original_node.body) != 1 or not isinstance(original_node.body[0], cst.Expr):
            return updated_node
        call: Any = original_node.body[0].value
        if not _is_method(call, "backward"):
            return updated_node
        holder: Any = call.func.value
        scales = _is_method(holder, "scale") and len(holder.args) == 1
        loss = holder.args[0].value if scales else holder
        if not _computes(loss):
            return updated_node
        self.found += 1
        name = cst.Name(self._fresh())
        first = cst.SimpleStatementLine(
            [cst.Assign([cst.AssignTarget(name)], loss)],
            leading_lines=updated_node.leading_lines,
        )
        new = call.deep_replace(loss, name)
        second = updated_node.with_changes(
            body=[updated_node.body[0].with_changes(value=new)], leading_lines=()
        )
        return cst.FlattenSentinel([first, second])

    def _fresh(self) -> str:
        number = 2
        while re.search(rf"\bloss_{number}\b", self.text):
            number += 1
        self.text += f" loss_{number} "
        return f"loss_{number}"


def _is_method(node: Any, name: str) -> bool:
    return (
        isinstance(node, cst.Call)
        and isinstance(node.func, cst.Attribute)
        and node.func.attr.value == name
    )


def _computes(loss: cst.BaseExpression) -> bool:
    """Return whether a function runs in a loss: not only methods of what has a name."""
    return any(
        (isinstance(call.func, cst.Name) and not hasattr(builtins, call.func.value))
        or any(calls_in(arg) for arg in call.args)
        for call in calls_in(loss)
    )

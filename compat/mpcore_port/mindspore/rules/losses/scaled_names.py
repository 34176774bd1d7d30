"""Scaled losses that have a name: ``scaled = scaler.scale(loss)``, ``scaled.backward()``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.children import below
from mpcore_port.mindspore.rules.place import PortRule
from mpcore_port.names import code_of, dotted
from mpcore_port.scan import SCALERS

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["ScaledNameRule"]


class ScaledNameRule(PortRule):
    """The backward pass of a scaled loss is that of ``scaler.scale(loss)``, as most write it.

    Where the name is read later it is given the scaled loss behind the pass, which moves no scale.
    """

    name = "scaled name"
    reason = "a step's function makes the loss, and scales it"
    visits = (cst.IndentedBlock, cst.Module)

    def idle(self, at: At) -> bool:
        """Whether nothing is scaled, or the script is a port."""
        return super().idle(at) or ".scale(" not in at.code

    def act(self, old: Any, new: Any, at: At) -> Any:
        """Join the two statements of each such pair of a block."""
        body, changed = list(new.body), False
        for place in range(len(old.body) - 1):
            first, second = old.body[place], old.body[place + 1]
            if not _is_pair(first, second, at):
                continue
            changed = True
            made = cst.ensure_type(body[place].body[0], cst.Assign)
            passed = cst.ensure_type(body[place + 1].body[0], cst.Expr)
            back = passed.value.with_changes(
                func=passed.value.func.with_changes(value=made.value)  # type: ignore[attr-defined]
            )
            line = body[place].with_changes(body=[passed.with_changes(value=back)])
            at.note(self, first, code_of(line))
            kept = _is_read_later(first.body[0].targets[0].target, second, at)
            rest = body[place].with_changes(leading_lines=()) if kept else None
            body[place], body[place + 1] = line, rest
        if not changed:
            return None
        return new.with_changes(body=[line for line in body if line is not None])


def _is_pair(first: Any, second: Any, at: At) -> bool:
    lines = (first, second)
    if not all(isinstance(one, cst.SimpleStatementLine) and len(one.body) == 1 for one in lines):
        return False
    made, passed = first.body[0], second.body[0]
    if not isinstance(made, cst.Assign) or len(made.targets) != 1:
        return False
    if not isinstance(passed, cst.Expr) or not isinstance(passed.value, cst.Call):
        return False
    name = dotted(made.targets[0].target)
    return (
        bool(name) and dotted(passed.value.func) == f"{name}.backward" and _scales(made.value, at)
    )


def _scales(value: Any, at: At) -> bool:
    """Return whether an expression is ``scaler.scale(loss)``."""
    if not isinstance(value, cst.Call) or not isinstance(value.func, cst.Attribute):
        return False
    holder = value.func.value
    known = at.names.call_names(holder) & set(SCALERS) or "scaler" in dotted(holder).lower()
    return value.func.attr.value == "scale" and len(value.args) == 1 and bool(known)


def _is_read_later(target: Any, behind: cst.CSTNode, at: At) -> bool:
    """Return whether a name is read behind a statement, in its function."""
    text, line = code_of(target), at.line(behind)
    home: Any = at.names.enclosing(behind, cst.FunctionDef) or at.module
    nodes = (one for one in below(home) if isinstance(one, (cst.Name, cst.Attribute)))
    return any(code_of(one) == text and at.line(one) > line for one in nodes)

"""Classes around an optimizer (a warm-up's, say): a loop of another file hands them gradients.

The loop may take one for an optimizer, as torch's loops do; then it calls it by gradients and asks
which parameters it moves.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.mindspore.rules.place import PortRule, wording
from mpcore_port.names import code_of

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["WrapperRule"]

_STEPS = re.compile(r"\bself\.\w*opt\w*\.step\(", re.I)
_TAKEN = re.compile(r"\.backward\(|\bself\.parameters\b|\bdef (__call__|parameters)\b")


class WrapperRule(PortRule):
    """A class whose ``step`` steps an optimizer that it holds is called as one."""

    name = "wrapper"
    reason = "a loop of another file that takes it for an optimizer hands it gradients"
    visits = (cst.ClassDef,)

    def act(self, old: cst.ClassDef, new: cst.ClassDef, at: At) -> Any:
        """Give one class what loops ask an optimizer for."""
        bases = [code_of(base.value) for base in old.bases]
        if bases not in ([], ["object"]) or old.keywords or ".backward(" in at.source.text:
            return None
        text = code_of(old.body)
        if not _STEPS.search(text) or _TAKEN.search(text) or not _steps_alone(old):
            return None
        base = cst.Arg(cst.parse_expression(wording(at, "port.HoldsOptimizer")))
        made = new.with_changes(bases=[base], lpar=cst.LeftParen(), rpar=cst.RightParen())
        at.note(self, old.name, f"{old.name.value}({code_of(base)})")
        return made


def _steps_alone(node: cst.ClassDef) -> bool:
    """Return whether a class has a method ``step`` that may be called without arguments."""
    body = node.body.body if isinstance(node.body, cst.IndentedBlock) else ()
    for part in body:
        if isinstance(part, cst.FunctionDef) and part.name.value == "step":
            given = (*part.params.posonly_params, *part.params.params)
            return all(param.default is not None for param in given[1:])
    return False

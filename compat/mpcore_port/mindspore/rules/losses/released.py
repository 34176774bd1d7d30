"""Names that a training loop deletes: a step's function reads them, and may stand behind."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.mindspore.rules.losses.names_in import read, read_first
from mpcore_port.mindspore.rules.place import PortRule
from mpcore_port.names import code_of

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["ReleasedRule", "asked_names"]

_UNBOUND = re.compile(r"\b(UnboundLocalError|NameError)\b")
_ALL = ("", "Exception", "BaseException")
_ALL_OF = re.compile(r"[(,]\s*(Base)?Exception\b")
_ASKED = re.compile(r"\b(locals|globals|vars|dir)\(\)")


class ReleasedRule(PortRule):
    """``del loss, output`` beside a backward pass goes: it gives memory back, and no more."""

    name = "released"
    reason = "its memory is given back when the name gets its next value"
    visits = (cst.IndentedBlock, cst.Module)

    def idle(self, at: At) -> bool:
        """Whether nothing is deleted, or something asks whether a name is there."""
        return super().idle(at) or "del " not in at.code or bool(_ASKED.search(at.code))

    def act(self, old: Any, new: Any, at: At) -> Any:
        """Take such statements out of one block."""
        body: list[Any] = []
        lead: list[Any] = []
        for before, now in zip(old.body, new.body, strict=True):
            left = _left(before, now, at)
            if left is not now:
                at.note(self, before, code_of(left) if left is not None else "")
            if left is None:
                lead += [line for line in now.leading_lines if line.comment]
                continue
            if lead:
                left = left.with_changes(leading_lines=[*lead, *left.leading_lines])
                lead = []
            body.append(left)
        if len(body) == len(new.body) and all(a is b for a, b in zip(body, new.body, strict=True)):
            return None
        if not body and isinstance(old, cst.IndentedBlock):
            body = [cst.SimpleStatementLine([cst.Pass()])]
        made = new.with_changes(body=body)
        return made.with_changes(footer=[*lead, *made.footer]) if lead else made


def _left(before: Any, now: Any, at: At) -> Any:
    """Return what is left of a statement, or None."""
    if not isinstance(before, cst.SimpleStatementLine) or not _trains_here(before, at):
        return now
    kept = [small for small in now.body if not _forgets(small, at.once(asked_names))]
    if len(kept) == len(now.body):
        return now
    if not kept:
        return None
    kept[-1] = kept[-1].with_changes(semicolon=cst.MaybeSentinel.DEFAULT)
    return now.with_changes(body=kept)


def _forgets(small: Any, asked: set[str]) -> bool:
    """Return whether a statement deletes plain names, of which none is asked for when gone."""
    if not isinstance(small, cst.Del):
        return False
    target = small.target
    parts = [one.value for one in target.elements] if isinstance(target, cst.Tuple) else [target]
    return all(isinstance(part, cst.Name) and part.value not in asked for part in parts)


def asked_names(at: At) -> set[str]:
    """Return the names that a module tries to read, and that may be unbound; ask by ``at.once``."""
    tries = (node for node in at.names.parents if isinstance(node, cst.Try))
    found: set[str] = set()
    for one in tries:
        waited = [code_of(part.type) if part.type else "" for part in one.handlers]
        if any(map(_UNBOUND.search, waited)):
            found |= read(one.body)
        elif any(text in _ALL or _ALL_OF.search(text) for text in waited):
            found |= read_first(one.body, set())
    return found


def _trains_here(node: Any, at: At) -> bool:
    """Return whether a statement stands in a function, or module, with a backward pass."""
    scope = at.names.enclosing(node, cst.FunctionDef, cst.ClassDef)
    return id(scope) in at.once(_training_scopes)


def _training_scopes(at: At) -> set[int]:
    calls = [*at.names.callers("backward"), *at.names.callers("grad")]
    return {id(at.names.enclosing(call, cst.FunctionDef, cst.ClassDef)) for call in calls}

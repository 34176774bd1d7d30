"""``eval("torch.optim." + name)``: a name of torch that a text puts together."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.mindspore.rules.place import PortRule
from mpcore_port.names import code_of, string_of

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["EvaluatedRule"]

_DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_RUNS = "a text is run as code: names of torch in it are no names of the port"


class EvaluatedRule(PortRule):
    """A name that a text says is asked of its module, where the rules for names see it.

    Text that is put together otherwise keeps its words, and the report says so.
    """

    name = "evaluated"
    reason = "the module is asked for the name that the text says"
    visits = (cst.Call,)

    def act(self, old: cst.Call, new: cst.Call, at: At) -> Any:
        """Write out what one text means, or say that it is run as it is."""
        if code_of(old.func) != "eval" or len(old.args) != 1 or old.args[0].star:
            return None
        if at.names.scope(old).find("eval"):
            return None
        begin, rest = _parts(old.args[0].value, new.args[0].value)
        module = begin.removesuffix(".")
        if not _of_torch(begin, old, at):
            if rest is not None and _is_called(old, at):
                at.unproven(self, old, _RUNS, new)
            return None
        if rest is None and _DOTTED.fullmatch(begin):
            made: Any = cst.parse_expression(begin)
        elif rest is not None and begin.endswith(".") and _DOTTED.fullmatch(module):
            asked = [cst.Arg(cst.parse_expression(module)), cst.Arg(rest)]
            made = cst.Call(cst.Name("getattr"), asked)
        else:
            at.unproven(self, old, _RUNS, new)
            return None
        at.note(self, old, made)
        return made


def _parts(old: Any, new: Any) -> tuple[str, Any]:
    """Return how a text begins, and the one value behind it; None for no value."""
    word = string_of(old)
    if word is not None:
        return word, None
    if isinstance(old, cst.BinaryOperation) and isinstance(old.operator, cst.Add):
        return string_of(old.left) or "", new.right
    if isinstance(old, cst.FormattedString) and old.parts:
        first, *more = new.parts
        begin = first.value if isinstance(first, cst.FormattedStringText) else ""
        last = more[0] if len(more) == 1 else None
        plain = isinstance(last, cst.FormattedStringExpression) and not (
            last.conversion or last.format_spec
        )
        return begin if plain else f"{begin} ", last.expression if plain and last else new
    return "", new


def _of_torch(begin: str, old: cst.Call, at: At) -> bool:
    """Return whether a text begins by a name that the script imports of torch."""
    found = _DOTTED.match(begin)
    if found is None:
        return False
    root = found[0].partition(".")[0]
    bound = at.names.scope(old).find(root)
    return any(
        one.kind == "import" and str(one.qualified).partition(".")[0] == "torch" for one in bound
    )


def _is_called(old: cst.Call, at: At) -> bool:
    parent = at.names.parents.get(old)
    return isinstance(parent, cst.Call) and parent.func is old

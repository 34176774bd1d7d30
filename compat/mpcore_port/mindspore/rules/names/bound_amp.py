"""``cast = partial(torch.amp.autocast, device_type="cuda")``, ``with cast():``: the class itself.

Regions and scalers are found by the names of their classes.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.mindspore.rules.names.partials import is_bound
from mpcore_port.mindspore.rules.place import PortRule

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["BoundAmpRule"]

_CLASSES = re.compile(r"torch\.((cuda\.|cpu\.|npu\.)?amp\.)?(autocast|GradScaler)")
_PLAIN = (cst.SimpleString, cst.Name, cst.Attribute, cst.Integer, cst.Float)


class BoundAmpRule(PortRule):
    """A call of a partial of autocast or of a scaler calls the class, with what was bound."""

    name = "bound"
    reason = "what functools.partial binds stands in the call"
    visits = (cst.Call,)

    def act(self, old: cst.Call, new: cst.Call, at: At) -> Any:
        """Write out one call."""
        if not isinstance(old.func, cst.Name) or any(arg.star for arg in old.args):
            return None
        held = at.names.origins(old.func)
        partials = [one for one in held if isinstance(one, cst.Call) and _is_plain(one, at)]
        others = [one for one in held if not isinstance(one, cst.Call)]
        if not partials or len(partials) + len(others) != len(held):
            return None
        made = partials[0]
        named = {_last(one.args[0].value, at) for one in partials} | {_last(o, at) for o in others}
        if "" in named or len(named) != 1 or any(not arg.keyword for arg in old.args):
            return None
        given = {arg.keyword.value for arg in old.args if arg.keyword is not None}
        bound = [arg for arg in made.args[1:] if arg.keyword and arg.keyword.value not in given]
        comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
        args = [arg.with_changes(comma=comma) for arg in (*bound, *new.args)]
        if args:
            args[-1] = args[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
        called = new.with_changes(func=made.args[0].value, args=args)
        at.note(self, old, called)
        return called


def _is_plain(call: cst.Call, at: At) -> bool:
    """Return whether this binds keywords of one of the classes, by values that stay the same."""
    if not is_bound(call, at) or not _last(call.args[0].value, at):
        return False
    return all(
        arg.keyword and not arg.star and isinstance(arg.value, _PLAIN) for arg in call.args[1:]
    )


def _last(node: Any, at: At) -> str:
    """Return which class a name is of, "" for none of them."""
    found = _CLASSES.fullmatch(at.names.qualified(node) or "")
    return found[3] if found else ""

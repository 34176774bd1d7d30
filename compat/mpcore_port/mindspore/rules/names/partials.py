"""``functools.partial`` of a function or class of torch: its keywords by MindSpore's names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.mindspore.rules.names.handed import maker_of
from mpcore_port.mindspore.rules.place import PortRule, by_name
from mpcore_port.names import code_of

if TYPE_CHECKING:
    from mpcore_port.mindspore.tables import Mapping
    from mpcore_port.rule import At

__all__ = ["PartialRule", "bent", "is_bound", "unbindable"]

_PARTIAL = "functools.partial"
_ARRAYS = ("device", "dtype")


def bent(row: Mapping) -> list[str]:
    """Return the arguments that a call has otherwise in MindSpore; a bare name cannot say so."""
    written = {*row.keywords, *row.special, *row.change, *row.as_tuple, *row.set_if, *row.missing}
    return sorted(written | {name for name in row.drop if name not in _ARRAYS})


def unbindable(old: cst.CSTNode, row: Mapping, at: At) -> str:
    """Return the keyword that ``functools.partial`` cannot bind here; "" if it can bind all."""
    arg = at.names.parents.get(old)
    call: Any = at.names.parents.get(arg) if isinstance(arg, cst.Arg) else None
    if not is_bound(call, at) or call.args[0] is not arg:
        return ""
    names = (one.keyword.value for one in call.args if one.keyword and not _binds(row, one))
    return next(names, "")


def is_bound(call: Any, at: At) -> bool:
    """Return whether a call is ``functools.partial`` of something."""
    return isinstance(call, cst.Call) and at.names.called(call) == _PARTIAL and bool(call.args)


def _binds(row: Mapping, arg: cst.Arg) -> bool:
    """Return whether a keyword keeps its value, by its own name or another one."""
    name = arg.keyword.value if arg.keyword is not None else ""
    if maker_of(row.name):  # it takes torch's arguments
        default = next((one.default for one in row.params if one.name == name), None)
        return name not in row.refuse or code_of(arg.value) == default
    if name in row.drop:  # taken out
        return True
    if name in (*row.special, *row.change, *row.refuse, *row.set_if, *row.missing):
        return False
    if name in row.as_tuple:
        return isinstance(arg.value, (cst.Integer, cst.Tuple))
    if name in row.as_float:
        return isinstance(arg.value, cst.Float)
    return not row.params or name in {param.name for param in row.params}


class PartialRule(PortRule):
    """``partial(nn.LayerNorm, eps=1e-6)`` binds epsilon; what it binds is pinned no more."""

    name = "partial"
    reason = "MindSpore's names of what functools.partial binds"
    visits = (cst.Call,)

    def act(self, old: cst.Call, new: cst.Call, at: At) -> Any:
        """Rename the keywords, and take the pins of the function into the same call."""
        if not is_bound(old, at):
            return None
        row = by_name(at.names.qualified(old.args[0].value) or "", at.options)
        given = {arg.keyword.value for arg in old.args if arg.keyword is not None}
        if (
            row is None
            or row.refuse_all
            or maker_of(row.name)
            or not given & {*row.drop, *row.keywords, *row.pin}
        ):
            return None
        if unbindable(old.args[0].value, row, at):
            return None  # refused where it is named
        kept = [arg for arg in new.args if arg.keyword is None or arg.keyword.value not in row.drop]
        args = [_renamed(arg, row) for arg in kept]
        held = args[0].value
        if isinstance(held, cst.Call) and code_of(held.func) == _PARTIAL:
            pinned = {row.keywords.get(name, name) for name in given}
            left = [a for a in held.args[1:] if a.keyword and a.keyword.value not in pinned]
            args = [args[0].with_changes(value=held.args[0].value), *left, *args[1:]]
        last = args[-1].with_changes(comma=new.args[-1].comma)
        args = [arg.with_changes(comma=_COMMA) for arg in args[:-1]] + [last]
        made = new.with_changes(args=args)
        at.note(self, old, made)
        return made


def _renamed(arg: cst.Arg, row: Mapping) -> cst.Arg:
    if arg.keyword is None:
        return arg
    name = arg.keyword.value
    return arg.with_changes(keyword=cst.Name(row.keywords.get(name, name)))


_COMMA = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))

"""Whether an optimizer of a file comes into other files' hands, which may set what it holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.names import dotted, target_names
from mpcore_port.packages import package_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mpcore_port.rule import At

__all__ = ["leaves"]

_OURS = ("ms", "mp", "amp", "optim", "nn", "ops", "mint")
_ASK = {
    "dict",
    "enumerate",
    "getattr",
    "hasattr",
    "id",
    "isinstance",
    "iter",
    "len",
    "list",
    "next",
    "print",
    "repr",
    "setattr",
    "str",
    "super",
    "tuple",
    "type",
    "zip",
}
_OF_SCALERS = ("step", "unscale", "unscale_", "update", "adjust", "append")
_ROUNDS = 8


def leaves(made: Iterable[cst.Call], port: str, at: At) -> bool:
    """Return whether one of these calls makes what another file's function is handed, or gets.

    Args:
        made: the calls that make optimizers.
        port: what the file calls the runtime of ports.
        at: the module.
    """
    names: set[str] = set()
    for call in made:
        found = _given(call, port, at)
        if found is None:
            return True
        names |= found
    for _ in range(_ROUNDS):
        more = _further(names, port, at)
        if more is None:
            return True
        if more <= names:
            return False
        names |= more
    return False


def _further(names: set[str], port: str, at: At) -> set[str] | None:
    """Return what else holds what these names hold; None where another file does."""
    found: set[str] = set()
    for call in at.names.calls:
        for place, arg in enumerate(call.args):
            if dotted(arg.value) in names:
                handed = _handed(call, place, arg, port, at)
                if handed is None:
                    return None
                found |= handed
    for line in at.names.by_type[cst.Assign]:
        if dotted(line.value) in names:
            found |= {dotted(target.target) for target in line.targets}
    for line in at.names.by_type[cst.Return]:
        value = line.value
        parts = [e.value for e in value.elements] if isinstance(value, cst.Tuple) else [value]
        if any(part is not None and dotted(part) in names for part in parts):
            given = _returned(line, at)
            if given is None:
                return None
            found |= given
    return found - {""}


def _given(call: cst.Call, port: str, at: At) -> set[str] | None:
    """Return the names that get what a call makes; None if another file gets it."""
    for above in at.names.ancestors(call):
        if isinstance(above, cst.Assign):
            return {name for target in above.targets for name in _names_of(target.target)}
        if isinstance(above, cst.Return):
            return _returned(above, at)
        if isinstance(above, cst.Arg):
            outer: Any = at.names.parents.get(above)
            if isinstance(outer, cst.Call):
                place = next(i for i, arg in enumerate(outer.args) if arg is above)
                return _handed(outer, place, above, port, at)
        if isinstance(above, (cst.BaseSmallStatement, cst.BaseCompoundStatement)):
            return set()
    return set()


def _names_of(target: cst.BaseExpression) -> set[str]:
    return {dotted(target)} if dotted(target) else set(target_names(target))


def _returned(line: cst.CSTNode, at: At) -> set[str] | None:
    """Return the names that get what a function returns here; None if the file calls it nowhere."""
    home = at.names.enclosing(line, cst.FunctionDef)
    calls = at.names.callers(home.name.value) if home is not None else []
    found: set[str] = set()
    for call in calls:
        outer: Any = at.names.parents.get(call)
        if isinstance(outer, cst.Assign):
            found |= {name for target in outer.targets for name in _names_of(target.target)}
    return found if calls else None


def _handed(call: cst.Call, place: int, arg: cst.Arg, port: str, at: At) -> set[str] | None:
    """Return the names that a call hands an argument on to; None if it is another file's."""
    text = dotted(call.func)
    root, last = text.partition(".")[0], text.rpartition(".")[2]
    named = at.names.called(call)
    of_scaler = last in _OF_SCALERS and root != last and named is None
    if root in (*_OURS, port) or text in _ASK or of_scaler:
        return set()
    package = package_of(named) if named else None
    if package is not None and package.world == "neutral":
        return set()
    own: list[Any] = list(at.names.functions.get(last, []))
    for holder in at.names.classes.get(last, []):
        own += [
            line
            for line in holder.body.body
            if isinstance(line, cst.FunctionDef) and line.name.value == "__init__"
        ]
    if not own:
        return None
    return {name for function in own if (name := _parameter(function, place, arg, at))}


def _parameter(function: cst.FunctionDef, place: int, arg: cst.Arg, at: At) -> str:
    """Return the name of the parameter that an argument is for."""
    if arg.keyword is not None:
        return arg.keyword.value
    params = [*function.params.posonly_params, *function.params.params]
    if isinstance(at.names.enclosing(function, cst.ClassDef, cst.FunctionDef), cst.ClassDef):
        params = params[1:]
    return params[place].name.value if place < len(params) else ""

"""Starred arguments of what has a signature: which are given is seen when the script runs."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from mpcore_port.mindspore.checked import signature
from mpcore_port.names import expression

if TYPE_CHECKING:
    import libcst as cst

    from mpcore_port.mindspore.tables import Mapping, Param

__all__ = ["CHECKED", "by_signature", "is_checked"]

CHECKED = "which arguments are starred is seen when it runs; what has no equal raises there"

_SLOT = re.compile(r"\{(\w+)\}")
_MADE = {
    "batch_norm_momentum": "lambda momentum: 1 - momentum",
    "shape_tuple": "port.as_tuple",
}
"""Arguments that ``calls.py`` rewrites, as functions of their values."""
_LEGACY = ("size_average", "reduce")


def is_checked(row: Mapping) -> bool:
    """Return whether a call may raise for what it is given."""
    return bool(row.refuse or row.require)


def by_signature(row: Mapping, call: cst.Call, func: str = "") -> cst.Call | None:
    """Return a starred call that binds torch's arguments when it runs; None where it cannot.

    Args:
        row: the row of the name that is called.
        call: the call.
        func: what is called, code; "" for what stands for the name. A class's own ``__init__``
            cannot become another function's.
    """
    params = _parameters(row)
    takes = _signature(params)
    other = (row.refuse_all, row.pack, row.bare, row.set_if, row.remove, row.doubt, row.as_tuple)
    if not takes or any(other) or set(row.special.values()) - set(_MADE):
        return None
    if row.expr:
        slots = set(_SLOT.findall(row.expr))
        needs = {one.name for one in params if one.default is None or row.fill}
        if func or not slots <= needs or row.refuse or row.drop:
            return None
        body = _SLOT.sub(lambda found: found[1], row.expr)
        return call.with_changes(func=expression(f"(lambda {takes}: {body})"))
    if not row.to and not func:
        return None
    options = _options(row, params, func)
    parts = [func or row.to, f'"{takes}"', *options]
    return call.with_changes(func=expression(f"port.by_signature({', '.join(parts)})"))


def _parameters(row: Mapping) -> tuple[Param, ...]:
    sign = signature(row.name)
    if row.params or sign is None or any(one.variadic for one in sign.params):
        return row.params
    return sign.params  # type: ignore[return-value]  # they have what is read of them


def _signature(params: tuple[Param, ...]) -> str:
    """Return parameters as code; "" where a default is no plain value."""
    parts: list[str] = []
    for one in params:
        if one.default is not None and not _is_plain(one.default):
            return ""
        if not one.by_position and "*" not in parts:
            parts.append("*")
        parts.append(one.name if one.default is None else f"{one.name}={one.default}")
    return ", ".join(parts).replace('"', "'")


def _is_plain(code: str) -> bool:
    try:
        ast.literal_eval(code)
    except (ValueError, SyntaxError):
        return False
    return True


def _options(row: Mapping, params: tuple[Param, ...], func: str) -> list[str]:
    """Return what ``port.by_signature`` is told of a row."""
    names = {one.name for one in params}
    old = [name for name in _LEGACY if name in names and "reduction" in names]
    gone = [name for name in row.drop if name not in old and name not in row.refuse]
    words = {name: repr(to) for name, to in row.keywords.items() if name != to}
    given = {name: "None" if func else to for name, to in row.given.items()}
    missing = {name: "None" if func else to for name, to in row.missing.items()}
    pinned = {
        name: repr(code) if "{" in code else code
        for name, code in (row.pin | row.pin_keyword).items()
    }
    tables = {
        "words": words,
        "missing": missing,
        "given": given,
        "made": _made(row),
        "pinned": pinned,
        "always": dict(row.set),
    }
    texts = {"gone": gone, "kept": [*row.refuse, *old], "needed": list(row.require)}
    found = [f'{name}="{" ".join(of)}"' for name, of in texts.items() if of]
    found += [f"{name}={_dictionary(of)}" for name, of in tables.items() if of]
    return [*found, f"places={row.positional}"] if row.positional < len(params) else found


def _made(row: Mapping) -> dict[str, str]:
    """Return code of functions of arguments that MindSpore wants otherwise."""
    made = dict.fromkeys(row.as_float, "float")
    made |= {name: _MADE[how] for name, how in row.special.items()}
    for name, template in row.change.items():
        made[name] = f"lambda {name}: {template.replace(f'{{{name}}}', name)}"
    return made


def _dictionary(of: dict[str, str]) -> str:
    return "{" + ", ".join(f'"{name}": {code}' for name, code in of.items()) + "}"

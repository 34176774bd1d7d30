"""Arguments that MindSpore takes as floats alone, where torch takes whole numbers as well."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.command_line import option_name
from mpcore_port.mindspore.checked import signature
from mpcore_port.mindspore.rules.place import SETTINGS
from mpcore_port.names import code_of, expression, string_of
from mpcore_port.scan import arguments

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["as_float", "is_float", "with_floats"]

_DEPTH = 6


def with_floats(name: str, floats: tuple[str, ...], new: cst.Call, old: cst.Call, at: At) -> Any:
    """Return a call of torch's ``name`` whose arguments ``floats`` are floats, and the call else.

    Args:
        name: full name in torch, whose signature says the positions.
        floats: parameters by torch's name.
        new: the call as it is now.
        old: the call in the original tree, with the same arguments.
        at: the module.
    """
    sign = signature(name)
    if sign is None or not floats:
        return new
    places = [param.name for param in sign.params if param.by_position]
    several = {param.name for param in sign.params if (param.default or "").startswith("(")}
    args = []
    for place, (before, arg) in enumerate(zip(old.args, new.args, strict=True)):
        named = before.keyword.value if before.keyword else ""
        named = named or (places[place] if place < len(places) else "")
        if named in floats and not before.star:
            value = as_float(before.value, arg.value, at, several=named in several)
            arg = arg.with_changes(value=value)
        args.append(arg)
    return new.with_changes(args=args)


def as_float(old: Any, new: Any, at: At, *, several: bool = False) -> cst.BaseExpression:
    """Return a value as a float, or each of several; what surely is one stays as it is."""
    if isinstance(new, (cst.Tuple, cst.List)) and len(old.elements) == len(new.elements):
        pairs = zip(old.elements, new.elements, strict=True)
        if not any(isinstance(one, cst.StarredElement) for one in new.elements):
            elements = [e.with_changes(value=as_float(o.value, e.value, at)) for o, e in pairs]
            return new.with_changes(elements=elements)
    if is_float(old, at):
        made: cst.BaseExpression = new
        return made
    if several:
        return expression(f"tuple(map(float, {code_of(new)}))")
    if isinstance(new, cst.Integer):
        return cst.Float(f"{new.value}.0")
    return expression(f"float({code_of(new)})")


def is_float(node: Any, at: At, depth: int = _DEPTH) -> bool:
    """Return whether an expression surely is a float, or several of them."""
    if depth == 0:
        return False
    if isinstance(node, cst.Float):
        return True
    if isinstance(node, cst.UnaryOperation):
        return is_float(node.expression, at, depth - 1)
    if isinstance(node, (cst.Tuple, cst.List)):
        return all(is_float(one.value, at, depth - 1) for one in node.elements)
    if isinstance(node, cst.BinaryOperation):
        sides = [is_float(side, at, depth - 1) for side in (node.left, node.right)]
        return isinstance(node.operator, cst.Divide) or any(sides)
    if isinstance(node, cst.IfExp):
        return all(is_float(side, at, depth - 1) for side in (node.body, node.orelse))
    if isinstance(node, cst.Call):
        return code_of(node.func) == "float"
    if not isinstance(node, (cst.Name, cst.Attribute)):
        return False
    held = at.names.held(node)
    given = all(one.kind == "value" and is_float(one.value, at, depth - 1) for one in held)
    if isinstance(node, cst.Attribute) and SETTINGS.search(code_of(node.value)):
        return given and at.once(_options).get(node.attr.value, False)
    return bool(held) and given


def _options(at: At) -> dict[str, bool]:
    """Return whether an option of the command line surely is a float, by its name."""
    found: dict[str, bool] = {}
    for call in at.names.calls:
        func = call.func
        if not isinstance(func, cst.Attribute) or func.attr.value != "add_argument":
            continue
        texts = [string_of(arg.value) or "" for arg in call.args if arg.keyword is None]
        said = arguments(call, ())
        key = option_name(texts, (string_of(said["dest"]) or "") if "dest" in said else "")
        kind, default = said.get("type"), said.get("default")
        is_text = isinstance(default, cst.SimpleString)  # it goes through the type
        sure = kind is not None and code_of(kind) == "float" and "nargs" not in said
        sure = sure and (is_text or isinstance(default, cst.Float) or _is_required(said))
        found[key] = found.get(key, True) and sure
    return found


def _is_required(said: dict[str, cst.BaseExpression]) -> bool:
    return "required" in said and code_of(said["required"]) == "True"

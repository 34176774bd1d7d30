"""Whether a caller takes what it is given for a dictionary: by items, or under names."""

from __future__ import annotations

import ast
import dis
import itertools
from functools import cache
from typing import TYPE_CHECKING, Any

from mpcore_port.verify.roles import LOSS

if TYPE_CHECKING:
    from mpcore_port.verify.module import Module

__all__ = [
    "asked_at_once",
    "attribute_at_once",
    "compared_at_first",
    "gives_dict",
    "read_of_updated",
    "taken_as_dict",
]

_OF_DICTS = ("items", "values", "keys", "get", "pop")


def taken_as_dict(code: Any, name: str) -> bool:
    """Return whether a function asks what it calls ``name`` for items, or for one under a name.

    Args:
        code: of the function.
        name: a variable of its own.
    """
    return bool(name) and name in _taken(code)


def asked_at_once(code: Any, offset: int) -> bool:
    """Return whether what a call gives is asked at once: ``net(x)["out"]``, ``net(x).values()``.

    Args:
        code: of the function that calls.
        offset: of the instruction that does.
    """
    return offset in _at_once(code)


def compared_at_first(code: Any, name: str) -> bool:
    """Return whether a function hands what it calls ``name`` to a loss of its own, as it is.

    ``loss = criterion(outputs, y)``, where nothing is read of ``outputs``: torch's take tensors.
    """
    return bool(name) and name in _compared(code)


@cache
def _compared(code: Any) -> frozenset[str]:
    quiet = ("CACHE", "PUSH_NULL", "PRECALL")
    steps = [step for step in dis.get_instructions(code) if step.opname not in quiet]
    handed: set[str] = set()
    read: set[str] = set()
    for before, step, behind in zip(steps, steps[1:], steps[2:], strict=False):
        if not step.opname.startswith("LOAD_") or not isinstance(step.argval, str):
            continue
        if behind.opname in ("LOAD_ATTR", "LOAD_METHOD", "STORE_ATTR"):
            read.add(step.argval)
        own = before.opname in ("LOAD_FAST", "LOAD_DEREF", "LOAD_ATTR", "LOAD_METHOD")
        if own and LOSS.search(str(before.argval)):
            handed.add(step.argval)
    return frozenset(handed - read)


def attribute_at_once(code: Any, offset: int) -> str:
    """Return the attribute that is read at once of what a call gives; "" for none."""
    return _attributes(code).get(offset, "")


@cache
def _attributes(code: Any) -> dict[int, str]:
    steps = [step for step in dis.get_instructions(code) if step.opname != "CACHE"]
    found: dict[int, str] = {}
    for place, step in enumerate(steps[:-1]):
        behind = steps[place + 1]
        if step.opname.startswith("CALL") and behind.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            found |= dict.fromkeys(range(step.offset, behind.offset), str(behind.argval))
    return found


@cache
def _at_once(code: Any) -> frozenset[int]:
    steps = [step for step in dis.get_instructions(code) if step.opname != "CACHE"]
    found: set[int] = set()
    for place, step in enumerate(steps[:-2]):
        if step.opname.startswith("CALL") and _asks_next(steps[place + 1], steps[place + 2]):
            found |= set(range(step.offset, steps[place + 1].offset))
    return frozenset(found)


def read_of_updated(frame: Any) -> list[str]:
    """Return what a function reads of a dictionary that it updates now, and that has it not.

    Args:
        frame: of the function, at the call of ``update``; of any other call nothing is returned.
    """
    name = _updated(frame.f_code).get(frame.f_lasti, "")
    has = frame.f_locals.get(name, {}) if name else {}
    return [key for key in _read(frame.f_code, name) if key not in has] if name else []


@cache
def _updated(code: Any) -> dict[int, str]:
    """Return, by offset of a call, the name of the variable whose ``update`` it calls."""
    steps = [step for step in dis.get_instructions(code) if step.opname != "CACHE"]
    begins: dict[Any, str] = {}
    found: dict[int, str] = {}
    for held, step in itertools.pairwise(steps):
        at = (step.positions.lineno, step.positions.col_offset) if step.positions else None
        if step.opname in ("LOAD_ATTR", "LOAD_METHOD") and step.argval == "update":
            begins[at] = held.argval if held.opname.startswith("LOAD_") else ""
        elif step.opname == "CALL" and at in begins:
            found[step.offset] = begins[at]
    return {offset: name for offset, name in found.items() if isinstance(name, str)}


@cache
def _read(code: Any, name: str) -> tuple[str, ...]:
    """Return the words under which a function reads one of its variables."""
    steps = [step for step in dis.get_instructions(code) if step.opname != "CACHE"]
    found = [
        key.argval
        for held, key, step in zip(steps, steps[1:], steps[2:], strict=False)
        if held.opname.startswith("LOAD_") and held.argval == name
        if key.opname == "LOAD_CONST" and isinstance(key.argval, str)
        if step.opname.startswith("BINARY_SUBSCR")
    ]
    return tuple(dict.fromkeys(found))


def _asks_next(following: Any, behind: Any) -> bool:
    """Return whether two instructions ask what stands in front of them as a dictionary."""
    if following.opname in ("LOAD_ATTR", "LOAD_METHOD") and following.argval in _OF_DICTS:
        return True
    named = following.opname == "LOAD_CONST" and isinstance(following.argval, str)
    return named and behind.opname.startswith(("BINARY_SUBSCR", "STORE_SUBSCR"))


@cache
def _taken(code: Any) -> frozenset[str]:
    steps = [step for step in dis.get_instructions(code) if step.opname != "CACHE"]
    found: set[str] = set()
    for place, step in enumerate(steps[:-2]):
        if not step.opname.startswith("LOAD_") or not isinstance(step.argval, str):
            continue
        if _asks_next(steps[place + 1], steps[place + 2]) or _is_searched(steps, place):
            found.add(step.argval)
    return frozenset(found)


def _is_searched(steps: list[Any], place: int) -> bool:
    """Return whether a name is asked for another: ``"fake" in outputs``."""
    word = steps[place - 1]
    named = word.opname == "LOAD_CONST" and isinstance(word.argval, str)
    return bool(place) and named and steps[place + 1].opname == "CONTAINS_OP"


def gives_dict(module: Module, name: str) -> bool:
    """Return whether a script takes what a function of that name gives for a dictionary.

    Args:
        module: the script.
        name: of the function, which an attribute may hold too.
    """
    called = {name, f"self.{name}"}
    called |= {
        ast.unparse(target)
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Assign) and ast.unparse(node.value) == name
        for target in node.targets
    }
    for node in ast.walk(module.tree):
        if not (isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)):
            continue
        if ast.unparse(node.value.func) in called and isinstance(node.targets[0], ast.Name):
            home = module.enclosing(node, ast.FunctionDef, ast.AsyncFunctionDef) or module.tree
            if "dict" in node.targets[0].id or _asks(home, node.targets[0].id):
                return True
    return False


def _asks(scope: ast.AST, name: str) -> bool:
    for node in ast.walk(scope):
        held = getattr(node, "value", None)
        if not (isinstance(held, ast.Name) and held.id == name):
            continue
        if isinstance(node, ast.Attribute) and node.attr in _OF_DICTS:
            return True
        key = node.slice if isinstance(node, ast.Subscript) else None
        if isinstance(key, ast.Constant) and isinstance(key.value, str):
            return True
    return False

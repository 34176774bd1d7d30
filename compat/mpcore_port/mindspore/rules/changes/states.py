"""States whose tensors are changed in place: in torch they are the network's own.

``port.state_dict`` copies. Where a loop goes through a state and changes what it finds, or a name
holds a state whose entries are changed, the port takes the Parameters themselves.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.names import code_of, dotted, target_names

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["LIVE", "is_live_call", "is_live_entry", "is_live_name", "is_part_of_live"]

LIVE = "port.live_state_dict"
_LOOPS = (cst.For, cst.CompFor)
_VIEWS = ("items", "values")
_MOVES = re.compile(r"step$|(^|\.)(restore|copy_to|swap\w*|load_state_dict|\w*[a-z]_)$")
"""Calls that move weights: steps, averages that are swapped in and out, changes in place."""
_AROUND = ("dict", "enumerate", "list", "sorted", "tqdm", "zip")


@dataclass
class _Live:
    """Calls of ``state_dict`` by identity, loops over such, and what holds one.

    ``held`` has statements that give a state to names, by identity, and attributes, as code.
    """

    calls: set[int] = field(default_factory=set)
    loops: set[int] = field(default_factory=set)
    held: set[int | str] = field(default_factory=set)
    lists: set[str] = field(default_factory=set)
    """Names and attributes that hold a list of a state's tensors, as code."""


def is_live_call(call: cst.Call, at: At) -> bool:
    """Return whether what ``net.state_dict()`` gives is changed in place."""
    return id(call) in at.once(_live).calls


def is_live_name(node: Any, at: At) -> bool:
    """Return whether a name is a tensor of such a state, by a loop over it or as an entry."""
    if not isinstance(node, cst.Name):
        return False
    given = at.names.given(node)
    return bool(given) and all(
        id(one.node) in at.once(_live).loops or is_live_entry(one.value, at) for one in given
    )


def is_live_entry(node: Any, at: At) -> bool:
    """Return whether this is ``state[key]`` of such a state that a name holds, or of a call."""
    return isinstance(node, cst.Subscript) and _holds_live(node.value, at)


def is_part_of_live(node: Any, at: At) -> bool:
    """Return whether this is a part of an entry: ``state[key][:n]``."""
    return isinstance(node, cst.Subscript) and is_live_entry(node.value, at)


def _holds_live(node: Any, at: At) -> bool:
    if isinstance(node, cst.Call):
        return is_live_call(node, at)
    if isinstance(node, cst.Attribute):
        return dotted(node) in at.once(_live).held
    if not isinstance(node, cst.Name):
        return False
    given = at.names.given(node)
    return bool(given) and all(id(one.node) in at.once(_live).held for one in given)


def _live(at: At) -> _Live:
    found = _Live()
    changed = _changed_holders(at)
    for call in at.names.calls:
        func = call.func
        if not isinstance(func, cst.Attribute) or func.attr.value != "state_dict" or call.args:
            continue
        loop = _loop_over(call, at)
        if loop is not None:
            names = set(target_names(loop.target))
            if any(_is_changed(node, names, at) for node in _inside(loop, at)):
                found.loops.add(id(loop))
                found.calls.add(id(call))
            continue
        listed = _listed_as(call, at)
        if listed:
            found.lists.add(listed)
            found.calls.add(id(call))
            continue
        if id(call) in changed or _is_read_behind_steps(call, at):
            found.calls.add(id(call))
        holder = _holder_of(call, at)
        if holder is not None and holder in changed:
            found.held.add(holder)
            found.calls.add(id(call))
    found.loops |= {id(loop) for loop in _loops_over(found.lists, at)}
    loops = [one for kind in _LOOPS for one in at.names.by_type[kind]]
    found.loops |= {id(one) for one in loops if _holders(one.iter, at) & found.held}
    return found


def _is_read_behind_steps(call: cst.Call, at: At) -> bool:
    """Return whether what holds a state is read when its network has learned on: with its values.

    ``best = net.state_dict()`` in a loop, and ``net.load_state_dict(best)`` behind it.
    """
    node: Any = at.names.parents.get(call)
    while isinstance(node, (cst.Dict, cst.DictElement, cst.Tuple, cst.List, cst.Element)):
        node = at.names.parents.get(node)
    target: Any = node.targets[0].target if isinstance(node, cst.Assign) else None
    while isinstance(target, cst.Subscript):  # state["model"] = net.state_dict()
        target = target.value
    home = at.names.enclosing(call, cst.FunctionDef)
    if isinstance(target, cst.Attribute):
        same = [n for n in at.names.by_type[cst.Attribute] if code_of(n) == code_of(target)]
        reads = [n for n in same if not isinstance(at.names.parents.get(n), cst.AssignTarget)]
        return any(at.names.enclosing(one, cst.FunctionDef) is not home for one in reads)
    if not isinstance(target, cst.Name):
        return False
    scope = at.names.scope(target)
    loop = at.names.enclosing(call, cst.For, cst.While)
    loop = loop if loop is not None and at.names.enclosing(loop, cst.FunctionDef) is home else None
    steps = [at.line(one) for one in at.names.calls if _MOVES.search(code_of(one.func))]
    for one in at.names.by_type[cst.Name]:
        same_name = one.value == target.value and at.names.scope(one) is scope
        if not same_name or isinstance(at.names.parents.get(one), cst.AssignTarget):
            continue
        if loop is not None and loop not in at.names.ancestors(one):
            return at.line(one) > at.line(call)
        if any(at.line(call) < step < at.line(one) for step in steps):
            return True
    return False


def _holder_of(call: cst.Call, at: At) -> int | str | None:
    """Return what holds a state: the statement that gives it to a name alone, or an attribute."""
    node: Any = call
    above = at.names.parents.get(node)
    place = -1
    if isinstance(above, cst.Element):
        several: Any = at.names.parents.get(above)
        if not isinstance(several, cst.Tuple):
            return None
        place = next(i for i, one in enumerate(several.elements) if one is above)
        above = at.names.parents.get(several)
    if not isinstance(above, cst.Assign):
        return None
    target: Any = above.targets[0].target
    if place >= 0:
        if not isinstance(target, cst.Tuple) or len(target.elements) <= place:
            return None
        target = target.elements[place].value
    if isinstance(target, cst.Attribute):
        return dotted(target) or None
    return id(above) if isinstance(target, cst.Name) and len(at.names.given(target)) == 1 else None


def _changed_holders(at: At) -> set[int | str]:
    """Return what something is changed in place of: see ``_holders``."""
    found: set[int | str] = set()
    for kind in (cst.AugAssign, cst.Call):
        for node in at.names.by_type[kind]:
            held = _changed(node)
            if isinstance(held, (cst.Name, cst.Subscript)):
                found |= _holders(held, at)
    return found


_DEPTH = 4


def _holders(node: Any, at: At, depth: int = _DEPTH) -> set[int | str]:
    """Return what may hold a tensor, or the state that it is of.

    Statements that give names their values and calls, by identity; attributes, as code.
    """
    if depth == 0:
        return set()
    while isinstance(node, cst.Subscript):
        node = node.value
    if isinstance(node, cst.Attribute):
        text = dotted(node)
        return {text} if text else set()
    if isinstance(node, cst.Call):
        word, func = code_of(node.func), node.func
        if isinstance(func, cst.Attribute) and func.attr.value in (*_VIEWS, "keys"):
            return _holders(func.value, at, depth)
        if word in _AROUND:
            return {one for arg in node.args for one in _holders(arg.value, at, depth - 1)}
        return {id(node)}
    if not isinstance(node, cst.Name):
        return set()
    found: set[int | str] = set()
    for one in at.names.given(node):
        found.add(id(one.node))
        if isinstance(one.node, _LOOPS):
            found |= _holders(one.node.iter, at, depth - 1)
        elif isinstance(one.value, cst.Subscript):
            found |= _holders(one.value, at, depth - 1)
    return found


def _listed_as(call: cst.Call, at: At) -> str:
    """Return the name of ``name = list(net.state_dict().values())``, or "": torch's own tensors."""
    above = at.names.parents.get(call)
    if not isinstance(above, cst.Attribute) or above.attr.value not in _VIEWS:
        return ""
    node: Any = at.names.parents.get(above)
    while isinstance(above := at.names.parents.get(node), cst.Arg):
        node = at.names.parents.get(above)
        if not isinstance(node, cst.Call) or code_of(node.func) not in (*_AROUND, "tuple"):
            return ""
    return dotted(above.targets[0].target) if isinstance(above, cst.Assign) else ""


def _loops_over(lists: set[str], at: At) -> list[Any]:
    """Return the loops over such lists that change what they find."""
    if not lists:
        return []
    loops = [one for kind in _LOOPS for one in at.names.by_type[kind]]
    return [
        loop
        for loop in loops
        if lists & set(_iterated(loop.iter))
        and any(_is_changed(one, set(target_names(loop.target)), at) for one in _inside(loop, at))
    ]


def _iterated(node: Any) -> list[str]:
    """Return what a loop goes over, also in ``zip`` and the like, as code."""
    if isinstance(node, cst.Call) and code_of(node.func) in _AROUND:
        return [text for arg in node.args for text in _iterated(arg.value)]
    return [dotted(node)]


def _loop_over(call: cst.Call, at: At) -> Any:
    """Return the loop over the items or values of a state, also in ``zip`` and the like."""
    node: Any = call
    above = at.names.parents.get(node)
    if not isinstance(above, cst.Attribute) or above.attr.value not in _VIEWS:
        return None
    node = at.names.parents.get(above)
    while True:
        above = at.names.parents.get(node)
        if isinstance(above, _LOOPS):
            return above if above.iter is node else None
        outer = at.names.parents.get(above) if isinstance(above, cst.Arg) else None
        if not isinstance(outer, cst.Call) or code_of(outer.func) not in _AROUND:
            return None
        node = outer


def _inside(loop: Any, at: At) -> list[cst.CSTNode]:
    kinds = (cst.AugAssign, cst.Call)
    return [
        node
        for kind in kinds
        for node in at.names.by_type[kind]
        if any(above is loop for above in at.names.ancestors(node))
    ]


def _changed(node: Any) -> Any:
    """Return what a statement or call changes in place, as ``v`` in ``v.data.mul_(2)``."""
    held: cst.BaseExpression
    if isinstance(node, cst.AugAssign):
        held = node.target
    elif isinstance(node.func, cst.Attribute) and node.func.attr.value.endswith("_"):
        held = node.func.value
    else:
        return None
    if isinstance(held, cst.Attribute) and held.attr.value == "data":
        held = held.value
    return held


def _is_changed(node: Any, names: set[str], at: At) -> bool:
    held = _changed(node)
    return isinstance(held, cst.Name) and held.value in names

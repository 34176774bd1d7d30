"""States whose tensors are changed in place: in torch they are the network's own.

``port.state_dict`` copies. Where a loop goes through a state and changes what it finds, or a name
holds a state whose entries are changed, the port takes the Parameters themselves.
"""

from __future__ import annotations

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
_AROUND = ("dict", "enumerate", "list", "sorted", "tqdm", "zip")


@dataclass
class _Live:
    """Calls of ``state_dict`` by identity, loops over such, and names that hold one, by scope."""

    calls: set[int] = field(default_factory=set)
    loops: set[int] = field(default_factory=set)
    names: set[tuple[int, str]] = field(default_factory=set)
    lists: set[str] = field(default_factory=set)
    """Names and attributes that hold a list of a state's tensors, as code."""


def is_live_call(call: cst.Call, at: At) -> bool:
    """Return whether what ``net.state_dict()`` gives is changed in place."""
    return id(call) in at.once(_live).calls


def is_live_name(node: Any, at: At) -> bool:
    """Return whether a name is a tensor of such a state, by a loop over it."""
    if not isinstance(node, cst.Name):
        return False
    found = at.names.scope(node).find(node.value)
    given = [binding.node for binding in found if not isinstance(binding.node, cst.AugAssign)]
    return bool(given) and all(id(one) in at.once(_live).loops for one in given)


def is_live_entry(node: Any, at: At) -> bool:
    """Return whether this is ``state[key]`` of such a state that a name holds."""
    return isinstance(node, cst.Subscript) and _holds_live(node.value, at)


def is_part_of_live(node: Any, at: At) -> bool:
    """Return whether this is a part of an entry: ``state[key][:n]``."""
    return isinstance(node, cst.Subscript) and is_live_entry(node.value, at)


def _holds_live(node: Any, at: At) -> bool:
    if not isinstance(node, cst.Name):
        return False
    return (id(at.names.scope(node)), node.value) in at.once(_live).names


def _live(at: At) -> _Live:
    found = _Live()
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
        parent = at.names.parents.get(call)
        target = parent.targets[0].target if isinstance(parent, cst.Assign) else None
        if isinstance(target, cst.Name) and _has_changed_entries(target, at):
            found.names.add((id(at.names.scope(target)), target.value))
            found.calls.add(id(call))
    found.loops |= {id(loop) for loop in _loops_over(found.lists, at)}
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


def _has_changed_entries(name: cst.Name, at: At) -> bool:
    """Return whether a name holds this state alone, and an entry of it is changed in place."""
    scope = at.names.scope(name)
    if len(scope.find(name.value)) != 1:
        return False
    for kind in (cst.AugAssign, cst.Call):
        for node in at.names.by_type[kind]:
            held = _changed(node)
            while isinstance(held, cst.Subscript):
                inner = held.value
                same = isinstance(inner, cst.Name) and inner.value == name.value
                if same and at.names.scope(inner) is scope:
                    return True
                held = inner
    return False

"""Networks that are saved and loaded whole: of them the weights are."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.mindspore.calls import Refused
from mpcore_port.mindspore.rules.losses.names_in import bound_before
from mpcore_port.mindspore.rules.place import PortRule, is_whole_network, unmoved, wording
from mpcore_port.names import code_of, dotted, string_of

if TYPE_CHECKING:
    from mpcore_port.mindspore.tables import Mapping
    from mpcore_port.rule import At

__all__ = ["OF_TORCH", "LoadedRule", "PutBackRule", "listed", "weights_alone"]

_WEIGHTS = "a network's weights alone are saved: load them by load_state_dict into one that is made"
_INTO = "its weights are loaded into the network of that name, whose mode stays"
_WHOLE = "networks are not saved whole: save their state_dict(), and load it into one that is made"
_ASKED = ("eval", "forward", "named_parameters", "parameters", "state_dict", "train")
_OF_WEIGHTS = frozenset({*_ASKED, "bfloat16", "double", "float", "half", "requires_grad_"})
OF_TORCH = (
    "a file that torch saved with whole networks is not read: where torch is, save the network's "
    "state_dict(), run mpcore convert-weights on that, and load it into a network that is made"
)
_NOT_CALLED = "it cannot be called, and has no attributes: that raises"
_TAKEN_APART = ("get", "items", "keys", "pop", "update", "values")


def weights_alone(
    old: cst.Call, new: cst.Call, row: Mapping, at: At
) -> tuple[cst.Call, Mapping] | None:
    """Return a call of ``torch.save`` or ``torch.load`` of whole networks, and its row; or None.

    Raises:
        Refused: the network that the weights would go into is not known.
    """
    if row.name == "torch.load":
        return _loaded(old, new, row, at)
    if row.name != "torch.save" or not any(is_whole_network(at, part) for part in _saved(old)):
        return None
    first = old.args[0].value
    if isinstance(first, (cst.List, cst.Tuple, cst.Dict)):  # what a file gives back has no name
        loads = "torch.load" in map(at.names.called, at.names.calls)
        if loads or not isinstance(first, cst.Dict):
            raise Refused(_WHOLE)
    return _with_states(old, new, at), replace(row, effect=_WEIGHTS)


def _saved(call: cst.Call) -> list[cst.BaseExpression]:
    """Return what is saved: the first argument, or what a dictionary or list there holds."""
    if not call.args or call.args[0].star:
        return []
    value = call.args[0].value
    if isinstance(value, cst.Dict):
        return [e.value for e in value.elements if isinstance(e, cst.DictElement)]
    return listed(call) or [value]


def listed(call: cst.Call) -> list[cst.BaseExpression]:
    """Return what stands in the list that is a call's first argument."""
    value = call.args[0].value if call.args else None
    return [e.value for e in value.elements] if isinstance(value, (cst.List, cst.Tuple)) else []


def _with_states(old: cst.Call, new: cst.Call, at: At) -> cst.Call:
    """Return ``torch.save`` with the states of networks in the place of the networks."""
    state = cst.parse_expression(wording(at, "port.state_dict"))

    def stated(before: Any, now: Any) -> Any:
        return cst.Call(state, [cst.Arg(now)]) if is_whole_network(at, before) else now

    first, value = new.args[0], old.args[0].value
    if isinstance(value, cst.Dict) and isinstance(first.value, cst.Dict):
        pairs = zip(value.elements, first.value.elements, strict=True)
        elements = [
            now.with_changes(value=stated(before.value, now.value)) for before, now in pairs
        ]
        made: Any = first.value.with_changes(elements=elements)
    else:
        made = stated(value, first.value)
    return new.with_changes(args=[first.with_changes(value=made), *new.args[1:]])


def _loaded(old: cst.Call, new: cst.Call, row: Mapping, at: At) -> tuple[cst.Call, Mapping] | None:
    """Have a network that is loaded whole take the weights, where one of its name is there."""
    name = _given_to(old, at)
    if not name or name not in at.once(_whole_ones):
        asked = id(old) in at.once(_asked_for_networks)
        return (new, replace(row, doubt="saved whole")) if asked else None
    if not _is_made_before(name, old, at):
        raise Refused(_WHOLE)
    held = cst.Arg(
        cst.parse_expression(name),
        comma=cst.Comma(whitespace_after=cst.SimpleWhitespace(" ")),
    )
    made = new.with_changes(args=[held, *new.args])
    params = replace(row.params[0], name="network", default=None)
    return made, replace(row, to="port.load_into", params=(params, *row.params), effect=_INTO)


def _given_to(call: cst.Call, at: At) -> str:
    """Return the name or attribute that alone gets what a call gives, moved to a device or not."""
    outer: Any = call
    for above in at.names.ancestors(call):
        if isinstance(above, cst.Assign):
            return dotted(above.targets[0].target) if len(above.targets) == 1 else ""
        moved = isinstance(above, cst.Call) and above.func is outer and unmoved(above) is not None
        if not moved and not (isinstance(above, cst.Attribute) and above.value is outer):
            return ""
        outer = above
    return ""


def _whole_ones(at: At) -> set[str]:
    """Return the names that are saved as networks, or used as such and never as a state."""
    saves = (call for call in at.names.calls if at.names.called(call) == "torch.save")
    parts = [part for call in saves for part in _saved(call)]
    saved = {dotted(unmoved(part) or part) for part in parts if is_whole_network(at, part)}
    funcs = [(call, call.func) for call in at.names.calls]
    methods = [(call, func) for call, func in funcs if isinstance(func, cst.Attribute)]
    used = {dotted(func) for _, func in funcs}
    used |= {dotted(func.value) for _, func in methods if func.attr.value in _ASKED}
    states = {dotted(func.value) for _, func in methods if func.attr.value in _TAKEN_APART}
    for call, func in methods:
        if func.attr.value == "load_state_dict" and call.args:
            states.add(dotted(call.args[0].value))
    parted = (node for node in at.names.parents if isinstance(node, cst.Subscript))
    states |= {dotted(node.value) for node in parted if code_of(node).endswith(("']", '"]'))}
    return (saved | (used - states)) - {""}


class PutBackRule(PortRule):
    """``memory = checkpoint["memory"]`` of an object that is saved under that key."""

    name = "put back"
    reason = "of a network the weights are saved: they go into the one of that name"
    visits = (cst.Assign,)

    def act(self, old: cst.Assign, new: cst.Assign, at: At) -> Any:
        """Have an object of another file, which may be a Cell, take what was saved of it."""
        target, value = old.targets[0].target, old.value
        if len(old.targets) != 1 or not isinstance(target, cst.Name):
            return None
        if not isinstance(value, cst.Subscript) or len(value.slice) != 1:
            return None
        index = value.slice[0].slice
        key = string_of(index.value) if isinstance(index, cst.Index) else None
        if key is None or (key, target.value) not in at.once(_saved_objects):
            return None
        held = {at.names.called(one) for one in at.names.origins(value.value)}
        if "torch.load" not in held or not _is_made_before(target.value, value, at):
            return None
        text = f"port.put_back({target.value}, {code_of(new.value)})"
        made = new.with_changes(value=cst.parse_expression(wording(at, text)))
        at.note(self, old, made, "changed", self.reason, _INTO)
        return made


class LoadedRule(PortRule):
    """``checkpoint["model"].float()`` of a network that was saved whole."""

    name = "loaded"
    reason = "a network that was saved whole comes back as its weights, with what it does with them"
    visits = (cst.Call,)

    def act(self, old: cst.Call, new: cst.Call, at: At) -> None:
        """Say what a part of a checkpoint is that is asked for what networks have."""
        func = old.func
        if not isinstance(func, cst.Attribute) or func.attr.value not in _OF_WEIGHTS:
            return
        held = func.value
        if not isinstance(held, cst.Subscript):
            return
        if "torch.load" in {at.names.called(one) for one in at.names.origins(held.value)}:
            at.note(self, old, new, "changed", self.reason, _NOT_CALLED)


def _asked_for_networks(at: At) -> set[int]:
    """Return calls of ``torch.load`` of what is asked for a network, and not saved by this file."""
    calls = at.names.calls if "torch.load" in map(at.names.called, at.names.calls) else ()
    funcs: list[Any] = [one.func for one in calls]
    methods = [one for one in funcs if isinstance(one, cst.Attribute)]
    asked = [*funcs, *(one.value for one in methods if one.attr.value in _ASKED)]
    saves = [one for one in calls if at.names.called(one) == "torch.save" and len(one.args) > 1]
    own = {code_of(one.args[1].value) for one in saves}
    return {
        id(load)
        for value in asked
        for load in _loads_of(value, at)
        if not load.args or code_of(load.args[0].value) not in own
    }


def _loads_of(node: Any, at: At, depth: int = 4) -> list[cst.Call]:
    """Return the calls of ``torch.load`` that give what a value is, or is a part of."""
    if isinstance(node, cst.Call):
        if at.names.called(node) == "torch.load":
            return [node]
        func = node.func
        if not isinstance(func, cst.Attribute) or at.names.called(node) is not None:
            return []
        return _loads_of(func.value, at, depth)
    if isinstance(node, cst.Subscript):
        return _loads_of(node.value, at, depth)
    if isinstance(node, cst.BooleanOperation):
        return [*_loads_of(node.left, at, depth), *_loads_of(node.right, at, depth)]
    if not isinstance(node, (cst.Name, cst.Attribute)) or not depth:
        return []
    made = (one for one in at.names.origins(node) if one is not node)
    return [load for one in made for load in _loads_of(one, at, depth - 1)]


def _saved_objects(at: At) -> set[tuple[str, str]]:
    """Return keys of dictionaries with the names that hold objects of classes there."""
    found = set()
    for one in at.names.by_type[cst.DictElement]:
        key = string_of(one.key)
        if key is None or not isinstance(one.value, cst.Name):
            continue
        made = [unmoved(part) or part for part in at.names.origins(one.value)]
        funcs = [dotted(part.func) for part in made if isinstance(part, cst.Call)]
        if any(text.rpartition(".")[2][:1].isupper() for text in funcs):
            found.add((key, one.value.value))
    return found


def _is_made_before(name: str, call: cst.CSTNode, at: At) -> bool:
    """Return whether a network of that name is surely there when ``call`` runs."""
    home = at.names.enclosing(call, cst.FunctionDef)
    if name.startswith("self."):
        held = at.names.attribute(at.names.enclosing(call, cst.ClassDef), name)
        homes = [at.names.enclosing(binding.node, cst.FunctionDef) for binding in held]
        return any(h is not None and h is not home and h.name.value == "__init__" for h in homes)
    if "." in name:
        return False
    values = [binding.value for binding in at.names.scope(call).find(name)]
    made = [one for one in values if isinstance(one, cst.Call)]
    networks = [one for one in made if "torch.load" not in code_of(one)]
    return bool(networks) and name in bound_before(call, home or at.module, at)

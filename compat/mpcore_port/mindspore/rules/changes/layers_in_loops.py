"""Layers in place that a loop runs one by one, where a list keeps what each of them gave.

``for layer in self.main: x = layer(x); features.append(x)``: in torch the ReLU behind a
convolution changes what the list has of the convolution.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.mindspore.rules.changes.layers_in_place import is_in_place
from mpcore_port.mindspore.rules.place import PortRule, is_network_class, wording
from mpcore_port.names import code_of, dotted, target_names

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["LoopedLayerRule"]

_PUT_IN = frozenset({"append", "insert"})


class LoopedLayerRule(PortRule):
    """``x = layer(x)`` in a loop that keeps each ``x``, with layers in place among them."""

    name = "layers in loops"
    reason = "what a layer in place changes is put in its place where the loop keeps it"
    visits = (cst.Assign, cst.Call)

    def idle(self, at: At) -> bool:
        """Whether no layer may work in place, or the script is a port."""
        return super().idle(at) or not ("inplace" in at.code or "True)" in at.code)

    def act(self, old: Any, new: Any, at: At) -> Any:
        """Hand the loop's layers on with what keeps their values; mark layers in place."""
        layers = at.once(_layers)
        kept = at.once(_kept_values) if layers else {}
        if isinstance(old, cst.Assign) and id(old) in kept:
            call: Any = new.value
            given = ", ".join([code_of(call.func), code_of(call.args[0].value), *kept[id(old)]])
            made = cst.parse_expression(wording(at, f"port.through({given})"))
            at.note(self, old, made)
            return new.with_changes(value=made)
        if kept and id(old) in layers:
            return cst.Call(cst.parse_expression(wording(at, "port.in_place")), [cst.Arg(new)])
        return None


def _layers(at: At) -> set[int]:
    """Return the calls that make layers in place for a list or a Sequential."""
    found = set()
    for call in at.names.calls:
        above = at.names.parents.get(call)
        is_row = (at.names.called(call) or "").endswith("Sequential")
        if isinstance(above, (cst.Arg, cst.Element)) and not is_row and is_in_place(call, at):
            found.add(id(call))
    return found


def _kept_values(at: At) -> dict[int, list[str]]:
    """Return ``x = layer(x)`` of loops in networks, with the lists that such a loop puts x in."""
    found: dict[int, list[str]] = {}
    for loop in at.names.by_type[cst.For]:
        owner = at.names.enclosing(loop, cst.ClassDef)
        if owner is None or not is_network_class(owner, at):
            continue
        layers = set(target_names(loop.target))
        for line in at.names.by_type[cst.Assign]:
            if loop not in list(at.names.ancestors(line)) or len(line.targets) != 1:
                continue
            target, call = line.targets[0].target, line.value
            is_run = isinstance(call, cst.Call) and dotted(call.func) in layers
            if not is_run or len(call.args) != 1 or not isinstance(target, cst.Name):
                continue
            kept = _kept(target.value, loop, at)
            if isinstance(call.args[0].value, cst.Name) and not call.args[0].star and kept:
                found[id(line)] = kept
    return found


def _kept(name: str, loop: cst.For, at: At) -> list[str]:
    """Return the lists and dictionaries that a loop puts a name's value in, as code."""
    every = [*at.names.calls, *at.names.by_type[cst.Assign]]
    put = [_put(node) for node in every if loop in at.names.ancestors(node)]
    found = [dotted(holder) for holder, value in put if value and code_of(value) == name]
    return list(dict.fromkeys(one for one in found if one))


def _put(node: Any) -> tuple[Any, Any]:
    """Return what is put where by ``kept.append(x)`` or ``kept[name] = x``; (None, None) else."""
    if isinstance(node, cst.Assign):
        target = node.targets[0].target
        return (target.value, node.value) if isinstance(target, cst.Subscript) else (None, None)
    func = node.func
    if isinstance(func, cst.Attribute) and func.attr.value in _PUT_IN and node.args:
        return func.value, node.args[-1].value
    return None, None

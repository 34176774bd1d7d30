"""What a loss is made of, what is handed to it and what others read of it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.children import calls_in
from mpcore_port.mindspore.loop.description import Forward, Line, NotPlain, Region
from mpcore_port.mindspore.rules.losses.flow import slice_of
from mpcore_port.mindspore.rules.losses.names_in import (
    assigned,
    assigned_first,
    jumps,
    read,
    read_first,
)
from mpcore_port.mindspore.rules.losses.networks_in import networks_given, parameters_read
from mpcore_port.mindspore.rules.losses.stale import stale
from mpcore_port.mindspore.rules.place import is_module
from mpcore_port.names import code_of, dotted

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mpcore_port.mindspore.loop.description import Block
    from mpcore_port.mindspore.rules.losses.planned import Sink
    from mpcore_port.rule import At

__all__ = ["fixed_names", "forward_of", "in_order", "made_in"]


def forward_of(sink: Sink, block: Block, place: int, at: At) -> Forward:
    """Return what the loss of the backward pass at ``place`` of ``block`` is made of.

    Raises:
        NotPlain: it is not made in its block, or in a way that no function of its own has.
    """
    plain = [line for line in block.lines[:place] if line.act is None and not line.inner]
    nodes = [line.node for line in plain]
    part = slice_of(nodes, len(nodes), read(sink.loss), at)
    if not part.places:
        raise NotPlain(sink.call, "what its loss is made of is not in one block with it")
    lines = [plain[index] for index in part.places]
    for line in lines:
        _check(line, sink, at)
    return Forward(sink, block, lines, region=_region(lines, at))


def _check(line: Line, sink: Sink, at: At) -> None:
    if jumps(line.node):
        raise NotPlain(line.node, "a jump stands in what makes its loss")
    own = code_of(sink.loss)  # it is handed out, and kept there
    dots = [name for name in assigned(line.node) if "." in name and name != own]
    if dots:
        raise NotPlain(line.node, f"it keeps {dots[0]}, which a compiled function cannot")
    for call in calls_in(line.node):
        if isinstance(call.func, cst.Attribute) and call.func.attr.value in ("item", "numpy"):
            raise NotPlain(call, "a number is taken out of what is differentiated")
        if isinstance(call.func, cst.Attribute) and call.func.attr.value == "register_hook":
            raise NotPlain(call, "a hook hangs on what is differentiated: MindSpore compiles none")
        if (at.names.called(call) or "").startswith("torch.") and _is_leaf(call):
            raise NotPlain(call, "it hangs on nothing there, and torch's optimizers pass by")


def _is_leaf(call: cst.Call) -> bool:
    """Return whether a call makes a tensor that gets gradients itself: in place of a NaN."""
    given = {arg.keyword.value: code_of(arg.value) for arg in call.args if arg.keyword is not None}
    return given.get("requires_grad") == "True"


def _region(lines: list[Line], at: At) -> Region | None:
    found = [line.region for line in lines if line.region is not None]
    if not found:
        return None
    if any(region != found[0] for region in found):
        raise NotPlain(lines[0].node, "its parts run in regions of different precision")
    for line in lines:
        if line.region is None and _runs_network(line.node, at):
            raise NotPlain(line.node, "a network runs outside of the autocast region")
    return found[0]


_ASKED = frozenset(
    {"eval", "modules", "named_parameters", "parameters", "state_dict", "train", "zero_grad"}
)


def _runs_network(node: cst.CSTNode, at: At) -> bool:
    return any(_runs(call, at) for call in calls_in(node) if not at.names.called(call))


def _runs(call: cst.Call, at: At) -> bool:
    """Return whether a call runs a network: itself, by a method of it, or as what it hands on."""
    func = call.func
    if is_module(at, func) or networks_given(call, at):
        return True
    if not isinstance(func, cst.Attribute) or func.attr.value in _ASKED:
        return False
    return is_module(at, func.value)


def fixed_names(lines: Iterable[Line], at: At) -> set[str]:
    """Return names of what is called: networks, losses, functions; they are not handed in."""
    found = set()
    for line in lines:
        found |= {name.partition(".")[0] for name in parameters_read(line.node, at)}
        for call in calls_in(line.node):
            func = call.func
            if isinstance(func, cst.Name):
                found.add(func.value)
            elif isinstance(func, cst.Attribute) and dotted(func):
                root = at.names.root(func)
                if isinstance(root, cst.Name) and (
                    at.names.imported(root) is not None or is_module(at, func.value)
                ):
                    found.add(root.value)
    return found


def free_names(forward: Forward) -> list[str]:
    """Return the plain names that the lines of a loss read before they make them, in order."""
    made: set[str] = set()
    found: set[str] = set()
    for line in forward.lines:
        found |= read_first(line.node, made)
        made |= set(assigned_first(line.node))
    found |= read(forward.sink.loss) - made
    found |= stale(line.node for line in forward.lines)
    plain = {name for name in found if "." not in name}
    return in_order(plain, [line.node for line in forward.lines] + [forward.sink.loss])


def made_in(lines: Iterable[Line]) -> list[str]:
    """Return the names that lines assign, in order."""
    found: list[str] = []
    for line in lines:
        found += assigned_first(line.node)
    return list(dict.fromkeys(found))


def in_order(names: set[str], nodes: list[Any]) -> list[str]:
    """Return names in the order in which code has them."""
    text = "\n".join(code_of(node) for node in nodes)
    places = {name: re.search(rf"(?<![\w.]){re.escape(name)}\b", text) for name in names}
    return sorted(names, key=lambda name: (places[name].start() if places[name] else -1, name))  # type: ignore[union-attr]

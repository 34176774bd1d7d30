"""What gradients go through: values that are computed again, detached, or plain."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.children import calls_in
from mpcore_port.mindspore.rules.losses.imported_networks import runs_imported
from mpcore_port.mindspore.rules.losses.names_in import assigned, assigned_first, read, read_first
from mpcore_port.mindspore.rules.losses.networks_in import networks_given
from mpcore_port.names import code_of, dotted
from mpcore_port.values import vocabulary

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mpcore_port.rule import At

__all__ = [
    "attached",
    "carrying",
    "constant",
    "detaches",
    "is_plain",
    "needed_again",
    "plain_values",
    "through",
    "values_alone",
    "weights_run",
]


def constant(nodes: Iterable[cst.CSTNode], names: set[str]) -> bool:
    """Return whether ``nodes`` read ``names`` detached alone: they are values, computed before.

    ``names`` are plain ones; ``made.detach()`` and ``made.data`` are such, ``made`` is not.
    """
    return not attached(nodes, names)


def through(nodes: Sequence[cst.CSTNode], names: set[str], at: At) -> bool:
    """Return whether a gradient surely goes through each of ``names``: all that reads it is seen.

    A helper that is handed one may detach it; so may a statement that reads what holds a part.
    """
    if attached(nodes, names) != names or not names <= _reaching(nodes):
        return False
    return not any(
        _is_helper(call, at) and read(arg.value) & names
        for node in nodes
        for call in calls_in(node)
        for arg in call.args
    )


def _reaching(nodes: Sequence[cst.CSTNode]) -> set[str]:
    """Return the names that the last of ``nodes`` is made of by way of the others, not detached."""
    every = {name for node in nodes for name in (*assigned(node), *read(node))}
    found = attached(nodes[-1:], every)
    for node in reversed(nodes[:-1]):
        for names, value in _one_by_one(node):
            found |= attached([value], every) if names & found else set()
    return found


def _one_by_one(node: cst.CSTNode) -> list[tuple[set[str], cst.CSTNode]]:
    """Return the names that a statement assigns, each with what gives it: ``a, b = x, y[0]``."""
    small = node.body[0] if isinstance(node, cst.SimpleStatementLine) else None
    if isinstance(small, cst.Assign) and len(small.targets) == 1:
        target, value = small.targets[0].target, small.value
        if (
            isinstance(target, cst.Tuple)
            and isinstance(value, cst.Tuple)
            and len(target.elements) == len(value.elements)
            and not any(
                isinstance(e, cst.StarredElement) for e in (*target.elements, *value.elements)
            )
        ):
            pairs = zip(target.elements, value.elements, strict=True)
            return [({code_of(one.value)}, given.value) for one, given in pairs]
    return [(set(assigned(node)), node)]


def _is_helper(call: cst.Call, at: At) -> bool:
    """Return whether a call is of a function that the file defines or imports, and not torch's."""
    name = at.names.called(call)
    if name is not None:
        return not name.startswith("torch.")
    func = call.func
    kinds = {b.kind for b in at.names.meanings(func)} if isinstance(func, cst.Name) else set()
    return bool(kinds & {"def", "class", "import"})


def attached(nodes: Iterable[cst.CSTNode], names: set[str]) -> set[str]:
    """Return those of ``names`` that ``nodes`` read with their gradients, not detached."""
    detached = _Detached()
    made: set[str] = set()
    found: set[str] = set()
    for node in nodes:
        code = code_of(node)
        bare = node.visit(detached) if "detach" in code or ".data" in code else node
        found |= read_first(bare, made) & names
        made |= set(assigned_first(node))
    return found


def needed_again(
    lines: Sequence[Any],
    nodes: Sequence[cst.CSTNode],
    names: set[str],
    *,
    in_order: bool = False,
) -> list[Any] | None:
    """Return which of ``lines`` a later loss of ``nodes`` has to compute again, in order.

    What it reads detached is of before: None where a line makes that, and what is needed as well.
    With ``in_order`` what ``nodes`` bind before they read it is their own.
    """
    wanted = attached(nodes, names)
    bound: set[str] = set()
    before: set[str] = set()
    for node in nodes:
        before |= (read_first(node, bound) if in_order else read(node)) & names - wanted
        bound |= set(assigned_first(node))
    again: list[Any] = []
    for line in reversed(lines):
        made = set(assigned(line))
        if made & wanted:
            if made & before:
                return None
            again.insert(0, line)
            wanted |= read(line) & names  # noise, labels and the like stay as they were drawn
    return again


def carrying(nodes: Sequence[Any], loss: cst.CSTNode, at: At) -> set[int]:
    """Return the places of statements that a gradient of ``loss`` goes through, to weights."""
    every = {name for node in nodes for name in assigned(node)}
    graded: set[str] = set()  # names that may have a gradient
    for node in nodes:
        if weights_run(node, at) or attached([node], every) & graded:
            graded |= set(assigned(node))
    wanted = attached([loss], every)
    found: set[int] = set()
    for place in range(len(nodes) - 1, -1, -1):
        if set(assigned(nodes[place])) & wanted & graded:
            found.add(place)
            wanted |= attached([nodes[place]], every)
    return found


def values_alone(nodes: Sequence[Any], loss: cst.CSTNode, at: At) -> set[int]:
    """Return the places of statements that make numbers by networks, without a gradient.

    A network runs in them, or they read what such ones make, and they read nothing that the
    loss differentiates.
    """
    graded = carrying(nodes, loss, at)
    found: set[int] = set()
    alone: set[str] = set()
    inside: set[str] = set()
    for place, node in enumerate(nodes):
        made, reads = set(assigned(node)), read(node)
        depends = place in graded or bool(reads & inside)
        if not depends and (weights_run(node, at) or reads & alone):
            found.add(place)
            alone |= made
            inside -= made
        else:
            inside |= made if depends else set()
            alone -= made
    return found


def weights_run(node: cst.CSTNode, at: At) -> set[str]:
    """Return what a statement calls, as code, that may hold weights."""
    calls = (call for call in calls_in(node) if not is_plain(call, at, functional=True))
    return {name for call in calls for name in (code_of(call.func), *_networks(call, at))}


def _networks(call: cst.Call, at: At) -> list[str]:
    return [code_of(one) for one in networks_given(call, at)]


def plain_values(nodes: Iterable[cst.CSTNode], at: At) -> set[str]:
    """Return the names that ``nodes`` make without any network: labels, noise, batches.

    No gradient goes through them, so what was computed is as good as computing it again; noise
    that was drawn has to stay the same.
    """
    made: set[str] = set()
    plain: set[str] = set()
    for node in nodes:
        names = set(assigned(node))
        wants = "requires_grad=True" in code_of(node) or "requires_grad_" in code_of(node)
        if wants or read(node) & (made - plain) or not all(is_plain(c, at) for c in calls_in(node)):
            plain -= names
        else:
            plain |= names
        made |= names
    return plain


def is_plain(call: cst.Call, at: At, *, functional: bool = False) -> bool:
    """Return whether a call surely runs no network: of a package, a builtin, a tensor's method.

    Of torch.nn that are functions, where ``functional`` is true: they hold no weights.
    """
    named = [at.names.called(call)] if at.names.called(call) else at.names.choices(call.func)
    if runs_imported(call, at):
        return False
    if named:
        free = ("torch.nn.functional.",) if functional else ()
        return all(str(n).startswith(free) or not str(n).startswith("torch.nn.") for n in named)
    func = call.func
    if isinstance(func, cst.Name):
        return func.value in ("len", "int", "float", "range") and not at.names.scope(func).find(
            func.value
        )
    return isinstance(func, cst.Attribute) and func.attr.value in vocabulary()["tensor"]


def detaches(node: cst.CSTNode, names: set[str]) -> bool:
    """Return whether ``node`` detaches what one of ``names`` holds."""
    funcs = (call.func for call in calls_in(node))
    return any(
        isinstance(func, cst.Attribute) and func.attr.value == "detach" and read(func.value) & names
        for func in funcs
    )


class _Detached(cst.CSTTransformer):
    """Puts None in the place of what is detached from its gradients."""

    def leave_Call(  # noqa: N802  # libcst's
        self, original_node: cst.Call, updated_node: cst.Call
    ) -> Any:
        func = updated_node.func
        if isinstance(func, cst.Attribute) and func.attr.value == "detach":
            return cst.Name("None") if _is_held(func.value) else updated_node
        return updated_node

    def leave_Attribute(  # noqa: N802  # libcst's
        self, original_node: cst.Attribute, updated_node: cst.Attribute
    ) -> Any:
        plain = _is_held(updated_node.value)
        return cst.Name("None") if plain and updated_node.attr.value == "data" else updated_node


def _is_held(node: Any) -> bool:
    """Return whether this is what names hold, or made of that alone: ``-(log_prob + entropy)``."""
    while isinstance(node, cst.Subscript):
        node = node.value
    if isinstance(node, cst.UnaryOperation):
        return _is_held(node.expression)
    if isinstance(node, cst.BinaryOperation):
        return all(_is_held(side) or _is_number(side) for side in (node.left, node.right))
    if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
        plain = node.func.attr.value in _OVER_ALL and all(_is_number(a.value) for a in node.args)
        return plain and _is_held(node.func.value)
    return isinstance(node, cst.Name)


_OVER_ALL = frozenset("abs clamp exp log max mean min pow sigmoid sqrt squeeze sum".split())  # noqa: SIM905


def _is_number(node: Any) -> bool:
    """Return whether this is a number, or an attribute that may be one."""
    if isinstance(node, cst.UnaryOperation):
        return _is_number(node.expression)
    return isinstance(node, cst.BaseNumber) or (
        isinstance(node, cst.Attribute) and bool(dotted(node))
    )

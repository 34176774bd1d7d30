"""Tensors that are no Parameters, and whose gradients a script asks for: pictures, perturbations.

``loss.backward(); x.grad`` and ``torch.autograd.grad(loss, x)``: the function that makes the loss
takes such a tensor as its argument.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.children import calls_in
from mpcore_port.mindspore.rules.place import is_leaf
from mpcore_port.names import code_of, target_names
from mpcore_port.scan import FUNCTIONS, arguments

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mpcore_port.rule import At

__all__ = [
    "GRADIENT",
    "GRADIENT_ORDER",
    "asked_for",
    "gradient_call",
    "in_own_backward",
    "inputs_read",
    "is_input",
    "only_forgets",
]
__all__ += ["has_unused", "reads_gradient", "weights_call"]

GRADIENT = "torch.autograd.grad"
GRADIENT_ORDER = ("outputs", "inputs", "grad_outputs", "retain_graph", "create_graph")
_OFF = ("None", "False")


def gradient_call(call: cst.Call, at: At) -> tuple[Any, tuple[str, ...]] | None:
    """Return the loss of ``torch.autograd.grad`` and the tensors that it is differentiated by.

    None for another call, a gradient that is differentiated again, or what is no such tensor.
    """
    loss, wanted = _asked(call, at)
    if loss is None or has_unused(call):
        return None
    parts = wanted.elements if isinstance(wanted, (cst.List, cst.Tuple)) else None
    nodes = [wanted] if parts is None else [part.value for part in parts]
    names = [node.value for node in nodes if isinstance(node, cst.Name) and is_leaf(node, at)]
    return (loss, tuple(dict.fromkeys(names))) if len(names) == len(nodes) else None


def weights_call(call: cst.Call, at: At) -> tuple[Any, Any] | None:
    """Return the loss of ``torch.autograd.grad(loss, net.parameters())``, and the weights.

    None for another call, and where what it is differentiated by is perhaps no network's.
    """
    loss, wanted = _asked(call, at)
    return (loss, wanted) if loss is not None and _are_weights(wanted, at) else None


def in_own_backward(node: cst.CSTNode, at: At) -> bool:
    """Return whether a node stands in the ``backward`` of a ``torch.autograd.Function``."""
    function = at.names.enclosing(node, cst.FunctionDef)
    owner = at.names.enclosing(node, cst.ClassDef)
    if function is None or owner is None or function.name.value != "backward":
        return False
    return not FUNCTIONS.isdisjoint(at.names.bases(owner))


def has_unused(call: cst.Call) -> bool:
    """Return whether a gradient may be None: of what takes no part in the loss."""
    return any(arg.keyword and arg.keyword.value == "allow_unused" for arg in call.args)


def _asked(call: cst.Call, at: At) -> tuple[Any, Any]:
    """Return what a plain gradient is of, and by what; None of another call."""
    nothing = None, None
    if at.names.called(call) != GRADIENT or any(arg.star for arg in call.args):
        return nothing
    given: dict[str, Any] = arguments(call, GRADIENT_ORDER)
    loss, wanted = given.get("outputs"), given.get("inputs")
    if loss is None or wanted is None or len(call.args) > len(GRADIENT_ORDER):
        return nothing
    if set(given) - set(GRADIENT_ORDER) - {"allow_unused", "only_inputs"}:
        return nothing
    weights = given.get("grad_outputs")
    ones = f"torch.ones_like({code_of(loss)})"
    if weights is not None and code_of(weights) not in ("None", ones):
        return nothing
    if code_of(given.get("create_graph", cst.Name("False"))) not in _OFF:
        return nothing
    return nothing if isinstance(loss, (cst.List, cst.Tuple)) else (loss, wanted)


_PARAMETERS = re.compile(r"(^|_)param(eter)?s$")
_LISTS = ("list", "tuple")


def _are_weights(node: Any, at: At, depth: int = 4) -> bool:
    """Return whether an expression is a network's parameters, by the name of a method."""
    if depth == 0:
        return False
    if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
        return not node.args and bool(_PARAMETERS.search(node.func.attr.value))
    if isinstance(node, cst.Call):
        alone = code_of(node.func) in _LISTS and len(node.args) == 1
        return alone and _are_weights(node.args[0].value, at, depth - 1)
    if isinstance(node, (cst.ListComp, cst.GeneratorExp)):
        same = code_of(node.elt) == code_of(node.for_in.target)
        return same and _are_weights(node.for_in.iter, at, depth - 1)
    if not isinstance(node, cst.Name):
        return False
    found = at.names.scope(node).find(node.value)
    values = [one.value for one in found if one.kind == "value" and one.value is not None]
    return len(values) == len(found) > 0 and all(
        _are_weights(value, at, depth - 1) for value in values
    )


def asked_for(at: At) -> dict[str, list[cst.CSTNode]]:
    """Return by the names of tensors where their gradients are read; ask by ``at.once``."""
    found: dict[str, list[cst.CSTNode]] = {}
    for node in at.names.by_type[cst.Attribute]:
        holder = node.value
        read = not isinstance(at.names.parents.get(node), (cst.AssignTarget, cst.Del))
        asks = node.attr.value == "grad" and read and isinstance(holder, cst.Name)
        if asks and is_leaf(holder, at):
            found.setdefault(holder.value, []).append(node)
    for call in at.names.callers("grad"):
        asked = gradient_call(call, at)
        for name in asked[1] if asked else ():
            found.setdefault(name, []).append(call)
    return found


def reads_gradient(statement: cst.CSTNode, at: At) -> bool:
    """Return whether a gradient of such a tensor is read, or made, in a statement."""
    places = [one for nodes in at.once(asked_for).values() for one in nodes]
    if not places:
        return False
    passes = [c for c in calls_in(statement) if at.names.called(c) is None and _is_pass(c)]
    inside = any(above is statement for one in places for above in at.names.ancestors(one))
    return inside or bool(passes)


def _is_pass(call: cst.Call) -> bool:
    return isinstance(call.func, cst.Attribute) and call.func.attr.value == "backward"


def _is_read(name: str, sink: cst.CSTNode, block: Any, at: At) -> bool:
    """Return whether a gradient is read behind a backward pass, perhaps when its loop comes round.

    It is not where nothing below reads it, and ``block`` makes the tensor anew before it does.
    """
    scope = at.names.scope(sink)
    reads = [one for one in at.once(asked_for)[name] if at.names.scope(one) is scope]
    if not reads or any(one is sink or at.line(one) > at.line(sink) for one in reads):
        return True
    around = at.names.parents.get(block)
    if isinstance(around, cst.For) and name in target_names(around.target):
        return False
    anew = [at.line(line) for line in block.body if name in _assigned(line)]
    return not anew or anew[0] > min(at.line(one) for one in reads)


def _assigned(line: Any) -> set[str]:
    """Return the names that a statement is an assignment of, and nothing else."""
    if not isinstance(line, cst.SimpleStatementLine):
        return set()
    plain = [one for one in line.body if isinstance(one, cst.Assign)]
    return {name for one in plain for t in one.targets for name in target_names(t.target)}


def only_forgets(optimizer: cst.Call, at: At) -> bool:
    """Return whether all that an optimizer of a list is asked for is ``zero_grad``."""
    parent = at.names.parents.get(optimizer)
    target = parent.targets[0].target if isinstance(parent, cst.Assign) else None
    listed = isinstance(optimizer.args[0].value, (cst.List, cst.Tuple))
    if not isinstance(target, cst.Name) or not listed:
        return False
    scope = at.names.scope(target)
    named = (one for one in at.names.by_type[cst.Name] if one.value == target.value)
    uses = [one for one in named if one is not target and at.names.scope(one) is scope]
    above = [at.names.parents.get(one) for one in uses]
    forgets = [isinstance(one, cst.Attribute) and one.attr.value == "zero_grad" for one in above]
    return bool(forgets) and all(forgets)


def is_input(node: Any, at: At) -> bool:
    """Return whether a loss of the port is a function of what a name holds, in its scope."""
    return isinstance(node, cst.Name) and (id(at.names.scope(node)), node.value) in at.once(_inputs)


def _inputs(at: At) -> set[tuple[int, str]]:
    found = set()
    for call in at.names.callers("loss"):
        for arg in call.args:
            if arg.keyword and arg.keyword.value == "inputs" and isinstance(arg.value, cst.List):
                scope = id(at.names.scope(call))
                found |= {(scope, code_of(one.value)) for one in arg.value.elements}
    return found


def inputs_read(
    names: set[str], made: set[str], sink: cst.CSTNode, block: Any, first: int, at: At
) -> tuple[str, ...]:
    """Return the tensors whose gradients are read behind a backward pass.

    Args:
        names: what the statements of its loss read.
        made: what they assign: no tensor of before.
        sink: the backward pass.
        block: the statements around it.
        first: place of the first one that makes its loss.
        at: the module.
    """
    asked = (names & set(at.once(asked_for))) - made
    before = block.body[:first]
    wanted = (name for name in asked if _wants(name, before))
    return tuple(sorted(name for name in wanted if _is_read(name, sink, block, at)))


def _wants(name: str, before: Sequence[Any]) -> bool:
    """Return whether a tensor may want a gradient behind some statements of its block.

    ``delta = delta.detach()`` wants none until something says ``requires_grad`` again.
    """
    for line in reversed(before):
        code = code_of(line)
        if name in _assigned(line) or re.search(rf"\b{name}\.requires_grad", code):
            return "requires_grad" in code
    return True

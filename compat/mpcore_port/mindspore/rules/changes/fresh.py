"""Tensors that nothing else holds: made in the line, or by a name that is theirs alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.mindspore.rules.changes.methods_in_place import (
    FRESH,
    MADE,
    NO_PARTS,
    PLAIN,
    SHAPES,
    VIEWS,
    begins_with,
    is_chained,
    viewed,
)
from mpcore_port.names import code_of
from mpcore_port.torch_names import EXPORTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from mpcore_port.names import Binding
    from mpcore_port.rule import At

__all__ = [
    "is_alone",
    "is_fresh",
    "is_made_tensor",
    "is_moved",
    "is_perhaps_fresh",
    "is_rebound",
]


def is_made_tensor(node: Any, at: At) -> bool:
    """Return whether a local name holds what functions of torch gave, and nothing else."""
    if not isinstance(node, cst.Name):
        return False
    scope = at.names.scope(node)
    found = scope.bindings.get(node.value, [])
    return bool(found) and all(
        binding.kind == "value"
        and isinstance(binding.value, cst.Call)
        and ((at.names.called(binding.value) or "").startswith("torch.") or _is_new(binding.value))
        and is_fresh(binding.value, at)
        for binding in found
    )


def _is_new(call: cst.Call) -> bool:
    """Return whether a call is ``x.new_zeros(n)``: no array and no list has such a method."""
    return isinstance(call.func, cst.Attribute) and call.func.attr.value.startswith("new_")


_DEPTH = 12


def is_fresh(node: cst.CSTNode, at: At, depth: int = _DEPTH) -> bool:
    """Return whether an expression makes a tensor that no name holds."""
    if isinstance(node, (cst.BinaryOperation, cst.UnaryOperation, cst.Comparison)):
        return True
    if isinstance(node, cst.Subscript):
        return _is_of_a_pair(node, at)
    if not isinstance(node, cst.Call) or depth == 0:
        return False
    called = at.names.called(node)
    chosen = at.names.choices(node.func)
    if chosen and all(name.startswith("torch.") and name.endswith("Tensor") for name in chosen):
        return True
    if called is not None:
        last = called.rpartition(".")[2]
        if last.endswith("Tensor") and called.startswith("torch."):
            return True
        return called.startswith("torch.") and last[:1].islower() and last not in VIEWS
    if not isinstance(node.func, cst.Attribute):
        return False
    name = node.func.attr.value
    if name.endswith("_") and name[:-1] in PLAIN | {n[:-1] for n in MADE}:
        return is_fresh(node.func.value, at, depth - 1)
    if name in FRESH:
        return True
    # A view, or the same, of what no name holds.
    return name in EXPORTS["torch.Tensor"] and is_fresh(node.func.value, at, depth - 1)


def is_perhaps_fresh(node: Any, at: At, depth: int = _DEPTH) -> bool:
    """Return whether a call gives a tensor that nobody knows a holder of: no method of tensors."""
    if is_fresh(node, at, depth):
        return True
    if isinstance(node, cst.Attribute) and depth > 0:
        return _is_perhaps_fresh_part(node, at, depth - 1)
    if not isinstance(node, cst.Call) or not isinstance(node.func, (cst.Attribute, cst.Name)):
        return False
    if at.names.called(node) == "torchvision.utils.make_grid":
        return True  # of one picture a view
    if isinstance(node.func, cst.Name):
        return _is_own_call(node, at) and not node.func.value[:1].isupper()
    method = node.func.attr.value
    if method.endswith("_") and method[:-1] in PLAIN | SHAPES:
        return is_perhaps_fresh(node.func.value, at, depth - 1)
    if method in _MOVES | _TYPES:
        return at.names.called(node) is None and bool(node.args or method != "to")
    return _is_own_call(node, at) and method not in EXPORTS["torch.Tensor"]


def is_moved(node: Any) -> bool:
    """Return whether a chain of methods in place is called on ``x.cuda()``, which may be ``x``."""
    while is_chained(node):
        node = node.func.value
    return isinstance(node, cst.Call) and code_of(node.func).rpartition(".")[2] in _MOVES | _TYPES


def _is_own_call(call: cst.Call, at: At) -> bool:
    """Return whether a function is called that is none of torch's or numpy's: the script's own."""
    root = (at.names.called(call) or "").partition(".")[0]
    return not root.startswith(("torch", "numpy", "einops"))


def _is_perhaps_fresh_part(node: cst.Attribute, at: At, depth: int) -> bool:
    """Return whether this is a field of what a call gives, and nothing asks that for it again."""
    if node.attr.value in NO_PARTS:
        return False
    holder = node.value
    if isinstance(holder, cst.Call):
        return at.names.called(holder) is None and is_perhaps_fresh(holder, at, depth)
    if not isinstance(holder, cst.Name):
        return False
    scope = at.names.scope(holder)
    found = scope.bindings.get(holder.value, [])
    if len(found) != 1 or found[0].kind != "value" or not isinstance(found[0].value, cst.Call):
        return False
    uses = [one for one in _uses(holder, scope, at) if one is not holder]
    made = isinstance(at.names.parents.get(uses[0]), cst.AssignTarget) if len(uses) == 1 else False
    called = at.names.called(found[0].value) is None
    return made and called and is_perhaps_fresh(found[0].value, at, depth)


def _is_pair(node: Any, at: At) -> bool:
    """Return whether a call gives several fresh tensors."""
    if not isinstance(node, cst.Call):
        return False
    last = code_of(node.func).rpartition(".")[2]
    known = (at.names.called(node) or "torch.").startswith("torch.")
    return known and last in ("max", "min", "sort", "topk", "kthvalue", "median", "mode")


def _is_of_a_pair(node: cst.Subscript, at: At) -> bool:
    """Return whether this is ``x.min(-1)[0]``: Python's own ``min`` gives what others hold."""
    pair = node.value
    if not isinstance(pair, cst.Call) or not isinstance(pair.func, cst.Attribute):
        return False
    place = getattr(node.slice[0].slice, "value", None)
    return len(node.slice) == 1 and isinstance(place, cst.Integer) and _is_pair(pair, at)


def is_alone(
    held: cst.Name,
    at: At,
    fresh: Callable[[Any, At], bool] | None = None,
    *,
    views: bool = False,
) -> bool:
    """Return whether a local name holds fresh tensors only, and hands them to no other name.

    With ``views`` they may be views of others: what changes is their shape.
    """
    scope = at.names.scope(held)
    bindings = scope.bindings.get(held.value, [])
    if not bindings or scope.kind == "class":
        return False
    again = {id(root) for one in bindings if (root := _seen_again(one.value, held)) is not None}
    made = _made_before(held, bindings, at)
    bindings, every = _between(bindings, made, held, at), bindings
    fresh = _is_own_view if views else fresh
    if not views and any(_seen_again(one.value, held) is not None for one in bindings):
        # A view of what the name held before: that was its alone, too.
        made = _made_before(held, [b for b in every if _seen_again(b.value, held) is None], at)
        bindings = _between(every, made, held, at)
    here = at.line(held)
    for binding in bindings:
        is_own = fresh or is_fresh
        if binding.kind == "element" and fresh is None:
            is_own = _is_pair
        elif binding.kind not in ("value", "element"):
            return False
        if binding.value is None:
            return False
        for way in _ways(binding.value):
            own = not views and held.value in (code_of(way), begins_with(way), _moved(way))
            again_seen = not views and _seen_again(way, held) is not None
            if not own and not again_seen and not is_own(way, at):
                return False
    uses = _uses(held, scope, at)
    return not any(
        _hands_on(node, at)
        and (not made or made < at.line(node) <= here)
        and not _is_given_back(node, at)
        for node in uses
        if id(node) not in again
    )


_OWN_VIEWS = frozenset(
    {"expand", "narrow", "permute", "reshape", "select", "squeeze", "t", "transpose", "view"}
) | {"unsqueeze", "unsqueeze_"}


def _is_own_view(value: Any, at: At) -> bool:
    """Return whether a value is a tensor of its own, perhaps of another's memory."""
    func = value.func if isinstance(value, cst.Call) else None
    if isinstance(func, cst.Attribute) and at.names.called(value) is None:
        return func.attr.value in _OWN_VIEWS or is_fresh(value, at)
    return is_fresh(value, at)


def _between(bindings: Sequence[Binding], made: int, held: cst.Name, at: At) -> list[Binding]:
    """Return the bindings from a line on down to where a name stands; all of them for line 0."""
    return [one for one in bindings if not made or made <= at.line(one.node) <= at.line(held)]


def _seen_again(value: Any, held: cst.Name) -> cst.Name | None:
    """Return ``x`` at the root of what ``x`` is given: ``x = x.transpose(0, 1).reshape(n, -1)``."""
    if not isinstance(value, cst.Call):
        return None
    while isinstance(value, cst.Call) and isinstance(value.func, cst.Attribute):
        method = value.func.attr.value
        if method not in EXPORTS["torch.Tensor"] or method.endswith("_"):
            return None
        value = value.func.value
    return value if isinstance(value, cst.Name) and value.value == held.value else None


def _ways(value: cst.BaseExpression) -> list[cst.BaseExpression]:
    """Return what a value may be: ``x.cuda() if y.is_cuda else x`` is one of two."""
    if not isinstance(value, cst.IfExp):
        return [value]
    return [*_ways(value.body), *_ways(value.orelse)]


def _moved(node: cst.BaseExpression) -> str:
    """Return ``x`` of ``x.cuda()``, which is ``x`` or has no other holder; "" for others."""
    if not isinstance(node, cst.Call) or not isinstance(node.func, cst.Attribute):
        return ""
    of = node.func.value
    return of.value if node.func.attr.value in _MOVES and isinstance(of, cst.Name) else ""


_MOVES = frozenset({"cuda", "cpu", "npu", "to"})

_TYPES = frozenset({"double", "float", "half", "long", "type"})
"""Of another type or device the tensor is another one: of the same it is the tensor itself."""


def _is_given_back(node: cst.Name, at: At) -> bool:
    """Return whether a function ends where a name is used: nothing is changed after that."""
    return any(isinstance(above, cst.Return) for above in at.names.ancestors(node))


def _made_before(held: cst.Name, bindings: Sequence[Binding], at: At) -> int:
    """Return the line in which the tensor that a name holds here was surely made anew, or 0.

    Each time that this place comes, that line came before it in the same turn of the same loop:
    what is done with the name behind this place is done with what stands here then.
    """
    around = list(at.names.ancestors(held))
    blocks = [one for one in around if isinstance(one, (cst.IndentedBlock, cst.Module))]
    lines = [0]
    for binding in bindings:
        line = at.names.statement(binding.node)
        block = at.names.parents.get(line)
        is_plain = isinstance(binding.node, (cst.Assign, cst.AnnAssign))
        if not is_plain or not any(block is one for one in blocks) or block is None:
            continue
        inside = around[: next(i for i, one in enumerate(around) if one is block)]
        looped = any(isinstance(one, (cst.For, cst.While)) for one in inside)
        if not looped and at.line(line) < at.line(held):
            lines.append(at.line(line))
    return max(lines)


def _uses(held: cst.Name, scope: Any, at: At) -> Iterator[cst.Name]:
    for node in at.names.parents:
        if (
            isinstance(node, cst.Name)
            and node.value == held.value
            and at.names.scope(node) is scope
        ):
            yield node


def _hands_on(node: cst.Name, at: At) -> bool:
    """Return whether this use gives the tensor another holder."""
    parent = at.names.parents.get(node)
    if isinstance(parent, cst.Element):
        whole = at.names.parents[parent]
        return not isinstance(at.names.parents.get(whole), (cst.Return, cst.AssignTarget))
    if isinstance(parent, (cst.Assign, cst.DictElement, cst.Yield, cst.Lambda)):
        return True
    if isinstance(parent, cst.Arg):
        call = at.names.parents.get(parent)
        func = getattr(call, "func", None)
        last = func.attr.value if isinstance(func, cst.Attribute) else ""
        return last in ("append", "extend", "insert", "add", "setdefault", "put")
    if isinstance(parent, cst.Attribute) and parent.value is node:
        if _is_changed_through(parent, at):
            return False
        return parent.attr.value in (VIEWS | {"view", "data", "T", "detach", "t", "contiguous"})
    if not isinstance(parent, cst.Subscript) or parent.value is not node:
        return False
    return not _is_copied(parent, at) and not _is_written(parent, at)


def _is_copied(part: cst.Subscript, at: At) -> bool:
    """Return whether an index takes copies, as tensors and masks do: ``x[torch.arange(n), y]``."""
    indexes = [getattr(one.slice, "value", None) for one in part.slice]
    if any(isinstance(index, (cst.List, cst.Comparison)) for index in indexes):
        return True
    called = [at.names.called(index) or "" for index in indexes if isinstance(index, cst.Call)]
    return any(name.startswith("torch.") for name in called)


def _is_written(part: cst.Subscript, at: At) -> bool:
    """Return whether a part is given a value, or goes into arithmetic: nothing holds it then."""
    parent = at.names.parents.get(part)
    if isinstance(parent, cst.AugAssign):
        return parent.target is part
    arithmetic = (cst.BinaryOperation, cst.UnaryOperation, cst.Comparison, cst.ComparisonTarget)
    return isinstance(parent, (cst.AssignTarget, *arithmetic))


def _is_changed_through(parent: cst.Attribute, at: At) -> bool:
    """Return whether this is ``x.view`` of a line ``x.view(-1).add_(...)``: nothing keeps it."""
    view: Any = at.names.parents.get(parent)
    method: Any = at.names.parents.get(view) if viewed(view) is not None else None
    call = at.names.parents.get(method) if isinstance(method, cst.Attribute) else None
    if not isinstance(call, cst.Call) or call.func is not method:
        return False
    is_line = isinstance(at.names.parents.get(call), cst.Expr)
    name: str = method.attr.value  # type: ignore[attr-defined]  # an Attribute: its call was found
    return is_line and name.endswith("_")


def is_rebound(call: cst.Call, held: cst.Name, at: At) -> bool:
    """Return whether the name is assigned or left by the statement anyway."""
    parent = at.names.parents.get(call)
    if isinstance(parent, cst.Return):
        return True
    if isinstance(parent, cst.Assign) and len(parent.targets) == 1:
        return code_of(parent.targets[0].target) == held.value
    return False

"""Tensors that a name was given out of what outlives its function.

``buf = self.state[p]["buf"]; buf *= 0.9`` changes what the state holds, and so does
``for p in group["params"]: p -= lr * p.grad``, or ``total = self.total; total += x``. Nothing else
has to be read in that function.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.children import below
from mpcore_port.mindspore.rules.changes.methods_in_place import VIEWS
from mpcore_port.mindspore.rules.optimizers.own_optimizers import in_own_step
from mpcore_port.names import code_of, string_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from mpcore_port.names import Binding
    from mpcore_port.rule import At

__all__ = ["kept_afar"]

_DEPTH = 8
_SEEN = VIEWS | {"T", "data", "detach", "mT", "view"}
"""Methods and attributes that show the same tensor."""
_ASKED = frozenset(
    {"data", "detach", "dim", "grad", "grad_fn", "is_leaf", "numel", "requires_grad"}
)
"""What only tensors are asked for."""
_PAIRS = ("enumerate", "items", "list", "reversed", "sorted", "tqdm", "values", "zip")
_NUMBERS = frozenset(
    """
    alpha amsgrad beta beta1 beta2 betas count dampening decay epoch eps k lr lr_scale max_grad_norm
    momentum n nesterov num_steps rho step steps t warmup weight_decay
    """.split()  # noqa: SIM905  # a list of words is read
)
"""Entries that hold numbers in the groups and states of torch's optimizers and of their kin."""


def kept_afar(target: Any, place: cst.CSTNode, at: At) -> Any:
    """Return what holds the tensor of a name beyond its function, as a node; None if nothing."""
    if not isinstance(target, cst.Name):
        return None
    given = _alive(target, place, at)
    for binding in given:
        holder = _of_binding(binding, at, _DEPTH)
        if holder is None:
            continue
        of_a_state = in_own_step(place, at) and not _is_field(holder)
        if of_a_state or _is_tensors(holder, place, at):
            return holder
    return None


def _alive(name: cst.Name, place: cst.CSTNode, at: At) -> list[Binding]:
    """Return what may have given a name its value where it is changed."""
    given = at.names.given(name)
    around = list(at.names.ancestors(place))
    sure = [
        one
        for one in given
        if at.line(one.node) < at.line(place)
        and at.names.parents.get(at.names.statement(one.node)) in around
    ]
    if not sure:
        return given
    last = max(at.line(one.node) for one in sure)
    return [one for one in given if at.line(one.node) >= last and one.node is not place]


def _of_binding(binding: Binding, at: At, depth: int) -> Any:
    if binding.kind == "value":
        return _holder(binding.value, at, depth - 1)
    if isinstance(binding.node, (cst.For, cst.CompFor)):
        return _iterated(binding.node.iter, at, depth - 1)
    return None


def _holder(value: Any, at: At, depth: int) -> Any:
    """Return what holds the tensor that an expression gives: an entry of what lives on."""
    if depth <= 0 or value is None:
        return None
    if isinstance(value, cst.IfExp):
        return _holder(value.body, at, depth - 1) or _holder(value.orelse, at, depth - 1)
    if isinstance(value, cst.Subscript):
        return value if _is_entry(value) and _lives_on(value.value, at, depth - 1) else None
    if isinstance(value, cst.Attribute):
        if value.attr.value in _SEEN:
            return _holder(value.value, at, depth - 1)
        is_kept = value.attr.value == "grad" or _lives_on(value.value, at, depth - 1)
        return value if is_kept else None
    if isinstance(value, cst.Call) and isinstance(value.func, cst.Attribute):
        word = value.func.attr.value
        if word in ("get", "setdefault") and value.args:
            return value if _lives_on(value.func.value, at, depth - 1) else None
        if word in _SEEN and at.names.called(value) is None:
            return _holder(value.func.value, at, depth - 1)
        return None
    if isinstance(value, cst.Name):
        found = (_of_binding(one, at, depth - 1) for one in at.names.given(value))
        return _first(found)
    return None


def _is_field(holder: Any) -> bool:
    """Return whether this is an attribute, which holds a number as often as a tensor."""
    return isinstance(holder, cst.Attribute) and holder.attr.value != "grad"


def _first(found: Iterable[Any]) -> Any:
    return next((one for one in found if one is not None), None)


def _iterated(iterated: Any, at: At, depth: int) -> Any:
    """Return the list of parameters, or of a state's entries, that a loop goes over."""
    if depth <= 0:
        return None
    if isinstance(iterated, cst.Call):
        word = code_of(iterated.func).rpartition(".")[2]
        if word not in _PAIRS:
            return None
        inner = [arg.value for arg in iterated.args]
        if not inner and isinstance(iterated.func, cst.Attribute):
            inner = [iterated.func.value]
            if iterated.func.attr.value in ("items", "values") and _is_entry_of(
                inner[0], at, depth
            ):
                return inner[0]
        found = (_iterated(one, at, depth - 1) for one in inner)
        return _first(found)
    if isinstance(iterated, cst.Subscript) and _is_entry(iterated):
        return iterated if _lives_on(iterated.value, at, depth - 1) else None
    if isinstance(iterated, cst.Name):
        if any(one.kind == "param" for one in at.names.given(iterated)):
            return iterated
        found = (_holder(one, at, depth - 1) for one in _collected(iterated, at))
        return _first(found)
    return None


def _is_entry_of(held: Any, at: At, depth: int) -> bool:
    """Return whether this is a dictionary out of a state: ``self.state[p]``, or a name for it."""
    values = [held]
    if isinstance(held, cst.Name):
        values = [one.value for one in at.names.given(held) if one.kind == "value"]
    return any(isinstance(one, cst.Subscript) and _lives_on(one, at, depth) for one in values)


def _collected(name: cst.Name, at: At) -> Iterator[Any]:
    """Give what a local list is made of: ``ps.append(p)``, ``[p for p in group["params"]]``."""
    for one in at.names.given(name):
        if isinstance(one.value, cst.ListComp):
            yield one.value.elt
        elif isinstance(one.value, cst.List):
            yield from (element.value for element in one.value.elements)
    for call in at.names.calls:
        func = call.func
        if not isinstance(func, cst.Attribute) or func.attr.value != "append" or not call.args:
            continue
        held = func.value
        same = isinstance(held, cst.Name) and held.value == name.value
        if same and at.names.scope(held) is at.names.scope(name):
            yield call.args[0].value


def _is_entry(node: cst.Subscript) -> bool:
    """Return whether an index is a key, and none of a number's: ``state["exp_avg"]``."""
    if len(node.slice) != 1 or not isinstance(node.slice[0].slice, cst.Index):
        return False
    index = node.slice[0].slice.value
    word = string_of(index)
    if word is not None:
        return word not in _NUMBERS
    return isinstance(index, (cst.Name, cst.Attribute))


def _lives_on(node: Any, at: At, depth: int) -> bool:
    """Return whether what entries are taken of is there when its function has ended."""
    if depth <= 0:
        return False
    while isinstance(node, (cst.Subscript, cst.Attribute)):
        node = node.value
    if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
        return _lives_on(node.func.value, at, depth - 1)
    if not isinstance(node, cst.Name):
        return False
    found = at.names.given(node)
    own = at.names.scope(node).bindings.get(node.value)
    if node.value == "self" or (found and not own and at.names.scope(node).kind != "module"):
        return True  # of the object, or of what is around the function
    for one in found:
        if one.kind == "param" or isinstance(one.node, (cst.For, cst.CompFor)):
            return True
        if one.kind == "value" and isinstance(one.value, (cst.Subscript, cst.Attribute, cst.Name)):
            return _lives_on(one.value, at, depth - 1)
    return False


def _is_tensors(holder: Any, place: cst.CSTNode, at: At) -> bool:
    """Return whether what is changed is a tensor, as far as a file says it."""
    target: Any = place.target  # type: ignore[attr-defined]  # a change's
    scope = at.names.scope(target)

    def is_same(node: Any) -> bool:
        named = isinstance(node, cst.Name) and node.value == target.value
        return named and at.names.scope(node) is scope

    added = [one.value for one in at.names.by_type[cst.AugAssign] if is_same(one.target)]
    if "tensor" in map(at.values.kind, (target, *added)):
        return True
    asked = [one for value in added for one in below(value)]
    asked += [one for one in at.names.by_type[cst.Attribute] if is_same(one.value)]
    if any(isinstance(one, cst.Attribute) and one.attr.value in _ASKED for one in asked):
        return True
    return any(at.values.kind(one) == "tensor" for one in _entries(holder, at))


def _entries(holder: Any, at: At) -> Iterator[Any]:
    """Give what the file puts where this entry is, by the last key, or an attribute's name."""
    if isinstance(holder, cst.Attribute):
        for node in at.names.by_type[cst.Assign]:
            fields = (one.target for one in node.targets if isinstance(one.target, cst.Attribute))
            if any(field.attr.value == holder.attr.value for field in fields):
                yield node.value
    word = code_of(holder.slice[0]) if isinstance(holder, cst.Subscript) else ""
    for node in at.names.by_type[cst.Assign]:
        for one in node.targets:
            target = one.target
            if isinstance(target, cst.Subscript) and code_of(target.slice[0]) == word:
                yield node.value
    for node in at.names.by_type[cst.DictElement]:
        if code_of(node.key) == word:
            yield node.value

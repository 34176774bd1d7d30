"""Methods that change a tensor in place: where nothing else sees it, and where a tensor holds it.

MindSpore's change nothing in eager mode on CPU. On a value that was just made the plain method
does the same; a local name is assigned anew; Parameters, ``.data`` and gradients are assigned to.
All else is refused: another name may hold the same tensor.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.mindspore.calls import Refused, map_call
from mpcore_port.mindspore.rules.afar import Graded, is_without, records
from mpcore_port.mindspore.rules.kept_names import SETTINGS, is_kept_name
from mpcore_port.mindspore.rules.names_in import read
from mpcore_port.mindspore.rules.own_optimizers import in_own_step, is_step_value
from mpcore_port.mindspore.rules.place import PortRule, named, wording
from mpcore_port.mindspore.rules.states import is_live_entry, is_live_name
from mpcore_port.mindspore.tables import table
from mpcore_port.names import code_of, dotted
from mpcore_port.torch_names import EXPORTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from mpcore_port.names import Binding
    from mpcore_port.rule import At

__all__ = [
    "VIEWS",
    "AloneRule",
    "BehindRule",
    "DataRule",
    "KeptDataRule",
    "in_place",
    "is_alone",
    "is_behind_a_pass",
    "is_made_tensor",
    "is_place",
    "is_ungraded",
    "operator_of",
    "records_a_pass",
]

_MADE = {
    "addmm_": "port.addmm({self}, {0}, {1}, {2}, {3})",
    "copy_": "{0}",  # MindSpore's own takes no part of another tensor on CPU
    "zero_": "ops.zeros_like({self})",
    "fill_": "ops.full_like({self}, {0})",
    "fill_diagonal_": "port.fill_diagonal({self}, {0}, {1})",
    "index_fill_": "port.index_fill({self}, {0}, {1}, {2})",
    "normal_": "ops.randn_like({self}) * {1} + {0}",
    "uniform_": "ops.rand_like({self}) * ({1} - {0}) + {0}",
}
_TAKES = {
    "addmm_": (("mat1", ""), ("mat2", ""), ("beta", "1"), ("alpha", "1")),
    "copy_": (("other", ""), ("non_blocking", "False")),
    "fill_": (("value", ""),),
    "fill_diagonal_": (("fill_value", ""), ("wrap", "False")),
    "index_fill_": (("dim", ""), ("index", ""), ("value", "")),
    "normal_": (("mean", "0.0"), ("std", "1.0")),
    "uniform_": (("from", "0.0"), ("to", "1.0")),
    "zero_": (),
}
_PLAIN = frozenset(
    """
    abs add addcdiv addcmul ceil clamp clip cos div erfinv exp floor index_add lerp log masked_fill
    mul neg pow
    reciprocal relu round rsqrt scatter_add sigmoid sin sqrt square sub tanh tril triu trunc
    """.split()  # noqa: SIM905  # a list of words is read
)
_SHAPES = frozenset({"detach", "squeeze", "transpose", "unsqueeze"})
"""Methods that change more than a Parameter's values: a name is assigned anew, or nothing."""
_FRESH = _PLAIN | frozenset(
    """
    clone matmul mm bmm sum mean softmax log_softmax cumsum square log1p expm1 erf tril triu
    where masked_select index_select gather scatter repeat std var norm max min new new_zeros
    new_ones new_full new_empty new_tensor ne eq gt lt ge le logical_not logical_and logical_or
    argmax argmin argsort cumprod flip isnan logsumexp outer prod roll
    """.split()  # noqa: SIM905
)
VIEWS = frozenset(
    """
    as_tensor from_numpy reshape flatten squeeze unsqueeze transpose permute narrow split
    chunk unbind diagonal movedim swapaxes broadcast_to atleast_1d real view_as_real
    """.split()  # noqa: SIM905  # a list of words is read
)
_NO_PARTS = VIEWS | {"T", "data", "grad", "H", "mT", "imag", "shape"}
"""Attributes of tensors: what changes these is no change of what an object holds by a name."""
_LEAF = re.compile(r"\.(weight|bias|running_mean|running_var|n_averaged)$")


def plain_call(name: str, old: cst.Call, new: cst.Call, receiver: Any, at: At) -> Any:
    """Return the same without changing anything, or None where there is no such code."""
    if name in _MADE:
        return _made(name, old, new, receiver, at)
    if name[:-1] not in _PLAIN | _SHAPES:
        return None
    func = cst.Attribute(receiver, cst.Name(name[:-1]))
    call = new.with_changes(func=func)
    row = table("methods").get(f"Tensor.{name[:-1]}")
    if row is None:
        return call
    try:
        return map_call(named(at, row), call, receiver)
    except Refused:
        return None


def _made(name: str, old: cst.Call, new: cst.Call, receiver: Any, at: At) -> Any:
    takes = _TAKES[name]
    given: dict[str, str] = {}
    for place, (before, arg) in enumerate(zip(old.args, new.args, strict=True)):
        if before.star or (before.keyword is None and place >= len(takes)):
            return None
        key = before.keyword.value if before.keyword else takes[place][0]
        given[key] = code_of(arg.value)
    if not set(given) <= {key for key, _ in takes}:
        return None
    values = [given.get(key, default) for key, default in takes]
    if not all(values):
        return None
    shown = [value if value.replace(".", "").isalnum() else f"({value})" for value in values]
    text = _MADE[name].replace("{self}", code_of(receiver))
    for place, value in enumerate(shown):
        text = text.replace(f"{{{place}}}", value)
    return cst.parse_expression(wording(at, text))


def in_place(rule: Any, old: cst.Call, new: cst.Call, at: At) -> Any:
    """Return what stands for a method that changes its tensor; None where that is not sure."""
    held, fresh = old.func.value, new.func.value  # type: ignore[attr-defined]
    name = old.func.attr.value  # type: ignore[attr-defined]
    if name != "copy_" and _is_fresh(held, at):
        made = plain_call(name, old, new, fresh, at)
        return _noted(rule, old, made, at, "what it changes is made there, nothing else sees it")
    if in_own_step(old, at) and is_step_value(held, at) and name[:-1] not in _SHAPES:
        return _put(rule, old, new, fresh, at)
    target = _assigned_to(held, fresh, at)
    if target is not None:
        if name == "detach_":
            return _left_untrained(rule, old, fresh, at)
        if name[:-1] in _SHAPES:
            return None
        return _put(rule, old, new, target, at)
    if _is_part(held, at) and isinstance(at.names.parents.get(old), cst.Expr):
        value = plain_call(name, old, new, fresh, at)
        if value is None:
            return None
        return _noted(rule, old, cst.NamedExpr(fresh, value), at, "its part is assigned to")
    if _is_entry(held, at) and _is_a_line(old, at):
        value = plain_call(name, old, new, fresh, at)
        made = value and cst.NamedExpr(fresh, value)
        return _noted(rule, old, made, at, _PERHAPS.format(code_of(held)), sure=False)
    if _is_handed(held, at) and (name in _RANDOM or is_ungraded(old, at)):
        return _put(rule, old, new, fresh, at)
    kept = _is_attribute(held) or (_is_chained(held) and _is_put(fresh, at))
    if kept and _is_said_alone(old, at) and _gives_values(name, old, at):
        sure = not _is_viewed(held, at)
        return _put(rule, old, new, fresh, at, "" if sure else _VIEWED.format(code_of(held)))
    if root := _view_of(held, at):
        if _is_a_line(old, at):
            return _written(rule, old, new, at)
        made = plain_call(name, old, new, fresh, at)
        return _noted(rule, old, made, at, _KEEPS.format(root), sure=False)
    made = _through_view(name, old, new, at)
    if made is not None:
        return _noted(rule, old, made, at, "no other name holds it: it is made anew")
    if name == "copy_":
        return _written(rule, old, new, at)
    if _is_perhaps_fresh(held, at) and not (_is_moved(held) and _is_a_line(old, at)):
        made = plain_call(name, old, new, fresh, at)
        return _noted(rule, old, made, at, _PERHAPS.format(code_of(held)), sure=False)
    if isinstance(fresh, cst.NamedExpr) and _root(held) == code_of(fresh.target):
        # x.sub_(y).div_(z): x was made anew by the first of them
        value = plain_call(name, old, new, fresh.value, at)
        if value is None:
            return None
        made = fresh.with_changes(value=value)
        return _noted(rule, old, made, at, "no other name holds it: it is made anew")
    if isinstance(held, cst.Name):
        sure = is_alone(held, at)
        if not sure and not is_alone(held, at, _is_perhaps_fresh):
            return _written(rule, old, new, at)
        value = plain_call(name, old, new, fresh, at)
        if value is None:
            return None
        if not _is_rebound(old, held, at):
            pair = [cst.LeftParen()], [cst.RightParen()]
            value = cst.NamedExpr(cst.Name(held.value), value, lpar=pair[0], rpar=pair[1])
        why = "no other name holds it: it is made anew" if sure else _PERHAPS.format(held.value)
        return _noted(rule, old, value, at, why, sure=sure)
    return _written(rule, old, new, at)


def _written(rule: Any, old: cst.Call, new: cst.Call, at: At) -> Any:
    """Write the values into the tensor itself, which all see that hold it, or a view of it."""
    held, fresh = old.func.value, new.func.value  # type: ignore[attr-defined]
    name = old.func.attr.value  # type: ignore[attr-defined]
    chain = held
    while _is_chained(chain):
        chain = chain.func.value
    part = chain.value if isinstance(chain, cst.Subscript) else chain
    root = dotted(part).partition(".")[0] or _view_of(chain, at)
    bound = root and at.names.scope(old).find(root)
    if name[:-1] in _SHAPES or not bound:
        return None
    if records_a_pass(old, chain, [arg.value for arg in old.args], at):
        return None
    target, before = _write_before(fresh, at)
    value = plain_call(name, old, new, before, at)
    if value is None:
        return None
    made = wording(at, f"port.written({code_of(target)}, {code_of(value)})")
    return _noted(rule, old, cst.parse_expression(made), at, _IN_IT)


def _write_before(target: Any, at: At) -> tuple[Any, Any]:
    """Return what is written to, and its value: ``x.mul_(a).add_(b)`` writes once for both."""
    if isinstance(target, cst.Call) and code_of(target.func) == wording(at, "port.written"):
        return target.args[0].value, target.args[1].value
    return target, target


_IN_IT = "its values are written where all that hold it see them"


def _left_untrained(rule: Any, old: cst.Call, fresh: Any, at: At) -> Any:
    """Write ``param.detach_()``: a Parameter wants no gradient then; of a gradient nothing."""
    held = old.func.value  # type: ignore[attr-defined]
    if isinstance(held, cst.Attribute) and held.attr.value == "data":
        return None
    if isinstance(held, cst.Attribute) and held.attr.value == "grad":
        return _noted(rule, old, fresh, at, "gradients hang on nothing in MindSpore")
    made = cst.parse_expression(wording(at, f"port.requires_grad_({code_of(fresh)}, False)"))
    return _noted(rule, old, made, at, "a Parameter that is detached in place wants no gradient")


_PERHAPS = (
    "{} is made anew: nobody looked whether what gave it holds it too, and is changed in torch"
)


_VIEWED = "a view of {} may be held, and is changed in torch"
_KEEPS = "{} keeps its values here; in torch they change with those of this part"


def _is_said_alone(node: cst.CSTNode, at: At) -> bool:
    """Return whether nobody asks what an expression gives: a line, or one of ``a.x_(), b.x_()``."""
    if isinstance(node, cst.Call) and _is_a_line(node, at):
        return True
    above = at.names.parents.get(node)
    if isinstance(above, cst.Element):
        above = at.names.parents.get(at.names.parents[above])
    return isinstance(above, cst.Expr)


def _gives_values(name: str, call: cst.Call, at: At) -> bool:
    """Return whether a method in place leaves no gradient behind: numbers, or outside of passes."""
    if name in _ANEW:
        return True
    if name[:-1] not in _PLAIN:
        return False
    home = at.names.enclosing(call, cst.FunctionDef)
    if any(is_without(one, at) for one in at.names.ancestors(call)):
        return True
    passes = home is None or home.name.value in ("forward", "__call__", "construct")
    given = {word for arg in call.args for word in read(arg.value)}
    return not passes and not given & at.once(Graded).before(call)


def _is_attribute(node: Any) -> bool:
    """Return whether an object holds this by a name: ``net.scale``, ``of(net).scale``, no view."""
    return isinstance(node, cst.Attribute) and node.attr.value not in _NO_PARTS


def _is_viewed(held: Any, at: At) -> bool:
    """Return whether a part of an attribute gets a name of its own somewhere."""
    text = code_of(held)
    for node in at.names.by_type[cst.Attribute]:
        parent = at.names.parents.get(node)
        if code_of(node) != text:
            continue
        if isinstance(parent, cst.Attribute) and parent.attr.value in VIEWS | {"view", "data"}:
            method = at.names.parents.get(parent)
            in_place = isinstance(method, cst.Attribute) and method.attr.value.endswith("_")
            if not in_place:
                return True
        if isinstance(parent, cst.Subscript) and parent.value is node:
            above = at.names.parents.get(parent)
            if isinstance(above, (cst.Assign, cst.Return)):
                return True
    return False


def _view_of(node: Any, at: At) -> str:
    """Return the name that ``torch.diagonal(c)``, or a chain of methods in place on it, is of."""
    while isinstance(node, cst.Call) and _is_chained(node):
        node = node.func.value  # type: ignore[attr-defined]
    if not isinstance(node, cst.Call):
        return ""
    called = at.names.called(node)
    last = (called or code_of(node.func)).rpartition(".")[2]
    if last not in VIEWS:
        return ""
    held = node.func.value if called is None and isinstance(node.func, cst.Attribute) else None
    if called is not None and called.startswith("torch.") and node.args:
        held = node.args[0].value
    return held.value if isinstance(held, cst.Name) else ""


def _is_a_line(call: cst.Call, at: At) -> bool:
    """Return whether a chain of methods in place is a statement: what it changes is meant."""
    node: Any = call
    for above in at.names.ancestors(call):
        if isinstance(above, cst.Expr):
            return True
        chained = isinstance(above, cst.Attribute) and above.attr.value.endswith("_")
        if not (chained or (isinstance(above, cst.Call) and above.func is node)):
            return False
        node = above
    return False


def _put(rule: Any, old: cst.Call, new: cst.Call, target: Any, at: At, doubt: str = "") -> Any:
    """Give a tensor the values of its method in place; None where these are not known."""
    target, before = _put_before(target, at)
    value = plain_call(old.func.attr.value, old, new, before, at)  # type: ignore[attr-defined]
    if value is None:
        return None
    made = cst.parse_expression(wording(at, f"port.put({code_of(target)}, {code_of(value)})"))
    return _noted(rule, old, made, at, doubt or "its values are assigned to", sure=not doubt)


def _put_before(target: Any, at: At) -> tuple[Any, Any]:
    """Return what is assigned to, and its value: ``p.mul_(a).add_(b)`` assigns once for both."""
    if _is_put(target, at):
        return target.args[0].value, target.args[1].value
    return target, target


def _is_put(node: Any, at: At) -> bool:
    return isinstance(node, cst.Call) and code_of(node.func) == wording(at, "port.put")


_SAME_NUMBERS = ("view", "reshape", "flatten")


def _viewed(node: Any) -> Any:
    """Return ``x`` of ``x.view(...)``, whose elements all are those of x, in their order."""
    if not isinstance(node, cst.Call) or not isinstance(node.func, cst.Attribute):
        return None
    name = node.func.value
    return name if node.func.attr.value in _SAME_NUMBERS and isinstance(name, cst.Name) else None


def _through_view(name: str, old: cst.Call, new: cst.Call, at: At) -> Any:
    """Return ``x = ...`` for ``x.view(-1).add_(...)`` on a line, where nothing else holds x."""
    held, fresh = old.func.value, new.func.value  # type: ignore[attr-defined]
    inner = _viewed(held)
    if inner is None or name == "copy_" or not isinstance(at.names.parents.get(old), cst.Expr):
        return None
    if not is_made_tensor(inner, at) or not is_alone(inner, at):
        return None
    value = plain_call(name, old, new, fresh, at)
    if value is None:
        return None
    text = f"({code_of(value)}).reshape({inner.value}.shape)"
    if isinstance(value, cst.Call):
        text = f"{code_of(value)}.reshape({inner.value}.shape)"
    return cst.NamedExpr(cst.Name(inner.value), cst.parse_expression(text))


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
        and _is_fresh(binding.value, at)
        for binding in found
    )


def _is_new(call: cst.Call) -> bool:
    """Return whether a call is ``x.new_zeros(n)``: no array and no list has such a method."""
    return isinstance(call.func, cst.Attribute) and call.func.attr.value.startswith("new_")


def _noted(rule: Any, old: cst.Call, made: Any, at: At, reason: str, *, sure: bool = True) -> Any:
    if made is None:
        return None
    if not sure:
        at.unproven(rule, old, reason, made)
    random = old.func.attr.value in ("normal_", "uniform_")  # type: ignore[attr-defined]
    kind, effect = ("changed", "other random numbers") if random else ("exact", "")
    if sure:
        at.note(rule, old, made, kind, reason, effect)  # type: ignore[arg-type]
    if isinstance(made, (cst.BinaryOperation, cst.UnaryOperation)):
        made = made.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    return made


def _is_part(node: Any, at: At) -> bool:
    """Return whether ``x[:, i]`` is meant: a view in torch, and a tensor's part, no list's.

    What a mask or a list of places takes out is a copy in torch: it changes nothing there.
    """
    if not isinstance(node, cst.Subscript) or not dotted(node.value):
        return False
    indices: list[Any] = [element.slice for element in node.slice]
    ranges = [isinstance(index, cst.Slice) for index in indices]
    return (any(ranges) or is_made_tensor(node.value, at)) and all(
        is_range or is_place(index.value, at)
        for is_range, index in zip(ranges, indices, strict=True)
    )


def is_place(node: Any, at: At) -> bool:
    """Return whether an index surely is a whole number, or ``...``."""
    if isinstance(node, cst.UnaryOperation):
        node = node.expression
    if isinstance(node, (cst.Integer, cst.Ellipsis)):
        return True
    if not isinstance(node, cst.Name):
        return False
    found = at.names.scope(node).find(node.value)
    loops = [b.value for b in found if b.kind == "for" and isinstance(b.value, cst.Call)]
    return bool(found) and len(loops) == len(found) == sum(
        code_of(call.func) == "range" for call in loops
    )


def _is_entry(node: Any, at: At) -> bool:
    """Return whether this is ``x["a"]``, or ``x[k]`` in a loop over the keys of ``x``."""
    if not isinstance(node, cst.Subscript) or not dotted(node.value) or len(node.slice) != 1:
        return False
    key = getattr(node.slice[0].slice, "value", None)
    if isinstance(key, cst.SimpleString):
        return True
    found = at.names.scope(node).find(key.value) if isinstance(key, cst.Name) else []
    over = [code_of(one.node.iter) for one in found if isinstance(one.node, cst.For)]
    keys = {code_of(node.value) + end for end in ("", ".keys()", ".items()")}
    return bool(over) and len(over) == len(found) and keys.issuperset(over)


_OF_VALUES = re.compile(r"^[\w.]+\.(values|items)\(\)$")


def _is_one_of_values(node: Any, at: At) -> bool:
    """Return whether a name is given by loops over the values of dictionaries alone."""
    found = at.names.scope(node).find(node.value) if isinstance(node, cst.Name) else []
    loops = [one.node for one in found if isinstance(one.node, cst.For)]
    return (
        bool(loops)
        and len(loops) == len(found)
        and all(
            _OF_VALUES.match(code_of(loop.iter)) is not None
            and code_of(loop.target).rpartition(" ")[2].strip("()") == node.value
            for loop in loops
        )
    )


def _is_handed(node: Any, at: At) -> bool:
    """Return whether this is what a function was called with, or a chain in place on it."""
    while _is_chained(node):
        node = node.func.value
    found = at.names.scope(node).find(node.value) if isinstance(node, cst.Name) else []
    return bool(found) and all(isinstance(one.node, cst.Param) for one in found)


def is_ungraded(node: cst.CSTNode, at: At) -> bool:
    """Return whether no gradients are recorded where a node stands."""
    above = at.names.ancestors(node)
    home = at.names.enclosing(node, cst.FunctionDef)
    return not records(home, at) or any(is_without(one, at) for one in above)


def records_a_pass(node: Any, changed: Any, values: Iterable[Any], at: At) -> bool:
    """Return whether gradients may go through what a node changes, or its pass is yet to come."""
    if is_ungraded(node, at):
        return False
    home = at.names.enclosing(node, cst.FunctionDef)
    if home is not None and home.name.value in ("forward", "__call__", "construct"):
        return True
    graded = at.once(Graded)
    if {code_of(changed), *read(changed)} & graded.before(node):
        return True
    if any(graded.of_value(value) for value in values):
        return True
    return not is_behind_a_pass(node, at) and any(
        at.names.enclosing(call, cst.FunctionDef) is home for call in at.names.callers("backward")
    )


def is_behind_a_pass(node: cst.CSTNode, at: At) -> bool:
    """Return whether nothing asks for gradients of what stands here: a backward pass is over."""
    home = at.names.enclosing(node, cst.FunctionDef)
    return is_ungraded(node, at) or any(
        isinstance(call.func, cst.Attribute)
        and at.names.enclosing(call, cst.FunctionDef) is home
        and at.line(call) < at.line(node)
        for call in at.names.callers("backward")
    )


_DEPTH = 12


def _is_fresh(node: cst.CSTNode, at: At, depth: int = _DEPTH) -> bool:
    """Return whether an expression makes a tensor that no name holds."""
    if isinstance(node, (cst.BinaryOperation, cst.UnaryOperation, cst.Comparison)):
        return True
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
    if name.endswith("_") and name[:-1] in _PLAIN | {n[:-1] for n in _MADE}:
        return _is_fresh(node.func.value, at, depth - 1)
    if name in _FRESH:
        return True
    # A view, or the same, of what no name holds.
    return name in EXPORTS["torch.Tensor"] and _is_fresh(node.func.value, at, depth - 1)


def _assigned_to(held: Any, fresh: Any, at: At) -> Any:
    """Return the Parameter, buffer or gradient that is changed, as code; None if it is none."""
    if isinstance(held, cst.Attribute) and held.attr.value == "data":
        inner = fresh.value if isinstance(fresh, cst.Attribute) else fresh
        plain = isinstance(inner, (cst.Name, cst.Attribute, cst.Subscript, cst.Call))
        return inner if plain else None
    if _is_detached(held):
        return _detached(fresh)
    if isinstance(held, cst.Attribute) and held.attr.value == "grad":
        return fresh
    if _is_chained(held) and _assigned_to(held.func.value, fresh, at) is not None:
        return fresh
    if isinstance(held, cst.Subscript) and _are_parameters(held.value, at):
        return fresh
    if is_live_name(held, at) or is_live_entry(held, at) or is_kept_name(held, at):
        return fresh
    if _LEAF.search(code_of(held)):
        return fresh
    if isinstance(held, cst.Name):
        found = at.names.scope(held).find(held.value)
        loops = [b.node for b in found if isinstance(b.node, (cst.For, cst.CompFor))]
        if loops and len(loops) == len(found):
            return fresh if all("param" in code_of(node.iter) for node in loops) else None
    return None


def _is_detached(held: Any) -> bool:
    """Return whether this is ``p.detach()``: what changes it changes ``p``, as by ``p.data``."""
    if not isinstance(held, cst.Call) or held.args or not isinstance(held.func, cst.Attribute):
        return False
    return held.func.attr.value == "detach" and bool(dotted(held.func.value))


def _detached(fresh: Any) -> Any:
    """Return ``p`` of ``p.detach()``, whose method has become a function by now."""
    if not isinstance(fresh, cst.Call):
        return fresh
    if code_of(fresh.func).endswith("stop_gradient") and len(fresh.args) == 1:
        return fresh.args[0].value
    return fresh.func.value if _is_detached(fresh) else fresh  # type: ignore[attr-defined]


def _is_chained(held: Any) -> bool:
    """Return whether this is ``p.mul_(a)``, on which the next method in place is called."""
    if not isinstance(held, cst.Call) or not isinstance(held.func, cst.Attribute):
        return False
    name = held.func.attr.value
    return name.endswith("_") and (name in _MADE or name[:-1] in _PLAIN)


_BY_NAME = re.compile(r"^(dict|(collections\.)?OrderedDict)\(\w[\w.]*\.named_parameters\(\)\)$")


def _are_parameters(node: Any, at: At) -> bool:
    """Return whether a name holds a network's Parameters by their names."""
    if not isinstance(node, cst.Name):
        return False
    found = at.names.scope(node).find(node.value)
    return bool(found) and all(
        binding.kind == "value"
        and binding.value is not None
        and _BY_NAME.match(code_of(binding.value)) is not None
        for binding in found
    )


def _is_perhaps_fresh(node: Any, at: At, depth: int = _DEPTH) -> bool:
    """Return whether a call gives a tensor that nobody knows a holder of: no method of tensors."""
    if _is_fresh(node, at, depth):
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
    if method.endswith("_") and method[:-1] in _PLAIN | _SHAPES:
        return _is_perhaps_fresh(node.func.value, at, depth - 1)
    if method in _MOVES | _TYPES:
        return at.names.called(node) is None and bool(node.args or method != "to")
    return _is_own_call(node, at) and method not in EXPORTS["torch.Tensor"]


def _is_moved(node: Any) -> bool:
    """Return whether a chain of methods in place is called on ``x.cuda()``, which may be ``x``."""
    while _is_chained(node):
        node = node.func.value
    return isinstance(node, cst.Call) and code_of(node.func).rpartition(".")[2] in _MOVES | _TYPES


def _is_own_call(call: cst.Call, at: At) -> bool:
    """Return whether a function is called that is none of torch's or numpy's: the script's own."""
    root = (at.names.called(call) or "").partition(".")[0]
    return not root.startswith(("torch", "numpy", "einops"))


def _is_perhaps_fresh_part(node: cst.Attribute, at: At, depth: int) -> bool:
    """Return whether this is a field of what a call gives, and nothing asks that for it again."""
    if node.attr.value in _NO_PARTS:
        return False
    holder = node.value
    if isinstance(holder, cst.Call):
        return at.names.called(holder) is None and _is_perhaps_fresh(holder, at, depth)
    if not isinstance(holder, cst.Name):
        return False
    scope = at.names.scope(holder)
    found = scope.bindings.get(holder.value, [])
    if len(found) != 1 or found[0].kind != "value" or not isinstance(found[0].value, cst.Call):
        return False
    uses = [one for one in _uses(holder, scope, at) if one is not holder]
    made = isinstance(at.names.parents.get(uses[0]), cst.AssignTarget) if len(uses) == 1 else False
    called = at.names.called(found[0].value) is None
    return made and called and _is_perhaps_fresh(found[0].value, at, depth)


def _is_pair(node: Any, at: At) -> bool:
    """Return whether a call gives several fresh tensors."""
    if not isinstance(node, cst.Call):
        return False
    last = code_of(node.func).rpartition(".")[2]
    known = (at.names.called(node) or "torch.").startswith("torch.")
    return known and last in ("max", "min", "sort", "topk", "kthvalue", "median", "mode")


def is_alone(held: cst.Name, at: At, fresh: Callable[[Any, At], bool] | None = None) -> bool:
    """Return whether a local name holds fresh tensors only, and hands them to no other name."""
    scope = at.names.scope(held)
    bindings = scope.bindings.get(held.value, [])
    if not bindings or scope.kind == "class":
        return False
    made = _made_before(held, bindings, at)
    here = at.line(held)
    if made:
        bindings = [one for one in bindings if made <= at.line(one.node) <= here]
    for binding in bindings:
        is_fresh = fresh or _is_fresh
        if binding.kind == "element" and fresh is None:
            is_fresh = _is_pair
        elif binding.kind not in ("value", "element"):
            return False
        if binding.value is None:
            return False
        own = held.value in (_root(binding.value), _moved(binding.value))
        if not own and not is_fresh(binding.value, at):
            return False
    uses = _uses(held, scope, at)
    return not any(
        _hands_on(node, at)
        and (not made or made < at.line(node) <= here)
        and not _is_given_back(node, at)
        for node in uses
    )


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


def _root(node: cst.BaseExpression) -> str:
    """Return the name or entry that a chain of methods in place begins with; "" for others."""
    changed = 0
    while isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
        if not node.func.attr.value.endswith("_"):
            return ""
        node, changed = node.func.value, changed + 1
    return code_of(node) if changed and isinstance(node, (cst.Name, cst.Subscript)) else ""


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
    return isinstance(parent, cst.Subscript) and parent.value is node


def _is_changed_through(parent: cst.Attribute, at: At) -> bool:
    """Return whether this is ``x.view`` of a line ``x.view(-1).add_(...)``: nothing keeps it."""
    view: Any = at.names.parents.get(parent)
    method: Any = at.names.parents.get(view) if _viewed(view) is not None else None
    call = at.names.parents.get(method) if isinstance(method, cst.Attribute) else None
    if not isinstance(call, cst.Call) or call.func is not method:
        return False
    is_line = isinstance(at.names.parents.get(call), cst.Expr)
    name: str = method.attr.value  # type: ignore[attr-defined]  # an Attribute: its call was found
    return is_line and name.endswith("_")


def _is_rebound(call: cst.Call, held: cst.Name, at: At) -> bool:
    """Return whether the name is assigned or left by the statement anyway."""
    parent = at.names.parents.get(call)
    if isinstance(parent, cst.Return):
        return True
    if isinstance(parent, cst.Assign) and len(parent.targets) == 1:
        return code_of(parent.targets[0].target) == held.value
    return False


_RANDOM = frozenset({"normal_", "uniform_"})
_ANEW = {"fill_": "full_like", "zero_": "zeros_like"}


class AloneRule(PortRule):
    """``label.fill_(1)`` on a line becomes an assignment before loops are looked at."""

    name = "in place"
    reason = "no other name holds it: it is made anew"
    visits = (cst.SimpleStatementLine,)

    def act(self, old: Any, new: Any, at: At) -> Any:
        """Rewrite one line; what comes of it is torch's still, and ported like the rest."""
        call = old.body[0].value if isinstance(old.body[0], cst.Expr) else None
        func = getattr(call, "func", None)
        if len(old.body) != 1 or not isinstance(func, cst.Attribute):
            return None
        held, method = func.value, func.attr.value
        if not isinstance(held, cst.Name) or at.names.called(call) is not None:
            return None
        if method not in _ANEW and method.removesuffix("_") not in _PLAIN:
            return None
        if not method.endswith("_") or not is_alone(held, at):
            return None
        made = new.body[0].value
        if method in _ANEW:
            torch = next((n for n, qualified in _modules(at) if qualified == "torch"), None)
            if torch is None:
                return None
            comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
            first = cst.Arg(held, comma=comma if made.args else cst.MaybeSentinel.DEFAULT)
            plain = cst.Attribute(cst.Name(torch), cst.Name(_ANEW[method]))
            made = made.with_changes(func=plain, args=[first, *made.args])
        else:
            made = made.with_changes(func=cst.Attribute(held, cst.Name(method[:-1])))
        line = cst.Assign([cst.AssignTarget(held)], made)
        at.note(self, old.body[0], line)
        return new.with_changes(body=[line])


class BehindRule(PortRule):
    """``for v in logs.values(): v.div_(n)`` behind the pass changes what the dictionary holds."""

    name = "behind the pass"
    reason = "the backward pass is over: what a dictionary holds is given values"
    visits = (cst.Call,)

    def act(self, old: cst.Call, new: cst.Call, at: At) -> Any:
        """Have the method change ``v.data``, which is torch's still, and ported like the rest."""
        func, method = old.func, new.func
        if not isinstance(func, cst.Attribute) or not isinstance(method, cst.Attribute):
            return None
        if func.attr.value.removesuffix("_") not in _PLAIN or not func.attr.value.endswith("_"):
            return None
        if not _is_one_of_values(func.value, at) or not is_behind_a_pass(old, at):
            return None
        data = cst.Attribute(method.value, cst.Name("data"))
        made = new.with_changes(func=method.with_changes(value=data))
        at.note(self, old, made)
        return made


def _modules(at: At) -> Iterator[tuple[str, str]]:
    for name, bindings in at.names.top.bindings.items():
        yield from ((name, b.qualified) for b in bindings if b.kind == "import")


_OWN = "in torch it is the network's own tensor"
_KEPT_BY = "in torch the tensor itself is changed, and something else holds it"


class DataRule(PortRule):
    """``param.data = value`` assigns values; a method in place that was rewritten, too."""

    name = "data"
    reason = "a Parameter is assigned its values"
    visits = (cst.SimpleStatementLine, cst.SimpleStatementSuite)

    def act(self, old: Any, new: Any, at: At) -> Any:
        """Rewrite the assignments of one line."""
        body, changed = [], False
        for before, small in zip(old.body, new.body, strict=False):
            made = self._small(before, small, at)
            changed = changed or made is not None
            body.append(small if made is None else made)
        return new.with_changes(body=body) if changed and len(old.body) == len(new.body) else None

    def _small(self, old: Any, new: Any, at: At) -> Any:
        if isinstance(new, cst.Expr) and isinstance(new.value, cst.NamedExpr):
            if isinstance(old.value, cst.NamedExpr):
                return None
            named: Any = new.value
            bare, target = named.value, named.target
            return cst.Assign([cst.AssignTarget(target)], bare, semicolon=new.semicolon)
        if isinstance(new, cst.Assign) and len(new.targets) == 1:
            target, operator = new.targets[0].target, ""
        elif isinstance(new, cst.AugAssign):
            target, operator = new.target, operator_of(new)
        else:
            return None
        live = operator and (is_live_name(old.target, at) or is_live_entry(old.target, at))
        if live or (operator and is_kept_name(old.target, at)):
            held, value = code_of(target), code_of(new.value)
            code = f"port.put({held}, {held} {operator} ({value}))"
            made = cst.parse_expression(wording(at, code))
            at.note(self, old, made, reason=_OWN if live else _KEPT_BY)
            return cst.Expr(made, semicolon=new.semicolon)
        if not isinstance(target, cst.Attribute) or target.attr.value != "data":
            return None
        holder = code_of(target.value)
        if holder == "self" or SETTINGS.search(holder):
            return None
        value = code_of(new.value)
        if operator:
            value = f"{holder} {operator} ({value})"
        made = cst.parse_expression(wording(at, f"port.set_data({holder}, {value})"))
        at.note(self, old, made)
        return cst.Expr(made, semicolon=new.semicolon)


class KeptDataRule(PortRule):
    """``backup[name] = param.data`` keeps the values where ``param.data = other`` comes later."""

    name = "kept data"
    reason = "`param.data = ...` gives torch's Parameter other memory, MindSpore's other values"
    visits = (cst.Attribute,)

    def act(self, old: cst.Attribute, new: cst.Attribute, at: At) -> Any:
        """Copy the values that are kept."""
        if old.attr.value != "data" or code_of(old.value) not in at.once(_given_data):
            return None
        if not _is_kept(old, at) or SETTINGS.search(code_of(old.value)):
            return None
        made = cst.Call(cst.Attribute(new, cst.Name("copy")))
        at.note(self, old, made, "changed", self.reason, _COPY)
        return made


_COPY = "a copy: what changes the Parameter in place later is not seen in it"


def _given_data(at: At) -> set[str]:
    """Return the names whose ``data`` is assigned somewhere in the file."""
    targets = (one.target for one in at.names.by_type[cst.AssignTarget])
    held = (one for one in targets if isinstance(one, cst.Attribute) and one.attr.value == "data")
    return {code_of(one.value) for one in held}


def _is_kept(node: cst.Attribute, at: At) -> bool:
    """Return whether a value gets a name or a place of its own, and is not assigned as data."""
    parent = at.names.parents.get(node)
    if isinstance(parent, cst.Assign):
        targets = [one.target for one in parent.targets]
        return not any(isinstance(t, cst.Attribute) and t.attr.value == "data" for t in targets)
    if isinstance(parent, cst.Arg):
        call = at.names.parents.get(parent)
        func = getattr(call, "func", None)
        return isinstance(func, cst.Attribute) and func.attr.value in ("append", "insert")
    return isinstance(parent, (cst.DictComp, cst.ListComp, cst.DictElement, cst.Element))


def operator_of(node: cst.AugAssign) -> str:
    """Return the operator of ``x += y``: ``+``."""
    return cst.Module([]).code_for_node(node.operator).strip().rstrip("=")

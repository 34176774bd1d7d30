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
from mpcore_port.mindspore.rules.changes.behind_a_pass import (
    is_behind_a_pass,
    is_ungraded,
    records_a_pass,
)
from mpcore_port.mindspore.rules.changes.fresh import (
    is_alone,
    is_fresh,
    is_made_tensor,
    is_moved,
    is_perhaps_fresh,
    is_rebound,
)
from mpcore_port.mindspore.rules.changes.methods_in_place import (
    MADE,
    PLAIN,
    RANDOM,
    SHAPES,
    TAKES,
    begins_with,
    is_chained,
    viewed,
)
from mpcore_port.mindspore.rules.changes.places_in import (
    is_attribute,
    is_entry,
    is_handed,
    is_one_of_values,
    is_part,
    is_viewed,
    part_changed,
    view_of,
)
from mpcore_port.mindspore.rules.changes.states import is_live_entry, is_live_name
from mpcore_port.mindspore.rules.losses.afar import Graded, is_without
from mpcore_port.mindspore.rules.losses.names_in import read
from mpcore_port.mindspore.rules.optimizers.own_optimizers import in_own_step, is_step_value
from mpcore_port.mindspore.rules.place import PortRule, is_network_class, named, wording
from mpcore_port.mindspore.rules.values.kept_names import is_kept_name
from mpcore_port.mindspore.tables import table
from mpcore_port.names import code_of, dotted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mpcore_port.rule import At

__all__ = [
    "AloneRule",
    "BehindRule",
    "in_place",
]

_LEAF = re.compile(r"\.(weight|bias|running_mean|running_var|n_averaged)$")


def plain_call(name: str, old: cst.Call, new: cst.Call, receiver: Any, at: At) -> Any:
    """Return the same without changing anything, or None where there is no such code."""
    if name in MADE:
        return _made(name, old, new, receiver, at)
    if name[:-1] not in PLAIN | SHAPES:
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


_ONCE = ("ops.randn_like({self}, dtype={self}.dtype)", "port.randn_like({self})")
"""What is more than a name is read once."""


def _made(name: str, old: cst.Call, new: cst.Call, receiver: Any, at: At) -> Any:
    takes = TAKES[name]
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
    made = MADE[name] if dotted(receiver) else MADE[name].replace(*_ONCE)
    text = made.replace("{self}", code_of(receiver))
    for place, value in enumerate(shown):
        text = text.replace(f"{{{place}}}", value)
    return cst.parse_expression(wording(at, text))


def _is_put_back(call: cst.Call, part: cst.Subscript, at: At) -> bool:
    """Return whether a part gets what its own change gives: ``y[y > 1] = y[y > 1].sub_(1)``."""
    line = at.names.parents.get(call)
    targets = line.targets if isinstance(line, cst.Assign) and line.value is call else ()
    return len(targets) == 1 and code_of(targets[0].target) == code_of(part)


def in_place(rule: Any, old: cst.Call, new: cst.Call, at: At) -> Any:
    """Return what stands for a method that changes its tensor; None where that is not sure."""
    held, fresh = old.func.value, new.func.value  # type: ignore[attr-defined]
    name = old.func.attr.value  # type: ignore[attr-defined]
    if name != "copy_" and is_fresh(held, at):
        made = plain_call(name, old, new, fresh, at)
        return _noted(rule, old, made, at, "what it changes is made there, nothing else sees it")
    if in_own_step(old, at) and is_step_value(held, at) and name[:-1] not in SHAPES:
        return _put(rule, old, new, fresh, at)
    target = _assigned_to(held, fresh, at)
    if target is not None:
        if name == "detach_":
            return _left_untrained(rule, old, fresh, at)
        if name[:-1] in SHAPES:
            return None
        if _is_row_of_data(held, at):
            value = plain_call(name, old, new, target, at)
            text = wording(at, f"port.written({code_of(target)}, {code_of(value)})")
            made = cst.parse_expression(text) if value else None
            return _noted(rule, old, made, at, _IN_IT)
        return _put(rule, old, new, target, at)
    if is_part(held, at) and isinstance(at.names.parents.get(old), cst.Expr):
        value = plain_call(name, old, new, fresh, at)
        if value is None:
            return None
        return _noted(rule, old, cst.NamedExpr(fresh, value), at, "its part is assigned to")
    if is_part(held, at) and isinstance(fresh, cst.Subscript):
        value = plain_call(name, old, new, fresh, at)
        made = value and part_changed(fresh, value, at)
        return _noted(rule, old, made, at, "its part is assigned to, and given")
    if is_entry(held, at) and _is_a_line(old, at):
        value = plain_call(name, old, new, fresh, at)
        made = value and cst.NamedExpr(fresh, value)
        return _noted(rule, old, made, at, _PERHAPS.format(code_of(held)), sure=False)
    if is_handed(held, at) and (name in RANDOM or is_ungraded(old, at)):
        return _put(rule, old, new, fresh, at)
    kept = is_attribute(held) or (is_chained(held) and _is_put(fresh, at))
    if kept and _is_said_alone(old, at) and _gives_values(name, old, at):
        sure = not is_viewed(held, at)
        return _put(rule, old, new, fresh, at, "" if sure else _VIEWED.format(code_of(held)))
    if _is_a_line(old, at) and (made := _filled_part(name, old, new, at)) is not None:
        return _noted(rule, old, made, at, "the tensor that it is a part of is filled there")
    if isinstance(held, cst.Subscript) and name[:-1] not in SHAPES and _is_put_back(old, held, at):
        made = plain_call(name, old, new, fresh, at)
        return _noted(rule, old, made, at, "it is assigned to the part that it changes")
    if root := view_of(held, at):
        if _is_a_line(old, at):
            return _written(rule, old, new, at)
        made = plain_call(name, old, new, fresh, at)
        return _noted(rule, old, made, at, _KEEPS.format(root), sure=False)
    made = _through_view(name, old, new, at)
    if made is not None:
        return _noted(rule, old, made, at, "no other name holds it: it is made anew")
    if name == "copy_":
        return _written(rule, old, new, at)
    if is_perhaps_fresh(held, at) and not (is_moved(held) and _is_a_line(old, at)):
        made = plain_call(name, old, new, fresh, at)
        return _noted(rule, old, made, at, _PERHAPS.format(code_of(held)), sure=False)
    if isinstance(fresh, cst.NamedExpr) and begins_with(held) == code_of(fresh.target):
        # x.sub_(y).div_(z): x was made anew by the first of them
        value = plain_call(name, old, new, fresh.value, at)
        if value is None:
            return None
        made = fresh.with_changes(value=value)
        return _noted(rule, old, made, at, "no other name holds it: it is made anew")
    if isinstance(held, cst.Name):
        sure = is_alone(held, at)
        sure = sure or (name[:-1] in SHAPES and is_alone(held, at, views=True))
        if not sure and not is_alone(held, at, is_perhaps_fresh):
            return _written(rule, old, new, at)
        value = plain_call(name, old, new, fresh, at)
        if value is None:
            return None
        if not is_rebound(old, held, at):
            pair = [cst.LeftParen()], [cst.RightParen()]
            value = cst.NamedExpr(cst.Name(held.value), value, lpar=pair[0], rpar=pair[1])
        why = "no other name holds it: it is made anew" if sure else _PERHAPS.format(held.value)
        return _noted(rule, old, value, at, why, sure=sure)
    return _written(rule, old, new, at)


def _filled_part(name: str, old: cst.Call, new: cst.Call, at: At) -> Any:
    """Return what fills ``mask[i].narrow(2, n, m).fill_(1)`` in the mask itself; None of others."""
    if name not in ("fill_", "zero_") or len(old.args) != (name == "fill_"):
        return None
    held, fresh = old.func.value, new.func.value  # type: ignore[attr-defined]
    if not isinstance(held, cst.Call):
        return None
    part: Any = held
    while not isinstance(part, cst.Name):
        if isinstance(part, cst.Call):
            method = part.func
            if not isinstance(method, cst.Attribute) or method.attr.value != "narrow":
                return None
            part = method.value
        elif isinstance(part, cst.Subscript):
            part = part.value
        else:
            return None
    code = code_of(fresh)
    if not code.startswith(f"{part.value}[") and not code.startswith(f"{part.value}."):
        return None
    value = code_of(new.args[0].value) if new.args else "0"
    seen = f"lambda seen: seen{code[len(part.value) :]}"
    text = f"port.set_through({part.value}, {seen}, ..., {value})"
    return cst.parse_expression(wording(at, text))


def _written(rule: Any, old: cst.Call, new: cst.Call, at: At) -> Any:
    """Write the values into the tensor itself, which all see that hold it, or a view of it."""
    held, fresh = old.func.value, new.func.value  # type: ignore[attr-defined]
    name = old.func.attr.value  # type: ignore[attr-defined]
    chain = held
    while is_chained(chain):
        chain = chain.func.value
    part = chain.value if isinstance(chain, cst.Subscript) else chain
    root = _root(part) or view_of(chain, at)
    bound = root and at.names.scope(old).find(root)
    if name[:-1] in SHAPES or not bound:
        return None
    graded = records_a_pass(old, chain, [arg.value for arg in old.args], at)
    if graded and not isinstance(chain, cst.Name):
        return None
    if (changed := _changed_again(name, old, new, at)) is not None:
        return _noted(rule, old, changed, at, _IN_IT)
    target, before = _write_before(fresh, at)
    if before is target and not is_ungraded(old, at):  # gradients may need its old values
        before = cst.Call(cst.Attribute(before, cst.Name("copy")))
    value = plain_call(name, old, new, before, at)
    if value is None:
        return None
    made = wording(at, f"port.written({code_of(target)}, {code_of(value)})")
    sure = not (graded or _is_of_network(old, at))
    why = _IN_IT if sure else f"{_IN_IT}; {_OF_VIEWS}"
    return _noted(rule, old, cst.parse_expression(made), at, why, sure=sure)


def _is_of_network(node: cst.CSTNode, at: At) -> bool:
    """Return whether a forward pass may come to a line: it is in a method of a network."""
    home = at.names.enclosing(node, cst.FunctionDef)
    owner = at.names.enclosing(node, cst.ClassDef)
    if home is None or owner is None or is_ungraded(node, at):
        return False
    return not _PREPARES.search(home.name.value) and is_network_class(owner, at)


_PREPARES = re.compile(r"^__init__$|init|reset|load|update|build|register|state_dict")
_OF_VIEWS = "where gradients go through it, other names of a view of it do not, and a view raises"


def _root(part: Any) -> str:
    """Return ``net`` of ``net.weight`` and ``net.layers[-1].weight.data``; "" for others.

    What a name alone holds by places or keys (``state["a"][:2]``) may be a copy here.
    """
    node, last = part, "data"
    while isinstance(node, (cst.Attribute, cst.Subscript)):
        if isinstance(node, cst.Attribute):
            last = node.attr.value
        elif last == "data" or not isinstance(node.value, cst.Attribute):
            return ""
        node = node.value
    return node.value if isinstance(node, cst.Name) else ""


def _changed_again(name: str, old: cst.Call, new: cst.Call, at: At) -> Any:
    """Return one change for ``x[:, 1:].mul_(a).add_(b)``, whose first part has become a call."""
    held = new.func.value  # type: ignore[attr-defined]
    if not isinstance(held, cst.Call) or code_of(held.func) != wording(at, "port.part_changed"):
        return None
    value = plain_call(name, old, new, held.args[2].value, at)
    if value is None:
        return None
    return held.with_changes(args=[*held.args[:2], held.args[2].with_changes(value=value)])


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
    if name[:-1] not in PLAIN:
        return False
    home = at.names.enclosing(call, cst.FunctionDef)
    if any(is_without(one, at) for one in at.names.ancestors(call)):
        return True
    passes = home is None or home.name.value in ("forward", "__call__", "construct")
    given = {word for arg in call.args for word in read(arg.value)}
    return not passes and not given & at.once(Graded).before(call)


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


def _through_view(name: str, old: cst.Call, new: cst.Call, at: At) -> Any:
    """Return ``x = ...`` for ``x.view(-1).add_(...)`` on a line, where nothing else holds x."""
    held, fresh = old.func.value, new.func.value  # type: ignore[attr-defined]
    inner = viewed(held)
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


def _noted(rule: Any, old: cst.Call, made: Any, at: At, reason: str, *, sure: bool = True) -> Any:
    if made is None:
        return None
    if not sure:
        at.unproven(rule, old, reason, made)
    random = old.func.attr.value in RANDOM  # type: ignore[attr-defined]
    kind, effect = ("changed", "other random numbers") if random else ("exact", "")
    if sure:
        at.note(rule, old, made, kind, reason, effect)  # type: ignore[arg-type]
    if isinstance(made, (cst.BinaryOperation, cst.UnaryOperation)):
        made = made.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    return made


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
    if is_chained(held) and _assigned_to(held.func.value, fresh, at) is not None:
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


def _is_row_of_data(held: Any, at: At) -> bool:
    """Return whether this is ``w[2].data``: a view of a tensor, or a tensor of a list."""
    if not isinstance(held, cst.Attribute) or not isinstance(held.value, cst.Subscript):
        return False
    part = held.value
    index = part.slice[0].slice
    is_key = isinstance(index, cst.Index) and isinstance(index.value, cst.SimpleString)
    return not is_key and not _are_parameters(part.value, at)


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
        if method not in _ANEW and method.removesuffix("_") not in PLAIN:
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
        if func.attr.value.removesuffix("_") not in PLAIN or not func.attr.value.endswith("_"):
            return None
        if not is_one_of_values(func.value, at) or not is_behind_a_pass(old, at):
            return None
        data = cst.Attribute(method.value, cst.Name("data"))
        made = new.with_changes(func=method.with_changes(value=data))
        at.note(self, old, made)
        return made


def _modules(at: At) -> Iterator[tuple[str, str]]:
    for name, bindings in at.names.top.bindings.items():
        yield from ((name, b.qualified) for b in bindings if b.kind == "import")

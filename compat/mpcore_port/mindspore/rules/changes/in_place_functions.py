"""``torch.clamp_(x, 0, 1)`` and ``torch.max(a, b, out=a)``: what they are handed is changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.mindspore.rules.place import PortRule, wording
from mpcore_port.names import code_of
from mpcore_port.torch_names import EXPORTS

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["InPlaceFunctionRule", "OutRule", "OutValueRule"]

_PLAIN = (cst.Name, cst.Attribute, cst.Subscript, cst.Call)


class InPlaceFunctionRule(PortRule):
    """A function of torch that works in place is written as the tensor's method."""

    name = "in-place function"
    reason = "the tensor's method does the same"
    visits = (cst.Call,)

    def act(self, old: cst.Call, new: cst.Call, at: At) -> Any:
        """Rewrite one call; what comes of it is torch's still, and ported like the rest."""
        module, _, name = (at.names.called(old) or "").rpartition(".")
        if module not in ("torch", "torch.nn.functional") or not name.endswith("_"):
            return None
        made_there = name == "relu_" and bool(old.args) and isinstance(old.args[0].value, _MADE)
        if (name in _ACTIVATIONS or made_there) and module == "torch.nn.functional" and old.args:
            return self._activation(old, new, at)
        if name not in EXPORTS["torch.Tensor"] or name.endswith("__") or not old.args:
            return None
        first, *others = new.args
        if first.keyword is not None or first.star or not isinstance(first.value, _PLAIN):
            return None
        made = new.with_changes(func=cst.Attribute(first.value, cst.Name(name)), args=others)
        at.note(self, old, made)
        return made

    def _activation(self, old: cst.Call, new: cst.Call, at: At) -> Any:
        """Write ``F.elu_(x)`` as ``F.elu(x, inplace=True)``, which layers in place are told by."""
        func = new.func
        if not isinstance(func, cst.Attribute):
            return None
        plain = func.with_changes(attr=cst.Name(func.attr.value[:-1]))
        if isinstance(old.args[0].value, _MADE):
            made = new.with_changes(func=plain)
            at.note(self, old, made, reason="what it changes is made there, nothing else sees it")
            return made
        word = cst.Arg(
            cst.Name("True"),
            keyword=cst.Name("inplace"),
            equal=cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace("")),
        )
        last = new.args[-1].with_changes(
            comma=cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
        )
        made = new.with_changes(func=plain, args=[*new.args[:-1], last, word])
        at.note(self, old, made, reason="the same by its word")
        return made


_ACTIVATIONS = ("celu_", "elu_", "hardtanh_", "leaky_relu_", "rrelu_", "selu_", "threshold_")

_MADE = (cst.BinaryOperation, cst.UnaryOperation)

_RESIZED = "where the result has another shape torch gives `out` that shape; here it is spread"


class OutRule(PortRule):
    """``torch.nan_to_num(g, out=g)`` on a line puts what the function gives into ``out``."""

    name = "out"
    reason = "what the function gives is copied into `out`"
    visits = (cst.Expr,)

    def act(self, old: cst.Expr, new: cst.Expr, at: At) -> Any:
        """Rewrite one line; what comes of it is torch's still, and ported like the rest."""
        call, made = old.value, new.value
        if not isinstance(call, cst.Call) or not isinstance(made, cst.Call):
            return None
        if not (at.names.called(call) or "").startswith("torch.") or _is_starred(call):
            return None
        given = _out_of(made)
        plain = _without_out(made)
        if plain is None:
            return None
        if _are_several(_out_of(call), call, at):
            func = cst.parse_expression(wording(at, "port.written_each"))
            comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
            line = cst.Call(func, [cst.Arg(given, comma=comma), cst.Arg(plain)])
            at.unproven(self, call, _RESIZED, line)
            return new.with_changes(value=line)
        if not isinstance(given, (cst.Name, cst.Attribute, cst.Subscript)):
            return None
        func = cst.Attribute(given, cst.Name("copy_"))
        line = cst.Call(func, [cst.Arg(plain)])
        if code_of(given) in {code_of(arg.value) for arg in plain.args}:
            at.note(self, call, line)
        else:
            at.unproven(self, call, _RESIZED, line)
        return new.with_changes(value=line)


_OF_SEVERAL = frozenset(
    {
        *("aminmax", "cummax", "cummin", "kthvalue", "mode", "sort", "topk"),
        *("linalg.eigh", "linalg.qr", "linalg.slogdet", "linalg.svd", "qr", "svd"),
    }
)
_OF_TWO_ALONG = ("max", "median", "min", "nanmedian")


def _are_several(given: cst.BaseExpression, call: cst.Call, at: At) -> bool:
    """Return whether ``out`` surely is a row of tensors: by what it is, or by what gives several.

    Of ``torch.max`` an axis says so: a number, or what is called ``dim``.
    """
    plain = (cst.Tuple, cst.List)
    found = [given] if isinstance(given, plain) else list(at.names.origins(given))
    if found and all(isinstance(one, plain) for one in found):
        return True
    name = (at.names.called(call) or "").removeprefix("torch.")
    if name in _OF_SEVERAL:
        return True
    words = [arg.keyword.value for arg in call.args if arg.keyword is not None]
    axis = any(
        arg.keyword is None and isinstance(arg.value, (cst.Integer, cst.UnaryOperation))
        for arg in call.args[1:2]
    )
    return name in _OF_TWO_ALONG and ("dim" in words or axis)


_TYPES = {
    **{name: name.lower() for name in ("Long", "Int", "Short", "Half", "Float", "Double", "Bool")},
    "Byte": "byte",
}
_MADE_THERE = "what `out` is given is made there, nothing else sees it: the result is of its dtype"
_LEFT = "nothing but the result is seen: `out` is a place that it is put into, or None"


class OutValueRule(PortRule):
    """``torch.arange(n, out=torch.LongTensor(n))`` is what the function gives, of that dtype."""

    name = "out"
    reason = _LEFT
    visits = (cst.Call,)

    def act(self, old: cst.Call, new: cst.Call, at: At) -> Any:
        """Rewrite one call whose result is asked for; ported like the rest."""
        if isinstance(at.names.parents.get(old), cst.Expr) or _is_starred(old):
            return None
        if not (at.names.called(old) or "").startswith("torch."):
            return None
        given = _out_of(old)
        if given is None:
            return None
        made: Any = _without_out(new)
        if made is None:
            return None
        kind = _TYPES.get(_type_made(given, at))
        if kind is not None:
            made = cst.Call(cst.Attribute(made, cst.Name(kind)))
            at.note(self, old, made, reason=_MADE_THERE)
            return made
        if not _is_only_a_place(old, given, at):
            return None
        at.note(self, old, made)
        return made


def _type_made(given: cst.BaseExpression, at: At) -> str:
    """Return ``"Long"`` of ``torch.cuda.LongTensor(n)``; "" of other code."""
    name = (at.names.called(given) or "") if isinstance(given, cst.Call) else ""
    last = name.rpartition(".")[2]
    return last.removesuffix("Tensor") if name.startswith("torch.") and last != "Tensor" else ""


def _is_only_a_place(call: cst.Call, given: cst.BaseExpression, at: At) -> bool:
    """Return whether a local name is nothing else: one that may be None, or that is returned."""
    if isinstance(given, cst.Name) and given.value == "None":
        return True
    if not isinstance(given, cst.Name) or at.names.scope(given) is at.names.top:
        return False
    found = at.names.scope(given).find(given.value)
    values = [binding.value for binding in found if binding.kind == "value"]
    if not values or len(values) != len(found):
        return False
    if any(isinstance(value, cst.Name) and value.value == "None" for value in values):
        return True
    fresh = all((at.names.called(value) or "").startswith("torch.") for value in values if value)
    return fresh and isinstance(at.names.parents.get(call), cst.Return)


def _out_of(call: cst.Call) -> Any:
    """Return what a call is given as ``out``, or None."""
    return next((arg.value for arg in call.args if _is_out(arg)), None)


def _without_out(call: cst.Call) -> cst.Call | None:
    """Return a call without its ``out``; None where nothing else is given."""
    kept = [arg for arg in call.args if not _is_out(arg)]
    if not kept:
        return None
    kept[-1] = kept[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
    return call.with_changes(args=kept)


def _is_out(arg: cst.Arg) -> bool:
    return arg.keyword is not None and arg.keyword.value == "out"


def _is_starred(call: cst.Call) -> bool:
    return any(arg.star for arg in call.args)

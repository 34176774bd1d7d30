"""``torch.clamp_(x, 0, 1)`` and ``torch.max(a, b, out=a)``: what they are handed is changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.mindspore.rules.place import PortRule
from mpcore_port.names import code_of
from mpcore_port.torch_names import EXPORTS

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["InPlaceFunctionRule", "OutRule"]

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
        if name not in EXPORTS["torch.Tensor"] or name.endswith("__") or not old.args:
            return None
        first, *others = new.args
        if first.keyword is not None or first.star or not isinstance(first.value, _PLAIN):
            return None
        made = new.with_changes(func=cst.Attribute(first.value, cst.Name(name)), args=others)
        at.note(self, old, made)
        return made


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
        given = next((arg.value for arg in made.args if _is_out(arg)), None)
        if not isinstance(given, (cst.Name, cst.Attribute, cst.Subscript)):
            return None
        others = [arg for arg in made.args if not _is_out(arg)]
        if not others:
            return None
        others[-1] = others[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
        func = cst.Attribute(given, cst.Name("copy_"))
        line = cst.Call(func, [cst.Arg(made.with_changes(args=others))])
        if code_of(given) in {code_of(arg.value) for arg in others}:
            at.note(self, call, line)
        else:
            at.unproven(self, call, _RESIZED, line)
        return new.with_changes(value=line)


def _is_out(arg: cst.Arg) -> bool:
    return arg.keyword is not None and arg.keyword.value == "out"


def _is_starred(call: cst.Call) -> bool:
    return any(arg.star for arg in call.args)

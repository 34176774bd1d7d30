"""Classes that are made of a layer: their layer's ``__init__`` gets MindSpore's arguments."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.children import calls_in
from mpcore_port.mindspore.calls import Refused, map_call, of_heirs
from mpcore_port.mindspore.gate import doubts
from mpcore_port.mindspore.rules.place import PortRule, by_name, named, wording
from mpcore_port.mindspore.unseen import CHECKED, by_signature
from mpcore_port.names import code_of

if TYPE_CHECKING:
    from mpcore_port.mindspore.tables import Mapping
    from mpcore_port.rule import At

__all__ = ["ParentRule", "with_heir"]

_HEIRS = """
    AvgPool1d BCELoss CELU Dropout Dropout1d Dropout2d Dropout3d ELU Embedding
    GELU GLU Hardsigmoid Hardswish Hardtanh L1Loss LeakyReLU Linear LogSoftmax
    MaxPool1d Mish MSELoss PReLU ReLU ReLU6 SELU SiLU SmoothL1Loss
    Softmax Threshold
"""
_WITH_TORCHS = {f"torch.nn.{name}": f"port.heirs.{name}" for name in _HEIRS.split()}
"""Layers with torch's arguments that classes alone are made of, where a row names none."""

_PLAIN = ("torch.nn.Module", "torch.nn.Sequential", "torch.nn.ModuleList", "torch.nn.ModuleDict")


class ParentRule(PortRule):
    """``super().__init__(...)`` of a layer, and calls of a class that has its layer's."""

    name = "parent"
    reason = "its layer's __init__ takes MindSpore's arguments"
    visits = (cst.Call,)

    def act(self, old: cst.Call, new: cst.Call, at: At) -> Any:
        """Map the arguments of one call."""
        plain = by_name((at.names.called(old) or "").removesuffix(".__init__"), at.options)
        if plain is not None and plain.name in _PLAIN and _is_unbound(old):
            func = cst.parse_expression(f"{named(at, plain).to}.__init__")
            at.note(self, old.func, func)
            return new.with_changes(func=func)
        row = _of_super(old, at) or _of_heir(old, at)
        if row is None or not old.args:
            return None
        if row.to == row.heir and any(arg.star for arg in old.args):
            row = replace(row, refuse={})  # it raises there: it takes all that torch's takes
        row = named(at, row)
        first = 1 if _is_unbound(old) else 0  # self
        asked = old.with_changes(args=[_settled(arg, arg, at) for arg in old.args[first:]])
        pairs = zip(old.args[first:], new.args[first:], strict=True)
        call = new.with_changes(args=[_settled(before, arg, at) for before, arg in pairs])
        doubted = doubts(row, asked, at)
        try:
            made = map_call(row, call)
        except Refused as exc:
            starred = None if first else _starred(row, old, call, at)
            if starred is None:
                return new.with_changes(func=at.refuse(self, old.func, str(exc)))
            at.unproven(self, old, CHECKED, starred)
            return starred
        wrong = next((doubt.text for doubt in doubted if doubt.is_refused), "")
        if not isinstance(made, cst.Call) or code_of(made.func) != row.to:
            wrong = f"{row.name} takes other arguments in MindSpore: write a Cell that holds one"
        if wrong or not isinstance(made, cst.Call):
            return new.with_changes(func=at.refuse(self, old.func, wrong))
        made = made.with_changes(func=new.func)
        if first:
            comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
            head = new.args[0].with_changes(comma=comma if made.args else cst.MaybeSentinel.DEFAULT)
            func = cst.parse_expression(f"{row.to}.__init__")
            made = made.with_changes(func=func, args=[head, *made.args])
        if doubted:
            at.unproven(self, old, doubted[0].text, made)
        else:
            at.note(self, old, made)
        return made


def _starred(row: Mapping, old: cst.Call, call: cst.Call, at: At) -> cst.Call | None:
    """Return a call whose starred arguments are told apart when it runs; None where none are."""
    if not any(arg.star for arg in old.args):
        return None
    made = by_signature(row, call, code_of(call.func))
    if made is None:
        return None
    return made.with_changes(func=cst.parse_expression(wording(at, code_of(made.func))))


def _row(owner: cst.ClassDef, at: At) -> Mapping | None:
    """Return the row of the one layer that a class is made of."""
    bases = [at.names.qualified(base.value) for base in owner.bases]
    layers = [name for name in bases if name is not None and name.startswith("torch.nn.")]
    if len(layers) != 1 or layers[0] in _PLAIN:
        return None
    row = by_name(layers[0], at.options)
    if row is None or not row.to or row.refuse_all:
        return None
    row = with_heir(row, owner)
    return of_heirs(row) if row.heir else row


def with_heir(row: Mapping, owner: cst.ClassDef) -> Mapping:
    """Return a row with its class of torch's arguments as heir.

    Who makes the class gives it torch's, in other files or by another name, where it has no
    ``__init__`` of its own; and nobody knows what is starred.
    """
    others = set(row.given.values()) or {_WITH_TORCHS.get(row.name, "")}
    if row.heir or len(others) != 1 or (_makes_itself(owner) and not _is_starred(owner)):
        return row
    (other,) = others
    return replace(row, heir=other) if other.rpartition(".")[2][:1].isupper() else row


def _is_starred(owner: cst.ClassDef) -> bool:
    """Return whether a class gives its layer's ``__init__`` starred arguments."""
    inits = [call for call in calls_in(owner) if code_of(call.func).endswith(".__init__")]
    return any(arg.star for call in inits for arg in call.args)


def _of_super(call: cst.Call, at: At) -> Mapping | None:
    func = call.func
    if not isinstance(func, cst.Attribute) or func.attr.value != "__init__":
        return None
    owner = at.names.enclosing(call, cst.ClassDef)
    if owner is None:
        return None
    is_super = isinstance(func.value, cst.Call) and code_of(func.value.func) == "super"
    is_base = any(code_of(base.value) == code_of(func.value) for base in owner.bases)
    return _row(owner, at) if is_super or is_base else None


def _is_unbound(call: cst.Call) -> bool:
    """Return whether this is ``nn.Linear.__init__(self, ...)``."""
    return (
        isinstance(call.func, cst.Attribute)
        and not isinstance(call.func.value, cst.Call)
        and (call.func.attr.value == "__init__")
    )


def _of_heir(call: cst.Call, at: At) -> Mapping | None:
    """Return the row of a class of the file that has no ``__init__`` of its own."""
    if not isinstance(call.func, cst.Name):
        return None
    for binding in at.names.scope(call.func).find(call.func.value):
        owner = binding.node
        if isinstance(owner, cst.ClassDef) and not _makes_itself(owner):
            return _row(owner, at)
    return None


def _makes_itself(owner: cst.ClassDef) -> bool:
    return any(
        isinstance(part, cst.FunctionDef) and part.name.value in ("__init__", "__new__")
        for part in owner.body.body
    )


def _settled(before: cst.Arg, arg: cst.Arg, at: At) -> cst.Arg:
    """Put ``None`` for a parameter of the class that is None by default and never given."""
    return arg.with_changes(value=cst.Name("None")) if _is_never_given(before.value, at) else arg


def _is_never_given(node: cst.BaseExpression, at: At) -> bool:
    if not isinstance(node, cst.Name):
        return False
    found = at.names.scope(node).find(node.value)
    return bool(found) and all(
        binding.kind == "param"
        and binding.value is not None
        and code_of(binding.value) == "None"
        and not at.names.passed(binding)
        for binding in found
    )

"""Layers that change what they are called with, ``nn.ReLU(inplace=True)``: where that is read.

``return x + self.block(x)`` adds torch's x behind the ReLU that the block begins with. Layers of
MindSpore change nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.children import calls_in
from mpcore_port.mindspore.rules.changes.others_hold import is_read_later, other_holders, path_of
from mpcore_port.mindspore.rules.place import PortRule
from mpcore_port.names import code_of

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["LayerInPlaceRule", "is_in_place"]

_PLACES = {
    **dict.fromkeys(("Hardsigmoid", "Hardswish", "Mish", "ReLU", "ReLU6", "SELU", "SiLU"), 0),
    **dict.fromkeys(("CELU", "Dropout", "Dropout2d", "ELU", "LeakyReLU"), 1),
    **dict.fromkeys(("Hardtanh", "RReLU", "Threshold"), 2),
}
"""Where layers take ``inplace``."""
_READ = "in torch this layer changes {} in place, and that is read later"


class LayerInPlaceRule(PortRule):
    """``x + self.relu(x)``, with a ReLU in place, is another sum in MindSpore."""

    name = "layer in place"
    reason = "layers of MindSpore change nothing in place"
    visits = (cst.Call, cst.Assign, cst.SimpleStatementLine)

    def idle(self, at: At) -> bool:
        """Whether no layer may work in place, or the script is a port."""
        return super().idle(at) or not ("inplace" in at.code or "True)" in at.code)

    def act(self, old: Any, new: Any, at: At) -> Any:
        """Look at what one layer is called with; a name of its own gets what it gives."""
        if isinstance(old, cst.SimpleStatementLine):
            return self._before(old, new, at)
        is_line = isinstance(old, cst.Assign)
        call: Any = old.value if is_line else old
        above = at.names.parents.get(old)
        if not isinstance(call, cst.Call) or (isinstance(above, cst.Assign) and not is_line):
            return None
        if not _changes_first(call, at):
            return None
        held: Any = call.args[0].value
        path = path_of(held)
        if not path:
            return None
        again = is_line and path in [code_of(target.target) for target in old.targets]
        if other_holders(held, call, at):
            at.unproven(self, call, _READ.format(path))
            return None
        if again or not is_read_later(held, call, at):
            return None
        if _first_alone(call, at):
            return None  # the line has one before it
        if not _is_own(held, call, at):
            at.unproven(self, call, _READ.format(path))
            return None
        if is_line:
            made = new.with_changes(targets=[*new.targets, cst.AssignTarget(cst.Name(held.value))])
        else:
            pair = [cst.LeftParen()], [cst.RightParen()]
            made = cst.NamedExpr(cst.Name(held.value), new, lpar=pair[0], rpar=pair[1])
        self._told(held, call, made, at)
        return made

    def _told(self, held: Any, call: cst.Call, made: Any, at: At) -> None:
        """Note an edit; who called the function may hold its parameters, and read them."""
        if any(one.kind == "param" for one in at.names.held(held)):
            at.unproven(self, call, _OWN.format(held.value) + _CALLERS, made)
        else:
            at.note(self, call, made, reason=_OWN.format(held.value))

    def _before(self, old: cst.SimpleStatementLine, new: Any, at: At) -> Any:
        """Write ``x = self.block[0](x)`` before ``return x + self.block(x)``."""
        for call in calls_in(old):
            if first := _first_alone(call, at):
                name = code_of(call.args[0].value)
                text = f"{name} = {first}({name})"
                self._told(call.args[0].value, call, cst.parse_expression(f"{first}({name})"), at)
                line = cst.ensure_type(cst.parse_statement(text), cst.SimpleStatementLine)
                made = line.with_changes(leading_lines=new.leading_lines)
                return cst.FlattenSentinel([made, new.with_changes(leading_lines=[])])
        return None


_IDEMPOTENT = ("Hardtanh", "ReLU", "ReLU6")
"""Layers that give the same once more."""
_CALLERS = "; a caller that reads its own later reads the old one"
_OWN = "in torch this layer changes {} in place: the name gets what it gives"


def _is_own(held: Any, call: cst.Call, at: At) -> bool:
    """Return whether a name is its function's own, read behind the line alone, and one layer's."""
    is_function = at.names.called(call) is not None
    if not isinstance(held, cst.Name) or not (is_function or _is_layer(call.func, at)):
        return False
    if held.value not in at.names.scope(held).bindings or at.names.enclosing(call, *_INSIDE):
        return False
    line = at.names.statement(call)
    return isinstance(line, cst.SimpleStatementLine) and not any(
        one.value == held.value and one is not held and line in list(at.names.ancestors(one))
        for one in at.names.by_type[cst.Name]
    )


def _first_alone(call: cst.Call, at: At) -> str:
    """Return the layer that changes a name of its own, as code, where it may run once more; or "".

    It stands beside the name in its line, or in front of a Sequential.
    """
    if not _changes_first(call, at) or at.names.called(call) is not None:
        return ""
    held = call.args[0].value
    if not isinstance(held, cst.Name) or held.value not in at.names.scope(held).bindings:
        return ""
    if at.names.enclosing(call, *_INSIDE) or other_holders(held, call, at):
        return ""
    is_layer = _is_layer(call.func, at)
    if not is_read_later(held, call, at) or (is_layer and _is_own(held, call, at)):
        return ""
    firsts = [at.names.called(one) or "" for one in _firsts(call.func, at)]
    if not firsts or not all(one.rpartition(".")[2] in _IDEMPOTENT for one in firsts):
        return ""
    sequences = [at.names.called(one) or "" for one in at.names.origins(call.func)]
    if not is_layer and not all(one.endswith("Sequential") for one in sequences):
        return ""
    return code_of(call.func) if is_layer else f"{code_of(call.func)}[0]"


def _firsts(func: Any, at: At) -> list[Any]:
    """Return the calls that make the layer that runs first: in Sequentials their first."""
    found: list[Any] = []
    for one in at.names.origins(func):
        args = one.args if isinstance(one, cst.Call) else ()
        is_row = args and (at.names.called(one) or "").endswith("Sequential")
        found += _firsts(args[0].value, at) if is_row else [one]
    return found


def _changes_first(call: cst.Call, at: At) -> bool:
    """Return whether a call changes what it is given: a layer's, or ``F.relu(x, inplace=True)``."""
    if len(call.args) == 1:
        return _works_in_place(call.func, at)
    module, _, _ = (at.names.called(call) or "").rpartition(".")
    return module == "torch.nn.functional" and any(
        arg.keyword is not None and arg.keyword.value == "inplace" and code_of(arg.value) == "True"
        for arg in call.args[1:]
    )


_INSIDE = (cst.Lambda, cst.CompFor, cst.IfExp, cst.BooleanOperation)


def _is_layer(func: Any, at: At) -> bool:
    """Return whether a call surely is one layer's, of no Sequential that begins with it."""
    made = [at.names.called(one) or "" for one in at.names.origins(func)]
    return bool(made) and not any(one.endswith("Sequential") for one in made)


def _works_in_place(func: Any, at: At) -> bool:
    """Return whether a call surely is one of such a layer, or of a Sequential that begins so."""
    made = at.names.origins(func)
    return bool(made) and all(is_in_place(one, at) for one in made)


def is_in_place(node: Any, at: At) -> bool:
    """Return whether a call makes a layer in place, or a Sequential that begins with one."""
    if not isinstance(node, cst.Call):
        return False
    module, _, name = (at.names.called(node) or "").rpartition(".")
    if not module.startswith("torch.nn"):
        return False
    if name == "Sequential":
        return bool(node.args) and _works_in_place(node.args[0].value, at)
    given = {arg.keyword.value: arg.value for arg in node.args if arg.keyword is not None}
    plain = [arg.value for arg in node.args if arg.keyword is None]
    place = _PLACES.get(name, len(plain))
    value = given.get("inplace", plain[place] if place < len(plain) else None)
    return value is not None and code_of(value) == "True"

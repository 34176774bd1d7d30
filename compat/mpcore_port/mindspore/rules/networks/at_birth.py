"""Networks that run while they are made: ``size / self.forward(torch.zeros(...)).shape[-2]``.

A module of torch is in training mode then; a Cell is not, and another branch of it would run, with
other statistics of its norms.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libcst as cst
import libcst.matchers as m

from mpcore_port.mindspore.rules.place import PortRule, is_network_class, wording
from mpcore_port.names import code_of

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["AtBirthRule"]

_MAKES = frozenset({"empty", "full", "ones", "rand", "randint", "randn", "zeros"})
_EVALUATED = "layers that were put into evaluation mode above it are in training mode then"


class AtBirthRule(PortRule):
    """What is run in ``__init__`` with a tensor that is made there runs in training mode."""

    name = "at birth"
    reason = "a Cell starts in evaluation mode, a module of torch in training mode"
    visits = (cst.SimpleStatementLine,)

    def act(self, old: cst.SimpleStatementLine, new: Any, at: At) -> Any:
        """Put the network into training mode in front of one line."""
        home = at.names.enclosing(old, cst.FunctionDef)
        if home is None or home.name.value != "__init__":
            return None
        owner = at.names.enclosing(home, cst.ClassDef)
        if owner is None or not is_network_class(owner, at):
            return None
        if not any(_runs(call, at) for call in m.findall(old, m.Call())):
            return None
        line = cst.parse_statement(wording(at, "port.in_training(self)"))
        if ".eval()" in code_of(home):
            at.unproven(self, old.body[0], _EVALUATED, line)
        else:
            at.note(self, old.body[0], line)
        return cst.FlattenSentinel([line, new])


def _runs(call: Any, at: At) -> bool:
    """Return whether a call hands a tensor that is made here to something of the script's own."""
    if at.names.called(call) is not None or not call.args:
        return False
    func = call.func
    if isinstance(func, cst.Attribute) and func.attr.value in ("register_buffer", "append"):
        return False
    return any(_is_made(arg.value, at) for arg in call.args)


def _is_made(node: cst.BaseExpression, at: At) -> bool:
    """Return whether an argument is ``torch.zeros(...)``, perhaps by a name, or moved."""
    every = at.names.origins(node)
    return bool(every) and all(_is_a_maker(one, at) for one in every)


def _is_a_maker(node: Any, at: At) -> bool:
    while isinstance(node, cst.Call):
        called = at.names.called(node)
        if called is not None:
            module, _, name = called.rpartition(".")
            return module == "torch" and name in _MAKES
        node = node.func.value if isinstance(node.func, cst.Attribute) else None
    return False

"""Layers that change what they are called with, ``nn.ReLU(inplace=True)``: where that is read.

``return x + self.block(x)`` adds torch's x behind the ReLU that the block begins with. Layers of
MindSpore change nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.mindspore.rules.changes.others_hold import is_read_later, other_holders, path_of
from mpcore_port.mindspore.rules.place import PortRule
from mpcore_port.names import code_of

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["LayerInPlaceRule"]

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
    visits = (cst.Call,)

    def idle(self, at: At) -> bool:
        """Whether no layer may work in place, or the script is a port."""
        return super().idle(at) or not ("inplace" in at.code or "(True)" in at.code)

    def act(self, old: cst.Call, new: cst.Call, at: At) -> Any:
        """Look at what one layer is called with."""
        if len(old.args) != 1 or not _works_in_place(old.func, at):
            return None
        held = old.args[0].value
        path = path_of(held)
        if not path:
            return None
        line = at.names.parents.get(old)
        again = isinstance(line, cst.Assign) and path in [code_of(t.target) for t in line.targets]
        holders = other_holders(held, old, at)
        if holders or (not again and is_read_later(held, old, at)):
            at.unproven(self, old, _READ.format(path))
        return None


def _works_in_place(func: Any, at: At) -> bool:
    """Return whether a call surely is one of such a layer, or of a Sequential that begins so."""
    made = at.names.origins(func)
    return bool(made) and all(_is_in_place(one, at) for one in made)


def _is_in_place(node: Any, at: At) -> bool:
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

"""``type(m) == nn.Conv2d``: one with borders of its own is made of a class of the runtime's."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.children import below
from mpcore_port.mindspore.rules.place import PortRule
from mpcore_port.names import code_of

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["ExactTypeRule"]

_LAYERS = ("torch.nn.Conv2d", "torch.nn.Conv3d", "torch.nn.ConvTranspose2d")
_OTHERWISE = re.compile(r"\b(padding_mode|output_padding)\s*=")
_TYPE = re.compile(r"\btype\(|\.__class__\b")
_WHY = "with `padding_mode` or `output_padding` the layer is of a class below it: use isinstance"


class ExactTypeRule(PortRule):
    """A comparison of a layer's class with MindSpore's own is unproven where some are not of it."""

    name = "exact type"
    reason = _WHY
    visits = (cst.Comparison,)

    def idle(self, at: At) -> bool:
        """Whether no layer is made with what MindSpore's own does not take, or it is a port."""
        asked = _TYPE.search(at.code) and _OTHERWISE.search(at.source.around)
        return super().idle(at) or not asked

    def act(self, old: cst.Comparison, new: Any, at: At) -> Any:
        """Name one comparison."""
        del new
        nodes = [node for node in below(old) if isinstance(node, (cst.Attribute, cst.Name))]
        if _TYPE.search(code_of(old)) and any(at.names.qualified(n) in _LAYERS for n in nodes):
            at.unproven(self, old, _WHY)

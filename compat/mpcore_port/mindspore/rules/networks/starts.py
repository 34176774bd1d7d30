"""Classes of a layer with ``reset_parameters`` of their own: torch's layers call it themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.mindspore.rules.place import PortRule, wording
from mpcore_port.names import code_of

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["StartRule"]

_METHOD = "reset_parameters"
_LAYERS = frozenset(
    f"torch.nn.{name}"
    for name in """
    BatchNorm1d BatchNorm2d BatchNorm3d Bilinear Conv1d Conv2d Conv3d ConvTranspose1d
    ConvTranspose2d ConvTranspose3d Embedding EmbeddingBag GRU GRUCell GroupNorm InstanceNorm1d
    InstanceNorm2d InstanceNorm3d LSTM LSTMCell LayerNorm Linear PReLU RMSNorm RNN RNNCell
    SyncBatchNorm
    """.split()  # noqa: SIM905  # a list of words is read
)
"""Whose ``__init__`` ends with ``self.reset_parameters()``, torch 2.13 (torch/nn/modules)."""


class StartRule(PortRule):
    """``class Dense(nn.Linear)`` is a ``port.starting(nn.Dense)``, whose start calls the method."""

    name = "own start"
    reason = "a layer of torch starts by its reset_parameters; what MindSpore drew is filled anew"
    visits = (cst.ClassDef,)

    def idle(self, at: At) -> bool:
        """Whether no class of the file has the method."""
        return super().idle(at) or _METHOD not in at.names.functions

    def act(self, old: cst.ClassDef, new: cst.ClassDef, at: At) -> Any:
        """Wrap the layer that one class is made of."""
        if not _is_reset(old, at):
            return None
        bases = list(new.bases)
        for place, arg in enumerate(old.bases):
            if at.names.qualified(arg.value) in _LAYERS:
                text = wording(at, f"port.starting({code_of(bases[place].value)})")
                bases[place] = bases[place].with_changes(value=cst.parse_expression(text))
                at.note(self, arg.value, bases[place].value)
        return new.with_changes(bases=bases)


def _is_reset(node: cst.ClassDef, at: At) -> bool:
    """Return whether a class, or one of the file that is made of it, has the method."""
    waiting, seen = [node], {node}
    while waiting:
        one = waiting.pop()
        if any(at.names.owner(f) is one for f in at.names.functions[_METHOD]):
            return True
        heirs = [c for every in at.names.classes.values() for c in every if _is_heir(c, one)]
        waiting += [c for c in heirs if c not in seen]
        seen.update(heirs)
    return False


def _is_heir(node: cst.ClassDef, of: cst.ClassDef) -> bool:
    names = [arg.value for arg in node.bases]
    return any(isinstance(name, cst.Name) and name.value == of.name.value for name in names)

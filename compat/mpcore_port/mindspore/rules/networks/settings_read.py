"""Settings of layers that are read: ``m.groups``, ``m.padding[1]``, ``norm.eps``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.mindspore.rules.place import SETTINGS, PortRule, is_plain_object, wording
from mpcore_port.mindspore.rules.values.attributes import layers_of
from mpcore_port.names import code_of, string_of

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["SettingReadRule", "is_read_otherwise"]

_CONV, _POOL = r"\b(Lazy)?Conv(Transpose)?[123]d\b|\b_ConvNd\b", r"\b(Max|Avg)Pool[123]d\b"
_HAVE = {
    **dict.fromkeys(("groups", "output_padding", "padding_mode", "transposed"), _CONV),
    "padding": f"{_CONV}|{_POOL}",
    **dict.fromkeys(("kernel_size", "stride"), r"\b(Max|Avg)Pool1d\b"),
    **dict.fromkeys(("ceil_mode", "count_include_pad"), _POOL),
    **dict.fromkeys(("dilation", "return_indices"), r"\bMaxPool[123]d\b"),
    "divisor_override": r"\bAvgPool[23]d\b",
    "elementwise_affine": r"\bLayerNorm\b",
    "eps": r"\bLayerNorm\b|\bBatchNorm3d\b",
    **dict.fromkeys(("affine", "track_running_stats"), r"\b_?BatchNorm(1d|2d|3d)?\b"),
    **dict.fromkeys(("momentum", "num_features"), r"\bBatchNorm3d\b"),
}
"""Settings, and the layers of torch that MindSpore's have them otherwise of."""
_SIMPLE = re.compile(r"torch\.nn\.(Conv|ConvTranspose)(1d|2d|3d)$")
_OURS = re.compile(r"torch\.nn\.(Conv1d|ConvTranspose1d|ConvTranspose3d)$")
"""Layers of the runtime's: they have torch's settings."""
_RENAMED = {"groups": (r"Conv[23]d|ConvTranspose2d", "group"), "eps": ("LayerNorm", "epsilon")}
_ASKED = ("getattr", "hasattr")
_WALKED = re.compile(r"\.(named_)?(modules|children)\(|\.apply\(")
"""What hands a file layers of networks that are written elsewhere."""


class SettingReadRule(PortRule):
    """``conv.groups`` and ``pool.padding`` are torch's, whatever layer they are of."""

    name = "setting that is read"
    reason = "layers of MindSpore have it under another name, or for each edge"
    visits = (cst.Attribute, cst.Call)

    def idle(self, at: At) -> bool:
        """Whether there is no such name, or the script is a port."""
        return super().idle(at) or at.options.api == "mint" or not _NAMES.search(at.code)

    def act(self, old: Any, new: Any, at: At) -> Any:
        """Map one setting that is read, or asked for by its name."""
        if isinstance(old, cst.Call):
            return self._asked(old, new, at)
        name = old.attr.value
        if name not in _HAVE or not isinstance(new, cst.Attribute):
            return None
        parent = at.names.parents.get(old)
        if at.names.is_assigned(old):
            return None
        if isinstance(parent, cst.Call) and parent.func is old:
            return None  # a method: ``x.stride()``
        if _is_part_of_target(old, at) or not is_read_otherwise(old, at):
            return None
        made: cst.BaseExpression
        if other := _other_name(old, at):
            made = new.with_changes(attr=cst.Name(other))
        else:
            text = f'port.setting({code_of(new.value)}, "{name}")'
            made = cst.parse_expression(wording(at, text))
        at.note(self, old, made)
        return made

    def _asked(self, old: cst.Call, new: Any, at: At) -> Any:
        word = code_of(old.func)
        if word not in _ASKED or len(old.args) < 2 or any(arg.star for arg in old.args):
            return None
        name = string_of(old.args[1].value)
        if name is None or name not in _HAVE:
            return None
        if not _may_be(old.args[0].value, name, at):
            return None
        func = "port.setting" if word == "getattr" else "port.has_setting"
        made = new.with_changes(func=cst.parse_expression(wording(at, func)))
        at.note(self, old, made)
        return made


_NAMES = re.compile(rf"[.\"']({'|'.join(_HAVE)})\b")


def is_read_otherwise(node: cst.Attribute, at: At) -> bool:
    """Return whether an attribute may be a setting that MindSpore's layer has otherwise."""
    return at.names.qualified(node) is None and _may_be(node.value, node.attr.value, at)


def _may_be(owner: cst.BaseExpression, name: str, at: At) -> bool:
    """Return whether ``owner`` may be a layer of MindSpore's that has ``name`` otherwise."""
    if name not in _HAVE or at.names.qualified(owner) is not None:
        return False
    own = at.names.enclosing(owner, cst.ClassDef) if code_of(owner) == "self" else None
    if code_of(owner) == "self":
        bases = at.names.bases(own) if own is not None else []
        layers = {base for base in bases if base.startswith("torch.nn.")}
        if own is None or at.names.attribute(own, f"self.{name}"):
            return False
        return any(_has_otherwise(layer, name) for layer in layers if not _SIMPLE.match(layer))
    layers = layers_of(owner, at)
    if layers and all(layer.startswith("torch.nn.") for layer in layers):
        return any(_has_otherwise(layer, name) for layer in layers)
    if at.names.class_named(owner) is not None or is_plain_object(at, owner):
        return False
    if SETTINGS.search(code_of(owner)):
        return False
    walked = isinstance(owner, cst.Name) and _WALKED.search(at.code) is not None
    return walked or re.search(_HAVE[name], at.source.around) is not None


def _other_name(node: cst.Attribute, at: At) -> str:
    """Return what MindSpore's layers call a setting where that is all; a step may be compiled."""
    to = _RENAMED.get(node.attr.value)
    layers = layers_of(node.value, at)
    if to is None or not layers or code_of(node.value) == "self":
        return ""
    known = all(re.fullmatch(rf"torch\.nn\.({to[0]})", layer) for layer in layers)
    return to[1] if known else ""


def _has_otherwise(layer: str, name: str) -> bool:
    if _OURS.match(layer):
        return False
    return re.search(_HAVE[name], layer.rpartition(".")[2]) is not None


def _is_part_of_target(node: Any, at: At) -> bool:
    """Return whether a tuple that is assigned to has this: ``a.padding, a.stride = 1, 2``."""
    above = at.names.parents.get(node)
    while isinstance(above, (cst.Element, cst.Tuple, cst.List)):
        above = at.names.parents.get(above)
    return isinstance(above, cst.AssignTarget)

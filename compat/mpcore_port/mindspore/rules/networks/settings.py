"""Settings of layers: torch's read them in each call, MindSpore's when they are made."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.mindspore.rules.changes.data_attribute import operator_of
from mpcore_port.mindspore.rules.place import PortRule, is_plain_object, wording
from mpcore_port.mindspore.rules.values.attributes import layers_of
from mpcore_port.names import code_of, string_of

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["SettingRule"]

_NORMS = r"(Batch|Layer|Group|Instance)Norm"
_CONV = r"Conv2d|Conv\b|_ConvNd"
_HAVE = {
    "momentum": _NORMS,
    "track_running_stats": "track_running_stats",
    "eps": _NORMS,
    "p": r"nn\.Dropout|\bDropout\b",
    "stride": _CONV,
    "padding": _CONV,
    "dilation": _CONV,
}
"""Settings, and how a file speaks of layers that have them."""
_READ = ("stride", "padding", "dilation")
_LAYER = re.compile(r"(BatchNorm|LayerNorm|GroupNorm|InstanceNorm|Dropout|Conv)\w*$")
_SEVERAL = (
    "a layer of MindSpore keeps operations that were made of it, and is not renewed where several "
    "are set in one line"
)
_SEVERAL_BUFFERS = "MindSpore sets no buffer by its name, and several in one line are not rewritten"
_OF_BUFFER = "MindSpore sets no buffer by its name: another tensor is registered under it"
_ALL = 3  # setattr(layer, name, value)


class SettingRule(PortRule):
    """``norm.momentum = 0.03`` renews what the layer computes with; buffers are set by a call."""

    name = "setting"
    reason = "a layer of MindSpore keeps operations that were made of it: they are made anew"
    visits = (cst.SimpleStatementLine, cst.SimpleStatementSuite, cst.Call)

    def act(self, old: Any, new: Any, at: At) -> Any:
        """Rewrite what sets a setting: an assignment, or a call of setattr."""
        if isinstance(old, cst.Call):
            return self._asked(old, new, at)
        if len(old.body) != len(new.body):
            return None
        pairs = zip(old.body, new.body, strict=True)
        body = [self._small(before, small, at) for before, small in pairs]
        changed = any(one is not before for one, before in zip(body, new.body, strict=True))
        return new.with_changes(body=body) if changed else None

    def _asked(self, old: cst.Call, new: cst.Call, at: At) -> Any:
        if code_of(old.func) != "setattr" or len(old.args) != _ALL:
            return None
        name = string_of(old.args[1].value)
        if name is None or not _is_setting(old.args[0].value, name, at):
            return None
        made = new.with_changes(func=cst.parse_expression(wording(at, "port.set_attribute")))
        at.note(self, old, made, reason=_why(name, at))
        return made

    def _small(self, old: Any, new: Any, at: At) -> Any:
        if isinstance(new, cst.Assign) and isinstance(old, cst.Assign) and len(new.targets) == 1:
            before, target, operator = old.targets[0].target, new.targets[0].target, ""
        elif isinstance(new, cst.AugAssign) and isinstance(old, cst.AugAssign):
            before, target = old.target, new.target
            operator = operator_of(new)
        else:
            return new
        if isinstance(before, cst.Tuple):
            for part in before.elements:
                one = part.value
                if isinstance(one, cst.Attribute) and _is_setting(one.value, one.attr.value, at):
                    at.unproven(
                        self, one, _SEVERAL_BUFFERS if _why(one.attr.value, at) else _SEVERAL
                    )
            return new
        if not isinstance(before, cst.Attribute) or not isinstance(target, cst.Attribute):
            return new
        name = before.attr.value
        if not _is_setting(before.value, name, at):
            return new
        holder, value = code_of(target.value), code_of(new.value)
        if operator:
            read = f'port.setting({holder}, "{name}")' if name in _READ else f"{holder}.{name}"
            value = f"{read} {operator} ({value})"
        made = cst.parse_expression(wording(at, f'port.set_attribute({holder}, "{name}", {value})'))
        at.note(self, old, made, reason=_why(name, at))
        return cst.Expr(made, semicolon=new.semicolon)


def _buffers(at: At) -> set[str]:
    """Return the names that networks of the script register tensors under."""
    asked = at.names.callers("register_buffer")
    given = [
        arg.value
        for call in asked
        for place, arg in enumerate(call.args)
        if (arg.keyword.value == "name" if arg.keyword else place == 0)
    ]
    return {name for value in given if (name := string_of(value))}


def _why(name: str, at: At) -> str:
    """Return the reason where a name is a buffer's; "" where it is a layer's setting."""
    return _OF_BUFFER if name in at.once(_buffers) else ""


def _is_setting(holder: Any, name: str, at: At) -> bool:
    """Return whether ``holder`` may have a buffer ``name``, or keeps operations made of it."""
    if name in at.once(_buffers):
        return not is_plain_object(at, holder)
    if name not in _HAVE or code_of(holder) == "self":
        return False
    layers = layers_of(holder, at)
    if layers:
        return any(layer.startswith("torch.nn.") and _LAYER.search(layer) for layer in layers)
    return not is_plain_object(at, holder) and bool(re.search(_HAVE[name], at.source.around))

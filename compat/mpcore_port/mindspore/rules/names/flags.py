"""What tensors say about their device, and MindSpore's say otherwise."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.mindspore.rules.place import SETTINGS, PortRule, is_plain_object, wording
from mpcore_port.names import code_of, dotted, string_of

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["ELSEWHERE", "DeviceFlagRule", "DeviceOfRule", "MetaRule"]


ELSEWHERE = (
    *("is_xpu", "is_mps", "is_xla", "is_ipu", "is_hpu", "is_meta", "is_mkldnn", "is_vulkan"),
    *("is_maia", "is_mtia"),
)


class DeviceFlagRule(PortRule):
    """``x.is_cuda`` asks whether the process has a device: all its tensors are there."""

    name = "is_cuda"
    reason = "one process has one device, and all its tensors are on it"
    visits = (cst.Attribute,)

    def act(self, old: Any, new: Any, at: At) -> Any:
        """Map one attribute that is read."""
        if old.attr.value in ELSEWHERE and at.names.qualified(old) is None:
            at.note(self, old, "False", reason="a tensor of MindSpore is on no such device")
            return cst.Name("False")
        if old.attr.value not in ("is_cuda", "is_npu") or at.names.qualified(old) is not None:
            return None
        if at.names.is_assigned(old):
            return None
        made = cst.parse_expression(wording(at, "port.is_available()"))
        effect = "True for tensors that torch would have kept on the CPU, where there is a device"
        at.note(self, old, made, "changed", "", effect)
        return made


_NAMES_ONE = re.compile(r"(^|[._])(device|device_type|dev)$", re.I)
_ASKED_OF_WORDS = "true of the device that MindSpore runs on, by whatever word it was chosen"


class DeviceOfRule(PortRule):
    """``x.device`` is a word in MindSpore; ``x.device.type == "cuda"`` asks for more than that."""

    name = "device of a tensor"
    reason = "a tensor of MindSpore names its device by a word"
    visits = (cst.Attribute, cst.Comparison, cst.ComparisonTarget)

    def act(self, old: Any, new: Any, at: At) -> Any:
        """Map one attribute that is read, or the word that a kind of device is compared with."""
        if isinstance(old, cst.Comparison):
            return self._asked(old, new, at)
        if isinstance(old, cst.ComparisonTarget):
            return self._compared(old, new, at)
        if old.attr.value != "device" or at.names.qualified(old) is not None:
            return None
        if (
            code_of(old.value) == "self"
            or SETTINGS.search(dotted(old.value))
            or is_plain_object(at, old.value)
        ):
            return None
        if not _is_asked(old, at):
            return None
        made = cst.parse_expression(wording(at, f"port.device_of({code_of(new.value)})"))
        at.note(self, old, made)
        return made

    def _asked(self, old: cst.Comparison, new: cst.Comparison, at: At) -> Any:
        """Ask ``device == "cuda"`` of a word that another file, or a caller, has chosen."""
        if len(old.comparisons) != 1 or at.options.plain:
            return None
        part, left = old.comparisons[0], old.left
        if not isinstance(part.operator, (cst.Equal, cst.NotEqual)):
            return None
        if string_of(part.comparator) not in ("cuda", "cuda:0"):
            return None
        if not isinstance(left, (cst.Name, cst.Attribute)) or not _NAMES_ONE.search(dotted(left)):
            return None
        no = "not " if isinstance(part.operator, cst.NotEqual) else ""
        made = cst.parse_expression(
            wording(at, f"{no}port.is_accelerator({code_of(new.left)})")
        ).with_changes(lpar=new.lpar, rpar=new.rpar)
        at.note(self, old, made, "changed", "", _ASKED_OF_WORDS)
        return made

    def _compared(self, old: cst.ComparisonTarget, new: cst.ComparisonTarget, at: At) -> Any:
        whole = at.names.parents.get(old)
        left = whole.left if isinstance(whole, cst.Comparison) else None
        if not isinstance(left, cst.Attribute) or left.attr.value != "type":
            return None
        if not _is_device(left.value, at):  # a setting, say, has the word that it was given
            return None
        if string_of(old.comparator) != "cuda" or not isinstance(
            old.operator, (cst.Equal, cst.NotEqual)
        ):
            return None
        word = cst.SimpleString('"npu"')
        at.note(self, old.comparator, word, reason="the kind of the device in the port")
        return new.with_changes(comparator=word)


class MetaRule(PortRule):
    """What is made on the device ``"meta"`` is made as on any other."""

    name = "meta"
    reason = "what stands on torch's meta device has no values there, and gets them later"
    visits = (cst.SimpleString,)

    def act(self, old: cst.SimpleString, new: Any, at: At) -> Any:
        """Say what the device means in the port, where one is named."""
        if (string_of(old) or "").partition(":")[0] != "meta":
            return None
        arg: Any = at.names.parents.get(old)
        call: Any = at.names.parents.get(arg) if isinstance(arg, cst.Arg) else None
        if not isinstance(call, cst.Call):
            return None
        word = arg.keyword.value if arg.keyword else ""
        moved = not word and isinstance(call.func, cst.Attribute) and call.func.attr.value == "to"
        if word == "device" or moved or at.names.called(call) in _SETS_PLACE:
            at.note(self, old, new, "changed", self.reason, _META)
        return None


_SETS_PLACE = ("torch.device", "torch.set_default_device")
_META = (
    "layers and tensors are made with values, on the device of the process: it takes their memory, "
    "and random numbers are drawn that torch does not draw"
)


def _is_device(node: cst.BaseExpression, at: At) -> bool:
    """Return whether an expression is a device, by its name or by what makes it."""
    last = node.attr if isinstance(node, cst.Attribute) else node
    named = isinstance(last, cst.Name) and "device" in last.value.lower()
    return named or "torch.device" in at.names.call_names(node)


def _is_asked(old: cst.Attribute, at: At) -> bool:
    """Return whether a device is read for itself, not to have something made or moved there."""
    parent: Any = at.names.parents.get(old)
    if at.names.is_assigned(old):
        return False
    if isinstance(parent, cst.Call):
        return parent.func is not old
    if isinstance(parent, cst.Arg):
        call: Any = at.names.parents.get(parent)
        moved = isinstance(call, cst.Call) and code_of(call.func).rpartition(".")[2] == "to"
        return not moved and (parent.keyword is None or parent.keyword.value != "device")
    return True

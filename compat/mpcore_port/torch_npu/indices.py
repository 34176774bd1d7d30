"""Devices that are named by their number alone: ``x.to(rank)``, ``device_ids=[rank]``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.names import code_of
from mpcore_port.rule import Rule
from mpcore_port.scan import arguments
from mpcore_port.torch_npu.plan import need_npu

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["DeviceIndex", "PortableCalls"]

_RANK = re.compile(r"(^|[_.])(local_?rank|rank|gpu|gpu_?id|device_?id|dev_?id)$", re.I)
_RANKS = ("torch.distributed.get_rank", "torch.cuda.current_device", "torch.npu.current_device")
_NOT_ON_A_CPU = {
    "torch.cuda.set_device": "None",
    "torch.cuda.synchronize": "None",
    "torch.cuda.current_device": "0",
    "torch.cuda.reset_peak_memory_stats": "None",
}
_PARALLEL = "DistributedDataParallel"
_DEVICES = ("device_ids", "output_device")


class DeviceIndex(Rule):
    """``x.to(rank)`` names its device: a bare number means CUDA, or what torch takes for it."""

    name = "device numbers"
    reason = "a bare number names no kind of device"
    visits = (cst.Call,)

    def leave(self, old: Any, new: Any, at: At) -> Any:
        """Write the device out, where the argument is surely a number or is called a rank."""
        if isinstance(old.func, cst.Attribute) and old.func.attr.value == "to":
            if not old.args or old.args[0].star or at.names.called(old) is not None:
                return None
            keyword = old.args[0].keyword
            places = [0] if keyword is None or keyword.value == "device" else []
        elif (at.names.called(old) or "").startswith("torch."):
            named = [arg.keyword.value if arg.keyword else "" for arg in old.args]
            places = [i for i, name in enumerate(named) if name == "device"]
            places += [0] if at.names.called(old) == "torch.device" and len(old.args) == 1 else []
        else:
            return None
        places = [place for place in places if _is_index(old.args[place].value, at)]
        if not places:
            return None
        place = places[0]
        args = list(new.args)
        written = _written(args[place].value, at)
        args[place] = args[place].with_changes(value=cst.parse_expression(written))
        changed = new.with_changes(args=args)
        need_npu(at)
        at.note(self, old, changed)
        return changed


def _written(node: cst.BaseExpression, at: At) -> str:
    text = code_of(node)
    if at.options.portable:
        return f"_port_place({text})"
    if isinstance(node, cst.Integer):
        return f'"npu:{text}"'
    quote = '"' if '"' not in text else "'"
    return f"f{quote}npu:{{{text}}}{quote}"


def _is_index(node: cst.BaseExpression, at: At) -> bool:
    """Return whether an expression is the number of a device, and nothing else."""
    if isinstance(node, (cst.Integer, cst.Name, cst.Attribute, cst.Call)):
        if isinstance(node, cst.Integer):
            return True
        found = at.names.origins(node)
        # a parameter that its function alone hands on, to itself, comes from nowhere
        if found and all(_is_number(origin, at) for origin in found):
            return True
        values = at.values
        unknown = all(values.kind(o) in ("unknown", "neutral") for o in found)
        return unknown and bool(_RANK.search(code_of(node)))
    return False


def _is_number(node: cst.BaseExpression, at: At) -> bool:
    if isinstance(node, cst.Integer):
        return True
    if not isinstance(node, cst.Call):
        return False
    return code_of(node.func) == "int" or at.names.called(node) in _RANKS


class PortableCalls(Rule):
    """Calls that a CPU has not are left out there; ``device_ids`` are for accelerators."""

    name = "portable calls"
    reason = "a CPU has no such call"
    visits = (cst.Call,)

    def leave(self, old: Any, new: Any, at: At) -> Any:
        """Put one call, or one argument, under a condition."""
        name = at.names.called(old) or ""
        if name in _NOT_ON_A_CPU:
            need_npu(at)
            other = _NOT_ON_A_CPU[name]
            text = f'({code_of(new)} if _port_device != "cpu" else {other})'
            changed = cst.parse_expression(text)
            at.note(self, old, changed)
            return changed
        given = arguments(old, ()) if name.endswith(_PARALLEL) else {}
        devices = [code_of(given[key]) for key in _DEVICES if key in given]
        if not devices or all("_port_device" in text or text == "None" for text in devices):
            return None
        args = [
            arg.with_changes(value=_only_there(arg.value))
            if arg.keyword is not None and arg.keyword.value in _DEVICES
            else arg
            for arg in new.args
        ]
        need_npu(at)
        changed = new.with_changes(args=args)
        at.note(self, old, changed, reason="on a CPU a model has no device ids")
        return changed


def _only_there(value: cst.BaseExpression) -> cst.BaseExpression:
    text = code_of(value)
    if isinstance(value, (cst.IfExp, cst.Lambda)) and not value.lpar:
        text = f"({text})"
    return cst.parse_expression(f'({text} if _port_device != "cpu" else None)')

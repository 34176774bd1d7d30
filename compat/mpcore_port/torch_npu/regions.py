"""Autocast whose device nobody can see here, and losses that never get onto the device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.names import code_of, string_of
from mpcore_port.reached import Reached
from mpcore_port.rule import Rule
from mpcore_port.scan import AUTOCASTS, SCALERS, arguments
from mpcore_port.torch_npu.plan import scaler_class

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["KnownAutocast", "OnDevice"]

_LOW = ("torch.float16", "torch.bfloat16", "torch.half")
_DTYPES = (*_LOW, "torch.float32", "torch.float", "torch.float64", "torch.double")


class KnownAutocast(Rule):
    """A region's device and dtype are known here, or it may switch itself off unseen."""

    name = "autocast arguments"
    reason = "autocast switches itself off, with a warning, for a device or dtype that it has not"
    visits = (cst.Call,)

    def leave(self, old: Any, new: Any, at: At) -> Any:
        """Note a region whose device or dtype this file does not say."""
        name = at.names.called(old)
        if name not in AUTOCASTS:
            return None
        given = arguments(old, AUTOCASTS[str(name)])
        parts = []
        if "device_type" in given and not _is_known_device(given["device_type"], at):
            parts.append(f"device_type={code_of(given['device_type'])}")
        if "dtype" in given and not _is_known_dtype(given["dtype"], at):
            parts.append(f"dtype={code_of(given['dtype'])}")
        if parts:
            said = " and ".join(parts)
            at.unproven(self, old, f"{said} is not known here: {self.reason}", new)
        return None


def _is_known_device(node: cst.BaseExpression, at: At) -> bool:
    return all(_is_device(origin, at) for origin in at.names.origins(node))


def _is_device(node: cst.BaseExpression, at: At) -> bool:
    if string_of(node) is not None or code_of(node) in ("_port_device", "None"):
        return True
    if isinstance(node, cst.Attribute) and node.attr.value in ("type", "device"):
        return _is_known_device(node.value, at)
    if isinstance(node, cst.Call):
        return at.names.called(node) == "torch.device" and all(
            _is_known_device(arg.value, at) for arg in node.args[:1]
        )
    return False


def _is_known_dtype(node: cst.BaseExpression, at: At) -> bool:
    return all(_is_dtype(origin, at) for origin in at.names.origins(node))


def _is_dtype(node: cst.BaseExpression, at: At) -> bool:
    if at.names.qualified(node) in _DTYPES or code_of(node) == "None":
        return True
    if isinstance(node, cst.Subscript):
        tables = [o for o in at.names.origins(node.value) if isinstance(o, cst.Dict)]
        values = [element.value for table in tables for element in table.elements]
        return bool(values) and all(_is_dtype(value, at) for value in values)
    called = at.names.called(node)
    return called in ("torch.get_autocast_gpu_dtype", "torch.get_autocast_dtype")


class OnDevice(Rule):
    """NPU's scaler raises for a loss on the CPU, and where nothing is moved, it is there."""

    name = "loss on the CPU"
    reason = (
        "nothing in these files is put on a device, and torch_npu's scaler raises ValueError for a "
        "loss on the CPU; move model and data, as with .to('npu')"
    )
    visits = (cst.Call,)

    def leave(self, old: Any, new: Any, at: At) -> Any:
        """Refuse a loss that is scaled on the CPU; the code stays, it raises by itself."""
        func = old.func
        if not isinstance(func, cst.Attribute) or func.attr.value != "scale" or not old.args:
            return None
        if at.project.moves or at.project.apex:
            return None
        made = [o for o in at.names.origins(func.value) if isinstance(o, cst.Call)]
        scalers = [o for o in made if at.names.called(o) in SCALERS]
        if not any(scaler_class(scaler, at) == "npu" for scaler in scalers):
            return None
        if Reached(at.source.text).surely(at.line(old), at.column(old)):
            at.comment(old, f"refused: {self.reason}")
            at.note(self, old, new, "refused")
        else:
            at.unproven(self, old, self.reason, new)
        return None

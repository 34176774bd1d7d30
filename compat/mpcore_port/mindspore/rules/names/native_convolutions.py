"""Convolutions of plain ports: MindSpore's own, where it can be called with what is given."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import libcst as cst

from mpcore_port.mindspore.rules.place import need
from mpcore_port.names import code_of
from mpcore_port.scan import arguments

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["AXES", "UNSEEN_PADDING", "is_convolution", "native_convolution"]

AXES = "its weight has four axes, torch's three"
UNSEEN_PADDING = "MindSpore's own takes a padding of numbers, and this one is not written out"
_FIRST = ("in_channels", "out_channels", "kernel_size")
_LAYER = (
    *_FIRST,
    *("stride", "padding", "dilation", "groups", "bias", "padding_mode", "device", "dtype"),
)
_FUNCTION = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
_RENAMED = {"groups": "group", "bias": "has_bias"}
_WHOLE = re.compile(r"\d+|\(\s*\d+\s*,\s*\d+\s*\)")


def is_convolution(name: str) -> bool:
    """Return whether a name of the runtime is a convolution that MindSpore has as well."""
    return name in ("Conv1d", "conv2d")


def native_convolution(name: str, new: cst.Call, at: At) -> tuple[cst.Call, bool] | None:
    """Return a call of MindSpore's own, and whether its padding is seen to be of numbers."""
    if any(arg.star for arg in new.args):
        return None
    given = arguments(new, _LAYER if name == "Conv1d" else _FUNCTION)
    padding = given.get("padding", cst.Integer("0"))
    seen = bool(_WHOLE.fullmatch(code_of(padding)))
    if isinstance(padding, cst.BaseString):
        return None
    if name == "conv2d":
        return _function(given, padding, at), seen
    sizes = [given[key] for key in ("kernel_size", "stride", "dilation") if key in given]
    if "padding_mode" in given or any(isinstance(one, (cst.Tuple, cst.List)) for one in sizes):
        return None
    return (_layer(given, padding, at), seen) if isinstance(padding, cst.Integer) else None


def _layer(given: dict[str, cst.BaseExpression], padding: cst.BaseExpression, at: At) -> cst.Call:
    first = [code_of(given[key]) for key in _FIRST if key in given]
    code: dict[str, str] = {
        key: code_of(given[key]) for key in ("stride", "dilation", "groups") if key in given
    }
    code |= {"padding": code_of(padding)} if code_of(padding) != "0" else {}
    code["bias"] = code_of(given["bias"]) if "bias" in given else "True"
    named = [f"{_RENAMED.get(key, key)}={value}" for key, value in code.items()]
    return _call(f"{need(at, 'nn')}.Conv1d", [*first, *named, "pad_mode='pad'"])


def _function(
    given: dict[str, cst.BaseExpression], padding: cst.BaseExpression, at: At
) -> cst.Call:
    first = [code_of(given[key]) for key in _FUNCTION[:2] if key in given]
    named = [f"{key}={code_of(given[key])}" for key in _FUNCTION[2:4] if key in given]
    named += [f"padding={code_of(padding)}"] if "padding" in given else []
    named += [f"{key}={code_of(given[key])}" for key in _FUNCTION[5:] if key in given]
    return _call(f"{need(at, 'ops')}.conv2d", [*first, "pad_mode='pad'", *named])


def _call(function: str, args: list[str]) -> cst.Call:
    return cst.ensure_type(cst.parse_expression(f"{function}({', '.join(args)})"), cst.Call)

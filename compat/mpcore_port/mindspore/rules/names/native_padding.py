"""Padding whose sizes a script writes out: none below zero, so MindSpore's own does the same."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import libcst as cst

from mpcore_port.mindspore.rules.place import need
from mpcore_port.names import code_of
from mpcore_port.scan import arguments

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["UNSEEN", "is_padding", "native_padding"]

UNSEEN = "MindSpore's own gives other numbers for sizes below zero, and these are not written out"
_KINDS = {
    "ZeroPad2d": ("padding",),
    **{f"ConstantPad{axes}d": ("padding", "value") for axes in (1, 2, 3)},
    **{
        f"{kind}Pad{axes}d": ("padding",)
        for kind in ("Reflection", "Replication")
        for axes in (1, 2, 3)
    },
}
_FUNCTION = ("input", "pad", "mode", "value")
_RENAMED = {"input": "input_x", "pad": "padding"}
_BELOW = re.compile(r"(^|[\[(,])\s*-")
_NUMBER = re.compile(r"\d+")


def is_padding(name: str) -> bool:
    """Return whether a name of the runtime pads as a function or layer of MindSpore's does."""
    return name == "pad" or name in _KINDS


def native_padding(name: str, new: cst.Call, at: At) -> tuple[cst.Call, bool] | None:
    """Return a call of MindSpore's own, and whether its sizes are seen to be none below zero."""
    if any(arg.star for arg in new.args):
        return None
    known = arguments(new, _FUNCTION if name == "pad" else _KINDS[name])
    sizes = known.get("pad" if name == "pad" else "padding")
    if sizes is None or _is_below_zero(sizes):
        return None
    if name == "pad" and not _has_kernel(known, sizes):
        return None
    home = "ops" if name == "pad" else "nn"
    func = cst.parse_expression(f"{need(at, home)}.{name}")
    args = [
        arg.with_changes(keyword=cst.Name(_RENAMED[arg.keyword.value]))
        if name == "pad" and arg.keyword is not None and arg.keyword.value in _RENAMED
        else arg
        for arg in new.args
    ]
    return new.with_changes(func=func, args=args), _is_written_out(sizes)


def _has_kernel(known: dict[str, cst.BaseExpression], sizes: cst.BaseExpression) -> bool:
    """Return whether ``ops.pad`` has a kernel for it: none reflects three axes."""
    mode = code_of(known["mode"]).strip("'\"") if "mode" in known else "constant"
    if mode in ("constant", "replicate"):
        return True
    count = len(sizes.elements) if isinstance(sizes, (cst.Tuple, cst.List)) else 6
    return mode == "reflect" and count < 6


def _is_below_zero(sizes: cst.BaseExpression) -> bool:
    return bool(_BELOW.search(code_of(sizes)))


def _is_written_out(sizes: cst.BaseExpression) -> bool:
    if isinstance(sizes, (cst.Tuple, cst.List)):
        return all(
            isinstance(part, cst.Element) and bool(_NUMBER.fullmatch(code_of(part.value)))
            for part in sizes.elements
        )
    return bool(_NUMBER.fullmatch(code_of(sizes)))

"""Decisions that several rules have to agree on; each is made from the original tree."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.children import below
from mpcore_port.handlers import caught, raises
from mpcore_port.names import dotted, string_of
from mpcore_port.scan import SCALERS, arguments
from mpcore_port.torch_npu.tables import settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mpcore_port.rule import At, Rule

__all__ = [
    "DEFAULT_TYPE",
    "context_row",
    "goes",
    "in_place_of",
    "is_cuda",
    "is_said",
    "is_setting",
    "keeps_stock",
    "kept_import",
    "need_npu",
    "scaler_class",
    "sets_default_type",
    "standing_for",
]

DEFAULT_TYPE = (
    "torch takes types of its own here, and torch_npu's are registered beside them; "
    "torch.set_default_device('npu') is what is left of it"
)
"""Why nothing is known of a type of tensors on an NPU as the default one."""

_MARKS = ("torch.cuda.nvtx", "torch.autograd.profiler.emit_nvtx")
_EXPECTED = {"ImportError", "ModuleNotFoundError", "Exception", ""}


_PORTABLE = """
try:
    import torch_npu
except ImportError:
    torch_npu = None
_port_device = "npu" if torch_npu is not None and {torch}.npu.is_available() else "cuda"
_port_device = _port_device if _port_device == "npu" or {torch}.cuda.is_available() else "cpu"
_port_accelerator = {torch}.npu if _port_device == "npu" else {torch}.cuda
_port_backend = {{"npu": "hccl", "cuda": "nccl", "cpu": "gloo"}}[_port_device]
def _port_place(device=None):
    if isinstance(device, int):
        return {torch}.device(_port_device, device if _port_device != "cpu" else 0)
    return {torch}.device(device or _port_device)
"""


def need_npu(at: At) -> None:
    """Have torch_npu imported; in a portable port, have the device chosen where it runs."""
    if not at.options.portable:
        at.need("import torch_npu")
    elif "_port_device" not in at.names.top.bindings:
        at.preambles["portable"] = _PORTABLE.format(torch=at.name_of("torch", "torch"))


def _row(kind: str, name: str | None, at: At) -> dict[str, Any] | None:
    if at.options.portable and not str(name).startswith(_MARKS):
        return None  # a setting of CUDA's libraries is one where CUDA is
    for row in settings()[kind] if name else ():
        if name == row["name"] or str(name).startswith(f"{row['name']}."):
            return dict(row)
    return None


def goes(statement: cst.CSTNode | None, at: At) -> dict[str, Any] | None:
    """Return the row by which a statement line is removed, or None.

    Only assignments of a plain value to settings, and calls of them, with nothing else in the
    line; the value of the assignment must not do anything.
    """
    if not isinstance(statement, cst.SimpleStatementLine):
        return None
    known = at.once(_removals)
    if statement not in known:
        rows = [_small(small, at) for small in statement.body]
        known[statement] = rows[0] if rows and all(rows) else None
    return known[statement]


def _removals(_: At) -> dict[cst.CSTNode, dict[str, Any] | None]:
    """Return where the answers of ``goes`` are kept, by statement."""
    return {}


def _small(small: cst.BaseSmallStatement, at: At) -> dict[str, Any] | None:
    if isinstance(small, cst.Assign):
        places = [t.target if isinstance(t.target, cst.Attribute) else None for t in small.targets]
        rows = [_row("setting", at.names.qualified(place), at) for place in places]
        stays = _does_something(small.value) or any(_is_asked(place, at) for place in places)
        return rows[0] if all(rows) and not stays else None
    if isinstance(small, cst.Expr) and isinstance(small.value, cst.Call):
        name = at.names.called(small.value)
        return _row("setting", name, at) or _row("context", name, at)  # made, and not entered
    return None


def is_setting(place: cst.Attribute, at: At) -> bool:
    """Return whether this is a setting of CUDA's libraries that the file reads as well."""
    return _row("setting", at.names.qualified(place), at) is not None and _is_asked(place, at)


def _is_asked(place: cst.Attribute | None, at: At) -> bool:
    """Return whether a file reads a setting that it sets: it has to be what it was set to."""
    name = at.names.qualified(place) if place is not None else None
    return name is not None and any(
        at.names.qualified(node) == name and at.names.is_reference(node) and not _is_set(node, at)
        for node in at.names.by_type[cst.Attribute]
    )


def _is_set(node: cst.Attribute, at: At) -> bool:
    return isinstance(at.names.parents.get(node), cst.AssignTarget)


def _does_something(node: cst.CSTNode) -> bool:
    acts = (cst.Call, cst.Await, cst.Yield, cst.NamedExpr)
    return any(type(one) in acts for one in below(node))


def context_row(call: cst.CSTNode | None, at: At) -> dict[str, Any] | None:
    """Return the row by which a with-item becomes a null context, or None."""
    if not isinstance(call, cst.Call) or not isinstance(at.names.parents.get(call), cst.WithItem):
        return None
    return _row("context", at.names.called(call), at)


_SAYS = re.compile(r"(^|[._])(print|pprint|log|debug|info|warning|error|write)$")
_OF_NCCL = "torch.cuda.nccl.version"


def is_said(call: cst.CSTNode | None, at: At) -> bool:
    """Return whether this is the version of NCCL in a line that only prints or logs."""
    if not isinstance(call, cst.Call) or at.names.called(call) != _OF_NCCL:
        return False
    above = [one for one in at.names.ancestors(call) if isinstance(one, cst.Call)]
    return bool(above) and _SAYS.search(dotted(above[-1].func)) is not None


def is_cuda(text: str | None) -> bool:
    """Return whether ``text`` names CUDA or one of its devices."""
    return text is not None and (text == "cuda" or text.startswith("cuda:"))


def scaler_class(call: cst.Call, at: At) -> str:
    """Return which scaler a construction becomes: "npu", "stock", "refused", or "" for none."""
    name = at.names.called(call)
    if name not in SCALERS or "npu" in str(name):
        return ""
    if at.options.portable:
        return "stock"
    if any(arg.star == "*" for arg in call.args):
        return "refused"
    device = arguments(call, SCALERS[str(name)]).get("device")
    if device is None:
        return "npu"
    texts = [string_of(origin) for origin in at.names.origins(device)]
    if texts and all(is_cuda(text) for text in texts):
        return "npu"
    return "" if all(text == "cpu" for text in texts) else "stock"


def keeps_stock(at: At) -> bool:
    """Return whether some scaler of the file stays torch's own, so that its import has to."""
    return at.once(_some_stock)


def _some_stock(at: At) -> bool:
    return any(
        scaler_class(call, at) in ("stock", "")
        and not str(at.names.called(call)).startswith("torch.cuda")
        for call in at.names.calls
        if at.names.called(call) in SCALERS
    )


def sets_default_type(node: cst.CSTNode, at: At) -> bool:
    """Return whether a type of tensors is made the default one of torch's process."""
    for above in at.names.ancestors(node):
        if isinstance(above, cst.Call):
            return at.names.called(above) == "torch.set_default_tensor_type"
        if isinstance(above, cst.BaseCompoundStatement):
            return False
    return False


def standing_for(
    names: Sequence[str], small: cst.CSTNode, why: str, rule: Rule, at: At
) -> list[Any]:
    """Return lines that bind what an import would to what raises where it is used."""
    return [
        cst.SimpleStatementLine(
            [cst.Assign([cst.AssignTarget(cst.Name(name))], at.refuse(rule, small, why))]
        )
        for name in names
    ]


def in_place_of(new: Any, lines: list[Any]) -> Any:
    """Return lines where one stood, with what is above and behind it."""
    lines[0] = lines[0].with_changes(leading_lines=new.leading_lines)
    lines[-1] = lines[-1].with_changes(trailing_whitespace=new.trailing_whitespace)
    return lines[0] if len(lines) == 1 else cst.FlattenSentinel(lines)


def kept_import(node: cst.CSTNode, at: At) -> bool:
    """Return whether an import stands where its failure is expected."""
    for above in at.names.ancestors(node):
        if isinstance(above, cst.Try):
            for handler in above.handlers:
                if caught(handler) & _EXPECTED and not raises(handler):
                    return True
    return False

"""One script for NPU, CUDA and CPU: the device is chosen where the script runs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.arguments import by_keyword
from mpcore_port.names import code_of, string_of
from mpcore_port.rule import Kind, Rule
from mpcore_port.scan import AUTOCASTS, SCALERS, arguments
from mpcore_port.torch_npu.devices import device_text, is_own_name
from mpcore_port.torch_npu.plan import context_row, goes, need_npu
from mpcore_port.torch_npu.renames import is_variable
from mpcore_port.torch_npu.tables import lookup

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["PortableAmp", "PortableGroup", "PortableImports", "PortableMethods", "PortableNames"]
__all__ += ["PortableStrings"]

_CPU = "on a CPU, where CUDA's AMP switches itself off, the region runs in float16 as well"
_CUDA_AMP = "torch.npu.amp."


class PortableImports(Rule):
    """Imports of torch.cuda go: each use is written out."""

    name = "portable imports"
    reason = "each use is written out, by the device that is there"
    visits = (cst.SimpleStatementLine,)

    def leave(self, old: Any, new: Any, at: At) -> Any:
        """Take the names that moved out of one import."""
        small = old.body[0] if len(old.body) == 1 else None
        if isinstance(small, cst.Import):
            names = [code_of(alias.name) for alias in small.names]
            if not any(name.startswith("torch.cuda") for name in names):
                return None
            if len(names) == 1 and small.names[0].asname is None:
                changed = new.with_changes(body=[_plain("torch")])
                at.note(self, small, "import torch")
                return changed
            return at.drop(self, old, new, self.reason)
        if not isinstance(small, cst.ImportFrom) or not small.module or small.relative:
            return None
        if isinstance(small.names, cst.ImportStar):
            return None
        module = code_of(small.module)
        kept = [a for a in small.names if not _moves(f"{module}.{a.name.value}")]
        if len(kept) == len(small.names):
            return None
        need_npu(at)
        if not kept:
            return at.drop(self, old, new, self.reason)
        kept[-1] = kept[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
        changed = new.body[0].with_changes(names=kept)
        at.note(self, small, changed)
        return new.with_changes(body=[changed])


def _plain(name: str) -> cst.Import:
    return cst.Import([cst.ImportAlias(cst.Name(name))])


def _moves(name: str) -> bool:
    found = lookup(name)
    return (found is not None and found[0].to.startswith("torch.npu")) or name in _CUSTOM


_CUSTOM = {"torch.cuda.amp.custom_fwd", "torch.cuda.amp.custom_bwd"}


class PortableNames(Rule):
    """``torch.cuda.X`` becomes ``_port_accelerator.X``; AMP becomes torch.amp's."""

    name = "portable names"
    reason = "the module of the device that is there"
    visits = (cst.Name, cst.Attribute)

    def leave(self, old: Any, new: Any, at: At) -> Any:
        """Write one use out."""
        if not at.names.is_reference(old):
            return None
        name = at.names.qualified(old)
        found = lookup(name)
        if found is None or str(name).startswith(("torch.profiler", "torch.distributed")):
            return None
        row, rest = found
        variable = at.names.imported(old) is None and at.names.held(at.names.root(old))
        if variable and (isinstance(old, cst.Name) or is_variable(at.names.root(old), row, at)):
            return None  # what the variable is set to is written out
        call = at.names.parents.get(old)
        if goes(at.names.statement(old), at) or context_row(call, at):
            return None
        need_npu(at)
        if row.kind == "refused":
            return at.refuse(self, old, row.reason)
        torch = at.name_of("torch", "torch")
        if row.to.startswith(_CUDA_AMP):
            last = row.to[len(_CUDA_AMP) :]
            written = f"{torch}.autocast" if last == "autocast" else f"{torch}.amp.{last}"
        elif row.to.startswith("torch.npu"):
            written = "_port_accelerator" + row.to[len("torch.npu") :]
        else:
            written = torch + row.to[len("torch") :]
        changed = cst.parse_expression(written + rest)
        if code_of(changed) == code_of(old):
            return None
        at.note(
            self,
            old,
            changed,
            row.kind,
            self.reason if row.kind == "exact" else row.reason,
            row.effect,
        )
        return changed.with_changes(lpar=old.lpar, rpar=old.rpar)


class PortableStrings(Rule):
    """``"cuda"`` becomes ``_port_device``, ``"nccl"`` becomes ``_port_backend``."""

    name = "portable strings"
    reason = "the device that is there"
    visits = (cst.SimpleString, cst.FormattedStringText)

    def leave(self, old: Any, new: Any, at: At) -> Any:
        """Replace one string, or the first piece of an f-string."""
        if isinstance(old, cst.FormattedStringText):
            whole = at.names.parents[old]
            if getattr(whole, "parts", [None])[0] is not old or not re.match(r"cuda:?$", old.value):
                return None
            need_npu(at)
            at.note(self, whole, code_of(whole).replace("cuda", "{_port_device}", 1))
            piece = cst.FormattedStringExpression(cst.Name("_port_device"))
            rest = old.value[len("cuda") :]
            parts = [piece, cst.FormattedStringText(rest)] if rest else [piece]
            return cst.FlattenSentinel(parts)
        text = string_of(old)
        if not text or device_text(text) is None or is_own_name(old, at):
            return None
        if text.startswith("torch."):
            return at.refuse(self, old, "name the dtype, x.to(torch.float16), not the type")
        if isinstance(at.names.parents[old], cst.ConcatenatedString) or "," in text:
            return at.refuse(self, old, "write the string for the device that is there, by hand")
        changed = cst.parse_expression(_expression(text, old.quote))
        need_npu(at)
        at.note(self, old, changed)
        return changed


def _expression(text: str, quote: str) -> str:
    if text == "cuda":
        return "_port_device"
    if "nccl" in text.lower():
        return "_port_backend"
    return f"(_port_device + {quote}{text[len('cuda') :]}{quote})"


class PortableMethods(Rule):
    """``x.cuda(...)`` becomes ``x.to(_port_device, ...)``; ``is_cuda`` asks for the type."""

    name = "portable methods"
    reason = "the device that is there"
    visits = (cst.Call, cst.Attribute)

    def leave(self, old: Any, new: Any, at: At) -> Any:
        """Rewrite one call or attribute."""
        if isinstance(old, cst.Attribute):
            if old.attr.value != "is_cuda":
                return None
            need_npu(at)
            changed = cst.parse_expression(f"({code_of(new.value)}.device.type == _port_device)")
            at.note(self, old, changed)
            return changed
        func = old.func
        if not isinstance(func, cst.Attribute) or func.attr.value != "cuda":
            return None
        if at.names.qualified(func) is not None:
            return None
        need_npu(at)
        changed = new.with_changes(
            func=new.func.with_changes(attr=cst.Name("to")), args=_placed(new)
        )
        at.note(self, old, changed)
        return changed


def _placed(call: cst.Call) -> list[cst.Arg]:
    """Return the arguments of ``cuda`` as those of ``to``: device, then the rest by keyword."""
    device: cst.BaseExpression = cst.Name("_port_device")
    rest: list[cst.Arg] = []
    for index, arg in enumerate(call.args):
        keyword = arg.keyword.value if arg.keyword else ("device", "non_blocking")[min(index, 1)]
        if keyword == "device":
            device = cst.parse_expression(f"_port_place({code_of(arg.value)})")
        else:
            rest.append(by_keyword(keyword, arg.value))
    return _joined([cst.Arg(device), *rest])


def _joined(args: list[cst.Arg]) -> list[cst.Arg]:
    comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    last = len(args) - 1
    return [
        a.with_changes(comma=comma) if i < last and not isinstance(a.comma, cst.Comma) else a
        for i, a in enumerate(args)
    ]


class PortableAmp(Rule):
    """Autocast, scalers and custom functions are told the device."""

    name = "portable amp"
    reason = "torch.amp's spelling, which is told the device"
    visits = (cst.Call, cst.Decorator)

    def leave(self, old: Any, new: Any, at: At) -> Any:
        """Rewrite one call, or one bare decorator."""
        if isinstance(old, cst.Decorator):
            if at.names.qualified(old.decorator) not in _CUSTOM:
                return None
            given = [by_keyword("device_type", cst.Name("_port_device"))]
            call = cst.Call(new.decorator, given)
            at.note(self, old.decorator, call)
            return new.with_changes(decorator=call)
        name = at.names.called(old) or ""
        if name in _CUSTOM:
            kept = list(new.args)
            changed = new.with_changes(
                args=_joined([*kept, by_keyword("device_type", cst.Name("_port_device"))])
            )
        elif name in AUTOCASTS and name.startswith("torch.cuda"):
            changed = self._autocast(name, old, new, at)
        elif name in SCALERS and self._needs_device(name, old, at):
            changed = self._scaler(name, new)
        else:
            return None
        need_npu(at)
        kind: Kind = "changed" if name in AUTOCASTS else "exact"
        at.note(self, old, changed, kind, "", _CPU if name in AUTOCASTS else "")
        return changed

    def _needs_device(self, name: str, old: cst.Call, at: At) -> bool:
        if name.startswith("torch.cuda"):
            return True  # the device stands in front of the same parameters
        if "device" in arguments(old, SCALERS[name]):
            return False
        if any(arg.star for arg in old.args):
            at.note(
                self,
                old,
                old,
                "changed",
                "arguments behind * or ** are not known here",
                "a scaler without a device means CUDA: elsewhere it switches itself off",
            )
            return False
        return True

    def _autocast(self, name: str, old: Any, new: Any, at: At) -> Any:
        args = _by_keyword(new.args, AUTOCASTS[name])
        if "dtype" not in arguments(old, AUTOCASTS[name]):
            torch = at.name_of("torch", "torch")
            args.append(by_keyword("dtype", cst.parse_expression(f"{torch}.float16")))
        return new.with_changes(args=_joined([cst.Arg(cst.Name("_port_device")), *args]))

    def _scaler(self, name: str, new: Any) -> Any:
        names = [n for n in SCALERS[name] if n != "device"]
        return new.with_changes(
            args=_joined([cst.Arg(cst.Name("_port_device")), *_by_keyword(new.args, names)])
        )


def _by_keyword(args: Any, names: Any) -> list[cst.Arg]:
    listed = list(names)
    made = []
    for index, arg in enumerate(args):
        if arg.keyword is None and not arg.star:
            arg = by_keyword(listed[index], arg.value)
        made.append(arg.with_changes(comma=cst.MaybeSentinel.DEFAULT))
    return made


class PortableGroup(Rule):
    """``init_process_group()`` without a backend gets that of the device."""

    name = "portable process group"
    reason = "the backend is written, by the device that is there"
    visits = (cst.Call, cst.Attribute)

    def leave(self, old: Any, new: Any, at: At) -> Any:
        """Write the backend."""
        if isinstance(old, cst.Attribute):
            if at.names.qualified(old) != "torch.distributed.Backend.NCCL":
                return None
            need_npu(at)
            changed: Any = cst.Name("_port_backend")
        elif at.names.called(old) == "torch.distributed.is_nccl_available":
            need_npu(at)
            changed = cst.parse_expression('(_port_backend != "gloo")')
        else:
            if at.names.called(old) != "torch.distributed.init_process_group":
                return None
            if "backend" in arguments(old, ("backend",)) or any(arg.star for arg in old.args):
                return None
            need_npu(at)
            first = by_keyword("backend", cst.Name("_port_backend"))
            changed = new.with_changes(args=_joined([first, *new.args]))
        at.note(self, old, changed)
        return changed

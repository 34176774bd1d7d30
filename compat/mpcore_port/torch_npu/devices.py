"""Strings and methods that name the device."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.names import code_of, dotted, string_of
from mpcore_port.rule import Rule
from mpcore_port.scan import arguments
from mpcore_port.torch_npu.plan import DEFAULT_TYPE, is_cuda, need_npu, sets_default_type
from mpcore_port.torch_npu.tables import lookup, settings

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["DeviceFlag", "DeviceMethod", "DeviceOfSettings", "DeviceString", "Environment"]
__all__ += ["device_text", "is_own_name"]

_TENSOR = re.compile(r"torch\.cuda\.\w+(Tensor|Storage)$")
_BACKENDS = re.compile(r"^(nccl|(\w+:\w+,)*cuda:nccl(,\w+:\w+)*)$")
_DEVICES = {"cuda", "cpu", "mps", "xpu", "npu", "meta", "mtia", "hpu", "tpu", "rocm"}


def device_text(text: str) -> str | None:
    """Return what a string that names CUDA, its devices or NCCL is on an NPU, else None."""
    if is_cuda(text) and not re.search(r"\s", text) and not text.startswith("cuda:nccl"):
        return "npu" + text[len("cuda") :]
    if text == "NCCL":
        return "hccl"  # torch takes its name in any case
    if _BACKENDS.match(text):
        return text.replace("cuda:", "npu:").replace("nccl", "hccl")
    if _TENSOR.match(text):
        found = lookup(text)
        if found is not None and found[0].to:
            return found[0].to
    return None


class DeviceString(Rule):
    """``"cuda"``, ``"cuda:0"``, ``f"cuda:{i}"``, ``"nccl"``: arguments, defaults, tests, dicts."""

    name = "device strings"
    reason = "the name of the device, or of its communication, on an NPU"
    visits = (cst.SimpleString, cst.FormattedStringText)

    def leave(self, old: Any, new: Any, at: At) -> Any:
        """Rewrite one string, or the first piece of an f-string."""
        if isinstance(old, cst.FormattedStringText):
            return self._piece(old, new, at)
        text = string_of(old)
        to = device_text(text) if text else None
        if to is None or isinstance(at.names.parents[old], cst.Expr):
            return None
        if is_own_name(old, at):
            at.note(self, old, old, "exact", "kept: a name of the script's own, no device")
            return None
        quote, prefix = old.quote, old.prefix
        changed = new.with_changes(value=f"{prefix}{quote}{to}{quote}")
        need_npu(at)
        if _is_map_location_key(old, at):
            at.note(
                self,
                old,
                changed,
                "changed",
                "map_location names the devices that a checkpoint was saved from",
                "a checkpoint from CUDA needs the key 'cuda:...', or map_location='cpu'",
            )
        elif sets_default_type(old, at):
            at.unproven(self, old, DEFAULT_TYPE, changed)
        else:
            at.note(self, old, changed)
        return changed

    def _piece(self, old: Any, new: Any, at: At) -> Any:
        whole = at.names.parents[old]
        if getattr(whole, "parts", [None])[0] is not old or not re.match(r"cuda:?$", old.value):
            return None
        changed = new.with_changes(value=old.value.replace("cuda", "npu"))
        need_npu(at)
        at.note(self, whole, code_of(whole).replace("cuda", "npu", 1))
        return changed


class DeviceOfSettings(Rule):
    """``torch.device(cfg.device)`` and backends of settings that are read from elsewhere."""

    name = "device of settings"
    reason = "its settings are not read here: they must say npu where they say cuda"
    _backend = "its settings are not read here: they must say hccl where they say nccl"
    visits = (cst.Call,)

    def leave(self, old: Any, new: Any, at: At) -> Any:
        """List one call, unless this file says what the setting is."""
        name = at.names.called(old)
        if name == "torch.device" and old.args:
            word, sets = _setting_of(old.args[0].value), _SETS
            named = word.lower().endswith(("device", "accelerator"))
            if named and not _is_set(word, sets, at):
                at.unproven(self, old, self.reason, new)
        elif name in _JOINS:
            given = arguments(old, _JOINS[name]).get("backend")
            if given is None or at.names.qualified(given):
                return None  # Backend.NCCL, a constant
            word = _setting_of(given)
            known = isinstance(given, cst.Attribute) and _is_an_option(at)
            if word and not known and not _is_set(word, _SETS_BACKEND, at):
                at.unproven(self, old, self._backend, new)
        return None


_SETS = (
    r"""--{word}["']|["']{word}["']\s*:|["']{word}["']\]\s*=[^=]|"""
    r"""\.{word}\s*=(?![= ]*torch\.device)|"""
    r"""\b{word}\s*(:[^=\n]*)?=\s*["']"""
)
# An option without a default is what the command line says.
_SETS_BACKEND = r"""--{word}["'](?:(?!add_argument).)*?\bdefault\s*=\s*["']|"""
_SETS_BACKEND += _SETS.partition("|")[2]
_JOINS = {
    "torch.distributed.init_process_group": ("backend",),
    "torch.distributed.new_group": ("ranks", "timeout", "backend"),
}


def _is_set(word: str, sets: str, at: At) -> bool:
    """Return whether this file says what the setting of that word is."""
    either = re.sub(r"[-_]", "[-_]", re.escape(word).replace("\\-", "-"))
    return re.search(sets.format(word=either), at.code, re.S) is not None


def _is_an_option(at: At) -> bool:
    """Return whether some file's option has the backend for its default: it is converted there."""
    return any(one.text == "nccl" and one.role == "argparse" for one in at.project.devices)


def _setting_of(node: cst.BaseExpression) -> str:
    """Return the word of ``cfg.device``, ``cfg["device"]``, ``cfg.get("device")``; else ""."""
    word: str | None = ""
    if isinstance(node, cst.Attribute):
        word = node.attr.value
    elif isinstance(node, cst.Subscript) and isinstance(node.slice[0].slice, cst.Index):
        word = string_of(node.slice[0].slice.value)
    elif isinstance(node, cst.Call) and node.args and dotted(node.func).endswith(".get"):
        word = string_of(node.args[0].value)
    return word or ""


def is_own_name(old: cst.CSTNode, at: At) -> bool:
    """Return whether the string is a name of the script's own: an option, a key, a docstring."""
    parent = at.names.parents[old]
    if isinstance(parent, cst.Expr):
        return True
    above = at.names.parents.get(parent)
    if isinstance(parent, cst.Index):
        element = at.names.enclosing(parent, cst.Subscript)
        return not _has_devices(element.value, at)
    if isinstance(parent, cst.DictElement) and parent.key is old:
        return not _is_device_dict(at.names.parents[parent], at)
    if isinstance(parent, cst.Arg) and isinstance(above, cst.Call):
        return _names_attribute(parent, above, at)
    return False


def _names_attribute(arg: cst.Arg, call: cst.Call, at: At) -> bool:
    """Return whether an argument is the name of an attribute, key or option."""
    last = dotted(call.func).rpartition(".")[2]
    place = next((i for i, a in enumerate(call.args) if a is arg), 0)
    if last in ("getattr", "hasattr", "setattr", "delattr") and place == 1:
        return at.names.qualified(call.args[0].value) != "torch"
    if last in ("get", "pop", "setdefault") and place == 0 and isinstance(call.func, cst.Attribute):
        return not _has_devices(call.func.value, at)
    return last == "add_argument" and arg.keyword is None


def _has_devices(node: cst.BaseExpression, at: At) -> bool:
    found = [origin for origin in at.names.origins(node) if isinstance(origin, cst.Dict)]
    return any(_is_device_dict(origin, at) for origin in found)


def _is_device_dict(node: cst.CSTNode, at: At) -> bool:
    keys = [string_of(getattr(e, "key", None)) for e in getattr(node, "elements", ())]
    if _in_map_location(node, at):
        return True
    known = [k for k in keys if k and (k in _DEVICES or re.match(r"(cuda|cpu):\d+$", k))]
    return len(known) == len(keys) and (len(keys) > 1 or any(k != "cuda" for k in known))


def _in_map_location(node: cst.CSTNode, at: At) -> bool:
    parent = at.names.parents.get(node)
    if isinstance(parent, cst.Arg) and parent.keyword is not None:
        return parent.keyword.value == "map_location"
    if isinstance(parent, cst.Assign):
        return any("map_location" in code_of(t.target) for t in parent.targets)
    return False


def _is_map_location_key(old: cst.CSTNode, at: At) -> bool:
    parent = at.names.parents[old]
    if not isinstance(parent, cst.DictElement) or parent.key is not old:
        return False
    return _in_map_location(at.names.parents[parent], at)


class DeviceMethod(Rule):
    """``x.cuda(...)`` becomes ``x.npu(...)``; so does a method of that name in a class."""

    name = "device methods"
    reason = "the method's name on an NPU"
    visits = (cst.Call, cst.FunctionDef)

    def leave(self, old: Any, new: Any, at: At) -> Any:
        """Rename one call or definition."""
        if isinstance(old, cst.FunctionDef):
            if old.name.value != "cuda" or not _is_method(old, at):
                return None
            need_npu(at)
            at.note(self, old.name, "npu")
            return new.with_changes(name=cst.Name("npu"))
        func = old.func
        if not isinstance(func, cst.Attribute) or func.attr.value != "cuda":
            return None
        if at.names.qualified(func) not in (None, "torch.Tensor.cuda", "torch.nn.Module.cuda"):
            return None
        changed = new.with_changes(func=new.func.with_changes(attr=cst.Name("npu")))
        need_npu(at)
        at.note(self, old, changed)
        return changed


def _is_method(node: cst.FunctionDef, at: At) -> bool:
    return isinstance(at.names.enclosing(node, cst.ClassDef, cst.FunctionDef), cst.ClassDef)


class DeviceFlag(Rule):
    """``x.is_cuda`` becomes ``x.is_npu``."""

    name = "is_cuda"
    reason = "the attribute's name on an NPU"
    visits = (cst.Attribute,)

    def leave(self, old: Any, new: Any, at: At) -> Any:
        """Rename one attribute."""
        if old.attr.value != "is_cuda":
            return None
        changed = new.with_changes(attr=cst.Name("is_npu"))
        need_npu(at)
        at.note(self, old, changed)
        return changed


class Environment(Rule):
    """``"CUDA_VISIBLE_DEVICES"`` and others become the NPU's; those of NCCL are flagged."""

    name = "environment"
    reason = "the variable that torch_npu reads"
    visits = (cst.SimpleString,)

    def leave(self, old: Any, new: Any, at: At) -> Any:
        """Rewrite one name of a variable."""
        text = string_of(old) or ""
        to = settings()["environment"].get(text)
        if to is not None:
            changed = new.with_changes(value=f"{old.prefix}{old.quote}{to}{old.quote}")
            at.note(
                self, old, changed, "changed", "", "settings of the shell have to be renamed too"
            )
            return changed
        if re.match(r"(TORCH_)?NCCL_[A-Z_]+$", text):
            reason = "kept: NCCL's variables do nothing under HCCL, which has its own"
            at.note(self, old, old, "changed", reason, "none on numbers")
        return None

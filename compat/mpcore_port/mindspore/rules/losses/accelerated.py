"""accelerate's Accelerator and Lightning's Fabric: their backward passes, and what a port has.

The runtime's imitations run their loops on one device (``port.accelerate``, ``port.fabric``). What
they lack is refused where it is used.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.mindspore.rules.place import PortRule, by_name
from mpcore_port.names import ACCELERATORS, FABRICS, code_of, dotted
from mpcore_port.scan import arguments

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["AcceleratedRule", "accelerated", "accelerates"]

_NAME = "accelerate.Accelerator"
_FABRIC = "lightning.Fabric"
_NONE = "the port's {} has no such: it is of one device, for a loop of one's own"
_LOSS = ("loss", "tensor")
_TRACKERS = "of trackers tensorboard and wandb are ported: leave this `log_with` out"
_MAY_TRACK = "of trackers tensorboard and wandb are ported, it raises where `log_with` is another"
_TRACKED = re.compile(r"[\[(]?((['\"])(all|tensorboard|wandb)\2(, ?|[\])]$|$))+")
_SET = "the port's {} asks for nothing of that name"


def accelerated(call: cst.Call, at: At) -> Any:
    """Return the loss of ``accelerator.backward(loss)``, or a Fabric's; None of other calls."""
    func = call.func
    if not isinstance(func, cst.Attribute) or func.attr.value != "backward" or not call.args:
        return None
    first = call.args[0]
    if first.star or (first.keyword is not None and first.keyword.value not in _LOSS):
        return None
    return first.value if at.names.is_accelerator(func.value) else None


def accelerates(at: At) -> bool:
    """Return whether a module has an Accelerator or a Fabric, its own or one that it is handed."""
    hosts = ACCELERATORS | FABRICS
    return any(at.names.called(call) in hosts or accelerated(call, at) for call in at.names.calls)


def _made(at: At) -> list[cst.Call]:
    """Return the calls that make an Accelerator in the module."""
    return [call for call in at.names.calls if at.names.called(call) in ACCELERATORS]


def _told(at: At) -> list[str]:
    """Return what Accelerators of the module are told of trackers, as code."""
    row = by_name(_NAME)
    order = [param.name for param in row.params] if row is not None else []
    given = [arguments(call, order).get("log_with") for call in _made(at)]
    return [code_of(one) for one in given if one is not None and code_of(one) != "None"]


def _logs(at: At) -> bool:
    """Return whether an Accelerator of the module is told of trackers that are not there."""
    return any(one[0] in "'\"([" and not _TRACKED.fullmatch(one) for one in _told(at))


def _may_log(at: At) -> bool:
    """Return whether it may be told of some; the runtime raises by name if it is."""
    unsure = any(not _TRACKED.fullmatch(one) for one in _told(at))
    return unsure or any(arg.star for call in _made(at) for arg in call.args)


def _is_fabric(node: cst.BaseExpression, at: At) -> bool:
    """Return whether an Accelerator or Fabric is the latter, made as one or called as one."""
    made = at.names.call_names(node)
    return bool(made & FABRICS) or (not made and dotted(node).rpartition(".")[2] == "fabric")


_TAKES: dict[str, tuple[Any, ...]] = {
    "devices": ("auto", "-1", "1", -1, 1, None),
    "mixed_precision": ("no", "fp16", "bf16", None),
    "num_nodes": (1,),
    "precision": (16, "16", "16-mixed", "bf16", "bf16-mixed", 32, "32", "32-true", None),
    "strategy": ("auto", "ddp", "ddp_find_unused_parameters_true", "dp", "single_device"),
}
"""What the runtime's take, of words and numbers that are written out."""


_PLUGINS = (
    *("deepspeed_plugin", "deepspeed_plugins", "fsdp_plugin", "megatron_lm_plugin"),
    *("parallelism_config", "torch_tp_plugin"),
)
_PLUGGED = "`{}` must be None when it runs, or it raises: one device trains it"


def _may_be_none(value: cst.BaseExpression, at: At) -> bool | None:
    """Return whether a value may be None; None where it is nothing else."""
    nones = [code_of(one) == "None" for one in at.names.origins(value)]
    return None if all(nones) else any(nones)


def _unsure(call: cst.Call, at: At) -> str:
    """Return what has to be None when an Accelerator is made, as far as that is not seen here."""
    if at.names.called(call) not in ACCELERATORS:
        return ""
    plugins = (arg for arg in call.args if arg.keyword and arg.keyword.value in _PLUGINS)
    return next((arg.keyword.value for arg in plugins if _may_be_none(arg.value, at)), "")  # type: ignore[union-attr]  # it has one


def _asks_too_much(call: cst.Call, at: At) -> str:
    """Return why a Fabric or an Accelerator is not made of what is written out; "" if it may be."""
    if at.names.called(call) not in ACCELERATORS | FABRICS:
        return ""
    for arg in call.args:
        name = arg.keyword.value if arg.keyword is not None else ""
        if name in _PLUGINS and _may_be_none(arg.value, at) is False:
            return f"`{name}` of {at.names.called(call)}: one device trains it: leave it out"
        if name not in _TAKES:
            continue
        try:
            value = ast.literal_eval(code_of(arg.value))
        except ValueError:
            continue  # it is asked when it runs
        single = name == "devices" and isinstance(value, (list, tuple)) and len(value) == 1
        if not single and value not in _TAKES[name]:
            takes = ", ".join(repr(one) for one in _TAKES[name] if one is not None)
            return f"`{name}` must be one of {takes} here: one device, in these precisions"
    return ""


class AcceleratedRule(PortRule):
    """What an Accelerator is asked for that the port's has not is refused."""

    name = "accelerator of accelerate"
    reason = "the runtime's has it"
    visits = (cst.Attribute, cst.Call)

    def idle(self, at: At) -> bool:
        """Whether there is no Accelerator, or the script is a port."""
        text = at.code.lower()
        return super().idle(at) or ("accelerator" not in text and "fabric" not in text)

    def act(self, old: Any, new: Any, at: At) -> Any:
        """Refuse one attribute, or one Fabric or Accelerator for what it is told; or leave it."""
        if isinstance(old, cst.Call):
            why = _asks_too_much(old, at)
            if not why and (unsure := _unsure(old, at)):
                at.unproven(self, old, _PLUGGED.format(unsure), new)
            return new.with_changes(func=at.refuse(self, old.func, why)) if why else None
        if not at.names.is_accelerator(old.value):
            return None
        host = _FABRIC if _is_fabric(old.value, at) else _NAME
        word = host.rpartition(".")[2]
        row = by_name(f"{host}.{old.attr.value}")
        if at.names.is_assigned(old):
            if row is None:
                at.unproven(self, old, _SET.format(word))
            return None
        if row is None:  # one that is handed in may be another package's
            made = at.names.call_names(old.value) & (ACCELERATORS | FABRICS)
            return at.refuse(self, old, _NONE.format(word)) if made else None
        if row.refuse_all:
            return at.refuse(self, old, row.refuse_all)
        call = at.names.parents.get(old)
        if isinstance(call, cst.Call) and call.func is old:
            given = arguments(call, [param.name for param in row.params])
            usual = {param.name: param.default for param in row.params}
            for name, why in row.refuse.items():
                if name in given and code_of(given[name]) != usual[name]:
                    return at.refuse(self, old, why)
        if row.effect:
            at.note(self, old, new, "changed", effect=row.effect)
        if old.attr.value == "init_trackers" and at.once(_logs):
            return at.refuse(self, old, _TRACKERS)
        if old.attr.value == "init_trackers" and at.once(_may_log):
            at.unproven(self, old, _MAY_TRACK)
        return None

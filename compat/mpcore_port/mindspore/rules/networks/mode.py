"""Networks start in training mode in torch, in evaluation mode in MindSpore."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.children import below
from mpcore_port.mindspore.rules.networks.overridden import has_own_mode
from mpcore_port.mindspore.rules.place import (
    PortRule,
    has_unknown_base,
    is_module,
    is_network_class,
    wording,
)
from mpcore_port.names import code_of
from mpcore_port.packages import package_of

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["ModeRule"]

_MODAL = (
    "Sequential",
    "BatchNorm",
    "SyncBatchNorm",
    "InstanceNorm",
    "Dropout",
    "Transformer",
    "MultiheadAttention",
    "LSTM",
    "GRU",
    "RNN",
    "ModuleList",
    "ModuleDict",
)
_NO_LAYERS = ("Module", "ModuleList", "ModuleDict", "Parameter", "ParameterList", "DataParallel")
_OF_LOSSES = re.compile(r"(loss|criterion)(es|v?\d\w*|fn|func\w*|wrapper|computer)?$", re.I)
_JIT = "--jit: ms.jit compiles what it constructs, forward and backward"
_JIT_EFFECT = (
    "a new shape or Python number compiles anew; prints and other side effects of construct run "
    "once; what cannot be compiled runs eagerly, with a warning"
)


class ModeRule(PortRule):
    """A network that is made outside of another one is put into training mode."""

    name = "training mode"
    reason = "a Cell starts in evaluation mode, a module of torch in training mode"
    visits = (cst.Call,)

    def act(self, old: cst.Call, new: Any, at: At) -> Any:
        """Append ``set_train()`` to the call that makes a network."""
        kind = _makes(old, at)
        compiled = at.options.jit and (kind or _is_layer(at.names.called(old)))
        compiled = compiled and not at.once(_differentiates_functions)
        if not (kind or compiled) or not isinstance(new, cst.Call) or _is_inside(old, at):
            return None
        made = new
        if kind:
            made = _trained(old, new, kind, at)
            at.note(self, old, made)
        if compiled:
            made = cst.Call(cst.parse_expression(wording(at, "port.compiled")), [cst.Arg(made)])
            at.note(self, old, made, "changed", _JIT, _JIT_EFFECT)
        return made


def _differentiates_functions(at: At) -> bool:
    """Return whether steps of the file are functions: those are compiled, not their networks.

    ``port.compiled`` is for the loop that keeps torch's form: it has a backward pass of its own.
    """
    text = at.code
    return "value_and_grad(" in text or ".train_cell(" in text


def _trained(old: cst.Call, new: cst.Call, kind: str, at: At) -> cst.Call:
    if kind == "asked for":  # of a function it would be the function's own matter
        held = cst.Call(cst.parse_expression(wording(at, "port.started")), [cst.Arg(new.func)])
        return new.with_changes(func=held)
    if kind == "perhaps" or has_own_mode(at) or _has_parts_in_a_mode(old, at):
        return cst.Call(cst.parse_expression(wording(at, "port.in_training")), [cst.Arg(new)])
    return cst.Call(cst.Attribute(new, cst.Name("set_train")))


def _has_parts_in_a_mode(call: cst.Call, at: At) -> bool:
    """Return whether a call takes networks that may have a mode, or its class gives them one."""
    if any(arg.star or _is_held_network(arg.value, at) for arg in call.args):
        return True
    found = at.names.classes.get(code_of(call.func), ())
    starts = (one for node in found for one in below(node) if _is_start(one))
    return any(_GIVES_MODE.search(code_of(one)) for one in starts)


def _is_held_network(value: cst.BaseExpression, at: At) -> bool:
    return isinstance(value, (cst.Name, cst.Attribute)) and is_module(at, value)


def _is_start(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.FunctionDef) and node.name.value == "__init__"


_GIVES_MODE = re.compile(r"\.(eval|train)\(")


def _is_layer(name: str | None) -> bool:
    """Return whether a call makes a layer or a loss of torch.nn."""
    last = (name or "").rpartition(".")[2]
    return name == f"torch.nn.{last}" and last[:1].isupper() and last not in _NO_LAYERS


def _makes(call: cst.Call, at: At) -> str:
    """Return ``"surely"`` for a call of a class of networks, ``"perhaps"`` for another file's.

    ``"asked for"`` for one of a class that is looked up by its name.
    """
    name = at.names.called(call)
    if isinstance(call.func, cst.Call):  # CLASSES(name)(size): the inner call gives a class
        name = at.names.called(call.func)
        if _is_layer(name):
            return ""  # the inner call makes a layer, and the outer runs it
    if name is not None:
        if name.startswith("torch.nn.") and name.count(".") == 2:
            return "surely" if name.rpartition(".")[2].startswith(_MODAL) else ""
        return _of_other_file(call, name, at)
    if isinstance(call.func, cst.Name):
        for binding in at.names.scope(call.func).find(call.func.value):
            if isinstance(binding.node, cst.ClassDef) and is_network_class(binding.node, at):
                return "perhaps" if has_unknown_base(binding.node, at) else "surely"
        if at.names.stars and not at.names.scope(call.func).find(call.func.value):
            return _of_other_file(call, call.func.value, at)  # a star has brought it
    if _is_looked_up(call.func, at):
        return "asked for" if _is_given_to_a_network(call, at) else ""
    return ""


def _is_looked_up(func: cst.BaseExpression, at: At) -> bool:
    """Return whether a class is asked for by its name: ``getattr(nets, name)``, ``NETS[name]``.

    What torch or numpy has by a name is looked at elsewhere.
    """
    for one in at.names.origins(func):
        holder: Any = one.value if isinstance(one, cst.Subscript) else None
        if isinstance(one, cst.Call) and code_of(one.func) == "getattr" and one.args:
            holder = one.args[0].value
        if holder is None:
            continue
        root = (at.names.qualified(holder) or "").partition(".")[0]
        if root not in ("torch", "torchvision", "numpy"):
            return True
    return False


def _of_other_file(call: cst.Call, name: str, at: At) -> str:
    """A class of a sibling module, assigned to a name such as ``model``."""
    if name.partition(".")[0] in ("torch", "torchvision", "numpy") or not name[:1].strip():
        return ""
    if name.startswith("timm.utils."):
        return ""  # averages of networks, which are in evaluation mode
    if not name.rpartition(".")[2][:1].isupper() or _is_neutral(name, at):
        return ""
    outer = at.names.parents.get(call)
    if isinstance(outer, cst.Call) and outer.func is call:
        return ""
    if _OF_LOSSES.search(name.rpartition(".")[2]):
        return "perhaps"  # it may have terms of training alone
    return "perhaps" if _is_given_to_a_network(call, at) else ""


def _is_neutral(name: str, at: At) -> bool:
    """Return whether a package has it that has no networks: ``pathlib.Path``."""
    root, _, rest = name.partition(".")
    if not rest or not root or root in at.project.modules | at.project.beside:
        return False
    package = package_of(name)
    return package is not None and package.world == "neutral"


def _is_given_to_a_network(call: cst.Call, at: At) -> bool:
    """Return whether what a call gives is assigned to a name such as ``model``."""
    statement = at.names.statement(call)
    small = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else None
    if not isinstance(small, cst.Assign) or len(small.targets) != 1:
        return False
    return is_module(at, small.targets[0].target)


def _is_inside(call: cst.Call, at: At) -> bool:
    """Whether another network takes it, and hands its own mode on."""
    if _is_run_at_once(call, at):
        return False  # no network holds it: it is new, and in training mode, at each pass
    for outer in at.names.ancestors(call):
        if isinstance(outer, cst.ClassDef) and is_network_class(outer, at):
            return True
        if isinstance(outer, cst.Call) and (_makes(outer, at) or _is_layer(at.names.called(outer))):
            return True
    return False


def _is_run_at_once(call: cst.Call, at: At) -> bool:
    """Return whether what a call makes is run where it stands: ``nn.Dropout(0.5)(x)``."""
    outer = at.names.parents.get(call)
    if isinstance(outer, cst.Call) and outer.func is call:
        return True
    home = at.names.enclosing(call, cst.FunctionDef)
    is_local = isinstance(outer, cst.Assign) and all(
        isinstance(one.target, cst.Name) for one in outer.targets
    )
    return is_local and home is not None and home.name.value == "forward"

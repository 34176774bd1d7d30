"""The networks and Parameters that statements run, ask and are handed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.children import Walker, calls_in
from mpcore_port.fixpoint import LeastFixpoint
from mpcore_port.mindspore.rules.losses.imported_networks import runs_imported
from mpcore_port.mindspore.rules.losses.own_passes import trains
from mpcore_port.mindspore.rules.place import is_given_as_network, is_module, trained_leaves
from mpcore_port.names import code_of, dotted

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = [
    "is_called_loss",
    "is_part_network",
    "networks_given",
    "parameters_read",
    "runs",
]

_COUNTED = re.compile(
    r"(^|_)(args|cfg|ckpt|conf|config|dim|dir|file|id|input|inputs|key|kind|kwargs|loss|name|num|"
    r"opt|optim|optimizer|out|output|outputs|path|pred|size|state|type|version)\w*$",
    re.I,
)

_LOSS = re.compile(r"(^|[._])\w*(loss|criterion|crit)\w*$", re.I)


def is_called_loss(call: cst.Call) -> bool:
    """Return whether what is called is a loss by its name: ``self.criterion(x, y)``."""
    return _LOSS.search(code_of(call.func)) is not None


class _Named(Walker):
    """Names and attributes that are read, whole chains alone."""

    def __init__(self) -> None:
        self.found: list[Any] = []

    def on_visit(self, node: cst.CSTNode) -> bool:
        if isinstance(node, cst.AssignTarget):
            return False
        if isinstance(node, (cst.Name, cst.Attribute)):
            self.found.append(node)
        return True


def parameters_read(node: cst.CSTNode, at: At) -> list[str]:
    """Return the names and attributes in ``node`` that hold Parameters made by themselves."""
    leaves = at.once(trained_leaves)
    named = _Named()
    named.walk(node)
    found = []
    for one in named.found:
        text = dotted(one)
        if not text or text in found or (isinstance(one, cst.Attribute) and text.count(".") > 1):
            continue
        if isinstance(one, cst.Attribute) and not text.startswith("self."):
            continue
        is_own = any(
            id(origin) in leaves
            or (
                isinstance(origin, cst.Call)
                and (at.names.called(origin) or "").endswith("nn.Parameter")
            )
            for origin in at.names.origins(one)
        )
        if is_own:
            found.append(text)
        elif (body := _property(one, at)) is not None:
            found += [name for name in parameters_read(body, at) if name not in found]
    return found


def _property(node: Any, at: At) -> Any:
    """Return what a property of the class around computes: ``self.alpha``; None if it is none."""
    if not isinstance(node, cst.Attribute) or code_of(node.value) != "self":
        return None
    owner = at.names.enclosing(node, cst.ClassDef)
    for function in at.names.functions.get(node.attr.value, ()):
        computed = any(code_of(one.decorator) == "property" for one in function.decorators)
        around = at.names.enclosing(node, cst.FunctionDef)
        same = at.names.owner(function) is owner
        if computed and same and around is not function:
            return function.body
    return None


def runs(statement: cst.CSTNode, at: At) -> bool:
    """Return whether a statement runs a network, a loss, or an autocast region.

    Functions of the file are looked into, each once.
    """
    if at.once(trained_leaves) and parameters_read(statement, at):
        return True
    for call in calls_in(statement):
        name = at.names.called(call)
        if name is not None and name.startswith("torch."):
            if name.endswith("autocast") or _is_loss(name):
                return True
            continue
        if networks_given(call, at) and not (name or "").startswith("copy."):
            return True
        if runs_imported(call, at):
            return True
        if name is not None:
            continue
        func = call.func
        if isinstance(func, cst.Subscript):  # one of several networks
            return True
        if isinstance(func, cst.Name):
            kinds = {b.kind for b in at.names.meanings(func)}
            if kinds and not kinds & {"def", "class", "import"}:
                return True
            if "def" in kinds and (
                "loss" in func.value or any(is_module(at, a.value) for a in call.args)
            ):
                return True
            bodies = [one.body for one in at.names.functions.get(func.value, [])]
            if "def" in kinds and any(_body_runs(body, at) for body in bodies):
                return True
        elif isinstance(func, cst.Attribute):
            text = dotted(func)
            if text.startswith("self.") and text.count(".") == 1:
                return True
            if is_module(at, func.value) and func.attr.value not in ("to", "train", "eval"):
                return True
            if is_part_network(func, at):
                return True
    return False


def _body_runs(body: cst.CSTNode, at: At) -> bool:
    return at.once(_running).ask(body, lambda: runs(body, at), least=False)


def _running(_: At) -> LeastFixpoint:
    """Return which functions were asked whether they run a network; they call each other."""
    return LeastFixpoint()


def is_part_network(func: cst.Attribute, at: At) -> bool:
    """Return whether a network is called that an object holds, or a method that runs one.

    ``self.model.encoder(x)`` of a class of the file, and ``state.model(x)`` of another file's.
    """
    own = at.names.class_named(func.value)
    if own is None:
        holder = dotted(func.value)
        return bool(holder) and (is_module(at, func) or holder in at.once(_stepped))
    if not isinstance(own.body, cst.IndentedBlock):
        return False
    methods = {one.name.value: one for one in own.body.body if isinstance(one, cst.FunctionDef)}
    if func.attr.value not in methods:
        return is_module(at, func)
    if trains(methods[func.attr.value], at):
        return False  # its own backward pass would be run once more
    return _runs_own(methods[func.attr.value], methods, at)


def _stepped(at: At) -> set[str]:
    """Return the objects of other files whose optimizers step: ``agent`` of ``agent.optim.step()``.

    What such an object is asked for, no method of tensors, may run its networks.
    """
    held = [call.args[0].value if call.args else call.func for call in at.names.callers("step")]
    texts = (dotted(one).removesuffix(".step").rpartition(".") for one in held)
    return {holder for holder, _, last in texts if "opt" in last and holder not in ("", "self")}


def _runs_own(method: cst.FunctionDef, methods: dict[str, cst.FunctionDef], at: At) -> bool:
    """Return whether a method calls a network that its object holds, perhaps in another one."""
    calls = lambda: _calls_own(method, methods, at)  # noqa: E731
    return at.once(_running).ask(("own", method), calls, least=False)


def _calls_own(method: cst.FunctionDef, methods: dict[str, cst.FunctionDef], at: At) -> bool:
    for call in calls_in(method.body):
        head, _, name = dotted(call.func).rpartition(".")
        if head != "self":
            continue
        other = methods.get(name)
        if other is None and is_module(at, call.func):
            return True
        if other is not None and _runs_own(other, methods, at):
            return True
    return False


def networks_given(call: cst.Call, at: At) -> list[cst.BaseExpression]:
    """Return the networks that a call is handed, as ``diffusion.losses(model, x)`` is one."""
    named = [arg for arg in call.args if isinstance(arg.value, (cst.Name, cst.Attribute))]
    return [
        arg.value
        for arg in named
        if not _COUNTED.search(code_of(arg.value))
        and (is_module(at, arg.value) or is_given_as_network(arg) or _is_run_here(arg.value, at))
    ]


def _is_run_here(node: cst.BaseExpression, at: At) -> bool:
    """Return whether a parameter of the function around is called there: ``D`` of ``D(x)``."""
    if not isinstance(node, cst.Name) or {b.kind for b in at.names.meanings(node)} != {"param"}:
        return False
    return (at.names.enclosing(node, cst.FunctionDef), node.value) in at.once(_called_in)


def _called_in(at: At) -> set[tuple[cst.CSTNode | None, str]]:
    """Return the names that are called, each with the function around."""
    return {
        (at.names.enclosing(call, cst.FunctionDef), call.func.value)
        for call in at.names.calls
        if isinstance(call.func, cst.Name)
    }


def _is_loss(name: str) -> bool:
    return name.startswith("torch.nn.functional.") and ("loss" in name or "entropy" in name)

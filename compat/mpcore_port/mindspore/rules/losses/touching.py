"""Calls behind a backward pass that may read or change its gradients: helpers that clip."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.children import calls_in
from mpcore_port.mindspore.rules.place import has_unknown_base, is_module
from mpcore_port.names import code_of, dotted
from mpcore_port.packages import package_of
from mpcore_port.scan import is_clip, is_optimizer

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["handed_weights", "is_known", "may_touch"]

_WORDS = re.compile(r"grad|clip", re.I)
_GRADIENTS = re.compile(r"\.grad\b|clip_grad")
_PARAMETERS = re.compile(r"\.(named_)?parameters\(\)")
_HELD = re.compile(r"(^|[_.])opt(im|imizer|imiser)?(s?|[A-Z_\d].*)$", re.I)
_OWN = ("add_param_group", "load_state_dict", "state_dict", "step", "zero_grad")
_SHOWS = re.compile(
    r"^_*(log|print|write|record|report|show|plot|save|dump|track|monitor|display|time|tic|toc)"
    r"|metric|meter|stat|logs?$|summary|progress|visual",
    re.I,
)
"""Names of methods that show numbers, or keep them."""
_DEPTH = 4


def may_touch(node: cst.CSTNode, at: At, depth: int = _DEPTH) -> cst.Call | None:
    """Return a call of a statement that may look at gradients, or change them; or None.

    Functions of the file are looked into. Another file's may, where they are handed a network, its
    parameters or an optimizer, or are called after gradients.
    """
    return next((call for call in calls_in(node) if _may(call, at, depth)), None)


def _may(call: cst.Call, at: At, depth: int) -> bool:
    if is_known(at.names.called(call)):
        return is_clip(at.names.called(call))
    func = call.func
    name = dotted(func).rpartition(".")[2]
    own: list[Any] = [] if not name else list(at.names.functions.get(name, ()))
    if own and (isinstance(func, cst.Name) or dotted(func).startswith("self.")):
        return depth > 0 and any(_inside(one, at, depth - 1) for one in own)
    if isinstance(func, cst.Name) and not at.names.scope(func).find(func.value):
        return bool(at.names.stars) and bool(_WORDS.search(name))
    if _WORDS.search(name):
        return True
    if isinstance(func, cst.Attribute) and _is_optimizer(func.value, at):
        return name not in _OWN
    return _is_handed(call, at) or _is_by_another_name(call, at, depth)


def _is_by_another_name(call: cst.Call, at: At, depth: int) -> bool:
    """Look behind names that functions got: ``act = limit``, partials, lambdas, lists of hooks."""
    func = call.func
    trained = any(_is_trained(arg.value, at) or code_of(arg.value) == "self" for arg in call.args)
    if not isinstance(func, (cst.Name, cst.Attribute)):  # tools["clip"](model)
        return trained
    if isinstance(func, cst.Attribute):  # self.hook(optimizer), hook.after(self)
        own = at.names.functions.get(func.attr.value, ())
        if own:
            return depth > 0 and any(_inside(one, at, depth - 1) for one in own)
        return trained or _is_hook(func, at)
    kinds = {binding.kind for binding in at.names.meanings(func)}
    if "for" in kinds or (trained and "param" in kinds):
        return True  # one of several hooks, or whatever was handed in
    return any(_may_be(one, trained, at, depth) for one in at.names.origins(func))


def _is_hook(func: cst.Attribute, at: At) -> bool:
    """Return whether a method is of a base in another file: ``self.after_backward()``."""
    owner = at.names.enclosing(func, cst.ClassDef)
    own = code_of(func.value) in ("self", "super()") and _SHOWS.search(func.attr.value) is None
    return own and owner is not None and has_unknown_base(owner, at) and not is_module(at, func)


def _may_be(origin: Any, trained: bool, at: At, depth: int) -> bool:
    """Return whether what a name holds may look at gradients where it is called."""
    if isinstance(origin, cst.Lambda):
        return depth > 0 and may_touch(origin.body, at, depth - 1) is not None
    if isinstance(origin, cst.Call) and at.names.called(origin) == "functools.partial":
        given = any(_is_trained(arg.value, at) for arg in origin.args[1:])
        first = origin.args[0].value if origin.args else None
        return _may_be(first, trained or given, at, depth)
    if isinstance(origin, cst.Call):
        return _is_handed(origin, at)  # an object of another file's that is called
    if isinstance(origin, cst.Name) and at.names.functions.get(origin.value):
        return depth > 0 and any(
            _inside(one, at, depth - 1) for one in at.names.functions[origin.value]
        )
    return trained and isinstance(origin, (cst.Name, cst.Attribute)) and _is_foreign(origin, at)


def handed_weights(node: cst.CSTNode, at: At) -> cst.Call | None:
    """Return a call of another file's code that a statement hands a network to; or None.

    What an object does counts as well, where the object was made with a network.
    """
    calls = (call for call in calls_in(node) if not is_known(at.names.called(call)))
    return next((call for call in calls if _is_handed(call, at)), None)


def _is_handed(call: cst.Call, at: At) -> bool:
    func = call.func
    made = [call] if _is_foreign(func, at) else []
    if isinstance(func, cst.Attribute):
        made += [one for one in at.names.origins(func.value) if isinstance(one, cst.Call)]
    foreign = [one for one in made if _is_foreign(one.func, at)]
    foreign = [one for one in foreign if not is_known(at.names.called(one))]
    return any(_is_trained(arg.value, at) for one in foreign for arg in one.args)


def is_known(name: str | None) -> bool:
    """Return whether a full name is torch's, of which a fact is, or of a neutral package."""
    if name is None or name.startswith("."):
        return False
    package = package_of(name)
    return name.partition(".")[0] == "torch" or (package is not None and package.world == "neutral")


def _inside(function: Any, at: At, depth: int) -> bool:
    if _GRADIENTS.search(code_of(function.body)):
        return True
    return may_touch(function.body, at, depth) is not None


def _is_foreign(func: cst.BaseExpression, at: At) -> bool:
    """Return whether a function comes from a module that is not this one."""
    root = at.names.root(func)
    return isinstance(root, cst.Name) and at.names.imported(root) is not None


def _is_trained(value: cst.BaseExpression, at: At) -> bool:
    """Return whether an argument is a network, its parameters or an optimizer."""
    if any(_PARAMETERS.search(code_of(one)) for one in (value, *at.names.origins(value))):
        return True
    if not isinstance(value, (cst.Name, cst.Attribute)):
        return False
    return _is_optimizer(value, at) or is_module(at, value)


def _is_optimizer(value: cst.BaseExpression, at: At) -> bool:
    made = at.names.call_names(value)
    return any(map(is_optimizer, made)) or (not made and bool(_HELD.search(dotted(value))))

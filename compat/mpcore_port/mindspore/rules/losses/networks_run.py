"""Which networks a loss comes from: those whose weights its gradients are of."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.children import below, calls_in
from mpcore_port.mindspore.rules.losses.imported_networks import runs_imported
from mpcore_port.mindspore.rules.losses.names_in import assigned, assigned_first, bound_before
from mpcore_port.mindspore.rules.losses.networks_in import (
    is_part_network,
    networks_given,
    parameters_read,
)
from mpcore_port.mindspore.rules.losses.own_passes import called
from mpcore_port.mindspore.rules.losses.sinks import is_method
from mpcore_port.mindspore.rules.place import SETTINGS, is_module
from mpcore_port.names import code_of, dotted
from mpcore_port.scan import arguments, is_optimizer
from mpcore_port.world import known_anywhere

if TYPE_CHECKING:
    from mpcore_port.mindspore.rules.losses.planned import Sink
    from mpcore_port.rule import At

__all__ = ["NetworksRun", "own_names"]

# ``get_slow_params`` gives parameters; ``num_scaling_params`` says how many there are.
_MORE = re.compile(r"^(?!(named|num|n|nb|count|total|print|show|log)_).+_param(eter)?s$")
_OPTIMIZER = re.compile(r"self\.(?!\w*sched)(\w*_)?opt(im\w*|_\w+)?", re.I)
_NETWORKS_HELD = re.compile(r"(^|[._])(hparams|mods|modules|nets)$", re.I)
_OF_DICTS = frozenset({"copy", "get", "items", "keys", "pop", "setdefault", "update", "values"})


class NetworksRun:
    """Networks that statements run, as the code that names them there."""

    def __init__(self, at: At) -> None:
        self.at, self.names = at, at.names
        self.others = False
        """Whether what ``of`` looked at last calls something else that may be a network."""

    def of(self, nodes: list[Any], sink: Sink) -> list[str]:
        """Return the networks that statements and the loss run, each once."""
        self.others = False
        local = {name for node in nodes for name in assigned(node)}
        local -= {name for node in nodes for name in self._given_again(node)}
        found: list[str] = []
        for node in [*nodes, sink.loss]:
            if not isinstance(node, cst.FunctionDef):  # looked into where it is called
                self._candidates(node, local, found, set())
        return [self._held(text, nodes) for text in found]

    def may_be_none(self, name: str, sink: Sink) -> bool:
        """Return whether a name is a parameter of the function here that need not be given."""
        function = self.names.enclosing(sink.call, cst.FunctionDef)
        if function is None:
            return False
        given = [*function.params.params, *function.params.kwonly_params]
        defaults = [one.default for one in given if one.name.value == name]
        return any(one is not None and code_of(one) == "None" for one in defaults)

    def starts_as_none(self, text: str, node: cst.CSTNode) -> bool:
        """Return whether a name is None where nothing else was made of it: it has no weights."""
        bindings = self.names.scope(node).find(text)
        values = [b.value for b in bindings if b.kind == "value" and b.value is not None]
        return any(code_of(value) == "None" for value in values)

    def more_weights(self, part: str) -> list[str]:
        """Return what a network is asked for besides ``parameters()``: it may hold more of them."""
        found: list[str] = []
        for call in self.names.calls:
            func = call.func
            if call.args or not isinstance(func, cst.Attribute) or dotted(func.value) != part:
                continue
            if isinstance(self.names.parents.get(call), cst.Expr):
                continue  # a statement does something; what it returned is not asked for
            name = func.attr.value
            if _MORE.search(name) and f"*{code_of(call)}" not in found:
                found.append(f"*{code_of(call)}")
        return found

    def stepping(self, sink: Sink) -> list[str]:
        """Return the optimizers that step in the same function: what they move gets gradients."""
        home = self.names.enclosing(sink.call, cst.FunctionDef)
        found: list[str] = []
        for call in self.names.callers("step"):
            func = call.func
            if self.names.enclosing(call, cst.FunctionDef) is not home:
                continue
            if not isinstance(func, cst.Attribute) or self.names.called(call) is not None:
                continue
            held = call.args[0].value if call.args else func.value
            text = _of_names(held)
            made = self.names.call_names(held)
            known = any(is_optimizer(name) for name in made)
            if text and text not in found and (known or (not made and "optim" in text.lower())):
                found.append(text)
        return found

    def before(self, nodes: list[Any]) -> str:
        """Return what gave a value that a loss reads, and may be a network; "" for none.

        ``w = self.hparams.MaskNet(x)`` in front of the lines that are known to make the loss.
        """
        local = {name for node in nodes for name in assigned(node)}
        read = (one for node in nodes for one in below(node) if isinstance(one, cst.Name))
        made = (one for name in read if name.value not in local for one in self.names.origins(name))
        for call in (one for one in made if isinstance(one, cst.Call)):
            holder, _, name = dotted(call.func).rpartition(".")
            if name not in _OF_DICTS and _NETWORKS_HELD.search(holder):
                return code_of(call)
        return ""

    def moved(self, sink: Sink, nodes: list[Any]) -> list[str]:
        """Return the optimizers that move what a loss runs: of this function, or of its class."""
        own = self.stepping(sink)
        if own:
            return [self._held(text, nodes) for text in own]
        home = self.names.enclosing(sink.call, cst.FunctionDef)
        owner = self.names.enclosing(sink.call, cst.ClassDef)
        found: dict[str, bool] = {}
        for call in self.names.callers("step") if owner is not None else ():
            func: Any = call.func
            text = dotted(call.args[0].value if call.args else getattr(func, "value", func))
            if self.names.enclosing(call, cst.ClassDef) is owner and _OPTIMIZER.fullmatch(text):
                here = self.names.enclosing(call, cst.FunctionDef) is home
                found[text] = found.get(text, False) or here
        every = {text: f'getattr(self, "{text.removeprefix("self.")}", None)' for text in found}
        return [text if here else every[text] for text, here in found.items()]

    def _given_again(self, node: cst.CSTNode) -> set[str]:
        """Return what is handed to a call that gives it back: ``model, loss = step(model, x)``."""
        return {
            name
            for line in below(node)
            if isinstance(line, cst.Assign) and isinstance(line.value, cst.Call)
            for arg in line.value.args
            if (name := dotted(arg.value)) and name in assigned(line)
        }

    def _held(self, text: str, nodes: list[cst.CSTNode]) -> str:
        """Return a network as it is, or as one that may not be there: a branch runs it."""
        if text.isidentifier():
            return self._bound(text, nodes)
        if not re.fullmatch(r"self\.\w+", text):
            return text
        calls = [c for node in nodes for c in calls_in(node) if dotted(c.func).startswith(text)]
        if calls and not all(self._in_branch(call, nodes) for call in calls):
            return text
        owner = self.names.enclosing(calls[0] if calls else nodes[0], cst.ClassDef)
        bound = self.names.attribute(owner, text) if owner is not None else ()
        given = [b.value for b in bound if b.value is not None]
        plain = [value for value in given if self.names.enclosing(value, cst.If) is None]
        if plain and (calls or any(self._at_birth(value) for value in plain)):
            return text  # another of its methods may run what none of them has made
        return f'getattr(self, "{text.removeprefix("self.")}", None)'

    def _at_birth(self, value: cst.CSTNode) -> bool:
        """Return whether an attribute is made in ``__init__``: it is there in every method."""
        home = self.names.enclosing(value, cst.FunctionDef)
        return home is None or home.name.value == "__init__"

    def _bound(self, name: str, nodes: list[cst.CSTNode]) -> str:
        """Return a name as it is, or as one that its function may not have bound."""
        calls = [c for node in nodes for c in calls_in(node) if code_of(c.func) == name]
        if not calls or not all(self._in_branch(call, nodes) for call in calls):
            return name
        home = self.names.enclosing(calls[0], cst.FunctionDef)
        bindings = self.names.scope(calls[0]).bindings.get(name, [])
        made = [self.names.enclosing(b.node, cst.If) for b in bindings]
        if (
            not made
            or None in made
            or name in bound_before(nodes[0], home or self.at.module, self.at)
        ):
            return name
        return f'{"globals" if home is None else "locals"}().get("{name}")'

    def _in_branch(self, call: cst.Call, nodes: list[cst.CSTNode]) -> bool:
        """Return whether a call stands under a condition among the statements of a loss."""
        branches = (cst.If, cst.IfExp)
        around = [call, *self.names.ancestors(call)]
        ends = next((i for i, n in enumerate(around) if any(n is node for node in nodes)), 0)
        return any(isinstance(node, branches) for node in around[: ends + 1])

    def _candidates(
        self, node: cst.CSTNode, local: set[str], found: list[str], seen: set[int]
    ) -> None:
        for call in calls_in(node):
            name = self.names.called(call) or ""
            if name.startswith("torch."):
                continue
            given = [dotted(value) for value in networks_given(call, self.at)]
            if runs_imported(call, self.at):
                given.append(dotted(call.func))
            found += [t for t in given if t not in found and t.partition(".")[0] not in local]
            if name:
                continue
            text = self._candidate(call, local, found, seen)
            self.others = self.others or _may_be_network(call, text, local, self.at)
            if text and text.partition(".")[0] not in local | {""} and text not in found:
                found.append(text)
        for name in parameters_read(node, self.at):
            if name not in found and name not in local:
                found.append(name)

    def _candidate(self, call: cst.Call, local: set[str], found: list[str], seen: set[int]) -> str:
        func = call.func
        if isinstance(func, cst.Subscript):  # self.model["generator"](x)
            text = _of_names(func)
            return text if text and is_module(self.at, func.value) else ""
        if isinstance(func, cst.Name):
            bindings = self.names.meanings(func)
            kinds = {b.kind for b in bindings}
            if kinds & {"def"}:
                self._in_functions(call, local, found, seen)
                return ""
            return func.value if kinds and not kinds & {"class", "import"} else ""
        if not isinstance(func, cst.Attribute):
            return ""
        text = dotted(func)
        owner = self.names.enclosing(call, cst.ClassDef)
        if text.startswith("self.") and text.count(".") == 1:
            if self.names.attribute(owner, text):
                return text
            if self._inside(owner, call, local, found, seen):
                return "self" if is_module(self.at, func.value) else ""
            return text  # of a base class in another file: no Cell says nothing
        if is_part_network(func, self.at):
            return text if is_module(self.at, func) else dotted(func.value)
        return dotted(func.value) if is_module(self.at, func.value) else ""

    def _inside(
        self, owner: Any, call: cst.Call, local: set[str], found: list[str], seen: set[int]
    ) -> bool:
        """Look into a method of the same class, if it is one: it runs networks of ``self``."""
        func: Any = call.func
        named = self.names.functions.get(func.attr.value, [])
        own = [one for one in named if self.names.owner(one) is owner]
        for function in own:
            self._look_into(function, call, local, found, seen)
        return bool(own)

    def _in_functions(
        self, call: cst.Call, local: set[str], found: list[str], seen: set[int]
    ) -> None:
        """Look into the functions that a name stands for: for networks of the scopes around."""
        for function in called(call, self.at):
            self._look_into(function, call, local, found, seen)

    def _look_into(
        self,
        function: cst.FunctionDef,
        call: cst.Call,
        local: set[str],
        found: list[str],
        seen: set[int],
    ) -> None:
        """Find the networks of a function's body; of its parameters, what the call hands over."""
        given = _given(call, function, is_method=is_method(function, self.at))
        key = hash((id(function), *given.items()))
        if key in seen:
            return
        seen.add(key)
        own = own_names(function)
        inner: list[str] = []
        self._candidates(function.body, own - set(given), inner, seen)
        for text in inner:
            root, dot, rest = text.partition(".")
            name = f"{given[root]}{dot}{rest}" if root in given else text
            outer = local if root in given else local | own
            if name.partition(".")[0] not in outer and name not in found:
                found.append(name)


def own_names(function: cst.FunctionDef) -> set[str]:
    """Return the names that mean something of its own in a function, ``self`` aside."""
    params = function.params
    given = (*params.posonly_params, *params.params, *params.kwonly_params)
    own = {param.name.value for param in given} | set(assigned_first(function.body))
    return own - {"self"}


def _given(call: cst.Call, function: cst.FunctionDef, *, is_method: bool) -> dict[str, str]:
    """Return the names and attributes that a call hands to parameters of a function."""
    params = [*function.params.posonly_params, *function.params.params][int(is_method) :]
    names = [param.name.value for param in params]
    if any(arg.star for arg in call.args):
        return {}
    found = {name: dotted(value) for name, value in arguments(call, names).items()}
    return {name: text for name, text in found.items() if text}


def _of_names(node: Any) -> str:
    """Return the code of a name, an attribute, or a part of one by a constant; "" for others."""
    if isinstance(node, cst.Subscript):
        index = node.slice[0].slice if len(node.slice) == 1 else None
        plain = isinstance(index, cst.Index) and isinstance(
            index.value, (cst.SimpleString, cst.Integer)
        )
        return code_of(node) if plain and dotted(node.value) else ""
    return dotted(node)


def _may_be_network(call: cst.Call, listed: str, local: set[str], at: At) -> bool:
    """Return whether a call, which lists some network or none, may run another one.

    ``self.hparams.MaskNet(w)``: neither its name nor this file says what it is.
    """
    func = call.func
    root = listed.partition(".")[0]
    if isinstance(func, cst.Name):  # net = self.hparams.MaskNet; net(w)
        return bool(root) and root in local and not _is_of_torch(func, at)
    if isinstance(func, cst.Subscript):
        return not listed or root in local
    text = dotted(func)
    holder, _, name = text.rpartition(".")
    if holder == "self" and listed == text:  # a method of a base in another file, perhaps
        return not at.names.attribute(at.names.enclosing(call, cst.ClassDef), text)
    if listed or not holder or holder == "self" or text.partition(".")[0] in local:
        return False
    if SETTINGS.search(holder) or _NETWORKS_HELD.search(holder):
        return name not in _OF_DICTS
    return not known_anywhere(name)


def _is_of_torch(func: cst.Name, at: At) -> bool:
    made = at.names.call_names(func)
    return bool(made) and all(name.startswith("torch.") for name in made)

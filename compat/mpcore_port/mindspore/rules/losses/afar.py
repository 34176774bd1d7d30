"""Values of networks that another function has run, and a loss here is made of.

torch goes back through ``self.fake = self.net_g(x)`` of another method, and through an argument
that the caller's network gave; a function that is differentiated has constants in their place.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.children import Walker
from mpcore_port.fixpoint import LeastFixpoint
from mpcore_port.mindspore.rules.losses.imported_networks import runs_imported
from mpcore_port.mindspore.rules.losses.names_in import assigned, surely_made
from mpcore_port.mindspore.rules.losses.own_passes import called, gives_values, trains
from mpcore_port.mindspore.rules.place import is_module
from mpcore_port.names import code_of, dotted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mpcore_port.rule import At

__all__ = [
    "Graded",
    "is_run",
    "is_without",
    "kept_by_methods",
    "read_for_gradients",
    "records",
]

_NO_GRADIENTS = (
    "torch.no_grad",
    "torch.inference_mode",
    "torch.autograd.no_grad",
    "torch.autograd.grad_mode.no_grad",
)
_VALUES = frozenset(
    {"argmax", "argmin", "argsort", "detach", "dim", "eq", "ge", "gt", "int", "item", "le", "long"}
    | {"lt", "ne", "nelement", "new_ones", "new_zeros", "numel", "numpy", "size", "tolist", "type"}
)
_SIDES = frozenset({"data", "device", "dtype", "grad", "ndim", "requires_grad", "shape"})
_PLAIN = frozenset({"float", "int", "isinstance", "len", "print", "range", "str", "type"})
_USED = frozenset(
    {"cuda", "eval", "load_state_dict", "modules", "named_parameters", "parameters"}
    | {"state_dict", "to", "train", "zero_grad"}
)
_BLOCKS = (cst.IndentedBlock, cst.Module)


class _Read(Walker):
    """What is read for its gradients: no sizes, no numbers, nothing detached, no conditions."""

    def __init__(self, at: At) -> None:
        self.at = at
        self.names: set[str] = set()
        self.calls: list[cst.Call] = []

    def on_visit(self, node: Any) -> bool:
        if isinstance(node, cst.Call):
            return self._call(node)
        if isinstance(node, cst.Attribute):
            return self._attribute(node)
        if isinstance(node, cst.Name):
            self.names.add(node.value)
        elif isinstance(node, cst.Arg):
            self.walk(node.value)
        elif isinstance(node, (cst.If, cst.IfExp, cst.While)):
            self._each(node.body, node.orelse)
        elif isinstance(node, cst.For):
            self._each(node.iter, node.body, node.orelse)
        elif isinstance(node, cst.With):
            if not is_without(node, self.at):
                self.walk(node.body)
        elif isinstance(node, cst.AugAssign):
            self._each(node.target, node.value)
        else:
            return not isinstance(
                node, (cst.AssignTarget, cst.Comparison, cst.FunctionDef, cst.ClassDef)
            )
        return False

    def _each(self, *nodes: Any) -> None:
        for node in nodes:
            if node is not None:
                self.walk(node)

    def _call(self, node: cst.Call) -> bool:
        name = self.at.names.called(node) or ""
        func = node.func
        if name.startswith("torch.") and name.endswith(("_like", "argmax", "argmin", "argsort")):
            return False
        if isinstance(func, cst.Name) and func.value in _PLAIN:
            return False
        if isinstance(func, cst.Attribute) and func.attr.value in _VALUES:
            return False
        self.calls.append(node)
        self._each(*(arg for arg in node.args))
        if isinstance(func, cst.Attribute):
            self.walk(func.value)
        elif not isinstance(func, cst.Name):
            self.walk(func)
        return False

    def _attribute(self, node: cst.Attribute) -> bool:
        if node.attr.value in _SIDES:
            return False
        text = dotted(node)
        if not text:
            return True
        parts = text.split(".")
        if _SIDES.isdisjoint(parts):
            self.names.update(".".join(parts[: i + 1]) for i in range(len(parts)))
        return False


def is_run(call: cst.Call, at: At) -> bool:
    """Return whether a call runs a network, and makes none."""
    func = call.func
    if runs_imported(call, at):
        return True
    if at.names.called(call) is not None or not is_module(at, func):
        return False
    kinds = {b.kind for b in at.names.meanings(func)} if isinstance(func, cst.Name) else set()
    return not kinds & {"class", "def", "import"}


def is_without(node: Any, at: At) -> bool:
    """Return whether a statement is a ``with`` that records no gradients."""
    if not isinstance(node, cst.With):
        return False
    names = {at.names.called(item.item) or "" for item in node.items}
    off = [item.item for item in node.items if _is_off(item.item, at)]
    return bool(names & set(_NO_GRADIENTS) or off)


def _is_off(node: Any, at: At) -> bool:
    switch = at.names.called(node) == "torch.set_grad_enabled"
    return switch and len(node.args) == 1 and code_of(node.args[0].value) == "False"


def read_for_gradients(lines: Sequence[Any], loss: cst.CSTNode, at: At) -> set[str]:
    """Return the names of before ``lines`` that a gradient of ``loss`` goes on to."""
    wanted = set(_read(loss, at).names)
    for line in reversed(lines):
        made = set(assigned(line))
        if made & wanted:
            if isinstance(line, cst.SimpleStatementLine):
                wanted -= surely_made(line) | {n for n in made if "." in n}
            wanted |= _read(line, at).names
    return wanted


def _read(node: cst.CSTNode, at: At) -> _Read:
    known = at.once(_seen)
    if node not in known:
        known[node] = _Read(at)
        known[node].walk(node)
    return known[node]


def _seen(_: At) -> dict[cst.CSTNode, _Read]:
    """Return what was read so far, by node."""
    return {}


def _lines(body: Any, at: At) -> Iterator[tuple[Any, Any]]:
    """Give the statements of a body that record gradients, each with its block."""
    if not isinstance(body, _BLOCKS):  # if a: b = c
        yield body, None
        return
    for line in body.body:
        if isinstance(line, (cst.FunctionDef, cst.ClassDef)):
            continue
        if is_without(line, at):
            continue
        inner: list[Any] = []
        part: Any = line
        while isinstance(part, (cst.If, cst.For, cst.While, cst.With, cst.Try, cst.Else)):
            inner.append(part.body)
            inner += [one.body for one in getattr(part, "handlers", ())]
            part = getattr(part, "orelse", None)
        if not inner:
            yield line, body
        for block in inner:
            yield from _lines(block, at)


@dataclass(eq=False)
class Graded:
    """What has gradients of networks, by function; ask by ``at.once(Graded)``."""

    at: At
    _answers: LeastFixpoint = field(default_factory=LeastFixpoint)

    def by(self, function: Any) -> set[str]:
        """Return the names, attributes too, that have gradients where a function ends."""
        return self._answers.ask(("by", function), lambda: self._by(function), least=set())

    def _by(self, function: Any) -> set[str]:
        if not records(function, self.at):
            return set()
        body = function.body if isinstance(function, cst.FunctionDef) else function
        return self._after(function, body, None)

    def before(self, node: cst.CSTNode) -> set[str]:
        """Return the names that have gradients where a node stands, made in its own scope."""
        home = self._home(node)
        body = home.body if isinstance(home, cst.FunctionDef) else home
        return self._answers.ask(
            ("before", node), lambda: self._after(home, body, node), least=set()
        )

    def _home(self, node: cst.CSTNode) -> Any:
        return self.at.names.enclosing(node, cst.FunctionDef) or self.at.module

    def _after(self, home: Any, body: Any, end: cst.CSTNode | None) -> set[str]:
        names = self.at.names
        inside = {id(body)} if end is None else {id(one) for one in names.ancestors(end)}
        stop = None if end is None else names.statement(end)
        found: set[str] = set()
        known: set[str] = set()
        for line, block in _lines(body, self.at):
            if line is stop:
                break
            made = set(assigned(line))
            if self._carries(line, found, known, home):
                found |= made | self._of_methods(line)
            elif id(block) in inside:
                found -= surely_made(line) | {n for n in made if "." in n}
            known |= made
        return found

    def _carries(self, line: Any, found: set[str], known: set[str], home: Any) -> bool:
        seen = _read(line, self.at)
        if any(self.runs(call) for call in seen.calls) or seen.names & found:
            return True
        return any(self.afar(name, home) for name in sorted(seen.names - known))

    def _of_methods(self, line: Any) -> set[str]:
        return {name for _, made in kept_by_methods(line, self.at) for name in made}

    def runs(self, call: cst.Call) -> bool:
        """Return whether what a call gives has gradients of a network that it runs."""
        names = self.at.names
        made = names.call_names(call.func)
        if made and all(one.endswith("Loss") for one in made):
            return False
        own = called(call, self.at)
        if own:
            return any(self._gives(function) for function in own)
        return is_run(call, self.at)

    def _gives(self, function: cst.FunctionDef) -> bool:
        if trains(function, self.at) or gives_values(function, self.at):
            return False
        if not records(function, self.at):
            return False
        values = self.at.names.returns(function)
        key = ("gives", function)
        return self._answers.ask(
            key, lambda: any(self.of_value(one) for one in values), least=False
        )

    def of_value(self, value: cst.BaseExpression) -> bool:
        """Return whether an expression has gradients of a network, where it stands."""
        if any(is_without(one, self.at) for one in self.at.names.ancestors(value)):
            return False
        seen = _read(value, self.at)
        if any(self.runs(call) for call in seen.calls):
            return True
        home = self._home(value)
        here = self.before(value)
        if seen.names & here:
            return True
        body = home.body if isinstance(home, cst.FunctionDef) else home
        known = {name for line, _ in _lines(body, self.at) for name in assigned(line)}
        return any(self.afar(name, home) for name in sorted(seen.names - known))

    def afar(self, name: str, home: Any) -> list[Any]:
        """Return where a name that a function reads got gradients of networks: functions, calls."""
        if _is_network(name, self.at):
            return []
        return self._answers.ask((name, home), lambda: self._afar(name, home), least=[])

    def _afar(self, name: str, home: Any) -> list[Any]:
        if not isinstance(home, cst.FunctionDef):
            return []
        root, dot, rest = name.partition(".")
        if root == "self" and dot and "." not in rest:
            return [one for one in self._methods(home) if name in self.by(one)]
        if dot:
            return []
        found = self.at.names.scope_of(home).bindings.get(name, [])
        if found:
            passed = [v for b in found if b.kind == "param" for v in self.at.names.passed(b)]
            plain = [value for value in passed if value is not None and self.of_value(value)]
            return plain if all(b.kind == "param" for b in found) else []
        outer = self.at.names.enclosing(home, cst.FunctionDef) or self.at.module
        return [outer] if name in self.by(outer) else []

    def _methods(self, home: cst.FunctionDef) -> list[cst.FunctionDef]:
        """Return the other methods of a method's class."""
        owner = self.at.names.enclosing(home, cst.ClassDef)
        if owner is None or not isinstance(owner.body, cst.IndentedBlock):
            return []
        return [f for f in owner.body.body if isinstance(f, cst.FunctionDef) and f is not home]


def kept_by_methods(line: Any, at: At) -> list[tuple[cst.FunctionDef, set[str]]]:
    """Return the methods that a statement calls, with the attributes that have gradients then."""
    if not isinstance(line, cst.SimpleStatementLine):
        return []
    found = []
    for call in _read(line, at).calls:
        if not dotted(call.func).startswith("self."):
            continue
        for function in called(call, at):
            made = {name for name in at.once(Graded).by(function) if name.startswith("self.")}
            if made:
                found.append((function, made))
    return found


def records(function: Any, at: At) -> bool:
    """Return whether a function records gradients: no decorator has it forget them."""
    for one in getattr(function, "decorators", ()):
        node = one.decorator
        name = at.names.called(node) or at.names.qualified(node) or ""
        if name in _NO_GRADIENTS:
            return False
    return True


def _is_network(name: str, at: At) -> bool:
    """Return whether a name is called in the file, or asked as networks alone are."""
    return name in at.once(_networks)


def _networks(at: At) -> set[str]:
    found: set[str] = set()
    for call in at.names.calls:
        text = dotted(call.func)
        holder, _, last = text.rpartition(".")
        found |= {text, *([holder] if last in _USED else [])}
    return found

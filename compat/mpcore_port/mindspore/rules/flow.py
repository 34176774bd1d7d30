"""What statements assign and read, and which of them a loss is made of."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.children import Walker, calls_in
from mpcore_port.fixpoint import LeastFixpoint
from mpcore_port.lines import leaves
from mpcore_port.mindspore.rules.imported_networks import runs_imported
from mpcore_port.mindspore.rules.inputs import asked_for, reads_gradient
from mpcore_port.mindspore.rules.own_passes import gives_values, own_passes, trains
from mpcore_port.mindspore.rules.place import (
    is_given_as_network,
    is_module,
    trained_leaves,
)
from mpcore_port.names import code_of, dotted, target_names
from mpcore_port.packages import of_another_file
from mpcore_port.torch_names import EXPORTS
from mpcore_port.values import vocabulary

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from mpcore_port.rule import At

__all__ = [
    "Slice",
    "assigned",
    "assigned_first",
    "attached",
    "bound_before",
    "bound_by",
    "carrying",
    "constant",
    "detaches",
    "is_called_loss",
    "is_part_network",
    "jumps",
    "needed_again",
    "networks_given",
    "parameters_read",
    "plain_values",
    "read",
    "read_first",
    "set_parts",
    "slice_of",
    "surely_made",
    "values_alone",
    "weights_run",
]

_COUNTED = re.compile(
    r"(^|_)(args|cfg|ckpt|conf|config|dim|dir|file|id|input|inputs|key|kind|kwargs|loss|name|num|"
    r"opt|optim|optimizer|out|output|outputs|path|pred|size|state|type|version)\w*$",
    re.I,
)
_INNER = (cst.FunctionDef, cst.Lambda, cst.ClassDef)
_COMPREHENSIONS = (cst.ListComp, cst.SetComp, cst.DictComp, cst.GeneratorExp)
# Types are asked for by name: libcst's are abstract, and isinstance costs more than the walk.
_DEFINED = frozenset((cst.FunctionDef, cst.ClassDef))
_OWN = frozenset((cst.Lambda, *_COMPREHENSIONS))
_TARGETED = frozenset((cst.AssignTarget, cst.AnnAssign, cst.AugAssign, cst.For, cst.NamedExpr))
_KEPT = 4096  # statements whose names are kept: nodes never change, and are equal to themselves


class _Assigned(Walker):
    def __init__(self) -> None:
        self.names: list[str] = []

    def on_visit(self, node: Any) -> bool:
        kind = type(node)
        if kind in _DEFINED:
            self.names.append(node.name.value)
            return False
        if kind in _OWN:
            return False
        if kind in _TARGETED:
            self._target(node.target)
        elif kind is cst.AsName:
            self._target(node.name)
        elif kind is cst.Expr:
            self._changed(node.value)
        return True

    def _target(self, node: cst.CSTNode) -> None:
        if isinstance(node, cst.Name):
            self.names.append(node.value)
        elif isinstance(node, (cst.Tuple, cst.List)):
            for element in node.elements:
                self._target(element.value)
        elif isinstance(node, cst.Subscript):
            self._target(node.value)
        elif isinstance(node, cst.Attribute) and dotted(node):
            self.names.append(dotted(node))

    def _changed(self, node: cst.BaseExpression) -> None:
        """``x.fill_(0)`` and ``losses.append(y)`` change what the name holds."""
        if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
            name = node.func.attr.value
            if name in ("append", "extend", "update") or (name.endswith("_") and name[-2:] != "__"):
                self._target(node.func.value)


def assigned(node: cst.CSTNode) -> list[str]:
    """Return the names that ``node`` assigns or changes, dotted ones too, in order."""
    return list(_assigned(node))


@lru_cache(_KEPT)
def _assigned(node: cst.CSTNode) -> tuple[str, ...]:
    found = _Assigned()
    found.walk(node)
    return tuple(found.names)


def set_parts(node: cst.CSTNode) -> set[str]:
    """Return the plain names of which ``node`` sets a part: ``x[:, i] = y``, ``x[0] += 1``."""
    found = _Parts()
    found.walk(node)
    return set(found.names)


class _Parts(_Assigned):
    """Names of lists, dictionaries and tensors of which parts are set."""

    def on_visit(self, node: Any) -> bool:
        return type(node) not in _DEFINED and super().on_visit(node)

    def _target(self, node: cst.CSTNode) -> None:
        if isinstance(node, (cst.Tuple, cst.List)):
            super()._target(node)
            return
        root: Any = node
        while isinstance(root, cst.Subscript):
            root = root.value
        if root is not node and isinstance(root, cst.Name):
            self.names.append(root.value)

    def _changed(self, node: cst.BaseExpression) -> None:
        pass


_GROWING = ("append", "extend", "insert", "update")


class _Filled(_Parts):
    """Names of those that get more, too."""

    def on_visit(self, node: Any) -> bool:
        listed = isinstance(node, cst.AugAssign) and isinstance(
            node.value, (cst.List, cst.ListComp, cst.Tuple)
        )
        if listed and isinstance(node.target, cst.Name):
            self.names.append(node.target.value)  # ``outs += [y]``
        return super().on_visit(node)

    def _changed(self, node: cst.BaseExpression) -> None:
        func: Any = node.func if isinstance(node, cst.Call) else None
        grows = isinstance(func, cst.Attribute) and func.attr.value in _GROWING
        if grows and isinstance(func.value, cst.Name):
            self.names.append(func.value.value)


def filled(nodes: Iterable[cst.CSTNode]) -> set[str]:
    """Return the plain names of what statements put something into: ``outs.append(y)``."""
    found = _Filled()
    for node in nodes:
        found.walk(node)
    return set(found.names)


class _Plain(_Assigned):
    def _changed(self, node: cst.BaseExpression) -> None:
        pass

    def _target(self, node: cst.CSTNode) -> None:
        if not isinstance(node, (cst.Subscript, cst.Attribute)):
            super()._target(node)


def assigned_first(node: cst.CSTNode) -> list[str]:
    """Return the plain names that become local to a function that holds ``node``."""
    return list(_assigned_first(node))


@lru_cache(_KEPT)
def _assigned_first(node: cst.CSTNode) -> tuple[str, ...]:
    found = _Plain()
    found.walk(node)
    return tuple(found.names)


class _Declared(Walker):
    """Names that a function declares global or nonlocal."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def on_visit(self, node: Any) -> bool:
        if isinstance(node, cst.NameItem):
            self.names.add(node.name.value)
        return not isinstance(node, _INNER)


class _Read(Walker):
    def __init__(self) -> None:
        self.names: set[str] = set()

    def on_visit(self, node: Any) -> bool:
        """Walk only where values are read."""
        kind = type(node)
        if kind is cst.Name:
            self.names.add(node.value)
        elif kind is cst.Attribute:
            self._attribute(node)
        elif kind is cst.Arg:
            self.walk(node.value)
        elif kind is cst.Param:
            self._each(node.default)
        elif kind is cst.AssignTarget:
            self._inside(node.target)
        elif kind is cst.AnnAssign:
            self._inside(node.target)
            self._each(node.value)
        elif kind is cst.For:
            self._each(node.iter, node.body, node.orelse)
        elif kind is cst.FunctionDef:
            self._function(node)
        elif kind in _OWN and kind is not cst.Lambda:
            self._comprehension(node)
        else:
            return True
        return False

    def _function(self, node: cst.FunctionDef) -> None:
        """What a function binds is its own, but for what it says is of around it."""
        self._each(*node.decorators, node.params, node.returns)
        inner = _Read()
        inner.walk(node.body)
        said = _Declared()
        said.walk(node.body)
        given = node.params
        params = [*given.posonly_params, *given.params, *given.kwonly_params]
        params += [p for p in (given.star_arg, given.star_kwarg) if isinstance(p, cst.Param)]
        own = {param.name.value for param in params} | set(assigned_first(node.body)) - said.names
        self.names |= {name for name in inner.names if name.partition(".")[0] not in own}

    def _comprehension(self, node: Any) -> None:
        """What ``for`` binds in a comprehension is its own; its first iterable is read outside."""
        inner = _Read()
        bound: set[str] = set()
        part = node.for_in
        self.walk(part.iter)
        while part is not None:
            bound |= set(target_names(part.target))
            inner._each(*(test.test for test in part.ifs))
            part = part.inner_for_in
            inner._each(None if part is None else part.iter)
        inner._each(*((node.key, node.value) if isinstance(node, cst.DictComp) else (node.elt,)))
        self.names |= {name for name in inner.names if name.partition(".")[0] not in bound}

    def _each(self, *nodes: cst.CSTNode | None) -> None:
        for node in nodes:
            if node is not None:
                self.walk(node)

    def _attribute(self, node: cst.Attribute) -> None:
        text = dotted(node)
        if not text:
            self.walk(node.value)
            return
        parts = text.split(".")
        self.names.update(".".join(parts[: i + 1]) for i in range(len(parts)))

    def _inside(self, target: cst.CSTNode) -> None:
        if isinstance(target, (cst.Tuple, cst.List)):
            for element in target.elements:
                self._inside(element.value)
        elif not isinstance(target, cst.Name):
            self.walk(target)


def read(node: cst.CSTNode) -> set[str]:
    """Return the names that ``node`` reads, of dotted ones each beginning too."""
    return set(_read(node))


@lru_cache(_KEPT)
def _read(node: cst.CSTNode) -> frozenset[str]:
    found = _Read()
    found.walk(node)
    return frozenset(found.names)


def constant(nodes: Iterable[cst.CSTNode], names: set[str]) -> bool:
    """Return whether ``nodes`` read ``names`` detached alone: they are values, computed before.

    ``names`` are plain ones; ``made.detach()`` and ``made.data`` are such, ``made`` is not.
    """
    return not attached(nodes, names)


def attached(nodes: Iterable[cst.CSTNode], names: set[str]) -> set[str]:
    """Return those of ``names`` that ``nodes`` read with their gradients, not detached."""
    detached = _Detached()
    made: set[str] = set()
    found: set[str] = set()
    for node in nodes:
        bare = node.visit(detached)
        found |= read_first(bare, made) & names
        made |= set(assigned_first(node))
    return found


def needed_again(
    lines: Sequence[Any],
    nodes: Sequence[cst.CSTNode],
    names: set[str],
    *,
    in_order: bool = False,
) -> list[Any] | None:
    """Return which of ``lines`` a later loss of ``nodes`` has to compute again, in order.

    What it reads detached is of before: None where a line makes that, and what is needed as well.
    With ``in_order`` what ``nodes`` bind before they read it is their own.
    """
    wanted = attached(nodes, names)
    bound: set[str] = set()
    before: set[str] = set()
    for node in nodes:
        before |= (read_first(node, bound) if in_order else read(node)) & names - wanted
        bound |= set(assigned_first(node))
    again: list[Any] = []
    for line in reversed(lines):
        made = set(assigned(line))
        if made & wanted:
            if made & before:
                return None
            again.insert(0, line)
            wanted |= read(line) & names  # noise, labels and the like stay as they were drawn
    return again


def carrying(nodes: Sequence[Any], loss: cst.CSTNode, at: At) -> set[int]:
    """Return the places of statements that a gradient of ``loss`` goes through, to weights."""
    every = {name for node in nodes for name in assigned(node)}
    graded: set[str] = set()  # names that may have a gradient
    for node in nodes:
        if weights_run(node, at) or attached([node], every) & graded:
            graded |= set(assigned(node))
    wanted = attached([loss], every)
    found: set[int] = set()
    for place in range(len(nodes) - 1, -1, -1):
        if set(assigned(nodes[place])) & wanted & graded:
            found.add(place)
            wanted |= attached([nodes[place]], every)
    return found


def values_alone(nodes: Sequence[Any], loss: cst.CSTNode, at: At) -> set[int]:
    """Return the places of statements that make numbers by networks, without a gradient.

    A network runs in them, or they read what such ones make, and they read nothing that the
    loss differentiates.
    """
    graded = carrying(nodes, loss, at)
    found: set[int] = set()
    alone: set[str] = set()
    inside: set[str] = set()
    for place, node in enumerate(nodes):
        made, reads = set(assigned(node)), read(node)
        depends = place in graded or bool(reads & inside)
        if not depends and (weights_run(node, at) or reads & alone):
            found.add(place)
            alone |= made
            inside -= made
        else:
            inside |= made if depends else set()
            alone -= made
    return found


def weights_run(node: cst.CSTNode, at: At) -> set[str]:
    """Return what a statement calls, as code, that may hold weights."""
    calls = (call for call in calls_in(node) if not _is_plain(call, at, functional=True))
    return {name for call in calls for name in (code_of(call.func), *_networks(call, at))}


def _networks(call: cst.Call, at: At) -> list[str]:
    return [code_of(one) for one in networks_given(call, at)]


def plain_values(nodes: Iterable[cst.CSTNode], at: At) -> set[str]:
    """Return the names that ``nodes`` make without any network: labels, noise, batches.

    No gradient goes through them, so what was computed is as good as computing it again; noise
    that was drawn has to stay the same.
    """
    made: set[str] = set()
    plain: set[str] = set()
    for node in nodes:
        names = set(assigned(node))
        wants = "requires_grad=True" in code_of(node) or "requires_grad_" in code_of(node)
        if (
            wants
            or read(node) & (made - plain)
            or not all(_is_plain(c, at) for c in calls_in(node))
        ):
            plain -= names
        else:
            plain |= names
        made |= names
    return plain


def _is_plain(call: cst.Call, at: At, *, functional: bool = False) -> bool:
    """Return whether a call surely runs no network: of a package, a builtin, a tensor's method.

    Of torch.nn that are functions, where ``functional`` is true: they hold no weights.
    """
    named = [at.names.called(call)] if at.names.called(call) else at.names.choices(call.func)
    if runs_imported(call, at):
        return False
    if named:
        free = ("torch.nn.functional.",) if functional else ()
        return all(str(n).startswith(free) or not str(n).startswith("torch.nn.") for n in named)
    func = call.func
    if isinstance(func, cst.Name):
        return func.value in ("len", "int", "float", "range") and not at.names.scope(func).find(
            func.value
        )
    return isinstance(func, cst.Attribute) and func.attr.value in vocabulary()["tensor"]


def detaches(node: cst.CSTNode, names: set[str]) -> bool:
    """Return whether ``node`` detaches what one of ``names`` holds."""
    funcs = (call.func for call in calls_in(node))
    return any(
        isinstance(func, cst.Attribute) and func.attr.value == "detach" and read(func.value) & names
        for func in funcs
    )


class _Detached(cst.CSTTransformer):
    """Puts None in the place of what is detached from its gradients."""

    def leave_Call(  # noqa: N802  # libcst's
        self, original_node: cst.Call, updated_node: cst.Call
    ) -> Any:
        func = updated_node.func
        if isinstance(func, cst.Attribute) and func.attr.value == "detach":
            return cst.Name("None") if _is_held(func.value) else updated_node
        return updated_node

    def leave_Attribute(  # noqa: N802  # libcst's
        self, original_node: cst.Attribute, updated_node: cst.Attribute
    ) -> Any:
        plain = _is_held(updated_node.value)
        return cst.Name("None") if plain and updated_node.attr.value == "data" else updated_node


def _is_held(node: Any) -> bool:
    """Return whether this is what names hold, or made of that alone: ``-(log_prob + entropy)``."""
    while isinstance(node, cst.Subscript):
        node = node.value
    if isinstance(node, cst.UnaryOperation):
        return _is_held(node.expression)
    if isinstance(node, cst.BinaryOperation):
        return all(_is_held(side) or _is_number(side) for side in (node.left, node.right))
    if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
        plain = node.func.attr.value in _OVER_ALL and all(_is_number(a.value) for a in node.args)
        return plain and _is_held(node.func.value)
    return isinstance(node, cst.Name)


_OVER_ALL = frozenset("abs clamp exp log max mean min pow sigmoid sqrt squeeze sum".split())  # noqa: SIM905


def _is_number(node: Any) -> bool:
    """Return whether this is a number, or an attribute that may be one."""
    if isinstance(node, cst.UnaryOperation):
        return _is_number(node.expression)
    return isinstance(node, cst.BaseNumber) or (
        isinstance(node, cst.Attribute) and bool(dotted(node))
    )


def surely_made(node: Any) -> set[str]:
    """Return the plain names that a statement assigns whatever its conditions are."""
    if isinstance(node, cst.SimpleStatementLine):
        return set(assigned_first(node))
    if isinstance(node, (cst.FunctionDef, cst.ClassDef)):
        return {node.name.value}
    if isinstance(node, cst.IndentedBlock):
        return {name for line in node.body for name in surely_made(line)}
    if isinstance(node, cst.With):
        return surely_made(node.body) | bound_by(node)
    if isinstance(node, cst.If) and node.orelse is not None:
        return surely_made(node.body) & surely_made(node.orelse)
    if isinstance(node, cst.If):
        return set()
    return surely_made(node.body) if isinstance(node, cst.Else) else set()


def bound_by(node: Any) -> set[str]:
    """Return the names that a statement binds for its block: a loop's, and those behind ``as``."""
    if isinstance(node, cst.For):
        return set(target_names(node.target))
    if not isinstance(node, cst.With):
        return set()
    return {name for one in node.items if one.asname for name in target_names(one.asname.name)}


def bound_before(node: cst.CSTNode, top: Any, at: At) -> set[str]:
    """Return the plain names that are surely bound where a statement below ``top`` begins."""
    found: set[str] = set()
    below: Any = node
    for above in at.names.ancestors(node):
        if isinstance(above, (cst.IndentedBlock, cst.Module)):
            for line in above.body:
                if line is below:
                    break
                found |= surely_made(line)
        found |= bound_by(above)
        below = above
        if above is top:
            break
    if isinstance(top, cst.FunctionDef):
        given = top.params
        every = [*given.posonly_params, *given.params, *given.kwonly_params]
        every += [one for one in (given.star_arg, given.star_kwarg) if isinstance(one, cst.Param)]
        found |= {param.name.value for param in every}
    return found


def read_first(node: Any, made: set[str]) -> set[str]:
    """Return the names that ``node`` may read before it assigns them; ``made`` are by then."""
    if isinstance(node, cst.IndentedBlock):
        found: set[str] = set()
        known = set(made)
        for line in node.body:
            found |= read_first(line, known)
            known |= set(assigned_first(line))
        return found
    if isinstance(node, cst.With):
        items = {name for item in node.items for name in read(item.item)}
        return (items - made) | read_first(node.body, made)
    if isinstance(node, cst.If):
        found = (read(node.test) - made) | read_first(node.body, made)
        return found | (read_first(node.orelse, made) if node.orelse else set())
    if isinstance(node, cst.Else):
        return read_first(node.body, made)
    if isinstance(node, cst.For):
        known = made | set(assigned_first(node.target)) | set(target_names(node.target))
        return (read(node.iter) - made) | read_first(node.body, known)
    return read(node) - made


def needs(nodes: Iterable[cst.CSTNode]) -> set[str]:
    """Return the names that statements in a row may read of before them."""
    found: set[str] = set()
    made: set[str] = set()
    for node in nodes:
        found |= read_first(node, made)
        made |= set(assigned_first(node)) if _surely(node) else set()
    return found


class _Jumps(Walker):
    def __init__(self) -> None:
        self.found: list[cst.CSTNode] = []
        self._loops = 0

    def on_visit(self, node: cst.CSTNode) -> bool:
        if isinstance(node, _INNER):
            return False
        if isinstance(node, (cst.For, cst.While)):
            self._loops += 1
        if isinstance(node, (cst.Return, cst.Yield, cst.Await)):
            self.found.append(node)
        if isinstance(node, (cst.Break, cst.Continue)) and not self._loops:
            self.found.append(node)
        return True

    def on_leave(self, node: cst.CSTNode) -> None:
        if isinstance(node, (cst.For, cst.While)):
            self._loops -= 1


def jumps(node: cst.CSTNode) -> list[cst.CSTNode]:
    """Return the statements that leave ``node``: return, yield, a break of a loop around it."""
    found = _Jumps()
    found.walk(node)
    return found.found


@dataclass
class Slice:
    """The statements of one block that a loss is made of.

    Attributes:
        places: their indices in the block, ascending.
        needed: names that they read and do not make.
    """

    places: list[int] = field(default_factory=list)
    needed: set[str] = field(default_factory=set)


def slice_of(
    body: Sequence[Any],
    end: int,
    wanted: set[str],
    at: At,
    *,
    whole: bool = False,
    more: Callable[[Any], set[str]] | None = None,
) -> Slice:
    """Return the statements before ``end`` that the names ``wanted`` come from.

    What only prepares data, before the first statement that runs a network or a loss, is left
    out, unless it is made of a tensor whose gradient is read, or ``whole`` is true. ``more`` gives
    names that a statement makes by what it calls.
    """
    needed = set(wanted)
    places: list[int] = []
    for place in range(end - 1, -1, -1):
        statement = body[place]
        made = set(assigned(statement))
        if more is not None:
            made |= more(statement)
        if _keeps_its_own(statement) and not needed & set(assigned(statement.test)):
            continue  # what it makes does not come further
        if made & needed:
            if isinstance(statement, cst.ClassDef) or _is_of_before(statement, at):
                needed -= made
                continue
            if _makes_network(statement, [body[one] for one in places], wanted, at):
                needed -= made
                continue
            places.insert(0, place)
            # A name that is only changed, or perhaps, is still wanted from before.
            if _surely(statement):
                needed -= made
            needed |= read(statement)
    inputs = set(at.once(asked_for))
    last = max((place for place in range(end) if reads_gradient(body[place], at)), default=-1)
    left: list[int] = []
    while places and not whole and not _runs(body[places[0]], at):
        first = body[places[0]]
        if filled(body[place] for place in places[1:]) & surely_made(first):
            break  # a function's own: what it is handed from outside it may not fill
        if places[0] > last and inputs & read(first) and not inputs & set(assigned(first)):
            break
        left.append(places.pop(0))
    if not any(_learns(body[place], at) for place in places):
        first = next((n for n, place in enumerate(left) if _asks_another(body[place], at)), None)
        places = places if first is None else [*left[first:], *places]
    return Slice(places, needed)


_LOSS = re.compile(r"(^|[._])\w*(loss|criterion|crit)\w*$", re.I)


def is_called_loss(call: cst.Call) -> bool:
    """Return whether what is called is a loss by its name: ``self.criterion(x, y)``."""
    return _LOSS.search(code_of(call.func)) is not None


def _unknown(statement: Any, at: At) -> list[cst.Call]:
    """Return the calls of a statement that may run weights, and are no losses by their names."""
    every = (call for call in calls_in(statement) if not _is_plain(call, at, functional=True))
    return [call for call in every if not is_called_loss(call)]


def _learns(statement: Any, at: At) -> bool:
    """Return whether a statement may run something that learns: no loss of torch's alone does."""
    return bool(_unknown(statement, at) or parameters_read(statement, at))


def _asks_another(statement: Any, at: At) -> bool:
    """Return whether an object that nothing is known of is asked: it may hold the network.

    Or a function of another file, which may be handed such an object.
    """
    asked = any(
        isinstance(call.func, cst.Attribute) and call.args and dotted(call.func)
        for call in _unknown(statement, at)
    )
    every = [call for call in calls_in(statement) if not is_called_loss(call)]
    return asked or any(of_another_file(at.names.called(call) or "") for call in every)


def _makes_network(statement: Any, users: Sequence[Any], wanted: set[str], at: At) -> bool:
    """Return whether a statement makes a network that those behind it run, and no more.

    Its weights are what the loss is differentiated by: they are there before.
    """
    if not users or not isinstance(statement, cst.SimpleStatementLine) or len(statement.body) != 1:
        return False
    small = statement.body[0]
    if not isinstance(small, cst.Assign) or len(small.targets) != 1:
        return False
    target = small.targets[0].target
    if not isinstance(target, cst.Name) or target.value in wanted or not is_module(at, target):
        return False
    if not isinstance(small.value, cst.Call) or target.value in read(small.value):
        return False
    if at.values.kind(small.value) == "tensor":
        return False
    run = [call for user in users for call in calls_in(user) if _runs_it(call.func, target.value)]
    named = sum(len(re.findall(rf"(?<![\w.]){target.value}\b", code_of(user))) for user in users)
    return bool(run) and named == len(run)


def _runs_it(func: Any, name: str) -> bool:
    """Return whether ``name(...)`` or ``name.method(...)`` is called, and no method of a tensor."""
    root, _, rest = dotted(func).partition(".")
    return root == name and rest.partition(".")[0] not in EXPORTS["torch.Tensor"]


def _keeps_its_own(statement: Any) -> bool:
    """Return whether a branch leaves the block, and has no other."""
    return isinstance(statement, cst.If) and statement.orelse is None and leaves(statement)


def _is_of_before(statement: Any, at: At) -> bool:
    """Return whether what a statement makes are gradients, or values behind a backward pass."""
    own = own_passes(statement, at)
    if own:
        return all(gives_values(one, at) for one in own)
    return _surely(statement) and reads_gradient(statement, at)


def _surely(statement: Any) -> bool:
    """Whether all that it assigns is new after it: a plain assignment, or a plain ``with``."""
    if isinstance(statement, cst.SimpleStatementLine):
        return all(
            isinstance(small, (cst.Assign, cst.AnnAssign))
            and not any(isinstance(t.target, cst.Subscript) for t in getattr(small, "targets", ()))
            for small in statement.body
        )
    if isinstance(statement, cst.With) and isinstance(statement.body, cst.IndentedBlock):
        return all(_surely(inner) for inner in statement.body.body)
    return False


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
        same = at.names.enclosing(function, cst.ClassDef) is owner
        if computed and same and around is not function:
            return function.body
    return None


def _runs(statement: cst.CSTNode, at: At) -> bool:
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
    return at.once(_running).ask(body, lambda: _runs(body, at), least=False)


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
        and (is_module(at, arg.value) or is_given_as_network(arg))
    ]


def _is_loss(name: str) -> bool:
    return name.startswith("torch.nn.functional.") and ("loss" in name or "entropy" in name)

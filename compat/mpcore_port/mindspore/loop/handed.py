"""Functions that a loss is handed to: their statements stand where they are called."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.children import Walker
from mpcore_port.mindspore.rules.losses.names_in import assigned_first, read
from mpcore_port.names import code_of, dotted

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mpcore_port.mindspore.loop.description import Act
    from mpcore_port.mindspore.rules.losses.planned import Sink
    from mpcore_port.rule import At

__all__ = ["Handed", "handed_to", "without_text"]

_LEAVES = (cst.Return, cst.Yield, cst.Await, cst.Global, cst.Nonlocal)
_DEFINES = (cst.FunctionDef, cst.ClassDef, cst.Lambda)
_PLAIN = (cst.Integer, cst.Float, cst.SimpleString)


@dataclass(frozen=True)
class Handed:
    """One call of a function that differentiates the loss it is given.

    Attributes:
        function: the function.
        given: by parameter, the argument as code, where that is another name.
        sink: where the loss is handed over.
    """

    function: cst.FunctionDef
    given: dict[str, str]
    sink: Sink

    def statements(self) -> list[Any]:
        """Return the function's statements, without its docstring."""
        return without_text(self.function.body.body)

    def in_place(self, node: Any) -> Any:
        """Return a statement with the caller's names; itself where it has those already."""
        return node.visit(_Given(self.given)) if read(node) & set(self.given) else node

    def act(self, act: Act) -> Act:
        """Return what an act is with the caller's names."""
        return replace(
            act,
            holder=self.code(act.holder),
            scaler=self.code(act.scaler),
            limit=self.code(act.limit),
            of=self.code(act.of),
            bound=self.code(act.bound),
            condition=self.code(act.condition),
        )

    def code(self, text: str) -> str:
        """Return code with the caller's names."""
        if not text or not self.given:
            return text
        return code_of(self.in_place(cst.parse_expression(text)))


def without_text(body: Sequence[Any]) -> list[Any]:
    """Return the statements of a function without its docstring."""
    first = body[0] if body else None
    alone = isinstance(first, cst.SimpleStatementLine) and len(first.body) == 1
    small = first.body[0] if alone else None  # type: ignore[union-attr]  # a line
    has_text = isinstance(small, cst.Expr) and isinstance(small.value, cst.SimpleString)
    return list(body[1:] if has_text else body)


class _Given(cst.CSTTransformer):
    """Puts arguments in the place of parameters."""

    def __init__(self, given: dict[str, str]) -> None:
        super().__init__()
        self.given = given

    def leave_Name(  # noqa: N802  # libcst's
        self, original_node: cst.Name, updated_node: cst.Name
    ) -> cst.BaseExpression:
        text = self.given.get(original_node.value)
        return updated_node if text is None else cst.parse_expression(text)

    def leave_Attribute(  # noqa: N802  # libcst's
        self, original_node: cst.Attribute, updated_node: cst.Attribute
    ) -> cst.BaseExpression:
        return updated_node.with_changes(attr=original_node.attr)

    def leave_Arg(  # noqa: N802  # libcst's
        self, original_node: cst.Arg, updated_node: cst.Arg
    ) -> cst.Arg:
        return updated_node.with_changes(keyword=original_node.keyword)


class _Odd(Walker):
    """Finds what cannot stand anywhere else than in its function."""

    def __init__(self) -> None:
        self.any = False

    def on_visit(self, node: cst.CSTNode) -> bool:
        self.any = self.any or isinstance(node, (*_LEAVES, *_DEFINES))
        return not self.any


def handed_to(sinks: Iterable[Sink], at: At) -> dict[int, Handed]:
    """Return the calls that hand a loss to a function whose statements can stand in their place.

    Keys are the ids of the calls. A function is taken where all of its calls can be.
    """
    by_function: dict[int, tuple[cst.FunctionDef, list[Sink]]] = {}
    for sink in sinks:
        if sink.within is not None:
            function = at.names.enclosing(sink.within.call, cst.FunctionDef)
            by_function.setdefault(id(function), (function, []))[1].append(sink)
    found: dict[int, Handed] = {}
    for function, calls in by_function.values():
        taken = [_handed(function, sink, at) for sink in calls]
        if _is_plain(function, at) and _is_only_called(function, calls, at):
            every = [one for one in taken if one is not None]
            found |= {id(one.sink.call): one for one in every if len(every) == len(taken)}
    return found


def _is_plain(function: cst.FunctionDef, at: At) -> bool:
    params = function.params
    given = (params.star_arg, params.star_kwarg)
    if (
        function.decorators
        or function.asynchronous
        or not isinstance(function.body, cst.IndentedBlock)
    ):
        return False
    if any(isinstance(one, cst.Param) for one in given):
        return False
    odd = _Odd()
    odd.walk(function.body)
    outer = at.names.enclosing(function, cst.FunctionDef)
    return not odd.any and outer is None and not _named(function) & _made(function)


def _is_only_called(function: cst.FunctionDef, sinks: list[Sink], at: At) -> bool:
    """Return whether these calls are all that the module does with a function."""
    name = function.name.value
    if len(at.names.functions.get(name, ())) != 1:
        return False
    uses = [n for n in at.names.parents if isinstance(n, cst.Name) and n.value == name]
    return len(uses) == 1 + len(sinks)


def _named(function: cst.FunctionDef) -> set[str]:
    params = function.params
    every = (*params.posonly_params, *params.params, *params.kwonly_params)
    return {one.name.value for one in every}


def _made(function: cst.FunctionDef) -> set[str]:
    return set(assigned_first(function.body))


def _handed(function: cst.FunctionDef, sink: Sink, at: At) -> Handed | None:
    """Return a call with its arguments; None if the statements would mean something else there."""
    call, names = sink.call, at.names
    parent = names.parents.get(call)
    owner = names.enclosing(function, cst.ClassDef)
    holder = dotted(call.func).rpartition(".")[0]
    if not isinstance(parent, cst.Expr) or holder != ("self" if owner is not None else ""):
        return None
    if owner is not None and names.enclosing(call, cst.ClassDef) is not owner:
        return None
    given = _arguments(function, call, is_method=owner is not None)
    if given is None:
        return None
    scope = names.scope(call)
    here = set() if scope is names.top else set(scope.bindings)
    inside = {name.partition(".")[0] for name in read(function.body)} - _named(function)
    if _made(function) & (here | read(cst.parse_expression(f"[{', '.join(given.values())}]"))):
        return None
    if inside & here - {"self"} - _made(function):
        return None
    return Handed(function, {k: v for k, v in given.items() if k != v}, sink)


def _arguments(
    function: cst.FunctionDef, call: cst.Call, *, is_method: bool
) -> dict[str, str] | None:
    """Return the arguments of a call by parameter, as code; None if they are not plain."""
    params = function.params
    plain = [*params.posonly_params, *params.params][int(is_method) :]
    every = [*plain, *params.kwonly_params]
    values = {one.name.value: one.default for one in every}
    for place, arg in enumerate(call.args):
        if arg.star or (arg.keyword is None and place >= len(plain)):
            return None
        values[arg.keyword.value if arg.keyword else plain[place].name.value] = arg.value
    if set(values) != {one.name.value for one in every}:
        return None
    if any(one is None or not (dotted(one) or isinstance(one, _PLAIN)) for one in values.values()):
        return None
    return {name: code_of(value) for name, value in values.items() if value is not None}

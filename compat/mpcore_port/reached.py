"""What a plain run of a script surely evaluates: nothing is run, and what is not sure is left out.

A run without arguments is meant: defaults of ``argparse`` and constants of the file decide
branches; a condition that they do not decide leaves both of its branches unsure. Functions and
methods of the file are followed where the name says which one is called.
"""

from __future__ import annotations

import ast
import operator
import warnings
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from mpcore_port.command_line import option_name

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Reached", "imported_names", "passed_by", "uses"]

_UNKNOWN = object()
_ENDS = (ast.Return, ast.Raise, ast.Continue, ast.Break)
_COMPARE: dict[type[ast.cmpop], Any] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
}
_SCOPES = (
    *(ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef),
    *(ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp),
)
_MAKERS = ("numba.cuda", "triton.")
_FLAGS = {"store_true": False, "store_false": True, "count": None}


@lru_cache(maxsize=2)  # each refused line of a file asks for it
def _parsed(text: str) -> ast.Module | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the user's script
            return ast.parse(text.replace("\r\n", "\n"))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def imported_names(code: str) -> frozenset[str]:
    """Return the names that the import statements of some code bind."""
    tree = _parsed(code)
    found = [
        node
        for node in (ast.walk(tree) if tree else ())
        if isinstance(node, (ast.Import, ast.ImportFrom))
    ]
    return frozenset(_bound_by(found))


def _bound_by(found: Sequence[ast.Import | ast.ImportFrom]) -> set[str]:
    return {(a.asname or a.name.partition(".")[0]) for node in found for a in node.names}


def uses(
    text: str, line: int, kept: frozenset[str] = frozenset(), kernels: bool = False
) -> list[tuple[int, int]] | None:
    """Return where the names are read that an import in ``line`` binds; None: it is no import.

    ``kept`` are names among them that it brings as before. Of ``kernels``, which functions are
    made to by what is imported, launches are meant: no making of them raises, no body is run.

    A star binds what nobody knows, and is none: what stands for it raises where it stands.
    """
    tree = _parsed(text)
    found = [
        node
        for node in (ast.walk(tree) if tree else ())
        if isinstance(node, (ast.Import, ast.ImportFrom)) and node.lineno == line
    ]
    if not found or tree is None:
        return None
    bound = _bound_by(found)
    if "*" in bound:
        return None
    bound -= kept
    made = _kernels_of(tree) if kernels else []
    inside = {id(node) for kernel in made for node in ast.walk(kernel)}
    bound |= {kernel.name for kernel in made}
    inside |= _hidden(tree, bound)
    return [
        (node.lineno, node.col_offset)
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and node.id in bound and isinstance(node.ctx, ast.Load)
        if id(node) not in inside
    ]


def passed_by(text: str, line: int) -> range:
    """Return the lines of a ``try`` behind an import that raises there: nothing gets to them."""
    tree = _parsed(text)
    for node in ast.walk(tree) if tree else ():
        if isinstance(node, ast.Try):
            first, last = node.body[0].lineno, node.body[-1].end_lineno or 0
            if first <= line <= last:
                return range(line, last + 1)
    return range(0)


def _hidden(tree: ast.Module, bound: set[str]) -> set[int]:
    """Return the nodes that read something else: their function binds the name itself."""
    hidden: set[int] = set()
    for node in ast.walk(tree):
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            continue
        own = _locals(node) & bound
        if not own:
            continue
        body = [node.body] if isinstance(node, ast.Lambda) else node.body
        read = (one for part in body for one in ast.walk(part))
        hidden |= {id(one) for one in read if isinstance(one, ast.Name) and one.id in own}
    return hidden


def _locals(function: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> set[str]:
    """Return the parameters of a function and what it assigns, but for what is global."""
    given = function.args
    every = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
    names = {one.arg for one in every if one is not None}
    if isinstance(function, ast.Lambda):
        return names
    outer: set[str] = set()
    left: list[ast.AST] = list(function.body)
    while left:
        node = left.pop()
        if isinstance(node, (ast.Global, ast.Nonlocal)):
            outer |= set(node.names)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        if isinstance(node, _SCOPES):
            continue  # what it binds is its own
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            outer |= _bound_by([node])
        left.extend(ast.iter_child_nodes(node))
    return names - outer


def _kernels_of(tree: ast.Module) -> list[ast.FunctionDef]:
    """Return functions that numba or triton makes kernels of."""
    makers = {
        alias.asname or alias.name.partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
        if f"{getattr(node, 'module', None) or alias.name}.{alias.name}".startswith(_MAKERS)
    }
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
        if any(
            isinstance(one, ast.Name) and one.id in makers
            for decorator in node.decorator_list
            for one in ast.walk(decorator)
        )
    ]


class Reached:
    """The places of a script that a plain run surely evaluates.

    Args:
        text: the script.
    """

    def __init__(self, text: str) -> None:
        self._sure: set[tuple[int, int]] = set()
        self._all: set[tuple[int, int]] = set()
        self._entered: set[ast.AST] = set()
        self._functions: dict[str, ast.AST] = {}
        self._classes: dict[str, ast.ClassDef] = {}
        self._made: dict[str, set[str]] = {}
        self._constants: dict[str, object] = {}
        self._options: dict[str, object] = {}
        tree = _parsed(text)
        if tree is not None:
            self._learn(tree)
            self._block(tree.body)

    def surely(self, line: int, column: int) -> bool:
        """Return whether what begins here is evaluated; where nothing does, all of the line."""
        if (line, column) in self._all:
            return (line, column) in self._sure
        near = {place for place in self._all if place[0] == line}
        return bool(near) and near <= self._sure

    # --- what the file says about itself ------------------------------------------------------

    def _learn(self, tree: ast.Module) -> None:
        counts: dict[str, int] = {}
        for node in ast.walk(tree):
            if isinstance(node, (ast.expr, ast.stmt)):
                self._all.add((node.lineno, node.col_offset))
            if isinstance(node, ast.ClassDef):
                self._classes[node.name] = node
            elif isinstance(node, ast.Call):
                self._option(node)
            for name in _bound(node):
                counts[name] = counts.get(name, 0) + 1
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
                made = _last(node.value.func)
                for target in node.targets:
                    self._made.setdefault(_dotted(target), set()).add(made)
        for statement in tree.body:
            if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
                self._functions[statement.name] = statement
            if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Constant):
                for target in statement.targets:
                    if isinstance(target, ast.Name) and counts.get(target.id) == 1:
                        self._constants[target.id] = statement.value.value

    def _option(self, call: ast.Call) -> None:
        names = [a.value for a in call.args if isinstance(a, ast.Constant)]
        if _last(call.func) != "add_argument" or not all(isinstance(n, str) for n in names):
            return
        given = {k.arg: k.value for k in call.keywords}
        long = [n for n in names if str(n).startswith("--")] or names
        value: object = _FLAGS.get(_text(given.get("action")))
        if "default" in given:
            default = given["default"]
            value = default.value if isinstance(default, ast.Constant) else _UNKNOWN
        elif given.get("required") is not None or (long and not str(long[0]).startswith("-")):
            value = _UNKNOWN
        name = option_name([str(n) for n in names], _text(given.get("dest")))
        self._options[name] = _UNKNOWN if name in self._options else value

    # --- what is evaluated --------------------------------------------------------------------

    def _block(self, body: list[ast.stmt]) -> None:
        for statement in body:
            self._statement(statement)
            if isinstance(statement, _ENDS):
                return

    def _statement(self, node: ast.stmt) -> None:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            arguments = node.args
            parts = [*node.decorator_list, *arguments.defaults, *arguments.kw_defaults]
            self._parts(parts)
        elif isinstance(node, ast.ClassDef):
            made = [one for one in node.bases if not isinstance(one, (ast.Name, ast.Attribute))]
            self._parts([*node.decorator_list, *made, *(k.value for k in node.keywords)])
            self._block(node.body)
        elif isinstance(node, (ast.If, ast.While)):
            self._branch(node)
        elif isinstance(node, (ast.For, ast.AsyncFor)):
            self._parts([node.target, node.iter])
            self._block(node.body)
        elif isinstance(node, (ast.With, ast.AsyncWith)):
            self._parts([item.context_expr for item in node.items])
            self._block(node.body)
        elif isinstance(node, ast.Try):
            self._block(node.body)
            self._block(node.finalbody)
        elif isinstance(node, ast.Match):
            self._parts([node.subject])
        else:
            self._parts([node])

    def _branch(self, node: ast.If | ast.While) -> None:
        self._parts([node.test])
        value = self.value(node.test)
        if value is _UNKNOWN:
            return
        self._block(node.body if value else node.orelse)

    def _parts(self, nodes: list[Any]) -> None:
        waiting = [node for node in nodes if node is not None]
        while waiting:
            node = waiting.pop()
            if hasattr(node, "col_offset"):
                self._sure.add((node.lineno, node.col_offset))
            if isinstance(node, ast.Call):
                self._call(node)
            if isinstance(node, ast.Lambda):
                continue
            if isinstance(node, ast.BoolOp):
                waiting.append(node.values[0])
            elif isinstance(node, ast.Dict):  # a name in a table is met where it is taken out
                met = [one for one in node.values if not isinstance(one, (ast.Name, ast.Attribute))]
                waiting += [*filter(None, node.keys), *met]
            elif isinstance(node, ast.IfExp):
                value = self.value(node.test)
                waiting.append(node.test)
                if value is not _UNKNOWN:
                    waiting.append(node.body if value else node.orelse)
            else:
                waiting += list(ast.iter_child_nodes(node))

    def _call(self, node: ast.Call) -> None:
        func = node.func
        for target in self._targets(func):
            if target not in self._entered:
                self._entered.add(target)
                self._block(target.body)

    def _targets(self, func: ast.expr) -> list[Any]:
        if isinstance(func, ast.Name) and func.id in self._functions:
            return [self._functions[func.id]]
        if isinstance(func, ast.Name) and func.id in self._classes:
            self._parts([*self._classes[func.id].bases])  # a refused one raises where it is made
            return self._method(func.id, "__init__")
        owner = _dotted(func.value) if isinstance(func, ast.Attribute) else ""
        method = func.attr if isinstance(func, ast.Attribute) else ""
        found = self._method_of(owner, method) if owner else []
        whole = _dotted(func)
        return found or self._method_of(whole, "__call__") or self._method_of(whole, "forward")

    def _method_of(self, owner: str, method: str) -> list[Any]:
        made = self._made.get(owner, set())
        return self._method(next(iter(made)), method) if len(made) == 1 else []

    def _method(self, name: str, method: str) -> list[Any]:
        held = self._classes.get(name)
        body = held.body if held is not None else []
        return [s for s in body if isinstance(s, ast.FunctionDef) and s.name == method]

    # --- conditions -----------------------------------------------------------------------------

    def value(self, node: ast.expr) -> object:
        """Return what an expression is in a plain run, or an object that stands for not known."""
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            return "__main__" if node.id == "__name__" else self._constants.get(node.id, _UNKNOWN)
        if isinstance(node, ast.Attribute):
            holder = _dotted(node.value).rpartition(".")[2]
            known = holder in ("args", "opt", "opts", "flags", "config", "cfg", "hparams")
            return self._options.get(node.attr, _UNKNOWN) if known else _UNKNOWN
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            value = self.value(node.operand)
            return value if value is _UNKNOWN else not value
        if isinstance(node, ast.BoolOp):
            return self._bool(node)
        return self._compared(node) if isinstance(node, ast.Compare) else _UNKNOWN

    def _bool(self, node: ast.BoolOp) -> object:
        stops = isinstance(node.op, ast.Or)
        values = [self.value(part) for part in node.values]
        if any(value is not _UNKNOWN and bool(value) is stops for value in values):
            return stops
        return _UNKNOWN if any(value is _UNKNOWN for value in values) else not stops

    def _compared(self, node: ast.Compare) -> object:
        left, right = self.value(node.left), self.value(node.comparators[0])
        act = _COMPARE.get(type(node.ops[0]))
        if act is None or len(node.ops) > 1 or left is _UNKNOWN or right is _UNKNOWN:
            return _UNKNOWN
        try:
            return bool(act(left, right))
        except TypeError:
            return _UNKNOWN


def _bound(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return [node.id]
    if isinstance(node, ast.Global):
        return node.names * 2
    return [node.arg] if isinstance(node, ast.arg) else []


def _dotted(node: ast.AST) -> str:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join(reversed([*parts, node.id])) if isinstance(node, ast.Name) else ""


def _last(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _text(node: ast.AST | None) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""

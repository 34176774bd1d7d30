"""Small changes of the product, one at a time, chosen by a seed.

Seven kinds: a comparison, an arithmetic operator, ``and`` with ``or`` (and ``not``), a constant, a
returned value, a call or a change in place left out, two arguments swapped. Annotations,
decorators, docstrings, the words of messages and what only type checkers read stay as they are.
"""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SCOPE = (
    "mpcore/_lib",
    "mpcore/numerics",
    "mpcore/scaling",
    "mpcore/policy",
    "mpcore/step",
    "mpcore/checkpoint",
    "mpcore/interop",
    "mpcore/amp",
    "mpcore/backend",
    "mpcore/capabilities",
    "backends/mpcore_numpy",
    "backends/mpcore_torch",
    "backends/mpcore_tensorflow",
    "backends/mpcore_mindspore",
    "compat/mpcore_port",
)

COMPARE = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
ARITHMETIC = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult, ast.Pow: ast.Mult, ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr, ast.LShift: ast.RShift, ast.RShift: ast.LShift,
}  # fmt: skip
# Whose arguments swapped are an error at once, in any test.
ASKING = {"isinstance", "issubclass", "getattr", "hasattr", "setattr", "zip"}


@dataclass(frozen=True)
class Mutant:
    """One change: the text between two places of a file, and what stands there instead."""

    file: str
    line: int
    kind: str
    start: int
    """In bytes of the file, as ``end``."""
    end: int
    before: str
    after: str

    @property
    def name(self) -> str:
        return f"{self.file}:{self.line}:{self.start} {self.kind}"

    def applied(self, source: bytes) -> bytes:
        assert source[self.start : self.end].decode() == self.before, self.name
        return source[: self.start] + self.after.encode() + source[self.end :]


def choose(root: Path, seed: int, count: int, scope: tuple[str, ...] = SCOPE) -> list[Mutant]:
    """Return ``count`` mutants of all in ``scope``, in the order that the seed drew them."""
    everything = [
        mutant
        for folder in scope
        for path in files(root / folder)
        for mutant in mutants(path.read_bytes(), path.relative_to(root).as_posix())
    ]
    return random.Random(seed).sample(everything, min(count, len(everything)))


def files(path: Path) -> list[Path]:
    return [path] if path.is_file() else sorted(path.rglob("*.py"))


def mutants(source: bytes, file: str) -> Iterator[Mutant]:
    """Yield every mutant of one file."""
    text = source.decode()
    starts = [0]
    for row in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(row))
    for node in _walk(ast.parse(text)):
        for kind, new in _changes(node):
            start = starts[node.lineno - 1] + node.col_offset
            end = starts[node.end_lineno - 1] + node.end_col_offset
            before, after = source[start:end].decode(), ast.unparse(new)
            if isinstance(node, ast.expr):
                after = f"({after})"
            if ast.dump(node) != ast.dump(new):
                yield Mutant(file, node.lineno, kind, start, end, before, after)


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what may change; places inside of f-strings are not told before Python 3.12."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "type_comment", "bases"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or _is_left_alone(child):
                continue
            yield child
            yield from _walk(child)


def _is_left_alone(node: ast.AST) -> bool:
    match node:
        case ast.JoinedStr() | ast.Raise() | ast.Import() | ast.ImportFrom():
            return True
        case ast.Expr(value=ast.Constant()):  # a docstring
            return True
        case ast.Assign(targets=[ast.Name(id="__all__" | "msg")]):
            return True
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return True
        case ast.ClassDef(bases=[*_, ast.Name(id="Protocol")]):
            return True
    return False


def _changes(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    match node:
        case ast.Compare(left, [op], comparators) if type(op) in COMPARE:
            yield "comparison", ast.Compare(left, [COMPARE[type(op)]()], comparators)
        case ast.BinOp(left, op, right) if type(op) in ARITHMETIC:
            yield "arithmetic", ast.BinOp(left, ARITHMETIC[type(op)](), right)
        case ast.BoolOp(op, values):
            yield "boolean", ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values)
        case ast.UnaryOp(ast.Not(), operand):
            yield "boolean", operand
        case ast.Constant(bool() as value):
            yield "constant", ast.Constant(not value)
        case ast.Constant(int() as value):
            yield "constant", ast.Constant(value + 1)
        case ast.Constant(float() as value):
            yield "constant", ast.Constant(value * 2 if value else 1.0)
        case ast.Return(value) if value is not None and not _is_none(value):
            yield "returned value", ast.Return(ast.Constant(None))
        case ast.Expr(ast.Call()) | ast.AugAssign():
            yield "removed statement", ast.Pass()
        case ast.Call(func, [first, second, *rest], keywords) if not (
            isinstance(first, ast.Starred)
            or isinstance(second, ast.Starred)
            or (isinstance(func, ast.Name) and func.id in ASKING)
        ):
            yield "swapped arguments", ast.Call(func, [second, first, *rest], keywords)


def _is_none(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is None

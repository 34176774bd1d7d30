"""Putting imports and small helpers where they belong, and nothing else anywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.names import code_of, dotted
from mpcore_port.refusals import REFUSED, STUB
from mpcore_port.rule import KEEP, MARK

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mpcore_port.rule import At

__all__ = ["add_imports", "end_of_imports"]


def add_imports(module: cst.Module, at: At) -> cst.Module:
    """Return ``module`` with the imports and helpers that rules have asked for."""
    body = list(module.body)
    for statement, after in at.wanted_imports:
        if not any(_same(line, statement) for line in body):
            place = _after(body, after)
            body.insert(place, _parsed(statement, module))
            if place == 0 and len(body) > 1:
                body[0], body[1] = _move_comments(body[0], body[1])
    for text in at.preambles.values():
        place = min(end_of_imports(body), _first_use(body, text))
        added = list(cst.parse_module(text, _config(module)).body)
        mark = cst.EmptyLine(indent=True, comment=cst.Comment(KEEP))
        blank = [cst.EmptyLine(indent=False)]
        wide = 2 if isinstance(added[0], cst.ClassDef) else 1
        added = [
            s.with_changes(leading_lines=[*(blank * wide if i == 0 else []), mark])
            for i, s in enumerate(added)
        ]
        if place < len(body):
            body[place] = _spaced(body[place], wide)
        body[place:place] = added
    return module.with_changes(body=body)


def _spaced(statement: Any, wide: int) -> Any:
    """Return ``statement`` with at least ``wide`` empty lines in front."""
    lines = list(statement.leading_lines)
    empty = 0
    while empty < len(lines) and lines[empty].comment is None:
        empty += 1
    missing = [cst.EmptyLine(indent=False)] * max(0, wide - empty)
    return statement.with_changes(leading_lines=[*missing, *lines])


def _config(module: cst.Module) -> cst.PartialParserConfig:
    return cst.PartialParserConfig(
        default_newline=module.default_newline, default_indent=module.default_indent
    )


def _parsed(statement: str, module: cst.Module) -> cst.SimpleStatementLine:
    line = cst.parse_statement(statement, _config(module))
    if not isinstance(line, cst.SimpleStatementLine):
        msg = f"{statement!r} is no import statement"
        raise TypeError(msg)
    # no newline of its own: the module's is used
    return line.with_changes(trailing_whitespace=cst.TrailingWhitespace())


def _same(line: Any, statement: str) -> bool:
    if not _is_import(line):
        return False
    return any(code_of(small).rstrip(";") == statement for small in line.body)


def _is_import(line: Any) -> bool:
    return isinstance(line, cst.SimpleStatementLine) and any(
        isinstance(small, (cst.Import, cst.ImportFrom)) for small in line.body
    )


def _packages(line: Any) -> set[str]:
    found = set()
    for small in line.body if _is_import(line) else ():
        if isinstance(small, cst.Import):
            found |= {dotted(alias.name).partition(".")[0] for alias in small.names}
        elif isinstance(small, cst.ImportFrom) and small.module and not small.relative:
            found.add(dotted(small.module).partition(".")[0])
    return found


def _after(body: Sequence[Any], package: str) -> int:
    """Return the place after the first top-level import of ``package``, else the first one."""
    for index, line in enumerate(body):
        if package in _packages(line):
            return index + 1
    return _first(body)


def _first(body: Sequence[Any]) -> int:
    """Return the place after the docstring and the imports from ``__future__``."""
    place = 0
    for index, line in enumerate(body):
        if "__future__" in _packages(line) or (index == 0 and _is_text(line)):
            place = index + 1
    return place


def _is_text(line: Any) -> bool:
    return (
        isinstance(line, cst.SimpleStatementLine)
        and isinstance(line.body[0], cst.Expr)
        and isinstance(line.body[0].value, (cst.SimpleString, cst.ConcatenatedString))
    )


def end_of_imports(body: Sequence[Any]) -> int:
    """Return the place after the run of imports that torch's first one is in."""
    place = _after(body, "torch")
    while place < len(body) and (_is_import(body[place]) or _holds_imports(body[place])):
        place += 1
    return place


def _first_use(body: list[Any], text: str) -> int:
    """Return the place of the first statement that has what refuses: it may stand for an import."""
    if text is not STUB:
        return len(body)
    uses = (place for place, line in enumerate(body) if f"{REFUSED}(" in code_of(line))
    return next(uses, len(body))


def _holds_imports(node: Any) -> bool:
    """Return whether this is ``try: import ...``."""
    return isinstance(node, cst.Try) and any(_is_import(line) for line in node.body.body)


def _move_comments(added: Any, first: Any) -> tuple[Any, Any]:
    """Keep a comment at the very top above what was put in front of the first statement."""
    lines = first.leading_lines
    if any(line.comment and line.comment.value.startswith(MARK) for line in lines):
        return added, first  # a comment of ours on that statement
    return added.with_changes(leading_lines=lines), first.with_changes(leading_lines=[])

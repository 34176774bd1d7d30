"""f-strings of Python 3.12, ``f"{settings["lr"]}"``, where an older Python runs the porter."""

from __future__ import annotations

import ast
import re
import sys
import warnings
from typing import Any

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider

from mpcore_port.scopes import code_of

__all__ = ["NEEDS", "WHY", "line_of_new", "requoted"]

WHY = "quotes in an f-string's braces that Python before 3.12 does not read, written otherwise"
NEEDS = (
    "an f-string that Python reads since 3.12: run mpcore with that one, or have no quotes of its "
    "own kind, backslashes or comments in its braces"
)
_ANY = re.compile(r"\b([rR]?[fF]|[fF][rR])[\"']")
_NESTED = re.compile(r"[(\[{]{50}")  # what no person writes, and a parser may not survive
_KINDS = ("'''", '"""', "'", '"')


def requoted(text: str) -> tuple[str, tuple[int, ...]]:
    """Return a script that this Python reads, and the lines of f-strings that were changed.

    A text that it cannot read for another reason, or for sure, comes back as it was.
    """
    found = _Found.of(text, _other_quotes)
    if found is None or not found.lines or not _parses(found.code):
        return text, ()
    return found.code, tuple(dict.fromkeys(found.lines))


def line_of_new(text: str) -> int:
    """Return the line of the first f-string that alone keeps this Python from reading; or 0."""
    found = _Found.of(text, lambda _: cst.SimpleString('""'))
    return found.lines[0] if found is not None and found.lines and _parses(found.code) else 0


def _parses(code: str) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


class _Found(cst.CSTTransformer):
    """Replace outermost f-strings that this Python does not read."""

    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self, change: Any) -> None:
        super().__init__()
        self.change, self.code, self.depth = change, "", 0
        self.lines: list[int] = []

    @classmethod
    def of(cls, text: str, change: Any) -> _Found | None:
        """Return what became of a text; None for one that is broken otherwise."""
        if sys.version_info >= (3, 12) or not _ANY.search(text) or _NESTED.search(text):
            return None
        try:
            found = cls(change)
            found.code = MetadataWrapper(cst.parse_module(text)).visit(found).code
        except (cst.ParserSyntaxError, RecursionError, ValueError):
            return None
        return found

    def visit_FormattedString(self, _: cst.FormattedString) -> None:  # noqa: N802
        """Count how deep it is."""
        self.depth += 1

    def leave_FormattedString(  # noqa: N802
        self, original_node: cst.FormattedString, updated_node: cst.FormattedString
    ) -> cst.BaseExpression:
        """Change an outermost one."""
        self.depth -= 1
        if self.depth or _parses(f"({code_of(original_node)})"):
            return updated_node
        changed: cst.BaseExpression | None = self.change(updated_node)
        if changed is None:
            return updated_node
        self.lines.append(self.get_metadata(PositionProvider, original_node).start.line)
        return changed


def _other_quotes(node: cst.FormattedString) -> cst.BaseExpression | None:
    """Return an f-string whose strings have quotes of their own kinds; None where that fails."""
    deep = _depth(node)
    own = _split(node.start)[1]
    kinds = [own, '"' if own[0] == "'" else "'"] if deep == 1 else ['"""', "'", '"']
    if deep >= len(kinds):
        return None
    try:
        made = _with(node, kinds)
    except ValueError:
        return None
    return made if _parses(f"({code_of(made)})") else None


def _split(code: str) -> tuple[str, str]:
    """Return the letters in front of a string, and its quotes."""
    letters = code[: min(at for at in map(code.find, "'\"") if at >= 0)]
    return letters, next(one for one in _KINDS if code.startswith(one, len(letters)))


def _depth(node: cst.CSTNode) -> int:
    """Return how many strings stand in each other, below a node."""
    strings = (cst.SimpleString, cst.FormattedString)
    return max((_depth(one) + isinstance(one, strings) for one in node.children), default=0)


def _with(node: cst.FormattedString, kinds: list[str]) -> cst.FormattedString:
    """Return an f-string with the first of ``kinds`` around it, and the others in it.

    Raises:
        ValueError: a string holds the quotes that it would get, or its text is shown by ``=``.
    """
    texts = [one.value for one in node.parts if isinstance(one, cst.FormattedStringText)]
    if node.end != kinds[0] and any(kinds[0][0] in one for one in texts):
        raise ValueError(kinds)
    parts = [part.visit(_Within(kinds[1:])) for part in node.parts]
    letters, _ = _split(node.start)
    return node.with_changes(start=f"{letters}{kinds[0]}", parts=parts, end=kinds[0])


class _Within(cst.CSTTransformer):
    """Give the strings in the braces of an f-string other quotes."""

    def __init__(self, kinds: list[str]) -> None:
        super().__init__()
        self.kinds = kinds

    def visit_FormattedStringExpression(self, node: cst.FormattedStringExpression) -> None:  # noqa: N802
        """Leave one alone whose code is shown."""
        if node.equal is not None:
            raise ValueError(self.kinds)

    def visit_FormattedString(self, _: cst.FormattedString) -> bool:  # noqa: N802
        """Leave what is in it to it."""
        return False

    def leave_FormattedString(  # noqa: N802
        self, original_node: cst.FormattedString, updated_node: cst.FormattedString
    ) -> cst.FormattedString:
        """Change one that stands in the braces."""
        return _with(original_node, self.kinds)

    def leave_SimpleString(  # noqa: N802
        self, original_node: cst.SimpleString, updated_node: cst.SimpleString
    ) -> cst.SimpleString:
        """Change one that holds no quotes."""
        letters, kind = _split(original_node.value)
        held = original_node.value[len(letters) + len(kind) : -len(kind)]
        if self.kinds[0] in held or "\n" in held:
            raise ValueError(self.kinds)
        return updated_node.with_changes(value=f"{letters}{self.kinds[0]}{held}{self.kinds[0]}")

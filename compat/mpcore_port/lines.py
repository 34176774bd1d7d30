"""Statements that share a line get one each, where a rule would have to take one of them away."""

from __future__ import annotations

import ast
import re
import warnings
from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.hoist import Changer, changed, named_losses
from mpcore_port.packages import imported, package_of
from mpcore_port.scopes import code_of, dotted

if TYPE_CHECKING:
    from mpcore_port.reading import Read

__all__ = ["apart", "leaves", "moves"]

_SETTINGS = ("torch.backends.", "torch.set_float32_matmul_precision", "torch.cuda.nvtx.")
_OF_TORCH = re.compile(r"torch\.(cuda|set_num|use_|_C|_dynamo|_inductor)|(\w+\.)?cudnn\.")
_RATES = re.compile(r"param_groups|\[\s*['\"]lr['\"]\s*\]")
_SHARED = re.compile(r"^[^#\n]*(;|:[^\n#]*\b(import|torch|param_groups|lr|backward)\b)", re.M)


def apart(text: str, target: str, tree: Read | None = None) -> str:
    """Return ``text`` with lines taken apart that hold an import, a setting or a rate among others.

    A rule of ``target`` replaces whole lines; everything else stays as it is, byte for byte.
    ``tree`` is what the text was read to, if it was.
    """
    if _SHARED.search(text) and _is_shared(text):
        text = changed(text, _Splitter(target == "mindspore"))
    if target == "mindspore" and ".backward(" in text:
        module = tree.module if tree is not None and tree.code == text else None
        named = named_losses(text, module)
        text = _early(named, module if named == text else None)
    return text


# No \s: over many empty lines two of them would be tried in every way.
_LEAVES = re.compile(
    r"^[ \t]*(?:continue|break|return\b.*|raise\b.*)\n(?:[ \t]*(?:#.*)?\n)*[ \t]*else\s*:", re.M
)


def _early(text: str, module: cst.Module | None) -> str:
    """Return ``text`` with ``else`` blocks of a loss behind an ``if`` that leaves the loop."""
    return changed(text, _Early(), module) if _LEAVES.search(text) else text


class _Early(Changer):
    """``if a: ...; continue`` with ``else: ...`` in front of a backward pass loses its ``else``."""

    def leave_IndentedBlock(self, original_node: Any, updated_node: Any) -> Any:  # noqa: N802
        """Look at the statements of one block."""
        body: list[Any] = []
        for place, line in enumerate(updated_node.body):
            rest = updated_node.body[place:]
            ends = isinstance(line, cst.If) and isinstance(line.orelse, cst.Else)
            inner: Any = line.orelse.body if ends else None
            trains = ends and any(".backward(" in code_of(other) for other in rest)
            if trains and leaves(line) and isinstance(inner, cst.IndentedBlock):
                behind: Any = inner.body[0]
                head = [*line.orelse.leading_lines, *behind.leading_lines]
                first = behind.with_changes(leading_lines=head)
                body += [line.with_changes(orelse=None), first, *inner.body[1:]]
                self.found += 1
            else:
                body.append(line)
        return updated_node.with_changes(body=body)


def leaves(line: Any) -> bool:
    """Return whether what ``if`` or ``with`` holds surely ends with a jump out of it."""
    body = getattr(line, "body", None)
    if not isinstance(body, cst.IndentedBlock) or not isinstance(line, (cst.If, cst.With)):
        return False
    last = body.body[-1]
    if isinstance(last, cst.SimpleStatementLine):
        return isinstance(last.body[-1], (cst.Continue, cst.Break, cst.Return, cst.Raise))
    return isinstance(last, cst.With) and leaves(last)


def _is_shared(text: str) -> bool:
    """Return whether a statement does not begin its line."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the user's script, such as invalid escapes
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return True
    lines = [line.encode() for line in re.split(r"\r\n|\r|\n", text)]

    def begins(node: ast.stmt) -> bool:
        above = lines[node.lineno - 2] if node.lineno > 1 else b""
        before = lines[node.lineno - 1][: node.col_offset].strip()
        return not before and not above.rstrip().endswith(b"\\")

    return not all(begins(node) for node in ast.walk(tree) if isinstance(node, ast.stmt))


class _Splitter(Changer):
    def __init__(self, all_of_torch: bool) -> None:
        super().__init__()
        self.all = all_of_torch

    def leave_SimpleStatementLine(self, original_node: Any, updated_node: Any) -> Any:  # noqa: N802
        """Split ``a; b``."""
        if len(updated_node.body) < 2 or not any(
            _is_taken(small, self.all) for small in original_node.body
        ):
            return updated_node
        self.found += 1
        return cst.FlattenSentinel(_lines(updated_node, updated_node.leading_lines))

    def leave_SimpleStatementSuite(self, original_node: Any, updated_node: Any) -> Any:  # noqa: N802
        """Split ``if x: a; b``."""
        if not any(_is_taken(small, self.all) for small in original_node.body):
            return updated_node
        self.found += 1
        return cst.IndentedBlock(body=_lines(updated_node, ()))


def _lines(node: Any, leading: Any) -> list[cst.SimpleStatementLine]:
    lines = [
        cst.SimpleStatementLine([small.with_changes(semicolon=cst.MaybeSentinel.DEFAULT)])
        for small in node.body
    ]
    lines[0] = lines[0].with_changes(leading_lines=leading)
    lines[-1] = lines[-1].with_changes(trailing_whitespace=node.trailing_whitespace)
    return lines


def _is_taken(small: cst.BaseSmallStatement, all_of_torch: bool) -> bool:
    """Return whether a rule may take a statement away, or make several of it."""
    if isinstance(small, (cst.Import, cst.ImportFrom)):
        return any(moves(name, all_of_torch) for name in imported(small))
    if isinstance(small, (cst.Assign, cst.AugAssign, cst.Expr, cst.Del)):
        if _RATES.search(code_of(small)):
            return True
        if all_of_torch and ".backward(" in code_of(small):
            return True  # a loss gets a line of its own
        places: list[cst.BaseExpression] = []
        if isinstance(small, cst.Assign):
            places = [target.target for target in small.targets]
        called = small.value if isinstance(small, cst.Expr) else None
        places += [called.func] if isinstance(called, cst.Call) else []
        whole = [dotted(place) for place in places]
        if all_of_torch and any(map(_OF_TORCH.match, whole)):
            return True
        return any(place.startswith(_SETTINGS) for place in whole)
    return False


def moves(name: str, all_of_torch: bool) -> bool:
    """Return whether a port imports something else in the place of a name, or refuses it."""
    if name.startswith(("torch.cuda", "apex", "torch.profiler")):
        return True
    package = package_of(name)
    if all_of_torch:
        return package is None or package.world == "torch"
    return package is not None and package.npu == "refused"

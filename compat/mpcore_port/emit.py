"""From rules to a new text: one walk for each pass; what no rule touches stays byte for byte."""

from __future__ import annotations

import difflib
import itertools
from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.children import children_of, paths_to
from mpcore_port.imports import add_imports
from mpcore_port.names import STATEMENTS
from mpcore_port.operands import as_operand
from mpcore_port.reading import Read, Rewritten
from mpcore_port.refusals import checked
from mpcore_port.rule import KEEP, At, Edit, Rule

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mpcore_port.facts import Scan
    from mpcore_port.source import Source
    from mpcore_port.targets import Options

__all__ = ["apply_pass", "line_map"]


def apply_pass(
    rules: Sequence[Rule],
    source: Source,
    tree: Read,
    scan: Callable[[], Scan],
    project: Scan,
    options: Options,
    *,
    checks: bool = False,
) -> tuple[Rewritten | None, list[Edit], list[str], At]:
    """Return what became of the module, if anything; the edits, and what went wrong in rules.

    With ``checks`` each statement that a rule has made is parsed by itself, and raises where it is
    no Python.
    """
    at = At(source, tree.module, tree.code, tree.names, scan, project, options, tree.positions)
    walk = _Walk(rules, at, checks=checks)
    module = walk.through(tree.module)
    if not isinstance(module, cst.Module):
        msg = f"{source.path}: a rule took the module away"
        raise TypeError(msg)
    if not walk.touched and not at.says_something:
        return None, at.edits, walk.failures, at
    made = Rewritten(tree, add_imports(module, at))
    return made, at.edits, walk.failures, at


_BLOCKS = (cst.IndentedBlock, cst.Module)


class _Given(cst.CSTTransformer):
    """Puts what was made of a node's children in their places."""

    def __init__(self, made: dict[int, Any]) -> None:
        super().__init__()
        self.made = made

    def on_visit(self, _: cst.CSTNode) -> bool:
        return False

    def on_leave(self, original_node: Any, updated_node: Any) -> Any:
        return self.made.get(id(original_node), updated_node)

    def on_visit_attribute(self, _: Any, attribute: str) -> None:
        """Do nothing, without looking for a method of that name."""

    def on_leave_attribute(self, original_node: Any, attribute: str) -> None:
        """Do nothing, without looking for a method of that name."""


class _Walk:
    """Gives each node to the rules, its children first; what has no new child stays itself.

    libcst's own visit makes every node anew, and looks at all of its parts again.
    """

    def __init__(self, rules: Sequence[Rule], at: At, *, checks: bool) -> None:
        self.at, self._checks = at, checks
        self.failures: list[str] = []
        self._rules = [rule for rule in rules if not rule.idle(at)]
        self.touched: set[int] = set()  # ids of statements: a node's hash is a function of Python
        self._by_type: dict[type[cst.CSTNode], list[Rule]] = {}
        by_type = at.names.by_type if self._rules else {}
        wanted = [kind for kind in by_type if issubclass(kind, STATEMENTS) or self._of(kind)]
        nodes = itertools.chain.from_iterable(by_type[kind] for kind in wanted)
        self._paths = paths_to(nodes, at.names.parents)

    def through(self, node: cst.CSTNode) -> Any:
        """Return what becomes of a node."""
        if _is_kept(node):
            return node
        made = {}
        for child in children_of(node):
            if id(child) in self._paths:
                done = self.through(child)
                if done is not child:
                    made[id(child)] = done
        return self._left(node, _with(node, made) if made else node)

    def _left(self, original_node: Any, new: Any) -> Any:
        for rule in self._of(type(original_node)):
            result = self._try(rule, original_node, new)
            if result is None:
                continue
            new = as_operand(original_node, result, self.at.names.parents.get(original_node))
            self.touched.add(id(self.at.names.statement(original_node)))
            if not isinstance(new, type(original_node)):
                break
        return self._finish(original_node, new)

    def _of(self, kind: type[cst.CSTNode]) -> list[Rule]:
        if kind not in self._by_type:
            self._by_type[kind] = [r for r in self._rules if issubclass(kind, r.visits)]
        return self._by_type[kind]

    def _try(self, rule: Rule, old: cst.CSTNode, new: cst.CSTNode) -> Any:
        before = len(self.at.edits)
        try:
            return rule.leave(old, new, self.at)
        except Exception as exc:
            del self.at.edits[before:]
            said = " ".join(f"{type(exc).__name__}: {exc}".split())[:160]
            self.failures.append(
                f"{self.at.source.path}:{self.at.line(old)}: rule {rule.name} failed "
                f"({said}); the code stays as it is"
            )
            return None

    def _finish(self, old: cst.CSTNode, new: Any) -> Any:
        if type(old) in _BLOCKS and isinstance(new, type(old)):
            return fold(new, self.at.dropped) if self.at.dropped else new
        if self._checks and id(old) in self.touched:
            new = checked(old, new, self.at)
        if self.at.comments and old in self.at.comments and isinstance(old, STATEMENTS):
            return _commented(new, self.at.comments[old])
        return new


def _with(node: cst.CSTNode, made: dict[int, Any]) -> Any:
    """Return a node with other children; ``if(x)`` needs the brackets that a child had."""
    try:
        return node._visit_and_replace_children(_Given(made))
    except cst.CSTValidationError:
        inside = {key: _bracketed(child) for key, child in made.items()}
        return node._visit_and_replace_children(_Given(inside))


def _bracketed(node: Any) -> Any:
    if not isinstance(node, cst.BaseExpression) or node.lpar:
        return node
    return node.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])


def _is_kept(node: cst.CSTNode) -> bool:
    lines: Sequence[cst.EmptyLine] = getattr(node, "leading_lines", ())
    return bool(lines) and any(
        line.comment and line.comment.value.startswith(KEEP) for line in lines
    )


def _commented(node: Any, comments: list[str]) -> Any:
    if isinstance(node, cst.FlattenSentinel):
        first, *rest = list(node)
        return cst.FlattenSentinel([_commented(first, comments), *rest])
    if not hasattr(node, "leading_lines"):
        return node
    there = {line.comment.value for line in node.leading_lines if line.comment}
    added = [cst.EmptyLine(comment=cst.Comment(c)) for c in comments if c not in there]
    return node.with_changes(leading_lines=[*node.leading_lines, *added])


def fold(block: Any, dropped: set[int]) -> Any:
    """Turn statements that were dropped into comments, unless a block would be left empty."""
    body = list(block.body)
    if not any(id(statement) in dropped for statement in body):
        return block
    if isinstance(block, cst.IndentedBlock) and all(id(s) in dropped for s in body):
        keep = body[-1]
        dropped = dropped - {id(keep)}
    kept: list[Any] = []
    waiting: list[cst.EmptyLine] = []
    for statement in body:
        if id(statement) in dropped:
            waiting += [*statement.leading_lines, _comment_line(statement)]
        elif waiting:
            lines = [*waiting, *statement.leading_lines]
            kept.append(statement.with_changes(leading_lines=lines))
            waiting = []
        else:
            kept.append(statement)
    if waiting and isinstance(block, cst.Module) and not kept:
        return block.with_changes(body=[], header=[*block.header, *waiting])
    footer = [*waiting, *block.footer]
    return block.with_changes(body=kept, footer=footer)


def _comment_line(statement: cst.SimpleStatementLine) -> cst.EmptyLine:
    trailing = statement.trailing_whitespace
    return cst.EmptyLine(indent=True, comment=trailing.comment, newline=trailing.newline)


def line_map(old: str, new: str) -> Callable[..., int]:
    """Return the function from a line of ``old`` to the line of ``new`` it has become.

    The function takes the line and, optionally, text that stands in the new one: within a block
    of changed lines that is how it is found. A line that only moved, into a block of another depth
    say, is found by its words.
    """
    before, after = old.splitlines(), new.splitlines()
    if before == after:
        return lambda line, _="": line
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=len(before) > 5000)
    blocks = matcher.get_opcodes()
    moved: dict[str, list[int]] = {}
    for tag, _, _, c, d in blocks:
        for j in range(c, d) if tag != "equal" else ():
            moved.setdefault(after[j].strip(), []).append(j + 1)

    def find(line: int, hint: str = "") -> int:
        for tag, a, b, c, d in blocks:
            if a <= line - 1 < b:
                if tag == "equal":
                    return c + line - a
                near = min(c + line - a, max(d, 1))
                places = [j + 1 for j in range(c, d) if hint and hint in after[j]]
                own = before[line - 1].strip()
                places = places or (moved.get(own, []) if own else [])
                return min(places, key=lambda j: abs(j - near), default=near)
        return len(after)

    return find

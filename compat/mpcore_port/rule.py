"""Rules and what they leave behind: one small class for each transformation, which notes its edits.

A rule names the node types it looks at; ``leave`` gets a node of the original tree (ask ``at``
about that one: names, positions and parents are known for it) and the node as the rules before
have left it, children included (build the answer from that one). It returns the new node, or None
if the node is none of its business. A rule that raises changes nothing and becomes a line of the
report.
"""

from __future__ import annotations

import ast
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar, cast

import libcst as cst

from mpcore_port.names import code_of
from mpcore_port.refusals import REFUSED, STUB, asks_at_once, quoted
from mpcore_port.values import Values

if TYPE_CHECKING:
    from collections.abc import Callable

    from mpcore_port.facts import Call, Scan
    from mpcore_port.names import Names
    from mpcore_port.places import Places
    from mpcore_port.source import Source
    from mpcore_port.targets import Options

__all__ = ["KEEP", "MARK", "At", "Edit", "Kind", "Rule"]

Answer = TypeVar("Answer")
Kind = Literal["exact", "changed", "unproven", "refused"]
MARK = "# mpcore port: "
KEEP = f"{MARK}keep"
"""A statement under this comment stays as it is."""


@dataclass(frozen=True)
class Edit:
    """One place of the script that the port touched, or says something about.

    Attributes:
        file: path of the script, as in ``Source``.
        line: of the original, from 1.
        column: of the original, from 0.
        kind: ``"exact"``: the same numbers; ``"changed"``: runs, with ``effect``;
            ``"unproven"``: kept, or translated by a rule, and not checked; ``"refused"``: raises
            at run time.
        rule: name of the rule.
        old: original code.
        new: what stands there now; equal to ``old`` where the edit is only commented on.
        reason: why, one sentence.
        effect: what it does to numbers, speed or output; empty for exact edits.
        new_line: line in the port, from 1; 0 until it is known.
    """

    file: str
    line: int
    column: int
    kind: Kind
    rule: str
    old: str
    new: str
    reason: str
    effect: str = ""
    new_line: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)


class Rule:
    """One transformation.

    Attributes:
        name: what reports and ``docs/reference/porting.md`` call it.
        reason: why it exists, one sentence.
        visits: node types that ``leave`` is called for.
    """

    name: ClassVar[str]
    reason: ClassVar[str]
    visits: ClassVar[tuple[type[cst.CSTNode], ...]]

    def idle(self, at: At) -> bool:
        """Return whether a module surely has nothing for this rule, so that it is not asked."""
        return False

    def leave(self, old: Any, new: Any, at: At) -> Any:
        """Return what stands in place of ``old``, or None to leave ``new`` as it is.

        Args:
            old: node of the original tree.
            new: the same node, after its children and the rules before.
            at: the module that is ported, and where edits are noted.
        """
        raise NotImplementedError


class At:
    """The module that is being ported: what is known about it, and what rules note.

    Attributes:
        source: the file.
        module: its tree.
        code: its text.
        names: what names mean; ask about nodes of the original tree.
        project: the same, of all files together.
        options: what the user asked for.
        edits: what rules have noted.
        unmapped: names of torch that were refused, for the report's scan.
    """

    def __init__(
        self,
        source: Source,
        module: cst.Module,
        code: str,
        names: Names,
        scan: Callable[[], Scan],
        project: Scan,
        options: Options,
        positions: Places,
    ) -> None:
        self.source, self.module, self.names = source, module, names
        self.code = code
        self._scan, self.project, self.options = scan, project, options
        self.edits: list[Edit] = []
        self.comments: dict[cst.CSTNode, list[str]] = {}
        self.dropped: set[int] = set()  # by identity: nodes compare by it too
        self.wanted_imports: list[tuple[str, str]] = []
        self.preambles: dict[str, str] = {}
        self.unmapped: list[Call] = []
        self._answers: dict[Callable[[At], object], object] = {}
        self._kept_alive: list[cst.CSTNode] = []
        self._positions = positions
        self._taken: dict[str, str] = {}

    @property
    def scan(self) -> Scan:
        """What was found in the module."""
        return self._scan()

    @cached_property
    def values(self) -> Values:
        """What kinds of things the module's expressions are."""
        return Values(self.names, self.project.modules)

    @property
    def says_something(self) -> bool:
        """Whether a rule has asked for comments, imports or lines of ours."""
        return bool(self.comments or self.wanted_imports or self.preambles)

    # --- where ------------------------------------------------------------------------------

    def line(self, old: cst.CSTNode) -> int:
        """Return the line of an original node, from 1."""
        return self._positions.start(old)[0]

    def original(self, node: cst.CSTNode) -> cst.CSTNode:
        """Return a node, or where it was put together the first of its parts that was not."""
        if node in self._positions:
            return node
        return next(found for found in map(self.original, node.children))

    def last_line(self, old: cst.CSTNode) -> int:
        """Return the line that an original node ends in."""
        return int(self._positions[old].end.line)

    def column(self, old: cst.CSTNode) -> int:
        """Return the column of an original node, from 0."""
        return self._positions.start(old)[1]

    # --- what rules share -------------------------------------------------------------------

    def once(self, question: Callable[[At], Answer]) -> Answer:
        """Return what ``question`` answers about this module; it is asked the first time only.

        The answer may be something that rules fill: ``question`` makes it, all get the same one.
        """
        if question not in self._answers:
            self._answers[question] = question(self)
        return cast("Answer", self._answers[question])

    # --- what was done ----------------------------------------------------------------------

    def note(
        self,
        rule: Rule,
        old: cst.CSTNode,
        new: cst.CSTNode | str,
        kind: Kind = "exact",
        reason: str = "",
        effect: str = "",
    ) -> None:
        """Note an edit; ``reason`` is the rule's own unless given."""
        written = new if isinstance(new, str) else code_of(new)
        edit = Edit(
            self.source.path,
            self.line(old),
            self.column(old),
            kind,
            rule.name,
            code_of(old),
            written,
            reason or rule.reason,
            effect,
        )
        self.edits.append(edit)

    def refuse(self, rule: Rule, old: cst.CSTNode, reason: str) -> cst.BaseExpression:
        """Note a refused edit, comment on its line, and return what raises there.

        It takes the place of an expression: of a function that is called, of a name. A name that
        something is asked of raises at once, one that is handed on where it is used.
        """
        call = self.refusal(old, f"{_shown(old)}: {reason}")
        self.note(rule, old, call, "refused", reason)
        return cst.Call(call) if asks_at_once(old, self.names) else call

    def refusal(self, old: cst.CSTNode, text: str) -> cst.Call:
        """Comment on the line of ``old``, and return what raises ``text`` when it is used."""
        self.comment(old, f"refused: {text}")
        self.need_stub()
        quote = cst.SimpleString(quoted(text, old, self.names))
        return cst.Call(cst.Name(REFUSED), [cst.Arg(quote)])

    def refused(self, old: cst.CSTNode, new: cst.CSTNode, reason: str) -> None:
        """Note that no rule, but the port itself refuses a statement."""
        first = code_of(old).splitlines()[0]
        place = (self.source.path, self.line(old), self.column(old))
        self.edits.append(Edit(*place, "refused", "statement", first, code_of(new), reason))

    def unproven(
        self, rule: Rule, old: cst.CSTNode, reason: str, new: cst.CSTNode | None = None
    ) -> None:
        """Note what stays, or becomes ``new``, without a fact behind it."""
        self.note(rule, old, old if new is None else new, "unproven", reason)

    def refuse_now(self, rule: Rule, old: cst.CSTNode, reason: str) -> cst.BaseExpression:
        """As ``refuse``, for an expression whose very evaluation has to raise."""
        call = self.refuse(rule, old, reason)
        return call if asks_at_once(old, self.names) else cst.Call(call)

    def need_stub(self) -> None:
        """Have the class that refused edits use defined in the port."""
        if REFUSED not in self.names.classes:
            self.preambles["stub"] = STUB

    def comment(self, old: cst.CSTNode, text: str) -> None:
        """Put ``# mpcore port: text`` above the statement that ``old`` is part of."""
        statement = self.names.statement(old)
        if statement is not None:
            held = self.comments.setdefault(statement, [])
            line = MARK + " ".join(text.split())
            if line not in held:
                held.append(line)

    def drop(
        self, rule: Rule, old: cst.SimpleStatementLine, new: Any, reason: str, effect: str = ""
    ) -> cst.SimpleStatementLine:
        """Note that a statement line goes, and return what stands there: a comment, in the end."""
        shown = code_of(cst.SimpleStatementLine(body=old.body))
        text = " ".join(shown.split())
        line: cst.SimpleStatementLine = new.with_changes(
            body=[cst.Pass()],
            trailing_whitespace=cst.TrailingWhitespace(
                cst.SimpleWhitespace("  "), cst.Comment(f"{MARK}removed: {text} ({reason})")
            ),
        )
        self.dropped.add(id(line))
        self._kept_alive.append(line)
        where = old.body[0] if old.body else old
        self.note(rule, where, "", "changed", reason, effect or "none on numbers")
        self.edits[-1] = _with_old(self.edits[-1], shown)
        return line

    # --- what it needs ----------------------------------------------------------------------

    def need(self, statement: str, after: str = "torch") -> None:
        """Have an import statement in the port, after the first import of package ``after``."""
        if (statement, after) not in self.wanted_imports:
            self.wanted_imports.append((statement, after))

    def name_of(self, qualified: str, after: str = "torch") -> str:
        """Return what a module-level import calls ``qualified``; import it where it is missing.

        ``"contextlib.nullcontext"`` gives ``"nullcontext"``, or another name if that is taken.
        """
        for name, bindings in self.names.top.bindings.items():
            if any(b.kind == "import" and b.qualified == qualified for b in bindings):
                return name
        if qualified in self._taken:
            return self._taken[qualified]
        module, _, last = qualified.rpartition(".")
        name = last
        while self.names.top.bindings.get(name) or name in self._taken.values():
            name += "_"
        self._taken[qualified] = name
        alias = "" if name == last else f" as {name}"
        plain = f"import {qualified}{alias}"
        self.need(f"from {module} import {last}{alias}" if module else plain, after)
        return name


def _shown(old: cst.CSTNode) -> str:
    """Return the first line of a node's code; an import of several lines as one, whole."""
    text = code_of(old).strip()
    if isinstance(old, (cst.Import, cst.ImportFrom)) and "\n" in text:
        return ast.unparse(ast.parse(text))
    return text.splitlines()[0]


def _with_old(edit: Edit, old: str) -> Edit:
    return Edit(**{**edit.to_dict(), "old": old})

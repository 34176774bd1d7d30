"""The closed world: what a file uses that no fact is about is unproven, line by line.

Everything is the language, a neutral package, a name with a fact, refused, or unproven.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.names import code_of, string_of
from mpcore_port.packages import ABSENT, imported, package_of, relative
from mpcore_port.rule import Edit
from mpcore_port.values import UNKNOWN, Values, vocabulary

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from mpcore_port.facts import Scan
    from mpcore_port.reading import Read
    from mpcore_port.source import Source

__all__ = ["RULE", "Judge", "judged", "known_anywhere", "package_reason", "unproven"]

RULE = "closed world"
_SAYS = re.compile(r"(?<![A-Za-z0-9])(cuda|nvidia[-_]?smi|nvidia|nccl|cudnn|nvcc)(?![a-z])", re.I)
_COMMANDS = ("subprocess.", "os.system", "os.popen", "os.exec", "os.spawn", "sh.", "pexpect.")
_OURS = ("import mpcore_compat", "from mpcore_compat")
_SHOWN = 60  # characters of a string that a report shows


@dataclass(frozen=True)
class Judge:
    """What a target says of names, packages and methods that it keeps or translates.

    Attributes:
        name: why a name of torch that stays is unproven; "" if a fact is about it.
        package: why a package is unproven; "" if it may stay, or is refused by a rule.
        method: why a method or attribute of a value of some kind is unproven; "" if it is not.
        is_port: whether a text is a port already, of which nothing is said.
    """

    name: Callable[[str], str]
    package: Callable[[str], str]
    method: Callable[[str, str, bool], str]
    is_port: Callable[[str], bool] = lambda _: False


def unproven(
    source: Source, tree: Read, edits: Sequence[Edit], project: Scan, judge: Judge
) -> list[Edit]:
    """Return an edit for each place that stays, or was translated, with no fact behind it.

    Args:
        source: the file.
        tree: the original.
        edits: what rules have done; a place that one of them refused is left out.
        project: what all files hold.
        judge: what the target knows.
    """
    if judge.is_port(source.text):
        return []
    found = _World(source, tree, edits, project, judge)
    return [Edit(source.path, *place, "unproven", RULE, old, old, why) for place, old, why in found]


def judged(edits: Sequence[Edit], found: Sequence[Edit]) -> list[Edit]:
    """Return all edits; what was called exact at a place that is unproven is unproven itself."""
    doubts = {(edit.line, edit.old): edit.reason for edit in found}
    used = set()
    every = []
    for edit in edits:
        place = (edit.line, edit.old.partition("(")[0])
        stays = edit.new == edit.old.partition("\n")[0]  # a remark: its reason stands by itself
        if edit.kind == "exact" and place in doubts and not stays:
            used.add(place)
            every.append(replace(edit, kind="unproven", reason=doubts[place]))
        else:
            every.append(edit)
    return every + [edit for edit in found if (edit.line, edit.old) not in used]


_BUILT = re.compile(r"_C|_ext|_?\w+_cuda")
_BUILT_HERE = (
    "{} is in no file of the project: a module that it builds of C++ or CUDA, which is not ported"
)


def _asked_of(node: Any) -> Iterator[str]:
    """Return the parts of the modules that an import of the project's own asks for, and names."""
    if isinstance(node, cst.ImportFrom):
        yield from code_of(node.module).split(".") if node.module is not None else ()
    if not isinstance(node.names, cst.ImportStar):
        for alias in node.names:
            yield from code_of(alias.name).split(".")


class _World:
    def __init__(
        self, source: Source, tree: Read, edits: Sequence[Edit], project: Scan, judge: Judge
    ) -> None:
        self.source, self.tree, self.names = source, tree, tree.names
        self.project, self.judge = project, judge
        self.values = Values(tree.names, project.modules)
        self.refused = {edit.line for edit in edits if edit.kind == "refused"}
        self.done = {(edit.line, edit.column) for edit in edits}
        self.replaced: dict[int, list[Edit]] = {}  # a pass moves columns
        for edit in edits:
            if edit.new and edit.kind in ("exact", "changed"):
                self.replaced.setdefault(edit.line, []).append(edit)
        self.texts = {(edit.line, edit.old.partition("(")[0]) for edit in edits}
        self.gone = {e.line for e in edits if e.kind == "changed" and not e.new}
        self.ours = {(e.line, e.column) for e in edits if e.new.startswith(_OURS)}
        self.own = project.defined | _COMMON

    def __iter__(self) -> Iterator[tuple[tuple[int, int], str, str]]:
        seen: set[tuple[int, str, str]] = set()
        for node in self.names.parents:
            for where, old, why in self._judged(node):
                line, column = self.tree.positions.start(where)
                key = (line, old if why == _TRANSLATED else "", why)  # each is an edit's
                if key in seen or line in self.refused or line in self.gone:
                    continue
                seen.add(key)
                yield (line, column), old, why

    def _judged(self, node: cst.CSTNode) -> Iterator[tuple[cst.CSTNode, str, str]]:
        kind = type(node)  # of thousands of nodes: isinstance of libcst's classes is slow
        if kind is cst.Import or kind is cst.ImportFrom:
            yield from self._import(node)
        elif kind is cst.SimpleString or kind is cst.FormattedStringText:
            yield from self._string(node)
        elif kind is cst.Name or kind is cst.Attribute:
            yield from self._name(node)

    # --- imports --------------------------------------------------------------------------------

    def _import(self, node: Any) -> Iterator[tuple[cst.CSTNode, str, str]]:
        moved = self.tree.positions.start(node) in self.ours
        for name in () if moved else imported(node):
            why = self._package(name)
            if why:
                yield node, code_of(node), why
        for root in relative(node):
            if root not in self.project.modules:
                yield node, code_of(node), _BESIDE.format(root)
        built = next(filter(self._is_built, _asked_of(node)), "")
        roots = {name.partition(".")[0] for name in imported(node)}
        if built and (not roots or roots & self.project.modules):
            yield node, code_of(node), _BUILT_HERE.format(built)

    def _is_built(self, name: str) -> bool:
        """Return whether a module's name is of those that a build makes, and no file has it."""
        own = name in self.project.modules or name in self.project.defined
        return bool(_BUILT.fullmatch(name)) and not own

    def _package(self, name: str) -> str:
        root = name.partition(".")[0]
        if not root or root in self.project.modules:
            return ""
        if root in self.project.beside:
            return f"{root} lies beside the script and was not ported: port the folder"
        package = package_of(name)
        if package is not None and package.why == ABSENT:
            return f"{root} is no package that we know, and not ported along: port its folder"
        return self.judge.package(name)

    def _used(self, name: str) -> str:
        """Return why a use of a package is unproven; modules of one's own are named once."""
        package = package_of(name)
        root = name.partition(".")[0]
        if package is None or package.why == ABSENT or root in self.project.beside:
            return ""
        return self._package(name)

    # --- strings --------------------------------------------------------------------------------

    def _string(self, node: Any) -> Iterator[tuple[cst.CSTNode, str, str]]:
        text = string_of(node) if isinstance(node, cst.SimpleString) else node.value
        said = _SAYS.search(text or "")
        if said is None or self._is_bare(node) or self.tree.positions.start(node) in self.done:
            return
        whole = self.names.enclosing(node, cst.FormattedString)
        if whole is not None and self.tree.positions.start(whole) in self.done:
            return
        if self._is_gone(node):
            return
        call = self.names.enclosing(node, cst.Call)
        command = (self.names.called(call) or "").startswith(_COMMANDS) if call else False
        kept = "a command that is kept says" if command else "a string that is kept says"
        yield node, code_of(node)[:_SHOWN], f"{kept} {said.group()}"

    def _is_gone(self, node: cst.CSTNode) -> bool:
        """Return whether a call or comparison around a string was written anew without it."""
        text = code_of(node)
        for around in self.names.ancestors(node):
            if not isinstance(around, (cst.Arg, cst.Call, cst.Comparison, cst.ComparisonTarget)):
                return False
            for edit in self.replaced.get(self.tree.line(around), ()):
                if text not in edit.new and edit.old == code_of(around):
                    return True
        return False

    def _is_bare(self, node: cst.CSTNode) -> bool:
        parent = self.names.parents[node]
        above = self.names.parents.get(parent)
        return isinstance(parent, cst.Expr) or (
            isinstance(parent, cst.ConcatenatedString) and isinstance(above, cst.Expr)
        )

    # --- names, methods and attributes ----------------------------------------------------------

    def _name(self, node: Any) -> Iterator[tuple[cst.CSTNode, str, str]]:
        if not self.names.is_reference(node):
            return
        name = self.names.qualified(node)
        if name is not None:
            place = self.tree.positions.start(node)
            if place in self.done or self.names.imported(node) is None:
                return
            why = self.judge.name(name) if name.startswith("torch.") else self._used(name)
            if why:
                yield node, code_of(node), why
            return
        for part in _chain(node):
            why = self._method(part)
            if why:
                yield part, code_of(part), why
                return

    def _method(self, node: cst.Attribute) -> str:
        name = node.attr.value
        if name.startswith("__") or self.names.qualified(node) is not None:
            return ""
        touched = (self.tree.line(node), code_of(node)) in self.texts
        if name in self.own and not touched:
            return ""
        called = isinstance(self.names.parents.get(node), cst.Call)
        if called and getattr(self.names.parents[node], "func", None) is not node:
            called = False
        kind = self.values.kind(node.value)
        if name in self.own:  # a class may have it, and this be one of that
            of_tensors = kind == UNKNOWN and name in vocabulary()["tensor"]
            return _TRANSLATED if of_tensors else ""
        if kind == "foreign" and touched and not self.names.is_accelerator(node.value):
            return _TRANSLATED
        if kind == "foreign":
            return "" if self._is_field(node) else self.judge.method(kind, name, called)
        if kind in ("own", "neutral"):
            return ""
        if kind == UNKNOWN and self._is_field(node):
            return ""
        if kind == UNKNOWN and name in _OF_OLD:
            return _OF_OLD[name]
        why = self.judge.method(kind, name, called)
        if not why and touched and kind == UNKNOWN:
            return _TRANSLATED
        return why

    def _is_field(self, node: cst.Attribute) -> bool:
        """Return whether an attribute is written, as ``x.y = 1``: then it is what was written."""
        parent = self.names.parents.get(node)
        return isinstance(parent, (cst.AssignTarget, cst.AnnAssign)) and parent.target is node


_OF_OLD = {
    "_step_count": "a scheduler has it, and an optimizer only with torches of before: it may raise"
}
"""Attributes that torch itself has taken away from some of what had them."""
_TRANSLATED = "translated, and nothing in this file says what it is called on"
_BESIDE = "{} is of the script's own package, and not ported along: port its folder"
_COMMON = frozenset({"parse_args", "add_argument"})


def _chain(node: Any) -> Iterator[cst.Attribute]:
    while isinstance(node, cst.Attribute):
        yield node
        node = node.value


def package_reason(name: str) -> str:
    """Return why a package that stays in PyTorch is unproven; "" if it is not."""
    package = package_of(name)
    if package is None or package.world == "neutral":
        return ""
    if package.world == "torch":
        if package.npu == "same":
            return ""
        why = f" ({package.why})" if package.why else ""
        return f"{package.name} is built on torch, nobody checked it on an NPU{why}"
    return f"{package.name} is a package that nobody checked ({package.why})"


def known_anywhere(name: str) -> bool:
    """Return whether some kind of thing that we know has a method or attribute of that name."""
    return any(name in names for names in vocabulary().values())

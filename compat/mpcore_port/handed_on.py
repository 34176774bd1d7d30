"""Names of torch that a file imports from another file of its project: ``from layers import nn``.

A port has other imports than its original: the neighbour's ``nn`` may be gone, or be another one.
So a file imports from torch itself what a neighbour would only hand on. Lines stay where they are.
"""

from __future__ import annotations

import ast
import warnings
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from mpcore_port.lines import moves

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from mpcore_port.source import Source

__all__ = ["WHY", "from_torch_itself"]

WHY = "a name of torch that another file of the project hands on: imported from torch itself"
_DEPTH = 8  # files that hand a name on to each other
_Statement = ast.Import | ast.ImportFrom


@dataclass(frozen=True)
class _Import:
    """What binds a name: ``from module import name``; ``import module`` if ``name`` is ""."""

    module: str
    name: str = ""

    @property
    def full(self) -> str:
        return f"{self.module}.{self.name}" if self.name else self.module

    def line(self, bound: str) -> str:
        """Return the statement that binds ``bound``."""
        called = self.name or self.module
        alias = called if called == bound else f"{called} as {bound}"
        return f"from {self.module} import {alias}" if self.name else f"import {alias}"


@dataclass(frozen=True)
class _File:
    path: PurePosixPath
    tree: ast.Module

    @property
    def package(self) -> tuple[str, ...]:
        return self.path.parent.parts

    @property
    def module(self) -> tuple[str, ...]:
        return self.package if self.path.stem == "__init__" else (*self.package, self.path.stem)


def from_torch_itself(sources: Sequence[Source], target: str, folder: str) -> list[Source]:
    """Return sources that import from torch what a neighbour imports from there for them.

    Args:
        sources: all files of the project.
        target: whose imports differ from torch's; "" for none.
        folder: name of the folder that the paths are below: it may be the package itself.
    """
    if len(sources) < 2 or not target:
        return list(sources)
    files = {source.path: file for source in sources if (file := _read(source)) is not None}
    project = _Project(files, target == "mindspore", folder)
    return [
        _taken(source, files[source.path], project) if source.path in files else source
        for source in sources
    ]


def _read(source: Source) -> _File | None:
    if source.notebook is not None:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the user's script, such as invalid escapes
            return _File(PurePosixPath(source.path), ast.parse(source.text))
    except (SyntaxError, ValueError, RecursionError):
        return None


class _Project:
    """Which module of the project binds which name by an import of torch."""

    def __init__(self, files: Mapping[str, _File], all_of_torch: bool, folder: str) -> None:
        self.folder, self.all = folder, all_of_torch
        self.modules = {file.module: file for file in files.values()}
        self._bound: dict[tuple[str, ...], dict[str, _Import]] = {}

    def module(self, name: str, level: int, asking: _File) -> _File | None:
        """Return the file of a module that ``asking`` imports; None if it is none of these."""
        parts = tuple(name.split(".")) if name else ()
        if level:
            above = asking.package[: len(asking.package) - level + 1]
            return self.modules.get((*above, *parts)) if level <= len(asking.package) + 1 else None
        package = asking.package
        places = [package[:end] for end in range(len(package), -1, -1)]
        found = [self.modules[(*at, *parts)] for at in places if (*at, *parts) in self.modules]
        if not found and parts[:1] == (self.folder,):
            found = [self.modules[parts[1:]]] if parts[1:] in self.modules else []
        return found[0] if found and found[0] is not asking else None

    def handed(self, file: _File, depth: int = 0) -> dict[str, _Import]:
        """Return the names that a module's top level binds by imports of torch, the first of each.

        What it also defines or assigns otherwise is its own. Where an import has failed it is so of
        a package that may not be there: of torch's own nobody defines them then.
        """
        known = self._bound.get(file.module)
        if known is not None or depth > _DEPTH:
            return known or {}
        self._bound[file.module] = {}  # files that import each other end here
        found: dict[str, _Import] = {}
        for statement in _top(file.tree.body, handlers=True):
            if isinstance(statement, _Statement):
                for bound, made in self._bindings(statement, file, depth):
                    found.setdefault(bound, made)
        own = {name for one in _top(file.tree.body, handlers=False) for name in _defined(one)}
        else_own = {name for one in _top(file.tree.body, handlers=True) for name in _defined(one)}
        of_others = {k for k, v in found.items() if v.module.partition(".")[0] != "torch"}
        own |= else_own & of_others
        self._bound[file.module] = {k: v for k, v in found.items() if k not in own}
        return self._bound[file.module]

    def _bindings(
        self, statement: _Statement, file: _File, depth: int
    ) -> Iterator[tuple[str, _Import]]:
        """Yield what an import of torch binds, and what one of a neighbour hands on of it."""
        if isinstance(statement, ast.Import):
            for alias in statement.names:
                if self.module(alias.name, 0, file) is None and self._is_torch(alias.name):
                    root = alias.name.partition(".")[0]
                    yield alias.asname or root, _Import(alias.name if alias.asname else root)
            return
        name, level = statement.module or "", statement.level
        beside = self.module(name, level, file)
        handed = self.handed(beside, depth + 1) if beside is not None else {}
        for alias in statement.names:
            if alias.name == "*":
                yield from (one for one in handed.items() if not one[0].startswith("_"))
            elif alias.name in handed:
                yield alias.asname or alias.name, handed[alias.name]
            elif beside is None and not level and self._is_torch(f"{name}.{alias.name}"):
                yield alias.asname or alias.name, _Import(name, alias.name)

    def _is_torch(self, full: str) -> bool:
        """Return whether a port imports something else in the place of a name."""
        return full.partition(".")[0] in _ROOTS and (moves(full, self.all) or full == "torch")


_ROOTS = frozenset({"torch", "apex", "torchvision", "torchaudio", "timm", "horovod"})


def _top(body: Sequence[ast.stmt], *, handlers: bool) -> Iterator[ast.stmt]:
    """Yield the statements that run when a module is imported, of branches too."""
    for statement in body:
        yield statement
        for part in ("body", "orelse", "finalbody"):
            if isinstance(statement, (ast.If, ast.Try, ast.With)):
                yield from _top(getattr(statement, part, []), handlers=handlers)
        if isinstance(statement, ast.Try) and handlers:
            for handler in statement.handlers:
                yield from _top(handler.body, handlers=handlers)


def _defined(statement: ast.stmt) -> Iterator[str]:
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        yield statement.name
    elif isinstance(statement, (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.For)):
        targets: list[Any] = getattr(statement, "targets", None) or [statement.target]  # type: ignore[union-attr]
        yield from (n.id for one in targets for n in ast.walk(one) if isinstance(n, ast.Name))


# --- a file that asks ---------------------------------------------------------------------------


@dataclass(frozen=True)
class _Change:
    """A text in the place of a node's."""

    node: Any
    text: str


def _taken(source: Source, file: _File, project: _Project) -> Source:
    """Return a source with the names of torch imported from there, line by line as it was."""
    changes = [*_of_imports(file, project), *_of_modules(file, project)]
    if not changes:
        return source
    lines = source.text.splitlines(keepends=True)
    said = []
    for change in sorted(changes, key=lambda one: _start(one.node), reverse=True):
        old = ast.get_source_segment(source.text, change.node) or ""
        said.append((change.node.lineno, " ".join(old.split()), " ".join(change.text.split())))
        _put(lines, change)
    text = "".join(lines)
    try:
        ast.parse(text)
    except (SyntaxError, ValueError):
        return source
    return replace(source, text=text, handed=tuple(reversed(said)))


def _start(node: Any) -> tuple[int, int]:
    return node.lineno, node.col_offset


def _put(lines: list[str], change: _Change) -> None:
    """Put a text in the place of a node's, over as many lines."""
    node = change.node
    first, last = node.lineno - 1, node.end_lineno - 1
    head = lines[first].encode()[: node.col_offset].decode()
    tail = lines[last].encode()[node.end_col_offset :].decode()
    lines[first] = head + change.text + tail
    del lines[first + 1 : last + 1]


def _over(texts: list[str], node: Any) -> str:
    """Return statements in one line, which takes as many lines as ``node`` does."""
    more = node.end_lineno - node.lineno
    if not more:
        return "; ".join(texts)
    texts = sorted(texts, key=lambda text: text.startswith("from "))
    head, word, names = texts[-1].rpartition(" import ")
    last = f"{head}{word}({names}{chr(10) * more})" if head else texts[-1] + " \\\n" * more
    return "; ".join([*texts[:-1], last])


def _of_imports(file: _File, project: _Project) -> Iterator[_Change]:
    """Yield ``from layers import a; from torch import nn`` for ``from layers import a, nn``."""
    for node in ast.walk(file.tree):
        if not isinstance(node, ast.ImportFrom):
            continue
        beside = project.module(node.module or "", node.level, file)
        handed = project.handed(beside) if beside is not None else {}
        if not handed:
            continue
        home = "." * node.level + (node.module or "")
        if any(alias.name == "*" for alias in node.names):
            used = _used_of_star(file, handed)
            if used:
                more = [handed[name].line(name) for name in used]
                yield _Change(node, "; ".join([f"from {home} import *", *more]))
            continue
        kept = [alias for alias in node.names if alias.name not in handed]
        if len(kept) == len(node.names):
            continue
        texts = (
            [f"from {home} import {', '.join(ast.unparse(one) for one in kept)}"] if kept else []
        )
        texts += [
            handed[one.name].line(one.asname or one.name)
            for one in node.names
            if one.name in handed
        ]
        yield _Change(node, _over(texts, node))


def _used_of_star(file: _File, handed: Mapping[str, _Import]) -> list[str]:
    """Return the names of torch that a file has of a star alone, and reads."""
    read = {n.id for n in ast.walk(file.tree) if isinstance(n, ast.Name)}
    own = _bound_in(file)
    return [name for name in handed if name in read and name not in own and name[0] != "_"]


def _bound_in(file: _File) -> set[str]:
    found = set[str]()
    for node in ast.walk(file.tree):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            found.add(node.id)
        elif isinstance(node, _Statement):
            found |= {(one.asname or one.name).partition(".")[0] for one in node.names}
        elif isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(node.name)
    return found


def _of_modules(file: _File, project: _Project) -> Iterator[_Change]:
    """Yield the changes of ``fusing.Adam(...)``, where ``fusing`` is a module of the project."""
    homes = dict(_modules_of(file, project))
    if not homes:
        return
    bound = _bound_in(file)
    wanted: dict[str, dict[str, str]] = {}
    for node in ast.walk(file.tree):
        if not isinstance(node, ast.Attribute):
            continue
        place = node.value
        if not isinstance(place, ast.Name) or place.id not in homes:
            continue
        _, beside = homes[place.id]
        made = project.handed(beside).get(node.attr) if isinstance(node.ctx, ast.Load) else None
        if made is not None:
            name = node.attr if node.attr not in bound else f"{place.id}_{node.attr}"
            wanted.setdefault(place.id, {})[made.line(name)] = name
            yield _Change(node, name)
    for module, lines in wanted.items():
        statement, _ = homes[module]
        yield _Change(statement, _over([ast.unparse(statement), *lines], statement))


def _modules_of(file: _File, project: _Project) -> Iterator[tuple[str, tuple[Any, _File]]]:
    """Yield names of modules of the project that one import at the top of a file binds."""
    found: dict[str, list[tuple[Any, _File]]] = {}
    for node in _top(file.tree.body, handlers=True):
        if not isinstance(node, _Statement):
            continue
        level = node.level if isinstance(node, ast.ImportFrom) else 0
        home = (node.module or "") if isinstance(node, ast.ImportFrom) else ""
        for alias in node.names:
            name = alias.asname or alias.name
            full = f"{home}.{alias.name}".strip(".")
            beside = project.module(full, level, file) if "." not in name else None
            if beside is not None:
                found.setdefault(name, []).append((node, beside))
    yield from ((name, places[0]) for name, places in found.items() if len(places) == 1)

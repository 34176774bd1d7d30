"""Reading: files as text that can be written back byte for byte, and what cannot be read."""

from __future__ import annotations

import ast
import codecs
import io
import os
import re
import tokenize
import warnings
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

from mpcore_port.errors import PortError
from mpcore_port.fstrings import NEEDS, line_of_new, requoted
from mpcore_port.notebook import (
    Notebook,
    NotebookError,
    cell_and_line,
    is_mark,
    joined_cells,
    open_notebook,
    split_cells,
)
from mpcore_port.renewed import renewed

__all__ = ["Source", "Tree", "Unread", "parse_source", "read_source", "walk"]

_LONGEST = (
    4_000_000  # bytes of one Python file; the largest in the standard library has 0.6 million
)
_LONGEST_NOTEBOOK = 64_000_000  # bytes, pictures included
_COPIED = 1_000_000  # bytes of a file beside the scripts; larger ones are data
_SKIPPED_FOLDERS = {".git", ".hg", ".svn", "__pycache__", ".venv", "venv", "node_modules"}
_SKIPPED_FOLDERS |= {".mypy_cache", ".pytest_cache", ".ruff_cache", ".tox", ".ipynb_checkpoints"}
# Of names and escapes; punycode takes time that grows with the square of the file.
_ODD_CODECS = {"punycode", "idna", "unicode-escape", "raw-unicode-escape", "undefined"}
_SCRIPTS = (".py", ".pyw", ".ipynb")
_DEVICE = re.compile(rb"\b(cuda|nccl)\b", re.I)
_PYTHON2 = re.compile(
    r"^\s*(print\s+[^\s(=.,:\[]|exec\s+['\"]|raise\s+\w+\s*,|except\s+[\w.]+\s*,\s*\w+\s*:)", re.M
)


@dataclass(frozen=True)
class Source:
    """One Python file, or the code of one notebook.

    Attributes:
        path: relative to the folder that is ported, with forward slashes.
        text: all of it, line ends as they are, without a byte order mark.
        encoding: what PEP 263 says it is in.
        bom: whether it began with a UTF-8 byte order mark.
        executable: whether its owner may execute it.
        notebook: what ``text`` was taken out of, or None.
        whole: the text of the script that ``text`` is a part of; "" if it is no part.
        renewed: lines that are written anew because Python has taken a word of theirs.
        requoted: lines whose f-strings have other quotes, for a Python before 3.12.
        handed: line, old and new text of names of torch that a neighbour handed on.
    """

    path: str
    text: str
    encoding: str = "utf-8"
    bom: bool = False
    executable: bool = False
    notebook: Notebook | None = field(default=None, compare=False, repr=False)
    whole: str = field(default="", compare=False, repr=False)
    renewed: tuple[int, ...] = field(default=(), compare=False, repr=False)
    requoted: tuple[int, ...] = field(default=(), compare=False, repr=False)
    handed: tuple[tuple[int, str, str], ...] = field(default=(), compare=False, repr=False)

    @property
    def around(self) -> str:
        """All of the script, of which ``text`` may be a part."""
        return self.whole or self.text

    def encode(self, text: str) -> bytes:
        """Return ``text`` as bytes in the file's own encoding; of a notebook, all of the file.

        Raises:
            PortError: the encoding has no code for a character.
        """
        if self.notebook is not None:
            text = self.notebook.dumps(text)
        try:
            data = text.encode(self.encoding)
        except UnicodeEncodeError as exc:
            msg = f"{self.path}: the port cannot be written in {self.encoding}: {exc.reason}"
            raise PortError(msg) from exc
        return codecs.BOM_UTF8 + data if self.bom else data

    def where(self, line: int, text: str | None = None) -> str:
        """Return what a reader calls a line of the text, or of the port ``text``."""
        if self.notebook is None:
            return str(line)
        cell, inside = cell_and_line(self.text if text is None else text, line)
        return f"cell {cell} line {inside}"

    def placed(self, fact: dict[str, Any], text: str | None = None) -> dict[str, Any]:
        """Return plain data with its ``line`` counted in its ``cell``, if this is a notebook."""
        if self.notebook is None or not fact.get("line"):
            return fact
        cell, line = cell_and_line(self.text, fact["line"])
        placed = {**fact, "cell": cell, "line": line}
        if text is not None and fact.get("new_line"):
            placed["new_cell"], placed["new_line"] = cell_and_line(text, fact["new_line"])
        return placed

    def numbers(self, text: str) -> list[int]:
        """Return the number of every line of the text, or of a port; in a notebook, of its cell."""
        count = len(text.splitlines())
        if self.notebook is None:
            return list(range(1, count + 1))
        found, number = list[int](), 0
        for line in text.splitlines():
            number = 0 if is_mark(line) else number + 1
            found.append(number)
        return found

    def shown(self, text: str) -> str:
        """Return the text, or a port's, as a reader knows it: with the magics of a notebook."""
        return text if self.notebook is None else self.notebook.shown(text)


@dataclass(frozen=True)
class Unread:
    """A file that is not ported: where and why.

    ``copied`` says whether it is in the output, ``changed`` whether it has other lines there.
    """

    path: str
    reason: str
    line: int = 0
    copied: bool = False
    changed: bool = False


@dataclass
class Tree:
    """What a folder holds, by path relative to it.

    Attributes:
        sources: Python files that can be read.
        unread: what is neither ported nor copied unseen.
        copied: other files, to be copied as they are.
        folder: the folder; of a single file, the one it lies in.
        single: whether one file was given.
    """

    folder: Path
    single: bool = False
    sources: list[Source] = field(default_factory=list)
    unread: list[Unread] = field(default_factory=list)
    copied: list[str] = field(default_factory=list)


def read_source(path: Path, name: str) -> Source | Unread:
    """Read a script or notebook, to be called ``name``, or say why it cannot be ported."""
    try:
        data = path.read_bytes()
        executable = os.access(path, os.X_OK)
    except OSError as exc:
        return Unread(name, f"cannot be read: {exc.strerror or exc}")
    longest = _LONGEST_NOTEBOOK if path.suffix == ".ipynb" else _LONGEST
    if len(data) > longest:
        return Unread(name, f"{len(data)} bytes are more than {longest}: no script")
    if path.suffix == ".ipynb":
        return _read_notebook(data, name, executable=executable)
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
    except SyntaxError as exc:
        return Unread(name, f"no Python source: {exc.msg or exc}", copied=True)
    if _is_no_encoding(encoding):
        reason = f"no Python source: {encoding!r} is no encoding of text; save it as UTF-8"
        return Unread(name, reason, 1, copied=True)
    bom = data.startswith(codecs.BOM_UTF8)
    encoding = "utf-8" if encoding == "utf-8-sig" else encoding
    try:
        text = (data[3:] if bom else data).decode(encoding)
    except UnicodeDecodeError as exc:
        line = data[: exc.start].count(b"\n") + 1
        reason = (
            f"byte {data[exc.start]:#04x} is not {encoding}; "
            "declare the encoding in line 1 (# -*- coding: latin-1 -*-) or save it as UTF-8"
        )
        return Unread(name, reason, line, copied=True)
    source = Source(name, text, encoding, bom, executable)
    unread = parse_source(source)
    return source if unread is None else _renewed(source) or unread


def _renewed(source: Source) -> Source | None:
    """Return a source that parses but for words that Python has taken since; or None.

    f-strings that an older Python than theirs does not read get other quotes.
    """
    text, lines = renewed(source.text)
    text, quoted = requoted(text)
    made = replace(source, text=text, renewed=lines, requoted=quoted)
    return made if (lines or quoted) and parse_source(made) is None else None


def _is_no_encoding(name: str) -> bool:
    """Return whether PEP 263's line names a codec that a script cannot sensibly be in."""
    codec = codecs.lookup(name)  # known: the line was read with it
    # Private in Python, 3.11 included: rot13, hex and base64 turn text into text, or bytes.
    return codec.name in _ODD_CODECS or not getattr(codec, "_is_text_encoding", True)


def _read_notebook(data: bytes, name: str, *, executable: bool) -> Source | Unread:
    bom = data.startswith(codecs.BOM_UTF8)
    try:
        notebook = open_notebook(data[3:] if bom else data)
        text = joined_cells(notebook)
    except NotebookError as exc:
        return Unread(name, str(exc), copied=True)
    if len(text) > _LONGEST:
        return Unread(name, f"{len(text)} characters of code are more than {_LONGEST}", copied=True)
    source = Source(name, text, "utf-8", bom, executable, notebook)
    return parse_source(source) or source


def _parse_cells(source: Source) -> Unread | None:
    """Return why a cell is no Python 3, or None; each has to be whole in itself."""
    for number, code in split_cells(source.text):
        broken = parse_source(Source(source.path, code))
        if broken is not None:
            where = f"cell {number} line {broken.line}" if broken.line else f"cell {number}"
            return Unread(source.path, f"{where}: {broken.reason}", copied=True)
    return None


def parse_source(source: Source) -> Unread | None:
    """Return why ``source`` is no Python 3 that can be ported, or None."""
    if source.notebook is not None:
        return _parse_cells(source)
    if "\x00" in source.text:
        return Unread(source.path, "holds zero bytes: no Python source", copied=True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the user's script, such as invalid escapes
            ast.parse(source.text.replace("\r\n", "\n"))
    except SyntaxError as exc:
        line = exc.lineno or 0
        old = _PYTHON2.search(source.text)
        if old and not source.text[: old.start()].count('"""') % 2:
            line = source.text[: old.start()].count("\n") + 1
            return Unread(source.path, "Python 2: run 2to3 on it first", line, copied=True)
        if new := line_of_new(source.text):
            return Unread(source.path, NEEDS, new, copied=True)
        return Unread(source.path, f"broken Python: {exc.msg}", line, copied=True)
    except (ValueError, RecursionError, MemoryError) as exc:
        return Unread(source.path, f"cannot be parsed: {exc}", copied=True)
    return None


def walk(path: Path) -> Tree:
    """Return what is at ``path``, a Python file, a notebook or a folder.

    Links to files are read as files; links to folders that were seen, and links out of the
    folder, are not followed. Hidden folders and environments are left out.

    Raises:
        PortError: there is nothing, or something that is neither; or no Python file.
    """
    if path.is_file():
        return _single(path)
    if not path.is_dir():
        msg = f"`PATH` must be a Python file, a notebook or a folder, {str(path)!r} is not there"
        raise PortError(msg)
    tree = Tree(path)
    _descend(path, path.resolve(), tree, {path.resolve()})
    if not tree.sources and not tree.unread:
        msg = f"`PATH` must hold Python files, {str(path)!r} holds none"
        raise PortError(msg)
    return tree


def _single(path: Path) -> Tree:
    if path.suffix not in (*_SCRIPTS, ""):
        msg = f"`PATH` must be a Python file, a notebook or a folder, got {path.name!r}"
        raise PortError(msg)
    tree = Tree(path.parent, single=True)
    _add(read_source(path, path.name), tree)
    return tree


def _add(read: Source | Unread, tree: Tree) -> None:
    if isinstance(read, Unread):
        tree.unread.append(read)
        return
    tree.sources.append(read)
    for where, words in read.notebook.foreign(read.text) if read.notebook else ():
        said = _DEVICE.search(words.encode(errors="replace"))
        if said is not None:
            reason = f"{where}: kept as it is; it says {said.group().decode()!r}"
            tree.unread.append(Unread(read.path, reason))


def _descend(folder: Path, root: Path, tree: Tree, seen: set[Path]) -> None:
    try:
        entries = sorted(folder.iterdir(), key=lambda entry: entry.name)
    except OSError as exc:
        tree.unread.append(Unread(_name(folder, tree), f"cannot be read: {exc.strerror}"))
        return
    for entry in entries:
        name = _name(entry, tree)
        if entry.is_dir():
            if entry.name in _SKIPPED_FOLDERS or entry.name.startswith("."):
                continue
            real = entry.resolve()
            if real in seen or not real.is_relative_to(root):
                where = "into a loop" if real in seen else "out of the folder"
                tree.unread.append(Unread(name, f"a link {where}: not followed"))
                continue
            seen.add(real)
            _descend(entry, root, tree, seen)
        elif entry.is_file():
            _file(entry, name, tree)
        else:
            tree.unread.append(Unread(name, "a link to nowhere, or no regular file"))


def _file(entry: Path, name: str, tree: Tree) -> None:
    if entry.suffix in _SCRIPTS:
        _add(read_source(entry, name), tree)
    elif entry.stat().st_size <= _COPIED:
        _beside(entry, name, tree)
    else:
        tree.unread.append(Unread(name, f"{entry.stat().st_size} bytes of data: not copied"))


def _beside(entry: Path, name: str, tree: Tree) -> None:
    """Note a file that is no Python: copied, and named if it speaks of CUDA."""
    try:
        found = _DEVICE.search(entry.read_bytes())
    except OSError as exc:
        tree.unread.append(Unread(name, f"cannot be read: {exc.strerror or exc}"))
        return
    if found is None:
        tree.copied.append(name)
        return
    line = found.string[: found.start()].count(b"\n") + 1
    reason = f"copied as it is; it says {found.group().decode()!r}"
    tree.unread.append(Unread(name, reason, line, copied=True))


def _name(path: Path, tree: Tree) -> str:
    return str(PurePosixPath(path.relative_to(tree.folder)))

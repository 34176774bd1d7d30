"""Notebooks as one Python text, and back: code cells joined, magics set aside, outputs cleared.

Cells are told apart by the comment ``# %% [cell 3]``; cells are counted from 1, all kinds of them.
Lines that are IPython's and no Python (``%matplotlib inline``, ``!pip list``, ``x?``, whole cells
under ``%%bash``) stand as names in the text, and get their own words back in the port.

Source: nbformat 4 (nbformat/v4/nbformat.v4.schema.json, nbformat 5.10); which lines are magics:
IPython/core/inputtransformer2.py, IPython 8.
"""

from __future__ import annotations

import copy
import json
import re
from dataclasses import dataclass, field
from typing import Any

__all__ = [
    "Notebook",
    "NotebookError",
    "cell_and_line",
    "is_mark",
    "joined_cells",
    "open_notebook",
    "split_cells",
]

_CELL = re.compile(r"^# %% \[cell (\d+)\]$", re.M)
_KEPT = re.compile(r"#?_mpcore_kept_(\d+)_")  # a comment: the second line of a magic, and so on
_PYTHON_CELLS = {"%%time", "%%timeit", "%%capture", "%%prun"}  # the rest of the cell is Python
_LINE_MAGIC = re.compile(r"\s*([%!?]|\??[\w.*%]+\?{1,2}\s*$)")
_VALUE_MAGIC = re.compile(r"(\s*[A-Za-z_][\w., ]*(?:\[[^\]=]*\] *)?=\s*)([%!].*)$")
_TOKEN = re.compile(
    r"""(?P<comment>\#.*)|(?P<triple>'''|\"\"\")|(?P<open>[(\[{])|(?P<shut>[)\]}])"""
    r"""|'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*\""""
)


class NotebookError(ValueError):
    """A file that is no notebook of Python in format 4; the message says why."""


@dataclass
class Notebook:
    """A notebook and what its text has in other words.

    Attributes:
        document: the JSON of the file, outputs cleared.
        kept: words of the lines that are no Python, by their number in the text.
        apart: numbers of cells that are not in the text: other languages, such as ``%%bash``.
        ascii: whether the file was plain ASCII.
        indent: how many spaces its JSON is indented by; None for one line.
    """

    document: dict[str, Any]
    kept: dict[int, str] = field(default_factory=dict)
    apart: list[int] = field(default_factory=list)
    ascii: bool = True
    indent: int | None = 1

    def foreign(self, text: str) -> list[tuple[str, str]]:
        """Return what is no Python: where it is, and its words."""
        found = [(f"cell {number}", self.source(number)) for number in self.apart]
        for mark in _KEPT.finditer(text):
            cell, line = cell_and_line(text, text.count("\n", 0, mark.start()) + 1)
            found.append((f"cell {cell} line {line}", self.kept[int(mark[1])]))
        return found

    def source(self, number: int) -> str:
        """Return the source of a cell, from 1."""
        found = self.document["cells"][number - 1]["source"]
        return found if isinstance(found, str) else "".join(found)

    def shown(self, text: str) -> str:
        """Return ``text`` with the words of the lines that are no Python."""
        return _KEPT.sub(lambda found: self.kept.get(int(found[1]), found[0]), text)

    def without_magics(self, text: str) -> str:
        """Return ``text`` as a script: what is no Python becomes None."""
        return _KEPT.sub(lambda found: "#" if found[0].startswith("#") else "None", text)

    def broken(self, before: str, after: str) -> str:
        """Return why ``after``, made of ``before``, cannot be cut into cells; "" if it can."""
        if _CELL.findall(before) != _CELL.findall(after):
            return "the cells of the port cannot be told apart"
        if _KEPT.findall(before) != _KEPT.findall(after):
            return "a line that is no Python was moved or lost"
        return ""

    def dumps(self, text: str) -> str:
        """Return the JSON of the notebook with the code of ``text``.

        Raises:
            ValueError: it cannot be written as JSON, or has half characters.
        """
        document = copy.deepcopy(self.document)
        for number, code in split_cells(text):
            cell = document["cells"][number - 1]
            code = self.shown(code)
            old = self.source(number)
            if code.rstrip("\n") != old.rstrip("\n"):
                end = len(old) - len(old.rstrip("\n"))
                code = code.rstrip("\n") + "\n" * end
                whole = isinstance(cell["source"], str)
                cell["source"] = code if whole else _lines(code)
        written = json.dumps(document, indent=self.indent, ensure_ascii=self.ascii, allow_nan=False)
        written.encode()
        return written + "\n"


def open_notebook(data: bytes) -> Notebook:
    """Read a notebook.

    Raises:
        NotebookError: it is none, of another language, or of a format before 4.
    """
    try:
        words = data.decode("utf-8")
    except UnicodeDecodeError as exc:
        msg = f"no notebook: byte {data[exc.start]:#04x} is not UTF-8"
        raise NotebookError(msg) from exc
    try:
        document = json.loads(words)
    except RecursionError as exc:
        msg = "no notebook: its JSON is nested too deeply"
        raise NotebookError(msg) from exc
    except ValueError as exc:
        msg = f"no notebook: broken JSON: {exc}"
        raise NotebookError(msg) from exc
    _check(document)
    for cell in document["cells"]:
        if cell["cell_type"] == "code":
            cell["outputs"], cell["execution_count"] = [], None
    head = re.match(r"\{\n( *)", words)
    found = Notebook(document, ascii=data.isascii(), indent=len(head[1]) if head else None)
    try:
        found.dumps("")
    except (ValueError, RecursionError) as exc:
        msg = f"no notebook: it could not be written again: {exc}"
        raise NotebookError(msg) from exc
    return found


def _check(document: Any) -> None:
    if not isinstance(document, dict) or "nbformat" not in document:
        msg = "no notebook: its JSON has no `nbformat`"
        raise NotebookError(msg)
    version = document["nbformat"]
    if version != 4:
        msg = (
            f"a notebook of format {version!r}, only 4 is ported: "
            "jupyter nbconvert --to notebook --nbformat 4 NOTEBOOK"
        )
        raise NotebookError(msg)
    language = _language(document.get("metadata"))
    if language != "python":
        msg = f"a notebook of {language}, only those of Python are ported"
        raise NotebookError(msg)
    cells = document.get("cells")
    if not isinstance(cells, list):
        msg = "no notebook: `cells` must be a list"
        raise NotebookError(msg)
    for number, cell in enumerate(cells, 1):
        source = cell.get("source") if isinstance(cell, dict) else None
        lines = source if isinstance(source, list) else [source]
        if not isinstance(cell, dict) or not all(isinstance(line, str) for line in lines):
            msg = f"no notebook: cell {number} has no `source` of text"
            raise NotebookError(msg)
        if not isinstance(cell.get("cell_type"), str):
            msg = f"no notebook: cell {number} has no `cell_type`"
            raise NotebookError(msg)


def _language(metadata: Any) -> str:
    """Return the language of the kernel; Python where nothing is said."""
    metadata = metadata if isinstance(metadata, dict) else {}
    for part, key in (("language_info", "name"), ("kernelspec", "language")):
        found = metadata.get(part)
        if isinstance(found, dict) and isinstance(found.get(key), str):
            return str(found[key]).lower().replace("ipython", "python")
    return "python"


def joined_cells(notebook: Notebook) -> str:
    """Return the code cells as one text; note in ``notebook`` what was set aside.

    Raises:
        NotebookError: a cell holds words that this module needs for itself.
    """
    parts = []
    for number, cell in enumerate(notebook.document["cells"], 1):
        if cell["cell_type"] != "code":
            continue
        code = notebook.source(number)
        if _CELL.search(code) or _KEPT.search(code):
            msg = f"cell {number} holds a mark of the porter's own (# %% [cell, _mpcore_kept_)"
            raise NotebookError(msg)
        first = code.lstrip().split(None, 1)[:1]
        if first and first[0].startswith("%%") and first[0] not in _PYTHON_CELLS:
            notebook.apart.append(number)
            continue
        code = _set_aside(code, notebook)
        parts.append(f"# %% [cell {number}]\n{code}" + ("\n" if code else ""))
    return "".join(parts)


def split_cells(text: str) -> list[tuple[int, str]]:
    """Return the cells of a joined text: number and code."""
    marks = list(_CELL.finditer(text))
    found = []
    for index, mark in enumerate(marks):
        end = marks[index + 1].start() if index + 1 < len(marks) else len(text)
        code = text[mark.end() + 1 : end]
        if index == 0:
            code = text[: mark.start()] + code
        found.append((int(mark[1]), code.removesuffix("\n")))
    return found


def cell_and_line(text: str, line: int) -> tuple[int, int]:
    """Return the cell that a line of a joined text is in, and its line there, both from 1."""
    lines = text.split("\n")[: max(line, 1)]
    for index in range(len(lines) - 1, -1, -1):
        mark = _CELL.match(lines[index])
        if mark:
            return int(mark[1]), max(1, len(lines) - 1 - index)
    mark = _CELL.search(text)
    return (int(mark[1]) if mark else 1), line


def is_mark(line: str) -> bool:
    """Return whether a line of a joined text begins a cell."""
    return _CELL.match(line) is not None


def _set_aside(code: str, notebook: Notebook) -> str:
    """Return ``code`` with a name in place of everything that is no Python."""
    lines, depth, quote, follows, magic = code.split("\n"), 0, "", False, False
    for index, line in enumerate(lines):
        if magic or (not depth and not quote and not follows):
            value = _VALUE_MAGIC.match(line)
            if magic or _LINE_MAGIC.match(line):
                words = line if magic else line.lstrip()
                lead = "#" if magic else line[: len(line) - len(words)]
                lines[index] = lead + _keep(words, notebook)
                magic = line.endswith("\\")
                continue
            if value:
                lines[index] = value[1] + _keep(value[2], notebook)
                continue
        depth, quote = _after(line, depth, quote)
        follows = line.endswith("\\")
    return "\n".join(lines)


def _keep(words: str, notebook: Notebook) -> str:
    number = len(notebook.kept)
    notebook.kept[number] = words
    return f"_mpcore_kept_{number}_"


def _after(line: str, depth: int, quote: str) -> tuple[int, str]:
    """Return how many brackets, and which long string, are open behind a line."""
    place = 0
    while place < len(line):
        if quote:
            end = _end_of(line, place, quote)
            if end < 0:
                return depth, quote
            place, quote = end, ""
            continue
        found = _TOKEN.search(line, place)
        if found is None or found["comment"]:
            break
        place = found.end()
        quote = found["triple"] or ""
        depth = max(0, depth + bool(found["open"]) - bool(found["shut"]))
    return depth, quote


def _end_of(line: str, place: int, quote: str) -> int:
    while place < len(line):
        if line[place] == "\\":
            place += 2
        elif line.startswith(quote, place):
            return place + 3
        else:
            place += 1
    return -1


def _lines(code: str) -> list[str]:
    """Return lines with their ends, as nbformat stores them."""
    return [line for line in re.split(r"(?<=\n)", code) if line]

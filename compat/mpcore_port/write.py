"""Writing a port: all files appear, or none."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from mpcore._lib.files import write_files, write_text
from mpcore_port.errors import PortError

if TYPE_CHECKING:
    from mpcore_port.engine import Result
    from mpcore_port.source import Tree

__all__ = ["check_output", "write_answer", "write_port"]

_OURS = "mpcore-port.json"
"""The report that marks a folder as a port's."""


def check_output(path: Path, output: Path, *, single: bool, force: bool) -> None:
    """Refuse an output that would replace what no port wrote, or that cannot be written.

    Args:
        path: what is ported.
        output: file (of one script that is not to lie in a folder) or folder to be written.
        single: whether ``path`` is one file.
        force: replace what is there.

    Raises:
        PortError: with the way out; nothing was changed.
    """
    here, there = path.resolve(), output.resolve()
    if here == there:
        msg = f"`-o` must not be the input itself, got {str(output)!r}"
        raise PortError(msg)
    if not single and (there.is_relative_to(here) or here.is_relative_to(there)):
        msg = f"`-o` must lie neither in the input nor around it, got {str(output)!r}"
        raise PortError(msg)
    if os.path.lexists(output):
        if not single and not output.is_dir():
            msg = f"`-o` must be a folder for a folder, {str(output)!r} is a file"
            raise PortError(msg)
        if not force:
            msg = (
                f"`-o` {str(output)!r} is there already; choose another, or replace it with --force"
            )
            raise PortError(msg)
        if single and output.is_dir():
            msg = f"`-o` must be a file for a file, {str(output)!r} is a folder; name a file in it"
            raise PortError(msg)
        if output.is_dir() and any(output.iterdir()) and not (output / _OURS).is_file():
            msg = (
                f"--force replaces what a port has written, {str(output)!r} holds no {_OURS}; "
                "remove the folder yourself, or choose another -o"
            )
            raise PortError(msg)
    _check_writable(output)


def _check_writable(output: Path) -> None:
    nearest = next(p for p in output.absolute().parents if p.exists())
    if not nearest.is_dir():
        msg = f"`-o` {str(output)!r} lies in {str(nearest)!r}, which is a file"
        raise PortError(msg)
    if not os.access(nearest, os.W_OK | os.X_OK):
        msg = f"`-o` {str(output)!r} cannot be written: {str(nearest)!r} is read-only for you"
        raise PortError(msg)


def write_port(result: Result, tree: Tree, output: Path, report: dict[str, str]) -> None:
    """Write every file of a port into a folder beside ``output``, then rename it.

    Args:
        result: what was ported.
        tree: the input, for the files that are copied.
        output: a folder, or for one script a file.
        report: texts of the reports by name; they go into the folder, or beside the file.

    Raises:
        PortError: something cannot be written; what was there before is there still.
    """
    try:
        if tree.single:
            _write_single(result, output, report)
        else:
            _write_folder(result, tree, output, report)
    except OSError as exc:
        msg = f"the port could not be written to {str(output)!r}: {exc}; nothing was changed"
        raise PortError(msg) from exc


def _write_single(result: Result, output: Path, report: dict[str, str]) -> None:
    output.parent.mkdir(parents=True, exist_ok=True)
    file = result.files[0]
    contents = {name: text.encode() for name, text in report.items()}
    write_files(output.parent, {output.name: file.source.encode(file.text)} | contents)
    output.chmod(0o755 if file.source.executable else 0o644)


def _write_folder(result: Result, tree: Tree, output: Path, report: dict[str, str]) -> None:
    # Not `write_files`: a whole tree changes place at once, so what an earlier port left goes.
    output.parent.mkdir(parents=True, exist_ok=True)
    waiting = Path(tempfile.mkdtemp(prefix=f".{output.name}-", dir=output.parent))
    old: Path | None = None
    try:
        _fill(waiting, result, tree, report)
        waiting.chmod(0o755)
        if output.exists():
            old = Path(tempfile.mkdtemp(prefix=f".{output.name}-old-", dir=output.parent))
            os.replace(output, old / "port")
        try:
            os.replace(waiting, output)
        except OSError:
            if old is not None:
                os.replace(old / "port", output)
            raise
    finally:
        for left in (waiting, old):
            if left is not None:
                shutil.rmtree(left, ignore_errors=True)


def _fill(folder: Path, result: Result, tree: Tree, report: dict[str, str]) -> None:
    for file in result.files:
        path = _place(folder, file.source.path)
        path.write_bytes(file.source.encode(file.text))
        if file.source.executable:
            path.chmod(0o755)
    for name in [*result.copied, *(u.path for u in result.unread if u.copied)]:
        if name in result.settings:
            _place(folder, name).write_bytes(result.settings[name].encode())
        else:
            shutil.copyfile(tree.folder / name, _place(folder, name))
    for name, text in report.items():
        (folder / name).write_text(text, encoding="utf-8", newline="")


def _place(folder: Path, name: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def write_answer(path: Path, text: str) -> None:
    """Write the answer of ``scan`` or ``check``, whole or not at all, over an earlier one only.

    Raises:
        PortError: something else is there, or it cannot be written; nothing was changed.
    """
    if os.path.lexists(path) and not _is_answer(path):
        msg = f"`-o` {str(path)!r} is there already and no earlier answer; choose another"
        raise PortError(msg)
    _check_writable(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text)
    except OSError as exc:
        msg = f"{str(path)!r} cannot be written: {exc}"
        raise PortError(msg) from exc


def _is_answer(path: Path) -> bool:
    """Return whether a file is an answer of ours: by its last line, or by what its JSON says."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeError):
        return False
    if re.search(r"^\d+ lint findings? in \d+ files?$", text, re.M) or not text.strip():
        return True
    lines = text.splitlines()
    if all(line.startswith(("::warning file=", "::error file=")) for line in lines):
        return True
    words = ('"format": "mpcore-port-', '"name": "mpcore port"')
    return text.startswith("{") and any(word in text for word in words)

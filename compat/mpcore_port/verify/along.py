"""Port the modules beside a script along with it, for one run."""

from __future__ import annotations

import re
import shutil
from typing import TYPE_CHECKING

from mpcore_port.engine import port_tree
from mpcore_port.source import Source, Tree, Unread, read_source
from mpcore_port.verify.beside import says_device
from mpcore_port.verify.module import StepError
from mpcore_port.verify.refused_imports import refused_imports

if TYPE_CHECKING:
    from pathlib import Path

    from mpcore_port.engine import Ported
    from mpcore_port.targets import Options, Target
    from mpcore_port.verify.beside import Beside

__all__ = ["port_along"]


def port_along(beside: Beside, copy: Path, target: Target, options: Options) -> tuple[str, ...]:
    """Write the modules beside a script, ported, into ``copy``; return which have changed.

    What says nothing of a device or of mixed precision is copied; for MindSpore all is ported.

    Raises:
        StepError: one of them cannot be ported.
    """
    files = [*beside.files, *_listed(beside)]
    touched = {path for path in files if target.name == "mindspore" or says_device(path)}
    tree = Tree(beside.top)
    for path in files:
        to = copy / path.relative_to(beside.top)
        to.parent.mkdir(parents=True, exist_ok=True)
        if path in touched:
            found = read_source(path, path.relative_to(beside.top).as_posix())
            if isinstance(found, Source):
                tree.sources.append(found)
                continue
        shutil.copyfile(path, to)
    for path in _data_beside(files):
        to = copy / path.relative_to(beside.top)
        if not to.exists():
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, to)
    done = port_tree(tree, target, options)
    bad: list[Unread] = list(done.unread)
    if bad:
        msg = f"{bad[0].path}, which it imports, cannot be ported: {bad[0].reason}"
        raise StepError(msg)
    for file in done.files:
        (copy / file.source.path).write_bytes(file.source.encode(file.text))
    return tuple(_named(file) for file in done.files if file.text != file.source.text)


_LARGEST = 4_000_000  # bytes of a file of data that is copied: one may be written to


_OF_DATA = ("assets", "config", "configs", "data", "resources", "vocab")


def _data_beside(files: list[Path]) -> list[Path]:
    """Return the files of data that lie beside modules: vocabularies, tables, settings."""
    places = {path.parent for path in files}
    inner = {child for place in places for child in place.iterdir() if child.name in _OF_DATA}
    folders = sorted(places | {child for child in inner if child.is_dir()})
    beside = [path for folder in folders for path in sorted(folder.iterdir())]
    return [
        path
        for path in beside
        if path.suffix != ".py" and path.is_file() and path.stat().st_size <= _LARGEST
    ]


_LISTS = re.compile(r"\b(listdir|scandir|glob|iglob|iterdir|walk_packages|iter_modules)\(")
_MOST = 60  # files of folders that are listed


def _listed(beside: Beside) -> list[Path]:
    """Return what else lies in the packages beside a script, where one of its modules lists files.

    ``for file in os.listdir("losses")`` imports what is there.
    """
    texts = (path.read_text("utf-8", errors="replace") for path in beside.files)
    if not any(map(_LISTS.search, texts)):
        return []
    packages = {path.parent for path in beside.files if _is_package(path.parent)}
    packages |= {at for one in [*packages] for at in one.parent.iterdir() if _is_package(at)}
    others = [path for one in sorted(packages) for path in sorted(one.glob("*.py"))]
    inside = [path for path in others if path.is_relative_to(beside.top)]
    return [path for path in inside if path not in beside.files][:_MOST]


def _is_package(path: Path) -> bool:
    return (path / "__init__.py").is_file()


def _named(file: Ported) -> str:
    """Return the path of a file, with what is refused in it that a run has nothing in place of."""
    refused = refused_imports(file.text)
    return (
        f"{file.source.path} (refused there: {', '.join(refused)})" if refused else file.source.path
    )

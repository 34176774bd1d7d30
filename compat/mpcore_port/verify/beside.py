"""Modules beside a script, and of the package around it: where they are imported from."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from mpcore_port.above import imported_names, module_at, nearest
from mpcore_port.verify.module import StepError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

__all__ = ["Beside", "absolute", "in_order", "needed", "roots", "says_device"]

_MOST = 300  # modules that are followed
_LONGEST = 400_000  # characters of one
_DEVICE = re.compile(r"cuda|nccl|apex|cudnn|channels_last|autocast|GradScaler|torch\.backends")


def says_device(path: Path) -> bool:
    """Return whether a file says something of a device or of mixed precision."""
    return _DEVICE.search(path.read_text("utf-8", errors="replace")) is not None


def absolute(node: ast.ImportFrom, folder: Path) -> str:
    """Return a relative import as one by full names, from the folder that ``roots`` has for it."""
    root, base = _package(folder, node.level)
    parts = [*base.relative_to(root).parts, node.module]
    held = ".".join(part for part in parts if part)
    listed = ", ".join(ast.unparse(alias) for alias in node.names)
    return f"from {held} import {listed}" if held else f"import {listed}"


def _package(folder: Path, level: int) -> tuple[Path, Path]:
    """Return the folder to import from, and the package that ``level`` dots mean."""
    base = folder
    for _ in range(level - 1):
        base = base.parent
    root = folder
    while (root / "__init__.py").is_file() and root.parent != root:
        root = root.parent
    if root.is_relative_to(base) or base == root:
        root = base.parent if base.name.isidentifier() else base
    if not base.is_relative_to(root):
        root = base.parent
    return root, base


def in_order(folder: Path, above: Sequence[Path]) -> list[str]:
    """Return the folders that a script imports from; its own last, if it is part of a package.

    It is none of them where a module in it would be found in the place of that package.
    """
    inside = [at for at in above if folder.is_relative_to(at) and at != folder]
    packaged = inside and not (folder / "setup.py").exists()
    hidden = packaged and any(_hides(folder, at) for at in inside)
    own = [] if hidden else [folder]
    return [str(path) for path in ([*above, *own] if packaged else [folder, *above])]


def _hides(folder: Path, above: Path) -> bool:
    """Return whether ``net/model/net.py`` hides ``net``: a folder that says of no package."""
    name = folder.relative_to(above).parts[0]
    return (folder / f"{name}.py").is_file() and not (above / name / "__init__.py").is_file()


def roots(tree: ast.AST, folder: Path) -> list[Path]:
    """Return the folders above a script from which it imports modules of its own."""
    found: list[Path] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            found.append(_package(folder, node.level)[0])
            continue
        names = imported_names(node)
        for name in names[:1] if isinstance(node, ast.ImportFrom) else names:
            at = nearest(name, folder)
            if at is not None:
                found.append(at)
    return [at for at in dict.fromkeys(found) if at != folder]


def needed(text: str, folder: Path, above: list[Path]) -> list[Path]:
    """Return the files of the modules beside a script that it imports, and those import.

    Raises:
        StepError: they are too many; one that is not followed would be absent, on one side alone.
    """
    found: dict[Path, None] = {}
    waiting = list(_files(text, folder, [folder, *above]))
    while waiting:
        path = waiting.pop(0)
        if path in found or not path.is_file() or path.stat().st_size > _LONGEST:
            continue
        if len(found) >= _MOST:
            msg = f"it imports more than {_MOST} modules that lie beside it"
            raise StepError(msg)
        found[path] = None
        inside = path.read_text(encoding="utf-8", errors="replace")
        waiting += _files(inside, path.parent, [folder, *above])
    return list(found)


def _files(text: str, folder: Path, places: list[Path]) -> Iterator[Path]:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return
    for node in ast.walk(tree):
        names = imported_names(node)
        at = places
        if isinstance(node, ast.ImportFrom) and node.level:
            up = folder
            for _ in range(node.level - 1):
                up = up.parent
            held = f"{node.module}." if node.module else ""
            names = [held.rstrip("."), *(f"{held}{alias.name}" for alias in node.names)]
            at = [up]
        for name in filter(None, names):
            for place in at:
                found = module_at(place, name)
                if found is not None:
                    yield from _with_packages(found, place)


def _with_packages(path: Path, root: Path) -> Iterator[Path]:
    """Yield a module and the ``__init__`` of each package around it."""
    if path.suffix == ".py":
        yield path
    above = path.parent
    while above != root and root in above.parents:
        yield above / "__init__.py"
        above = above.parent


class Beside:
    """The modules beside one script, to be ported along for a run.

    Args:
        text: the script.
        folder: where it lies.
    """

    def __init__(self, text: str, folder: Path) -> None:
        tree = ast.parse(text)
        self.folder = folder
        self.roots = roots(tree, folder)
        self.files = needed(text, folder, self.roots)
        every = [folder, *self.roots, *(path.parent for path in self.files)]
        self.top = min(every, key=lambda path: len(path.parts))

    def places(self, copy: Path) -> list[Path]:
        """Return the folders that a port imports from, in a copy of ``top``."""
        return [copy / path.relative_to(self.top) for path in (self.folder, *self.roots)]

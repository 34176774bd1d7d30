"""Modules of a script's own project: found by the names that it imports."""

from __future__ import annotations

import ast
import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

__all__ = ["imported_names", "module_at", "nearest", "own_above"]

_ABOVE = 4  # folders above a script that are looked at
_PROJECT = (".git", "pyproject.toml", "setup.cfg", "setup.py")


def own_above(texts: Iterable[str], folder: Path) -> set[str]:
    """Return names of packages that scripts import and that their project holds above them.

    Those are a package that the scripts are part of, and packages beside the project's settings.
    """
    names: set[str] = set()
    for text in texts:
        with contextlib.suppress(SyntaxError, ValueError):  # cells of a notebook, say
            nodes = ast.walk(ast.parse(text))
            names |= {name.partition(".")[0] for node in nodes for name in imported_names(node)}
    places = {name: nearest(name, folder) for name in names if name}
    own = {name for name, at in places.items() if at is not None and _is_own(at, name, folder)}
    return own | names.intersection(_packages_around(folder))


def _packages_around(folder: Path) -> set[str]:
    """Return folders above that a lone file of a package lies in, below the package's first one.

    The other files need not be there. The first folder may be called after what it uses:
    ``timm/train.py``.
    """
    return set(folder.absolute().parts[1:-1][-_ABOVE:])


def _is_own(at: Path, name: str, folder: Path) -> bool:
    holds = (at / name / "__init__.py").is_file()
    is_project = any((at / one).exists() for one in _PROJECT)
    return holds and (folder.is_relative_to(at / name) or is_project)


def nearest(name: str, folder: Path) -> Path | None:
    """Return the nearest folder above that has a module of that name; None if the own one has."""
    places = [folder, *folder.parents][: _ABOVE + 1]
    last = next((i for i, at in enumerate(places) if (at / ".git").exists()), len(places))
    for part in dict.fromkeys((name, name.partition(".")[0])):
        for at in places[: last + 1]:
            if part and module_at(at, part) is not None:
                return at if at != folder else None
    return None


def module_at(folder: Path, name: str) -> Path | None:
    """Return the file or folder of a module, None where there is none."""
    path = folder.joinpath(*name.split("."))
    if path.with_name(f"{path.name}.py").is_file():
        return path.with_name(f"{path.name}.py")
    if (path / "__init__.py").is_file():
        return path / "__init__.py"
    has_code = path.is_dir() and next(path.glob("*.py"), None) is not None
    return path if has_code else None


def imported_names(node: ast.AST) -> list[str]:
    """Return the full names that an import brings, and the modules that hold them."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and not node.level:
        held = node.module or ""
        return [held, *(f"{held}.{alias.name}" for alias in node.names)]
    return []

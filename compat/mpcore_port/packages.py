"""What a package is to a port: neutral, built on torch, or not known.

``packages.toml`` lists the common ones; of others the metadata of what is installed is asked. A
module that lies beside the script is the script's own.
"""

from __future__ import annotations

import contextlib
import re
import sys
import tomllib
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from importlib import metadata, resources
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

import libcst as cst

from mpcore_port.scopes import code_of

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "ABSENT",
    "Package",
    "class_of_another_file",
    "imported",
    "of_another_file",
    "own_packages",
    "package_of",
    "relative",
]

ABSENT = "not on the list, not installed here"
"""Of a package that is not known at all: most often a module of the script's own."""

World = Literal["neutral", "torch", "unknown"]
_TORCH = {
    *("torch", "torch_npu", "apex", "mindspore", "mpcore", "mpcore_compat"),
    *("mpcore_port_runtime", "mpcore_torch", "mpcore_mindspore"),
}
_REQUIRES = re.compile(r"[A-Za-z0-9_.-]+")


@dataclass(frozen=True)
class Package:
    """A package, as far as a port is concerned.

    Attributes:
        name: the name under which it is listed, or its first part.
        world: ``"neutral"``; ``"torch"``: built on torch; ``"unknown"``.
        npu: of what is built on torch: ``"same"``, ``"unproven"`` or ``"refused"``.
        why: what decided, for reports.
    """

    name: str
    world: World
    npu: str = "same"
    why: str = ""


@cache
def _listed() -> dict[str, Package]:
    text = resources.files("mpcore_port").joinpath("packages.toml").read_text(encoding="utf-8")
    data = tomllib.loads(text)
    found = {name: Package(name, "neutral") for name in data["neutral"]}
    for root, parts in data["torch"].items():
        for part, row in parts.items():
            if isinstance(row, dict):
                name = f"{root}.{part}" if part else root
                found[name] = Package(name, "torch", row["npu"], row["why"])
            else:
                found[part] = Package(part, "torch", root, row)
    found |= {
        name: Package(name, "unknown", "unproven", why) for name, why in data["other"].items()
    }
    return found


def imported(node: cst.Import | cst.ImportFrom) -> list[str]:
    """Return the full names that an import statement brings; [] of a relative one."""
    if isinstance(node, cst.Import):
        return [code_of(alias.name) for alias in node.names]
    if node.relative or node.module is None:
        return []
    module = code_of(node.module)
    if isinstance(node.names, cst.ImportStar):
        return [module]
    return [f"{module}.{code_of(alias.name)}" for alias in node.names]


def relative(node: cst.Import | cst.ImportFrom) -> list[str]:
    """Return the first parts of modules that a relative import reads: ``from .a import b``."""
    if not isinstance(node, cst.ImportFrom) or not node.relative:
        return []
    if node.module is not None:
        return [code_of(node.module).partition(".")[0]]
    if isinstance(node.names, cst.ImportStar):
        return []
    return [code_of(alias.name) for alias in node.names]


_OWN: ContextVar[frozenset[str]] = ContextVar("_OWN", default=frozenset())


@contextlib.contextmanager
def own_packages(names: frozenset[str]) -> Iterator[None]:
    """Have packages be the script's own, whatever the list says: ``lavis`` in a file of it."""
    token = _OWN.set(names)
    try:
        yield
    finally:
        _OWN.reset(token)


def package_of(name: str) -> Package | None:
    """Return the package of a full name, ``"horovod.torch.init"``; None: torch's or our own."""
    found = _package_of(name)
    root = name.partition(".")[0]
    if found is not None and found.world == "torch" and root in _OWN.get():
        return Package(root, "unknown", "unproven", ABSENT)
    return found


@cache
def _package_of(name: str) -> Package | None:
    root = name.partition(".")[0]
    if root in _TORCH:
        return None
    if root in sys.stdlib_module_names or root == "__future__":
        return Package(root, "neutral")
    listed = _listed()
    part = name
    while part:
        if part in listed:
            return listed[part]
        part = part.rpartition(".")[0]
    return _installed(root)


def of_another_file(name: str) -> bool:
    """Return whether a full name is of a module that nobody looked at: relative, or unknown."""
    if not name or name.startswith("."):
        return bool(name)
    package = package_of(name)
    return package is not None and package.world == "unknown"


def class_of_another_file(name: str) -> bool:
    """Return whether a full name is, by its capital, a class of such a module."""
    return of_another_file(name) and name.rpartition(".")[2][:1].isupper()


def _installed(root: str) -> Package:
    # Metadata of all that is installed takes half a second to read: only for what can be imported.
    names = _by_import().get(root, ()) if _can_be_imported(root) else ()
    if not names:
        return Package(root, "unknown", "unproven", ABSENT)
    if any(_requires_torch(name, 2) for name in names):
        return Package(root, "torch", "unproven", f"{names[0]} requires torch (its metadata)")
    why = f"not on the list; {names[0]} requires no torch (its metadata)"
    return Package(root, "unknown", "unproven", why)


def _can_be_imported(root: str) -> bool:
    try:
        return find_spec(root) is not None
    except (ImportError, ValueError):  # a module that hides what it is: ask the metadata
        return True


@cache
def _by_import() -> dict[str, list[str]]:
    return {name: list(found) for name, found in metadata.packages_distributions().items()}


def _requires_torch(distribution: str, depth: int) -> bool:
    """Return whether a distribution requires torch, itself or by what it requires."""
    for name in _requirements(distribution):
        if name == "torch" or (depth and _requires_torch(name, depth - 1)):
            return True
    return False


@cache
def _requirements(distribution: str) -> tuple[str, ...]:
    try:
        listed = metadata.requires(distribution) or []
    except metadata.PackageNotFoundError:
        return ()
    found: list[Any] = [_REQUIRES.match(line) for line in listed if "extra ==" not in line]
    return tuple(match.group().lower() for match in found if match is not None)

"""Packages of kernels for CUDA that ``mpcore_compat`` writes with torch's operations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.names import alias_text, code_of
from mpcore_port.packages import imported, package_of
from mpcore_port.rule import Rule
from mpcore_port.torch_npu.plan import in_place_of, kept_import, standing_for
from mpcore_port.torch_npu.tables import kernels, settings

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["KernelImports", "KernelNames", "rewritten_imports"]


_ROOTS = frozenset(name.partition(".")[0] for name in kernels())


def rewritten_imports(_: At) -> set[cst.CSTNode]:
    """Return the imports that were rewritten: what they bind is ``mpcore_compat``'s."""
    return set()


class KernelImports(Rule):
    """``from torch_scatter import scatter_sum`` imports what is written with torch's operations."""

    name = "kernels"
    reason = "torch's operations stand for its kernels"
    visits = (cst.SimpleStatementLine,)

    def idle(self, at: At) -> bool:
        """Whether the module says nothing of such a package."""
        return not any(root in at.code for root in _ROOTS)

    def leave(self, old: Any, new: Any, at: At) -> Any:
        """Rewrite one line of imports, as far as its names are there; the rest is refused."""
        small = old.body[0] if len(old.body) == 1 else None
        if not isinstance(small, (cst.Import, cst.ImportFrom)) or kept_import(old, at):
            return None
        names = imported(small)
        if not names or names[0].partition(".")[0] in at.project.modules:
            return None
        text, others = _plain(small) if isinstance(small, cst.Import) else _from(small)
        if not text:
            return None
        said = settings()["kernels_said"]["reason"]
        at.note(self, small, text, "changed", said, _effect(names[0]))
        at.once(rewritten_imports).add(small)
        refused = standing_for(others, small, _advice(names[0]), self, at)
        return in_place_of(new, [cst.parse_statement(text), *refused])


def _effect(name: str) -> str:
    return kernels()[_module_of(name)][2]


def _advice(name: str) -> str:
    found = package_of(name)
    return found.why if found is not None else ""


def _plain(small: cst.Import) -> tuple[str, list[str]]:
    """Return ``import ... as xops`` anew; "" where what it binds is not there."""
    alias = small.names[0]
    bound = code_of(alias.asname.name) if alias.asname else code_of(alias.name).partition(".")[0]
    home = kernels().get(code_of(alias.name) if alias.asname else bound, ("", (), ""))[0]
    if len(small.names) != 1 or not home or code_of(alias.name) not in kernels():
        return "", []
    return f"import {home} as {bound}", []


def _from(small: cst.ImportFrom) -> tuple[str, list[str]]:
    """Return ``from ... import ...`` anew, and the names among them that are not there."""
    home, known, _ = kernels().get(code_of(small.module), ("", (), ""))  # type: ignore[arg-type]
    if not home:
        return "", []
    if isinstance(small.names, cst.ImportStar):
        return f"from {home} import *", []
    there = [alias for alias in small.names if code_of(alias.name) in known]
    others = [alias for alias in small.names if code_of(alias.name) not in known]
    if not there:
        return "", []
    bound = [code_of(a.asname.name) if a.asname else code_of(a.name) for a in others]
    return f"from {home} import {', '.join(map(alias_text, there))}", bound


class KernelNames(Rule):
    """What is used of such a package is ``mpcore_compat``'s, or refused where that has it not."""

    name = "kernel names"
    reason = "torch's operations stand for its kernels"
    visits = (cst.Attribute, cst.Name)

    def idle(self, at: At) -> bool:
        """Whether the module says nothing of such a package."""
        return not any(root in at.code for root in _ROOTS)

    def leave(self, old: Any, new: Any, at: At) -> Any:
        """Note one use, or refuse it."""
        del new
        name = at.names.qualified(old) or ""
        if name.partition(".")[0] not in _ROOTS or not at.names.is_reference(old):
            return None
        by = at.names.imported(old)
        if by is None or by.node not in at.once(rewritten_imports):
            return None
        module = _module_of(name)
        first = name[len(module) + 1 :].partition(".")[0]
        if first and first not in kernels()[module][1]:
            if isinstance(old, cst.Name):
                return None  # its import was refused
            return at.refuse(self, old, _advice(name))
        said = settings()["kernels_said"]["reason"]
        at.note(self, old, old, "changed", said, _effect(name))
        return None


def _module_of(name: str) -> str:
    """Return the longest module of kernels that a full name begins with."""
    while name not in kernels():
        name = name.rpartition(".")[0]
    return name

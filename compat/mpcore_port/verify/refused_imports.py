"""Imports that a port refuses: of what is not installed both sides have nothing in their place."""

from __future__ import annotations

import ast
import re
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["import_in", "refused_imports", "stand_in_for_refused"]

_REFUSED = "_mpcore_refused"  # refusals.REFUSED, whose module reads code
_STUB = re.compile(r'_refused\("((?:import|from) [^":]+): ')


def refused_imports(text: str) -> list[str]:
    """Return the imports that a port refuses, as they are written."""
    return list(dict.fromkeys(_STUB.findall(text)))


def import_in(reason: str) -> ast.Import | ast.ImportFrom | None:
    """Return the import that a refusal names in front of its reason; None where it is another."""
    words = reason.removeprefix("NotImplementedError: ")
    if not words.startswith(("import ", "from ")):
        return None
    try:
        (found,) = ast.parse(words.partition(": ")[0]).body
    except (SyntaxError, ValueError):
        return None
    if isinstance(found, ast.ImportFrom):
        return None if found.level or found.names[0].name == "*" else found
    return found if isinstance(found, ast.Import) else None


def stand_in_for_refused(absent: Callable[[str], Any]) -> None:
    """Have a port get stand-ins where it refuses to import what is not installed.

    Its original has them there. What is installed is refused as before.

    Args:
        absent: gives what stands in for a module; None for one that is installed.
    """
    runtime = sys.modules.get("mpcore_port_runtime.refusal")
    script = sys._getframe(2).f_globals  # a port to torch_npu has the class in itself
    for held, name in ((vars(runtime) if runtime else {}, "refused"), (script, _REFUSED)):
        if name in held:
            held[name] = _giving(held[name], absent)


def _giving(refused: Callable[..., Any], absent: Callable[[str], Any]) -> Callable[..., Any]:
    def give(reason: str, **said: Any) -> Any:
        frame = sys._getframe(1)
        found = import_in(reason)
        made = None if found is None else _given(found, frame, absent)
        return refused(reason, **said) if made is None else made

    return give


def _given(found: ast.Import | ast.ImportFrom, frame: Any, absent: Callable[[str], Any]) -> Any:
    """Return what a name of an import is, of a module that is absent; None for others."""
    from mpcore_port.verify.stand_in import bound_to

    name = bound_to(frame)
    alias = next((one for one in found.names if _bound(one) == name), found.names[0])
    held = found.module or "" if isinstance(found, ast.ImportFrom) else alias.name
    module = absent(held if isinstance(found, ast.ImportFrom) or alias.asname else name)
    if module is None or isinstance(found, ast.Import):
        return module
    return getattr(module, alias.name)


def _bound(alias: ast.alias) -> str:
    return alias.asname or alias.name.partition(".")[0]

"""Ports of short scripts to MindSpore, as the tests of smallest cases ask for them."""

from __future__ import annotations

import runpy
from typing import TYPE_CHECKING, Any

from mpcore_port.engine import port_text
from mpcore_port.targets import Options, load_target

if TYPE_CHECKING:
    from pathlib import Path

    from mpcore_port.engine import Ported
    from mpcore_port.targets import Target

__all__ = ["TARGET", "loaded", "ported"]

TARGET = load_target("mindspore")


def ported(script: str, target: Target = TARGET) -> Ported:
    """Return a port that parses, and whose rules all ran."""
    found = port_text(script, target, Options())
    assert not found.failures, found.failures
    compile(found.text, "port.py", "exec")
    return found


def loaded(text: str, folder: Path) -> dict[str, Any]:
    """Return what a port leaves behind as a file: MindSpore indexes no tensor in a text's code."""
    path = folder / "ported.py"
    path.write_text(text, encoding="utf-8")
    return runpy.run_path(str(path), run_name="port")

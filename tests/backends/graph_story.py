"""Runs an example of examples/graph as a module, as whoever imports it would."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

HOME = Path(__file__).parents[2] / "examples" / "graph"


def told(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return what the story of a framework found."""
    spec = importlib.util.spec_from_file_location(name, HOME / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)  # compilers look sources up by module
    spec.loader.exec_module(module)
    found: dict[str, Any] = module.main(folder)
    return found

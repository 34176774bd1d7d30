"""Results that the tests of the report share."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def samples() -> Any:
    """Return a function of a kind, such as ``"deep"``, that returns a fresh result."""
    deep, sample = (_load(name) for name in ("deep_sample", "sample"))
    return lambda kind: getattr(deep, kind)(sample.sample())


def _load(name: str) -> Any:
    path = Path(__file__).with_name(f"{name}.py")
    spec = importlib.util.spec_from_file_location(f"mpcore_report_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

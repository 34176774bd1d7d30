"""Run the zoo in one framework a process; the numpy backend has no layers of its own."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import SimpleNamespace

import pytest
from harness import load_kit

import mpcore as mp


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return True if config.getoption("--backend") == "numpy" else None


@pytest.fixture(scope="session")
def framework(request: pytest.FixtureRequest) -> SimpleNamespace:
    """Return the name, the zoo, the compare driver and the conformance kit of the framework."""
    name = request.config.getoption("--backend")
    module = importlib.import_module(f"zoo_{name}")
    driver = mp.load_backend(name).driver()
    return SimpleNamespace(name=name, zoo=module.ZOO, driver=driver, kit=load_kit(name))

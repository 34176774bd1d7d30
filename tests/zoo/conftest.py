"""Run the zoo in one framework a process; the numpy backend has no layers of its own."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import mpcore as mp

# MindSpore's graph compiler too imports the module of every function it reads, by name.
sys.path.append(str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[1] / "backends"))
from harness import load_kit  # found through the line above


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return True if config.getoption("--backend") == "numpy" else None


@pytest.fixture(scope="session")
def framework(request: pytest.FixtureRequest) -> SimpleNamespace:
    """Return the name, the zoo, the compare driver and the conformance kit of the framework."""
    name = request.config.getoption("--backend")
    module = importlib.import_module(f"zoo_{name}")
    driver = mp.load_backend(name).compare_driver()
    return SimpleNamespace(name=name, zoo=module.ZOO, driver=driver, kit=load_kit(name))

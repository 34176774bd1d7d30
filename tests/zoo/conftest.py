"""The zoo in the framework of this process."""

from __future__ import annotations

import importlib
from types import SimpleNamespace

import pytest
from harness import load_kit

import mpcore as mp


@pytest.fixture(scope="session")
def framework(request: pytest.FixtureRequest) -> SimpleNamespace:
    """Return the name, the zoo, the compare driver and the conformance kit of the framework."""
    name = request.config.getoption("--backend")
    module = importlib.import_module(f"zoo_{name}")
    driver = mp.load_backend(name).driver()
    return SimpleNamespace(name=name, zoo=module.ZOO, driver=driver, kit=load_kit(name))

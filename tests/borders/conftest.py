"""Where other people's code meets a prepared model: the kit of the framework, as tests/backends."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness import load_kit


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """The numpy reference is no framework that other code trains: nothing is drawn for it."""
    numpy = config.getoption("--backend") == "numpy"
    return True if numpy and collection_path.name == "test_fuzz.py" else None


@pytest.fixture(scope="module")
def kit(request: pytest.FixtureRequest):
    return load_kit(request.config.getoption("--backend"))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test that asks for ``mode`` in every mode that the framework has."""
    if "mode" in metafunc.fixturenames:
        name = metafunc.config.getoption("--backend")
        metafunc.parametrize("mode", load_kit(name).modes)

"""Leave the other frameworks' test files unread: importing one would import its framework."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness import load_kit

_FRAMEWORKS = ("torch", "tensorflow", "mindspore")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Ignore ``test_<framework>[_topic].py`` unless --backend names that framework."""
    name = collection_path.stem.removeprefix("test_").split("_")[0]
    return True if name in _FRAMEWORKS and name != config.getoption("--backend") else None


@pytest.fixture(scope="module")
def kit(request: pytest.FixtureRequest):
    return load_kit(request.config.getoption("--backend"))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test in every mode that the framework has."""
    if "mode" in metafunc.fixturenames:
        name = metafunc.config.getoption("--backend")
        metafunc.parametrize("mode", load_kit(name).modes)

"""Where other people's code meets a prepared model: the kit of the framework, as tests/backends."""

from __future__ import annotations

import pytest
from harness import load_kit


@pytest.fixture(scope="module")
def kit(request: pytest.FixtureRequest):
    return load_kit(request.config.getoption("--backend"))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test that asks for ``mode`` in every mode that the framework has."""
    if "mode" in metafunc.fixturenames:
        name = metafunc.config.getoption("--backend")
        metafunc.parametrize("mode", load_kit(name).modes)

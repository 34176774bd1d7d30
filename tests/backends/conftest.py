"""The kit of the framework, and every mode that it has."""

from __future__ import annotations

import pytest
from harness import load_kit


@pytest.fixture(scope="module")
def kit(request: pytest.FixtureRequest):
    return load_kit(request.config.getoption("--backend"))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test in every mode that the framework has.

    ``step_mode`` is for several optimizers, losses or micro-batches, which a loop of one's own in
    Keras cannot have: the kit steps by ``amp.step`` in both of its modes, to the letter.
    """
    name = metafunc.config.getoption("--backend")
    if "mode" in metafunc.fixturenames:
        metafunc.parametrize("mode", load_kit(name).modes)
    if "step_mode" in metafunc.fixturenames:
        modes = ("eager",) if name == "tensorflow" else load_kit(name).modes
        metafunc.parametrize("step_mode", modes)

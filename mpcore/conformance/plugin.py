"""The options and fixtures of the suite, for ``pytest -p mpcore.conformance.plugin``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from mpcore.backend.kit import Kit

__all__ = ["kit", "pytest_addoption", "pytest_configure", "pytest_generate_tests"]

pytest.register_assert_rewrite("mpcore.conformance.harness", "mpcore.conformance.suite")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add what says which backend is tested."""
    group = parser.getgroup("mpcore conformance")
    group.addoption("--backend", required=True, help="name of the backend to test")
    group.addoption(
        "--kit",
        metavar="MODULE:OBJECT",
        help="its kit; else the entry point of that name in the group mpcore.conformance",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Find the kit before anything is collected.

    Raises:
        UsageError: there is none.
    """
    from mpcore.conformance.harness import find_kit

    try:
        config.stash[_KIT] = find_kit(config.getoption("--backend"), config.getoption("--kit"))
    except LookupError as exc:
        raise pytest.UsageError(*exc.args) from exc


@pytest.fixture(scope="module")
def kit(request: pytest.FixtureRequest) -> Kit:
    """Return the kit of the backend."""
    return request.config.stash[_KIT]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test in every mode that the framework has."""
    if "mode" in metafunc.fixturenames:
        metafunc.parametrize("mode", metafunc.config.stash[_KIT].modes)


_KIT = pytest.StashKey["Kit"]()

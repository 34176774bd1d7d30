"""Options and profiles shared by every test."""

from __future__ import annotations

import os
import tempfile

import pytest
from hypothesis import settings

settings.register_profile("ci", deadline=None, derandomize=True, max_examples=200)
settings.register_profile("dev", deadline=None, max_examples=50)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

BACKENDS = ("numpy", "torch", "tensorflow", "mindspore")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--backend",
        choices=BACKENDS,
        default="numpy",
        help="framework that tests/backends runs in; one per process",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Keep what probes find out of the user's own cache; processes that tests start inherit it."""
    folder = tempfile.TemporaryDirectory(prefix="mpcore-cache-")
    os.environ["MPCORE_CACHE"] = folder.name
    config.add_cleanup(folder.cleanup)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out, not skip, the tests of the other frameworks: their process runs them."""
    chosen = config.getoption("--backend")
    kept, dropped = [], []
    for item in items:
        marker = item.get_closest_marker("backend")
        (kept if marker is None or marker.args[0] == chosen else dropped).append(item)
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = kept

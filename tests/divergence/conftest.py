"""The zoo and the planted faults, in one framework a process."""

from __future__ import annotations

from pathlib import Path

import pytest

_FRAMEWORKS = ("torch", "tensorflow", "mindspore")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Ignore ``test_<framework>.py`` unless --backend names that framework."""
    name = collection_path.stem.removeprefix("test_").split("_")[0]
    return True if name in _FRAMEWORKS and name != config.getoption("--backend") else None

"""Leave the faces of other frameworks unread: importing one would import its framework."""

from __future__ import annotations

from pathlib import Path

import pytest

_FRAMEWORK = {"torch": "torch", "apex": "torch", "keras": "tensorflow", "mindspore": "mindspore"}


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Ignore ``test_<face>.py`` unless --backend names its framework."""
    face = collection_path.stem.removeprefix("test_").split("_")[0]
    framework = _FRAMEWORK.get(face)
    return True if framework and framework != config.getoption("--backend") else None

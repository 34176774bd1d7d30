"""What one test leaves switched on is switched off in front of the next."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _unrecorded() -> Iterator[None]:
    """Stop what ``port.record()`` of a port has started."""
    yield
    recorded = sys.modules.get("mpcore_port_runtime.recorded")
    if recorded is not None:
        recorded.stop()

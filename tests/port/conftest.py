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


@pytest.fixture(autouse=True)
def _ungrouped() -> Iterator[None]:
    """Leave the group of processes that a script has joined, and that of its port."""
    yield
    device = sys.modules.get("mpcore_port_runtime.device")
    if device is not None:
        device.destroy_process_group()
    dist = sys.modules.get("torch.distributed")
    if dist is not None and dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()

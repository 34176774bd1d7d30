"""Streams of torch.cuda where all runs in the order of the program.

Source: torch/cuda/streams.py and torch/cuda/__init__.py, torch 2.13.0.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from mpcore_port_runtime.device import Event, synchronize

__all__ = ["Stream", "in_stream"]


class Stream:
    """torch.cuda.Stream: the one order there is, so that waiting for another is nothing."""

    def __init__(self, device: Any = None, priority: int = 0) -> None:
        self.device = device
        self.priority = priority

    def wait_stream(self, stream: Any) -> None:
        """Do nothing: what was asked for before runs before."""

    def wait_event(self, event: Any) -> None:
        """Do nothing: what was asked for before runs before."""

    def record_event(self, event: Event | None = None) -> Event:
        """Return an event that has been recorded."""
        found = Event() if event is None else event
        found.record()
        return found

    def query(self) -> bool:
        """Return whether all has happened: always, once the device was waited for."""
        synchronize()
        return True

    def synchronize(self) -> None:
        """Wait for the device."""
        synchronize()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        return None


def in_stream(stream: Any) -> AbstractContextManager[Any]:
    """Return torch.cuda.stream(stream): a context in which nothing is other than outside."""
    return nullcontext(stream)

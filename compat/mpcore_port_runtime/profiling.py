"""torch's profilers by their interface: nothing is recorded, and a warning says so."""

from __future__ import annotations

import warnings
from contextlib import ContextDecorator
from typing import Any

from mpcore_port_runtime.refusal import PortWarning

__all__ = ["cudart", "profile", "record_function"]


class record_function(ContextDecorator):  # noqa: N801  # torch's name
    """A part of a program by its name; the name goes nowhere.

    Source: torch/autograd/profiler.py, torch 2.13.0.
    """

    def __init__(self, name: str, args: str | None = None) -> None:
        self.name, self.args = name, args

    def __enter__(self) -> record_function:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing."""


class _Events(list[Any]):
    """No events."""

    def table(self, *_: Any, **__: Any) -> str:
        """Return an empty text."""
        return ""

    def total_average(self) -> _Events:
        """Return itself."""
        return self

    def export_chrome_trace(self, path: str) -> None:
        """Write nothing."""


class profile:  # noqa: N801  # torch's name
    """torch.profiler.profile and torch.autograd.profiler.profile, without a profile.

    Source: torch/profiler/profiler.py, torch/autograd/profiler.py, torch 2.13.0.
    """

    def __init__(self, enabled: bool = True) -> None:
        self.enabled = bool(enabled)
        if self.enabled:
            text = "torch's profiler is not there, nothing is recorded: use mindspore.Profiler"
            warnings.warn(text, PortWarning, stacklevel=2)

    def __enter__(self) -> profile | None:
        """Return itself; None where it is switched off."""
        return self if self.enabled else None

    def __exit__(self, *_: object) -> None:
        """Do nothing."""

    def start(self) -> None:
        """Do nothing."""

    def stop(self) -> None:
        """Do nothing."""

    def step(self) -> None:
        """Do nothing."""

    def key_averages(self, *_: Any, **__: Any) -> _Events:
        """Return no events."""
        return _Events()

    events = key_averages

    def total_average(self) -> _Events:
        """Return no events."""
        return _Events()

    def table(self, *_: Any, **__: Any) -> str:
        """Return an empty text."""
        return ""

    def export_chrome_trace(self, path: str) -> None:
        """Write nothing."""

    def export_stacks(self, path: str, metric: str = "") -> None:
        """Write nothing."""


class _Library:
    """CUDA's library, of which scripts ask to start and stop NVIDIA's profiler."""

    def cudaProfilerStart(self) -> int:  # noqa: N802  # CUDA's name
        """Start nothing; 0 says that all went well."""
        return 0

    def cudaProfilerStop(self) -> int:  # noqa: N802
        """Stop nothing; 0 says that all went well."""
        return 0

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        msg = f"`{name}` of CUDA's library has no equal in MindSpore"
        raise NotImplementedError(msg)


def cudart() -> _Library:
    """Return what stands for torch.cuda.cudart()."""
    return _Library()

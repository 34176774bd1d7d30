"""The optional parts of a backend, and the one way to get at them.

A backend has a part if its class has the method of that name; the method returns the part, which
may be an object or a module, and imports what only this part needs. To add a part: declare its
Protocol in a file of this package, add a row here, and write the method in the backends; where the
part is a module, ``InModule`` is the method.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from mpcore.backend.backend import load_backend
from mpcore.errors import BackendError

if TYPE_CHECKING:
    from mpcore.backend.backend import Backend
    from mpcore.backend.callback import MakeCallback
    from mpcore.backend.calls import CallsOf
    from mpcore.backend.differences import Differences
    from mpcore.backend.driver import Driver
    from mpcore.backend.exact import Exact
    from mpcore.backend.foreteller import Foreteller
    from mpcore.backend.modes import Modes
    from mpcore.backend.moves import Moves
    from mpcore.backend.probe import Probe
    from mpcore.backend.profiler import Profiler

__all__ = [
    "CALLBACK",
    "CALLS",
    "DIFFERENCES",
    "DRIVER",
    "EXACT",
    "FORETELLER",
    "MODES",
    "MOVES",
    "PROBE",
    "PROFILER",
    "InModule",
    "Part",
    "PartMissingError",
]

PartT = TypeVar("PartT")


class PartMissingError(BackendError):
    """A backend does not have a part; nothing is wrong with it."""


@dataclass(frozen=True)
class InModule(Generic[PartT]):
    """What stands in a backend's class for the method of a part that is a module.

    Attributes:
        module: its name; it is imported when it is asked for.
    """

    module: str

    def __call__(self) -> PartT:
        """Return the module; ``tests/types`` says to a type checker that it is such a part."""
        return cast("PartT", import_module(self.module))


@dataclass(frozen=True)
class Part(Generic[PartT]):
    """An optional part of a backend.

    Attributes:
        method: name of the method of the backend's class that returns it.
        without: what cannot be done with a backend that lacks it, after "the torch backend".
        advice: what to do instead; ``""`` for nothing.
    """

    method: str
    without: str
    advice: str = ""

    def find(self, backend: str | Backend) -> PartT | None:
        """Return the part of a backend, or of the one with that name; None if it has none."""
        found = load_backend(backend) if isinstance(backend, str) else backend
        get = getattr(found, self.method, None)
        part: PartT | None = None if get is None else get()
        return part

    def of(self, backend: str | Backend) -> PartT:
        """Return the part of a backend, or of the one with that name.

        Raises:
            PartMissingError: it has none.
            BackendError: there is no such backend.
            BackendMissingError: its framework is not installed.
        """
        part = self.find(backend)
        if part is None:
            name = backend if isinstance(backend, str) else backend.name
            advice = f"; {self.advice}" if self.advice else ""
            msg = f"the {name} backend {self.without}: it has no {self.method}(){advice}"
            raise PartMissingError(msg)
        return part


DRIVER: Part[Driver[Any]] = Part(
    "driver",
    "cannot run an experiment, nor read and write weights in the neutral form",
    "choose from torch, tensorflow, mindspore",
)
"""Experiments and weights: ``mpcore compare`` and most other commands, ``amp.save``."""

CALLBACK: Part[MakeCallback[Any]] = Part(
    "callback", "has no training loop of its own to follow", "`amp.step` is followed without"
)
"""A training loop of the framework: ``Monitor.callback``."""

CALLS: Part[CallsOf] = Part("calls", "cannot run the calls of a step alone")
"""How long a step takes under any policy, foretold: ``mpcore tune``."""

DIFFERENCES: Part[Differences] = Part("differences", "is not known to differ from others")
"""Where the framework is known to differ, each with a proof that runs."""

FORETELLER: Part[Foreteller] = Part(
    "foreteller",
    "cannot tell which multiply-adds of an example will be in 16 bits",
    "leave out `example`; mpcore.observe tells it of what was prepared",
)
MODES: Part[Modes[Any]] = Part("modes", "has no modes or devices to choose")
"""Eager or compiled, and on which device."""

MOVES: Part[Moves] = Part("moves", "has nothing to change about its steps")
"""Layouts, threads and compilers: what ``mpcore tune`` tries on top of its answer."""

EXACT: Part[Exact] = Part("exact", "cannot run in float64")
"""The same step in float64, to tell which of two configurations is wrong."""

PROFILER: Part[Profiler] = Part(
    "profiler", "cannot be profiled", "profile torch, tensorflow or mindspore"
)
"""Where the time of a step goes: ``mpcore profile``."""

PROBE: Part[Probe] = Part("probe", "offers nothing to examine")
"""What runs natively, and how fast: ``mpcore doctor``."""

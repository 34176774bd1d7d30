"""A configuration: a backend, and how, where and by which interpreter it runs."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from mpcore.backend.backend import backend_names
from mpcore.errors import BackendMissingError, ExperimentError, check_choice
from mpcore.tools.experiment.names import backend_of

__all__ = ["MODES", "Configuration", "check_installed", "read_configurations"]

MODES = ("eager", "compiled")


@dataclass(frozen=True)
class Configuration:
    """What runs an experiment.

    Attributes:
        backend: name of the backend.
        mode: ``"eager"``, ``"compiled"``, or ``""`` for the way that ``amp.step`` has by itself.
        device: in the framework's words, such as ``"cuda:1"``; ``""`` for its default.
        python: path of another interpreter, with mpcore and a framework of its own; ``""`` for
            the one that runs this.
        variant: which of several models of the backend: ``"a"`` of ``torch_a``; ``""`` for the
            only one.

    Examples:
        >>> Configuration.parse("torch:compiled+cuda:1").device
        'cuda:1'
        >>> str(Configuration("mindspore", "compiled", python="/opt/new/bin/python"))
        'mindspore:compiled@/opt/new/bin/python'
    """

    backend: str
    mode: str = ""
    device: str = ""
    python: str = ""
    variant: str = ""

    @classmethod
    def parse(cls, text: str) -> Configuration:
        """Return the configuration that ``NAME[:OPTION[+OPTION]][@PYTHON]`` names.

        A name is a backend, or that with the word of a builder: ``torch_a``. An option is
        ``eager``, ``compiled``, or else a device.

        Raises:
            ExperimentError: no such backend, two modes, two devices, or no interpreter there.
        """
        start, _, python = text.partition("@")
        name, _, options = start.partition(":")
        backend = backend_of(name)
        check_choice("backend", backend or name, backend_names(), ExperimentError)
        found: dict[str, str] = {}
        for option in filter(None, options.split("+")):
            field = "mode" if option in MODES else "device"
            if field in found:
                msg = f"`backend` must name one {field}, got two in {text!r}"
                raise ExperimentError(msg)
            found[field] = option
        if python:
            path = Path(python).expanduser().absolute()  # not resolved: a link decides the packages
            if not path.is_file():
                msg = f"`backend` must name a Python interpreter after '@', got {python!r}"
                raise ExperimentError(msg)
            python = str(path)
        return cls(backend, **found, python=python, variant=name[len(backend) + 1 :])

    def __str__(self) -> str:
        """Return the text that ``parse`` reads."""
        options = "+".join(filter(None, (self.mode, self.device)))
        start = f"{self.name}:{options}" if options else self.name
        return f"{start}@{self.python}" if self.python else start

    @property
    def name(self) -> str:
        """Name of the builder: the backend's, or ``torch_a``."""
        return f"{self.backend}_{self.variant}" if self.variant else self.backend

    @property
    def interpreter(self) -> str:
        """Path of the interpreter that runs it."""
        return self.python or sys.executable

    def to_dict(self) -> dict[str, str]:
        """Return plain data, ready for JSON."""
        return dict(vars(self))


def read_configurations(texts: list[str]) -> list[Configuration]:
    """Return the configurations that ``texts`` name.

    Raises:
        ExperimentError: a text is wrong, or two name one configuration.
    """
    found = [Configuration.parse(text) for text in texts]
    for one in found:
        if found.count(one) > 1:
            msg = f"`backend` must name each one once, got {str(one)!r} {found.count(one)} times"
            raise ExperimentError(msg)
    return found


def check_installed(configurations: list[Configuration]) -> None:
    """Refuse configurations whose framework is not installed here; imports none of them.

    Raises:
        BackendMissingError: a framework is missing; names the command that installs it.
    """
    roots = {
        point.value.partition(":")[0]: point.name
        for point in metadata.entry_points(group="mpcore.models")
    }
    packages = {
        point.name: roots.get(point.value.partition(":")[0], "")
        for point in metadata.entry_points(group="mpcore.backends")
    }
    for one in configurations:
        needed = packages[one.backend]
        if needed and not one.python and find_spec(needed) is None:
            msg = f'the {one.backend} backend needs {needed}; pip install "mpcore[{one.backend}]"'
            raise BackendMissingError(msg)

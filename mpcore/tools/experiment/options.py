"""The options that commands share, and how what was asked is read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mpcore.backend.backend import backend_names
from mpcore.errors import ExperimentError, check_choice
from mpcore.policy.policy import Policy
from mpcore.tools.experiment.configuration import check_installed, read_configurations
from mpcore.tools.experiment.experiment import load_experiment
from mpcore.tools.experiment.names import backend_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mpcore.tools.experiment.experiment import Experiment

__all__ = [
    "FIRST_BUILT",
    "Batch",
    "ExperimentFile",
    "Format",
    "OutputFile",
    "Texts",
    "Threads",
    "TimeLimit",
    "backend_option",
    "check_seconds",
    "load",
    "parts",
    "policy_option",
    "policy_parts",
    "read_backends",
    "read_devices",
    "read_policies",
]

# --- options --------------------------------------------------------------------------------

Texts = list[str] | None
"""What an option holds that may be given several times."""

ExperimentFile = Annotated[
    Path,
    typer.Argument(
        metavar="EXPERIMENT.py",
        help="Python file with data(), build_<backend>() and, if wanted, "
        "loss, optimizer, steps, batch. It is run: trust it first.",
        show_default=False,
    ),
]


def backend_option(default: str, *, more: str = "") -> Any:
    """Return ``--backend`` of a command; ``default``, in words, and what ``more`` it may say."""
    return typer.Option(
        "--backend",
        metavar="NAME",
        help="Framework: torch, tensorflow, mindspore or numpy. Several by comma, or the option "
        f"several times. {more}Default: {default}.",
        show_default=False,
    )


def policy_option(default: str) -> Any:
    """Return ``--policy`` of a command; ``default``, in words."""
    return typer.Option(
        "--policy",
        metavar="POLICY",
        help="Policy: a name, or fields and rules such as 'mixed_float16; full *.head'. Several "
        f"by comma, or the option several times. Default: {default}.",
        show_default=False,
    )


FIRST_BUILT = "the first that the file builds a model for"
"""Which backend a command takes that was told none."""

Batch = Annotated[
    int | None,
    typer.Option(min=1, help="Examples a step. Default: the file's.", show_default=False),
]
Threads = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Threads inside an operation. Default: the framework's choice.",
        show_default=False,
    ),
]
TimeLimit = Annotated[float, typer.Option(min=1, max=1e6, help="Seconds that one run may take.")]
Format = Annotated[
    str,
    typer.Option(
        "--format",
        metavar="text|json",
        help="What standard output gets: text for people, or JSON alone (the rest goes to "
        "standard error).",
    ),
]
OutputFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE.json",
        help="File to write the JSON to as well: a new one, or an earlier answer.",
        show_default=False,
    ),
]

# --- how they are read ----------------------------------------------------------------------

_ORDER = ["torch", "tensorflow", "mindspore"]


def load(path: Path, names: list[str], *, every: bool = False) -> tuple[Experiment, list[str]]:
    """Return the experiment, and the configurations to run it in: built for, and installed.

    Args:
        path: the experiment file; it is run.
        names: texts of configurations; none for the file's own backends.
        every: whether the file's own are all of them, or the first.
    """
    check_installed(read_configurations(names))
    loaded = load_experiment(path)
    names = names or _built_for(loaded)[: None if every else 1]
    for one in read_configurations(names):
        loaded.builder(one.name)
    check_installed(read_configurations(names))
    return loaded, [str(one) for one in read_configurations(names)]


def _built_for(loaded: Experiment) -> list[str]:
    """Return the backends that the file builds for; a helper called build_block is none."""
    known = [name for name in loaded.builders if backend_of(name)]
    if not known:
        for name in loaded.builders:
            check_choice("backend", name, backend_names(), ExperimentError)
    return sorted(known, key=lambda name: (*(backend_of(name) != o for o in _ORDER), name))


def read_backends(asked: Texts) -> list[str]:
    """Return the names of backends, each known and named once; none for None.

    Raises:
        ExperimentError: a name is wrong, or there twice.
    """
    names = parts(asked)
    for name in names:
        check_choice("backend", backend_of(name) or name, backend_names(), ExperimentError)
    return _once("backend", names)


def read_devices(asked: Texts) -> list[str]:
    """Return the names of backends, with devices where they were named; none for None.

    Raises:
        ExperimentError: a name is wrong, or there twice, or says more than a device.
    """
    found = read_configurations(parts(asked))
    for one in found:
        if one.mode or one.python:
            msg = f"`backend` must be a name here, or NAME:DEVICE, got {str(one)!r}"
            raise ExperimentError(msg)
    return [str(one) for one in found]


def read_policies(asked: Iterable[str]) -> list[str]:
    """Return the policies in the form that ``str`` gives them.

    Raises:
        PolicyError: a text is wrong.
        ExperimentError: two texts are one policy, or there is none.
    """
    texts = policy_parts(asked)
    return _once("policy", [str(Policy.parse(text)) for text in texts])


def parts(texts: Iterable[str] | None) -> list[str]:
    """Return what stands between the commas of every text."""
    pieces = [piece.strip() for text in texts or () for piece in text.split(",")]
    return [piece for piece in pieces if piece]


def policy_parts(texts: Iterable[str]) -> list[str]:
    """Return the policies of every text, as they were written.

    Raises:
        ExperimentError: there is none.
    """
    found = [part for text in texts for part in _split_policies(text)]
    if not found:
        msg = "`policy` must name at least one policy, got nothing"
        raise ExperimentError(msg)
    return found


def _split_policies(text: str) -> list[str]:
    """Split at commas, except inside brackets, before ``field=`` and inside a policy with rules."""
    found: list[str] = []
    for piece in parts([text]):
        continues = "=" in piece.split("(")[0] and ";" not in piece.split("=")[0]
        if found and (continues or found[-1].count("(") > found[-1].count(")")):
            found[-1] += f", {piece}"
        else:
            found.append(piece)
    return found


def _once(option: str, texts: list[str]) -> list[str]:
    for text in texts:
        if texts.count(text) > 1:
            msg = f"`{option}` must name each one once, got {text!r} {texts.count(text)} times"
            raise ExperimentError(msg)
    return texts


def check_seconds(seconds: float) -> None:
    """Refuse nan, which passes for a number in range with older typer."""
    if not seconds <= 1e6:
        msg = f"`--time-limit` must be a number of seconds, got {seconds}"
        raise ExperimentError(msg)

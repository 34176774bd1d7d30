"""What the commands over an experiment share: its options, and how they are read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mpcore.backend.backend import backend_names
from mpcore.errors import ExperimentError, check_choice
from mpcore.policy.policy import Policy
from mpcore.tools.experiment.configuration import check_sides, read_sides
from mpcore.tools.experiment.experiment import load_experiment

if TYPE_CHECKING:
    from mpcore.tools.experiment.experiment import Experiment

__all__ = ["ExperimentFile", "load", "read_policies", "split", "split_policies"]

ExperimentFile = Annotated[
    Path,
    typer.Argument(
        metavar="EXPERIMENT.py",
        help="Python file with data(), build_<backend>() and, if wanted, "
        "loss, optimizer, steps, batch. It is run: trust it first.",
        show_default=False,
    ),
]

_ORDER = ["torch", "tensorflow", "mindspore"]


def load(path: Path, asked: list[str], at_most: int | None = None) -> tuple[Experiment, list[str]]:
    """Return the experiment, and ``asked`` or its own sides: built for, and installed."""
    check_sides(read_sides(asked))
    loaded = load_experiment(path)
    names = (asked or _default_backends(loaded))[:at_most]
    for side in read_sides(names):
        loaded.builder(side.backend)
    check_sides(read_sides(names))
    return loaded, [str(side) for side in read_sides(names)]


def _default_backends(loaded: Experiment) -> list[str]:
    """Return the backends that the file builds for; a helper called build_block is none."""
    known = [name for name in loaded.builders if name in backend_names()]
    if not known:
        for name in loaded.builders:
            check_choice("backends", name, backend_names(), ExperimentError)
    return sorted(known, key=lambda name: (*(name != first for first in _ORDER), name))


def read_policies(texts: list[str]) -> list[str]:
    """Return the policies in the form that ``str`` gives them.

    Raises:
        PolicyError: a text is wrong.
        ExperimentError: two texts are one policy.
    """
    policies = [str(Policy.parse(text)) for text in texts]
    for policy in policies:
        if policies.count(policy) > 1:
            times = policies.count(policy)
            msg = f"`policies` must name each one once, got {policy!r} {times} times"
            raise ExperimentError(msg)
    return policies


def split(text: str) -> list[str]:
    """Return the parts of a list by commas."""
    return [part.strip() for part in text.split(",") if part.strip()]


def split_policies(texts: list[str]) -> list[str]:
    """Return the policies of every ``--policies``: each is split on its own."""
    parts = [part for text in texts for part in _split_policy_list(text)]
    if not parts:
        msg = "`policies` must name at least one policy, got nothing"
        raise ExperimentError(msg)
    return parts


def _split_policy_list(text: str) -> list[str]:
    """Split at commas, except inside brackets, before ``field=`` and inside a policy with rules."""
    parts: list[str] = []
    for piece in split(text):
        continues = "=" in piece.split("(")[0] and ";" not in piece.split("=")[0]
        if parts and (continues or parts[-1].count("(") > parts[-1].count(")")):
            parts[-1] += f", {piece}"
        else:
            parts.append(piece)
    return parts

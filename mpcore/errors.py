"""Errors and warnings; every message names the argument, the rule, the value and the way out."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "BackendError",
    "BackendMissingError",
    "CheckpointError",
    "ExperimentError",
    "GraphError",
    "GuardError",
    "LossScaleError",
    "MpcoreError",
    "MpcoreWarning",
    "OptimizerError",
    "PolicyError",
    "check_choice",
    "check_count",
]


class MpcoreError(Exception):
    """Base of every error that mpcore raises on purpose."""


class PolicyError(MpcoreError, ValueError):
    """A policy, rule or loss scale that contradicts itself or names something unknown."""


class BackendError(MpcoreError, RuntimeError):
    """A backend cannot honour what was asked; the message gives the reason and the alternative."""


class GuardError(BackendError):
    """A prepared model would be moved or changed past its steps; nothing has moved."""


class BackendMissingError(MpcoreError, ImportError):
    """A framework is not installed; the message gives the command that installs it."""


class LossScaleError(MpcoreError, RuntimeError):
    """The rule of the loss scale ends the run; the message says where and why."""


class CheckpointError(MpcoreError, ValueError):
    """A saved state that is damaged, of another kind, or of another policy; nothing was changed."""


class GraphError(MpcoreError, ValueError):
    """A network cannot be lifted, changed or written as asked; the original is as it was.

    Attributes:
        why: what is wrong, without the way out of it.
    """

    def __init__(self, why: str, way_out: str = "") -> None:
        """Say what is wrong, and what to do instead where the caller has nothing better to say."""
        super().__init__(f"{why}; {way_out}" if way_out else why)
        self.why = why


class OptimizerError(MpcoreError, ValueError):
    """A model and an optimizer that do not belong together."""


class ExperimentError(MpcoreError, ValueError):
    """An experiment file, its data or its models cannot be compared."""


class MpcoreWarning(UserWarning):
    """Something the user asked for was changed or had no effect."""


def check_choice(
    argument: str,
    value: object,
    choices: Iterable[str],
    error: type[MpcoreError] = PolicyError,
) -> str:
    """Return ``value`` if it is one of ``choices``, else raise ``error`` with the nearest one.

    Examples:
        >>> check_choice("by", "layers", ("op", "layer", "model"))
        Traceback (most recent call last):
        ...
        mpcore.errors.PolicyError: `by` must be one of 'op', 'layer', 'model', got 'layers'; \
did you mean 'layer'?
    """
    known = tuple(choices)
    if isinstance(value, str) and value in known:
        return value
    listed = ", ".join(repr(choice) for choice in known)
    near = difflib.get_close_matches(str(value), known, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    msg = f"`{argument}` must be one of {listed}, got {value!r}{hint}"
    raise error(msg)


def check_count(argument: str, value: object, error: type[MpcoreError]) -> None:
    """Raise ``error`` unless ``value`` is a whole number >= 1.

    Examples:
        >>> check_count("every", 0, BackendError)
        Traceback (most recent call last):
        ...
        mpcore.errors.BackendError: `every` must be a whole number >= 1, got 0
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        msg = f"`{argument}` must be a whole number >= 1, got {value!r}"
        raise error(msg)

"""Whose line called: warnings are shown at the user's own."""

from __future__ import annotations

import sys
import warnings
from typing import TYPE_CHECKING

from mpcore.errors import MpcoreWarning

if TYPE_CHECKING:
    from types import FrameType

__all__ = ["warn_user"]


def warn_user(msg: str, *through: str) -> None:
    """Warn at the line that called mpcore, however many of its functions lie between.

    Args:
        msg: what is told.
        through: top-level packages that called in the user's name: the framework whose layer
            calls a forward that is ours, a host.
    """
    frame, depth = sys._getframe(1), 2
    while frame.f_back is not None and (_is_bootstrap(frame) or _is_between(frame, through)):
        # the bootstrap of an import is not counted by `warnings` either
        frame, depth = frame.f_back, depth + (not _is_bootstrap(frame))
    warnings.warn(msg, MpcoreWarning, stacklevel=depth)


def _is_bootstrap(frame: FrameType) -> bool:
    name = frame.f_code.co_filename
    return "importlib" in name and "_bootstrap" in name


def _is_between(frame: FrameType, through: tuple[str, ...]) -> bool:
    root = str(frame.f_globals.get("__name__")).partition(".")[0]
    return root in through or root.partition("_")[0] == "mpcore"

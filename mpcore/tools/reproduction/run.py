"""Running a script that was just written, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

from mpcore.errors import ExperimentError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["printed"]

_SECONDS = 300.0


def printed(script: Path) -> str:
    """Return what a script printed.

    Raises:
        ExperimentError: it ran too long or ended with an error; what happened, after "it".
    """
    try:
        done = subprocess.run(
            [sys.executable, str(script)],
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            env=os.environ | {"PYTHONWARNINGS": "ignore"},
            check=False,
        )
    except subprocess.TimeoutExpired:
        msg = f"ran longer than {_SECONDS:.0f} s and was ended"
        raise ExperimentError(msg) from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        msg = f"ended with exit code {done.returncode}: {last}"
        raise ExperimentError(msg)
    return done.stdout

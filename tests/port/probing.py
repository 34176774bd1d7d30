"""Search for the inputs of a step, in the process in which verification does it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

from mpcore_port.verify.run import STUBS

if TYPE_CHECKING:
    from pathlib import Path

    from mpcore_port.verify.extract import Step

__all__ = ["job_of", "probed"]


def job_of(step: Step, folder: Path, time_limit: float) -> dict[str, object]:
    """Return a job of the probe for a step, whose template is written into ``folder``."""
    (folder / "template.py").write_text(step.script(folder, "{INPUTS}", ()), "utf-8")
    layout = step.layout
    return {
        "script": str(folder / "template.py"),
        "args": list(step.args),
        "folder": str(folder),
        "target": layout.target if layout is not None else None,
        "count": len(layout.names) if layout is not None else 0,
        "names": list(layout.names) if layout is not None else [],
        "layouts": step.codes,
        "time_limit": time_limit,
    }


def probed(step: Step, folder: Path, time_limit: float) -> dict[str, object]:
    """Return what trying inputs for a step has found, in so many processor seconds."""
    job = job_of(step, folder, time_limit)
    path = os.pathsep.join(filter(None, [str(STUBS), os.environ.get("PYTHONPATH", "")]))
    subprocess.run(
        [sys.executable, "-m", "mpcore_port.verify.probe", json.dumps(job)],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        check=True,
        capture_output=True,
        timeout=500,
    )
    found: dict[str, object] = json.loads((folder / "answer.json").read_text("utf-8"))
    return found

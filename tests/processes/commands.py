"""``mpcore`` as it is typed, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def mpcore(
    folder: Path, *arguments: object, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run the command in ``folder``; the fixture warm_workers chooses the interpreter."""
    return subprocess.run(
        [sys.executable, "-P", "-c", "from mpcore.cli import main; main()", *map(str, arguments)],
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=500,
        check=False,
    )


def assert_refused(done: subprocess.CompletedProcess[str], message: str) -> None:
    """The input was wrong: exit code 2 and one line on standard error, which holds ``message``."""
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1

"""One comparison at a time for one report folder."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from mpcore.errors import ExperimentError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["locked"]


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other comparisons away from ``folder``; the system lets go when this process ends.

    The lock lies with the system's temporary files: a report folder holds nothing but reports.

    Raises:
        ExperimentError: another process writes a report there.
    """
    try:
        import fcntl
    except ImportError:  # Windows: two comparisons in one folder are then the user's to avoid
        yield
        return
    digest = hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:16]
    path = Path(tempfile.gettempdir()) / f"mpcore-report-{digest}.lock"
    with path.open("w") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            msg = (
                f"`--output` {str(folder)!r} is where another comparison writes its report now; "
                "choose another --output or wait"
            )
            raise ExperimentError(msg) from exc
        try:
            yield
        finally:
            path.unlink(missing_ok=True)

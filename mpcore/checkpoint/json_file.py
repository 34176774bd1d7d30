"""JSON files that are read strictly: whole, small, every key once."""

from __future__ import annotations

import contextlib
import json
import stat
from typing import TYPE_CHECKING, Any

from mpcore.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["named", "parse_json", "read_json"]

_LARGEST = 1_000_000  # bytes; a state is about two thousand


@contextlib.contextmanager
def named(path: Path) -> Iterator[None]:
    """Put the file's name before the message of what went wrong in it."""
    try:
        yield
    except CheckpointError as exc:
        msg = f"{path}: {exc}"
        raise CheckpointError(msg) from exc
    except OSError as exc:
        msg = f"{path}: {exc.strerror or exc}"
        raise CheckpointError(msg) from exc


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) != len(pairs):
        names = [key for key, _ in pairs]
        twice = next(key for key in names if names.count(key) > 1)
        msg = f"`{twice}` must stand there once, it stands there {names.count(twice)} times"
        raise CheckpointError(msg)
    return data


def read_json(path: Path) -> Any:
    """Return the JSON value in a file; keys are unique, NaN and Infinity are read as floats.

    Raises:
        CheckpointError: it is no regular file, too large for a state, or not JSON.
        OSError: it cannot be read.
    """
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        msg = f"`path` must be a regular file, got a {_kind(status.st_mode)}"
        raise CheckpointError(msg)
    if status.st_size > _LARGEST:
        msg = f"`path` must hold at most {_LARGEST} bytes, got {status.st_size}: it is no state"
        raise CheckpointError(msg)
    return parse_json(path.read_bytes())


def parse_json(content: bytes) -> Any:
    """Return the JSON value in a text; see ``read_json``."""
    try:
        return json.loads(content.decode("utf-8"), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as exc:
        msg = f"`path` must hold a JSON document; it is cut off, or of another kind ({exc})"
        raise CheckpointError(msg) from exc


def _kind(mode: int) -> str:
    return "folder" if stat.S_ISDIR(mode) else "device or pipe"

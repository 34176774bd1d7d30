"""Files that a step writes: a folder that is not there is made, in the folder of the run alone."""

from __future__ import annotations

import functools
import io
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpcore_port.verify.outside import is_outside

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["install", "place_of"]


def install() -> None:
    """Let checkpoints be saved where no folder is, in this process."""
    torch, mindspore = sys.modules.get("torch"), sys.modules.get("mindspore")
    runtime = sys.modules.get("mpcore_port_runtime")
    if runtime is not None:
        runtime.save = _saving(runtime.save, "f")  # type: ignore[attr-defined]
    if torch is not None and hasattr(torch, "save"):
        torch.save = _saving(torch.save, "f")  # type: ignore[attr-defined]  # this process alone
    if mindspore is not None and hasattr(mindspore, "save_checkpoint"):
        mindspore.save_checkpoint = _saving(  # type: ignore[attr-defined]
            mindspore.save_checkpoint, "ckpt_file_name"
        )


def place_of(file: Any) -> Any:
    """Return where a file is written: where it says, or nowhere if that is outside of the run.

    Args:
        file: what a step opens to write; what is no path is returned as it is.
    """
    if not isinstance(file, (str, os.PathLike)):
        return file
    if is_outside(file):
        return os.devnull
    folder = Path(os.fspath(file)).parent
    if folder.resolve().is_relative_to(Path.cwd()):
        folder.mkdir(parents=True, exist_ok=True)
    return file if folder.is_dir() else os.devnull


def _saving(save: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Return a function that saves as ``save`` does; its file is the second, or called ``name``."""

    @functools.wraps(save)
    def saved(*args: Any, **kwargs: Any) -> Any:
        given = args[1] if len(args) > 1 else kwargs.get(name)
        place = place_of(given)
        if place == os.devnull and given != os.devnull:
            if name != "f":  # MindSpore writes into files alone
                return None
            place = io.BytesIO()
        if len(args) > 1:
            return save(args[0], place, *args[2:], **kwargs)
        return save(*args, **(kwargs | {name: place} if name in kwargs else kwargs))

    return saved

"""MindSpore's checkpoint files: read as numpy, and written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mindspore as ms
import numpy as np

from mpcore.checkpoint.arrays import put_by_name, widened
from mpcore.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import numpy.typing as npt

__all__ = ["FORMS", "put_arrays", "read_file", "write_file"]

FORMS: tuple[str, ...] = (".ckpt", ".safetensors")
"""What ``write_file`` writes, by the end of the name."""


def read_file(path: Path, notes: list[str]) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of a .ckpt file, in its order.

    Raises:
        CheckpointError: it is cut off, or of another kind.
    """
    try:
        found = ms.load_checkpoint(str(path))
    except (ValueError, TypeError, RuntimeError, KeyError) as exc:
        msg = f"{path}: no checkpoint of MindSpore ({' '.join(str(exc).split())[-160:]})"
        raise CheckpointError(msg) from exc
    return {name: _array(param, name, notes) for name, param in found.items()}


def _array(param: Any, name: str, notes: list[str]) -> npt.NDArray[Any]:
    if param.dtype == ms.bfloat16:
        bits = param.astype(ms.float32).asnumpy().view(np.uint32) >> 16
        return widened(name, bits.astype(np.uint16), notes)
    return np.array(param.asnumpy())


def _parameters(model: Any) -> dict[str, Any]:
    """Return every parameter by the name that a checkpoint gives it.

    Raises:
        CheckpointError: two have the same name: MindSpore's files would hold one of them.
    """
    found: dict[str, Any] = {}
    for param in model.get_parameters():
        if found.setdefault(param.name, param) is not param:
            msg = (
                f"two parameters of the MindSpore model are named {param.name!r}, its checkpoint "
                "would hold one: build the layers inside Cells, or give them names"
            )
            raise CheckpointError(msg)
    return found


def put_arrays(model: Any, arrays: Mapping[str, npt.NDArray[Any]]) -> tuple[list[str], list[str]]:
    """Copy arrays into parameters; return the names that lack, and those that are not known.

    Raises:
        CheckpointError: a shape does not fit, or two parameters share a name.
    """
    return put_by_name(
        _parameters(model),
        arrays,
        lambda param, array: param.set_data(ms.Tensor(np.array(array)).astype(param.dtype)),
    )


def write_file(model: Any, path: Path) -> None:
    """Write the parameters: a .ckpt or a .safetensors file for ``mindspore.load_checkpoint``."""
    rows = [{"name": name, "data": param} for name, param in _parameters(model).items()]
    ms.save_checkpoint(rows, str(path), format=path.suffix.removeprefix("."))

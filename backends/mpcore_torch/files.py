"""Torch's checkpoint files: read as numpy, and written."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from mpcore.checkpoint.arrays import put_by_name, widened, write_safetensors
from mpcore.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import numpy.typing as npt
    from torch import nn

__all__ = ["FORMS", "put_arrays", "read_file", "write_content", "write_file"]

FORMS: tuple[str, ...] = (".pt", ".pth", ".bin", ".safetensors")
"""What ``write_file`` writes, by the end of the name."""


def read_file(path: Path, notes: list[str]) -> Any:
    """Return what a file holds, tensors as numpy arrays; nothing is run that it could hold.

    Raises:
        CheckpointError: it is cut off, of another kind, or holds more than data.
    """
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as exc:
        if path.read_bytes()[:2] not in (b"PK", b"\x80\x02"):
            msg = f"{path}: no checkpoint of torch"
            raise CheckpointError(msg) from exc
        msg = (
            f"{path}: holds more than weights, numbers and lists, and is not unpickled; save "
            "model.state_dict() alone with torch"
        )
        raise CheckpointError(msg) from exc
    except (RuntimeError, EOFError, ValueError, LookupError, AttributeError, TypeError) as exc:
        msg = f"{path}: no checkpoint of torch ({' '.join(str(exc).split())[:120]})"
        raise CheckpointError(msg) from exc
    return _as_numpy(content, "", notes)


def _as_numpy(value: Any, name: str, notes: list[str]) -> Any:
    if isinstance(value, torch.Tensor):
        return _array(value, name, notes)
    if isinstance(value, dict):
        return {k: _as_numpy(v, f"{name}.{k}".lstrip("."), notes) for k, v in value.items()}
    if isinstance(value, list | tuple):
        items = [_as_numpy(v, f"{name}.{n}", notes) for n, v in enumerate(value)]
        return items if isinstance(value, list) else tuple(items)
    return value


def _array(tensor: torch.Tensor, name: str, notes: list[str]) -> npt.NDArray[Any]:
    value = tensor.detach().resolve_conj().resolve_neg()
    if value.is_complex() or value.is_quantized:
        msg = f"{name}: a tensor of {value.dtype} is not converted"
        raise CheckpointError(msg)
    if value.dtype == torch.bfloat16:
        return widened(name, value.contiguous().view(torch.int16).numpy().view(np.uint16), notes)
    try:
        return np.ascontiguousarray(value.to_dense().numpy()).reshape(tuple(value.shape))
    except (TypeError, RuntimeError, NotImplementedError) as exc:
        msg = f"{name}: a tensor of {value.dtype} and {value.layout} has no array in numpy"
        raise CheckpointError(msg) from exc


def put_arrays(
    model: nn.Module, arrays: Mapping[str, npt.NDArray[Any]]
) -> tuple[list[str], list[str]]:
    """Copy arrays into the state dict; return the names it lacks, and those it does not know.

    Raises:
        CheckpointError: a shape does not fit.
    """
    with torch.no_grad():
        return put_by_name(
            model.state_dict(), arrays, lambda t, array: t.copy_(torch.from_numpy(np.array(array)))
        )


def write_file(model: nn.Module, path: Path) -> None:
    """Write the state dict: a safetensors file, or one for ``torch.load``."""
    state = {
        name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()
    }
    if path.suffix == ".safetensors":
        notes: list[str] = []
        arrays = {name: _array(tensor, name, notes) for name, tensor in state.items()}
        write_safetensors(path, arrays, {"format": "pt"})
    else:
        torch.save(state, path)


def write_content(content: Any, path: Path) -> None:
    """Write a tree of arrays for ``torch.load``, under its own names."""
    torch.save(_as_torch(content), path)


def _as_torch(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return torch.from_numpy(np.array(value))
    if isinstance(value, dict):
        return {key: _as_torch(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        items = [_as_torch(item) for item in value]
        return items if isinstance(value, list) else tuple(items)
    return value

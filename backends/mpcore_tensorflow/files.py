"""Keras' weight files: into a model, and written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from mpcore.checkpoint.arrays import put_by_name, write_safetensors
from mpcore.errors import CheckpointError
from mpcore_tensorflow.layers import variable_names

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import numpy.typing as npt

__all__ = ["FORMS", "open_model", "put_arrays", "write_file"]

FORMS: tuple[str, ...] = (".weights.h5", ".safetensors")
"""What ``write_file`` writes, by the end of the name."""


def open_model(path: Path, model: Any | None) -> Any:
    """Return a model with the weights of a file: ``model``, or that of a .keras file itself.

    Raises:
        CheckpointError: it is cut off, of another model, or holds layers that are not Keras' own
            and no ``model`` is given; nothing in it is run.
    """
    if model is None and path.suffix != ".keras":
        msg = f"{path}: a file of weights alone has no names: give --source-model or --experiment"
        raise CheckpointError(msg)
    try:
        if model is None:
            return keras.saving.load_model(path, compile=False, safe_mode=True)
        model.load_weights(path)
    except Exception as exc:  # whatever is in the file: Keras has no error of its own
        why = " ".join(str(exc).split())[:200]
        hint = "" if model is not None else "; layers of your own need --source-model"
        msg = f"{path}: Keras cannot read it{hint} ({type(exc).__name__}: {why})"
        raise CheckpointError(msg) from exc
    return model


def _variables(model: Any) -> dict[str, Any]:
    names = variable_names(model)
    return {names[id(v)]: v for v in model.weights if id(v) in names}


def put_arrays(model: Any, arrays: Mapping[str, npt.NDArray[Any]]) -> tuple[list[str], list[str]]:
    """Assign arrays by the paths of ``amp.weights``; return names that lack, and unknown ones.

    Raises:
        CheckpointError: a shape does not fit.
    """
    return put_by_name(_variables(model), arrays, lambda v, array: v.assign(array))


def _array(variable: Any) -> npt.NDArray[Any]:
    value: npt.NDArray[Any] = variable.numpy()
    return value.astype(np.float32) if variable.dtype == "bfloat16" else value


def write_file(model: Any, path: Path) -> None:
    """Write a .weights.h5 file, or variables by path into a safetensors file."""
    if path.suffix == ".safetensors":
        arrays = {name: _array(v) for name, v in _variables(model).items()}
        write_safetensors(path, arrays, {"format": "np"})
    else:
        model.save_weights(path)

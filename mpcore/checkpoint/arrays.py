"""Arrays in safetensors files, trees of them, and which of a tree are the weights."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from mpcore.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    import numpy.typing as npt

    Arrays = dict[str, npt.NDArray[Any]]

__all__ = [
    "TREE",
    "as_float32",
    "from_tree",
    "pick",
    "put_by_name",
    "read_safetensors",
    "to_tree",
    "widened",
    "write_safetensors",
]


class _Shaped(Protocol):
    @property
    def shape(self) -> Sequence[int]: ...


_T = TypeVar("_T", bound=_Shaped)

TREE = "mpcore"
"""Key in the metadata of a file whose arrays belong to a tree: JSON of what ``to_tree`` returns."""

_KEYS = ("model", "state_dict", "model_state_dict", "net", "module")
_DTYPES = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "BF16": "<u2",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "i1",
    "U64": "<u8",
    "U32": "<u4",
    "U16": "<u2",
    "U8": "u1",
    "BOOL": "?",
}


# --- into a model


def put_by_name(
    own: Mapping[str, _T],
    arrays: Mapping[str, npt.NDArray[Any]],
    put: Callable[[_T, npt.NDArray[Any]], object],
) -> tuple[list[str], list[str]]:
    """Put arrays into what a model has of their names; return the names it lacks, and the others.

    Raises:
        CheckpointError: a shape does not fit; nothing was put.
    """
    for name, array in arrays.items():
        if name in own and tuple(own[name].shape) != array.shape:
            msg = f"{name}: shape {array.shape} does not fit {tuple(own[name].shape)} of the model"
            raise CheckpointError(msg)
    for name in own.keys() & arrays.keys():
        put(own[name], arrays[name])
    return [name for name in own if name not in arrays], [n for n in arrays if n not in own]


# --- files


def read_safetensors(path: Path, notes: list[str]) -> tuple[Arrays, dict[str, str]]:
    """Return the arrays of a file, and its metadata; bfloat16 becomes float32, and is noted.

    Raises:
        CheckpointError: it is cut off, of another kind, or has a dtype that numpy lacks.
    """
    import safetensors

    try:
        content = path.read_bytes()
        found = safetensors.deserialize(content)  # type: ignore[no-untyped-call]
        size = int.from_bytes(content[:8], "little")
        metadata = json.loads(content[8 : 8 + size]).get("__metadata__") or {}
    except safetensors.SafetensorError as exc:
        msg = f"{path}: no safetensors file, or one that is cut off ({exc})"
        raise CheckpointError(msg) from exc
    return {name: _decoded(name, entry, notes) for name, entry in found}, metadata


def _decoded(name: str, entry: Mapping[str, Any], notes: list[str]) -> npt.NDArray[Any]:
    dtype = entry["dtype"]
    if dtype not in _DTYPES:
        msg = f"{name!r} must be of a dtype that numpy has, or bfloat16, got {dtype}"
        raise CheckpointError(msg)
    array = np.frombuffer(entry["data"], _DTYPES[dtype]).reshape(entry["shape"])
    return widened(name, array, notes) if dtype == "BF16" else array


def widened(name: str, bits: npt.NDArray[np.uint16], notes: list[str]) -> npt.NDArray[np.float32]:
    """Return the float32 array of bfloat16 bits, every one kept."""
    notes.append(f"{name}: bfloat16 is written as float32, which holds every value")
    return (bits.astype(np.uint32) << 16).view(np.float32).reshape(bits.shape)


def write_safetensors(path: Path, arrays: Mapping[str, Any], metadata: dict[str, str]) -> None:
    """Write the arrays, in the order of the file format."""
    from safetensors.numpy import save_file

    save_file({name: np.asarray(a, order="C") for name, a in arrays.items()}, path, metadata)


def as_float32(name: str, array: npt.NDArray[Any], notes: list[str]) -> npt.NDArray[np.float32]:
    """Return the array as float32; what that changes is noted. NaN and infinity stay."""
    if array.dtype == np.float64:
        with np.errstate(over="ignore"):
            narrow = array.astype(np.float32)
        if not np.array_equal(narrow.astype(np.float64), array, equal_nan=True):
            notes.append(f"{name}: float64 is rounded to float32")
        return narrow
    if array.dtype == np.float16:
        notes.append(f"{name}: float16 is written as float32, which holds every value")
    return np.ascontiguousarray(array, np.float32).reshape(array.shape)


# --- trees


def to_tree(value: Any, arrays: dict[str, Any], notes: list[str], name: str = "") -> Any:
    """Return JSON of dicts, lists and numbers; tensors go into ``arrays``, by a label."""
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        label = name if name and name not in arrays else f"{name}#{len(arrays)}"
        arrays[label] = value
        return {"tensor": label, "shape": list(np.shape(value))}
    if isinstance(value, dict):
        named = {key: f"{name}.{key}".lstrip(".") for key in value}
        return {"dict": [[k, to_tree(v, arrays, notes, named[k])] for k, v in value.items()]}
    if isinstance(value, list | tuple):
        items = [to_tree(v, arrays, notes, f"{name}.{n}") for n, v in enumerate(value)]
        return {"list" if isinstance(value, list) else "tuple": items}
    if value is None or isinstance(value, bool | int | float | str):
        return {"value": value}
    notes.append(f"left out: {name}, a {type(value).__name__}")
    return {"value": None}


def from_tree(tree: Any, arrays: Mapping[str, Any]) -> Any:
    """Return what ``to_tree`` was given.

    Raises:
        CheckpointError: the tree is no such JSON.
    """
    try:
        return _grown(tree, arrays)
    except (AttributeError, KeyError, TypeError, ValueError) as exc:
        msg = f"`metadata` must be that of a file that mpcore wrote ({exc!r})"
        raise CheckpointError(msg) from exc


def _grown(tree: Any, arrays: Mapping[str, Any]) -> Any:
    ((kind, value),) = ((k, v) for k, v in tree.items() if k != "shape")
    if kind == "tensor":
        return np.reshape(arrays[value], tree["shape"])
    if kind == "dict":
        return {key: _grown(item, arrays) for key, item in value}
    items = [_grown(item, arrays) for item in value] if kind in ("list", "tuple") else value
    return tuple(items) if kind == "tuple" else items


# --- the weights in a tree


def pick(content: Any, key: str, source: Path, notes: list[str]) -> Arrays:
    """Return the arrays by name, without what DataParallel puts in front.

    Args:
        content: dict of arrays, or a checkpoint that holds one.
        key: the entry that holds them; ``""`` finds it.
        source: the file, for messages.
        notes: takes what was changed.

    Raises:
        CheckpointError: there is no such entry, or no array in it.
    """
    arrays = {str(k): v for k, v in _entry(content, key, source).items() if _is_array(v)}
    if not arrays:
        msg = f"{source}: must hold tensors by name, got none"
        raise CheckpointError(msg)
    if all(name.startswith("module.") for name in arrays):
        notes.append("every name began with 'module.', which is left out")
        arrays = {name.removeprefix("module."): value for name, value in arrays.items()}
    return arrays


def _entry(content: Any, key: str, source: Path) -> dict[Any, Any]:
    held = content
    if key:
        if not isinstance(content, dict) or not isinstance(content.get(key), dict):
            msg = f"`--key` must name an entry of {source}, {key!r} is none"
            raise CheckpointError(msg)
        held = content[key]
    elif isinstance(content, dict) and not any(map(_is_array, content.values())):
        entry = next((k for k in _KEYS if isinstance(content.get(k), dict)), None)
        if entry is None:
            msg = f"{source}: say with --key which of {', '.join(map(str, content))} are weights"
            raise CheckpointError(msg)
        held = content[entry]
    if not isinstance(held, dict):
        msg = f"{source}: must hold tensors by name, got {type(held).__name__}"
        raise CheckpointError(msg)
    return held


def _is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray)

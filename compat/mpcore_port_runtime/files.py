"""Checkpoints: nested dicts and lists of tensors, numbers and words, without pickle."""

from __future__ import annotations

import enum
import json
import os
import sys
import tempfile
import warnings
from pathlib import Path
from typing import IO, Any

import numpy as np
from mindspore import Tensor, nn

from mpcore._lib.files import write_bytes
from mpcore.errors import CheckpointError
from mpcore_port_runtime.modules import load_state_dict, named_parameters, state_dict
from mpcore_port_runtime.refusal import PortWarning
from mpcore_port_runtime.saved_whole import Weights
from mpcore_port_runtime.standard import made_of, remade

__all__ = ["load", "load_file", "load_into", "load_scripted", "save", "save_file"]

_PLAIN = (bool, int, float, str, type(None))


def save(obj: Any, f: str | os.PathLike[str] | IO[bytes], **_: Any) -> None:
    """Write ``obj`` into a safetensors file, its structure as JSON in the header.

    Of a Cell the weights are written, with a warning: a class would have to be unpickled. They come
    back as ``Weights``, a dict that has what a network does with its weights alone. Objects
    of the script's own plain classes are written by their fields, such as a dataset's cached rows.
    At every moment the old or the new file is there, whole. ``f`` may be an open file. Words that
    say how torch pickles mean nothing.

    Raises:
        CheckpointError: something in ``obj`` is no tensor, array, number, word, list or dict.
    """
    from safetensors import numpy as safetensors

    arrays: dict[str, Any] = {}
    try:
        tree = _flatten(obj, arrays, "checkpoint")
    except RecursionError:
        msg = "the checkpoint holds what holds it again, or is nested too deeply"
        raise CheckpointError(msg) from None
    content = safetensors.save(arrays, {"mpcore": json.dumps(tree)})
    if not isinstance(f, str | os.PathLike):
        f.write(content)
        return
    write_bytes(Path(f), content)


def _flatten(obj: Any, arrays: dict[str, Any], where: str) -> Any:
    if isinstance(obj, nn.Cell):
        text = f"{where}: of {type(obj).__name__} the weights are saved, for load_state_dict"
        warnings.warn(text, PortWarning, stacklevel=4)
        names = [name for name, _ in named_parameters(obj)]
        return {"weights": _flatten(dict(state_dict(obj)), arrays, where), "parameters": names}
    if isinstance(obj, Weights):
        names = [name for name, _ in obj.named_parameters()]
        return {"weights": _flatten(dict(obj), arrays, where), "parameters": names}
    if isinstance(obj, enum.Enum) and _enum(type(obj).__module__, type(obj).__qualname__):
        named = [type(obj).__module__, type(obj).__qualname__]
        several = isinstance(obj, enum.Flag) and obj.name not in type(obj).__members__
        return {"member": [*named, int(obj.value) if several else obj.name]}
    if (standard := made_of(obj)) is not None:
        kind, part = standard
        return {"standard": kind, "of": _flatten(part, arrays, where)}
    if isinstance(obj, Tensor | np.ndarray | np.generic):
        key = str(len(arrays))
        numbers = obj.asnumpy() if isinstance(obj, Tensor) else obj
        arrays[key] = np.ascontiguousarray(numbers)
        kind = "tensor" if isinstance(obj, Tensor) else "array"
        return {kind: key, "shape": list(np.shape(numbers))}
    if isinstance(obj, dict):
        rows = [
            [_key(k, arrays, where), _flatten(v, arrays, f"{where}[{k!r}]")] for k, v in obj.items()
        ]
        return {"dict": rows} if type(obj) is dict else {"dict": rows, "of": type(obj).__name__}
    if isinstance(obj, list | tuple):
        rows = [_flatten(v, arrays, f"{where}[{n}]") for n, v in enumerate(obj)]
        return {"list" if isinstance(obj, list) else "tuple": rows}
    if isinstance(obj, _PLAIN):
        return {"value": obj}
    of = type(obj)
    if _found(of.__module__, of.__qualname__) is of:
        if any(isinstance(value, nn.Cell) for value in vars(obj).values()):
            msg = f"{where}: {of.__name__} holds a network, which cannot be saved with it"
            raise CheckpointError(msg)
        named = [of.__module__, of.__qualname__]
        return {"object": named, "fields": _flatten(vars(obj), arrays, f"{where}.__dict__")}
    msg = f"{where}: {type(obj).__name__} cannot be saved: tensors, numbers, words, lists, dicts"
    raise CheckpointError(msg)


def _found(module: str, name: str) -> type | None:
    """Return a class of the script's own whose objects are their fields and nothing else.

    A file says which: no class of a package, and none that acts when its objects go, is made.
    """
    found: Any = sys.modules.get(module)
    if "-packages" in (getattr(found, "__file__", None) or ""):
        return None
    for part in name.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, type) or module.partition(".")[0] in sys.stdlib_module_names:
        return None
    if not found.__dictoffset__ or found.__basicsize__ > _FIELDS.__basicsize__:
        return None
    told = ("__new__", "__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__del__")
    own = any(getattr(found, one, None) is not getattr(object, one, None) for one in told)
    return None if own else found


def _enum(module: str, name: str) -> Any:
    """Return an Enum by its names, None where there is none."""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, enum.EnumMeta) else None


class _FIELDS:
    """A class whose objects are their fields."""


def _key(key: Any, arrays: dict[str, Any], where: str) -> Any:
    return key if isinstance(key, str | int) else _flatten(key, arrays, f"{where}: its key")


def load(f: str | os.PathLike[str] | IO[bytes]) -> Any:
    """Return what ``save`` wrote; ``f`` may be an open file.

    Raises:
        CheckpointError: it is another kind of file.
    """
    if isinstance(f, str | os.PathLike):
        return _read(os.fspath(f))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "checkpoint"
        path.write_bytes(f.read())
        return _read(str(path))


def load_scripted(f: str | os.PathLike[str] | IO[bytes]) -> Weights:
    """Return the weights of a network that TorchScript holds, as ``save`` wrote its state.

    Raises:
        CheckpointError: it is another kind of file, or holds more than one state.
    """
    found = load(f)
    if isinstance(found, Weights):
        return found
    if not isinstance(found, dict) or not all(isinstance(one, Tensor) for one in found.values()):
        msg = "`f` must hold the state dict of the network that TorchScript holds"
        raise CheckpointError(msg)
    return Weights(found, [name for name, one in found.items() if one.is_floating_point()])


def load_file(filename: str | os.PathLike[str], device: Any = "cpu") -> dict[str, Any]:
    """Return the tensors of a safetensors file by their names; ``device`` means nothing."""
    from safetensors import numpy as safetensors

    del device
    return {name: Tensor(array) for name, array in safetensors.load_file(filename).items()}


def save_file(
    tensors: dict[str, Any],
    filename: str | os.PathLike[str],
    metadata: dict[str, str] | None = None,
) -> None:
    """Write tensors into a safetensors file, which torch reads, too."""
    from safetensors import numpy as safetensors

    arrays = {name: np.ascontiguousarray(tensor.asnumpy()) for name, tensor in tensors.items()}
    write_bytes(Path(filename), safetensors.save(arrays, metadata))


def load_into(network: Any, f: str | os.PathLike[str] | IO[bytes]) -> Any:
    """Return ``network`` with the weights that ``save`` wrote of one like it; its mode stays.

    Raises:
        CheckpointError: it is another kind of file.
        BackendError: a name or shape does not fit; what fits has been loaded, as in torch.
    """
    load_state_dict(network, load(f))
    return network


class Entries(dict):  # type: ignore[type-arg]  # of anything
    """A dictionary of a class of its own, as a file gives it back: its entries are attributes too.

    Settings of yacs and the like are such; the class itself would have to be unpickled.
    """

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            msg = f"the saved dictionary has no entry {name!r}"
            raise AttributeError(msg) from None


def _read(path: str) -> Any:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "numpy") as file:
            text = (file.metadata() or {}).get("mpcore")
            if text is None:
                msg = f"{path}: no checkpoint of a ported script; run mpcore convert-weights on it"
                raise CheckpointError(msg)
            return _unflatten(json.loads(text), file)
    except SafetensorError as exc:
        msg = f"{path}: no safetensors file ({exc}); run mpcore convert-weights on torch's"
        raise CheckpointError(msg) from exc


def _unflatten(tree: Any, file: Any) -> Any:
    ((kind, value), *_) = tree.items()
    if kind == "tensor":
        return Tensor(file.get_tensor(value).reshape(tree["shape"]))
    if kind == "weights":
        return Weights(_unflatten(value, file), tree["parameters"])
    if kind == "array":
        return file.get_tensor(value).reshape(tree["shape"])[()]  # of no axes numpy's number
    if kind == "standard":
        return remade(value, _unflatten(tree["of"], file))
    if kind == "dict":
        entries = {
            _unflatten(key, file) if isinstance(key, dict) else key: _unflatten(entry, file)
            for key, entry in value
        }
        return Entries(entries) if "of" in tree else entries
    if kind == "value":
        return value
    if kind == "member":
        members = _enum(*value[:2])
        if members is not None and isinstance(value[2], int):
            return members(value[2])  # several flags
        if members is None or value[2] not in members.__members__:
            msg = f"{value[1]}.{value[2]} of {value[0]} is saved here, and is not there"
            raise CheckpointError(msg)
        return members[value[2]]
    if kind == "object":
        found = _found(*value)
        if found is None:
            msg = f"{value[1]} of {value[0]} is saved here: import it before this file is loaded"
            raise CheckpointError(msg)
        made: Any = object.__new__(found)
        vars(made).update(_unflatten(tree["fields"], file))
        return made
    items = [_unflatten(entry, file) for entry in value]
    return items if kind == "list" else tuple(items)

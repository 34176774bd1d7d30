"""The command ``mpcore convert-weights``: torch's checkpoints for ported MindSpore scripts."""

from __future__ import annotations

import json
import os
import pickle
import runpy
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from mpcore.errors import BackendMissingError, CheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Converted", "convert", "convert_weights"]

_TORCH = (".pt", ".pth", ".bin", ".tar")
_KEYS = ("model", "state_dict", "model_state_dict", "net", "module")
_KEPT = "num_batches_tracked"


@dataclass
class Converted:
    """What was written, and what was not.

    Attributes:
        names: torch's name to the name in the new file.
        missing: names of the model that the file does not have.
        surplus: names of the file that the model does not have.
        notes: what else changed, a sentence each.
    """

    names: dict[str, str] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    surplus: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """Return the report."""
        lines = [f"{len(self.names)} tensors"]
        lines += [f"renamed: {old} -> {new}" for old, new in self.names.items() if old != new]
        lines += [f"missing: {name} is not in the file" for name in self.missing]
        lines += [f"surplus: {name} is not in the model" for name in self.surplus]
        return lines + self.notes


def convert_weights(
    source: Annotated[
        Path, typer.Argument(metavar="IN", help="torch's file, or a .safetensors file.")
    ],
    target: Annotated[
        Path, typer.Argument(metavar="OUT", help=".safetensors, or .ckpt with --model.")
    ],
    model: Annotated[
        str,
        typer.Option(
            help="FILE.py:NAME of the ported network, a class or function without arguments; "
            "this runs the file. Names become MindSpore's.",
            show_default=False,
        ),
    ] = "",
    key: Annotated[
        str, typer.Option(help="Entry that holds the weights. Default: found.", show_default=False)
    ] = "",
    force: Annotated[bool, typer.Option("--force", help="Write over OUT.")] = False,
) -> int:
    """Convert the weights of a torch checkpoint for a script that was ported to MindSpore.

    Without --model the file is one for port.load and port.load_state_dict, with all that the
    checkpoint held, under torch's names. With --model it is one for mindspore.load_checkpoint.
    Only weights are read: nothing is unpickled that could run code.

    Exit codes: 0 all names match, 1 some do not, 2 the input was wrong (nothing was written).

    Example: mpcore convert-weights last.pth last.safetensors

    Example: mpcore convert-weights last.pth net.ckpt --model net.py:Net
    """
    found = convert(source, target, model=model, key=key, force=force)
    sys.stdout.write(f"wrote {target}: " + "\n".join(found.lines()) + "\n")
    return 1 if found.missing or found.surplus else 0


def convert(
    source: Path, target: Path, *, model: str = "", key: str = "", force: bool = False
) -> Converted:
    """Convert one file; see ``convert_weights``.

    Raises:
        CheckpointError: a file is of another kind, or there; nothing was written.
        BackendMissingError: torch or mindspore is not installed.
    """
    if target.suffix not in (".safetensors", ".ckpt"):
        msg = f"`OUT` must end in .safetensors or .ckpt, got {target.name!r}"
        raise CheckpointError(msg)
    if os.path.lexists(target) and not force:
        msg = f"{target}: `OUT` must be a new file, it exists; --force writes over it"
        raise CheckpointError(msg)
    if target.suffix == ".ckpt" and not model:
        msg = "`--model` must be given for a .ckpt file: its names are those of the Cells"
        raise CheckpointError(msg)
    content = _read(source)
    if not model:
        return _whole(content, target)
    weights, notes = _weights(content, key, source)
    return _for_model(weights, notes, target, _built(model))


def _read(source: Path) -> Any:
    if not source.is_file():
        msg = f"`IN` must be a file, {str(source)!r} is not there"
        raise CheckpointError(msg)
    if source.suffix == ".safetensors":
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        try:
            return load_file(source)
        except SafetensorError as exc:
            msg = f"{source}: no safetensors file ({exc})"
            raise CheckpointError(msg) from exc
    if source.suffix not in _TORCH:
        msg = f"`IN` must end in {', '.join(_TORCH)} or .safetensors, got {source.name!r}"
        raise CheckpointError(msg)
    try:
        import torch
    except ImportError as exc:
        msg = 'reading torch\'s files needs torch: pip install "mpcore[torch]"'
        raise BackendMissingError(msg) from exc
    try:
        return torch.load(source, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as exc:
        msg = (
            f"{source}: holds more than weights, numbers and lists, and is not unpickled; save "
            "model.state_dict() alone with torch"
        )
        raise CheckpointError(msg) from exc
    except (RuntimeError, EOFError, ValueError, KeyError) as exc:
        msg = f"{source}: no checkpoint of torch ({' '.join(str(exc).split())[:120]})"
        raise CheckpointError(msg) from exc


def _array(value: Any, name: str, notes: list[str]) -> Any:
    """Return a numpy array of a tensor of torch's or of an array; bfloat16 becomes float32."""
    if hasattr(value, "detach"):
        value = value.detach()
        if str(value.dtype) == "torch.bfloat16":
            notes.append(f"{name}: bfloat16 is written as float32, which holds every value")
            value = value.float()
        value = value.numpy()
    return np.ascontiguousarray(value)


def _is_tensor(value: Any) -> bool:
    return hasattr(value, "shape") and hasattr(value, "dtype")


def _weights(content: Any, key: str, source: Path) -> tuple[dict[str, Any], list[str]]:
    """Return the tensors by name, without what DataParallel puts in front."""
    held = content
    if key:
        if not isinstance(content, dict) or not isinstance(content.get(key), dict):
            msg = f"`--key` must name an entry of {source}, {key!r} is none"
            raise CheckpointError(msg)
        held = content[key]
    elif isinstance(content, dict) and not any(_is_tensor(v) for v in content.values()):
        entry = next((k for k in _KEYS if isinstance(content.get(k), dict)), None)
        if entry is None:
            msg = f"{source}: say with --key which of {', '.join(map(str, content))} are weights"
            raise CheckpointError(msg)
        held = content[entry]
    if not isinstance(held, dict):
        msg = f"{source}: must hold tensors by name, got {type(held).__name__}"
        raise CheckpointError(msg)
    notes: list[str] = []
    tensors = {str(k): v for k, v in held.items() if _is_tensor(v)}
    if tensors and all(name.startswith("module.") for name in tensors):
        notes.append("every name began with 'module.', which is left out")
        tensors = {name.removeprefix("module."): value for name, value in tensors.items()}
    return {name: _array(value, name, notes) for name, value in tensors.items()}, notes


def _built(model: str) -> Any:
    """Return the Cell that ``FILE.py:NAME`` builds."""
    file, _, name = model.rpartition(":")
    if not file or not Path(file).is_file():
        msg = f"`--model` must be FILE.py:NAME, got {model!r}"
        raise CheckpointError(msg)
    space = runpy.run_path(file, run_name="mpcore_convert_weights")
    if name not in space:
        msg = f"`--model` must name something in {file}, {name!r} is not there"
        raise CheckpointError(msg)
    try:
        from mindspore import nn
    except ImportError as exc:
        msg = 'the model needs mindspore: pip install "mpcore[mindspore]"'
        raise BackendMissingError(msg) from exc
    made = space[name]
    made = made if isinstance(made, nn.Cell) else made()
    if not isinstance(made, nn.Cell):
        msg = f"`--model` must build a mindspore.nn.Cell, {name} gave {type(made).__name__}"
        raise CheckpointError(msg)
    return made


def _for_model(weights: dict[str, Any], notes: list[str], target: Path, cell: Any) -> Converted:
    """Write what fits ``cell``, under the names of its Parameters."""
    import mindspore as ms

    from mpcore_port.mindspore.support.modules import torch_parameters

    params = torch_parameters(cell)
    found = Converted(notes=notes)
    rows = []
    for name, param in params.items():
        if name not in weights:
            found.missing.append(name)
            continue
        array = weights[name]
        if array.size != param.size:
            msg = f"{name}: shape {array.shape} does not fit {tuple(param.shape)} of the model"
            raise CheckpointError(msg)
        found.names[name] = param.name
        rows.append({"name": param.name, "data": ms.Tensor(array.reshape(param.shape))})
    counters = [name for name in weights if name.rpartition(".")[2] == _KEPT]
    if counters:
        found.notes.append(f"{len(counters)} counters num_batches_tracked have no place in a Cell")
    found.surplus = [n for n in weights if n not in params and n not in counters]
    if not rows:
        msg = f"no name of the file is one of the model; it has {', '.join(list(params)[:5])}, ..."
        raise CheckpointError(msg)
    form = target.suffix.removeprefix(".")
    _replace(target, lambda path: ms.save_checkpoint(rows, str(path), format=form))
    return found


def _whole(content: Any, target: Path) -> Converted:
    """Write all of a checkpoint for ``port.load``, under torch's names."""
    from safetensors.numpy import save_file

    found = Converted()
    arrays: dict[str, Any] = {}
    tree = _tree(content, arrays, "", found)
    _replace(target, lambda path: save_file(arrays, path, {"mpcore": json.dumps(tree)}))
    return found


def _tree(value: Any, arrays: dict[str, Any], name: str, found: Converted) -> Any:
    if _is_tensor(value):
        array = _array(value, name, found.notes)
        label = str(len(arrays))
        arrays[label] = array
        found.names[name] = name
        return {"tensor": label, "shape": list(np.shape(array))}
    if isinstance(value, dict):
        rows = [[k, _tree(v, arrays, f"{name}.{k}".lstrip("."), found)] for k, v in value.items()]
        return {"dict": rows}
    if isinstance(value, list | tuple):
        items = [_tree(v, arrays, f"{name}.{n}", found) for n, v in enumerate(value)]
        return {"list" if isinstance(value, list) else "tuple": items}
    if value is None or isinstance(value, bool | int | float | str):
        return {"value": value}
    found.notes.append(f"left out: {name}, a {type(value).__name__}")
    return {"value": None}


def _replace(target: Path, write: Callable[[Path], Any]) -> None:
    """Have ``write`` fill a file that takes the place of ``target`` when it is whole."""
    try:
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".convert-") as folder:
            path = Path(folder) / target.name
            write(path)
            path.replace(target)
    except OSError as exc:
        msg = f"{target}: {exc.strerror or exc}"
        raise CheckpointError(msg) from exc

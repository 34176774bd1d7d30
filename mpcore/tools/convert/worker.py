"""One side of a conversion, in a process of its own: a framework's file and model.

Started as ``python -m mpcore.tools.convert.worker TASK``. A source leaves its weights in
``source.safetensors`` of the task's folder, a target writes the task's file there; what they found
goes to the parent as one event.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpcore._lib.process import serve
from mpcore.backend.backend import find_backend
from mpcore.backend.files import OpensModels, ReadsFiles, WritesContent
from mpcore.backend.parts import DRIVER
from mpcore.checkpoint.arrays import (
    TREE,
    from_tree,
    pick,
    read_safetensors,
    to_tree,
    write_safetensors,
)
from mpcore.checkpoint.layer_weights import LayerWeights
from mpcore.errors import BackendError, CheckpointError
from mpcore.tools.convert.target import fill
from mpcore.tools.experiment.experiment import load_experiment
from mpcore.tools.experiment.setup import Setup

if TYPE_CHECKING:
    from collections.abc import Callable

    from mpcore.backend.driver import Driver

__all__ = ["main"]


def main(argv: list[str]) -> int:
    """Do one task; return 0, or 1 after sending the error."""
    return serve(partial(_work, json.loads(Path(argv[0]).read_text(encoding="utf-8"))))


def _work(task: dict[str, Any], emit: Callable[..., None]) -> None:
    with_model = task["model"] is not None or task["file"].endswith((".h5", ".keras"))
    work = {"source": _model_source if with_model else _file_source, "target": _target}
    built = _build(task) if task["model"] else (None, None)
    os.chdir(task["folder"])  # frameworks leave folders behind (MindSpore: rank_0/)
    emit(found=work[task["side"]](task, *built))


# --- models


def _build(task: dict[str, Any]) -> tuple[Any, Any]:
    """Return driver and model of what the task names."""
    asked = task["model"]
    if asked["experiment"]:
        experiment = load_experiment(Path(asked["experiment"]))
        setup = Setup(experiment, task["backend"])
        return setup.driver, setup.model()
    option, (file, _, name) = asked["option"], asked["text"].rpartition(":")
    space = _run(file, option)
    if name not in space:
        msg = f"`{option}` must name something in {file}, {name!r} is not there"
        raise CheckpointError(msg)
    try:
        made = space[name]
        owner = _owner(made)
        if owner is None and callable(made):
            made = made()
            owner = _owner(made)
    except Exception as exc:
        msg = f"`{option}`: {name} in {file} failed ({type(exc).__name__}: {exc})"
        raise CheckpointError(msg) from exc
    if owner is None:
        msg = f"`{option}` must build a model, {name} gave {type(made).__name__}"
        raise CheckpointError(msg)
    if task["backend"] not in ("", owner.name):
        msg = f"`{option}` must build a {task['backend']} model, {name} gave one of {owner.name}"
        raise CheckpointError(msg)
    if getattr(made, "built", True) is False:
        msg = (
            f"`{option}`: the model of {name} has no weights yet; call it once on a batch there, "
            "give its first layer an Input, or use --experiment, which has data"
        )
        raise CheckpointError(msg)
    return DRIVER.of(owner), made


def _owner(made: Any) -> Any:
    if isinstance(made, type):
        return None
    try:
        return find_backend(made)
    except BackendError:
        return None


def _run(file: str, option: str) -> dict[str, Any]:
    sys.path.append(str(Path(file).resolve().parent))  # last, so that it hides nothing
    try:
        return runpy.run_path(file, run_name="mpcore_convert_weights")
    except (Exception, SystemExit) as exc:
        msg = f"`{option}`: {file} could not be run ({type(exc).__name__}: {exc})"
        raise CheckpointError(msg) from exc


# --- the source


def _file_source(task: dict[str, Any], *_: Any) -> dict[str, Any]:
    """Leave the whole content of a file of torch or MindSpore."""
    notes: list[str] = []
    content = _content(Path(task["file"]), DRIVER.of(task["backend"]), notes)
    arrays: dict[str, Any] = {}
    tree = to_tree(content, arrays, notes)
    write_safetensors(Path("source.safetensors"), arrays, {TREE: json.dumps(tree)})
    return {"notes": notes, "ordered": True}


def _model_source(task: dict[str, Any], given: Driver[Any] | None, model: Any) -> dict[str, Any]:
    """Leave the neutral weights of a model that took the file in; a file of Keras may bring one."""
    driver = DRIVER.of("tensorflow") if given is None else given
    path = Path(task["file"])
    notes: list[str] = []
    missing: list[str] = []
    surplus: list[str] = []
    known: list[str] = []
    if path.suffix in (".h5", ".keras"):
        files = driver.files
        if not isinstance(files, OpensModels):
            msg = f"{path.name} is Keras', the model of the source must be one of Keras"
            raise CheckpointError(msg)
        model = files.open_model(path, model)
    else:
        arrays = pick(_content(path, driver, notes), task["key"], path, notes)
        missing, surplus = driver.files.put_arrays(model, arrays)
        known = [name for name in arrays if name not in surplus]
        if not known:
            places = [place for layer in driver.places(model) for place in layer.values()]
            names = ", ".join(place.names[0] for place in places[:3])
            msg = (
                f"{path}: no name is one of the source's model; it has {names}, ..., the file "
                f"{', '.join(list(arrays)[:3])}, ..."
            )
            raise CheckpointError(msg)
        notes += _narrowed(arrays)
    own = [{*p.names, *p.tied} for layer in driver.places(model) for p in layer.values()]
    held = {name for names in own for name in names}
    loose = [name for name in known if name not in held]
    came = {name for names in own if names & set(known) for name in names}
    missing = [name for name in missing if name not in came]  # a tied one came by another name
    told = {"missing": missing, "surplus": surplus, "loose": loose, "notes": notes}
    return told | _leave(driver, model)


def _content(path: Path, driver: Driver[Any], notes: list[str]) -> Any:
    if path.suffix != ".safetensors":
        files = driver.files
        if not isinstance(files, ReadsFiles):
            msg = f"{path.name} is a file that Keras does not read; the source's model is Keras'"
            raise CheckpointError(msg)
        return files.read_file(path, notes)
    arrays, metadata = read_safetensors(path, notes)
    return from_tree(json.loads(metadata[TREE]), arrays) if TREE in metadata else arrays


def _narrowed(arrays: dict[str, Any]) -> list[str]:
    names = [name for name, array in arrays.items() if array.dtype == "float64"]
    return [f"{', '.join(names)}: float64 goes through float32"] if names else []


def _leave(driver: Driver[Any], model: Any) -> dict[str, Any]:
    weights, places = driver.weights(model), driver.places(model)
    arrays: dict[str, Any] = {}
    layers = []
    for number, (layer, place) in enumerate(zip(weights, places, strict=True)):
        arrays |= {f"{number}|{name}": array for name, array in layer.arrays.items()}
        found = {
            name: {"names": p.names, "changes": p.changes, "tied": p.tied}
            for name, p in place.items()
        }
        layers.append({"path": layer.path, "category": layer.category, "places": found})
    write_safetensors(Path("source.safetensors"), arrays, {"layers": json.dumps(layers)})
    return {"layers": layers}


# --- the target


def _target(task: dict[str, Any], driver: Driver[Any], model: Any) -> dict[str, Any]:
    """Write the task's file with the weights that the source left."""
    out = Path(task["out"])
    if model is None:
        return _plain_target(task, out)
    notes: list[str] = []
    arrays, metadata = read_safetensors(Path("source.safetensors"), notes)
    if "layers" in metadata:
        found = fill(driver, model, _layers(metadata, arrays), task["found"])
    else:
        content = from_tree(json.loads(metadata[TREE]), arrays)
        given = pick(content, task["key"], Path(task["file"]), notes)
        found = fill(driver, model, given, task["found"])
    _check_form(out, driver)
    driver.files.write_file(model, out)
    found.notes[:0] = notes
    return found.to_dict()


def _layers(metadata: dict[str, str], arrays: dict[str, Any]) -> list[tuple[LayerWeights, Any]]:
    return [
        (
            LayerWeights(
                layer["path"],
                layer["category"],
                {name: arrays[f"{number}|{name}"] for name in layer["places"]},
            ),
            layer["places"],
        )
        for number, layer in enumerate(json.loads(metadata["layers"]))
    ]


def _plain_target(task: dict[str, Any], out: Path) -> dict[str, Any]:
    """Write the source's content with torch, names and layouts kept."""
    arrays, metadata = read_safetensors(Path("source.safetensors"), [])
    files = DRIVER.of(task["backend"]).files
    if not isinstance(files, WritesContent):
        msg = f"{out.name} is not written without a model"
        raise CheckpointError(msg)
    files.write_content(from_tree(json.loads(metadata[TREE]), arrays), out)
    return {}


def _check_form(out: Path, driver: Driver[Any]) -> None:
    forms = driver.files.FORMS
    if not out.name.endswith(forms):
        msg = f"`OUT` must end in {' or '.join(forms)} for this model, got {out.name!r}"
        raise CheckpointError(msg)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Convert one file of weights: a process for each framework, the new file in place at the end."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpcore._lib.files import path_of, write_file
from mpcore._lib.process import run_worker
from mpcore.backend.backend import backend_names
from mpcore.checkpoint.arrays import TREE, read_safetensors, to_tree, write_safetensors
from mpcore.checkpoint.layer_weights import unflatten
from mpcore.checkpoint.weights_file import FORMAT, LAYERS
from mpcore.errors import CheckpointError, check_choice
from mpcore.tools.convert.report import Converted, Row

__all__ = ["Options", "convert"]

_TORCH = (".pt", ".pth", ".bin", ".tar")
_SOURCES = {
    **dict.fromkeys(_TORCH, "torch"),
    ".ckpt": "mindspore",
    ".weights.h5": "tensorflow",
    ".keras": "tensorflow",
    ".safetensors": "",
}
_TARGETS = {
    ".safetensors": "",
    ".ckpt": "mindspore",
    ".pt": "torch",
    ".pth": "torch",
    ".bin": "torch",
    ".weights.h5": "tensorflow",
}
_TIME = 600.0


@dataclass(frozen=True)
class Options:
    """How to convert.

    Attributes:
        model: ``FILE.py:NAME`` of the model that OUT is for.
        source_model: the same of the model that IN is of.
        experiment: file with builders for both.
        from_: backend of IN.
        to: backend of OUT.
        key: entry of a checkpoint that holds the weights; ``""`` finds it.
        force: whether OUT may be there.
        time_limit: seconds that each framework may take.
    """

    model: str = ""
    source_model: str = ""
    experiment: str = ""
    from_: str = ""
    to: str = ""
    key: str = ""
    force: bool = False
    time_limit: float = _TIME


def convert(
    source: Path, target: Path, *, options: Options | None = None, **given: Any
) -> Converted:
    """Convert one file.

    Args:
        source: the file to read.
        target: the file to write; it is whole or not there.
        options: how.
        given: fields of ``Options``, instead of them.

    Raises:
        CheckpointError: a file is of another kind, or there, or does not fit; nothing was written.
        BackendMissingError: a package is not installed.
    """
    conversion = _Conversion(
        path_of(source, CheckpointError, "source"),
        path_of(target, CheckpointError, "target"),
        options or Options(**given),
    )
    with tempfile.TemporaryDirectory(prefix="mpcore-convert-") as folder:
        return conversion.run(Path(folder))


class _Conversion:
    """One conversion: what is asked, checked before anything starts."""

    def __init__(self, source: Path, target: Path, options: Options) -> None:
        self.source, self.target, self.options = source, target, options
        self.form = _form(target, _TARGETS)
        if self.form is None:
            msg = (
                "`OUT` must end in .safetensors or .ckpt, .pt, .pth, .bin or .weights.h5, "
                f"got {target.name!r}"
            )
            raise CheckpointError(msg)
        _check_place(target, force=options.force)
        kind = _form(source, _SOURCES)
        if not source.is_file():
            msg = f"`IN` must be a file, {str(source)!r} is not there"
            raise CheckpointError(msg)
        if kind is None:
            msg = f"`IN` must end in {', '.join(_SOURCES)}, got {source.name!r}"
            raise CheckpointError(msg)
        for name in ("from_", "to"):
            if getattr(options, name):
                words = f"--{name.rstrip('_')}"
                check_choice(words, getattr(options, name), backend_names(), CheckpointError)
        self.from_ = _agreed("--from", options.from_, _SOURCES[kind], source)
        self.to = _agreed("--to", options.to, _TARGETS[self.form], target)
        self.reads = self._asked("--source-model", options.source_model, self.from_)
        self.writes = self._asked("--model", options.model, self.to)
        self._check_models(kind)
        self.in_worker = kind != ".safetensors" or self.reads is not None

    def _asked(self, option: str, text: str, backend: str) -> dict[str, str] | None:
        """Return what a worker is told of a model; None if there is none."""
        if text:
            file, _, name = text.rpartition(":")
            if not file or not name or not Path(file).is_file():
                msg = f"`{option}` must be FILE.py:NAME, got {text!r}"
                raise CheckpointError(msg)
            return {"option": option, "text": f"{Path(file).resolve()}:{name}", "experiment": ""}
        if self.options.experiment:
            if not backend:
                word = "--from" if option == "--source-model" else "--to"
                msg = (
                    f"`{word}` must name the framework with --experiment, "
                    "the name of the file does not tell"
                )
                raise CheckpointError(msg)
            path = str(Path(self.options.experiment).resolve())
            return {"option": option, "text": "", "experiment": path}
        return None

    def _check_models(self, kind: str) -> None:
        if self.reads is None and kind == ".weights.h5":
            msg = (
                f"{self.source}: a .weights.h5 file has no names and layouts: give its model with "
                "--source-model or --experiment"
            )
            raise CheckpointError(msg)
        if self.writes is not None:
            return
        if self.form in (".ckpt", ".weights.h5"):
            names = {".ckpt": "the Cells", ".weights.h5": "the layers"}[self.form]
            msg = (
                f"`--model` must be given for a {self.form} file (or --experiment): its names are "
                f"those of {names}"
            )
            raise CheckpointError(msg)
        if self.reads is not None or kind == ".keras":
            msg = "`--model` must be given (or --experiment): the model that OUT is for"
            raise CheckpointError(msg)

    def run(self, folder: Path) -> Converted:
        told = self._read(folder)
        made = folder / self.target.name
        if self.writes is None:
            found = self._kept(folder, made, told)
        else:
            task = {"found": told, "out": str(made)}
            answer = self._work("target", self.to, self.writes, folder, task)
            answer.pop("complete")
            found = Converted(**answer | {"rows": [_row(row) for row in answer["rows"]]})
            if found.matched != "layers":
                found.notes[:0] = told["notes"]
        _put(made, self.target)
        return found

    def _read(self, folder: Path) -> dict[str, Any]:
        """Leave the source's weights in the folder, by a worker or, of safetensors, here."""
        notes: list[str] = []
        if self.in_worker:
            return self._work("source", self.from_, self.reads, folder, {})
        arrays, metadata = read_safetensors(self.source, notes)
        told: dict[str, Any] = {"missing": [], "surplus": [], "loose": [], "notes": notes}
        told["ordered"] = TREE in metadata  # other files of this kind are sorted by name
        if metadata.get("format") == FORMAT and metadata.get("names") == LAYERS:
            tree = _of_run(arrays)
            arrays, metadata = tree[0], {"layers": json.dumps(tree[1])}
        elif TREE not in metadata:
            held: dict[str, Any] = {}
            metadata = {TREE: json.dumps(to_tree(arrays, held, notes))}
            arrays = held
        write_safetensors(folder / "source.safetensors", arrays, metadata)
        return told

    def _kept(self, folder: Path, made: Path, told: dict[str, Any]) -> Converted:
        """Write the content in another form, names and layouts as they are."""
        left = folder / "source.safetensors"
        arrays, metadata = read_safetensors(left, [])
        if TREE not in metadata:
            msg = f"`--model` must be given: {self.source} holds weights by layer"
            raise CheckpointError(msg)
        if self.form == ".safetensors":
            shutil.copyfile(left, made)
        else:
            self._work("target", "torch", None, folder, {"out": str(made)})
        rows = [Row((name,), (name,), array.shape) for name, array in arrays.items()]
        found = Converted("kept", rows, notes=list(told["notes"]))
        found.notes.append(
            "no model was given: whether names and layouts are those of the program that reads OUT "
            "is not known"
        )
        return found

    def _work(
        self,
        side: str,
        backend: str,
        model: dict[str, str] | None,
        folder: Path,
        more: dict[str, Any],
    ) -> dict[str, Any]:
        task = {
            "side": side,
            "backend": backend,
            "file": str(self.source.resolve()),
            "key": self.options.key,
            "model": model,
            "folder": str(folder),
            **more,
        }
        events: list[dict[str, Any]] = []
        text = folder / f"{side}.json"
        text.write_text(json.dumps(task), encoding="utf-8")
        ended = run_worker(
            "mpcore.tools.convert.worker",
            str(text),
            folder / f"{side}.txt",
            time_limit=self.options.time_limit,
            on_event=events.append,
        )
        for event in events:
            if "found" in event:
                found: dict[str, Any] = event["found"]
                return found
        error = next((event["error"] for event in events if "error" in event), ended.how)
        words = "reading" if side == "source" else "writing"
        raise CheckpointError(error if events else f"{words} with {backend or side}: {error}")


def _form(path: Path, forms: dict[str, str]) -> str | None:
    return next((form for form in forms if path.name.endswith(form)), None)


def _agreed(option: str, given: str, found: str, path: Path) -> str:
    if given and found and given != found:
        msg = f"`{option}` must fit {path.name!r}, a file of {found}, got {given!r}"
        raise CheckpointError(msg)
    return given or found


def _check_place(target: Path, *, force: bool) -> None:
    if os.path.lexists(target) and not force:
        msg = f"{target}: `OUT` must be a new file, it exists; --force writes over it"
        raise CheckpointError(msg)
    if target.exists() and not target.is_file():
        msg = f"{target}: `OUT` must be a file, it is a folder, device or pipe"
        raise CheckpointError(msg)
    if not target.absolute().parent.is_dir():
        msg = f"{target}: the folder of `OUT` must be there"
        raise CheckpointError(msg)


def _put(made: Path, target: Path) -> None:
    try:
        write_file(target, lambda beside: (shutil.copyfile(made, beside), None)[1])
    except OSError as exc:
        msg = f"{target}: {exc.strerror or exc}"
        raise CheckpointError(msg) from exc


def _row(row: dict[str, Any]) -> Row:
    return Row(*(tuple(row[name]) for name in ("source", "target", "shape", "changes")))


def _of_run(arrays: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return what a source's worker leaves, of a file that amp.save wrote."""
    found: dict[str, Any] = {}
    layers = []
    for number, layer in enumerate(unflatten(arrays)):
        found |= {f"{number}|{name}": array for name, array in layer.arrays.items()}
        dot = f"{layer.path}." if layer.path else ""
        places = {n: {"names": [dot + n], "changes": [], "tied": []} for n in layer.arrays}
        layers.append({"path": layer.path, "category": layer.category, "places": places})
    return found, layers

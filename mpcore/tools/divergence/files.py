"""Evidence on disk: one safetensors file, its numbers as JSON in the header."""

from __future__ import annotations

import json
from dataclasses import fields
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mpcore._lib.files import write_file
from mpcore.checkpoint.layer_weights import flatten, unflatten
from mpcore.errors import CheckpointError
from mpcore.tools.divergence.evidence import Evidence
from mpcore.tools.inspection import Inspection, LayerCall, TensorSummary

if TYPE_CHECKING:
    import os

    from mpcore.checkpoint.layer_weights import LayerWeights

__all__ = ["load", "save"]

_FILE = "evidence.safetensors"
_FORMAT, _VERSION = "mpcore-evidence", 1
_PLAIN = ("backend", "policy", "steps", "plan", "observed", "optimizer", "trajectory")
_NUMBERS = ("infinite", "undefined", "peak", "least", "zeros", "mean", "norm", "digest")


def save(evidence: Evidence, folder: str | os.PathLike[str], *, flush: bool = True) -> Path:
    """Write ``evidence`` into ``folder``; at every moment the old or the new file is there, whole.

    Args:
        evidence: of one side.
        folder: is made if it is missing.
        flush: wait until it is on the disk.

    Returns:
        The file.
    """
    import safetensors.numpy

    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    keeper = _Keeper()
    head: dict[str, Any] = {"format": _FORMAT, "version": _VERSION}
    head |= {name: getattr(evidence, name) for name in _PLAIN}
    head["inspection"] = keeper.inspection(evidence.inspection)
    other = evidence.reseeded
    head["reseeded"] = None if other is None else keeper.inspection(other)
    head["moved"] = [keeper.inspection(one) for one in evidence.moved]
    for name in ("weights", "grads"):
        head[name] = [
            keeper.layers(f"{name}/{n}", w) for n, w in enumerate(getattr(evidence, name))
        ]
    try:  # that is quick, and fails where a number is not finite
        text = json.dumps(head, allow_nan=False)
    except (TypeError, ValueError):
        text = json.dumps(_plain(head), allow_nan=False)
    arrays = keeper.done()
    path = place / _FILE
    text_and = {"evidence": text}
    write_file(path, lambda new: safetensors.numpy.save_file(arrays, new, text_and), flush=flush)
    return path


def load(folder: str | os.PathLike[str]) -> Evidence:
    """Return what ``save`` wrote into ``folder``.

    Raises:
        CheckpointError: there is none, it is damaged, or of another version.
    """
    import safetensors.numpy

    path = Path(folder) / _FILE
    if not path.is_file():
        msg = f"`folder` must hold {_FILE}, {str(folder)!r} does not; divergence.save writes one"
        raise CheckpointError(msg)
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            head = json.loads((file.metadata() or {})["evidence"])
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (safetensors.SafetensorError, KeyError, ValueError) as exc:
        msg = f"{_FILE} in {str(folder)!r} is cut off, or of another kind ({exc}); write it again"
        raise CheckpointError(msg) from exc
    if (head.get("format"), head.get("version")) != (_FORMAT, _VERSION):
        msg = (
            f"{_FILE} must be {_FORMAT} of version {_VERSION}, got {head.get('format')!r} of "
            f"version {head.get('version')!r}; write it with this mpcore"
        )
        raise CheckpointError(msg)
    try:
        return _evidence(head, _Reader(arrays))
    except (KeyError, TypeError, ValueError, IndexError) as exc:
        msg = f"{_FILE} in {str(folder)!r} is damaged ({type(exc).__name__}: {exc}); write it again"
        raise CheckpointError(msg) from exc


def _evidence(head: dict[str, Any], reader: _Reader) -> Evidence:
    unknown = set(head) - {f.name for f in fields(Evidence)} - {"format", "version"}
    if unknown:
        msg = f"unknown entry {min(unknown)!r}"
        raise ValueError(msg)
    other = head["reseeded"]
    return Evidence(
        head["backend"],
        head["policy"],
        reader.inspection(head["inspection"]),
        None if other is None else reader.inspection(other),
        tuple(reader.inspection(one) for one in head["moved"]),
        tuple(reader.layers(f"weights/{n}", names) for n, names in enumerate(head["weights"])),
        tuple(reader.layers(f"grads/{n}", names) for n, names in enumerate(head["grads"])),
        tuple(head["steps"]),
        head["plan"],
        head["observed"],
        head["optimizer"],
        tuple((float(scale), bool(stepped)) for scale, stepped in head["trajectory"]),
    )


class _Keeper:
    """Takes summaries apart: numbers for the header, arrays for the body."""

    def __init__(self) -> None:
        self._buckets: list[Any] = []
        self._samples: list[Any] = []
        self._arrays: dict[str, Any] = {}

    def inspection(self, found: Inspection) -> dict[str, Any]:
        return {
            "loss": found.loss,
            "scale": found.scale,
            "how": found.how,
            "calls": [self._call(call) for call in found.calls],
            "batch": [self._sketch(x) for x in found.batch],
            "grads": {name: self._sketch(x) for name, x in found.grads.items()},
        }

    def layers(self, name: str, weights: list[LayerWeights]) -> list[str]:
        """Keep the arrays of layers; return their names in order."""
        flat = flatten(weights)
        self._arrays |= {f"{name}/{key}": array for key, array in flat.items()}
        return list(flat)

    def done(self) -> dict[str, Any]:
        """Return all arrays; those of the summaries in one piece."""
        if self._buckets:
            self._arrays["buckets"] = np.stack(self._buckets)
            self._arrays["samples"] = np.concatenate(self._samples)
        return self._arrays

    def _call(self, call: LayerCall) -> dict[str, Any]:
        lists = ("inputs", "outputs", "grad_outputs", "grad_inputs")
        return {
            **{name: getattr(call, name) for name in ("path", "type", "category")},
            **{name: [self._sketch(x) for x in getattr(call, name)] for name in lists},
            "attributes": dict(call.attributes),
        }

    def _sketch(self, found: TensorSummary | None) -> dict[str, Any] | None:
        if found is None:
            return None
        number = len(self._buckets)
        self._buckets.append(found.buckets)
        self._samples.append(found.sample)
        if found.values is not None:
            self._arrays[f"values/{number}"] = np.ascontiguousarray(found.values)
        return {"n": number, "sample": len(found.sample), **found.numbers()}


class _Reader:
    """Puts summaries together again."""

    def __init__(self, arrays: dict[str, Any]) -> None:
        self._arrays = arrays
        self._at = 0

    def inspection(self, head: dict[str, Any]) -> Inspection:
        return Inspection(
            float(head["loss"]),
            float(head["scale"]),
            tuple(self._call(call) for call in head["calls"]),
            tuple(self._sketch(x) for x in head["batch"]),
            {name: self._maybe(x) for name, x in head["grads"].items()},
            head["how"],
        )

    def layers(self, name: str, keys: list[str]) -> list[LayerWeights]:
        return unflatten({key: self._arrays[f"{name}/{key}"] for key in keys})

    def _call(self, head: dict[str, Any]) -> LayerCall:
        return LayerCall(
            head["path"],
            head["type"],
            head["category"],
            tuple(self._sketch(x) for x in head["inputs"]),
            tuple(self._sketch(x) for x in head["outputs"]),
            tuple(self._maybe(x) for x in head["grad_outputs"]),
            tuple(self._maybe(x) for x in head["grad_inputs"]),
            head["attributes"],
        )

    def _maybe(self, head: dict[str, Any] | None) -> TensorSummary | None:
        return None if head is None else self._sketch(head)

    def _sketch(self, head: dict[str, Any]) -> TensorSummary:
        # Sketches are read in the order in which they were written.
        start, self._at = self._at, self._at + head["sample"]
        return TensorSummary(
            shape=tuple(head["shape"]),
            dtype=head["dtype"],
            buckets=self._arrays["buckets"][head["n"]],
            sample=self._arrays["samples"][start : self._at],
            values=self._arrays.get(f"values/{head['n']}"),
            **{name: head[name] for name in _NUMBERS},
        )


def _plain(value: Any) -> Any:
    """Return ``value`` as strict JSON: tuples as lists, numbers that are not finite as text."""
    if isinstance(value, float) and not isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value

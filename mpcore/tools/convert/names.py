"""Fit arrays that have names alone to the layers of a model."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mpcore.checkpoint.arrays import as_float32
from mpcore.checkpoint.layer_weights import MINDSPORE_NAMES, LayerWeights, match
from mpcore.errors import CheckpointError, ExperimentError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

__all__ = ["Fit", "fit"]

_KERAS = ("kernel", "embeddings", "recurrent_kernel")
_DEEP = re.compile(r"((?:weight|bias)_(?:ih|hh|hr)_l)(\d+)(_reverse)?")
_INWARD = ("in_proj_weight", "in_proj_bias", "q_proj_weight")


@dataclass
class Fit:
    """Arrays of a file in the places of a model.

    Attributes:
        how: ``"names"`` or ``"order"``.
        layers: for each layer of the model, what was found of it; arrays may lack.
        names: for each layer, names in the file by neutral name.
        surplus: names of the file without a place.
        tied: names of the file that hold what another one holds, by that one.
    """

    how: str
    layers: list[LayerWeights]
    names: list[dict[str, str]]
    surplus: list[str]
    tied: dict[str, str]


def fit(
    arrays: Mapping[str, npt.NDArray[Any]],
    own: Sequence[LayerWeights],
    notes: list[str],
    *,
    ordered: bool,
) -> Fit:
    """Give every array its place: by name, or if the names are others, by the order of layers.

    Args:
        arrays: as torch or MindSpore name and lay them out; without counters.
        own: the layers of the model.
        notes: takes what was rounded or widened.
        ordered: whether the order of ``arrays`` is that of the layers.

    Raises:
        CheckpointError: they do not fit, or are Keras' (in a layout that only its model tells).
    """
    foreign = [name for name in arrays if name.rpartition(".")[2] in _KERAS]
    if foreign:
        msg = (
            f"`IN` has names of Keras, such as {foreign[0]!r}, whose layouts only the model "
            "tells: give it with --source-model or --experiment"
        )
        raise CheckpointError(msg)
    named = {_neutral(name): name for name in arrays}
    places = {_joined(w.path, key): a for w in own for key, a in w.arrays.items()}
    if all(name in named and _fits(arrays[named[name]], a) for name, a in places.items()):
        return _by_name(arrays, named, own, notes)
    if ordered:
        try:
            return _by_order(arrays, own, notes)
        except ExperimentError as exc:
            if not named.keys() & places.keys():
                msg = f"neither names nor the order of layers fit: {exc}"
                raise CheckpointError(msg) from exc
    if not named.keys() & places.keys():
        msg = (
            f"no name of the file is one of the model; it has {', '.join(list(places)[:3])}, ..., "
            f"the file {', '.join(list(arrays)[:3])}, ..., in an order that tells nothing; "
            "give the model of the file, too, with --source-model"
        )
        raise CheckpointError(msg)
    return _by_name(arrays, named, own, notes)


def _neutral(name: str) -> str:
    """Return the name in the neutral form: ``rnn.weight_hh_l1`` is ``rnn.l1.weight_hh_l0``."""
    path, _, leaf = name.rpartition(".")
    deep = _DEEP.fullmatch(leaf)
    if deep and int(deep[2]):
        path, leaf = f"{path}.l{int(deep[2])}", f"{deep[1]}0{deep[3] or ''}"
    return _joined(path, MINDSPORE_NAMES.get(leaf, leaf))


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _fits(array: npt.NDArray[Any], own: npt.NDArray[Any]) -> bool:
    """Return whether the shapes are the same but for axes of one (MindSpore's Conv1d)."""
    return [n for n in array.shape if n > 1] == [n for n in own.shape if n > 1]


def _by_name(
    arrays: Mapping[str, npt.NDArray[Any]],
    named: Mapping[str, str],
    own: Sequence[LayerWeights],
    notes: list[str],
) -> Fit:
    layers, names = [], []
    for layer in own:
        found = {
            k: named[_joined(layer.path, k)]
            for k in layer.arrays
            if _joined(layer.path, k) in named
        }
        for key, name in found.items():
            if not _fits(arrays[name], layer.arrays[key]):
                shapes = f"{arrays[name].shape} does not fit {layer.arrays[key].shape}"
                msg = f"{name}: shape {shapes} of the model"
                raise CheckpointError(msg)
        values = {k: as_float32(name, arrays[name], notes) for k, name in found.items()}
        shaped = {k: value.reshape(layer.arrays[k].shape) for k, value in values.items()}
        layers.append(LayerWeights(layer.path, layer.category, shaped))
        names.append(found)
    used = {name for found in names for name in found.values()}
    tied = _twins(arrays, used)
    return Fit("names", layers, names, [n for n in arrays if n not in used and n not in tied], tied)


def _twins(arrays: Mapping[str, npt.NDArray[Any]], used: set[str]) -> dict[str, str]:
    """Return the names without a place whose matrix is that of a used one, by that one."""
    known = {_content(arrays[name]): name for name in used}
    others = [n for n in arrays if n not in used and _tells(arrays[n])]
    return {n: known[key] for n in others if (key := _content(arrays[n])) in known}


def _tells(array: npt.NDArray[Any]) -> bool:
    """Return whether a second array with the same content is no coincidence."""
    return array.ndim > 1 and bool((array != array.flat[0]).any())


def _content(array: npt.NDArray[Any]) -> tuple[Any, ...]:
    return array.shape, str(array.dtype), hash(array.tobytes())


def _by_order(
    arrays: Mapping[str, npt.NDArray[Any]], own: Sequence[LayerWeights], notes: list[str]
) -> Fit:
    groups = _grouped(arrays)
    tied: dict[str, str] = {}
    if len(groups) > len(own):
        groups, tied = _without_twins(groups, arrays)
    told: list[str] = []
    given = []
    for number, (path, found) in enumerate(groups.items()):
        layer = own[number] if number < len(own) else LayerWeights("", "", {})
        values = {key: as_float32(name, arrays[name], told) for key, name in found.items()}
        shaped = {
            key: value.reshape(layer.arrays[key].shape)
            if key in layer.arrays and _fits(value, layer.arrays[key])
            else value
            for key, value in values.items()
        }
        given.append(LayerWeights(path, layer.category, shaped))
    layers = match(given, own)
    notes += told
    return Fit("order", layers, list(groups.values()), [], tied)


def _grouped(arrays: Mapping[str, npt.NDArray[Any]]) -> dict[str, dict[str, str]]:
    """Return names by layer and neutral name, layers in the order of their first array."""
    groups: dict[str, dict[str, str]] = {}
    for name in arrays:
        path, _, leaf = _neutral(name).rpartition(".")
        above, _, last = path.rpartition(".")
        if last == "out_proj" and any(key in groups.get(above, {}) for key in _INWARD):
            path, leaf = above, f"out_proj.{leaf}"
        groups.setdefault(path, {})[leaf] = name
    return groups


def _without_twins(
    groups: dict[str, dict[str, str]], arrays: Mapping[str, npt.NDArray[Any]]
) -> tuple[dict[str, dict[str, str]], dict[str, str]]:
    """Leave out layers of one matrix that an earlier layer has, too."""
    kept, tied = {}, {}
    seen: dict[Any, str] = {}
    for path, found in groups.items():
        names = list(found.values())
        keys = [_content(arrays[name]) for name in names]
        if len(names) == 1 and _tells(arrays[names[0]]) and keys[0] in seen:
            tied[names[0]] = seen[keys[0]]
            continue
        kept[path] = found
        seen |= dict(zip(keys, names, strict=True))
    return kept, tied

"""Put the weights of a source into a model, and say what happened to each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mpcore.checkpoint.layer_weights import LayerWeights, match
from mpcore.checkpoint.places import COUNTER
from mpcore.errors import CheckpointError, ExperimentError
from mpcore.tools.convert.names import fit
from mpcore.tools.convert.report import Converted, Row

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from mpcore.checkpoint.places import Place

__all__ = ["fill"]

_BUFFER = "no parameter or statistic of a layer"
_SUM = "added to the other bias"


def fill(driver: Any, model: Any, given: Any, told: Mapping[str, Any]) -> Converted:
    """Load weights into ``model``.

    Args:
        driver: the model's.
        model: the target, freshly built.
        given: layers of the source's model with their places, or arrays by name.
        told: what the source said; of arrays by name, whether they are ``ordered`` as the layers.

    Raises:
        CheckpointError: they do not fit; the model is to be thrown away.
    """
    own, places = driver.weights(model), driver.places(model)
    if isinstance(given, list):
        found, layers, names = _by_layer(given, own, told)
    else:
        found, layers, names = _by_fit(given, own, places, ordered=told["ordered"])
    whole = [
        LayerWeights(mine.path, mine.category, mine.arrays | layer.arrays)
        for mine, layer in zip(own, layers, strict=True)
    ]
    driver.load_weights(model, whole)
    after = driver.weights(model)
    for layer, name, place, back in zip(layers, names, places, after, strict=True):
        _tell(found, layer, name, place, back)
    if any(_SUM in row.changes for row in found.rows):
        found.notes.append(
            "recurrent layers: one bias of Keras is the sum of two of torch and MindSpore: outputs "
            "are the same; in training, two biases move the sum twice as far as one does"
        )
    return found


_Names = list[dict[str, tuple[tuple[str, ...], tuple[str, ...]]]]


def _by_layer(
    given: list[tuple[LayerWeights, Any]], own: Sequence[LayerWeights], told: Mapping[str, Any]
) -> tuple[Converted, list[LayerWeights], _Names]:
    """Match the layers of two models."""
    try:
        layers = match([layer for layer, _ in given], own)
    except ExperimentError as exc:
        msg = f"IN's model and OUT's are not of the same architecture: {exc}"
        raise CheckpointError(msg) from exc
    names: _Names = [
        {key: (tuple(p["names"]), tuple(p["changes"])) for key, p in place.items()}
        for _, place in given
    ]
    found = Converted("layers", notes=list(told["notes"]), surplus=list(told["surplus"]))
    found.missing = [n for n in told["missing"] if not _is_counter(n)]
    for _, place in given:
        for p in place.values():
            found.tied |= dict.fromkeys(p["tied"], p["names"][0])
    counters = [name for name in told["loose"] if _is_counter(name)]
    found.dropped = {name: _BUFFER for name in told["loose"] if name not in counters}
    found.notes += _about(counters)
    return found, layers, names


def _by_fit(
    arrays: dict[str, npt.NDArray[Any]],
    own: Sequence[LayerWeights],
    places: Sequence[Mapping[str, Place]],
    *,
    ordered: bool,
) -> tuple[Converted, list[LayerWeights], _Names]:
    """Fit arrays that have names alone."""
    counters = [name for name in arrays if _is_counter(name)]
    kept = {name: array for name, array in arrays.items() if name not in counters}
    notes: list[str] = []
    fitted = fit(kept, own, notes, ordered=ordered)
    found = Converted(fitted.how, surplus=fitted.surplus, tied=fitted.tied, notes=notes)
    found.notes += _about(counters)
    known = {name for place in places for p in place.values() for name in p.tied}
    different = [name for name in fitted.surplus if name in known]
    if different:
        msg = f"{different[0]}: is tied in the model, but the file holds other values for it"
        raise CheckpointError(msg)
    found.missing = [
        place[key].names[0]
        for layer, place in zip(fitted.layers, places, strict=True)
        for key in place
        if key not in layer.arrays
    ]
    if fitted.how == "order":
        found.notes.append("names differ: arrays were matched by the order and shape of layers")
    return (
        found,
        fitted.layers,
        [{k: ((n,), ()) for k, n in names.items()} for names in fitted.names],
    )


def _about(counters: Sequence[str]) -> list[str]:
    if not counters:
        return []
    return [f"{len(counters)} {COUNTER} left out: only a BatchNorm with momentum=None reads them"]


def _is_counter(name: str) -> bool:
    return name.rpartition(".")[2] == COUNTER


def _tell(
    found: Converted,
    layer: LayerWeights,
    names: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]],
    places: Mapping[str, Place],
    after: LayerWeights,
) -> None:
    """Add a row for each array; say where what is in the model is not what was given."""
    for key, value in layer.arrays.items():
        source, before = names[key]
        place = places[key]
        row = Row(source, place.names, value.shape, _changes(before, place.changes))
        found.rows.append(row)
        found.tied |= {name: place.names[0] for name in place.tied if name not in source}
        same = after.arrays[key].tobytes() == value.tobytes()
        if not same and _SUM not in place.changes and not np.isnan(value).any():
            found.notes.append(f"{place.names[0]}: rounded to the dtype of the model's parameter")


def _changes(before: Sequence[str], behind: Sequence[str]) -> tuple[str, ...]:
    """Return what is left of the way to the neutral layout and the way back."""
    left = [change for change in before if change not in behind]
    return tuple(left + [change for change in behind if change not in before])

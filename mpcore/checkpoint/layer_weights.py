"""The neutral form of weights, optimizer state and gradients, and matching them by layer order."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from mpcore.errors import ExperimentError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

__all__ = [
    "MINDSPORE_NAMES",
    "LayerWeights",
    "Slots",
    "by_names",
    "flatten",
    "match",
    "relative_difference",
    "unflatten",
]

MINDSPORE_NAMES = {
    "gamma": "weight",
    "beta": "bias",
    "moving_mean": "running_mean",
    "moving_variance": "running_var",
    "embedding_table": "weight",
    "w": "weight",  # PReLU
}
"""The neutral name of an array by MindSpore's, where that is another one."""


@dataclass(frozen=True)
class LayerWeights:
    """The weights of one layer, float32, in one layout for every framework.

    Layouts (those of torch): linear ``weight`` (out, in); conv ``weight`` (out, in/groups,
    *kernel); embedding ``weight`` (rows, features); norm ``weight``, ``bias`` and, where it
    has statistics, ``running_mean``, ``running_var``; every ``bias`` (out,).

    Attributes:
        path: the layer's path in its own framework, for messages.
        category: neutral category, as in ``mpcore.policy.layer.CATEGORIES``.
        arrays: by neutral name.
    """

    path: str
    category: str
    arrays: dict[str, npt.NDArray[np.float32]]


@dataclass(frozen=True)
class Slots:
    """Optimizer state in one form for every framework.

    Attributes:
        steps: updates made so far.
        values: by slot name. ``"momentum"`` (SGD): buffer b of ``b = momentum * b + grad;
            param -= learning_rate * b``. ``"exp_avg"``, ``"exp_avg_sq"`` (Adam): the two
            running averages, without bias correction.
    """

    steps: int
    values: dict[str, list[LayerWeights]] = field(default_factory=dict)


def by_names(reference: Sequence[LayerWeights], own: Sequence[LayerWeights]) -> list[LayerWeights]:
    """Return the layers of ``reference`` in the order of ``own``, as far as their names tell it.

    The same paths in another order are taken by path. Else layers of one shape that follow each
    other, such as query and key, are taken by the last word of their paths, where both sides
    have the same words there, each once. What names do not tell keeps its order.
    """
    known = {layer.path: layer for layer in reference}
    if len(known) == len(reference) == len(own) and known.keys() == {w.path for w in own}:
        return [known[layer.path] for layer in own]
    found = list(reference)
    if len(reference) != len(own):
        return found
    start = 0
    for end in range(1, len(found) + 1):
        if end < len(found) and _looks(found[end]) == _looks(found[start]):
            continue
        here = {layer.path.rpartition(".")[2]: layer for layer in found[start:end]}
        words = [layer.path.rpartition(".")[2] for layer in own[start:end]]
        if len(here) == end - start and sorted(here) == sorted(words):
            found[start:end] = [here[word] for word in words]
        start = end
    return found


def _looks(layer: LayerWeights) -> tuple[object, ...]:
    return layer.category, sorted((name, array.shape) for name, array in layer.arrays.items())


def match(reference: Sequence[LayerWeights], own: Sequence[LayerWeights]) -> list[LayerWeights]:
    """Return ``reference`` with the paths of ``own``: the same layers, in order or by name.

    Raises:
        ExperimentError: another number of layers, another category, array or shape; the
            message names the first layer that differs.
    """
    matched = []
    reference = by_names(reference, own)
    for number, (ref, mine) in enumerate(zip(reference, own, strict=False), start=1):
        what = f"layer {number} with weights: {ref.path!r} in one model, {mine.path!r} in the other"
        if ref.category != mine.category:
            msg = f"the models differ at {what}: {ref.category} against {mine.category}"
            raise ExperimentError(msg)
        shapes = [{k: a.shape for k, a in layer.arrays.items()} for layer in (ref, mine)]
        if shapes[0] != shapes[1]:
            msg = f"the models differ at {what}: shapes {shapes[0]} against {shapes[1]}"
            raise ExperimentError(msg)
        matched.append(LayerWeights(mine.path, mine.category, ref.arrays))
    if len(reference) != len(own):
        longer = max(reference, own, key=len)
        extra = longer[min(len(reference), len(own))]
        msg = (
            f"the models differ: {len(reference)} layers with weights against {len(own)}; "
            f"the first without a partner is {extra.path!r} ({extra.category})"
        )
        raise ExperimentError(msg)
    return matched


def flatten(weights: Sequence[LayerWeights]) -> dict[str, npt.NDArray[np.float32]]:
    """Return one flat mapping for a safetensors file: ``"003|linear|head|weight"`` to array."""
    return {
        # numpy makes a vector of a scalar here
        f"{number:03d}|{layer.category}|{layer.path}|{name}": np.ascontiguousarray(array).reshape(
            array.shape
        )
        for number, layer in enumerate(weights)
        for name, array in layer.arrays.items()
    }


def unflatten(flat: Mapping[str, npt.NDArray[np.float32]]) -> list[LayerWeights]:
    """Return what ``flatten`` was given."""
    layers: dict[str, LayerWeights] = {}
    for key in sorted(flat, key=lambda key: (int(key.split("|")[0]), key)):
        number, category, path, name = key.split("|")
        layers.setdefault(number, LayerWeights(path, category, {})).arrays[name] = flat[key]
    return list(layers.values())


def relative_difference(reference: Sequence[LayerWeights], own: Sequence[LayerWeights]) -> float:
    """Return the largest relative L2 distance of any array from its reference, dimensionless.

    A tensor whose reference is smaller than a hundredth of the average tensor's norm is
    measured against that instead: gradients that are zero but for rounding (a bias in front of
    a normalisation, the key bias of attention) have no meaningful direction. NaN if any
    array holds one.
    """
    pairs = [
        (ref.arrays[name].astype(np.float64), mine.arrays[name].astype(np.float64))
        for ref, mine in zip(reference, own, strict=True)
        for name in ref.arrays
    ]
    norms = [float(np.linalg.norm(a)) for a, _ in pairs]
    floor = 1e-2 * float(np.sqrt(np.mean(np.square(norms)))) or 1.0
    distances = [float(np.linalg.norm(a - b)) for a, b in pairs]
    # np.max, unlike max, does not lose a NaN
    return float(np.max([d / max(n, floor) for d, n in zip(distances, norms, strict=True)]))

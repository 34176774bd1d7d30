"""One side of a reproduction: the code that makes a layer, and the values of one call."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from itertools import permutations
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

from mpcore.backend.rebuild import REBUILD
from mpcore.errors import ExperimentError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from mpcore.checkpoint.layer_weights import LayerWeights
    from mpcore.tools.inspection import LayerCall, TensorSummary

__all__ = ["Side", "arrays_inside", "named_alike", "side_of"]

_MOST_AXES = 5


@dataclass(frozen=True)
class Side:
    """One layer of one side, and what came in and back in its first call.

    Attributes:
        name: of the configuration.
        backend: its framework.
        path: of the layer.
        type: its class.
        constructor: expression that makes it; empty if only the experiment's builder does.
        compute: dtype in which it computes.
        training: whether it trains.
        listed: whether its inputs come as one list.
        turned: for each value by name, the axes that bring it into the neutral layout; None
            where that is not known.
        neutral: neutral name of each of its arrays.
        arrays: values by name: ``arrays/...``, ``inputs/0``, ``grad``.
    """

    name: str
    backend: str
    path: str
    type: str
    constructor: str
    compute: str
    training: bool
    listed: bool
    turned: Mapping[str, list[int] | None]
    neutral: Mapping[str, str]
    arrays: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def save(self, path: Path) -> None:
        """Write it to a safetensors file."""
        about = asdict(self) | {"arrays": None}
        found = {name: np.ascontiguousarray(x) for name, x in self.arrays.items()}
        save_file(found, path, {"side": json.dumps(about)})

    @classmethod
    def load(cls, path: Path) -> Side:
        """Return what ``save`` wrote."""
        with safe_open(path, framework="numpy") as file:
            about = json.loads((file.metadata() or {})["side"])
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return cls(**(about | {"arrays": arrays}))


def side_of(
    name: str,
    backend: str,
    model: Any,
    path: str,
    seen: tuple[LayerCall, LayerCall],
    weights: list[LayerWeights],
    compute: str,
) -> Side:
    """Return one side of a reproduction.

    Args:
        name: of the configuration.
        backend: its framework.
        model: that holds the layer.
        path: of the layer.
        seen: its first call with whole tensors, as they lie and in the neutral layout.
        weights: of the model, in the neutral layout.
        compute: dtype in which the layer computes.

    Raises:
        ExperimentError: the layer has no gradient to hand down, or draws random numbers.
    """
    raw, neutral = seen
    grads = [g for g in raw.grad_outputs[:1] if g is not None and g.values is not None]
    if not grads or not raw.inputs or any(x.values is None for x in raw.inputs):
        msg = f"layer {path!r} of {name} got no gradient, or takes no tensor: nothing to run alone"
        raise ExperimentError(msg)
    if raw.category == "dropout" and raw.attributes.get("rate") and raw.attributes.get("training"):
        msg = f"layer {path!r} of {name} draws random numbers: it cannot be run alone"
        raise ExperimentError(msg)
    rebuild = REBUILD.of(backend)
    values: dict[str, Any] = {f"inputs/{n}": _values(x) for n, x in enumerate(raw.inputs)}
    values["grad"] = _values(grads[0])
    both = zip(raw.inputs, neutral.inputs, strict=True)
    pairs = {f"inputs/{n}": pair for n, pair in enumerate(both)}
    pairs["output"] = raw.outputs[0], neutral.outputs[0]
    turned = {key: _axes(_values(a), _values(b)) for key, (a, b) in pairs.items()}
    turned["grad"] = turned["output"]
    arrays = rebuild.arrays(model, path)
    values |= {f"arrays/{key}": array for key, array in arrays.items()}
    names, axes = named_alike(path, arrays, weights)
    turned |= {f"arrays/{key}": found for key, found in axes.items()}
    training = bool(raw.attributes.get("training", True))
    made = rebuild.constructor(model, path, compute)
    listed = len(raw.inputs) > 1 and raw.category in ("container", "op", "other", "merge")
    told = name, backend, path, raw.type, made, compute, training, listed
    return Side(*told, turned, names, values)


def arrays_inside(path: str, weights: list[LayerWeights]) -> dict[str, Any]:
    """Return the neutral arrays of a layer and of those inside of it, by name below it."""
    return {
        ".".join(filter(None, (w.path[len(path) :].lstrip("."), n))): x
        for w in weights
        if w.path == path or f"{w.path}.".startswith(path and f"{path}.")
        for n, x in w.arrays.items()
    }


def named_alike(
    path: str, arrays: Mapping[str, Any], weights: list[LayerWeights]
) -> tuple[dict[str, str], dict[str, list[int]]]:
    """Return by own name the neutral name of each array of a layer, and the axes to it."""
    waiting = arrays_inside(path, weights)
    names: dict[str, str] = {}
    turned: dict[str, list[int]] = {}
    for key, array in arrays.items():
        for known, other in waiting.items():
            axes = _axes(array, other)
            if axes is not None:
                names[key], turned[key] = known, axes
                del waiting[known]
                break
    return names, turned


def _values(found: TensorSummary) -> Any:
    kind = np.int64 if "int" in found.dtype else np.bool_ if "bool" in found.dtype else np.float32
    return np.asarray(found.values).reshape(found.shape).astype(kind)


def _axes(own: Any, neutral: Any) -> list[int] | None:
    """Return the order of axes that makes ``neutral`` of ``own``; None for none."""
    if own.ndim != neutral.ndim or own.ndim > _MOST_AXES:
        return None
    for axes in permutations(range(own.ndim)):
        turned = own.transpose(axes)
        if turned.shape == neutral.shape and np.array_equal(turned, neutral):
            return list(axes)
    return None

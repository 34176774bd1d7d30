"""What makes each layer of a recorded model, and how it is run alone afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mpcore.backend.rebuild import REBUILD
from mpcore.errors import BackendError, ExperimentError
from mpcore.tools.reproduction import Side
from mpcore.tools.reproduction.side import arrays_inside, named_alike

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mpcore.checkpoint.layer_weights import LayerWeights
    from mpcore.policy.plan import Plan
    from mpcore.tools.divergence.evidence import Evidence
    from mpcore.tools.inspection import LayerCall

__all__ = ["describe", "recorded_side"]

_FORMATS = ("float32", "float16", "bfloat16")


def describe(
    backend: str, model: Any, weights: list[LayerWeights], plan: Plan | None
) -> dict[str, Any]:
    """Return by path what makes a layer, and where its arrays come from.

    Layers of classes that nobody but the script knows are left out.
    """
    try:
        rebuild = REBUILD.of(backend)
    except BackendError:
        return {}
    computes = {} if plan is None else {layer.path: layer.compute for layer in plan.layers}
    found: dict[str, Any] = {}
    for path in dict.fromkeys((*(w.path.partition(":")[0] for w in weights), *computes)):
        try:
            made = rebuild.constructor(model, path, computes.get(path, "float32"))
            arrays = rebuild.arrays(model, path) if made else {}
        except (AttributeError, KeyError, LookupError, BackendError):
            continue  # a path of weights that is no layer of its own
        if made:
            found[path] = {"made": made, "arrays": _sources(path, arrays, weights)}
            found[path]["compute"] = computes.get(path, "")
            found[path]["double"] = rebuild.constructor(model, path, "float64")
    return found


def _sources(path: str, arrays: Mapping[str, Any], weights: list[LayerWeights]) -> dict[str, Any]:
    """Return by own name the neutral name and axes of an array; the values of what has none."""
    names, turned = named_alike(path, arrays, weights)
    return {
        name: {"neutral": names[name], "axes": turned[name]}
        if name in names
        else {"values": np.asarray(array).tolist(), "dtype": str(array.dtype)}
        for name, array in arrays.items()
        if name in names or array.size <= 64
    }


def recorded_side(
    name: str, found: Evidence, weights: list[LayerWeights], told: Mapping[str, Any], path: str
) -> Side:
    """Return one side of a reproduction from a recorded step.

    Args:
        name: of the run.
        found: the step.
        weights: before it, whole.
        told: what ``describe`` returned when it began.
        path: of the layer.

    Raises:
        ExperimentError: something that this needs was not kept; with the way out.
    """
    call = next((c for c in found.inspection.calls if c.path == path and c.category != "op"), None)
    if call is None or path not in told:
        kind = "is of a class that only its script has" if call else "was not called"
        msg = f"layer {path!r} of {name} {kind}: it cannot be run alone"
        raise ExperimentError(msg)
    if call.category == "dropout" and call.attributes.get("rate"):
        msg = f"layer {path!r} of {name} draws random numbers: it cannot be run alone"
        raise ExperimentError(msg)
    _check_kept(call, path, name)
    arrays, neutral, turned = _arrays(told[path]["arrays"], weights, path)
    for number, x in enumerate(call.inputs):
        arrays[f"inputs/{number}"] = _own(x, call, found.backend)
        turned[f"inputs/{number}"] = _turn(x, call, found.backend)
    grad = call.grad_outputs[0]
    arrays["grad"] = _own(grad, call, found.backend)
    turned["output"] = turned["grad"] = _turn(call.outputs[0], call, found.backend)
    compute = told[path]["compute"]
    if compute not in _FORMATS:
        compute = call.outputs[0].dtype
    return Side(
        name,
        found.backend,
        path,
        call.type,
        told[path]["made"],
        compute,
        bool(call.attributes.get("training", True)),
        len(call.inputs) > 1 and call.category in ("other", "merge"),
        turned,
        neutral,
        arrays,
    )


def _check_kept(call: LayerCall, path: str, name: str) -> None:
    needed = (*call.inputs, *call.outputs[:1], *call.grad_outputs[:1])
    if not call.inputs or any(x is None or x.values is None for x in needed):
        msg = (
            f"the tensors of {path!r} were not kept whole in {name}: record both runs again with "
            f"mp.record(..., keep=({path!r},))"
        )
        raise ExperimentError(msg)


def _arrays(
    sources: Mapping[str, Any], weights: list[LayerWeights], path: str
) -> tuple[dict[str, Any], dict[str, str], dict[str, Any]]:
    own = arrays_inside(path, weights)
    arrays: dict[str, Any] = {}
    neutral: dict[str, str] = {}
    turned: dict[str, Any] = {}
    for name, source in sources.items():
        if "values" in source:
            arrays[f"arrays/{name}"] = np.array(source["values"], source["dtype"])
            continue
        neutral[name] = source["neutral"]
        turned[f"arrays/{name}"] = source["axes"]
        arrays[f"arrays/{name}"] = own[source["neutral"]].transpose(np.argsort(source["axes"]))
    return arrays, neutral, turned


def _own(found: Any, call: LayerCall, backend: str) -> Any:
    """Return values as the framework held them."""
    kind = np.int64 if "int" in found.dtype else np.bool_ if "bool" in found.dtype else np.float32
    values = np.asarray(found.values).reshape(found.shape).astype(kind)
    return values.transpose(np.argsort(_turn(found, call, backend)))


def _turn(found: Any, call: LayerCall, backend: str) -> list[int]:
    """Return the axes that bring a tensor of the framework into the neutral layout."""
    axes = list(range(len(found.shape)))
    spatial = call.category in ("conv", "conv_transpose", "pool", "norm") and len(axes) > 2
    if backend == "tensorflow" and spatial and call.type != "LayerNormalization":
        return [0, axes[-1], *axes[1:-1]]
    return axes

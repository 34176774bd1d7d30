"""Where the settings of two aligned calls differ."""

from __future__ import annotations

from math import isclose
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mpcore.tools.divergence.align import Pair
    from mpcore.tools.inspection import LayerCall

__all__ = ["FORWARD", "QUIET", "differing", "told"]

FORWARD = [
    "eps",
    "statistics",
    "groups",
    "axes",
    "affine",
    "kernel",
    "stride",
    "padding",
    "dilation",
    "padding_mode",
    "bias",
    "ceil_mode",
    "count_include_pad",
    "output_size",
    "approximate",
    "slope",
    "alpha",
    "axis",
    "rate",
    "training",
    "padding_idx",
    "heads",
    "causal",
    "hidden",
    "layers",
    "bidirectional",
    "batch_first",
    "type",
]
"""Settings that change what the forward pass computes."""

QUIET = ("eps", "approximate", "slope", "alpha", "rate", "training")
"""Settings whose effect may hide in noise; others show in numbers, or one side makes up for them.

A padding of 0 may be made up for by the code before the layer, and a ReLU with a ceiling be ReLU6.
"""

_NAMES_OF_ONE = (
    # class names of frameworks that compute the same thing
    {"relu"},
    {"relu6"},
    {"gelu", "gelucell"},
    {"silu", "swish"},
    {"leakyrelu"},
    {"elu"},
    {"selu", "selucell"},
    {"hardswish", "hswish", "hardsilu"},
    {"hardsigmoid", "hsigmoid"},
    {"sigmoid"},
    {"tanh"},
    {"softplus"},
    {"mish"},
    {"prelu"},
)


def differing(pair: Pair) -> dict[str, tuple[Any, Any]]:
    """Return the settings that both calls tell and that differ, as (reference, own)."""
    a, b = pair.reference, pair.own
    if a is None or b is None:
        return {}
    found = {
        name: (a.attributes[name], b.attributes[name])
        for name in a.attributes
        if name in b.attributes and not _same(a.attributes[name], b.attributes[name])
    }
    if a.category not in ("dropout", "norm", "recurrent", "attention"):
        found.pop("training", None)
    if "training" in found and a.category == "dropout" and not _live(a) and not _live(b):
        found.pop("training")
    if found.get("rate") and a.category != "dropout" and not (_live(a) or _live(b)):
        found.pop("rate")
    if _variants(a, b) or _other_pooling(a, b):
        found["type"] = (a.type, b.type)
    return found


def _live(call: LayerCall) -> bool:
    """Return whether a layer drops anything."""
    return bool(call.attributes.get("training")) and bool(call.attributes.get("rate"))


def _variants(a: LayerCall, b: LayerCall) -> bool:
    """Return whether both are activations, but not the same one."""
    if "activation" not in (a.category, b.category):
        return False
    names = [call.type.lower().replace("_", "") for call in (a, b)]
    known = [next((s for s in _NAMES_OF_ONE if name in s), None) for name in names]
    return names[0] != names[1] and (known[0] is not known[1] or known[0] is None) and all(known)


def _other_pooling(a: LayerCall, b: LayerCall) -> bool:
    """Return whether one takes the largest and the other the mean."""
    words = [[w for w in ("max", "avg", "average") if w in c.type.lower()][:1] for c in (a, b)]
    return a.category == b.category == "pooling" and (words[0] == ["max"]) != (words[1] == ["max"])


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, str) or isinstance(b, str) or a is None or b is None:
        return bool(a == b)
    if isinstance(a, bool) or isinstance(b, bool):
        return bool(a) == bool(b)
    if isinstance(a, int | float) and isinstance(b, int | float):
        return isclose(a, b, rel_tol=1e-6)
    left, right = (_listed(x) for x in (a, b))
    if len(left) != len(right):
        # One number stands for the same one on every axis.
        shorter, longer = sorted((left, right), key=len)
        return len(shorter) == 1 and all(_same(shorter[0], x) for x in longer)
    return all(_same(x, y) for x, y in zip(left, right, strict=True))


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, tuple | list) else [value]


def told(values: tuple[Any, Any], name: str) -> str:
    """Return a differing setting in words."""
    return f"{name} is {_short(values[0])} in the reference and {_short(values[1])} here"


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)

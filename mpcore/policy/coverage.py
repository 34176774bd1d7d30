"""What of a model stays float32 because no category knows its layers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mpcore.numerics.dtypes import FORMATS, is_low

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mpcore.policy.layer import Layer
    from mpcore.policy.plan import Plan

__all__ = ["Coverage", "Products", "coverage", "in_layers", "tell_products"]

_MOST_NAMED = 3
_NOT_LOWERED = ("float32", "follow")


@dataclass(frozen=True)
class Coverage:
    """Parameters that a policy meant to lower, were it known what their layers compute.

    Norms, softmaxes and what a rule keeps in float32 are meant so, and not counted.

    Attributes:
        share: of the bytes of all parameters, in layers that stay float32 for that reason.
        types: their classes, the largest first, each with why it is not known.
    """

    share: float
    types: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        """Return one line with the way out, for a warning."""
        named = "; ".join(f"{name} ({why})" for name, why in self.types[:_MOST_NAMED])
        more = f"; and {len(self.types) - _MOST_NAMED} more" if self.types[_MOST_NAMED:] else ""
        first = self.types[0][0] if self.types else "Layer"
        return (
            f"{_percent(self.share)} of the parameter bytes stay float32, as no category knows "
            f"their layers: {named}{more}; say what such a layer computes with "
            f'mp.register_layer({first}, "linear"), or that float32 is meant with "other"'
        )


@dataclass(frozen=True)
class Products:
    """Multiply-adds of a forward pass that are done in one place in one dtype.

    Attributes:
        path: of the layer, or of the container around a function.
        name: of the function that is called in a container; ``""`` in a layer.
        dtype: that they are done in.
        count: how many.
    """

    path: str
    name: str
    dtype: str
    count: int


def in_layers(plan: Plan, calls: Iterable[Products]) -> list[Products]:
    """Return the sums of ``calls`` by layer of ``plan``, and by function in its containers.

    Examples:
        >>> from mpcore import Layer, ParamInfo, Policy, resolve_plan
        >>> fc = Layer("fc", "linear", "Linear", (ParamInfo("w", (9,), "float32"),))
        >>> plan = resolve_plan(Policy.named("mixed_bfloat16"), [fc])
        >>> in_layers(plan, [Products("fc.part", "matmul", "bfloat16", 3)] * 2)
        [Products(path='fc', name='', dtype='bfloat16', count=6)]
    """
    kinds = {entry.path: entry.category for entry in plan.layers}
    found: dict[tuple[str, str, str], int] = {}
    for call in calls:
        path = call.path
        while path and path not in kinds:
            path = path.rpartition(".")[0]
        name = call.name if kinds.get(path, "container") == "container" else ""
        key = (path, name, call.dtype)
        found[key] = found.get(key, 0) + call.count
    return [Products(*key, count) for key, count in found.items() if count]


def tell_products(plan: Plan, products: Iterable[Products]) -> str:
    """Return which multiply-adds stay in more than 16 bits that no rule keeps so; "" for none.

    Examples:
        >>> from mpcore import Layer, ParamInfo, Policy, resolve_plan
        >>> fc = Layer("fc", "linear", "Linear", (ParamInfo("w", (9,), "float32"),))
        >>> plan = resolve_plan(Policy.named("mixed_bfloat16"), [fc])
        >>> low = Products("fc", "", "bfloat16", 3)
        >>> tell_products(plan, [low, Products("", "attention", "float32", 1)])
        '25.0 % of the multiply-adds of `example` are in float32: attention in the model'
        >>> tell_products(plan, [low])
        ''
    """
    found = list(products)
    meant = {entry.path for entry in plan.layers if entry.compute == "float32"}
    wide = [each for each in found if not is_low(each.dtype) and each.path not in meant]
    if not is_low(plan.policy.compute) or not wide:
        return ""
    wide.sort(key=lambda each: -each.count)
    share = sum(each.count for each in wide) / sum(each.count for each in found)
    named = ", ".join(
        f"{each.name or 'the layer'} in {each.path or 'the model'}" for each in wide[:_MOST_NAMED]
    )
    more = f" and {len(wide) - _MOST_NAMED} more" if wide[_MOST_NAMED:] else ""
    dtypes = " and ".join(dict.fromkeys(each.dtype for each in wide))
    return f"{_percent(share)} of the multiply-adds of `example` are in {dtypes}: {named}{more}"


def _percent(share: float) -> str:
    return f"{share:.1%}".replace("%", " %") if share >= 0.001 else "under 0.1 %"


def coverage(plan: Plan, layers: Sequence[Layer]) -> Coverage:
    """Return what stays float32 under ``plan`` because its layer is not known.

    Under by="op" each op is known by the framework's list, whatever layer it is in: nothing does.

    Examples:
        >>> from mpcore import Layer, ParamInfo, Policy, resolve_plan
        >>> own = Layer("a", "other", "Own", (ParamInfo("w", (3,), "float32"),), unknown="new")
        >>> fc = Layer("b", "linear", "Linear", (ParamInfo("w", (9,), "float32"),))
        >>> coverage(resolve_plan(Policy.named("mixed_bfloat16"), [own, fc]), [own, fc])
        Coverage(share=0.25, types=(('Own', 'new'),))
    """
    if plan.policy.by in ("op", "graph") or not is_low(plan.policy.compute):
        return Coverage(0.0)
    lost: dict[str, tuple[int, str]] = {}
    for layer, entry in zip(layers, plan.layers, strict=True):
        by_category = entry.rule.startswith(f"{layer.category}:") and entry.param == "float32"
        if layer.unknown and layer.size and by_category and entry.compute in _NOT_LOWERED:
            size = lost.get(layer.type, (0, ""))[0] + _bytes(layer)
            lost[layer.type] = size, layer.unknown
    total = sum(_bytes(layer) for layer in layers)
    largest = sorted(lost, key=lambda name: -lost[name][0])
    share = sum(size for size, _ in lost.values()) / total if total else 0.0
    return Coverage(share, tuple((name, lost[name][1]) for name in largest))


def _bytes(layer: Layer) -> int:
    return sum(math.prod(p.shape) * _width(p.dtype) for p in layer.params)


def _width(dtype: str) -> int:
    return FORMATS[dtype].bits // 8 if dtype in FORMATS else 4

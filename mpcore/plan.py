"""The plan: a policy resolved over a model's layers, with the rule that decided each."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from mpcore.dtypes import is_low
from mpcore.errors import check_choice

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mpcore.policy import Policy, Rule

__all__ = ["CATEGORIES", "Layer", "LayerPlan", "ParamInfo", "Plan", "resolve"]

CATEGORIES: dict[str, str] = {
    # category: what happens to it where no rule says otherwise
    "linear": "lower",
    "conv": "lower",
    "conv_transpose": "lower",
    "attention": "lower",
    "recurrent": "lower",
    "embedding": "lower",
    "norm": "full",
    "softmax": "full",
    "loss": "full",
    "activation": "follow",
    "pooling": "follow",
    "dropout": "follow",
    "reshape": "follow",
    "container": "follow",
    "other": "full",
}
"""Neutral layer categories and their default: lower, full, or follow (run in what comes in)."""


@dataclass(frozen=True)
class ParamInfo:
    """One parameter: its name within the layer, shape, and stored dtype."""

    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Layer:
    """One layer as a backend lists it, in the order of definition.

    Attributes:
        path: dotted path from the root of the model; ``""`` is the model itself.
        category: one of ``CATEGORIES``.
        type: the framework's class name.
        params: the layer's own parameters, not those of layers inside it.
    """

    path: str
    category: str
    type: str
    params: tuple[ParamInfo, ...] = ()

    def __post_init__(self) -> None:
        """Refuse a category that has no default."""
        check_choice("layer.category", self.category, CATEGORIES)


@dataclass(frozen=True)
class LayerPlan:
    """What one layer does.

    Attributes:
        path: dotted path of the layer.
        category: neutral category.
        type: the framework's class name.
        param: dtype the parameters are stored in; ``""`` where it has none.
        compute: dtype that inputs and parameters are cast to; ``"follow"`` casts nothing,
            ``"op"`` leaves each op to the framework's list.
        output: dtype handed on; ``"follow"`` and ``"op"`` as for ``compute``.
        rule: what decided, in words.
    """

    path: str
    category: str
    type: str
    param: str
    compute: str
    output: str
    rule: str


@dataclass(frozen=True)
class Plan:
    """A policy resolved over one model; frozen, comparable, printable.

    Attributes:
        policy: the policy it came from.
        layers: one entry a layer, in the order the backend lists them.
        unused_rules: rules that decided for no layer, as text.
    """

    policy: Policy
    layers: tuple[LayerPlan, ...]
    unused_rules: tuple[str, ...]

    def __getitem__(self, path: str) -> LayerPlan:
        """Return the entry of one layer path."""
        for entry in self.layers:
            if entry.path == path:
                return entry
        msg = f"no layer {path!r} in this plan"
        raise KeyError(msg)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, ready for JSON."""
        return {
            "policy": str(self.policy),
            "loss_scale": str(self.policy.scaling),
            "layers": [asdict(entry) for entry in self.layers],
            "unused_rules": list(self.unused_rules),
        }

    def __str__(self) -> str:
        """Return a table: a line a layer, then what is unused."""
        head = ("layer", "type", "param", "compute", "output", "decided by")
        rows = [
            (e.path or "(model)", e.type, e.param or "-", e.compute, e.output, e.rule)
            for e in self.layers
        ]
        widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in (head, tuple("-" * width for width in widths), *rows)
        ]
        title = f"policy {self.policy}   loss scale {self.policy.scaling}"
        unused = [f"unused rule: {rule} (it decided for no layer)" for rule in self.unused_rules]
        return "\n".join([title, "", *lines, *unused])


def resolve(policy: Policy, layers: Sequence[Layer]) -> Plan:
    """Return what each layer does under ``policy``; the same architecture gives the same plan.

    Args:
        policy: the policy; its last rule that matches a layer decides for it.
        layers: the model's layers as its backend lists them.

    Example:
        >>> from mpcore.policy import Policy
        >>> layers = [Layer("fc", "linear", "Linear"), Layer("norm", "norm", "LayerNorm")]
        >>> plan = resolve(Policy.named("mixed_bfloat16"), layers)
        >>> [(entry.compute, entry.output) for entry in plan.layers]
        [('bfloat16', 'bfloat16'), ('float32', 'bfloat16')]
    """
    used: Counter[Rule] = Counter()
    entries = []
    for layer in layers:
        rule = _deciding(policy, layer)
        if rule is not None:
            used[rule] += 1
        entries.append(_entry(policy, layer, rule))
    unused = tuple(str(rule) for rule in policy.rules if rule.target != "op" and not used[rule])
    return Plan(policy, tuple(entries), unused)


def _deciding(policy: Policy, layer: Layer) -> Rule | None:
    if layer.category == "container":
        return None
    texts = {"path": (layer.path,), "layer": (layer.category, layer.type), "op": ()}
    matching = [rule for rule in policy.rules if rule.matches(*texts[rule.target])]
    return matching[-1] if matching else None


def _entry(policy: Policy, layer: Layer, rule: Rule | None) -> LayerPlan:
    word, why = _word(policy, layer, rule)
    dtypes = {"full": "float32", "lower": policy.compute}
    compute = dtypes.get(word, word)
    # A normalisation computes in float32 but hands on the low dtype, as Keras and
    # MindSpore O2 do: the activations around it stay small.
    hands_on_low = layer.category == "norm" and rule is None and policy.by != "op"
    output = policy.compute if hands_on_low else compute
    if not layer.path:
        output = policy.output  # the whole model's output
    return LayerPlan(
        layer.path,
        layer.category,
        layer.type,
        _param_dtype(policy, layer, compute),
        compute,
        output,
        why,
    )


def _word(policy: Policy, layer: Layer, rule: Rule | None) -> tuple[str, str]:
    if rule is not None:
        return rule.precision, f"rule: {rule}"
    if policy.by == "op" and layer.category != "container":
        return "op", "the framework's op list"
    default = CATEGORIES[layer.category]
    if layer.category == "other" and not layer.params:
        return "follow", "other: follow (no parameters)"
    return default, f"{layer.category}: {default}"


def _param_dtype(policy: Policy, layer: Layer, compute: str) -> str:
    if not layer.params:
        return ""
    return policy.param if is_low(policy.param) and compute != "float32" else "float32"

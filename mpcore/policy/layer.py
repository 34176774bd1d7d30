"""A layer as a backend lists it, and the categories that decide where no rule does."""

from __future__ import annotations

import math
from dataclasses import dataclass

from mpcore.errors import check_choice

__all__ = ["CATEGORIES", "NOT_KNOWN", "Layer", "ParamInfo"]

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
    "parameters": "follow",
    "container": "follow",
    "other": "full",
}
"""Neutral layer categories and their default: lower, full, or follow (run in what comes in)."""


NOT_KNOWN = "its class is not known"
"""Why a layer is of category other where its backend does not call layers to find out."""


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
        op: neutral op that the layer is, of ``mpcore.numerics.ops``; ``""`` if it is none.
        own: dtype that was set in the model itself (Keras ``dtype=``, MindSpore ``to_float``);
            ``""`` where nobody did.
        computes: what a call of it alone computed, where that gave the category and the class
            did not; ``""`` elsewhere.
        unknown: why nothing tells whether the products of its parameters would be right in
            16 bits; ``""`` where the category is known. Such a layer stays float32.
        promotes_bias: whether its bias is added by an op of its own that every op list of the
            framework promotes.
    """

    path: str
    category: str
    type: str
    params: tuple[ParamInfo, ...] = ()
    op: str = ""
    own: str = ""
    computes: str = ""
    unknown: str = ""
    promotes_bias: bool = False

    def __post_init__(self) -> None:
        """Refuse a category that has no default."""
        check_choice("layer.category", self.category, CATEGORIES)

    @property
    def size(self) -> int:
        """Number of values in the layer's own parameters."""
        return sum(math.prod(param.shape) for param in self.params)

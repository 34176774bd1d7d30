"""Which methods change a tensor in place, which give views, and chains of them."""

from __future__ import annotations

from typing import Any

import libcst as cst

from mpcore_port.names import code_of

__all__ = [
    "FRESH",
    "MADE",
    "NO_PARTS",
    "PLAIN",
    "RANDOM",
    "SHAPES",
    "TAKES",
    "VIEWS",
    "begins_with",
    "is_chained",
    "viewed",
]

MADE = {
    "addmm_": "port.addmm({self}, {0}, {1}, {2}, {3})",
    "bernoulli_": "port.bernoulli_like({self}, {0})",
    "copy_": "{0}",  # MindSpore's own takes no part of another tensor on CPU
    "exponential_": "port.exponential_like({self}, {0})",
    "zero_": "ops.zeros_like({self})",
    "fill_": "ops.full_like({self}, {0})",
    "fill_diagonal_": "port.fill_diagonal({self}, {0}, {1})",
    "index_fill_": "port.index_fill({self}, {0}, {1}, {2})",
    "masked_scatter_": "port.masked_scatter({self}, {0}, {1})",
    "normal_": "ops.randn_like({self}, dtype={self}.dtype) * {1} + {0}",
    "random_": "port.random_like({self}, {0}, {1})",
    "uniform_": "ops.rand_like({self}) * ({1} - {0}) + {0}",
}

_ANSWERS = ("eq", "ge", "gt", "le", "lt", "ne", "logical_and", "logical_or", "logical_xor")
MADE |= {f"{name}_": f'port.answered({{self}}, "{name}", {{0}})' for name in _ANSWERS}
MADE["logical_not_"] = 'port.answered({self}, "logical_not")'

TAKES = {
    "addmm_": (("mat1", ""), ("mat2", ""), ("beta", "1"), ("alpha", "1")),
    "bernoulli_": (("p", "0.5"),),
    "copy_": (("other", ""), ("non_blocking", "False")),
    "exponential_": (("lambd", "1"),),
    "fill_": (("value", ""),),
    "fill_diagonal_": (("fill_value", ""), ("wrap", "False")),
    "index_fill_": (("dim", ""), ("index", ""), ("value", "")),
    "logical_not_": (),
    "masked_scatter_": (("mask", ""), ("source", "")),
    "normal_": (("mean", "0.0"), ("std", "1.0")),
    "random_": (("from", ""), ("to", "None")),
    "uniform_": (("from", "0.0"), ("to", "1.0")),
    "zero_": (),
} | {f"{name}_": (("other", ""),) for name in _ANSWERS}

RANDOM = frozenset({"bernoulli_", "exponential_", "normal_", "random_", "uniform_"})
"""Methods that draw: a port's numbers are others."""

PLAIN = frozenset(
    """
    abs absolute acos add addcdiv addcmul asin atan atan2 ceil clamp clamp_max clamp_min clip
    cos cosh div divide erf erfc erfinv exp expm1 floor floor_divide fmod frac index_add
    index_copy index_put lerp log log10 log1p log2 masked_fill mul multiply nan_to_num neg
    negative pow reciprocal relu remainder renorm round rsqrt scatter scatter_add scatter_reduce
    sigmoid sign sin sinh sqrt square sub subtract tan tanh tril triu true_divide trunc
    """.split()  # noqa: SIM905  # a list of words is read
)

SHAPES = frozenset({"detach", "squeeze", "transpose", "unsqueeze"})
"""Methods that change more than a Parameter's values: a name is assigned anew, or nothing."""

FRESH = PLAIN | frozenset(
    """
    clone matmul mm bmm sum mean softmax log_softmax cumsum square log1p expm1 erf tril triu
    where masked_select index_select gather scatter repeat std var norm max min new new_zeros
    new_ones new_full new_empty new_tensor ne eq gt lt ge le logical_not logical_and logical_or
    all amax amin any argmax argmin argsort cumprod flip isnan logsumexp outer prod roll
    """.split()  # noqa: SIM905
)

VIEWS = frozenset(
    """
    as_tensor from_numpy reshape flatten squeeze unsqueeze transpose permute narrow split
    chunk unbind diagonal movedim swapaxes broadcast_to atleast_1d real view_as_real
    """.split()  # noqa: SIM905  # a list of words is read
)

NO_PARTS = VIEWS | {"T", "data", "grad", "H", "mT", "imag", "shape"}
"""Attributes of tensors: what changes these is no change of what an object holds by a name."""

_SAME_NUMBERS = ("view", "reshape", "flatten")


def viewed(node: Any) -> Any:
    """Return ``x`` of ``x.view(...)``, whose elements all are those of x, in their order."""
    if not isinstance(node, cst.Call) or not isinstance(node.func, cst.Attribute):
        return None
    name = node.func.value
    return name if node.func.attr.value in _SAME_NUMBERS and isinstance(name, cst.Name) else None


def is_chained(held: Any) -> bool:
    """Return whether this is ``p.mul_(a)``, on which the next method in place is called."""
    if not isinstance(held, cst.Call) or not isinstance(held.func, cst.Attribute):
        return False
    name = held.func.attr.value
    return name.endswith("_") and (name in MADE or name[:-1] in PLAIN)


def begins_with(node: cst.BaseExpression) -> str:
    """Return the name or entry that a chain of methods in place begins with; "" for others."""
    changed = 0
    while isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
        if not node.func.attr.value.endswith("_"):
            return ""
        node, changed = node.func.value, changed + 1
    return code_of(node) if changed and isinstance(node, (cst.Name, cst.Subscript)) else ""

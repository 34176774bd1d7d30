"""What the doctor runs in every framework: inputs, and the right answers in float64.

What a framework does with them is its ``mpcore.backend.probe.Probe``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from mpcore.backend.probe import Case
from mpcore.numerics.dtypes import FORMATS, round_to

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy.typing as npt

    Array = npt.NDArray[np.float32]
    Double = npt.NDArray[np.float64]

__all__ = [
    "DTYPES",
    "FAMILIES",
    "error",
    "limit",
    "make_case",
    "right",
]

DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class _Family:
    """An operation: shapes at size 1, longest sum, and the answers.

    Attributes:
        shapes: of inputs and data; the axis named by ``grows`` is multiplied by the size.
        data: names that get no gradient.
        grows: name to the axis that a larger size makes longer.
        depth: longest chain of additions, on which rounding errors pile up.
        size: how many times larger it is when speed is measured.
        right: inputs and data in float64 to outputs and gradients.
        spread: standard deviation of inputs by name; 1 where not named.
    """

    shapes: Mapping[str, tuple[int, ...]]
    data: tuple[str, ...]
    grows: Mapping[str, int]
    depth: int
    size: int
    right: Callable[[dict[str, Double]], dict[str, Double]]
    spread: Mapping[str, float] = field(default_factory=dict)


def make_case(family: str, dtype: str, size: int = 1) -> Case:
    """Return the numbers of ``family``, the same on every machine, rounded to ``dtype``.

    Args:
        family: a name of ``FAMILIES``.
        dtype: ``"float32"``, ``"bfloat16"`` or ``"float16"``.
        size: >= 1; how many times longer the axis is that work is proportional to.
    """
    found, rng = FAMILIES[family], np.random.default_rng(7)
    arrays = {}
    for name, shape in found.shapes.items():
        grown = list(shape)
        if name in found.grows:
            grown[found.grows[name]] *= size
        values = rng.standard_normal(grown) * found.spread.get(name, 1.0)
        if family == "elementwise":  # apart from ReLU's kink: x (1 + y) keeps the sign of x
            values = np.copysign(0.5 + np.abs(values), values) if name == "x" else np.abs(values)
        arrays[name] = round_to(values.astype(np.float32), dtype)
    inputs = {name: a for name, a in arrays.items() if name not in found.data}
    return Case(inputs, {name: arrays[name] for name in found.data})


def right(family: str, case: Case) -> dict[str, Double]:
    """Return ``y`` and every ``d_<input>`` in float64."""
    arrays = {**case.inputs, **case.data}
    return FAMILIES[family].right({name: a.astype(np.float64) for name, a in arrays.items()})


def limit(family: str, dtype: str) -> float:
    """Return the error that ``dtype`` explains, relative to the largest value of an array.

    A spacing times the square root of the number of additions: rounding errors of either sign
    pile up like a random walk (Higham and Mary, A New Approach to Probabilistic Rounding Error
    Analysis, SIAM J. Sci. Comput. 41, 2019), even where every partial sum is rounded. That is
    half a spacing; the other half is for tanh and exp, which libraries give to a few units.
    """
    return float(FORMATS[dtype].spacing * np.sqrt(FAMILIES[family].depth))


def error(got: npt.ArrayLike, want: Double) -> float:
    """Return the largest difference relative to the largest right value; inf for another shape."""
    values = np.asarray(got, np.float64)
    if values.shape != want.shape or not np.isfinite(values).all():
        return float("inf")
    return float(np.abs(values - want).max() / np.abs(want).max())


# --- right answers --------------------------------------------------------------------------


def _matmul(v: dict[str, Double]) -> dict[str, Double]:
    a, b, g = v["a"], v["b"], v["g"]
    return {"y": a @ b, "d_a": g @ b.T, "d_b": a.T @ g}


def _conv2d(v: dict[str, Double]) -> dict[str, Double]:
    """NCHW, 3 x 3, padded by one: a matrix product for each of the nine shifts."""
    x, w, g = v["x"], v["w"], v["g"]
    height, width = x.shape[2:]
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    y, d_padded, d_w = np.zeros_like(g), np.zeros_like(padded), np.zeros_like(w)
    for i in range(3):
        for j in range(3):
            part = np.s_[:, :, i : i + height, j : j + width]
            y += np.moveaxis(np.tensordot(padded[part], w[:, :, i, j], (1, 1)), 3, 1)
            d_w[:, :, i, j] = np.tensordot(g, padded[part], ((0, 2, 3), (0, 2, 3)))
            d_padded[part] += np.moveaxis(np.tensordot(g, w[:, :, i, j], (1, 0)), 3, 1)
    return {"y": y, "d_x": d_padded[:, :, 1:-1, 1:-1], "d_w": d_w}


def _elementwise(v: dict[str, Double]) -> dict[str, Double]:
    x, y, g = v["x"], v["y"], v["g"]
    on = g * (x > 0)
    return {"y": np.maximum(x * y + x, 0), "d_x": on * (1 + y), "d_y": on * x}


def _norm(v: dict[str, Double]) -> dict[str, Double]:
    """Layer normalisation over the last axis, epsilon 1e-5."""
    x, weight, bias, g = v["x"], v["weight"], v["bias"], v["g"]
    centred = x - x.mean(-1, keepdims=True)
    inverse = 1 / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    normal, inner = centred * inverse, g * weight
    along = (inner * normal).mean(-1, keepdims=True)
    d_x = inverse * (inner - inner.mean(-1, keepdims=True) - normal * along)
    d_weight, d_bias = (g * normal).sum(0), g.sum(0)
    return {"y": normal * weight + bias, "d_x": d_x, "d_weight": d_weight, "d_bias": d_bias}


def _softmax(v: dict[str, Double]) -> dict[str, Double]:
    x, g = v["x"], v["g"]
    e = np.exp(x - x.max(-1, keepdims=True))
    y = e / e.sum(-1, keepdims=True)
    return {"y": y, "d_x": y * (g - (y * g).sum(-1, keepdims=True))}


def _attention(v: dict[str, Double]) -> dict[str, Double]:
    """Scaled dot products, softmax over the keys, and the values weighed by it; heads first."""
    q, k, values, g = v["q"], v["k"], v["v"], v["g"]
    scale = 1 / np.sqrt(q.shape[-1])
    scores = q @ k.transpose(0, 2, 1) * scale
    e = np.exp(scores - scores.max(-1, keepdims=True))
    share = e / e.sum(-1, keepdims=True)
    d_share = g @ values.transpose(0, 2, 1)
    d_scores = share * (d_share - (d_share * share).sum(-1, keepdims=True)) * scale
    return {
        "y": share @ values,
        "d_q": d_scores @ k,
        "d_k": d_scores.transpose(0, 2, 1) @ q,
        "d_v": share.transpose(0, 2, 1) @ g,
    }


def _lstm(v: dict[str, Double]) -> dict[str, Double]:
    """One layer without bias, time first; gates in the order input, forget, cell, output."""
    x, w_ih, w_hh, g = v["x"], v["w_ih"], v["w_hh"], v["g"]
    steps, batch, hidden = g.shape
    h, c, kept, outputs = np.zeros((batch, hidden)), np.zeros((batch, hidden)), [], []
    for t in range(steps):
        i, f, u, o = np.split(x[t] @ w_ih.T + h @ w_hh.T, 4, 1)
        i, f, u, o = _sigmoid(i), _sigmoid(f), np.tanh(u), _sigmoid(o)
        kept.append((i, f, u, o, c, h))
        c = f * c + i * u
        h = o * np.tanh(c)
        outputs.append(h)
    d_x, d_ih, d_hh = np.zeros_like(x), np.zeros_like(w_ih), np.zeros_like(w_hh)
    d_h, d_c = np.zeros_like(h), np.zeros_like(c)
    for t in reversed(range(steps)):
        i, f, u, o, before, h = kept[t]
        squashed = np.tanh(f * before + i * u)
        d_h = d_h + g[t]
        d_c = d_c + d_h * o * (1 - squashed**2)
        gates = (
            d_c * u * i * (1 - i),
            d_c * before * f * (1 - f),
            d_c * i * (1 - u**2),
            d_h * squashed * o * (1 - o),
        )
        d_gates = np.concatenate(gates, 1)
        d_ih, d_hh = d_ih + d_gates.T @ x[t], d_hh + d_gates.T @ h
        d_x[t], d_h, d_c = d_gates @ w_ih, d_gates @ w_hh, d_c * f
    return {"y": np.stack(outputs), "d_x": d_x, "d_w_ih": d_ih, "d_w_hh": d_hh}


def _sigmoid(x: Double) -> Double:
    return np.asarray(1 / (1 + np.exp(-x)))


def _mlp_step(v: dict[str, Double]) -> dict[str, Double]:
    """Gradients of the squared error of two layers with tanh between them, before the update."""
    x, w1, w2, t = v["x"], v["w1"], v["w2"], v["t"]
    h = np.tanh(x @ w1.T)
    off = h @ w2.T - t
    d_out = 2 * off / len(x)
    d_w1 = (d_out @ w2 * (1 - h**2)).T @ x
    return {"y": np.asarray((off**2).sum() / len(x)), "d_w1": d_w1, "d_w2": d_out.T @ h}


FAMILIES = {
    "matmul": _Family(
        {"a": (64, 512), "b": (512, 512), "g": (64, 512)}, ("g",), {"a": 0, "g": 0}, 512, 8, _matmul
    ),
    "conv2d": _Family(
        {"x": (1, 32, 28, 28), "w": (32, 32, 3, 3), "g": (1, 32, 28, 28)},
        ("g",),
        {"x": 0, "g": 0},
        28 * 28,
        4,
        _conv2d,
        {"w": 0.1},
    ),
    "elementwise": _Family(
        {"x": (128, 1024), "y": (128, 1024), "g": (128, 1024)},
        ("g",),
        {"x": 0, "y": 0, "g": 0},
        16,
        8,
        _elementwise,
    ),
    "norm": _Family(
        {"x": (64, 1000), "weight": (1000,), "bias": (1000,), "g": (64, 1000)},
        ("g",),
        {"x": 0, "g": 0},
        1000,
        8,
        _norm,
    ),
    "softmax": _Family(
        {"x": (64, 1000), "g": (64, 1000)}, ("g",), {"x": 0, "g": 0}, 1000, 8, _softmax
    ),
    "lstm": _Family(
        {"x": (16, 4, 64), "w_ih": (256, 64), "w_hh": (256, 64), "g": (16, 4, 64)},
        ("g",),
        {"x": 1, "g": 1},
        16 * 128,
        4,
        _lstm,
        {"w_ih": 0.2, "w_hh": 0.2},
    ),
    "lstm_long": _Family(  # of a speech or text model: more steps, wider
        {"x": (64, 2, 128), "w_ih": (512, 128), "w_hh": (512, 128), "g": (64, 2, 128)},
        ("g",),
        {"x": 1, "g": 1},
        16 * 128,  # as above: a cell forgets what lies further back
        8,
        _lstm,
        {"w_ih": 0.1, "w_hh": 0.1},
    ),
    "attention": _Family(
        dict.fromkeys(("q", "k", "v", "g"), (4, 128, 64)),
        ("g",),
        dict.fromkeys(("q", "k", "v", "g"), 0),
        64 + 128 + 64 + 128,  # scores, their sum, its gradient, and that of the queries
        8,
        _attention,
    ),
    "mlp_step": _Family(
        {"x": (16, 256), "w1": (512, 256), "w2": (10, 512), "t": (16, 10)},
        ("x", "t"),
        {"x": 0, "t": 0},
        1024,
        4,
        _mlp_step,
        {"w1": 0.06, "w2": 0.05},
    ),
}
"""Operations by name. ``mlp_step`` is a training step by plain gradient descent, rate 1e-3, of
float32 parameters that are cast to the dtype; its loss is computed in float32."""

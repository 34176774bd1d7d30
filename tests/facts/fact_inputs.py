"""The tensors that facts are executed on: numpy arrays by name and seed, equal in all processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["NAMES", "array"]

# The smallest is no subnormal: whether a process keeps those hangs on what it ran before.
_EDGES = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e30, -1e30, 2e-38, 1.0, -1.0])


def _shapes(seed: int) -> tuple[int, int, int, int]:
    draw = np.random.RandomState(seed)
    return tuple(int(n) for n in draw.randint(3, 6, 4))  # type: ignore[return-value]


def _normal(*shape: int) -> Callable[[np.random.RandomState], np.ndarray]:
    return lambda draw: draw.randn(*shape)


def _made(seed: int) -> dict[str, Callable[[np.random.RandomState], np.ndarray]]:
    d0, d1, d2, n = _shapes(seed)
    abc = (d0, d1, d2)

    def softmax(draw: Any) -> np.ndarray:
        e = np.exp(draw.randn(4, 5))
        return e / e.sum(1, keepdims=True)

    def edges(draw: Any) -> np.ndarray:
        made = draw.randn(4, 5)
        made.flat[:9] = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e30, -1e30, 2e-38, 1.0]
        return made

    return {
        "a": _normal(*abc), "b": _normal(*abc), "c": _normal(*abc), "wt": _normal(*abc),
        "p": lambda r: np.abs(r.randn(*abc)) + 0.1, "u": lambda r: r.uniform(-0.9, 0.9, abc),
        "q": lambda r: r.uniform(0.05, 0.95, abc), "q2": lambda r: r.uniform(0.05, 0.95, abc),
        "pw": lambda r: r.uniform(0.5, 2.0, abc[2]),
        "h": lambda r: r.randint(-1, 2, abc).astype(np.float64),
        "t": lambda r: r.rand(*abc) > 0.5,
        "j0": lambda r: np.argsort(r.rand(*abc), axis=0),
        "j": lambda r: r.randint(0, 3, abc),
        "i": lambda r: r.randint(0, 3, (d0, d1)), "i2": lambda r: r.randint(0, 3, (d0, d1)),
        "ix": lambda r: np.array([2, 0]),
        "m": _normal(n, n), "k": _normal(n, n), "v": _normal(n), "w": _normal(n),
        "pd": lambda r: np.eye(4) * 4 + r.randn(4, 4) * 0.3,
        "bd": lambda r: np.eye(4) * 4 + r.randn(2, 4, 4) * 0.3, "ta": _normal(4, 3),
        "x4": _normal(4, 2),
        "so": lambda r: np.sort(r.randn(9)),
        "bt": _normal(3, d0, d1), "bu": _normal(3, d1, n), "bv": _normal(3, d0, n),
        "bw": _normal(d0, n),
        "x3": _normal(4, 3, 3), "y3": _normal(4, 3, 3),
        "ev": _normal(4, 6, 4),
        "im": _normal(2, 4, 8, 9), "im6": _normal(2, 3, 8, 6), "seq": _normal(3, 4, 11),
        "vol": _normal(2, 4, 5, 6, 5), "fe": _normal(3, 4, 5),
        "wo": _normal(6, 5), "bo": _normal(6), "ln": _normal(5), "lb": _normal(5),
        "gr": lambda r: r.uniform(-1.2, 1.2, (2, 5, 3, 2)), "th": _normal(2, 2, 3),
        "bo6": _normal(6), "cv": _normal(6, 4, 3, 3), "cvg": _normal(6, 4, 2, 3),
        "kl": _normal(6, 4, 3), "kv": _normal(6, 4, 2, 3, 2), "bo3": _normal(3),
        "tl": _normal(4, 3, 3), "tp": _normal(4, 3, 3, 2), "tv": _normal(4, 3, 2, 3, 2),
        "c4": _normal(4), "d4": _normal(4), "em": _normal(7, 3),
        "s4": _normal(2, 2, 4, 3), "s5": _normal(2, 2, 4, 3), "s6": _normal(2, 2, 4, 5),
        "am": lambda r: (r.rand(4, 4) > 0.4) | np.eye(4, dtype=bool), "ab": _normal(4, 4),
        "fb": _normal(5, 4), "fc": _normal(5, 4), "pm": lambda r: r.choice([-1.0, 1.0], 5),
        "pmv": lambda r: r.choice([-1.0, 1.0], n),
        "lg": _normal(6, 5), "cls": lambda r: r.randint(0, 5, 6), "clw": _normal(6),
        "cw": lambda r: r.uniform(0.5, 2.0, 5),
        "lp": lambda r: np.log(np.concatenate([softmax(r), softmax(r)])[:6]),
        "pr": lambda r: np.concatenate([softmax(r), softmax(r)])[:6],
        "ctl": lambda r: np.log(np.stack([softmax(r) for _ in range(7)])),
        "ctt": lambda r: r.randint(1, 4, (4, 3)), "cti": lambda r: np.array([7, 6, 7, 5]),
        "ctn": lambda r: np.array([3, 2, 1, 3]),
        "mq": _normal(4, 2, 8), "mk": _normal(4, 2, 8),
        "z": edges, "z0": lambda r: np.where(r.rand(*abc) > 0.8, np.nan, r.randn(*abc)),
        "big": _normal(40, 50), "bigp": lambda r: np.abs(r.randn(40, 50)) + 0.1,
        "bigq": lambda r: np.full((40, 50), 0.3), "big1": lambda r: np.ones((40, 50)),
        "sig": _normal(2, 40),
        "bid": lambda r: np.ones((40, 50, 2)), "biv": lambda r: np.ones((40, 50, 1, 1, 2)),
        "fb1": _normal(5), "seqp": lambda r: np.abs(r.randn(3, 4, 11)) + 0.1,
        "up": _normal(2, 4, 4, 4), "ui": lambda r: np.argsort(r.rand(2, 4, 16)).reshape(2, 4, 4, 4),
        "imp": lambda r: np.abs(r.randn(2, 4, 8, 9)) + 0.1,
        "bim": lambda r: np.ones((40, 50, 1, 1)),
        "np_f": _normal(4), "np_i": lambda r: r.randint(0, 9, 4),
    }  # fmt: skip


NAMES = frozenset(_made(0))


def array(name: str, seed: int, dtype: str = "float32", edges: bool = False) -> np.ndarray:
    """Return one input; floats in ``dtype``, whole numbers in int64, truth values in bool.

    Where ``dtype`` is of whole numbers or truth values, floats are rounded to it. ``edges`` puts
    zeros of both signs, infinities, NaN and huge and tiny numbers among the floats.
    """
    number = sum(ord(letter) * 31**place for place, letter in enumerate(name)) % 100003
    made = _made(seed)[name](np.random.RandomState((seed * 1009 + number) % 2**31))
    if made.dtype.kind != "f":
        return made.astype(np.int64) if made.dtype.kind == "i" else made
    if edges:
        made.flat[: len(_EDGES)] = np.roll(_EDGES, number)[: made.size]
    if dtype == "bool":
        return made > 0
    if dtype.startswith(("int", "uint")):
        return np.round(np.nan_to_num(made, posinf=9, neginf=-9) * 2).clip(-99, 99).astype(dtype)
    return made.astype(dtype)

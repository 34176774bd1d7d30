"""The ops that a loss for all frameworks is made of give NumPy's values in each of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from mpcore.backend.backend import load_backend
from mpcore.backend.parts import DRIVER

if TYPE_CHECKING:
    from collections.abc import Callable


def _softmax_log(x: Any, axis: int = -1) -> Any:
    moved = x - x.max(axis, keepdims=True)
    return moved - np.log(np.exp(moved).sum(axis, keepdims=True))


def _entropy(logits: Any, classes: Any, label_smoothing: float = 0.0, axis: int = -1) -> Any:
    logs = np.moveaxis(_softmax_log(logits, axis), axis, -1)
    right = np.take_along_axis(logs, classes[..., None].astype(int), -1)[..., 0]
    return -((1 - label_smoothing) * right.mean() + label_smoothing * logs.mean())


def _binary_entropy(logits: Any, targets: Any) -> Any:
    return (np.maximum(logits, 0) - logits * targets + np.log1p(np.exp(-np.abs(logits)))).mean()


REFERENCE: dict[str, Callable[..., Any]] = {
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "relu": lambda x: np.maximum(x, 0),
    "softplus": lambda x: np.log1p(np.exp(x)),
    "log_softmax": _softmax_log,
    "concat": lambda tensors, axis: np.concatenate(tensors, axis),
    "float32": lambda x: x.astype(np.float32),
    "one_hot": lambda classes, count: np.eye(count, dtype=np.float32)[classes],
    "stop_gradient": lambda x: x,
    "cross_entropy": _entropy,
    "binary_cross_entropy": _binary_entropy,
}
"""Those that are not NumPy's own by the same name."""

RNG = np.random.default_rng(0)
X, Y = (RNG.normal(size=(3, 4, 5)).astype(np.float32) for _ in range(2))
CLASSES = RNG.integers(0, 5, (3, 4)).astype(np.int32)
SIDE = RNG.integers(0, 4, (3, 5)).astype(np.int32)
CALLS: dict[str, list[tuple[tuple[Any, ...], dict[str, Any]]]] = {
    **{name: [((X,), {})] for name in ("abs", "exp", "square", "tanh", "sigmoid", "relu")},
    **{name: [((np.abs(X) + 0.1,), {})] for name in ("log", "sqrt")},
    "softplus": [((X,), {})],
    "log_softmax": [((X,), {}), ((X, 1), {}), ((X,), {"axis": 0})],
    "maximum": [((X, Y), {})],
    "minimum": [((X, Y), {})],
    "clip": [((X, -0.5, 0.25), {})],
    "where": [((X > Y, X, Y), {})],
    "mean": [((X,), {}), ((X, 1), {}), ((X,), {"axis": -1})],
    "sum": [((X,), {}), ((X, 1), {}), ((X,), {"axis": -1})],
    "max": [((X, 1), {}), ((X,), {"axis": -1})],
    "reshape": [((X, (4, 15)), {}), ((X, (3, -1)), {})],
    "concat": [(((X, Y), 1), {}), (([X, Y], -1), {})],
    "float32": [((CLASSES,), {}), ((X > 0,), {})],
    "one_hot": [((CLASSES, 5), {}), ((CLASSES, 7), {})],
    "stop_gradient": [((X,), {})],
    "cross_entropy": [((X, CLASSES), {}), ((X, CLASSES, 0.1), {}),
                      ((X, SIDE), {"axis": 1}), ((X, SIDE), {"label_smoothing": 0.2, "axis": 1})],
    "binary_cross_entropy": [((X, np.abs(np.tanh(Y))), {})],
}  # fmt: skip


@pytest.mark.day(8)
@pytest.mark.parametrize("name", CALLS)
def test_an_op_of_losses_gives_numpys_values(kit: Any, name: str) -> None:
    if kit.name == "numpy":
        pytest.skip("numpy has no experiments")
    driver = DRIVER.of(load_backend(kit.name))

    def put(value: Any) -> Any:
        if isinstance(value, np.ndarray) and value.dtype == bool:
            return put(value.astype(np.float32)) > 0.5
        if isinstance(value, np.ndarray):
            return driver.batch(value, value, "")[1]
        is_tensors = isinstance(value, (tuple, list)) and isinstance(value[0], np.ndarray)
        return type(value)(map(put, value)) if is_tensors else value

    for args, kwargs in CALLS[name]:
        expected = REFERENCE.get(name, getattr(np, name, None))(*args, **kwargs)
        found = getattr(driver.ops, name)(*map(put, args), **kwargs)
        found = found.numpy() if hasattr(found, "numpy") else found.asnumpy()
        assert found.shape == np.shape(expected)
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_every_op_of_losses_is_asked() -> None:
    from mpcore.backend.loss_ops import LossOps

    assert set(CALLS) == {name for name in vars(LossOps) if not name.startswith("_")}

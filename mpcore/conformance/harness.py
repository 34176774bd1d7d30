"""What the tests of every backend share: data, kits, and a prepared model to step."""

from __future__ import annotations

from importlib import metadata
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

import numpy as np

from mpcore.backend.parts import DRIVER
from mpcore.checkpoint.layer_weights import LayerWeights
from mpcore.preparation import prepare

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from mpcore.backend.kit import Kit
    from mpcore.policy.policy import Policy
    from mpcore.step.result import StepResult

    Arrays = dict[str, npt.NDArray[Any]]

__all__ = [
    "POLICIES",
    "DriverKit",
    "Trained",
    "X",
    "Y",
    "assert_same",
    "find_kit",
    "oracle_weights",
]

POLICIES = ("float32", "mixed_float16", "mixed_bfloat16", "model_float16", "model_bfloat16")

_RNG = np.random.default_rng(7)
X = _RNG.normal(size=(32, 8)).astype("f4")
Y = _RNG.integers(0, 4, 32).astype("i4")


def find_kit(name: str, where: str | None = None) -> Kit:
    """Return the kit of a backend.

    Args:
        name: of the backend.
        where: ``"module:object"``; None for the entry point ``name`` of ``mpcore.conformance``.

    Raises:
        LookupError: there is no such entry point, or the kit is that of another backend.
    """
    if where is None:
        points = metadata.entry_points(group="mpcore.conformance", name=name)
        if not points:
            msg = (
                f"no kit for {name!r}: its package needs an entry point {name!r} in the group "
                "'mpcore.conformance', or name the kit with --kit MODULE:OBJECT"
            )
            raise LookupError(msg)
        kit: Kit = next(iter(points)).load()
    else:
        kit = resolve_name(where)
    if kit.name != name:
        msg = f"the kit must be that of {name!r}, it is that of {kit.name!r}"
        raise LookupError(msg)
    return kit


class DriverKit:
    """The part of a kit that a backend with a driver need not write itself."""

    name: str

    def put_weights(self, model: Any, weights: list[LayerWeights]) -> None:
        """Put weights in with the driver."""
        DRIVER.of(self.name).load_weights(model, weights)

    def gradients(self, model: Any, grads: Mapping[str, Any]) -> dict[str, npt.NDArray[np.float32]]:
        """Return gradients as the driver reads them."""
        neutral = DRIVER.of(self.name).gradients(model, dict(grads))
        return {f"{w.path}.{name}": array for w in neutral for name, array in w.arrays.items()}


class Trained:
    """A prepared model and what a test does with it."""

    def __init__(
        self,
        kit: Any,
        policy: Policy | str,
        mode: str = "eager",
        optimizer: str = "sgd",
        weights: list[LayerWeights] | None = None,
        options: Mapping[str, Any] | None = None,
        **call: Any,
    ) -> None:
        """Prepare a new model of the kit.

        Args:
            kit: of the backend.
            policy: for ``prepare``.
            mode: of the step.
            optimizer: ``"sgd"``, ``"adam"``, or ``"two"``: one for fc1 and bn, one for fc2.
            weights: to start from; None for the model's own.
            options: further arguments of ``prepare``.
            call: further arguments of ``amp.step``.
        """
        self.kit = kit
        self.model = kit.model()
        if weights is not None:
            kit.put_weights(self.model, weights)
        self.optimizer = self._optimizer(optimizer)
        self.amp = prepare(self.model, self.optimizer, policy, **(options or {}))
        self.mode, self.call = mode, call
        self.use(kit.loss_fn(self.model))

    def _optimizer(self, name: str) -> Any:
        if name == "two":
            return {
                "a": self.kit.sgd_over(self.model, ("fc1", "bn"), 0.1),
                "b": self.kit.sgd_over(self.model, ("fc2",), 0.1),
            }
        if name == "adam":
            return self.kit.adam(self.model, 0.01)
        return self.kit.sgd(self.model, 0.1, 0.9)

    def use(self, loss_fn: Any, **call: Any) -> None:
        """Step by another loss function, or with other arguments of ``amp.step``."""
        self.loss_fn = loss_fn
        self._step = self.kit.stepper(self.amp, loss_fn, self.mode, **(self.call | call))

    def step(
        self, boost: float = 1.0, x: npt.NDArray[Any] = X, y: npt.NDArray[Any] = Y
    ) -> StepResult:
        """Run one step; ``boost`` multiplies the loss."""
        result: StepResult = self._step(*self.kit.batch(x, y, boost))
        return result

    def snapshot(self) -> Arrays:
        """Return copies of everything that training moves."""
        taken: Arrays = self.kit.snapshot(self.model, self.optimizer, self.amp)
        return taken


def oracle_weights() -> list[LayerWeights]:
    """Return the weights that the numpy reference starts from."""
    model = find_kit("numpy").model()
    layers: dict[str, LayerWeights] = {}
    for name, value in {**model.params, **model.buffers}.items():
        path, _, short = name.rpartition(".")
        layer = layers.setdefault(path, LayerWeights(path, model.layers[path], {}))
        layer.arrays[short] = value
    return list(layers.values())


def assert_same(before: Arrays, after: Arrays) -> None:
    """Check that two snapshots are equal, bit for bit."""
    assert before.keys() == after.keys()
    for name in before:
        np.testing.assert_array_equal(before[name], after[name], err_msg=name)

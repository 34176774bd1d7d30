"""What the conformance suite needs from a framework; one ``kit_<backend>.py`` each."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np


class Kit(Protocol):
    """One framework, made uniform for the tests."""

    name: str
    modes: tuple[str, ...]
    """Ways to run a step: ("eager",) or ("eager", "compiled"): every test runs in each."""

    saturating_steps: int
    """Overflows on the emulated device that a test draws, of which none may be missed."""

    def model(self) -> Any:
        """Return fc1 (linear 8 to 16, bias), bn (batch norm over 16, eps 1e-5, momentum 0.1),
        act (ReLU), fc2 (linear 16 to 4, bias); layers carry these names; training mode."""

    def sgd(self, model: Any, learning_rate: float, momentum: float) -> Any: ...

    def adam(self, model: Any, learning_rate: float) -> Any: ...

    def loss_fn(self, model: Any) -> Any:
        """Return f(x, y, boost) = boost * mean cross entropy of model(x); boost is a 0-d float32
        tensor: inf or 1e38 makes the gradients overflow."""

    def batch(self, x: np.ndarray, y: np.ndarray, boost: float) -> tuple[Any, Any, Any]: ...

    def stepper(self, amp: Any, loss_fn: Any, mode: str, **call: Any) -> Any:
        """Return f(*batch) -> StepResult that runs amp's step in ``mode``, keeping gradients.

        ``call`` holds further arguments of ``amp.step``: clip_norm, micro_batches, optimizer."""

    def snapshot(self, model: Any, optimizer: Any, amp: Any) -> dict[str, np.ndarray]:
        """Return copies of every parameter, master, buffer, optimizer slot and step count."""

    def layer_dtypes(self, model: Any, amp: Any, x: np.ndarray) -> dict[str, str]:
        """Return the dtype each leaf layer really handed on in one forward pass, by path;
        a simulated 16-bit dtype counts when all values are representable in it."""

    def sgd_over(self, model: Any, layers: tuple[str, ...], learning_rate: float) -> Any:
        """Return SGD with momentum 0.9 over the parameters of the layers of these names."""

    def losses(self, model: Any) -> dict[str, Any]:
        """Return {"a": f, "b": g}, both like ``loss_fn``, but f does without ``boost``."""

    def counter(self) -> tuple[Any, Any]:
        """Return (a callable without arguments that adds one to a variable of the framework,
        a function that reads it): for ``after_step``."""

    def memory(self, model: Any) -> tuple[Any, Any, Any]:
        """Return (a variable of the framework, shape (16,), float32, no part of the model; a loss
        function like ``loss_fn`` that adds 1 to it in its forward pass; a function that reads
        it): for ``guard``."""

    def emulated_ascend(self) -> Any:
        """Return the backend's context manager that emulates a saturating device."""

    def transition(self, rule: Any, state: Any, finite: bool, mode: str) -> tuple[Any, ...]:
        """Run mpcore.transition on the framework's 0-d tensors: scale float32, counts int32."""

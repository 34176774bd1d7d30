"""What the conformance suite needs from a framework; one ``kit_<backend>.py`` each."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np


class Kit(Protocol):
    """One framework, made uniform for the tests."""

    name: str
    modes: tuple[str, ...]
    """Ways to run a step: ("eager",) or ("eager", "compiled"): every test runs in each."""

    def model(self) -> Any:
        """Return fc1 (linear 8 to 16, bias), bn (batch norm over 16, eps 1e-5, momentum 0.1),
        act (ReLU), fc2 (linear 16 to 4, bias); layers carry these names; training mode."""

    def sgd(self, model: Any, learning_rate: float, momentum: float) -> Any: ...

    def adam(self, model: Any, learning_rate: float) -> Any: ...

    def loss_fn(self, model: Any) -> Any:
        """Return f(x, y, boost) = boost * mean cross entropy of model(x); boost is a 0-d float32
        tensor: inf or 1e38 makes the gradients overflow."""

    def batch(self, x: np.ndarray, y: np.ndarray, boost: float) -> tuple[Any, Any, Any]: ...

    def stepper(self, amp: Any, loss_fn: Any, mode: str, clip_norm: float | None = None) -> Any:
        """Return f(*batch) -> StepResult that runs amp's step in ``mode``, keeping gradients."""

    def snapshot(self, model: Any, optimizer: Any, amp: Any) -> dict[str, np.ndarray]:
        """Return copies of every parameter, master, buffer, optimizer slot and step count."""

    def layer_dtypes(self, model: Any, amp: Any, x: np.ndarray) -> dict[str, str]:
        """Return the dtype each leaf layer really handed on in one forward pass, by path;
        a simulated 16-bit dtype counts when all values are representable in it."""

    def transition(self, rule: Any, state: Any, finite: bool, mode: str) -> tuple[Any, ...]:
        """Run mpcore.transition on the framework's 0-d tensors: scale float32, counts int32."""

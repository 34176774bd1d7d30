"""What the conformance suite needs from a framework: a model, a loss, and ways to look inside."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy as np
    import numpy.typing as npt

    from mpcore.checkpoint.layer_weights import LayerWeights
    from mpcore.scaling.loss_scale import LossScale
    from mpcore.scaling.transition import LossScaleState
    from mpcore.step.result import StepResult

    Arrays = dict[str, npt.NDArray[Any]]

__all__ = ["Kit"]


class Kit(Protocol):
    """One framework, made uniform for the tests.

    Attributes:
        name: of the backend.
        modes: ways to run a step, ``("eager",)`` or ``("eager", "compiled")``; every test of a
            step runs in each.
        differentiates: whether the framework differentiates a loss function; False where the loss
            function returns the gradients itself.
        changes_model: whether ``prepare`` changes the model, which is then prepared once.
        optimizer_holds_parameters: whether an optimizer refers to the parameters that it moves;
            False where it knows their names and shapes alone, as in JAX.
    """

    name: str
    modes: tuple[str, ...]
    differentiates: bool
    changes_model: bool
    optimizer_holds_parameters: bool

    def model(self) -> Any:
        """Return a model of four layers, in training mode, the same at each call.

        fc1: linear 8 to 16 with bias; bn: batch norm over 16, eps 1e-5, momentum 0.1; act: ReLU;
        fc2: linear 16 to 4 with bias. The layers carry these names.
        """
        ...

    def sgd(self, model: Any, learning_rate: float, momentum: float) -> Any:
        """Return SGD over all parameters: ``b = momentum * b + g; p -= learning_rate * b``."""
        ...

    def sgd_over(self, model: Any, layers: Sequence[str], learning_rate: float) -> Any:
        """Return SGD with momentum 0.9 over the parameters of the layers of these names."""
        ...

    def adam(self, model: Any, learning_rate: float) -> Any:
        """Return Adam over all parameters, with the usual constants."""
        ...

    def loss_fn(self, model: Any) -> Callable[..., Any]:
        """Return f(x, y, boost) = boost * mean cross entropy of model(x).

        ``boost`` is a 0-d float32 tensor: inf or 1e38 makes the gradients overflow. Where the
        framework does not differentiate, f takes and returns what the backend's step needs.
        """
        ...

    def batch(self, x: npt.NDArray[Any], y: npt.NDArray[Any], boost: float) -> tuple[Any, ...]:
        """Return (x, y, boost) as the framework's tensors."""
        ...

    def stepper(self, amp: Any, loss_fn: Any, mode: str, **call: Any) -> Callable[..., StepResult]:
        """Return f(*batch) that runs amp's step in ``mode``, keeping gradients.

        ``call`` holds further arguments of ``amp.step``: clip_norm, micro_batches, optimizer.
        """
        ...

    def snapshot(self, model: Any, optimizer: Any, amp: Any) -> Arrays:
        """Return copies of every parameter, master, buffer, optimizer slot and step count."""
        ...

    def layer_dtypes(self, model: Any, amp: Any, x: npt.NDArray[Any]) -> dict[str, str]:
        """Return the dtype that each leaf layer really handed on in one forward pass, by path.

        A simulated 16-bit dtype counts when all values are representable in it. Layers that only
        follow may be left out.
        """
        ...

    def transition(
        self, rule: LossScale, state: LossScaleState, finite: bool, mode: str
    ) -> tuple[float, ...]:
        """Run ``mpcore.transition`` on the framework's 0-d tensors: scale float32, counts int32."""
        ...

    def put_weights(self, model: Any, weights: list[LayerWeights]) -> None:
        """Put weights in the neutral form into a model that is not prepared."""
        ...

    def gradients(self, model: Any, grads: Mapping[str, Any]) -> dict[str, npt.NDArray[np.float32]]:
        """Return ``StepResult.grads`` in torch's layouts, by the path of the layer and the name."""
        ...

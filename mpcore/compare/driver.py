"""What a backend provides so that an experiment can run in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    import numpy.typing as npt

    from mpcore.amp import Amp
    from mpcore.compare.experiment import OptimizerSpec
    from mpcore.compare.weights import LayerWeights, Slots
    from mpcore.convert.place import Place

__all__ = ["Driver"]


class Driver(Protocol):
    """One framework's part in a comparison; every method is a translation, none decides."""

    @property
    def files(self) -> Any:
        """What reads and writes the framework's own files, for ``mpcore convert-weights``."""
        ...

    def places(self, model: Any) -> list[dict[str, Place]]:
        """Return, for every layer of ``weights``, where its arrays are in the framework's files."""
        ...

    def seed(self, seed: int) -> None:
        """Seed the framework's random numbers."""
        ...

    def build(self, builder: Callable[[], Any], x: npt.NDArray[Any], layout: str) -> Any:
        """Return the model that ``builder`` makes, with its weights created, ready to train.

        Args:
            builder: the experiment's function for this framework.
            x: a few inputs, for frameworks that create weights at the first call.
            layout: ``"channels_first"`` if ``x`` holds images (batch, channels, height,
                width), else ``""``; a framework that wants another layout converts.
        """
        ...

    def batch(self, x: npt.NDArray[Any], y: npt.NDArray[Any], layout: str) -> tuple[Any, Any]:
        """Return inputs and targets as the framework's tensors; integers become int32 or int64."""
        ...

    def loss(self, name: str, model: Any) -> Callable[..., Any]:
        """Return ``loss_fn(x, y)`` that runs ``model``.

        Args:
            name: ``"cross_entropy"``: mean over all targets, of logits (..., classes) and
                integer targets (...); ``"mse"``: mean of squared differences.
            model: the model, its output already in the policy's output dtype.
        """
        ...

    def optimizer(self, spec: OptimizerSpec, model: Any) -> Any:
        """Return the framework's own optimizer over the trainable parameters of ``model``."""
        ...

    def weights(self, model: Any, amp: Amp | None = None) -> list[LayerWeights]:
        """Return the float32 truth of every layer with weights, buffers included.

        Args:
            model: the model.
            amp: what ``prepare`` returned for it, if it was prepared: masters live there.
        """
        ...

    def load_weights(self, model: Any, weights: list[LayerWeights], amp: Amp | None = None) -> None:
        """Put ``weights`` (already matched to this model's layers) into ``model`` and masters."""
        ...

    def gradients(self, model: Any, grads: dict[str, Any]) -> list[LayerWeights]:
        """Return ``StepResult.grads`` in the neutral form."""
        ...

    def slots(self, model: Any, amp: Amp) -> Slots:
        """Return the optimizer state in the neutral form."""
        ...

    def load_slots(self, model: Any, amp: Amp, slots: Slots) -> None:
        """Put ``slots`` into the optimizer."""
        ...

    def predict(
        self, model: Any, amp: Amp, x: npt.NDArray[Any], layout: str
    ) -> npt.NDArray[np.float32]:
        """Return the model's output in evaluation mode, under its policy, as float32."""
        ...

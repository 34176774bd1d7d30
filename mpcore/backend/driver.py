"""What a backend provides so that an experiment can run in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from mpcore.errors import ExperimentError, check_choice

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    import numpy.typing as npt

    from mpcore.backend.files import Files
    from mpcore.backend.layout import Arrays, Layout
    from mpcore.backend.loss_ops import LossOps
    from mpcore.checkpoint.layer_weights import LayerWeights, Slots
    from mpcore.checkpoint.places import Place

__all__ = ["OPTIMIZERS", "Driver", "OptimizerSpec"]

OPTIMIZERS = ("sgd", "adam", "adamw", "rmsprop", "adagrad", "adamax")
"""Those that all three frameworks have, or have once a term is added."""


@dataclass(frozen=True)
class OptimizerSpec:
    """An optimizer by its constants; every framework builds its own from them.

    Attributes:
        name: one of ``OPTIMIZERS``.
        learning_rate: > 0; a ``schedule`` of the experiment sets it before each step.
        momentum: in [0, 1), for sgd and rmsprop.
        betas: decay of the two running averages, each in [0, 1), for adam, adamw and adamax; the
            second is that of rmsprop, too.
        eps: added to the denominator, > 0, for all but sgd; of adam and adamw behind the
            bias correction, as torch does. Keras and MindSpore add it before: their drivers convert
            it at each step.
        weight_decay: >= 0; of adamw a share of the weight taken off at the learning rate, of the
            others added to the gradient, times the weight.
        nesterov: whether sgd looks ahead; needs momentum.
    """

    name: str = "sgd"
    learning_rate: float = 0.01
    momentum: float = 0.9
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        """Refuse an unknown optimizer and constants out of range."""
        check_choice("optimizer.name", self.name, OPTIMIZERS, ExperimentError)
        rules = {
            "learning_rate": (0 < self.learning_rate < float("inf"), "> 0 and finite"),
            "momentum": (0 <= self.momentum < 1, "in [0, 1)"),
            "betas": (all(0 <= beta < 1 for beta in self.betas), "two numbers in [0, 1)"),
            "eps": (self.eps > 0, "> 0"),
            "weight_decay": (0 <= self.weight_decay < float("inf"), ">= 0 and finite"),
            "nesterov": (
                not self.nesterov or (self.name == "sgd" and self.momentum > 0),
                "False but for sgd with momentum",
            ),
        }
        for name, (holds, rule) in rules.items():
            if not holds:
                msg = f"`optimizer.{name}` must be {rule}, got {getattr(self, name)!r}"
                raise ExperimentError(msg)


AmpT = TypeVar("AmpT", contravariant=True)  # the backend's own class of prepared models


class Driver(Protocol[AmpT]):
    """One framework's part in a comparison; every method is a translation, none decides."""

    @property
    def files(self) -> Files:
        """What reads and writes the framework's own files, for ``mpcore convert-weights``."""
        ...

    def places(self, model: Any) -> list[dict[str, Place]]:
        """Return, for every layer of ``weights``, where its arrays are in the framework's files."""
        ...

    def seed(self, seed: int) -> None:
        """Seed the framework's random numbers."""
        ...

    @property
    def ops(self) -> LossOps:
        """What a loss that is written once for all frameworks is made of."""
        ...

    def build(self, builder: Callable[[], Any], x: Arrays, layout: Layout) -> Any:
        """Return the model that ``builder`` makes, with its weights created, ready to train.

        Args:
            builder: the experiment's function for this framework.
            x: a few inputs, for frameworks that create weights at the first call.
            layout: what ``x`` is, of ``mpcore.backend.layout.LAYOUTS``; a framework that wants
                another layout converts.
        """
        ...

    def batch(
        self, x: Arrays, y: Arrays, layout: Layout, target_layout: Layout = ""
    ) -> tuple[Any, ...]:
        """Return inputs, then targets, as the framework's tensors; integers become int32 or int64.

        Args:
            x: inputs, one array or several.
            y: targets, one array or several.
            layout: what the inputs are.
            target_layout: what the targets are.
        """
        ...

    def forward(self, model: Any) -> Callable[..., Any]:
        """Return what runs ``model`` in training on its inputs, and returns floats as float32."""
        ...

    def loss(
        self, name: str, model: Any, *, label_smoothing: float = 0.0, layout: str = ""
    ) -> Callable[..., Any]:
        """Return ``loss_fn(*batch)`` that runs ``model``; the last of the batch is the target.

        Args:
            name: ``"cross_entropy"``: mean over all targets, of logits (..., classes) and
                integer targets (...); ``"mse"``: mean of squared differences.
            model: the model, its output already in the policy's output dtype.
            label_smoothing: share of the target that is spread over all classes.
            layout: of the targets: ``"channels_first"`` has logits (batch, classes, ...) in a
                framework that follows it.
        """
        ...

    def set_rate(self, amp: AmpT, rate: float) -> None:
        """Set the learning rate of the steps to come."""
        ...

    def optimizer(self, spec: OptimizerSpec, model: Any) -> Any:
        """Return the framework's own optimizer over the trainable parameters of ``model``."""
        ...

    def trains(self, model: Any) -> dict[str, bool]:
        """Return by path, each parameter once, whether it is trained."""
        ...

    def weights(
        self, model: Any, amp: AmpT | None = None, *, view: bool = False
    ) -> list[LayerWeights]:
        """Return the float32 truth of every layer with weights, buffers included.

        Args:
            model: the model.
            amp: what ``prepare`` returned for it, if it was prepared: masters live there.
            view: arrays may be the model's own memory: they are read at once, and not written.
        """
        ...

    def load_weights(
        self, model: Any, weights: list[LayerWeights], amp: AmpT | None = None
    ) -> None:
        """Put ``weights`` (already matched to this model's layers) into ``model`` and masters."""
        ...

    def gradients(
        self, model: Any, grads: dict[str, Any], *, view: bool = False
    ) -> list[LayerWeights]:
        """Return ``StepResult.grads`` in the neutral form."""
        ...

    def slots(self, model: Any, amp: AmpT) -> Slots:
        """Return the optimizer state in the neutral form."""
        ...

    def load_slots(self, model: Any, amp: AmpT, slots: Slots) -> None:
        """Put ``slots`` into the optimizer."""
        ...

    def predict(
        self, model: Any, amp: AmpT, x: Arrays, layout: Layout, target_layout: str = ""
    ) -> npt.NDArray[np.float32]:
        """Return the model's output in evaluation mode, under its policy, as float32.

        Examples are its first axis, and the classes of logits its last, whatever the layout.
        """
        ...

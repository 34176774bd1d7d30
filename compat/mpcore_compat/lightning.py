"""Lightning trains under a policy: one plugin, and a callback for who wants the norm logged.

``Trainer(plugins=PolicyPrecision("mixed_bfloat16"))``; checked against lightning 2.6.6.
"""

from __future__ import annotations

import copy
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from lightning.pytorch import Callback
from lightning.pytorch.callbacks import StochasticWeightAveraging, WeightAveraging
from lightning.pytorch.plugins.precision import Precision
from lightning.pytorch.utilities import GradClipAlgorithmType
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD

import mpcore as mp
from mpcore.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import torch
    from lightning.pytorch import LightningModule, Trainer
    from torch import nn

__all__ = ["PolicyMetrics", "PolicyPrecision"]

_AVERAGES = (StochasticWeightAveraging, WeightAveraging)


class PolicyPrecision(Precision):  # type: ignore[misc]  # lightning is untyped here
    """What Lightning asks of a precision, carried out by a prepared model.

    ``fit`` prepares the LightningModule when its optimizers are made and gives it back when it
    ends, so that it then holds float32 weights and can be fitted again; the loss scale goes on.
    Validation, test and prediction run under the same policy. A skipped step moves nothing, the
    schedulers of interval "step" included, but counts as a step of the trainer, as under
    Lightning's own. Gradients are true where ``on_before_optimizer_step`` sees them;
    ``gradient_clip_val`` clips as ``amp.step(clip_norm=...)`` does.

    Attributes:
        amp: the prepared model; None before the first ``fit`` and between.
    """

    amp: Any = None
    _trains = False
    _waits = False  # whether gradients wait for a step

    def __init__(self, policy: Any, **options: Any) -> None:
        """Take what ``mpcore.prepare`` takes besides the model and its optimizer."""
        super().__init__()
        self._policy = mp.Policy.of(policy)
        self._options = options
        self._clip_norm: float | None = None
        self._kept: dict[str, Any] = {}
        self._scale: Any = None

    def connect(
        self, model: nn.Module, optimizers: list[Any], lr_schedulers: list[Any]
    ) -> tuple[nn.Module, list[Any], list[Any]]:
        """Prepare the model, when its strategy has set it up.

        Raises:
            BackendError: the strategy and the policy do not go together.
        """
        self.teardown()
        module = model
        if isinstance(model, DistributedDataParallel):
            module = model.module
            self._refuse_under_ddp()
        self._refuse_averages(module)
        self._trains = bool(optimizers)
        if not optimizers:
            # It never steps; with an optimizer the float32 values are kept, to be given back.
            still = SGD(module.parameters(), 0.0)
            self.amp = mp.prepare(module, still, self._policy)
            return model, optimizers, lr_schedulers
        one = optimizers[0] if len(optimizers) == 1 else optimizers
        self.amp = mp.prepare(module, one, self._policy, **self._options)
        if self._scale is not None:
            self.amp.state = self._scale
        for config in lr_schedulers:
            if config.interval == "step":
                config.scheduler = self.amp.scheduler(config.scheduler)
        return model, optimizers, lr_schedulers

    def _refuse_averages(self, module: Any) -> None:
        written = [each for each in module.trainer.callbacks if isinstance(each, _AVERAGES)]
        if self._policy.by == "model" and written:
            msg = (
                f"{type(written[0]).__name__} is not possible under by='model': it writes 16-bit "
                "parameters past their float32 values; use `mp.EMA`, made in `on_train_start`"
            )
            raise BackendError(msg)

    def _refuse_under_ddp(self) -> None:
        if self._policy.by == "model":
            msg = (
                "by='model' is not possible under Lightning's DDP strategy, which wraps the model "
                "before there are optimizers: use by='layer' or by='op'"
            )
            raise BackendError(msg)
        if self._options.get("on_bad_micro_batch") == "drop":
            msg = (
                "`on_bad_micro_batch` must be 'skip' under Lightning's DDP strategy, which leaves "
                "the gradients of all but the last micro-batch unsynchronised"
            )
            raise BackendError(msg)

    @contextmanager
    def forward_context(self) -> Iterator[None]:
        """Run a training, validation, test or prediction step under the policy."""
        with self.amp.autocast():
            yield

    def backward(
        self,
        tensor: torch.Tensor,
        model: LightningModule,
        optimizer: Any,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        """Add scaled gradients; a LightningModule's own ``backward`` is called as ever."""
        self._waits = True
        model.backward(self.amp.grad_scaler.scale(tensor), *args, **kwargs)

    def optimizer_step(
        self, optimizer: Any, model: LightningModule, closure: Callable[[], Any], **kwargs: Any
    ) -> Any:
        """Run the closure, show true gradients to the hooks, clip; then all moves or nothing.

        Raises:
            BackendError: there are arguments for the optimizer's own step.
        """
        loss = closure()
        if loss is None and model.automatic_optimization:  # `training_step` left this batch out
            self._waits = False
            self.amp.abort_step()
            return None
        if not self._waits and model.automatic_optimization:
            return loss  # a pass for the statistics alone, of StochasticWeightAveraging
        self.amp.unscale()
        self._after_closure(model, optimizer)
        scaler = self.amp.grad_scaler
        scaler.clip(self._clip_norm)
        self._clip_norm, self._waits = None, False
        scaler.step(optimizer, **kwargs)
        scaler.update()
        if not model.automatic_optimization:
            self.amp.autocast()  # what runs from here on belongs to the next step
        return loss

    def clip_gradients(
        self,
        optimizer: Any,
        clip_val: float = 0.0,
        gradient_clip_algorithm: GradClipAlgorithmType = GradClipAlgorithmType.NORM,
    ) -> None:
        """Clip by value now, by norm within the step."""
        if clip_val <= 0:
            return
        if gradient_clip_algorithm == GradClipAlgorithmType.VALUE:
            self.amp.unscale()  # in manual optimization nobody has
            self.clip_grad_by_value(optimizer, clip_val)
        else:
            self._clip_norm = float(clip_val)

    def state_dict(self) -> dict[str, Any]:
        """Return ``amp.state_dict()``; after ``fit``, that of its end."""
        if self.amp is None or not self._trains:
            return self._kept
        return dict(self.amp.state_dict())

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Resume; where nothing is trained, the weights alone matter, and those are loaded."""
        if self.amp is not None and self._trains:
            self.amp.load_state_dict(state_dict)

    def teardown(self) -> None:
        """Give the model back in float32, and keep what a checkpoint saved now needs."""
        amp, self.amp = self.amp, None
        if amp is None:
            return
        if self._waits:
            self._waits = False
            amp.abort_step()
        if self._trains:
            self._kept, self._scale = copy.deepcopy(amp.state_dict()), amp.state
        amp.release()


class PolicyMetrics(Callback):  # type: ignore[misc]  # lightning is untyped here
    """Logs the true norm of the gradients, the loss scale and the count of skipped steps."""

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """Log where the trainer logs; looking at the norm waits for the device."""
        amp = trainer.precision_plugin.amp
        if amp.last is None or trainer.global_step % trainer.log_every_n_steps:
            return
        values = {
            "grad_norm": amp.last.grad_norm,
            "loss_scale": amp.last.next_scale,
            "skipped_steps": float(amp.state.skipped_steps),
        }
        pl_module.log_dict(values, on_step=True, on_epoch=False)

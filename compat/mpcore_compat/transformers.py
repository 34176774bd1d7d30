"""HF Trainer under a policy: one call before ``train``; checked against transformers 5.23.0.

``train_under(trainer, "mixed_bfloat16")``
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback

from mpcore.errors import BackendError
from mpcore_compat.accelerate import under_policy

if TYPE_CHECKING:
    from transformers import Trainer

__all__ = ["PolicyCallback", "train_under"]


def train_under(trainer: Trainer, policy: Any, **options: Any) -> Trainer:
    """Let ``trainer`` train and evaluate under ``policy``; returns the same one.

    The Trainer's own arguments hold: ``max_grad_norm``, ``gradient_accumulation_steps``, its
    schedulers, which a skipped step does not move, its checkpoints, which hold the loss scale and
    the float32 values in ``scaler.pt``. ``grad_norm`` in its logs is the true norm; beside it
    stand ``loss_scale`` and ``skipped_steps``. After ``train`` the model stays prepared;
    ``trainer.accelerator.free_memory()`` gives it back, in float32.

    Args:
        trainer: before its first ``train`` or ``evaluate``.
        policy: as for ``mpcore.prepare``.
        options: further arguments of ``mpcore.prepare``.

    Raises:
        BackendError: it has a mixed precision of its own (``fp16``, ``bf16``), or has prepared a
            model already.
    """
    args = trainer.args
    for name in ("fp16", "bf16", "fp16_full_eval", "bf16_full_eval"):
        if getattr(args, name, False):
            msg = f"`{name}` must be False beside a policy, which decides what runs in 16 bits"
            raise BackendError(msg)
    under_policy(trainer.accelerator, policy, **options)
    make = trainer.create_accelerator_and_postprocess

    def make_again() -> None:  # each trial of a hyperparameter search has an accelerator of its own
        make()
        under_policy(trainer.accelerator, policy, **options)

    trainer.create_accelerator_and_postprocess = make_again
    # Before those that report: they shall get what it adds.
    trainer.callback_handler.callbacks.insert(0, PolicyCallback(trainer))
    return trainer


class PolicyCallback(TrainerCallback):  # type: ignore[misc]  # transformers is untyped here
    """Adds the loss scale and the count of skipped steps to what the Trainer logs."""

    def __init__(self, trainer: Trainer) -> None:
        """Look at the prepared model of ``trainer``."""
        self._trainer = trainer

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **_: Any
    ) -> None:
        """Add to what is logged of a training step."""
        amp = self._trainer.accelerator.amp
        if amp is None or not logs or "grad_norm" not in logs:
            return
        more = {"loss_scale": amp.scale, "skipped_steps": float(amp.state.skipped_steps)}
        logs.update(more)
        state.log_history[-1].update(more)

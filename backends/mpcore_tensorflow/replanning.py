"""A prepared Keras model that changes its plan while it trains: ``on_overflow="keep full"``."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from mpcore.backend.backend import find_backend
from mpcore.capabilities.capabilities import honour
from mpcore.step.transaction import Latest, StepCall
from mpcore_tensorflow.casting import apply_plan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mpcore.policy.plan import Plan
    from mpcore.policy.policy import Policy
    from mpcore_tensorflow.amp import KerasAmp

__all__ = ["put_plan", "seen_in_fit"]


def put_plan(amp: KerasAmp, policy: Policy) -> Plan:
    """Carry ``policy`` out on the model of ``amp``; return its plan.

    Raises:
        BackendError: Keras cannot honour it; nothing has changed.
    """
    model, backend = amp.model, find_backend(amp.model)
    strict = amp.arguments is None or amp.arguments.strict
    can = backend.capabilities(model)
    plan, _ = honour(policy, backend.layers(model), can, strict=strict)
    guard: Any = amp.optimizer.guard
    with amp.guard.opened():
        apply_plan(model, plan, guard)
    return plan


def seen_in_fit(model: keras.Model, data: Any, step: int) -> Latest:
    """Return a batch of ``fit`` as the arguments of a step."""
    # What is not given comes as an Optional without a value.
    given = keras.tree.map_structure(_or_none, data)
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(given)

    def loss_fn(x: Any, y: Any, sample_weight: Any) -> Any:
        with _metrics_kept(model):
            y_pred = _called(model)(x)
            return model._compute_loss(
                x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=True
            )

    return Latest(loss_fn, (x, y, sample_weight), StepCall(), None, step)


def _or_none(value: Any) -> Any:
    return None if isinstance(value, tf.experimental.Optional) else value


def _called(model: keras.Model) -> Callable[[Any], Any]:
    if model._call_has_training_arg:
        return lambda x: model(x, training=True)
    return lambda x: model(x)


@contextlib.contextmanager
def _metrics_kept(model: keras.Model) -> Iterator[None]:
    """Let metrics that follow the loss count no batch twice."""
    held = [(v, v.numpy()) for metric in model.metrics for v in metric.variables]
    try:
        yield
    finally:
        for variable, value in held:
            variable.assign(value)

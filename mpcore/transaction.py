"""One training step as a transaction: the acts in their order, and the record of what happened."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from mpcore.errors import BackendError
from mpcore.scaling import LossScale, transition

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["StepResult", "Transaction", "check_clip_norm"]


class Transaction:
    """The acts of one step, in order, over primitives that a framework carries out.

    Either everything moves (weights, optimizer state and count, buffers) or only the state of
    the loss scale does. The two methods here run as they stand in eager code, inside
    ``tf.function``, and compiled by MindSpore's graph compiler, which reads their source: so
    they hold plain calls, no branch on a tensor, and return plain tuples.

    Cost of a step beyond forward, backward and update: one pass over the gradients to unscale
    and one for their norms, linear in the number of parameters; one copy of the buffers.

    Attributes:
        rule: constants of the loss scale.
    """

    rule: LossScale

    def transact(self, clip_norm: float | None, *batch: Any) -> tuple[Any, ...]:
        """Run one step and return (loss, finite, norms, scale, next scale, gradients).

        Args:
            clip_norm: largest allowed L2 norm of the true gradients, or None.
            batch: passed on to ``differentiate``.
        """
        state = self.scale_state()
        saved = self.begin()
        loss, grads = self.differentiate(state[0], *batch)
        finite, norms, next_scale, grads = self.settle(state, saved, grads, clip_norm)
        return loss, finite, norms, state[0], next_scale, grads

    def settle(
        self, state: Any, saved: Any, grads: Any, clip_norm: float | None
    ) -> tuple[Any, Any, Any, Any]:
        """Judge the gradients of the scaled loss, then commit or restore, then move the scale.

        Args:
            state: what ``scale_state`` gave; its scale multiplied the loss.
            saved: what ``begin`` gave.
            grads: gradients of the scaled loss; may be changed in place.
            clip_norm: as for ``transact``.

        Returns:
            (finite, norms, next scale, true gradients before clipping).
        """
        grads = self.unscale(grads, state[0])
        norms = self.norms(grads)
        # After the division, not before: it can overflow itself when the scale is below 1,
        # and no non-finite value becomes finite by it.
        finite = self.all_finite(grads, norms)
        ready = grads if clip_norm is None else self.clip(grads, norms, clip_norm)
        done = self.commit(finite, ready, saved)
        new = transition(self.rule, state, finite, self.where, self.narrow)
        next_scale = self.store(new, done)
        return finite, norms, next_scale, grads

    # The primitives. Each is one or two calls of the framework.

    def scale_state(self) -> Any:
        """Return the fields of ScaleState of the step that begins."""
        raise NotImplementedError

    def begin(self) -> Any:
        """Return what ``restore`` needs: the buffers that a forward pass changes."""
        raise NotImplementedError

    def differentiate(self, scale: Any, *batch: Any) -> tuple[Any, Any]:
        """Return the float32 loss and the gradients of loss times scale."""
        raise NotImplementedError

    def unscale(self, grads: Any, scale: Any) -> Any:
        """Return the gradients in float32, divided by the scale."""
        raise NotImplementedError

    def norms(self, grads: Any) -> Any:
        """Return the L2 norm of each gradient, float32, shape (tensors,)."""
        raise NotImplementedError

    def all_finite(self, grads: Any, norms: Any) -> Any:
        """Return whether no gradient element is inf or NaN, exactly, agreed over all ranks."""
        raise NotImplementedError

    def clip(self, grads: Any, norms: Any, clip_norm: float) -> Any:
        """Return the gradients scaled so that their total norm is at most ``clip_norm``."""
        raise NotImplementedError

    def commit(self, finite: Any, grads: Any, saved: Any) -> Any:
        """Apply the optimizer if ``finite``, else put the buffers back; return a token."""
        raise NotImplementedError

    def where(self, condition: Any, x: Any, y: Any) -> Any:
        """Return ``x`` where ``condition`` holds, else ``y``."""
        raise NotImplementedError

    def narrow(self, value: Any) -> Any:
        """Return a product of the scale in the scale's own format; float32 tensors have it."""
        return value

    def store(self, new: Any, done: Any) -> Any:
        """Keep the new scale state, after ``done``; return the new scale."""
        raise NotImplementedError


def check_clip_norm(clip_norm: float | None) -> None:
    """Raise BackendError unless ``clip_norm`` is None or a positive finite number."""
    if clip_norm is not None and not 0 < clip_norm < math.inf:
        msg = f"`clip_norm` must be finite and > 0, or None, got {clip_norm!r}"
        raise BackendError(msg)


class StepResult:
    """What one step did. Values stay on their device until they are looked at.

    Attributes:
        grads: true float32 gradients by parameter path, before clipping, in the framework's
            own tensors; empty unless the step was asked to keep them.
    """

    __slots__ = ("_cache", "_names", "_raw", "_to_numpy", "grads")

    def __init__(
        self,
        raw: Sequence[Any],
        names: Sequence[str],
        to_numpy: Callable[[Any], Any],
        grads: dict[str, Any] | None = None,
    ) -> None:
        """Wrap (loss, finite, norms, scale, next scale) of one step.

        Args:
            raw: the five values, on their device.
            names: parameter paths, in the order of ``norms``.
            to_numpy: turns one of the values into a numpy array or number.
            grads: gradients by parameter path, if kept.
        """
        self._raw = tuple(raw)
        self._names = names
        self._to_numpy = to_numpy
        self._cache: dict[int, Any] = {}
        self.grads = grads or {}

    def _value(self, index: int) -> Any:
        if index not in self._cache:
            self._cache[index] = np.asarray(self._to_numpy(self._raw[index]))
        return self._cache[index]

    @property
    def loss(self) -> float:
        """Unscaled loss, as the loss function returned it, in float32."""
        return float(self._value(0))

    @property
    def stepped(self) -> bool:
        """Whether weights, optimizer state and buffers moved."""
        return bool(self._value(1))

    @property
    def grad_norm(self) -> float:
        """L2 norm of all true gradients before clipping; non-finite on a skipped step."""
        return float(np.linalg.norm(self._value(2).astype(np.float64)))

    @property
    def scale(self) -> float:
        """Loss scale that this step was run with."""
        return float(self._value(3))

    @property
    def next_scale(self) -> float:
        """Loss scale of the next step."""
        return float(self._value(4))

    @property
    def culprit(self) -> str | None:
        """Path of the first parameter with a non-finite gradient; None after a real step."""
        if self.stepped:
            return None
        bad = np.flatnonzero(~np.isfinite(self._value(2)))
        return self._names[int(bad[0])] if bad.size else None

    @property
    def reason(self) -> str | None:
        """Why the step was skipped, in words; None after a real step."""
        if self.stepped:
            return None
        if not math.isfinite(self.loss):
            return f"the loss is {self.loss}: the forward pass left the range of its format"
        return f"non-finite gradients, first in {self.culprit}, at scale {self.scale:g}"

    def to_dict(self) -> dict[str, Any]:
        """Return the record of this step, ready for JSON; non-finite numbers become text."""
        record = {
            "loss": self.loss,
            "grad_norm": self.grad_norm,
            "scale": self.scale,
            "next_scale": self.next_scale,
            "stepped": self.stepped,
            "reason": self.reason,
            "culprit": self.culprit,
        }
        return {
            name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in record.items()
        }

    def __repr__(self) -> str:
        """Return the record in one line."""
        inside = ", ".join(f"{name}={value!r}" for name, value in self.to_dict().items())
        return f"StepResult({inside})"

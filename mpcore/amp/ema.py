"""An average of the weights in float32, whatever the model's parameters are stored in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mpcore.errors import BackendError, check_count

if TYPE_CHECKING:
    import numpy.typing as npt

    from mpcore.amp.amp import Amp
    from mpcore.step.result import StepResult

__all__ = ["EMA"]


class EMA:
    """Exponential moving average of the float32 master values of a prepared model.

    An average that is kept in bfloat16 stops moving: at decay 0.999 its steps are smaller than half
    the spacing of the format. This one is float32, of ``amp.weights()``: parameters and floating
    buffers. It moves after each step taken by ``amp.step``, torch's ``amp.apply``, Keras' ``fit``
    and MindSpore's ``amp.callback()``, and not after a skipped one.

    Cost: one copy of the weights to the host for each step that is followed, and 4 bytes a
    parameter there; ``every=10`` follows one step taken in ten.

    Args:
        amp: what ``mpcore.prepare`` returned.
        decay: share of the old average that stays, in [0, 1).
        every: follow every so many steps taken, >= 1.

    Raises:
        BackendError: ``decay`` or ``every`` is out of its range.

    Example::

        average = mp.EMA(amp, decay=0.999)
        for x, y in batches:
            amp.step(loss_fn, x, y)
        with average:  # the model has the averaged weights
            evaluate(model)
    """

    follows_each_step = True  # Keras' fit must not tell of several at once

    def __init__(self, amp: Amp, decay: float = 0.999, every: int = 1) -> None:
        if not isinstance(decay, int | float) or isinstance(decay, bool) or not 0 <= decay < 1:
            msg = f"`decay` must be in [0, 1), got {decay!r}"
            raise BackendError(msg)
        check_count("every", every, BackendError)
        if not (hasattr(amp, "observers") and hasattr(amp, "weights")):
            msg = (
                f"`amp` must be what mpcore.prepare returned, got {type(amp).__name__}; write "
                "EMA(amp), not EMA(model)"
            )
            raise BackendError(msg)
        self._amp, self._decay, self._every = amp, np.float32(decay), every
        self._steps = 0
        self._values = _copied(amp.weights())
        self._put_aside: dict[str, npt.NDArray[np.float32]] | None = None
        amp.observers.append(self._follow)

    def weights(self) -> dict[str, npt.NDArray[np.float32]]:
        """Return the averages by the framework's path; ``amp.load_weights`` takes them."""
        return _copied(self._values)

    def _follow(self, result: StepResult) -> None:
        if not result.stepped:
            return
        if self._put_aside is not None:
            msg = "`amp.step` must not run inside `with average:`: the model has averaged weights"
            raise BackendError(msg)
        self._steps += 1
        if self._steps % self._every:
            return
        now = self._amp.weights()
        for name in self._values.keys() - now.keys():
            del self._values[name]
        for name, value in now.items():
            average = self._values.get(name)
            if average is None or average.shape != value.shape:
                self._values[name] = np.array(value, np.float32)  # a buffer that is new
                continue
            average += (value - average) * (np.float32(1) - self._decay)

    def close(self) -> None:
        """Follow no more steps; the averages stay."""
        if self._follow in self._amp.observers:
            self._amp.observers.remove(self._follow)

    def __enter__(self) -> EMA:
        """Give the model the averaged weights."""
        if self._put_aside is not None:
            msg = "`with average:` must not be entered twice at once"
            raise BackendError(msg)
        self._put_aside = self._give(self._values)
        self._amp.lent += 1
        return self

    def __exit__(self, *_: object) -> None:
        """Give it its own weights back."""
        weights, self._put_aside = self._put_aside, None
        if weights is not None:
            self._amp.lent -= 1
            self._give(weights)

    def _give(
        self, values: dict[str, npt.NDArray[np.float32]]
    ) -> dict[str, npt.NDArray[np.float32]]:
        """Put ``values`` into the model and return its own; a buffer that is new keeps its own."""
        before = self._amp.weights()
        given = {name: values.get(name, own) for name, own in before.items()}
        self._amp.load_weights(
            {
                name: new if new.shape == before[name].shape else before[name]
                for name, new in given.items()
            }
        )
        return before


def _copied(
    weights: dict[str, npt.NDArray[np.float32]],
) -> dict[str, npt.NDArray[np.float32]]:
    return {name: np.array(value, np.float32) for name, value in weights.items()}

"""Record what a port trains by value_and_grad and MindSpore's loss scalers, or by train cells.

Losses are what is differentiated, before it is scaled; a planted overflow multiplies one of them by
infinity. Nothing is compiled here; ``compiled_recorder`` records what is.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from mpcore_port.mindspore.cell_recorder import CellRecorder, is_of_script

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["record_native"]


class _Native(CellRecorder):
    def __init__(self, recorder: Any, ms: Any, mode: str) -> None:
        super().__init__(recorder, ms, mode)
        self.scaled: Any = None
        self.plants = self.bare = False  # bare: a planted loss that no scaler scales

    def value_and_grad(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def made(fn: Any, *args: Any, **kwargs: Any) -> Any:
            if self.recorder.inside or not is_of_script(fn):
                return original(fn, *args, **kwargs)
            return self._watched(fn, original, args, kwargs)

        return made

    def _watched(self, fn: Any, original: Any, args: Any, kwargs: Any) -> Any:
        aux = bool(kwargs.get("has_aux"))

        def forward(*batch: Any) -> Any:
            self.scaled = None
            value = fn(*batch)
            first = value[0] if aux else value
            self.bare = self.scaled is None
            if self.bare:
                self.scaled = first
                if self.plants:
                    first = first * float("inf")
            return (first, *value[1:]) if aux else first

        run = original(forward, *args, **kwargs)

        def grad_fn(*batch: Any) -> Any:
            self.plants = self.recorder.begin()
            result = run(*batch)
            self.recorder.ended(float(self.scaled.asnumpy()))
            if self.plants and self.bare:  # its gradients alone are infinite
                value, grads = result
                result = ((self.scaled, *value[1:]) if aux else self.scaled), grads
            self.plants = False
            return result

        return grad_fn

    def scale(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def run(scaler: Any, inputs: Any) -> Any:
            self.scaled = inputs
            if self.plants:
                inputs = inputs * float("inf")
            return inputs if self.mode == "float32" else original(scaler, inputs)

        return run

    def unscale(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def run(scaler: Any, inputs: Any) -> Any:
            return inputs if self.mode == "float32" else original(scaler, inputs)

        return run

    def adjust(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def run(scaler: Any, finite: Any) -> Any:
            if self.mode == "float32":
                return True
            answer = original(scaler, finite)
            if getattr(scaler, "dynamic", True):
                self.recorder.write("scale", _scale_of(scaler))
            return answer

        return run

    def train_cell(self, amp: Any, make: Callable[..., Any], loss_fn: Any, **options: Any) -> Any:
        aux = bool(options.get("has_aux"))
        options = {**options, "compiled": False}  # masks come from outside: ``masks.py``

        def watched(*batch: Any) -> Any:
            values = loss_fn(*batch)
            self.scaled = first = values[0] if aux else values
            first = first * float("inf") if self.plants else first
            return (first, *values[1:]) if aux else first

        cell = make(watched, **options)

        def run(*batch: Any) -> Any:
            self.plants = self.recorder.begin()
            self.recorder.inside = True
            try:
                raw = cell(*batch)
            finally:
                self.recorder.inside = self.plants = False
            self.told(amp, raw, float(self.scaled.asnumpy()))
            return raw

        return run


def _scale_of(scaler: Any) -> float:
    held = getattr(scaler, "scale_value", None)
    return float(held.asnumpy()) if held is not None else float(scaler.get_scale())


def record_native(recorder: Any, ms: Any, mode: str) -> None:
    """Put recording functions in the place of MindSpore's, in this process, for good.

    Args:
        recorder: has ``inside`` (whether it records by itself now), ``begin()`` (called in front
            of a loss; whether its gradients are to be infinite), ``ended(loss)`` and ``write``.
        ms: MindSpore.
        mode: as in ``replay``.
    """
    from mpcore_port_runtime.apex import LossScaler
    from mpcore_port_runtime.handed_scalers import HandedScaler

    native = _Native(recorder, ms, mode)
    native.install()
    ms.value_and_grad = native.value_and_grad(ms.value_and_grad)
    own: tuple[Any, ...] = (ms.amp.DynamicLossScaler, HandedScaler)
    for cls in (*own, ms.amp.StaticLossScaler, LossScaler):
        cls.scale, cls.unscale = native.scale(cls.scale), native.unscale(cls.unscale)
    for cls in own:
        cls.adjust = native.adjust(cls.adjust)

"""Record what ``ms.jit`` compiles: a port's steps and train cells, from outside of their graphs.

A compiled function cannot write down what happens in it. Its loss is left in a Parameter, a planted
overflow comes in by another, and that an optimizer moved is seen by its weights and its state.
"""

from __future__ import annotations

import functools
import hashlib
from typing import TYPE_CHECKING, Any

from mpcore_port.mindspore.cell_recorder import CellRecorder, is_of_script

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["record_compiled"]

_NEVER = 2**30  # steps until a scale grows


class _Compiled(CellRecorder):
    def __init__(self, recorder: Any, ms: Any, mode: str) -> None:
        super().__init__(recorder, ms, mode)
        # In float64: the compiler of 2.10 takes a smoothed loss for one, and casts no Parameter.
        self.loss = ms.Parameter(ms.Tensor(0.0, ms.float64), "mpcore_loss", requires_grad=False)
        self.plant = ms.Parameter(ms.Tensor(1.0, ms.float32), "mpcore_plant", requires_grad=False)
        self.made: list[Any] = []
        self.scalers: list[Any] = []

    def forward(self, fn: Any, aux: bool) -> Any:
        """Return ``fn`` with its loss kept, and infinite where one is planted."""
        ops, float64, loss, plant = self.ms.ops, self.ms.float64, self.loss, self.plant
        plants = self.mode == "overflow"

        def forward(*batch: Any) -> Any:
            values = fn(*batch)
            first = values[0] if aux else values
            ops.assign(loss, ops.cast(first, float64))
            if plants:
                first = first * ops.cast(plant, first.dtype)
            return (first, *values[1:]) if aux else first

        return forward

    def value_and_grad(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def made(fn: Any, *args: Any, **kwargs: Any) -> Any:
            if not is_of_script(fn):
                return original(fn, *args, **kwargs)
            self.made.append(
                original(self.forward(fn, bool(kwargs.get("has_aux"))), *args, **kwargs)
            )
            return self.made[-1]

        return made

    def jit(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def jit(fn: Any = None, **options: Any) -> Any:
            if fn is None:
                return functools.partial(jit, **options)
            compiled = original(fn, **options)
            return self.watched(fn, compiled) if is_of_script(fn) else compiled

        return jit

    def watched(self, fn: Any, compiled: Any) -> Any:
        """Return a compiled function of the script that records what its calls did."""
        moves = "adjust" in fn.__code__.co_names

        @functools.wraps(fn)
        def run(*args: Any, **kwargs: Any) -> Any:
            trains = any(value is one for value in _seen(fn) for one in self.made)
            planted = trains and self.recorder.begin()
            scale, before = self.scale(), self.states()
            result = self.planted(planted, lambda: compiled(*args, **kwargs))
            if trains:
                self.recorder.ended(float(self.loss.asnumpy()) / scale)
            self.moved(before)
            if moves and self.scalers and self.mode != "float32":
                self.recorder.write("scale", self.scale())
            return result

        return run

    def planted(self, planted: bool, run: Callable[[], Any]) -> Any:
        """Run with an infinite loss, or as it is."""
        if not planted:
            return run()
        one = self.plant.asnumpy().copy()
        self.ms.ops.assign(self.plant, self.ms.Tensor(float("inf"), self.ms.float32))
        try:
            return run()
        finally:
            self.ms.ops.assign(self.plant, self.ms.Tensor(one))

    def scale(self) -> float:
        """Return what the losses are multiplied by now: 1 without a scaler."""
        held = [float(scaler.scale_value.asnumpy()) for scaler in self.scalers]
        return held[-1] if held and self.mode != "float32" else 1.0

    def states(self) -> list[str]:
        """Return a digest of each optimizer's weights and state."""
        found = []
        for optimizer in self.recorder.optimizers:
            digest = hashlib.sha256()
            for held in (*optimizer.parameters, *optimizer.get_parameters()):
                digest.update(held.asnumpy().tobytes())
            found.append(digest.hexdigest())
        return found

    def moved(self, before: list[str]) -> None:
        """Record the optimizers that moved since."""
        for optimizer, old, new in zip(
            self.recorder.optimizers, before, self.states(), strict=True
        ):
            if new != old:
                self.recorder.write("step", type(optimizer).__name__)

    def scaler(self, cls: Any) -> None:
        """Remember the dynamic scalers; in float32 their scale is one and stays so."""
        original = cls.__init__

        @functools.wraps(original)
        def init(scaler: Any, *args: Any, **kwargs: Any) -> None:
            original(scaler, *args, **kwargs)
            self.scalers.append(scaler)
            if self.mode == "float32":
                held = scaler.scale_value
                held.set_data(self.ms.ops.ones_like(held))
                scaler.scale_window = _NEVER

        cls.__init__ = init

    def train_cell(self, amp: Any, make: Callable[..., Any], loss_fn: Any, **options: Any) -> Any:
        cell = make(self.forward(loss_fn, bool(options.get("has_aux"))), **options)

        def run(*batch: Any) -> Any:
            planted = self.recorder.begin()
            raw = self.planted(planted, lambda: cell(*batch))
            self.told(amp, raw, float(self.loss.asnumpy()))
            return raw

        return run


def _seen(fn: Any) -> list[Any]:
    """Return what a function reads from around it."""
    cells = [cell.cell_contents for cell in fn.__closure__ or ()]
    return cells + [fn.__globals__[name] for name in fn.__code__.co_names if name in fn.__globals__]


def record_compiled(recorder: Any, ms: Any, mode: str) -> None:
    """Put recording functions around what MindSpore compiles, in this process, for good.

    Args:
        recorder: as of ``record_native``, with ``optimizers``, all that were made.
        ms: MindSpore.
        mode: as in ``replay``.
    """
    one = _Compiled(recorder, ms, mode)
    one.install()
    ms.value_and_grad, ms.jit = one.value_and_grad(ms.value_and_grad), one.jit(ms.jit)
    one.scaler(ms.amp.DynamicLossScaler)

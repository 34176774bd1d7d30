"""What both recorders of ports share: prepared models, and what their train cells give."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["CellRecorder", "is_of_script"]


class CellRecorder:
    """Records train cells; subclasses say how one is made and run.

    Args:
        recorder: has ``begin()``, ``ended(loss)`` and ``write(kind, value)``.
        ms: MindSpore.
        mode: as in ``replay``.
    """

    def __init__(self, recorder: Any, ms: Any, mode: str) -> None:
        self.recorder, self.ms, self.mode = recorder, ms, mode

    def install(self) -> None:
        """Have models prepared for recording, in float32 without a policy."""
        import mpcore

        mpcore.prepare = self._prepare(mpcore.prepare)
        if self.mode == "float32":
            self.ms.amp.auto_mixed_precision = lambda network, *_, **__: network
        else:
            self.ms.amp.auto_mixed_precision = self._lowered(self.ms.amp.auto_mixed_precision)

    def _lowered(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Say in front what no kernel of the CPU build does: what it raises names an operator."""

        @functools.wraps(original)
        def run(network: Any, level: str = "O0", dtype: Any = None) -> Any:
            from mpcore_port_runtime.regions import check_dtype

            lower = self.ms.float16 if dtype is None else dtype
            check_dtype(lower)
            return original(network, level, lower)

        return run

    def _prepare(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def run(model: Any, optimizer: Any, policy: Any, **options: Any) -> Any:
            used = "float32" if self.mode == "float32" else policy
            amp = original(model, optimizer, used, **options)
            if "train_cell" not in vars(amp):  # the same arguments give the same object
                amp.train_cell = functools.partial(self.train_cell, amp, amp.train_cell)
            return amp

        return run

    def train_cell(self, amp: Any, make: Callable[..., Any], loss_fn: Any, **options: Any) -> Any:
        """Return a train cell that records its calls."""
        raise NotImplementedError

    def told(self, amp: Any, raw: Any, loss: float) -> None:
        """Record what a train cell gave: its loss, whether it stepped, its scale."""
        self.recorder.ended(loss)
        if bool(raw[1]):
            self.recorder.write("step", type(amp.optimizer).__name__)
        if self.mode != "float32" and str(amp.policy) != "float32":
            self.recorder.write("scale", float(raw[4].asnumpy()))


def is_of_script(fn: Any) -> bool:
    """Return whether a function is the script's own, no framework's."""
    return not getattr(fn, "__module__", "").startswith(("mindspore", "mpcore"))

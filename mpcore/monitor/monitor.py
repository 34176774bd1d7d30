"""The monitor: it makes a record of each step that it looks at, and hands it to its sinks."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from mpcore.errors import BackendError, check_count
from mpcore.monitor.advice import Advice, advise
from mpcore.monitor.sinks import JsonLines, Memory, Sink

if TYPE_CHECKING:
    from mpcore.amp import Amp
    from mpcore.step_result import StepResult

__all__ = ["Monitor"]


class Monitor:
    """Follows the steps of a prepared model.

    ``amp.step``, torch's ``amp.apply`` and MindSpore's ``amp.callback()`` are followed without
    any further call; Keras' ``fit`` keeps no record of its steps, so it is not.

    A step that is looked at waits for the device once, to read some ten numbers; between them
    nothing is read.

    Args:
        amp: what ``mpcore.prepare`` returned.
        sinks: where records go: a path (a JSON Lines file), or a Sink. None of them: memory.
        every: look at every so many steps, >= 1.
        keep: records that are kept for ``advice``, the latest.

    Raises:
        BackendError: ``every`` or ``keep`` is no whole number >= 1, or a sink is none.

    Example::

        with mp.Monitor(amp, "steps.jsonl", mp.monitor.Live()) as monitor:
            for x, y in batches:
                amp.step(loss_fn, x, y)
                monitor.log(learning_rate=schedule(step))
        print(monitor.advice())
    """

    def __init__(
        self,
        amp: Amp,
        *sinks: Sink | str | os.PathLike[str],
        every: int = 1,
        keep: int = 1000,
    ) -> None:
        check_count("every", every, BackendError)
        check_count("keep", keep, BackendError)
        self._recent = Memory(keep)
        self._sinks: list[Sink] = [self._recent, *map(_as_sink, sinks)]
        self._amp, self._every = amp, every
        self._step = 0
        self._start = time.perf_counter()
        self._more: dict[str, Any] = {}
        amp.observers.append(self._follow)

    @property
    def records(self) -> list[dict[str, Any]]:
        """The latest records, oldest first."""
        return list(self._recent.records)

    def log(self, **values: float) -> None:
        """Add numbers of your own, such as a learning rate, to the next record."""
        self._more.update(values)

    def _follow(self, result: StepResult) -> None:
        self._step += 1
        if self._step % self._every:
            return
        record = {
            "step": self._step,
            "seconds": round(time.perf_counter() - self._start, 3),
            **result.to_dict(),
            "skipped_steps": int(self._amp.state.skipped_steps),
            **self._more,
        }
        self._more.clear()
        for sink in self._sinks:
            sink.write(record)

    def advice(self) -> list[Advice]:
        """Return what the latest records suggest; empty for a healthy run."""
        return advise(self.records, self._amp.policy)

    def close(self) -> None:
        """Follow no more steps, and end the sinks; may be called twice."""
        if self._follow in self._amp.observers:
            self._amp.observers.remove(self._follow)
            for sink in self._sinks:
                sink.close()

    def __enter__(self) -> Monitor:
        """Return the monitor."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()


def _as_sink(given: Sink | str | os.PathLike[str]) -> Sink:
    if isinstance(given, str | os.PathLike):
        return JsonLines(given)
    if isinstance(given, Sink):
        return given
    msg = f"`sinks` must be paths or Sink objects, got {type(given).__name__}"
    raise BackendError(msg)

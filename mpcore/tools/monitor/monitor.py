"""The monitor: it makes a record of each step that it looks at, and hands it to its sinks."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from mpcore.backend.parts import CALLBACK
from mpcore.errors import BackendError, check_count
from mpcore.tools.monitor.advice import Advice, advise
from mpcore.tools.monitor.layers import measure_layers
from mpcore.tools.monitor.sinks import JsonLines, Memory, Sink

if TYPE_CHECKING:
    from collections.abc import Callable

    from mpcore.amp.amp import Amp
    from mpcore.step.result import StepResult

__all__ = ["Monitor"]


class Monitor:
    """Follows the steps of a prepared model.

    ``amp.step``, torch's ``amp.apply``, Keras' ``fit`` and MindSpore's ``amp.callback()`` are
    followed without any further call; ``fit`` under ``steps_per_execution`` > 1 with
    ``callbacks=[monitor.callback()]``.

    A step that is looked at waits for the device once, to read some ten numbers; between them
    nothing is read.

    Args:
        amp: what ``mpcore.prepare`` returned.
        sinks: where records go: a path (a JSON Lines file), or a Sink. None of them: memory.
        every: look at every so many steps, >= 1.
        keep: records that are kept for ``advice``, the latest.
        layers: look into the layers every so many steps, a multiple of ``every``; None never does.
            Such a step has to keep its gradients: ``keep_grads=monitor.sample()``.

    Raises:
        BackendError: ``every``, ``keep`` or ``layers`` is no such number, or a sink is none.

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
        layers: int | None = None,
    ) -> None:
        check_count("every", every, BackendError)
        check_count("keep", keep, BackendError)
        if layers is not None:
            check_count("layers", layers, BackendError)
            if layers % every:
                msg = f"`layers` must be a multiple of every={every}, got {layers}"
                raise BackendError(msg)
        self._recent = Memory(keep)
        self._sinks: list[Sink] = [self._recent, *map(_as_sink, sinks)]
        self._amp, self._every, self._layers = amp, every, layers
        self._before: dict[str, Any] | None = None
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

    def sample(self) -> bool:
        """Return whether the next step is one whose layers are looked at, right before it.

        If so, the weights are copied to the host, to see how far the step moves them.

        Example::

            amp.step(loss_fn, x, y, keep_grads=monitor.sample())
        """
        due = self._layers is not None and (self._step + 1) % self._layers == 0
        self._before = self._amp.weights() if due else None
        return due

    def callback(self) -> Any:
        """Return a callback for Keras' ``fit``, or for MindSpore's ``Model.train``.

        Keras' ``fit`` needs none but under ``steps_per_execution`` > 1. Then records hold the mean
        loss since the epoch began, the loss scale of the record before and of now, and whether no
        step between was skipped; ``grad_norm`` is None.

        Raises:
            BackendError: the framework has no callbacks; ``amp.step`` is followed without.
        """
        return CALLBACK.of(self._amp.backend.name)(self._amp, self._take)

    def _follow(self, result: StepResult) -> None:
        before, self._before = self._before, None
        looked = before is not None and result.grads
        self._take(1, lambda: result.to_dict() | (self._seen(result, before) if looked else {}))

    def _seen(self, result: StepResult, before: Any) -> dict[str, Any]:
        return {"layers": measure_layers(self._amp, result, before)}

    def _take(self, steps: int, read: Callable[[], dict[str, Any]]) -> None:
        """Count steps, and make a record of the latest if one is due."""
        last = self._step // self._every
        self._step += steps
        if self._step // self._every == last:
            return
        record = {
            "step": self._step,
            "seconds": round(time.perf_counter() - self._start, 3),
            **read(),
            "skipped_steps": int(self._amp.state.skipped_steps),
            **self._more,
        }
        self._more.clear()
        for sink in self._sinks:
            sink.write(record)

    def advice(self) -> list[Advice]:
        """Return what the latest records suggest; empty for a healthy run."""
        return advise(self.records, self._amp.policy, self._amp.plan)

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

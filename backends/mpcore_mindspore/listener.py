"""The steps of a MindSpore script in eager mode: Cells, and the calls of optimizers.

The loss is that of a loss Cell outside of the network, where there is one.

Tried with mindspore 2.10.0 on CPU; on Ascend it was not run.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import mindspore as ms
from mindspore import Tensor, nn

from mpcore.errors import BackendError
from mpcore.tools.inspection.recorder import FORWARD
from mpcore_mindspore.layers import parameter_paths
from mpcore_mindspore.tap import Tap

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mpcore.backend.listener import Told
    from mpcore_mindspore.amp import MindsporeAmp

__all__ = ["listen"]

_WORDS = {
    "learning_rate": "rate",
    "beta1": "beta1",
    "beta2": "beta2",
    "eps": "eps",
    "momentum": "momentum",
    "nesterov": "nesterov",
    "use_nesterov": "nesterov",
}


def listen(model: Any, amp: MindsporeAmp | None, told: Told) -> Callable[[], None]:
    """Follow the steps; see ``mpcore.backend.listener.Listener``."""
    if ms.get_context("mode") != ms.PYNATIVE_MODE:
        msg = (
            "a run must be recorded in PYNATIVE_MODE, got GRAPH_MODE, where no Cell is called: "
            "call ms.set_context(mode=ms.PYNATIVE_MODE) before"
        )
        raise BackendError(msg)
    return _Listening(model, amp, told).end


class _Listening:
    """What is replaced from one step to the next, and while a step is recorded."""

    def __init__(self, model: Any, amp: MindsporeAmp | None, told: Told) -> None:
        self._model, self._amp, self._told = model, amp, told
        self._paths = parameter_paths(model)
        self._inside = {id(cell) for _, cell in model.cells_and_names()}
        self._step: contextlib.ExitStack | None = None
        self._ended = False
        self._stay = contextlib.ExitStack()
        self._stay.enter_context(_optimizers_heard(self._moved))
        self._begin()

    def end(self) -> None:
        self._ended = True
        self._close()
        self._stay.close()

    def _begin(self) -> None:
        calls = self._told.wanted()
        if calls is None:
            return
        self._step, self._begun = contextlib.ExitStack(), False
        tap = Tap(self._model, self._amp, calls)
        around = tap._around

        def call(cell: Any, run: Any, args: Any, kwargs: Any) -> Any:
            if not self._begun and id(cell) in self._inside:
                self._begun = True
                self._told.begun(bytes(str(ms.get_rng_state().asnumpy().tolist()), "ascii"))
            result = around(cell, run, args, kwargs)
            if isinstance(cell, nn.LossBase) and id(cell) not in self._inside:
                self._lost(args, result)
            return result

        tap._around = call  # type: ignore[method-assign]
        self._step.enter_context(tap.open())
        self._step.enter_context(calls.running(FORWARD))

    def _lost(self, args: Any, result: Any) -> None:
        if isinstance(result, Tensor) and result.size == 1:
            targets = [x.asnumpy() for x in args[1:2] if isinstance(x, Tensor)]
            self._told.loss(float(result.asnumpy().reshape(())), targets)

    def _close(self) -> None:
        if self._step is not None:
            self._step.close()
        self._step = None

    def _moved(self, optimizer: Any, run: Callable[..., Any], args: Any) -> Any:
        paths = dict(self._paths)
        if self._amp is not None:
            masters = self._amp.masters
            named = {p.name: id(p) for p in self._model.get_parameters()}
            paths |= {id(m): paths[named[n]] for n, m in masters.items() if n in named}
        params = list(optimizer.parameters)
        if not any(id(p) in paths for p in params):
            return run()
        if self._step is not None:
            known = zip(params, args[0], strict=False)
            grads = {paths[id(p)]: g for p, g in known if id(p) in paths}
            self._told.updates(grads, _settings(optimizer, list(grads)))
        result = run()
        if not self._ended:
            self._close()
            self._told.updated()
            if not self._ended:
                self._begin()
        return result


def _settings(optimizer: Any, arrays: list[str]) -> dict[str, Any]:
    """Return what an optimizer of one group is set to; schedules and groups are not read."""
    told: dict[str, Any] = {}
    if not optimizer.is_group:
        for name, word in _WORDS.items():
            value = getattr(optimizer, name, None)
            if isinstance(value, Tensor) and value.size == 1:
                value = float(value.asnumpy().reshape(()))
            if isinstance(value, bool | int | float):
                told[word] = value
    return {"type": type(optimizer).__name__, "groups": [{"arrays": arrays, **told}]}


@contextlib.contextmanager
def _optimizers_heard(moved: Callable[..., Any]) -> Iterator[None]:
    had = "__call__" in vars(nn.Optimizer)
    original = nn.Optimizer.__call__

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        # As it is now: while a step is recorded the call of all Cells is another one.
        run = original if had else nn.Cell.__call__
        return moved(self, lambda: run(self, *args, **kwargs), args)

    nn.Optimizer.__call__ = call
    try:
        yield
    finally:
        if had:
            nn.Optimizer.__call__ = original
        else:
            del nn.Optimizer.__call__

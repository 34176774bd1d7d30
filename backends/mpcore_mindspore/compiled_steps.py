"""``amp.step`` compiled, where that was tried and gave the same numbers: ``prepare(compile=...)``.

The first batch goes through both, the compiled step and the eager one, from the same state; what
stays is the eager one's. From then on the compiled step runs, as long as no Python value that it
has frozen becomes another. Nothing here compiles a step that it could not watch: see ``frozen``.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import mindspore as ms
import numpy as np
from mindspore import Tensor, ops
from mindspore.common.seed import _KERNEL_SEED

from mpcore._lib.callers import warn_user
from mpcore_mindspore.frozen import Frozen, UnwatchableError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mpcore.step.transaction import StepCall
    from mpcore_mindspore.amp import MindsporeAmp
    from mpcore_mindspore.step import TrainCell

__all__ = ["CompiledSteps"]

_KINDS = 4  # shapes of a batch that are compiled
_AGAIN = 3  # a further shape is tried when it comes so often
_TRIES = 8  # batches of which an overflow hides the numbers
_PLAIN = (bool, int, float, str, type(None))
# Four units in the last place of what a step computes in, of a loss or of a gradient's norm.
_TOLERANCE = {"float16": 2.0**-8, "bfloat16": 2.0**-5, "float32": 1e-4}


class _Numbers(NamedTuple):
    """What two ways to take a step are compared by."""

    loss: float
    stepped: list[bool]
    norms: Any
    moved: dict[str, float]


class _Kind:
    """One shape of the batch: how often it came, and whether it runs compiled."""

    def __init__(self) -> None:
        self.came = self.tried = 0
        self.good = False


class _Step:
    """One loss function with its options."""

    def __init__(self, name: str) -> None:
        self.name, self.why = name, ""
        self.cell: TrainCell | None = None
        self.frozen: Frozen | None = None
        self.kinds: dict[Any, _Kind] = {}


class CompiledSteps:
    """Chooses for each step of one prepared network how it runs.

    Attributes:
        said: by the name of the loss function, what was done with it and why.
    """

    def __init__(self, amp: MindsporeAmp, choice: str) -> None:
        """Choose as ``prepare(compile=choice)`` says; ``amp`` asks before each step."""
        self._amp, self._choice = amp, choice
        self._steps: dict[Any, _Step] = {}
        self.said: dict[str, str] = {}

    def clear(self) -> None:
        """Forget the compiled steps."""
        self._steps.clear()

    def run(self, eager: TrainCell, loss_fn: Any, call: StepCall, batch: list[Any]) -> Any:
        """Run one step, ``eager`` unless something else is chosen; return what a cell returns."""
        if self._choice == "never" or ms.get_context("mode") == ms.GRAPH_MODE:
            return eager.run_once(*batch)
        step = self._step(loss_fn, call)
        if self._choice == "always":
            if step.cell is None:
                step.cell = self._amp._train_cell(loss_fn, call, compiled=True)
                self.said[step.name] = "compiled, as compile='always' asks; no numbers were checked"
            return step.cell.run_once(*batch)
        kind = None if step.why else self._kind(step, batch)
        if kind is None:
            return eager.run_once(*batch)
        if kind.good and step.cell is not None and step.frozen is not None:
            changed = step.frozen.changed()
            if not changed:
                return step.cell.run_once(*batch)
            self._refuse(step, f"{changed} has changed, which a graph keeps as it was")
            return eager.run_once(*batch)
        return self._try(step, kind, eager, loss_fn, call, batch)

    def _step(self, loss_fn: Any, call: StepCall) -> _Step:
        key = (tuple(loss_fn.items()) if isinstance(loss_fn, dict) else loss_fn, call)
        if key not in self._steps:
            name = getattr(loss_fn, "__qualname__", type(loss_fn).__name__)
            self._steps[key] = _Step(name)
            why = self._outside(loss_fn) if self._choice == "auto" else ""
            if why:
                self._refuse(self._steps[key], why)
        return self._steps[key]

    def _outside(self, loss_fn: Any) -> str:
        """Return why nothing is tried, ``""`` if something is."""
        bindings = self._amp._bindings
        if bindings.after_step:
            return "`after_step` is called by Python"
        if bindings.detection.detector.kind == "status_register":
            return "overflows are read from a status register"
        parallel = ms.get_auto_parallel_context("parallel_mode")
        if bindings.detection.rank_sum is not None or parallel != "stand_alone":
            return "the ranks of a distributed run would have to agree"
        return ""

    def _kind(self, step: _Step, batch: list[Any]) -> _Kind | None:
        """Return the kind of this batch if it is compiled, or is to be tried now."""
        if not all(isinstance(item, (Tensor, *_PLAIN)) for item in batch):
            self._refuse(step, "the batch holds something else than Tensors and numbers")
            return None
        key = tuple(
            (tuple(item.shape), str(item.dtype)) if isinstance(item, Tensor) else (type(item), item)
            for item in batch
        )
        first = not step.kinds
        kind = step.kinds.setdefault(key, _Kind()) if len(step.kinds) < 64 else step.kinds.get(key)
        if kind is None or kind.good:
            return kind
        kind.came += 1
        room = sum(other.tried > 0 for other in step.kinds.values()) < _KINDS
        return kind if first or kind.tried or (kind.came >= _AGAIN and room) else None

    def _refuse(self, step: _Step, why: str) -> None:
        step.why, step.cell, step.frozen = why, None, None
        self.said[step.name] = f"eager: {why}"
        msg = f"compile='auto': `{step.name}` runs eagerly, {why}"
        warn_user(msg)

    def _try(
        self,
        step: _Step,
        kind: _Kind,
        eager: TrainCell,
        loss_fn: Any,
        call: StepCall,
        batch: list[Any],
    ) -> Any:
        """Take the step in both ways; return what the eager one returns."""
        amp, start = self._amp, time.monotonic()
        kind.tried += 1
        before = amp._read_weights()
        try:
            losses = list(loss_fn.values()) if isinstance(loss_fn, dict) else [loss_fn]
            if step.frozen is None:
                step.frozen = Frozen(losses, amp.model, amp.optimizers.values())
            if step.cell is None:
                step.cell = amp._train_cell(loss_fn, call, compiled=True)
            with _undone(amp):
                compiled = _numbers(amp, step.cell.run_once(*batch), before)
        except UnwatchableError as found:
            self._refuse(step, str(found))
        except Exception as error:  # whatever the compiler says, the eager step is there
            self._refuse(step, f"it does not compile: {_first_line(error)}")
        drawn = _draws()
        raw = eager.run_once(*batch)
        if step.why or step.frozen is None:
            return raw
        taken = _numbers(amp, raw, before)
        if changed := step.frozen.changed():
            self._refuse(step, f"{changed} is changed by a step")
        elif drawn != _draws():
            self._refuse(step, "it draws random numbers, which a graph may draw again")
        elif not (all(compiled.stepped) and all(taken.stepped)):
            if kind.tried >= _TRIES:
                self._refuse(step, f"{_TRIES} steps overflowed, so that no numbers were compared")
        elif far := _apart(compiled, taken, _TOLERANCE[amp.policy.compute]):
            self._refuse(step, f"its compiled numbers are others: {far}")
        else:
            kind.good = True
            seconds = time.monotonic() - start
            self.said[step.name] = (
                f"compiled: loss {compiled.loss:.7g}, eager {taken.loss:.7g} on the batch that was "
                f"tried, which took {seconds:.1f} s"
            )
        return raw


def _numbers(amp: MindsporeAmp, raw: tuple[Any, ...], before: dict[str, Any]) -> _Numbers:
    loss, stepped, norms = (np.array(item.asnumpy()) for item in raw[:3])
    after = amp._read_weights()
    moved = {path: float(np.linalg.norm(after[path] - old)) for path, old in before.items()}
    return _Numbers(float(loss), stepped.reshape(-1).tolist(), norms, moved)


def _apart(one: _Numbers, two: _Numbers, tolerance: float) -> str:
    """Return how two steps differ by more than rounding, ``""`` if they do not."""
    if not abs(one.loss - two.loss) <= tolerance * max(1.0, abs(two.loss)):
        return f"loss {one.loss:.7g}, eager {two.loss:.7g}"
    total = float(np.linalg.norm(two.norms))
    room = tolerance * np.maximum(two.norms, 0.1 * total)
    if not (np.abs(one.norms - two.norms) <= room).all():
        return f"norm of the gradients {np.linalg.norm(one.norms):.7g}, eager {total:.7g}"
    for path, far in two.moved.items():
        if not abs(one.moved[path] - far) <= 0.1 * far:
            return f"{path} moves by {one.moved[path]:.4g}, eager {far:.4g}"
    return ""


def _draws() -> tuple[bytes, dict[Any, Any]]:
    """Return what tells whether random numbers were drawn, but for kernels with their own."""
    return ms.get_rng_state().asnumpy().tobytes(), dict(_KERNEL_SEED)


def _first_line(error: BaseException) -> str:
    lines = (line.strip("- ") for line in str(error).splitlines())
    return next(filter(None, lines), type(error).__name__)


@contextlib.contextmanager
def _undone(amp: MindsporeAmp) -> Iterator[None]:
    """Put back all that a step moves when the block ends, however it ends."""
    bindings = amp._bindings
    storages = bindings.storages
    without = {id(param) for storage in storages for param in storage.memoryless}
    beside = [p for s in storages for state in s.masters for p in state.beside.values()]
    moments = [moment.stored for storage in storages for moment in storage.moments]
    own = [p for bound in bindings.optimizers.values() for p in bound.optimizer.get_parameters()]
    guarded = [live for live, _ in (*bindings.saved.buffers, *bindings.saved.rounded)]
    scale = [bindings.scale.scale, bindings.scale.counts, bindings.counter.steps]
    every = [*amp.model.get_parameters(), *beside, *moments, *own, *guarded, *scale]
    bindings.take_memory()  # reading the optimizers' Parameters has given it
    live = {id(param): param for param in every if id(param) not in without}.values()
    before = [(param, _copy(param)) for param in live]
    random, seeds = ms.get_rng_state(), dict(_KERNEL_SEED)

    def put_back() -> None:
        for param, value in before:
            ops.assign(param, value)
        ms.set_rng_state(random)
        _KERNEL_SEED.clear()
        _KERNEL_SEED.update(seeds)

    try:
        yield
    finally:
        try:
            put_back()
        except BaseException:  # a second Ctrl-C: all of it once more
            put_back()
            raise


def _copy(param: Any) -> Any:
    """Return the values of a Parameter in memory of their own."""
    if param.dtype == ms.bfloat16:  # numpy has none
        return Tensor(param.astype(ms.float32).asnumpy().copy()).astype(ms.bfloat16)
    return Tensor(ms.Parameter.asnumpy(param).copy(), param.dtype)

"""The transaction in numpy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mpcore.errors import BackendError
from mpcore.numerics.dtypes import round_to
from mpcore.numerics.overflow import OverflowDetector, find_detector
from mpcore.scaling.transition import LossScaleState, initial_state, inverse, narrow
from mpcore.step.micro_batches import cut
from mpcore.step.stagnation import measures
from mpcore.step.transaction import StepOptions, Transaction
from mpcore_numpy.ascend import EmulatedAscend
from mpcore_numpy.master_weights import Masters

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy.typing as npt

    from mpcore.policy.plan import Plan
    from mpcore_numpy.model import SGD, Adam, Model

    Arrays = dict[str, npt.NDArray[np.float32]]

__all__ = ["NumpyTransaction"]


class NumpyTransaction(Transaction):
    """The primitives, each as plain as it can be said.

    Attributes:
        hold: called when a commit begins; see ``mpcore.Amp.held``.
        late: what failed when the step could not be stopped any more.
    """

    def __init__(
        self, model: Model, optimizers: Mapping[str, SGD | Adam], plan: Plan, options: StepOptions
    ) -> None:
        self.model, self.optimizers, self.rule = model, optimizers, plan.policy.scaling
        self.state = initial_state(self.rule)
        self.drops = options.on_bad_micro_batch == "drop"
        self.taking: list[SGD | Adam] = []
        self._after_step = options.after_step
        self._guarded = [*model.buffers.values(), *_arrays(options.restore_on_skip)]
        self._compute = {entry.path: entry.compute for entry in plan.layers}
        self._measures = measures(plan.policy, options.count_lost_updates)
        self.lost: npt.NDArray[np.float32] | None = None
        self.hold: Callable[[], None] = lambda: None
        self.late: list[BaseException] = []
        device = EmulatedAscend.active()
        kinds = {"values": OverflowDetector()}
        if device is not None:
            kinds["status_register"] = device.detector
        self.detector = find_detector(
            options.detector, kinds, "values" if device is None else "status_register"
        )
        self.has_register = self.detector.kind == "status_register"
        # Last, when nothing is refused any more: the model's arrays become what 16 bits read.
        self.masters = Masters(model, plan)

    def cast(self, path: str, x: npt.ArrayLike) -> npt.NDArray[np.float32]:
        """Return ``x`` rounded to the compute dtype of a layer; "follow" changes nothing."""
        dtype = self._compute[path]
        value = np.asarray(x, np.float32) if dtype == "follow" else round_to(x, dtype)
        device = EmulatedAscend.active()
        if device is None:
            return value
        return device.store(value, "float32" if dtype == "follow" else dtype)

    def stored(self) -> Arrays:
        """Return the parameters as the forward pass reads them."""
        return {
            name: self.cast(name.rpartition(".")[0], value)
            for name, value in self.model.params.items()
        }

    def begin(self) -> tuple[LossScaleState, list[npt.NDArray[np.float32]]]:
        """Begin with the detector; copy what is guarded."""
        if self.has_register:
            self.detector.begin()
        return self.state, self.save_buffers()

    def save_buffers(self) -> list[npt.NDArray[np.float32]]:
        """Copy what is guarded."""
        return [array.copy() for array in self._guarded]

    def restore(self, saved: list[npt.NDArray[np.float32]]) -> None:
        """Put back what ``save_buffers`` copied."""
        for array, copy in zip(self._guarded, saved, strict=True):
            array[...] = copy

    def differentiate(self, scale: float, index: int, count: int, *batch: Any) -> tuple[Any, Any]:
        """Run ``batch[0]``, the loss function or several, on the rest or a part of it."""
        losses, *inputs = batch
        if count > 1:
            inputs = [cut(item, index, count) for item in inputs]
        if not isinstance(losses, dict):
            loss, grads = self._one(losses, scale, inputs)
            wanted = {name for optimizer in self.taking for name in optimizer.names}
            return loss, {name: g for name, g in grads.items() if name in wanted}
        total, merged = np.float32(0), dict[str, Any]()
        for name, loss_and_grads in losses.items():
            loss, grads = self._one(loss_and_grads, scale, inputs)
            total = total + loss
            merged |= {key: grads[key] for key in self.optimizers[name].names}
        return total, {name: merged[name] for name in self.model.params if name in merged}

    def _one(self, loss_and_grads: Any, scale: float, inputs: list[Any]) -> tuple[Any, Arrays]:
        loss, grads = loss_and_grads(
            self.stored(), self.model.buffers, self.cast, np.float32(scale), *inputs
        )
        return np.float32(loss), grads

    def check_part(self, grads: Arrays, before: list[npt.NDArray[np.float32]]) -> bool:
        """Look at every element."""
        clean = _all_finite(grads)
        if not clean:
            self.restore(before)
        return clean

    def fold(
        self, clean: Any, sums: tuple[Any, Arrays, Any] | None, loss: Any, grads: Arrays
    ) -> tuple[Any, Arrays, Any]:
        """Add up; a bad micro-batch adds nothing."""
        if sums is None:
            if clean:
                return loss, grads, np.float32(1)
            return loss, {name: np.zeros_like(g) for name, g in grads.items()}, np.float32(0)
        total, summed, count = sums
        if clean is None:
            return total + loss, _sums(summed, grads), count
        if not clean:
            return sums
        return (total if count else np.float32(0)) + loss, _sums(summed, grads), count + 1

    def unscale(self, grads: Arrays, scale: float) -> tuple[Arrays, Any, tuple[bool, ...]]:
        """Multiply by 1 / scale in float32; look at every element."""
        factor = np.float32(inverse(float(scale)))
        true = {name: np.asarray(g, np.float32) * factor for name, g in grads.items()}
        norms = np.array([np.linalg.norm(g) for g in true.values()], np.float32)
        owned = [{n: true[n] for n in opt.names if n in true} for opt in self.taking]
        return true, norms, tuple(_all_finite(own) for own in owned)

    def total_norms(self, grads: Arrays, norms: npt.NDArray[np.float32]) -> tuple[Any, ...]:
        """Return the norm of all, or that of each optimizer that is judged alone."""
        # Of one element, not of none: numpy 1 adds a Python number to a scalar in float64.
        length = dict(zip(grads, norms, strict=True))
        return tuple(
            np.array([np.linalg.norm([length[name] for name in names])], np.float32)
            for names in self._judged(grads)
        )

    def multiply(self, grads: Arrays, factors: tuple[Any, ...]) -> Arrays:
        """Multiply in float32."""
        return {
            name: grads[name] * np.float32(factor.item())
            for names, factor in zip(self._judged(grads), factors, strict=True)
            for name in names
        }

    def _judged(self, grads: Arrays) -> list[tuple[str, ...]]:
        """Return the names of all gradients, or those of each optimizer that is judged alone."""
        if self.rule.skip_scope == "optimizer":
            return [tuple(n for n in opt.names if n in grads) for opt in self.taking]
        return [tuple(grads)]

    def commit(
        self, stepped: tuple[bool, ...], finite: bool, grads: Arrays, saved: Any, new: Any
    ) -> float:
        """Let those optimizers step that may; then follow, or put back what is guarded."""
        self.hold()
        if not finite:
            self.restore(saved)
        moving = [opt for opt, takes in zip(self.taking, stepped, strict=True) if takes]
        names = {name for opt in moving for name in opt.names if name in grads}
        before = self.masters.watched(names) if self._measures else {}
        scale, *counts = new
        after = LossScaleState(float(scale), *(int(count) for count in counts))
        follow = list(self._after_step) if finite else []
        calls, put_back = len(follow), self.masters.keep(moving)
        self.late = []
        try:
            for optimizer in moving:
                self.masters.step(optimizer, {n: grads[n] for n in optimizer.names if n in grads})
            self.masters.steps += any(stepped)
            self.lost = self.masters.lost(before, grads) if self._measures else None
            while follow:
                follow.pop(0)()  # on one line: no fault comes between
            self.state = after
        except BaseException as error:
            if len(follow) == calls:
                put_back()
                raise
            self.late.append(error)
            self._follow(follow)
            self.state = after
        return float(scale)

    def _follow(self, calls: list[Any]) -> None:
        """Make the calls that are left; what they raise comes later."""
        while calls:
            try:
                calls.pop(0)()
            except BaseException as error:
                self.late.append(error)

    def where(self, condition: Any, x: Any, y: Any) -> Any:
        """Choose by numpy's own."""
        return np.where(condition, x, y)

    def narrow(self, value: Any) -> float:
        """Return a number in the format of the scale."""
        return narrow(self.rule, float(value))


def _all_finite(grads: Arrays) -> bool:
    return all(bool(np.isfinite(g).all()) for g in grads.values())


def _sums(grads: Arrays, others: Arrays) -> Arrays:
    return {name: np.asarray(g, np.float32) + others[name] for name, g in grads.items()}


def _arrays(guard: tuple[Any, ...]) -> list[npt.NDArray[Any]]:
    """Return the arrays of models, dicts and arrays."""
    found: list[npt.NDArray[Any]] = []
    for entry in guard:
        if isinstance(entry, np.ndarray):
            found.append(entry)
        elif isinstance(entry, dict):
            found += _arrays(tuple(entry.values()))
        elif hasattr(entry, "params") and hasattr(entry, "buffers"):
            found += [*entry.params.values(), *entry.buffers.values()]
        else:
            kind = type(entry).__name__
            msg = f"`restore_on_skip` must hold arrays, dicts of them or models, got {kind}"
            raise BackendError(msg)
    return found

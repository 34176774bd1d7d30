"""What is stored of 16-bit parameters between steps, by scheme; see ``numerics.master_weights``.

The model's own arrays stay float32: they hold what the 16-bit parameter reads. A scheme is two
functions, ``_CLOSE`` and ``_OPEN``, over the parts that are really stored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mpcore.numerics import master_weights as arithmetic
from mpcore.numerics.dtypes import is_low, round_to
from mpcore.step.stagnation import count_lost, sample

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import numpy.typing as npt

    from mpcore.policy.plan import Plan
    from mpcore_numpy.model import SGD, Adam, Model

    Arrays = dict[str, npt.NDArray[np.float32]]
    Parts = tuple[npt.NDArray[Any], ...]  # the parameter in 16 bits, then what is kept beside it

__all__ = ["Masters"]


class Masters:
    """The stored parts of every 16-bit parameter of a model.

    Attributes:
        parts: by parameter path: the 16-bit parameter, then what its scheme keeps beside it.
        steps: real steps so far, which stochastic rounding draws its noise by.
    """

    def __init__(self, model: Model, plan: Plan) -> None:
        """Close the float32 values of ``model`` into parts."""
        self._model, self._scheme = model, plan.policy.scheme
        self._half_state = plan.policy.optimizer_state == "bfloat16"
        stored = {entry.path: entry.param for entry in plan.layers}
        dtypes = {name: stored[name.rpartition(".")[0]] for name in model.params}
        self._low = {name: dtype for name, dtype in dtypes.items() if is_low(dtype)}
        self.steps = 0
        self.parts: dict[str, Parts] = {}
        for name, dtype in self._low.items():
            if self._scheme.name == "none":
                model.params[name][...] = round_to(model.params[name], dtype)
            else:
                self._close(name, nearest=True)

    def truth(self, name: str) -> npt.NDArray[np.float32]:
        """Return the float32 truth of one parameter; a new array."""
        if name not in self.parts:
            return self._model.params[name].copy()
        return _OPEN[self._scheme.name](self._scheme.rounding, self.parts[name])

    def saved(self, name: str) -> npt.NDArray[np.float32]:
        """Return the truth, such that ``put`` makes the same parts of it again."""
        if self._scheme.name == "kahan" and name in self.parts:
            return arithmetic.restore_for_saving(*self.parts[name])
        return self.truth(name)

    def put(self, name: str, values: npt.NDArray[np.float32]) -> None:
        """Make ``values`` the truth of one parameter."""
        self._model.params[name][...] = values
        if name in self.parts:
            self._close(name, nearest=True)
        elif name in self._low:
            self._model.params[name][...] = round_to(values, self._low[name])

    def step(self, optimizer: SGD | Adam, grads: Arrays) -> None:
        """Let ``optimizer`` move the float32 truth of the parameters that have a gradient."""
        for name in grads:
            self._model.params[name][...] = self.truth(name)
        optimizer.step(grads)
        for ordinal, name in enumerate(optimizer.names):
            if name in grads and name in self.parts:
                self._close(name, ordinal=ordinal)
            elif name in grads and name in self._low:
                value = self._model.params[name]
                value[...] = round_to(value, self._low[name])
        if self._half_state:
            for slot in optimizer.slots.values():
                for moment in slot.values():
                    moment[...] = round_to(moment, "bfloat16")

    def keep(self, optimizers: Iterable[SGD | Adam]) -> Callable[[], None]:
        """Return what puts everything back that a step of ``optimizers`` moves: from copies.

        A reference can afford them.
        """
        kept = [*optimizers]
        arrays = [*self._model.params.values()]
        arrays += [m for opt in kept for slot in opt.slots.values() for m in slot.values()]
        copies = [array.copy() for array in arrays]
        parts, steps, counts = dict(self.parts), self.steps, [opt.steps for opt in kept]

        def put_back() -> None:
            for array, copy in zip(arrays, copies, strict=True):
                array[...] = copy
            for optimizer, count in zip(kept, counts, strict=True):
                optimizer.steps = count
            self.parts, self.steps = dict(parts), steps

        return put_back

    def _close(self, name: str, *, ordinal: int = 0, nearest: bool = False) -> None:
        """Store what the model's array holds, and let the array hold what the parameter reads."""
        value, scheme = self._model.params[name], self._scheme
        if self._low[name] == "float16":  # of the schemes, copy alone is for it
            with np.errstate(over="ignore"):
                self.parts[name] = (value.astype(np.float16), value.copy())
            value[...] = self.parts[name][0]
            return
        if scheme.name == "stochastic" and not nearest:
            chance = arithmetic.noise(scheme.seed, self.steps, ordinal, value.size)
            self.parts[name] = (arithmetic.round_stochastic(value, chance),)
        else:
            self.parts[name] = _CLOSE[scheme.name](scheme.rounding, value)
        value[...] = arithmetic.widen(self.parts[name][0])

    def watched(self, names: Iterable[str]) -> dict[str, npt.NDArray[np.float32]]:
        """Return the sampled elements in which a lost update would show."""
        return {name: self.truth(name).reshape(-1)[_sampled(self._model, name)] for name in names}

    def lost(
        self, before: dict[str, npt.NDArray[np.float32]], grads: Arrays
    ) -> npt.NDArray[np.float32]:
        """Return (lost, updates) for each of ``grads``, zeros for what is not in ``before``."""
        counts = np.zeros((len(grads), 2), np.float32)
        after = self.watched(before)
        for row, (name, grad) in enumerate(grads.items()):
            if name in before:
                sampled = np.asarray(grad).reshape(-1)[_sampled(self._model, name)]
                counts[row] = count_lost(before[name], after[name], sampled)
        return counts

    def array_bytes(self, optimizers: Iterable[SGD | Adam], grads: Iterable[str]) -> dict[str, int]:
        """Return the bytes by kind; see ``Amp.array_bytes``.

        16-bit parameters are imitated in float32 arrays, which count; moments count as kept.
        """
        params = self._model.params
        moment = 2 if self._half_state else 4
        return {
            "parameters": sum(value.nbytes for value in params.values()),
            "gradients": sum(params[name].nbytes for name in grads),
            "masters": sum(part.nbytes for parts in self.parts.values() for part in parts[1:]),
            "optimizer": sum(
                moment * optimizer.slots[slot][name].size
                for optimizer in optimizers
                for slot in optimizer.slots
                for name in optimizer.names
            ),
        }


def _sampled(model: Model, name: str) -> npt.NDArray[np.int64]:
    return sample(model.params[name].size)


def _close_stochastic(_: str, value: npt.NDArray[np.float32]) -> Parts:
    # the first rounding, of given weights, is no update: nothing is gained by chance
    return (arithmetic.round_bits(value),)


_CLOSE: dict[str, Callable[[str, npt.NDArray[np.float32]], Parts]] = {
    "copy": lambda rounding, value: (arithmetic.round_bits(value, rounding), value.copy()),
    "split": lambda rounding, value: arithmetic.split(value, rounding),
    "kahan": lambda _, value: arithmetic.compensate(value),
    "stochastic": _close_stochastic,
}

_OPEN: dict[str, Callable[[str, Parts], npt.NDArray[np.float32]]] = {
    "copy": lambda _, parts: parts[1].copy(),
    "split": lambda rounding, parts: arithmetic.join(parts[0], parts[1], rounding, parts[2]),
    "kahan": lambda _, parts: arithmetic.restore(parts[0], parts[1]),
    "stochastic": lambda _, parts: arithmetic.widen(parts[0]),
}

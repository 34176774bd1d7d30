"""The calls of one batch as dtypes alone: what ``observe`` makes of a recording."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from mpcore.policy.coverage import Products
from mpcore.tools.inspection.record import Request
from mpcore.tools.inspection.recorder import BACKWARD, FORWARD, LOSS, Calls, RunningCall
from mpcore.tools.inspection.trace import Call, LayerTrace, OpCall, Trace, widest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from mpcore.tools.inspection.recorder import CalledLayer, OpNames, Outcome, SeenTensor

__all__ = ["DtypeCall", "Dtypes", "Kernels", "floats_of"]


@dataclass
class Kernels:
    """Dtypes of kernels, in order of appearance; where there are products, they count."""

    products: dict[str, None] = field(default_factory=dict)
    others: dict[str, None] = field(default_factory=dict)

    def add(self, dtype: str, *, product: bool) -> None:
        """Take one."""
        (self.products if product else self.others)[dtype] = None

    def dtypes(self) -> tuple[str, ...]:
        """Return what counts."""
        return tuple(self.products or self.others)


@dataclass(eq=False)
class DtypeCall(RunningCall[str]):
    """One call of one layer; tensors of the base are dtypes of floats.

    Attributes:
        params: the parameters are stored in.
        peak: of the first float that came in, as ``SeenTensor.largest_whole``.
        kernels: of the forward pass.
        grad_kernels: of the backward pass.
    """

    params: tuple[str, ...] = ()
    peak: float = 0.0
    kernels: Kernels = field(default_factory=Kernels)
    grad_kernels: Kernels = field(default_factory=Kernels)

    def finished(self) -> Call:
        """Return what was seen."""
        return Call(
            _distinct(self.inputs),
            self.params,
            self.kernels.dtypes(),
            _distinct(self.outputs),
            _distinct(self.grad_outputs.values()),
            self.grad_kernels.dtypes(),
            _distinct(self.grad_inputs.values()),
        )


def _distinct(dtypes: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(filter(None, dtypes)))


class Dtypes(Calls[DtypeCall, str]):
    """Keeps the dtypes of what goes in and out of layers, of their kernels, of ops around them."""

    values = False

    def __init__(self, names: OpNames, *, backward: bool = True) -> None:
        """Know the framework's ops; gradients are seen with ``backward``."""
        super().__init__(Request(backward=backward), names)
        self._ops: dict[OpCall, int] = {}
        self._function: Kernels | None = None  # of the function outside of layers that runs
        self._named: tuple[str, tuple[str, ...]] = ("", ())  # it, and the parameters it got
        self._work: dict[tuple[str, str, str], int] = {}
        self.clashes: list[str] = []
        self._failed = ""  # where, in words

    def enter(self, layer: CalledLayer, inputs: Sequence[SeenTensor]) -> DtypeCall:
        """Begin a call of a layer."""
        floats = [x for x in inputs if x.is_float]
        call = super().enter(layer, floats)
        call.peak = floats[0].largest_whole() if floats else 0.0
        return call

    def leave(self, path: str, outputs: Sequence[SeenTensor]) -> DtypeCall | None:
        """End the latest call of the layer at ``path``, and those inside that failed."""
        return super().leave(path, [x for x in outputs if x.is_float])

    def _begun(self, layer: CalledLayer) -> DtypeCall:
        again = self.phase == BACKWARD
        return DtypeCall(layer.path, layer.type, layer.category, again=again, params=layer.params())

    def _kept(self, tensor: SeenTensor, call: DtypeCall) -> str:
        return tensor.meant_dtype()

    def _kept_gradient(self, tensor: SeenTensor, call: DtypeCall) -> str:
        return tensor.dtype

    def takes(self, name: str) -> bool:
        """Return whether an op computes something."""
        return bool(self.phase) and name not in self.names.moves

    @property
    def outside(self) -> str | None:
        """Path of the container that runs, ``LOSS`` for none; None inside of a layer."""
        if self.phase != FORWARD:
            return None
        if self.top is None:
            return LOSS
        return self.top.path if self.top.category == "container" else None

    def op(
        self,
        name: str,
        inputs: Sequence[SeenTensor],
        outputs: Sequence[SeenTensor],
        constants: Sequence[float] = (),
    ) -> None:
        """Take a kernel: it counts for the layer that runs, or is an op outside of layers."""
        del constants
        came, went = floats_of(inputs), floats_of(outputs)
        dtype, product = self.names.computed(name, came, went), name in self.names.products
        if not dtype:
            return
        if self._function is not None:
            self._function.add(dtype, product=product)
        if self.outside is not None and not self.names.functions:
            seen = OpCall(self.outside, name, self.names.neutral(name), came, (dtype,), went)
            self._ops[seen] = self._ops.get(seen, 0) + 1
        if self.top is None:
            return
        if product and self.simulated:
            if self.top.kernels.products:
                return  # what it got may be a result of the first, not rounded yet
            operands = inputs[:1] if name in self.names.first_alone else inputs
            dtype = widest(filter(None, (x.meant_dtype() for x in operands if x.is_float)))
        self.top.kernels.add(dtype, product=product)

    def backward_op(self, call: DtypeCall, name: str, dtype: str) -> None:
        """Take a kernel of the backward pass of a call."""
        if name not in self.names.meets:
            call.grad_kernels.add(dtype, product=name in self.names.products)

    def worked(self, dtype: str, count: int) -> None:
        """Take multiply-adds of a kernel of the forward pass."""
        if self.phase == FORWARD and count:
            path = LOSS if self.top is None else self.top.path
            key = (path, self._named[0], dtype)
            self._work[key] = self._work.get(key, 0) + count

    def works(self, found: Iterable[Products]) -> None:
        """Take multiply-adds that were counted beside the run."""
        for each in found:
            key = (each.path, each.name, each.dtype)
            self._work[key] = self._work.get(key, 0) + each.count

    def fails(self, message: str) -> None:
        """Take the error that ends the run, where dtypes are the reason."""
        if not self.clashes:
            lines = message.strip().splitlines() or [""]
            self.clashes.append(f"{self._failed}{lines[0]}")

    def clash(self, name: str, dtypes: Sequence[str]) -> None:
        """Take a product that got several dtypes; what comes behind the first is not known."""
        if self.clashes:
            return
        self.clashes.append(f"{self._where(name)}gets {' and '.join(dtypes)}{self._given()}")

    def _where(self, name: str = "") -> str:
        path = LOSS if self.top is None else self.top.path
        return f"{path or '(model)'}: {self._named[0] or name} "

    def _given(self) -> str:
        params = self._named[1]
        return f", of which {', '.join(params)} as stored" if params else ""

    @contextlib.contextmanager
    def function(self, name: str = "", params: tuple[str, ...] = ()) -> Iterator[Kernels]:
        """Be inside of a function that was called outside of layers; yields what it will run.

        Args:
            name: of the function.
            params: parameters that it is given as they are, by path.
        """
        self._function, self._named = Kernels(), (name, params)
        try:
            yield self._function
        except Exception:
            self._failed = self._failed or self._where()
            raise
        finally:
            self._function, self._named = None, ("", ())

    @property
    def in_function(self) -> bool:
        """Whether such a function runs."""
        return self._function is not None

    def called(self, seen: OpCall) -> None:
        """Take a function that has returned; one that ran no kernel is none."""
        if seen.kernels:
            self._ops[seen] = self._ops.get(seen, 0) + 1

    def trace(self, outcome: Outcome) -> Trace:
        """Return what was seen."""
        calls: dict[str, list[DtypeCall]] = {}
        for call in self.found:
            calls.setdefault(call.path, []).append(call)
        peaks = {place: tensor.largest_whole() for place, tensor in outcome.batch.items()}
        return Trace(
            {path: _layer(found) for path, found in calls.items()},
            tuple(replace(op, count=count) for op, count in self._ops.items()),
            {place: peak for place, peak in peaks.items() if peak},
            backward=self.request.backward and not self.simulated,
            simulated=self.simulated,
            how=outcome.how,
            work=tuple(Products(*key, count) for key, count in self._work.items()),
            clashes=tuple(self.clashes),
        )


def _layer(calls: list[DtypeCall]) -> LayerTrace:
    first, again = ([c.finished() for c in calls if c.again == past] for past in (False, True))
    return LayerTrace(tuple(first), tuple(again), max(call.peak for call in calls))


def floats_of(tensors: Iterable[SeenTensor]) -> tuple[str, ...]:
    """Return the distinct dtypes of the floats among ``tensors``."""
    return _distinct(x.dtype for x in tensors if x.is_float)

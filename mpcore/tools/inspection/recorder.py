"""One recorder for each framework: it runs a batch and tells what happens, in one data model.

A recorder is a part of a backend. It knows how its framework is listened to; what is made of that
is decided here in the core, by a kind of ``Calls``: tensor summaries
(``mpcore.tools.inspection.summaries``) or dtypes (``mpcore.tools.inspection.dtypes``).
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar, cast

import numpy as np

from mpcore.backend.parts import Part
from mpcore.numerics.dtypes import round_to
from mpcore.tools.inspection.tensor_summary import TensorSummary, summarize

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import numpy.typing as npt

    from mpcore.amp.amp import Amp
    from mpcore.tools.inspection.record import Request

__all__ = [
    "BACKWARD",
    "FLOATS",
    "FORWARD",
    "LOSS",
    "RECORDER",
    "CalledLayer",
    "Calls",
    "OpNames",
    "Outcome",
    "Recorder",
    "RunningCall",
    "SeenTensor",
]

FORWARD, BACKWARD = "forward", "backward"

FLOATS = ("float16", "bfloat16", "float32", "float64")

LOSS = "(loss)"
"""Path of what runs outside of the model."""

Kept = TypeVar("Kept")


class SeenTensor(ABC):
    """One tensor, at the moment when it passed by; a backend says how it is read.

    Attributes:
        simulated: 16-bit dtype that float32 values stand for; ``""`` for none.
    """

    def __init__(self, simulated: str = "") -> None:
        """Know what values stand for."""
        self.simulated = simulated
        self._summaries: dict[bool, TensorSummary] = {}
        self._derived: TensorSummary | None = None

    @property
    @abstractmethod
    def dtype(self) -> str:
        """It is stored in, in canonical words."""

    @property
    def is_float(self) -> bool:
        """Whether it holds floats."""
        return self.dtype in FLOATS

    @abstractmethod
    def numbers(self) -> npt.NDArray[np.float32]:
        """Return its values in the neutral layout; empty where it has none."""

    @abstractmethod
    def on_gradient(self, take: Callable[[SeenTensor], None], /) -> None:
        """Let ``take`` have its gradient, the sum over all that used it; never if it has none."""

    def meant_dtype(self) -> str:
        """Return ``dtype``, or the simulated one that its values are of; ``""`` if unknown."""
        if not self.simulated or self.dtype != "float32":
            return self.dtype
        values = self.numbers()
        if values.size and (values == values.flat[0]).all():
            return ""  # all alike: that says nothing
        held = np.array_equal(round_to(values, self.simulated), values, equal_nan=True)
        return self.simulated if held else self.dtype

    def summary(self, *, keep: bool = False) -> TensorSummary:
        """Return what is kept of its values, the first time that they are asked for.

        Args:
            keep: keep all of them.
        """
        if keep not in self._summaries:
            dtype = self.meant_dtype() or self.dtype
            self._summaries[keep] = summarize(self.numbers(), dtype, keep=keep)
        return self._summaries[keep]

    def derived(self, make: Callable[[SeenTensor], TensorSummary]) -> TensorSummary:
        """Return what ``make`` makes of it, the first time that it is asked for."""
        if self._derived is None:
            self._derived = make(self)
        return self._derived

    def largest_whole(self) -> float:
        """Return the largest absolute value of a float32 tensor of whole numbers; else 0."""
        values = self.numbers() if self.dtype == "float32" else np.empty(0, np.float32)
        whole = values.size and np.isfinite(values).all() and (values == np.round(values)).all()
        return float(np.abs(values).max()) if whole else 0.0


@dataclass(frozen=True)
class CalledLayer:
    """A layer that is called: what the recorder can tell of it, where that is asked for.

    Attributes:
        path: as ``Backend.layers`` lists it.
        type: the framework's class name.
        category: as in ``mpcore.policy.layer.CATEGORIES``.
        attributes: returns its settings, as ``LayerCall.attributes``.
        params: returns the distinct dtypes of the floats that it holds.
    """

    path: str
    type: str
    category: str
    attributes: Callable[[], dict[str, Any]]
    params: Callable[[], tuple[str, ...]]


@dataclass(frozen=True)
class OpNames:
    """Ops of a framework that count for more or less than others, by its own names.

    Attributes:
        products: a layer's compute dtype is about them.
        moves: they move or make values and compute nothing.
        views: they change no value, or make one from nothing.
        meets: ops of the backward pass in which gradients from several places are added.
        neutral: returns the op of ``mpcore.numerics.ops``; ``""`` if the table has none.
        computed: returns what a kernel computed in, from its name and the distinct dtypes of the
            floats that it got and returned; ``""`` for a kernel without floats.
        functions: whether ops outside of layers are told as the functions that were called; else
            each kernel is one.
        first_alone: products whose first operand alone says what a simulated dtype is.
    """

    products: frozenset[str]
    moves: frozenset[str]
    views: frozenset[str]
    neutral: Callable[[str], str]
    computed: Callable[[str, Sequence[str], Sequence[str]], str]
    meets: frozenset[str] = frozenset()
    functions: bool = False
    first_alone: frozenset[str] = frozenset()


@dataclass(eq=False)
class RunningCall(Generic[Kept]):
    """One call of one layer or op while a batch runs; gradients by the tensor's place.

    Attributes:
        path: as ``LayerCall.path``.
        type: likewise.
        category: likewise.
        inputs: what is kept of them, likewise the outputs and the gradients of both.
        keep: whether whole tensors are kept.
        again: whether the backward pass repeats it.
        attributes: as ``LayerCall.attributes``.
        ops: number of ops inside of it so far.
    """

    path: str
    type: str
    category: str
    keep: bool = False
    again: bool = False
    attributes: dict[str, Any] = field(default_factory=dict)
    inputs: list[Kept] = field(default_factory=list)
    outputs: list[Kept] = field(default_factory=list)
    grad_outputs: dict[int, Kept] = field(default_factory=dict)
    grad_inputs: dict[int, Kept] = field(default_factory=dict)
    ops: int = 0


AnyCall = TypeVar("AnyCall", bound=RunningCall[Any])


class Calls(ABC, Generic[AnyCall, Kept]):
    """The calls of one batch, in the order in which they began.

    Attributes:
        values: whether values are looked at: then all runs eagerly, layers and ops forward alone.
        request: what is asked for.
        names: the framework's ops.
        found: all calls.
        phase: ``FORWARD``, ``BACKWARD``, or ``""`` outside of both: nothing is taken then.
        simulated: 16-bit dtype that float32 values stand for; ``""`` for none.
    """

    values: ClassVar[bool]

    def __init__(self, request: Request, names: OpNames) -> None:
        """Take what ``request`` asks for."""
        self.request, self.names = request, names
        self.found: list[AnyCall] = []
        self.phase = self.simulated = ""
        self._stack: list[AnyCall] = []

    @contextlib.contextmanager
    def running(self, phase: str) -> Iterator[None]:
        """Be in a phase; at its end calls that have not returned are forgotten."""
        before, self.phase = self.phase, phase
        try:
            yield
        finally:
            self.phase = before
            self._stack.clear()

    @property
    def listening(self) -> bool:
        """Whether calls of layers are taken now."""
        return self.phase == FORWARD or (self.phase == BACKWARD and not self.values)

    @property
    def top(self) -> AnyCall | None:
        """The layer call that is running; None outside of all."""
        return self._stack[-1] if self._stack else None

    def enter(self, layer: CalledLayer, inputs: Sequence[SeenTensor]) -> AnyCall:
        """Begin a call of a layer."""
        call = self._begun(layer)
        self.found.append(call)
        self._stack.append(call)
        self._take(inputs, call.inputs, call.grad_inputs, call)
        return call

    def leave(self, path: str, outputs: Sequence[SeenTensor]) -> AnyCall | None:
        """End the latest call of the layer at ``path``, and those inside that failed."""
        while self._stack:
            call = self._stack.pop()
            if call.path == path:
                self._take(outputs, call.outputs, call.grad_outputs, call)
                return call
        return None

    def _take(
        self,
        tensors: Sequence[SeenTensor],
        into: list[Kept],
        grads: dict[int, Kept],
        call: AnyCall,
    ) -> None:
        def arrived(index: int, grad: SeenTensor) -> None:
            grads[index] = self._kept_gradient(grad, call)

        for index, tensor in enumerate(tensors):
            into.append(self._kept(tensor, call))
            if tensor.is_float and self.request.backward:
                tensor.on_gradient(partial(arrived, index))

    def restated(self, kept: Kept, dtype: str) -> Kept:
        """Return what is kept of a tensor that is handed on in another dtype."""
        return cast("Kept", replace(cast("Any", kept), dtype=dtype))

    @abstractmethod
    def _begun(self, layer: CalledLayer) -> AnyCall:
        """Return a call of ``layer`` that has just begun."""

    @abstractmethod
    def _kept(self, tensor: SeenTensor, call: AnyCall) -> Kept:
        """Return what is kept of a tensor."""

    def _kept_gradient(self, tensor: SeenTensor, call: AnyCall) -> Kept:
        return self._kept(tensor, call)

    @abstractmethod
    def takes(self, name: str) -> bool:
        """Return whether an op of this name is worth telling now."""

    @abstractmethod
    def op(
        self,
        name: str,
        inputs: Sequence[SeenTensor],
        outputs: Sequence[SeenTensor],
        constants: Sequence[float] = (),
    ) -> None:
        """Take an op that has run.

        Args:
            name: of the op.
            inputs: what it got.
            outputs: what it returned.
            constants: numbers in it.
        """


@dataclass(frozen=True)
class Outcome:
    """What a recorder returns beside the calls.

    Attributes:
        loss: unscaled; 0 where only dtypes were asked for and nothing was differentiated.
        batch: by place, such as ``"batch[0]"``; tensors alone.
        grads: summaries of those of the parameters, by path; None where the loss does not reach
            one. Empty where they were not asked for.
        how: in one sentence how it was seen, and what was not.
    """

    loss: float
    batch: Mapping[str, SeenTensor]
    grads: Mapping[str, TensorSummary | None]
    how: str


class Recorder(Protocol):
    """What a backend's method ``recorder`` returns.

    Attributes:
        OPS: the framework's ops.
    """

    OPS: OpNames

    def record(
        self,
        model: Any,
        amp: Amp | None,
        batch: tuple[Any, ...],
        loss_fn: Any,
        scale: float,
        calls: Calls[Any, Any],
        /,
    ) -> Outcome:
        """Run one batch forward and backward as a step would, and tell ``calls`` what happens.

        Weights, optimizer state, buffers, gradients, generators of random numbers and the state
        of the loss scale are what they were before.

        Args:
            model: the model.
            amp: what ``prepare`` returned for it; None for a model that was not prepared.
            batch: what ``loss_fn`` is called with; numpy arrays or the framework's tensors.
            loss_fn: as for ``amp.step``, losses by optimizer are run one after the other; None for
                the mean of what the model returns.
            scale: that the backward pass gets, > 0.
            calls: what is told; where it looks at values everything runs eagerly.

        Raises:
            BackendError: this cannot be recorded here (a graph mode); with the way out.
        """
        ...


RECORDER: Part[Recorder] = Part("recorder", "cannot be observed")

"""What every Cell of a MindSpore network makes of a batch, forward and backward, as sketches.

Calls of Cells are watched on their class, as in ``observe``; gradients by ``Tensor.register_hook``
on what went in and out, which changes no tensor and gives the sum over all that use it. Ops are
calls of Python primitives: what runs below Python is not among them.

Tried with mindspore 2.10.0 on CPU; on Ascend it was not run.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import mindspore as ms
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn

from mpcore.errors import BackendError
from mpcore.numerics.dtypes import is_low, round_to
from mpcore.tools.inspection import Inspection, Request, Sketch, sketch
from mpcore.tools.inspection.calls import Visit, Visits
from mpcore.tools.inspection.trace import words
from mpcore_mindspore.attributes import attributes
from mpcore_mindspore.guard import guarded
from mpcore_mindspore.layers import dtype_name, leaves, parameter_paths
from mpcore_mindspore.observe import as_array, is_float, mean_loss, tensors_in, watch_primitives
from mpcore_mindspore.snapshot import left_alone

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mpcore.amp.amp import Amp

__all__ = ["inspect"]

_VIEWS = words(
    "Reshape Transpose TransposeExtView Squeeze ExpandDims Split Stack Unstack StridedSlice Slice "
    "Shape Depend Load TensorMove Assign Identity View BroadcastTo StopGradient Flatten "
    "TupleToTensor ScalarToTensor InsertGradientOf DType Zeros Ones GetitemTensorIndexInfo typeof"
)
"""Primitives that change no value, or make one from nothing."""


_WRITTEN = {"BatchNorm": (0, 3, 4), "LSTM": (0, 1, 2)}
"""Outputs that are numbers; the others are memory that nobody wrote (mindspore 2.10.0, CPU)."""


class _Wanted(NamedTuple):
    """One loss function, and what it is differentiated for.

    Attributes:
        params: Parameters of the network.
        names: their paths.
        rounds: whether the step rounds each gradient to a simulated dtype.
    """

    function: Callable[..., Any]
    params: tuple[Any, ...]
    names: tuple[str, ...]
    rounds: tuple[bool, ...]


def inspect(
    model: Any, amp: Amp | None, batch: tuple[Any, ...], loss_fn: Any, request: Request
) -> Inspection:
    """Run one batch and return what every layer did; see ``mpcore.tools.inspection.Inspector``.

    Raises:
        BackendError: in GRAPH_MODE, which leaves nothing to watch.
    """
    if ms.get_context("mode") != ms.PYNATIVE_MODE:
        msg = (
            "a network must be inspected in PYNATIVE_MODE, got GRAPH_MODE, where no Cell is "
            "called: the casts are the same there, so call "
            "ms.set_context(mode=ms.PYNATIVE_MODE) around it"
        )
        raise BackendError(msg)
    wanted = _wanted(model, amp, loss_fn)
    scale = request.scale or (1.0 if amp is None else float(amp.scale))
    batch = tuple(Tensor(as_array(x)) if isinstance(x, np.ndarray) else x for x in batch)
    recorder = _Recorder(model, request, amp)
    region: Any = guarded() if amp is None else amp.autocast()  # type: ignore[attr-defined]
    with left_alone(model, amp), region, _watched(recorder):
        total = sum(_run(recorder, one, batch, scale) for one in wanted)
    return Inspection(
        float(total),
        scale,
        recorder.visits.calls(),
        tuple(recorder.sketch(x) for x in batch if isinstance(x, Tensor)),
        recorder.grads,
        how=_how(recorder.simulated),
    )


def _wanted(model: Any, amp: Any, loss_fn: Any) -> list[_Wanted]:
    if amp is None:
        paths = parameter_paths(model)
        params = tuple(p for p in model.get_parameters() if p.requires_grad)
        names = tuple(paths[id(p)] for p in params)
        functions = loss_fn.values() if isinstance(loss_fn, dict) else [loss_fn]
        rounds = (False,) * len(params)
        return [_Wanted(f or mean_loss(model), params, names, rounds) for f in functions]
    amp._bindings.check_prepared()
    bound = amp._bindings.optimizers
    if isinstance(loss_fn, dict):
        each = [(function, [bound[name]]) for name, function in loss_fn.items()]
    else:
        each = [(loss_fn or mean_loss(model), list(bound.values()))]
    return [
        _Wanted(
            function,
            tuple(param for one in own for param in one.trained),
            tuple(name for one in own for name in one.names),
            tuple(rounds for one in own for rounds in one.rounds_grad),
        )
        for function, own in each
    ]


def _simulated(amp: Amp | None) -> str:
    if amp is None or not amp.simulated or not is_low(amp.policy.compute):
        return ""
    return amp.policy.compute


def _how(simulated: str) -> str:
    how = "one batch in eager mode; gradients by hooks on tensors, ops as calls of primitives"
    if simulated:
        how += f"; {simulated} is simulated: float32 that it holds exactly is called {simulated}"
    return how


def _run(recorder: _Recorder, wanted: _Wanted, batch: tuple[Any, ...], scale: float) -> np.float32:
    """Run one loss forward and backward; return it, in float32 as a step adds it up."""

    def scaled(*given: Any) -> Any:
        with recorder.forward():
            loss = wanted.function(*given)
        if not isinstance(loss, Tensor) or loss.size != 1:
            msg = f"`loss_fn` must return one number, got {loss!r:.80}"
            raise BackendError(msg)
        loss = loss.astype(ms.float32)
        return loss * scale, loss

    if not recorder.visits.request.backward:
        return np.float32(scaled(*batch)[1].asnumpy().reshape(()))
    function = ms.value_and_grad(scaled, None, ParameterTuple(wanted.params), has_aux=True)
    (_, loss), grads = function(*batch)
    for name, grad, rounds in zip(wanted.names, grads, wanted.rounds, strict=True):
        recorder.parameter(name, grad, rounds=rounds)
    return np.float32(loss.asnumpy().reshape(()))


class _Recorder:
    """What happens in one forward and backward pass.

    Attributes:
        visits: the calls.
        inside: whether a primitive is running.
        simulated: a dtype whose values are held as float32, or "".
        grads: of the Parameters, by path.
    """

    inside = False

    def __init__(self, model: Any, request: Request, amp: Amp | None) -> None:
        self.visits = Visits(request)
        self.simulated = _simulated(amp)
        # A float32 output of simulated layers holds 16-bit numbers, and is float32 nevertheless.
        self._hands_on_full = amp is not None and amp.policy.output == "float32"
        self.grads: dict[str, Sketch | None] = {}
        self._cells = {id(cell): (path, kind) for path, (cell, kind) in leaves(model).items()}
        self._handles: list[Any] = []
        self._made: dict[int, Any] = {}  # single numbers that primitives returned
        # A Tensor that one Cell hands on and the next takes in is looked at once.
        self._sketches: dict[Any, tuple[Any, Sketch]] = {}

    @contextlib.contextmanager
    def forward(self) -> Iterator[None]:
        """Record what runs inside."""
        self.visits.over = False
        try:
            yield
        finally:
            self.visits.over = True
            self.visits.clear()

    def parameter(self, name: str, grad: Any, *, rounds: bool) -> None:
        """Take the gradient of a Parameter, as the step would have it."""
        values = _numbers(grad)
        dtype = dtype_name(grad.dtype)
        if rounds:  # the step rounds to bfloat16, whatever holds the numbers
            values, dtype = round_to(values, "bfloat16"), "bfloat16"
        self.grads[name] = sketch(values, dtype)

    def enter(self, cell: Any, given: Any) -> str | None:
        """Begin a call; return its path, None for one that is not looked at."""
        path, category = self._cells.get(id(cell), (None, ""))
        if path is None or self.visits.over:
            return None
        tensors = [x for x in tensors_in(given) if not isinstance(x, Parameter)]
        keep = self.visits.request.keeps(path)
        shape = tuple(tensors[0].shape) if tensors else ()
        settings = attributes(cell, shape)
        visit = Visit(path, type(cell).__name__, category, [], settings, keep)
        self._take(tensors, visit.inputs, visit.grad_inputs, keep=keep)
        self.visits.enter(visit)
        return path

    def leave(self, path: str, outputs: Any) -> None:
        """End a call."""
        visit = self.visits.leave(path)
        if visit is not None:
            tensors = list(tensors_in(outputs))
            self._take(tensors, visit.outputs, visit.grad_outputs, keep=visit.keep)
            if not path and self._hands_on_full:
                visit.outputs = [
                    replace(one, dtype=dtype_name(x.dtype))
                    for one, x in zip(visit.outputs, tensors, strict=True)
                ]

    def _take(
        self, tensors: list[Any], into: list[Sketch], grads: dict[int, Sketch], *, keep: bool
    ) -> None:
        for index, tensor in enumerate(tensors):
            into.append(self.sketch(tensor, keep=keep))
            if is_float(tensor) and self.visits.request.backward:
                self._follow(tensor, grads, index, keep=keep)

    def _follow(self, tensor: Any, into: dict[int, Sketch], index: int, *, keep: bool) -> None:
        def hook(grad: Any) -> Any:
            into[index] = self._sketch(grad, keep=keep)
            return grad

        if not tensor._requires_grad:
            return  # behind ops.stop_gradient, where a hook is refused
        self._handles.append(tensor.register_hook(hook))

    def forget(self) -> None:
        """Take the hooks away."""
        for handle in self._handles:
            handle.remove()
        self._sketches.clear()

    def sketch(self, tensor: Any, *, keep: bool = False) -> Sketch:
        """Return the sketch of a Tensor."""
        key = id(tensor), keep
        if key not in self._sketches:
            self._sketches[key] = tensor, self._sketch(tensor, keep=keep)
        return self._sketches[key][1]

    def _sketch(self, tensor: Any, *, keep: bool) -> Sketch:
        values = _numbers(tensor)
        return sketch(values, self._dtype(tensor, values), keep=keep)

    def _dtype(self, tensor: Any, values: Any) -> str:
        """Return the dtype; a simulated one for float32 that it holds exactly."""
        name = dtype_name(tensor.dtype)
        if not self.simulated or name != "float32" or not values.size:
            return name
        if (values == values.flat[0]).all():
            return name  # all alike: that says nothing
        held = np.array_equal(round_to(values, self.simulated), values, equal_nan=True)
        return self.simulated if held else name

    def primitive(self, called: Any, given: Any, result: Any) -> None:
        """Take one call of a primitive."""
        name = str(called.name)
        if self.visits.over:
            return
        if name in _WRITTEN:
            result = [result[place] for place in _WRITTEN[name]]
        came, went = list(tensors_in(given)), list(tensors_in(result))
        if name in _VIEWS or not any(map(is_float, went)):
            return
        constants = [x for x in (*given, *called.attrs.values()) if isinstance(x, float)]
        constants += [float(str(x.asnumpy().reshape(())[()])) for x in came if self._is_constant(x)]
        self._made |= {id(x): x for x in went if x.size == 1}
        self.visits.op(name, constants, *(partial(self._listed, each) for each in (came, went)))

    def _is_constant(self, tensor: Any) -> bool:
        """Return whether it is one number that came from no primitive."""
        return is_float(tensor) and tensor.size == 1 and id(tensor) not in self._made

    def _listed(self, tensors: list[Any], *, keep: bool) -> list[Sketch]:
        return [self.sketch(x, keep=keep) for x in tensors]


def _numbers(tensor: Any) -> Any:
    if tensor.dtype in (ms.complex64, ms.complex128):
        msg = "complex tensors cannot be inspected"
        raise BackendError(msg)
    return np.asarray(tensor.asnumpy(), np.float32)


@contextlib.contextmanager
def _watched(recorder: _Recorder) -> Iterator[None]:
    """Record calls of Cells and, where ops are asked for, of primitives."""
    original = nn.Cell.__call__

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        path = recorder.enter(self, (args, kwargs))
        outputs = original(self, *args, **kwargs)
        if path is not None:
            recorder.leave(path, outputs)
        return outputs

    with contextlib.ExitStack() as stack:
        stack.callback(recorder.forget)
        stack.callback(setattr, nn.Cell, "__call__", original)
        nn.Cell.__call__ = call
        if recorder.visits.request.ops:
            watch_primitives(stack, recorder)
        yield

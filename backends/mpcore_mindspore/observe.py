"""Which dtypes a MindSpore network really runs in: Cells and primitives, in eager mode.

MindSpore has no dispatch mode. While a batch runs, the calls of all Cells and of all Python
primitives are watched on their classes. What a primitive got is cast below Python (``to_float``
for parameters, ``auto`` for everything), so of a product the dtype of its result counts: its
kernels have no mixed operands. Methods of Tensors (``@``) run below Python and are seen through
the layers around them alone; kernels of the backward pass are not seen, the gradients are.

Tried with mindspore 2.10.0 on CPU; on Ascend it was not run.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops
from mindspore.ops.primitive import Primitive

from mpcore.errors import BackendError, PolicyError
from mpcore.numerics import ops as table
from mpcore.numerics.dtypes import is_low, round_to
from mpcore.tools.inspection.trace import Call, LayerTrace, OpCall, Trace, widest, words
from mpcore_mindspore.guard import guarded
from mpcore_mindspore.layers import dtype_name, leaves, own_parameters

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mpcore.amp.amp import Amp

__all__ = ["as_array", "is_float", "mean_loss", "tensors_in", "trace", "watch_primitives"]

_PRODUCTS = words(
    "MatMul MatMulExt BatchMatMul BatchMatMulExt Dense Linear Conv2D Conv3D Convolution "
    "Conv1DExt Conv2DExt Conv3DExt Conv2DBackpropInput Conv2DTranspose Conv3DTranspose "
    "ConvolutionStr LSTM LSTMV2 GRU GRUV2 DynamicRNN FlashAttentionScore Mm BMM Addmm"
)
_MOVES = words(
    "Cast Reshape Transpose TransposeExtView Squeeze ExpandDims Concat Split Stack Unstack "
    "StridedSlice Slice Gather GatherD Shape Fill FillV2 ZerosLike OnesLike Depend Load "
    "TensorMove Assign Identity View Tile BroadcastTo Select MaskedFill OneHot StopGradient "
    "Flatten Pad PadV3 ReverseV2 ReverseSequence TupleToTensor ScalarToTensor InsertGradientOf "
    "DType Zeros Ones GetitemTensorIndexInfo typeof"
)
"""Primitives that move or make values and compute nothing."""

_RECURRENT = ("LSTM", "LSTMV2", "GRU", "GRUV2", "DynamicRNN")
"""Products that get the sum of two biases, which a simulated dtype need not hold."""

_FLOATS = ("float16", "bfloat16", "float32", "float64")


def trace(model: Any, amp: Amp | None, batch: tuple[Any, ...], loss_fn: Any) -> Trace:
    """Run one batch forward and backward, and return what ran; see ``inspection.observe``.

    Raises:
        BackendError: in GRAPH_MODE, which leaves nothing to watch.
    """
    if ms.get_context("mode") != ms.PYNATIVE_MODE:
        msg = (
            "`observe` must run in PYNATIVE_MODE, got GRAPH_MODE, where no Cell is called: "
            "the casts are the same there, so observe before ms.set_context(mode=ms.GRAPH_MODE)"
        )
        raise BackendError(msg)
    device = str(ms.get_context("device_target"))
    simulated = ""
    if amp is not None and amp.simulated and is_low(amp.policy.compute):
        simulated = amp.policy.compute
    batch = tuple(Tensor(as_array(x)) if isinstance(x, np.ndarray) else x for x in batch)
    recorder = _Recorder(model, simulated)
    region: Any = guarded() if amp is None else amp.autocast()  # type: ignore[attr-defined]
    functions = (
        list(loss_fn.values()) if isinstance(loss_fn, dict) else [loss_fn or mean_loss(model)]
    )
    with _left_alone(model), region, _watched(recorder):
        for function in functions:
            _differentiate(model, function, batch)
    how = f"one batch on {device}, Cells and primitives in eager mode"
    if simulated:
        how += (
            f"; {simulated} is simulated: float32 operands that it holds exactly count as "
            f"{simulated}, of several products in a layer the first, and gradients are not judged"
        )
    return Trace(
        recorder.layers(),
        recorder.op_calls(),
        recorder.whole(batch),
        backward=not simulated,
        simulated=simulated,
        how=how,
    )


def as_array(value: Any) -> Any:
    """Return a numpy array, float64 as float32."""
    return value.astype(np.float32) if value.dtype == np.float64 else value


def mean_loss(model: Any) -> Callable[..., Any]:
    """Return a loss that is the mean of the model's floats."""

    def loss(*batch: Any) -> Any:
        floats = [x.astype(ms.float32).mean() for x in tensors_in(model(*batch)) if is_float(x)]
        return sum(floats[1:], floats[0])

    return loss


def _differentiate(model: Any, function: Callable[..., Any], batch: tuple[Any, ...]) -> None:
    def loss(*given: Any) -> Any:
        value = function(*given)
        if not isinstance(value, Tensor) or value.size != 1:
            msg = f"`loss_fn` must return one number, got {value!r:.80}"
            raise BackendError(msg)
        return value.astype(ms.float32)

    weights = ParameterTuple([p for p in model.get_parameters() if p.requires_grad])
    ms.value_and_grad(loss, None, weights)(*batch)


def tensors_in(value: Any) -> Iterator[Any]:
    """Yield the Tensors in nested tuples, lists and dicts."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, dict):
        yield from tensors_in(tuple(value.values()))


def is_float(tensor: Any) -> bool:
    """Return whether a Tensor holds floats."""
    return dtype_name(tensor.dtype) in _FLOATS


def _names(value: Any) -> tuple[str, ...]:
    return tuple(dict.fromkeys(dtype_name(x.dtype) for x in tensors_in(value) if is_float(x)))


class _Visit:
    """One call of one layer."""

    def __init__(self, path: str, cell: Any, category: str) -> None:
        params = own_parameters(cell, category).values() if category != "container" else ()
        self.path = path
        self.params = _names([p for p in params if p.requires_grad])
        self.came: tuple[str, ...] = ()
        self.went: tuple[str, ...] = ()
        self.products: dict[str, None] = {}
        self.others: dict[str, None] = {}
        self.grads: tuple[dict[str, None], dict[str, None]] = ({}, {})
        self.peak = 0.0

    def call(self) -> Call:
        """Return what was seen."""
        came, went = self.grads
        kernels = tuple(self.products or self.others)
        return Call(self.came, self.params, kernels, self.went, tuple(came), (), tuple(went))


def _neutral(name: str) -> str:
    try:
        return table.find("mindspore", name).name
    except PolicyError:
        return ""  # the table has no such op


class _Recorder:
    """What runs.

    Attributes:
        inside: whether a primitive is running.
    """

    inside = False

    def __init__(self, model: Any, simulated: str) -> None:
        self._cells = {id(cell): (path, kind) for path, (cell, kind) in leaves(model).items()}
        self._containers = {path for path, kind in self._cells.values() if kind == "container"}
        self._ops: dict[OpCall, int] = {}
        self._simulated = simulated
        self._visits: list[_Visit] = []
        self._stack: list[_Visit] = []

    def _dtypes(self, value: Any) -> tuple[str, ...]:
        """Return the dtypes of floats; a simulated one for float32 that it holds exactly."""
        if not self._simulated:
            return _names(value)
        floats = [x for x in tensors_in(value) if is_float(x)]
        return tuple(dict.fromkeys(filter(None, map(self._dtype, floats))))

    def _dtype(self, tensor: Any) -> str:
        name = dtype_name(tensor.dtype)
        if name != "float32":
            return name
        values = tensor.asnumpy()
        if values.size and (values == values.flat[0]).all():
            return ""  # all alike: that says nothing
        return self._simulated if (round_to(values, self._simulated) == values).all() else name

    @contextlib.contextmanager
    def visit(self, cell: Any, given: Any) -> Iterator[_Visit | None]:
        """Be inside a call of ``cell``."""
        path, kind = self._cells.get(id(cell), (None, ""))
        if path is None:
            yield None
            return
        visit = _Visit(path, cell, kind)
        visit.came = self._dtypes(given)
        visit.peak = largest_whole(next((x for x in tensors_in(given) if is_float(x)), None))
        self._visits.append(visit)
        self._stack.append(visit)
        try:
            yield visit
        finally:
            self._stack.pop()

    def left(self, visit: _Visit, outputs: Any) -> None:
        """Take what a call handed on."""
        visit.went = self._dtypes(outputs)

    def primitive(self, called: Any, given: Any, result: Any) -> None:
        """Take one call of a primitive."""
        name = str(called.name)
        if name in _MOVES or not _names((given, result)):
            return
        visit, product = self._stack[-1] if self._stack else None, name in _PRODUCTS
        found = _names(result) or _names([x for x in tensors_in(given) if type(x) is not Parameter])
        if visit is None or visit.path in self._containers:
            self._op(visit.path if visit else "(loss)", name, given, found, result)
        if visit is None or not found or (product and self._simulated and visit.products):
            return
        dtype = found[0]
        if product and self._simulated:
            dtype = widest(self._dtypes(given[:1] if name in _RECURRENT else given))
        (visit.products if product else visit.others)[dtype] = None

    def _op(self, path: str, name: str, given: Any, found: tuple[str, ...], result: Any) -> None:
        seen = OpCall(path, name, _neutral(name), _names(given), found[:1], _names(result))
        self._ops[seen] = self._ops.get(seen, 0) + 1

    def op_calls(self) -> tuple[OpCall, ...]:
        """Return the primitives outside of layers, each once with its count."""
        return tuple(replace(call, count=count) for call, count in self._ops.items())

    def layers(self) -> dict[str, LayerTrace]:
        """Return the calls by layer."""
        calls: dict[str, list[_Visit]] = {}
        for visit in self._visits:
            calls.setdefault(visit.path, []).append(visit)
        return {
            path: LayerTrace(tuple(v.call() for v in found), (), max(v.peak for v in found))
            for path, found in calls.items()
        }

    def whole(self, batch: tuple[Any, ...]) -> dict[str, float]:
        """Return the largest number of each float input that holds whole ones alone."""
        return {f"batch[{i}]": p for i, x in enumerate(batch) if (p := largest_whole(x))}


def largest_whole(value: Any) -> float:
    """Return the largest absolute value of a float32 Tensor of whole numbers; else 0."""
    if not isinstance(value, Tensor) or value.dtype != ms.float32 or not value.size:
        return 0.0
    values = value.asnumpy()
    whole = np.isfinite(values).all() and (values == np.round(values)).all()
    return float(np.abs(values).max()) if whole else 0.0


@contextlib.contextmanager
def _watched(recorder: _Recorder) -> Iterator[None]:
    """Record calls of Cells and primitives."""
    with contextlib.ExitStack() as stack:
        stack.callback(setattr, nn.Cell, "__call__", nn.Cell.__call__)
        nn.Cell.__call__ = _watching_cells(recorder, nn.Cell.__call__)
        watch_primitives(stack, recorder)
        yield


def watch_primitives(stack: contextlib.ExitStack, recorder: Any) -> None:
    """Tell ``recorder.primitive(called, given, result)`` of every call, until ``stack`` ends."""
    for cls in _primitives(Primitive):
        own = vars(cls)["__call__"]
        stack.callback(setattr, cls, "__call__", own)
        cls.__call__ = _watching(recorder, own)


def _primitives(base: Any) -> list[Any]:
    """Return the classes of primitives that have a call of their own, each once."""
    found, waiting = [], [base]
    seen: set[Any] = set()
    while waiting:
        cls = waiting.pop()
        if cls not in seen:
            seen.add(cls)
            waiting += cls.__subclasses__()
            if "__call__" in vars(cls):
                found.append(cls)
    return found


def _watching(recorder: Any, original: Any) -> Any:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if recorder.inside:  # a class's call may run that of its base
            return original(self, *args, **kwargs)
        recorder.inside = True
        try:
            result = original(self, *args, **kwargs)
        finally:
            recorder.inside = False
        recorder.primitive(self, args, result)
        return result

    return call


def _watching_cells(recorder: _Recorder, original: Any) -> Any:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        with recorder.visit(self, (args, kwargs)) as visit:
            if visit is None:
                return original(self, *args, **kwargs)
            args = _told(args, visit.grads[1])
            outputs = original(self, *args, **kwargs)
            recorder.left(visit, outputs)
            return _told(outputs, visit.grads[0])

    return call


def _told(value: Any, into: dict[str, None]) -> Any:
    """Return ``value`` such that the dtypes of its gradients go ``into``."""

    def note(grad: Any) -> Any:
        into[dtype_name(grad.dtype)] = None
        return grad

    if isinstance(value, Parameter):
        return value
    if isinstance(value, Tensor):
        return ops.InsertGradientOf(note)(value) if is_float(value) else value
    if type(value) in (tuple, list):
        return type(value)(_told(item, into) for item in value)
    return value


@contextlib.contextmanager
def _left_alone(model: Any) -> Iterator[None]:
    """Put Parameters and the random generator back."""
    params = [p for p in model.get_parameters() if not p.requires_grad]
    before, state = [p.asnumpy().copy() for p in params], ms.get_rng_state()
    try:
        yield
    finally:
        for param, value in zip(params, before, strict=True):
            ops.assign(param, Tensor(value, param.dtype))
        ms.set_rng_state(state)

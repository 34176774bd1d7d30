"""What Cells and primitives of a network do, heard: nothing else replaces their calls.

MindSpore has no dispatch mode: the calls of all Cells and of all Python primitives are heard on
their classes, gradients through ``Tensor.register_hook``, which changes no tensor and gives the
sum over all that use it. What a primitive got is cast below Python (``to_float`` for parameters,
``auto`` for everything), so the dtype of its result counts: kernels of products have no mixed
operands. Methods of Tensors (``@``) run below Python and are seen through the layers around them
alone; kernels of the backward pass are not seen.

Tried with mindspore 2.10.0 on CPU; on Ascend it was not run.
"""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn
from mindspore.ops.primitive import Primitive

from mpcore.errors import BackendError
from mpcore.tools.inspection.recorder import (
    FLOATS,
    CalledLayer,
    OpNames,
    SeenTensor,
)
from mpcore.tools.inspection.trace import neutral_op, words
from mpcore_mindspore.attributes import attributes
from mpcore_mindspore.kernels import MOVES, VIEWS
from mpcore_mindspore.layers import dtype_name, leaves, own_parameters

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy.typing as npt

    from mpcore.amp.amp import Amp
    from mpcore.tools.inspection.recorder import Calls

__all__ = ["OPS", "Tap", "is_float", "numbers_of", "tapped", "tensors_in"]

_RECURRENT = ("LSTM", "LSTMV2", "GRU", "GRUV2", "DynamicRNN")
"""Products that get the sum of two biases, which a simulated dtype need not hold."""


_PRODUCTS = words(
    "MatMul MatMulExt BatchMatMul BatchMatMulExt Dense Linear Conv2D Conv3D Convolution "
    "Conv1DExt Conv2DExt Conv3DExt Conv2DBackpropInput Conv2DTranspose Conv3DTranspose "
    "ConvolutionStr LSTM LSTMV2 GRU GRUV2 DynamicRNN FlashAttentionScore Mm BMM Addmm"
)
_WRITTEN = {"BatchNorm": (0, 3, 4), "LSTM": (0, 1, 2)}
"""Outputs that are numbers; the others are memory that nobody wrote (mindspore 2.10.0, CPU)."""


def _computed(name: str, came: Sequence[str], went: Sequence[str]) -> str:
    del name
    return next(iter((*went, *came)), "")


OPS = OpNames(
    _PRODUCTS,
    MOVES,
    VIEWS,
    partial(neutral_op, "mindspore"),
    _computed,
    first_alone=frozenset(_RECURRENT),
)


@contextlib.contextmanager
def tapped(
    around: Callable[[Any, Callable[..., Any], Any, Any], Any],
    ran: Callable[[Any, Any, Any, Any], None] | None = None,
) -> Iterator[None]:
    """Hear every call of a Cell and of a Python primitive.

    Args:
        around: called with a Cell, what calls it, and the arguments; returns what that returned.
        ran: called with a primitive that has run, its arguments and its result.
    """
    original = nn.Cell.__call__

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return around(self, partial(original, self), args, kwargs)

    with contextlib.ExitStack() as stack:
        stack.callback(setattr, nn.Cell, "__call__", original)
        nn.Cell.__call__ = call
        running: list[Any] = []
        for cls in _with_own_call(Primitive) if ran is not None else ():
            own = vars(cls)["__call__"]
            stack.callback(setattr, cls, "__call__", own)
            cls.__call__ = _heard(own, ran, running)
        yield


def _with_own_call(base: Any) -> list[Any]:
    """Return the classes of primitives that have a call of their own, each once."""
    found, waiting, seen = [], [base], set[Any]()
    while waiting:
        cls = waiting.pop()
        if cls not in seen:
            seen.add(cls)
            waiting += cls.__subclasses__()
            if "__call__" in vars(cls):
                found.append(cls)
    return found


def _heard(original: Any, ran: Any, running: list[Any]) -> Any:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if running:  # a class's call may run that of its base
            return original(self, *args, **kwargs)
        running.append(self)
        try:
            result = original(self, *args, **kwargs)
        finally:
            running.clear()
        ran(self, args, kwargs, result)
        return result

    return call


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
    return dtype_name(tensor.dtype) in FLOATS


class _Seen(SeenTensor):
    """A Tensor of MindSpore that passed by."""

    def __init__(self, tensor: Any, simulated: str, handles: list[Any]) -> None:
        super().__init__(simulated)
        self._tensor, self._handles = tensor, handles
        self._takes: list[Callable[[SeenTensor], None]] = []

    @property
    def dtype(self) -> str:
        return dtype_name(self._tensor.dtype)

    def numbers(self) -> npt.NDArray[np.float32]:
        return numbers_of(self._tensor)

    def on_gradient(self, take: Callable[[SeenTensor], None]) -> None:
        if not self._tensor._requires_grad:
            return  # behind ops.stop_gradient, where a hook is refused
        if not self._takes:
            hook = partial(_arrived, self._takes, self.simulated)
            self._handles.append(self._tensor.register_hook(hook))
        self._takes.append(take)


def _arrived(takes: list[Callable[[SeenTensor], None]], simulated: str, grad: Any) -> Any:
    seen = _Seen(grad, simulated, [])
    for take in takes:
        take(seen)
    return grad


def numbers_of(tensor: Any) -> npt.NDArray[np.float32]:
    """Return the numbers of a Tensor as float32."""
    if tensor.dtype in (ms.complex64, ms.complex128):
        msg = "complex tensors cannot be inspected"
        raise BackendError(msg)
    return np.asarray(tensor.asnumpy(), np.float32)


class Tap:
    """Tells ``calls`` what the Cells and primitives of a network do."""

    def __init__(self, model: Any, amp: Amp | None, calls: Calls[Any, Any]) -> None:
        self._calls = calls
        # A float32 output of simulated layers holds 16-bit numbers, and is float32 nevertheless.
        self._hands_on_full = amp is not None and amp.policy.output == "float32"
        self._cells = {id(cell): (path, kind) for path, (cell, kind) in leaves(model).items()}
        self._handles: list[Any] = []
        self._made: dict[int, Any] = {}  # single numbers that primitives returned
        # A Tensor that one Cell hands on and the next takes in is looked at, and hooked, once.
        self._seen: dict[int, _Seen] = {}

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """Hear Cells and, where they are asked for, primitives."""
        wanted = not self._calls.values or bool(self._calls.request.ops)
        try:
            with tapped(self._around, self._ran if wanted else None):
                yield
        finally:
            for handle in self._handles:
                handle.remove()
            self._seen.clear()

    def _around(self, cell: Any, run: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        (path, category), calls = self._cells.get(id(cell), ("", None)), self._calls
        if category is None or not calls.listening:
            return run(*args, **kwargs)
        tensors = list(tensors_in((args, kwargs)))
        if calls.values:
            tensors = [x for x in tensors if not isinstance(x, Parameter)]
        shape = tuple(tensors[0].shape) if tensors else ()
        called = CalledLayer(
            path,
            type(cell).__name__,
            category,
            partial(attributes, cell, shape),
            partial(_params, cell, category),
        )
        calls.enter(called, list(map(self.seen, tensors)))
        outputs: Any = ()
        try:
            outputs = run(*args, **kwargs)
        finally:
            self._left(path, list(tensors_in(outputs)))
        return outputs

    def _left(self, path: str, tensors: list[Any]) -> None:
        call = self._calls.leave(path, list(map(self.seen, tensors)))
        if call is not None and self._calls.values and not path and self._hands_on_full:
            call.outputs = [
                self._calls.restated(one, dtype_name(x.dtype))
                for one, x in zip(call.outputs, tensors, strict=True)
            ]

    def seen(self, tensor: Any) -> _Seen:
        """Return what there is of a Tensor."""
        seen = _Seen(tensor, self._calls.simulated, self._handles)
        return self._seen.setdefault(id(tensor), seen) if self._calls.values else seen

    def _ran(self, primitive: Any, given: Any, kwargs: Any, result: Any) -> None:
        del kwargs
        name, calls = str(primitive.name), self._calls
        if not calls.takes(name):
            return
        if calls.values and name in _WRITTEN:
            result = [result[place] for place in _WRITTEN[name]]
        came, went = list(tensors_in(given)), list(tensors_in(result))
        constants: list[float] = []
        if calls.values:
            if not any(map(is_float, went)):
                return
            constants = [x for x in (*given, *primitive.attrs.values()) if isinstance(x, float)]
            lone = (x.asnumpy().reshape(())[()] for x in came if self._is_constant(x))
            constants += [float(str(x)) for x in lone]
            self._made |= {id(x): x for x in went if x.size == 1}
        calls.op(name, list(map(self.seen, came)), list(map(self.seen, went)), constants)

    def _is_constant(self, tensor: Any) -> bool:
        """Return whether it is one number that came from no primitive."""
        return is_float(tensor) and tensor.size == 1 and id(tensor) not in self._made


def _params(cell: Any, category: str) -> tuple[str, ...]:
    own = own_parameters(cell, category).values() if category != "container" else ()
    found = (dtype_name(p.dtype) for p in own if p.requires_grad and is_float(p))
    return tuple(dict.fromkeys(found))

"""The operations of a step as it is traced: layer, phase, dtypes and shapes by name."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from mpcore.backend.profiler import LOSS
from mpcore.tools.inspection.trace import widest, words
from mpcore_tensorflow.layers import walk
from mpcore_tensorflow.tap import TAPE, RanOp, Scopes, tapped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Made", "Traced", "watched"]

_FLOATS = ("float16", "bfloat16", "float32", "float64")
_NO_DTYPE = words("ReadVariableOp Identity NoOp Const Shape ShapeN")


@dataclass(frozen=True)
class Made:
    """One operation of a graph.

    Attributes:
        kind: its type.
        phase: ``"forward"``, ``"backward"`` or ``"step"``.
        layer: path, or None where it cannot be told.
        dtype: widest float of its inputs, or of its outputs where no input is a float.
        casts: ``"a > b"`` for a cast between floats; else ``""``.
        kernel: what tells its kernel apart: type, shapes and dtypes.
        op: the operation of the graph; None where it has no outputs.
    """

    kind: str
    phase: str
    layer: str | None
    dtype: str
    casts: str
    kernel: str
    op: Any


class Traced:
    """What one trace of a step made.

    Attributes:
        ops: by name.
    """

    def __init__(self, model: Any, optimizers: list[str]) -> None:
        """Know the layers of ``model``, and the names of Keras' optimizers."""
        self._optimizers = set(optimizers)
        self.ops: dict[str, Made] = {}
        self._paths = {id(entry.layer): entry.path for entry in walk(model)}
        self._stack: list[str] = []
        self._in_loss = False
        self._scopes: Scopes[str] = Scopes()

    @contextlib.contextmanager
    def forward(self) -> Iterator[None]:
        """Be inside the loss function."""
        before, self._in_loss = self._in_loss, True
        try:
            yield
        finally:
            self._in_loss = before

    @contextlib.contextmanager
    def call(self, layer: Any) -> Iterator[None]:
        """Be inside a call of ``layer``; a layer that the model does not list counts for it."""
        path = self._paths.get(id(layer))
        if path is None:
            yield
            return
        self._stack.append(path)
        try:
            yield
        finally:
            self._stack.pop()

    def updates(self, name: str) -> bool:
        """Return whether an operation is in the name scope of an optimizer."""
        return not self._optimizers.isdisjoint(name.split("/"))

    def place(self, name: str) -> tuple[str, str | None]:
        """Return phase and layer of an operation that grappler named, by its scope."""
        layer = self._scopes.owner(name)
        if name.startswith(TAPE):
            return "backward", layer
        return ("step", None) if layer is None else ("forward", layer)

    def made(self, heard: RanOp) -> None:
        """Take one operation."""
        kind, inputs, _, outputs, name, _ = heard
        if kind == "Placeholder":
            return  # of a branch: it is named after the operation that it stands for
        if self._in_loss:
            layer = self._stack[-1] if self._stack else LOSS
            if "/" in name:  # without a scope it says nothing of the other phases
                self._scopes.note(name, layer, first=True)
            place: tuple[str, str | None] = ("forward", layer)
        elif name.startswith(TAPE):
            place = "backward", self._scopes.owner(name)
        else:
            place = "step", None
        came, went = _floats(inputs), _floats(outputs)
        dtype = "" if kind in _NO_DTYPE else widest(came or went)
        casts = f"{came[0]} > {went[0]}" if kind == "Cast" and came and went else ""
        op = next((getattr(x, "op", None) for x in outputs), None)
        self.ops[name] = Made(kind, *place, dtype, casts, _kernel(kind, inputs), op)


def _floats(tensors: Any) -> list[str]:
    found = (tf.as_dtype(x.dtype).base_dtype.name for x in tensors)
    return [name for name in found if name in _FLOATS]


def _kernel(kind: str, inputs: Any) -> str:
    # Shapes that are not known are told as such: two kernels may then pass for one.
    shapes = (str(x.shape) if x.shape.rank is None else _sizes(x.shape) for x in inputs)
    return f"{kind}({', '.join(filter(None, shapes))}; {', '.join(_floats(inputs))})"


def _sizes(shape: Any) -> str:
    return "x".join("?" if size is None else str(size) for size in shape)


@contextlib.contextmanager
def watched(traced: Traced) -> Iterator[None]:
    """Tell ``traced`` the layer calls and operations of this thread."""

    def around(layer: Any, run: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        with traced.call(layer):
            return run(*args, **kwargs)

    with tapped(around, traced.made):
        yield

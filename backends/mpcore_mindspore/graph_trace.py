"""A network compiled once, and read back from the form that MindSpore writes to files: MindIR.

Nothing runs and no file is written. The compiler's graph names every primitive with its inputs,
its attributes, and the Cell that called it; it is the same for methods of Tensors, which eager
mode runs below Python.

Tried with mindspore 2.10.0.
"""

from __future__ import annotations

import contextlib
import inspect
import tempfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn
from mindspore.train.mind_ir_pb2 import ModelProto, TensorProto

from mpcore.errors import GraphError
from mpcore_mindspore.executors import _cell_graph_executor
from mpcore_mindspore.guard import guarded

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "DTYPES",
    "UNTRACEABLE",
    "Arguments",
    "Traced",
    "array_of",
    "eagerly",
    "elsewhere",
    "first_line",
    "flags_of",
    "frozen_in",
    "mode_name",
    "trace",
]

DTYPES = {
    TensorProto.FLOAT: "float32",
    TensorProto.FLOAT16: "float16",
    TensorProto.BFLOAT16: "bfloat16",
    TensorProto.DOUBLE: "float64",
    TensorProto.FLOAT64: "float64",
    TensorProto.BOOL: "bool",
    TensorProto.INT8: "int8",
    TensorProto.INT16: "int16",
    TensorProto.INT32: "int32",
    TensorProto.INT64: "int64",
    TensorProto.UINT8: "uint8",
    TensorProto.UINT16: "uint16",
    TensorProto.UINT32: "uint32",
    TensorProto.UINT64: "uint64",
    TensorProto.COMPLEX64: "complex64",
}
"""Canonical names of the dtypes of MindIR."""


class Arguments:
    """What a network is called with, in the order of its ``construct``.

    Attributes:
        values: all of them.
        tensors: the Tensors among them.
    """

    def __init__(self, net: nn.Cell, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Bring keywords into their places.

        Raises:
            GraphError: one has no place, or is neither a Tensor nor a plain value.
        """
        if kwargs:
            bound = inspect.signature(type(net).construct).bind(net, *args, **kwargs)
            bound.apply_defaults()  # one that is left out has its place, too
            defaults = {name: p.default for name, p in bound.signature.parameters.items()}
            others = [name for name, x in bound.kwargs.items() if x is not defaults.get(name)]
            if others:
                name = others[0]
                msg = f"argument {name!r} of {type(net).__name__} must have a place to be lifted"
                raise GraphError(msg)
            args = bound.args[1:]
        self.values = [Tensor(_narrow(x)) if isinstance(x, np.ndarray) else x for x in args]
        for x in self.values:
            if not isinstance(x, (Tensor, bool, int, float, str, type(None))):
                msg = (
                    f"{type(net).__name__} must be called with Tensors and plain values to be "
                    f"lifted, got {type(x).__name__}"
                )
                raise GraphError(msg, "use by='layer'")
        self.tensors = [x for x in self.values if isinstance(x, Tensor)]

    @property
    def key(self) -> Any:
        """What calls have in common that one graph can run."""
        return tuple(
            (tuple(x.shape), str(x.dtype)) if isinstance(x, Tensor) else (type(x), x)
            for x in self.values
        )


def _narrow(array: Any) -> Any:
    wide = {"float64": np.float32, "int64": np.int32}
    return array.astype(wide.get(array.dtype.name, array.dtype))


def flags_of(net: nn.Cell) -> tuple[bool, ...]:
    """Return which Cells train: a graph is that of one choice."""
    return tuple(bool(cell.training) for _, cell in net.cells_and_names())


_OWN = frozenset(vars(nn.Cell()))
_PLAIN = (bool, int, float, str, type(None))


def frozen_in(net: nn.Cell) -> tuple[Any, ...]:
    """Return what a graph keeps of its Cells as it was: plain attributes, and which Tensors."""
    return tuple(
        (name, value if isinstance(value, _PLAIN) else id(value))
        for _, cell in net.cells_and_names()
        for name, value in vars(cell).items()
        if name not in _OWN and type(value) in (*_PLAIN, Tensor)
    )


@dataclass
class Traced:
    """One call, compiled.

    Attributes:
        proto: the graph, with what it calls.
        params: the network's Parameters by the names that they have in it.
        arguments: what it was compiled for.
    """

    proto: Any
    params: dict[str, Any]
    arguments: Arguments


class _Whole(nn.Cell):  # type: ignore[misc]  # mindspore is not followed
    """A new Cell for each compilation: MindSpore keeps what it has compiled of one."""

    def __init__(self, net: nn.Cell) -> None:
        super().__init__(auto_prefix=False)
        self.net = net

    def construct(self, *args: Any) -> Any:
        return self.net(*args)


def trace(net: nn.Cell, arguments: Arguments) -> Traced:
    """Return one call of ``net`` as MindSpore compiles it.

    Raises:
        GraphError: it cannot be compiled.
    """
    params = {}
    for param in net.get_parameters():
        if param.name in params:
            msg = (
                f"two Parameters of {type(net).__name__} are called {param.name!r}, which a "
                "graph cannot tell apart; give them names"
            )
            raise GraphError(msg)
        params[param.name] = param
    mode, whole = net.training, _Whole(net)
    whole.training = mode
    proto = ModelProto()
    try:
        with elsewhere(), guarded():
            name, _ = _cell_graph_executor.compile(
                whole, *arguments.values, phase="export.mindir", do_convert=False
            )
            text = _cell_graph_executor._get_func_graph_proto(whole, name, "mind_ir")
            proto.ParseFromString(text)
    except UNTRACEABLE as exc:
        first = first_line(exc)
        if "PyExecute" in first:
            first = "it returns None or a dict, or runs Python that no graph holds"
        msg = f"{type(net).__name__} cannot be compiled: {first}"
        raise GraphError(msg, "use by='layer'") from exc
    return Traced(proto, params, arguments)


def first_line(exc: BaseException) -> str:
    """Return the first line that says something of what MindSpore raised, not too long."""
    lines = (" ".join(line.split()) for line in str(exc).splitlines())
    return next((line for line in lines if line.strip(" -")), "")[:240]


_OUTSIDE: list[int] = []


@contextlib.contextmanager
def eagerly() -> Iterator[None]:
    """Let a block run in PYNATIVE_MODE; ``mode_name`` tells what was set outside of it."""
    mode = ms.get_context("mode")
    _OUTSIDE.append(_OUTSIDE[-1] if _OUTSIDE else mode)
    try:
        if mode != ms.PYNATIVE_MODE:
            ms.set_context(mode=ms.PYNATIVE_MODE)
        yield
    finally:
        _OUTSIDE.pop()
        if mode != ms.PYNATIVE_MODE:
            ms.set_context(mode=mode)


def mode_name() -> str:
    """Return what rules call the mode that a network runs in."""
    mode = _OUTSIDE[-1] if _OUTSIDE else ms.get_context("mode")
    return "eager" if mode == ms.PYNATIVE_MODE else "graph"


UNTRACEABLE = (
    *(RuntimeError, TypeError, ValueError, AttributeError, NameError, IndexError, KeyError),
    OSError,  # a class that was typed in, whose source is in no file
)
"""What MindSpore's compiler raises for a network that it cannot compile."""


@contextlib.contextmanager
def elsewhere() -> Iterator[None]:
    """Let what the compiler writes about a failure lie in a folder that goes away."""
    before = ms.get_context("save_graphs_path")
    with tempfile.TemporaryDirectory() as folder:
        ms.set_context(save_graphs_path=folder)
        try:
            yield
        finally:
            ms.set_context(save_graphs_path=before)


def array_of(proto: Any) -> Any:
    """Return the numbers of a tensor of MindIR, as numpy holds them."""
    dtype = DTYPES[proto.data_type]
    if dtype == "bfloat16":
        bits = np.frombuffer(proto.raw_data, np.uint16).astype(np.uint32) << 16
        return bits.view(np.float32).reshape(tuple(proto.dims))
    return np.frombuffer(proto.raw_data, dtype).reshape(tuple(proto.dims)).copy()

"""What TensorFlow says of an operation: which inputs a cast is for, which dtypes have a kernel."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import kernels

from mpcore.graph.ir import is_float

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mpcore.graph.ir import Graph, Node
    from mpcore_tensorflow.graph_lift import Piece

__all__ = ["castable_inputs", "fits", "has_kernel", "results"]

_FLOATS = (tf.float32, tf.float16, tf.bfloat16)
_OPAQUE = (tf.resource, tf.variant, tf.string)


def grouped(op: tf.Operation) -> list[tuple[Any, list[int]]]:
    """Return the arguments of an operation, each with the positions of its inputs."""
    found, at = [], 0
    for arg in op.op_def.input_arg:
        count = 1
        if arg.number_attr:
            count = op.get_attr(arg.number_attr)
        elif arg.type_list_attr:
            count = len(op.get_attr(arg.type_list_attr))
        found.append((arg, list(range(at, at + count))))
        at += count
    return found


def main_type(op: tf.Operation) -> str:
    """Return the attribute that says what an operation computes in; ``""`` where none does."""
    inputs = list(op.inputs)
    if op.op_def.is_stateful or any(t.dtype in _OPAQUE for t in (*inputs, *op.outputs)):
        return ""  # what it holds, or draws, has a dtype of its own
    for arg, at in grouped(op):
        if arg.type_attr and at and inputs[at[0]].dtype in _FLOATS:
            return str(arg.type_attr)
    return ""


def castable_inputs(op: tf.Operation) -> tuple[int, ...]:
    """Return the positions of the inputs that are cast with what an operation computes in."""
    main = main_type(op)
    found = [at for arg, at in grouped(op) if main and arg.type_attr == main]
    return tuple(i for at in found for i in at)


@cache
def has_kernel(kind: str, attribute: str, dtype: str, device: str) -> bool:
    """Return whether TensorFlow has a kernel of an operation in a dtype on a type of device."""
    enum = tf.as_dtype(dtype).as_datatype_enum
    for kernel in kernels.get_registered_kernels_for_op(kind).kernel:
        if kernel.device_type not in (device, "DEFAULT"):
            continue
        about = [c for c in kernel.constraint if c.name == attribute]
        if not about or enum in about[0].allowed_values.list.type:
            return True
    return False


def takes(op: tf.Operation, dtype: str, device: str) -> bool:
    """Return whether an operation can compute in ``dtype``."""
    main = main_type(op)
    allowed = next((a.allowed_values.list.type for a in op.op_def.attr if a.name == main), ())
    if allowed and tf.as_dtype(dtype).as_datatype_enum not in allowed:
        return False
    return has_kernel(op.type, main, dtype, device)


def fits(array: Any, dtype: str) -> bool:
    """Return whether the constants of an array stay numbers in ``dtype``: none inf, none zero."""
    numbers = np.asarray(array, np.float32)
    with np.errstate(over="ignore"):
        there = numbers.astype(tf.as_dtype(dtype).as_numpy_dtype).astype(np.float32)
    return bool(
        np.all(np.isfinite(there) == np.isfinite(numbers))
        and np.all((there == 0) == (numbers == 0))
    )


def results(piece: Piece, graph: Graph, node: Node, dtypes: Sequence[str]) -> tuple[str, ...]:
    """Return what comes out of a node; see ``mpcore.graph.flow.Results``."""
    before = tuple(graph.value[name].dtype for name in node.outputs)
    given = [d for i, d in enumerate(dtypes) if i not in node.keeps and is_float(d)]
    call = piece.calls.get(node.name)
    if node.fixed or not given:
        return before
    if call is None or node.target == "silu":
        return tuple(given[0] if is_float(d) else d for d in before)
    main, found = main_type(call.op), []
    for arg in call.op.op_def.output_arg:
        count = call.op.get_attr(arg.number_attr) if arg.number_attr else 1
        found += [arg.type_attr == main] * count
    return tuple(given[0] if follows else d for follows, d in zip(found, before, strict=True))

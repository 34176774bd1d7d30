"""Operations of a traced step, run alone in two dtypes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from mpcore.tools.profiling.timing import compared

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from mpcore.backend.profiler import KernelTime
    from mpcore_tensorflow.traced import Made, Traced

__all__ = ["timed"]

_REFUSALS = (tf.errors.OpError, ValueError, TypeError)


def timed(traced: Traced, wanted: Sequence[str], low: str) -> list[KernelTime]:
    """Time each wanted kernel on random values of its shapes, in two dtypes.

    Args:
        traced: a step.
        wanted: names, as ``Made.kernel``.
        low: the 16-bit dtype; kernels that ran in it are timed in float32 too, others in it.

    Returns:
        One entry for each kernel whose inputs can be made: floats of known shape, and whole
        numbers that are constants.
    """
    first: dict[str, Made] = {}
    for made in traced.ops.values():
        if made.op is not None:
            first.setdefault(made.kernel, made)
    found = (_compared(first[name], low) for name in wanted if name in first)
    return [kernel for kernel in found if kernel is not None]


def _compared(made: Made, low: str) -> KernelTime | None:
    run = _runner(made.op, {})
    if run is None:
        return None
    other = low if made.dtype != low else "float32"
    try:
        run()
    except _REFUSALS:
        return None  # random values are no inputs for it
    rival = _runner(made.op, {made.dtype: other}) or _refuse
    return compared(made.kernel, (made.dtype, other), run, rival, _REFUSALS, _wait)


def _refuse() -> None:
    msg = "its inputs cannot be made"
    raise ValueError(msg)


def _runner(op: Any, change: dict[str, str]) -> Callable[[], Any] | None:
    """Return what runs a graph's operation eagerly; None if its inputs cannot be made.

    Args:
        op: the operation; random states and variables are not repeated.
        change: dtypes by those that they replace.
    """
    raw = getattr(tf.raw_ops, op.type, None)
    if raw is None or op.op_def.is_stateful:
        return None
    values = [_value(x, change) for x in op.inputs]
    if any(value is None for value in values):
        return None
    given = dict(_attributes(op, change))
    rest = iter(values)
    for argument in op.op_def.input_arg:
        count = argument.number_attr
        number = op.get_attr(count) if count else 1
        taken = [next(rest) for _ in range(number)]
        given[argument.name] = taken if count else taken[0]
    return lambda: raw(**given)


def _attributes(op: Any, change: dict[str, str]) -> Iterator[tuple[str, Any]]:
    """Yield the attributes that the inputs do not tell."""
    told = {
        name
        for argument in op.op_def.input_arg
        for name in (argument.type_attr, argument.number_attr, argument.type_list_attr)
    }
    for attribute in op.op_def.attr:
        if attribute.name not in told and not attribute.name.startswith("_"):
            value = op.get_attr(attribute.name)
            if isinstance(value, tf.DType):
                value = tf.as_dtype(change.get(value.name, value.name))
            yield attribute.name, value


def _value(tensor: Any, change: dict[str, str]) -> Any:
    if not tensor.shape.is_fully_defined():
        return None
    if not tensor.dtype.is_floating:
        constant = tf.get_static_value(tensor)
        if constant is None and tensor.op.type == "ShapeN":
            constant = tensor.op.inputs[tensor.value_index].shape.as_list()
        return None if constant is None else tf.constant(constant, tensor.dtype)
    dtype = change.get(tensor.dtype.base_dtype.name, tensor.dtype.base_dtype.name)
    return tf.cast(tf.random.stateless_normal(tensor.shape, (0, 1)), dtype)


def _wait(result: Any) -> None:
    for tensor in tf.nest.flatten(result):
        if tf.is_tensor(tensor):
            tensor.numpy()
            return

"""Losses whose parts are made in other functions: MindSpore records what runs, as torch does.

``loss`` differentiates one function, and needs all that a loss is made of in it. Where a script
hands losses around, a port switches the recording on for the rest of the process, and a backward
pass goes through what was recorded.

Source: mindspore 2.10.0, ``run_backward`` and ``BackwardNode`` of ``_c_expression`` and
``_PyNativeExecutor`` in mindspore/graph/api.py, none of them public; on CPU they were compared with
torch 2.13.0, on Ascend they were not run.
"""

from __future__ import annotations

import gc
import weakref
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import mindspore as ms
from mindspore import Parameter, Tensor, ops

from mpcore_mindspore.shims import pynative_executor
from mpcore_port_runtime.second_order import follow_no_more

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__: list[str] = []

_ON = [False]
_INIT: list[Any] = []
"""How a Parameter is made, while recording notes it."""
_LEAVES: dict[int, weakref.ref[Any]] = {}
"""By the number of a leaf of MindSpore's graphs, its Parameter or tensor that wants a gradient."""


def start() -> None:
    """Have all that runs from here on recorded, outside of ``no_grad``."""
    if _ON[0]:
        return
    _ON[0] = True
    made = Parameter.__init__
    _INIT.append(made)

    def begin(self: Any, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **kwargs)
        _MADE.append(weakref.ref(self))

    Parameter.__init__ = begin
    Tensor.requires_grad = property(_wants, _want)
    held = (one for one in gc.get_objects() if issubclass(type(one), Parameter))
    _MADE.extend(weakref.ref(one) for one in held)
    resume()


_MADE: list[weakref.ref[Any]] = []
"""All Parameters, and tensors that wanted a gradient; some are no more."""


def stop() -> None:
    """Record no longer what runs outside of what is differentiated."""
    if not _ON[0]:
        return
    _ON[0] = False
    follow_no_more()
    Parameter.__init__ = _INIT.pop()
    del Tensor.requires_grad
    _MADE.clear()
    _LEAVES.clear()
    pynative_executor.clear_res()
    pynative_executor.set_grad_flag(False)


def _wants(tensor: Any) -> bool:
    return bool(tensor._requires_grad)


def _want(tensor: Any, wanted: bool) -> None:
    """Make a tensor a leaf that gets a gradient, or none."""
    tensor._requires_grad = wanted
    if wanted:
        _MADE.append(weakref.ref(tensor))


def want(tensor: Any, wanted: bool) -> None:
    """Set ``requires_grad`` of a tensor: where it is recorded, it is a leaf from here on."""
    if _INSIDE[0]:
        tensor._requires_grad = wanted
    tensor.requires_grad = wanted


def recording() -> bool:
    """Return whether ``start`` was called."""
    return _ON[0]


def resume() -> None:
    """Go on recording: MindSpore stops where a function was differentiated, or has raised."""
    if _ON[0] and not pynative_executor.grad_flag():
        pynative_executor.set_grad_flag(True)
        pynative_executor.new_graph(_top, _BEGIN)


def _top(_: Any) -> None:
    """Stand for the function that MindSpore takes the recording to be of."""


_BEGIN = Tensor([0.0], ms.float32)


@contextmanager
def unrecorded() -> Iterator[None]:
    """Record nothing in here: what an optimizer does to its Parameters."""
    if not _ON[0]:
        yield
        return
    with ms._no_grad():
        yield
    resume()


@contextmanager
def inside_backward() -> Iterator[None]:
    """Have what a Function's ``backward`` computes under ``enable_grad`` recorded apart."""
    before = pynative_executor.grad_flag()
    pynative_executor.set_grad_flag(True)
    pynative_executor.new_empty_graph()
    _INSIDE[0] += 1
    try:
        yield
    finally:
        _INSIDE[0] -= 1
        pynative_executor.end_empty_graph()
        pynative_executor.set_grad_flag(before)


_INSIDE = [0]


def is_recorded(value: Any) -> bool:
    """Return whether a backward pass goes through a tensor."""
    on = _ON[0] or _INSIDE[0]
    return bool(on) and getattr(value, "_grad_node", None) is not None


def gradients_of(value: Any, weight: Any, *, keep: bool) -> tuple[list[Any], tuple[Any, ...]]:
    """Return the Parameters that a tensor hangs on, and the gradients of it times ``weight``.

    Args:
        value: is recorded.
        weight: a number, or a tensor of its shape.
        keep: whether another backward pass goes through the same forward pass.

    Raises:
        RuntimeError: what was recorded went with an earlier backward pass.
    """
    params = _reached(value)
    grads = _back([value], [_weight(value, weight)], params, keep=keep)
    pairs = [(p, g) for p, g in zip(params, grads, strict=True) if g is not None]
    return [p for p, _ in pairs], tuple(g for _, g in pairs)


def by(
    values: Sequence[Any], inputs: Sequence[Any], weights: Sequence[Any], *, again: bool = False
) -> tuple[Any, ...]:
    """Return the gradients of recorded tensors by others; None of one that they do not hang on.

    What is recorded is kept: torch's ``autograd.grad`` frees it, and raises where it is used again.

    Args:
        values: are recorded.
        inputs: what they are differentiated by.
        weights: by value, a number, or a tensor of its shape.
        again: whether the gradients have gradients themselves.
    """
    pairs = zip(values, weights, strict=True)
    return _back(values, [_weight(*pair) for pair in pairs], inputs, keep=True, again=again)


def _weight(value: Any, weight: Any) -> Any:
    """Return what the gradients of a tensor are multiplied by, in its shape and dtype."""
    if isinstance(weight, Tensor):
        same = weight if weight.dtype == value.dtype else weight.astype(value.dtype)
        return same if same.shape == value.shape else same.reshape(value.shape)
    return ops.full(tuple(value.shape), float(weight), dtype=value.dtype)


def _back(
    values: Sequence[Any], weights: Sequence[Any], inputs: Any, *, keep: bool, again: bool = False
) -> tuple[Any, ...]:
    """Return the gradients of recorded tensors by inputs, None where they do not reach one."""
    from mindspore._c_expression import run_backward  # not public: asked for where it is used

    found = run_backward(
        tuple(values), tuple(weights), keep, again, tuple(inputs), True, accumulate_grad=False
    )
    resume()
    return tuple(found)


def _reached(value: Any) -> list[Any]:
    """Return the Parameters at the leaves of a tensor's graph, that want a gradient."""
    first = value._grad_node
    seen, waiting, leaves = {first._unique_id()}, [first], []
    while waiting:
        node = waiting.pop()
        if node.is_leaf():
            leaves.append(node._unique_id())
        for above, _ in node.next_functions:
            if above is not None and above._unique_id() not in seen:
                seen.add(above._unique_id())
                waiting.append(above)
    known = [_known(number) for number in leaves]
    if any(one is None for one in known):
        _look_at_made()
        known = [_known(number) for number in leaves]
    return [one for one in known if one is not None and one._requires_grad]


def _known(number: int) -> Any:
    held = _LEAVES.get(number)
    param = held() if held is not None else None
    node = getattr(param, "_grad_node", None)
    return param if node is not None and node._unique_id() == number else None


def _look_at_made() -> None:
    """Number the leaves of all Parameters that are part of a graph by now."""
    alive = [(held, param) for held in _MADE if (param := held()) is not None]
    _MADE[:] = [held for held, _ in alive]
    for held, param in alive:
        node = getattr(param, "_grad_node", None)
        if node is not None:
            _LEAVES[node._unique_id()] = held

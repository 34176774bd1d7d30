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

if TYPE_CHECKING:
    from collections.abc import Iterator

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


def is_recorded(value: Any) -> bool:
    """Return whether a backward pass goes through a tensor."""
    return _ON[0] and getattr(value, "_grad_node", None) is not None


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
    if isinstance(weight, Tensor):
        ones = weight.astype(value.dtype).reshape(value.shape)
    else:
        ones = ops.full(tuple(value.shape), float(weight), dtype=value.dtype)
    grads = _back(value, ones, params, keep=keep)
    pairs = [(p, g) for p, g in zip(params, grads, strict=True) if g is not None]
    return [p for p, _ in pairs], tuple(g for _, g in pairs)


def by(value: Any, inputs: list[Any], weight: float) -> tuple[Any, ...]:
    """Return the gradients of a recorded tensor times a number by others that it hangs on.

    What is recorded is kept: torch's ``autograd.grad`` frees it, and raises where it is used again.
    """
    ones = ops.full(tuple(value.shape), weight, dtype=value.dtype)
    return _back(value, ones, inputs, keep=True)


def _back(value: Any, weight: Any, inputs: list[Any], *, keep: bool) -> tuple[Any, ...]:
    """Return the gradients of a recorded tensor by its inputs, None where it does not reach one."""
    from mindspore._c_expression import run_backward  # not public: asked for where it is used

    found = run_backward(
        (value,), (weight,), keep, False, tuple(inputs), True, accumulate_grad=False
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

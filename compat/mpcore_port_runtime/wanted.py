"""Whether a tensor wants a gradient: torch's ``requires_grad`` of what is made of Parameters."""

from __future__ import annotations

import re
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from mindspore import Tensor

from mpcore_port_runtime.recorded import recording

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["wants_grad"]

_INPUT = re.compile(r"input_\d+")
"""What MindSpore calls the leaves that are no Parameters: all arguments of what it records."""
_WANTED: ContextVar[frozenset[str]] = ContextVar("wanted", default=frozenset())
_RUNS: ContextVar[bool] = ContextVar("runs", default=False)

_CONSTANT = frozenset(
    """
    Argmax ArgMaxExt Argmin ArgMinExt Equal Greater GreaterEqual GreaterEqualScalar GreaterScalar
    IsFinite IsInf IsNan Less LessEqual LessEqualScalar LessScalar LogicalAnd LogicalNot LogicalOr
    NewFull NewOnes NewZeros NotEqual OneHot OneHotExt OnesLike OnesLikeExt ZerosLike ZerosLikeExt
    """.split()  # noqa: SIM905  # a list of words is read
)


def wants_grad(tensor: Any) -> bool:
    """Return torch's ``requires_grad``, as far as it can be known (mindspore 2.10.0).

    Parameters and tensors that were told so say it. Of others it is known while ``loss`` runs a
    function, and afterwards of what was made in it, the loss included; nothing inside ``no_grad``
    wants a gradient. What is made outside of both answers False, also where torch says True.
    """
    told = getattr(tensor, "requires_grad", None)
    if told is not None and (not recording() or tensor._is_leaf):
        return bool(told)
    if not isinstance(tensor, Tensor) or not (tensor.is_floating_point() or tensor.is_complex()):
        return False
    pending = getattr(tensor, "mpcore_pending", None)
    if pending is not None:
        return bool(pending.params)
    return bool(getattr(tensor, "_requires_grad", False)) and _leads(tensor._grad_node)


@contextmanager
def wanted(given: Iterable[Any]) -> Iterator[None]:
    """Have tensors that MindSpore records want a gradient inside, and what is made of them."""
    nodes = (getattr(one, "_grad_node", None) for one in given)
    names = {node.name() for node in nodes if node is not None}
    token, inside = _WANTED.set(_WANTED.get() | names), _RUNS.set(True)
    try:
        yield
    finally:
        _RUNS.reset(inside)
        _WANTED.reset(token)


def runs_a_loss() -> bool:
    """Return whether ``loss`` runs a function now, to differentiate it."""
    return _RUNS.get()


def _leads(node: Any) -> bool:
    """Return whether a way leads to a wanted leaf and passes nothing that gives no gradients."""
    seen, waiting = set(), [] if node is None else [node]
    while waiting:
        one = waiting.pop()
        if one is None or one._unique_id() in seen or one.name() in _CONSTANT:
            continue
        if one.is_leaf() and (not _INPUT.fullmatch(one.name()) or one.name() in _WANTED.get()):
            return True
        seen.add(one._unique_id())
        waiting.extend(above for above, _ in one.next_functions)
    return False

"""A prepared network under another policy for a while: what ``amp.diagnose`` tries cures on.

Constructs, precision flags and Parameters are put back as the very objects they were; compiled
calls are compiled anew.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import mindspore as ms
from mindspore import Parameter, Tensor, ops

from mpcore.backend.backend import find_backend
from mpcore.capabilities.capabilities import honour
from mpcore_mindspore.casting import (
    apply_plan,
    check_plan,
    emulated_parameters,
    native_of,
    store_low,
)
from mpcore_mindspore.release import MARK, Original, replace_parameters
from mpcore_mindspore.stored_low import refuse_low

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mpcore.policy.policy import Policy
    from mpcore_mindspore.amp import MindsporeAmp

__all__ = ["replayed", "rounded", "under"]


@contextlib.contextmanager
def under(amp: MindsporeAmp, policy: Policy) -> Iterator[Callable[[Any], Any]]:
    """Run the network of ``amp`` under ``policy``; yield what leaves a loss function as it is.

    Raises:
        BackendError: MindSpore cannot honour it; nothing has changed.
    """
    net, backend = amp.model, find_backend(amp.model)
    mark = net.__dict__[MARK]
    with contextlib.ExitStack() as stack:
        now = Original(net, amp.optimizers.values())
        stack.callback(object.__setattr__, net, MARK, mark)
        stack.callback(now.put_back)
        stack.callback(object.__setattr__, net, MARK, now)  # each way back takes its mark off
        now.swapped = _take_off(amp)
        can = backend.capabilities(net)
        plan, _ = honour(policy, backend.layers(net), can)
        check_plan(net, plan, ms.get_context("device_target"))
        native = native_of(can)
        refuse_low(net, (), plan, native)
        fresh = Original(net, ())
        stack.callback(fresh.put_back)
        apply_plan(net, plan, native, fresh)
        if policy.by == "model":
            store_low(net, plan, native, fresh)
        rounded(stack, emulated_parameters(net, plan, native))
        yield lambda loss_fn: loss_fn


def _take_off(amp: MindsporeAmp) -> list[tuple[Any, Any]]:
    """Make the network what it was before ``prepare``, at the weights that it has now.

    Returns:
        Pairs (float32 Parameter in the network now, 16-bit Parameter before it).
    """
    net, original = amp.model, amp._original
    masters = amp._read_weights() if original.swapped else {}
    object.__setattr__(net, MARK, original)
    original.put_back()
    pairs, wide = [], {}
    for low, param in original.swapped:
        values = Tensor(masters[amp._paths[id(low)]])
        float32 = Parameter(values, name=param.name, requires_grad=low.requires_grad)
        pairs.append((float32, low))
        wide[id(param)] = float32
    for _, cell in net.cells_and_names():
        replace_parameters(cell, wide)
    return pairs


def rounded(stack: contextlib.ExitStack, params: list[Any]) -> None:
    """Let Parameters of an emulated dtype hold rounded values."""
    for param in params:
        before = Tensor(param.asnumpy())
        stack.callback(ops.assign, param, before)
        ops.assign(param, before.astype(ms.bfloat16).astype(ms.float32))


@contextlib.contextmanager
def replayed(state: ms.Tensor | None) -> Iterator[None]:
    """Let MindSpore's generator be in ``state`` for a while; None leaves it."""
    now = ms.get_rng_state()
    if state is not None:
        ms.set_rng_state(state)
    try:
        yield
    finally:
        ms.set_rng_state(now)

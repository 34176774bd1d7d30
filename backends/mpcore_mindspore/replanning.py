"""A prepared network that changes its plan while it trains: ``on_overflow="keep full"``."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import mindspore as ms

from mpcore.backend.backend import find_backend
from mpcore.capabilities.capabilities import honour
from mpcore.errors import BackendError
from mpcore_mindspore.casting import apply_plan, check_plan, native_of
from mpcore_mindspore.release import MARK
from mpcore_mindspore.stored_low import refuse_low

if TYPE_CHECKING:
    from mpcore.policy.plan import Plan
    from mpcore.policy.policy import Policy
    from mpcore_mindspore.amp import MindsporeAmp
    from mpcore_mindspore.bindings import Detection
    from mpcore_mindspore.step import TrainCell

__all__ = ["ANEW", "MadeCells", "check_detection", "put_plan"]

ANEW = (
    "; steps are compiled anew, but for a graph of your own (ms.jit around a train cell), which "
    "keeps the casts that it was compiled with: make it anew"
)


def check_detection(detection: Detection) -> None:
    """Refuse what a plan that changes does not go with.

    Raises:
        BackendError: a distributed run, or an emulated device.
    """
    why = ""
    if detection.rank_sum is not None:
        why = "in a distributed run, where no rank can run a batch again alone"
    elif detection.device is not None:
        why = "on an emulated device, whose limits are those of the plan it began with"
    if why:
        msg = f"`on_overflow` must be 'skip' {why}, got 'keep full'"
        raise BackendError(msg)


def put_plan(amp: MindsporeAmp, policy: Policy) -> Plan:
    """Carry ``policy`` out on the network of ``amp``; return its plan.

    Raises:
        BackendError: MindSpore cannot honour it; nothing has changed.
    """
    net, original, backend = amp.model, amp._original, find_backend(amp.model)
    strict = amp.arguments is None or amp.arguments.strict
    can = backend.capabilities(net)
    plan, _ = honour(policy, backend.layers(net), can, strict=strict)
    native = native_of(can)
    refuse_low(net, (), plan, native)
    names = [(param, param.name) for param, _ in original._names]
    with amp.guard.opened():
        original.put_back()
        try:
            check_plan(net, plan, ms.get_context("device_target"))
        except BackendError:
            plan = amp.plan
            raise
        finally:
            object.__setattr__(net, MARK, original)
            for param, name in names:
                param.name = name
            original.shadows.clear()
            apply_plan(net, plan, native, original)
            amp._watch.take(original.shadows)
    return plan


class MadeCells:
    """The train cells that were handed out, and are still held."""

    def __init__(self) -> None:
        """Know none."""
        self._cells: weakref.WeakSet[Any] = weakref.WeakSet()

    def add(self, cell: TrainCell) -> None:
        """Know one more."""
        self._cells.add(cell)

    def compile_anew(self) -> None:
        """Let each be compiled again when it is called next."""
        for cell in self._cells:
            cell.compile_anew()

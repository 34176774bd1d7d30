"""What preparing does to a model and its optimizers, and how it is undone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from mpcore.errors import BackendError
from mpcore_torch.calls import TABLE, TORN, Calls
from mpcore_torch.carried import carry
from mpcore_torch.casting import (
    apply_plan,
    cast_floats,
    is_prepared,
    restore_forward,
    restore_parameters,
    store_low,
    store_low_statistics,
)
from mpcore_torch.float32 import set_float32
from mpcore_torch.layers import device_of
from mpcore_torch.master_binding import keep_masters, load_into_masters, swap_in_low
from mpcore_torch.master_weights import Masters
from mpcore_torch.stored_low import widen_statistics, widen_trained

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mpcore.policy.plan import Plan

__all__ = ["Prepared", "Released"]


class Prepared:
    """A model under a plan, and its optimizers.

    Attributes:
        master_weights: what stands for the parameters between steps.
        widened: dtype before of the 16-bit parameters that were given float32 values, by path.
        replaced: modules whose ``forward`` is ours.
        attributes: (module, name, value before) of what the plan set.
        statistics: (module, name) of the buffers that are stored in 16 bits.
    """

    def __init__(
        self, model: nn.Module, optimizers: Mapping[str, torch.optim.Optimizer], plan: Plan
    ) -> None:
        """Carry ``plan`` out in place."""
        self._model, self._optimizers = model, optimizers
        self.widened = widen_trained(model, optimizers.values())
        widen_statistics(model)
        self._switches = set_float32(plan.policy.float32, device_of(model).type)
        self.attributes = apply_plan(model, plan)
        pairs = store_low(model, plan) if plan.policy.by == "model" else []
        self.statistics = store_low_statistics(model, plan) if pairs else []
        self._low = [low for low, _ in pairs]
        self.master_weights = Masters(pairs, optimizers, plan.policy)
        self._patched: list[tuple[torch.optim.Optimizer, Any]] = []
        for optimizer in optimizers.values():
            if self.master_weights.states:
                self._patched.append((optimizer, vars(optimizer).get("add_param_group")))
                keep_masters(optimizer, self.master_weights.masters)
            elif pairs:
                swap_in_low(optimizer, {master: low for low, master in pairs})
        self._hooks = (
            [
                *load_into_masters(model, self.master_weights),
                *carry(model, self.master_weights),
            ]
            if self.master_weights.states
            else []
        )
        # The model's own forward is about to be replaced, if it is not yet.
        self.replaced = [*filter(is_prepared, model.modules()), model]

    def check_release(self, calls: Calls) -> None:
        """Raise BackendError if a step is open, or somebody has wrapped a forward of ours."""
        calls.close_left_open()
        words = TABLE[calls.state]["save"]  # nothing may wait, as for saving
        if words not in TABLE and calls.state != TORN:
            raise BackendError(words.format(call="release"))
        for module in self.replaced:
            if not is_prepared(module):
                msg = (
                    f"`release` must come before what was put over `forward` of a "
                    f"{type(module).__name__} after `prepare`; undo that first"
                )
                raise BackendError(msg)

    def change(self, plan: Plan) -> None:
        """Carry another plan out; what is stored stays as it is."""
        for module in self.replaced:
            restore_forward(module)
        for module, name, value in self.attributes:
            setattr(module, name, value)
        self.attributes = apply_plan(self._model, plan)
        self.replaced = [*filter(is_prepared, self._model.modules()), self._model]

    def release(self) -> None:
        """Undo everything; parameters keep their values, in float32."""
        for module in self.replaced:
            restore_forward(module)
        for module, name, value in self.attributes:
            setattr(module, name, value)
        has_masters = bool(self.master_weights.states)
        float32 = self.master_weights.release() or {low: _widened(low) for low in self._low}
        restore_parameters(self._model, float32)
        for module, name in self.statistics:
            module._buffers[name] = cast_floats(module._buffers[name], torch.float32)
        for optimizer, before in self._patched:
            del optimizer.add_param_group
            if before is not None:
                optimizer.add_param_group = before
        if not has_masters:
            for optimizer in self._optimizers.values():
                swap_in_low(optimizer, float32)
        for hook in self._hooks:
            hook.remove()
        for put_back in self._switches:
            put_back()


def _widened(low: nn.Parameter) -> nn.Parameter:
    return nn.Parameter(low.detach().float(), low.requires_grad)


class Released(Calls):
    """The calls of a model that was given back: none is allowed."""

    def __init__(self) -> None:
        """Be in a state of its own, in which no forward pass begins a step."""
        super().__init__()
        self.state = "released"

    def check(self, call: str) -> str:
        """Raise BackendError."""
        msg = f"`{call}` must not follow `release`, which gave the model back; prepare it again"
        raise BackendError(msg)

"""A prepared torch model under another policy for a while: what ``amp.diagnose`` tries cures on.

The forwards and parameters of the plan are taken off, those of the other plan put on, and
afterwards everything is the very object it was.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from mpcore.backend.backend import find_backend
from mpcore.capabilities.capabilities import honour
from mpcore.errors import BackendError
from mpcore_torch.casting import (
    apply_plan,
    cast_floats,
    is_prepared,
    replace_root,
    restore_forward,
    restore_parameters,
    store_low,
    store_low_statistics,
)
from mpcore_torch.float32 import set_float32
from mpcore_torch.layers import device_of
from mpcore_torch.op_list import op_list_of, region
from mpcore_torch.refuse import refuse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mpcore.policy.policy import Policy
    from mpcore_torch.master_weights import Masters
    from mpcore_torch.prepared import Prepared

__all__ = ["replayed", "under"]


@contextlib.contextmanager
def under(model: nn.Module, prepared: Prepared, policy: Policy) -> Iterator[Callable[[Any], Any]]:
    """Run ``model`` under ``policy``; yield what puts a loss function into its region.

    Raises:
        BackendError: torch cannot honour it here, or a forward was wrapped since ``prepare``;
            nothing has changed.
    """
    _check_bare(prepared)
    backend, device = find_backend(model), device_of(model).type
    with contextlib.ExitStack() as stack:
        _take_off(stack, model, prepared)
        plan, _ = honour(policy, backend.layers(model), backend.capabilities(model))
        refuse(model, plan)
        op_list = op_list_of(model, plan, device)
        for put_back in set_float32(policy.float32, device):
            stack.callback(put_back)
        for module, name, value in apply_plan(model, plan):
            stack.callback(setattr, module, name, value)
        if policy.by == "model":
            store_low(model, plan)
            store_low_statistics(model, plan)
        replace_root(model, plan)

        def enter() -> Any:
            if policy.by != "op" or policy.compute == "float32":
                return contextlib.nullcontext()
            return region(device, getattr(torch, policy.compute), op_list)

        yield lambda loss_fn: _inside(loss_fn, enter)


def _check_bare(prepared: Prepared) -> None:
    for module in prepared.replaced:
        if not is_prepared(module):
            msg = (
                f"`diagnose` cannot try other policies: something was put over `forward` of a "
                f"{type(module).__name__} after `prepare`; undo that first"
            )
            raise BackendError(msg)


def _inside(loss_fn: Any, enter: Callable[[], Any]) -> Any:
    if isinstance(loss_fn, dict):
        return {name: _inside(function, enter) for name, function in loss_fn.items()}

    def run(*batch: Any) -> Any:
        with enter():
            return loss_fn(*batch)

    return run


def _take_off(stack: contextlib.ExitStack, model: nn.Module, prepared: Prepared) -> None:
    """Make the model what it was before ``prepare``; the stack puts back what it is now."""
    modules = list(model.modules())
    stack.callback(_put_back_buffers, [(m, dict(m._buffers)) for m in modules])
    stack.callback(_put_back_parameters, model, [(m, dict(m._parameters)) for m in modules])
    held = [(module, vars(module)["forward"]) for module in prepared.replaced]
    stack.callback(_put_back_forwards, modules, held)
    for module, _ in held:
        restore_forward(module)
    for module, name, value in prepared.attributes:
        stack.callback(setattr, module, name, getattr(module, name))
        setattr(module, name, value)
    restore_parameters(model, _float32(model, prepared.master_weights))
    for module, name in prepared.statistics:
        module._buffers[name] = cast_floats(module._buffers[name], torch.float32)


def _put_back_forwards(modules: list[nn.Module], held: list[tuple[nn.Module, Any]]) -> None:
    for module in modules:
        restore_forward(module)
    for module, forward in held:
        object.__setattr__(module, "forward", forward)


def _put_back_parameters(model: nn.Module, held: list[tuple[nn.Module, dict[str, Any]]]) -> None:
    into = {
        module._parameters[name]: param
        for module, own in held
        for name, param in own.items()
        if param is not None and module._parameters[name] is not param
    }
    restore_parameters(model, into)


def _put_back_buffers(held: list[tuple[nn.Module, dict[str, Any]]]) -> None:
    for module, own in held:
        module._buffers.update(own)


def _float32(model: nn.Module, master_weights: Masters) -> dict[nn.Parameter, nn.Parameter]:
    """Return new float32 parameters for the 16-bit ones, with the values that those stand for."""
    low = [p for p in model.parameters() if p.dtype in (torch.float16, torch.bfloat16)]
    return {
        p: nn.Parameter(master_weights.of(p).detach().float().clone(), p.requires_grad) for p in low
    }


@contextlib.contextmanager
def replayed(state: list[tuple[Any, torch.Tensor]] | None) -> Iterator[None]:
    """Let the generators be what ``TorchAmp`` saw before a step, for a while."""
    now = [(home, home.get_rng_state()) for home, _ in state or []]
    for home, seen in state or []:
        home.set_rng_state(seen)
    try:
        yield
    finally:
        for home, seen in now:
            home.set_rng_state(seen)

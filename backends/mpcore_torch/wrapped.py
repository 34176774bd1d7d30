"""Optimizers around optimizers: those of hosts are taken off, the others step as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from mpcore.errors import BackendError, OptimizerError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from mpcore.policy.policy import Policy

__all__ = ["nested", "refuse_wrapped", "unwrapped", "with_hooks"]

# Their wrappers decide when to step, which a prepared model does; they compute nothing.
_HOSTS = ("accelerate", "lightning", "lightning_fabric", "pytorch_lightning", "transformers")
_INSIDE = ("optimizer", "_optimizer")


def unwrapped(optimizer: Any) -> torch.optim.Optimizer:
    """Return the optimizer inside of a host's wrapper.

    Raises:
        OptimizerError: it is no optimizer of torch.
    """
    while type(optimizer).__module__.partition(".")[0] in _HOSTS:
        found = (getattr(optimizer, name, None) for name in _INSIDE)
        inner = next((each for each in found if isinstance(each, torch.optim.Optimizer)), None)
        if inner is None or inner is optimizer:
            break
        optimizer = inner
    if isinstance(optimizer, torch.optim.Optimizer):
        return optimizer
    kind = f"{type(optimizer).__module__}.{type(optimizer).__name__}"
    msg = f"`optimizer` must be a torch.optim.Optimizer for this model, got {kind}"
    holder = getattr(optimizer, "__dict__", {})
    for name, each in holder.items():
        if isinstance(each, torch.optim.Optimizer):
            msg += f"; pass the {type(each).__name__} inside it, its `.{name}`"
            break
    raise OptimizerError(msg)


def _inside(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer | None:
    """Return an optimizer that another one steps itself, such as a Lookahead's."""
    held = (each for each in vars(optimizer).values() if each is not optimizer)
    return next((each for each in held if isinstance(each, torch.optim.Optimizer)), None)


def nested(optimizers: Iterable[torch.optim.Optimizer]) -> Iterator[torch.optim.Optimizer]:
    """Yield the optimizers, and those inside of them."""
    for optimizer in optimizers:
        yield optimizer
        inner = _inside(optimizer)
        if inner is not None:
            yield from nested([inner])


def with_hooks(optimizers: Iterable[torch.optim.Optimizer]) -> list[torch.optim.Optimizer]:
    """Return those, nested ones too, whose steps call hooks.

    One that never called torch's constructor has none; its steps are those of the one inside.
    """
    return [each for each in nested(optimizers) if "_optimizer_step_pre_hooks" in vars(each)]


def refuse_wrapped(optimizer: torch.optim.Optimizer, policy: Policy) -> None:
    """Raise BackendError where an optimizer cannot step float32 values that live elsewhere."""
    name = type(optimizer).__name__
    if type(getattr(optimizer, "_amp_stash", None)).__module__.partition(".")[0] == "apex":
        msg = (
            f"`optimizer` must not come out of apex.amp.initialize, which made this {name} scale "
            "and skip by itself: leave that call out"
        )
        raise BackendError(msg)
    if getattr(optimizer, "_overlap_with_ddp", False):
        msg = (
            f"`optimizer` must step when it is told, this {name} steps inside of DDP's backward "
            "pass: make it with overlap_with_ddp=False"
        )
        raise BackendError(msg)
    if not with_hooks([optimizer]):
        msg = (
            f"`optimizer` must call torch.optim.Optimizer.__init__ in its own constructor, this "
            f"{name} did not: its steps cannot be guarded"
        )
        raise BackendError(msg)
    inner = _inside(optimizer)
    if inner is None:
        return
    shards = type(optimizer).__module__.startswith("torch.distributed.")
    if (policy.by == "model" and (shards or policy.scheme.name != "copy")) or (
        policy.optimizer_state != "float32"
    ):
        way = "by='layer' or by='op'" if shards else "master=copy, or by='layer'"
        msg = (
            f"`optimizer` must hold its float32 values between steps, this {name} works on those "
            f"of the {type(inner).__name__} inside it: use {way}, or pass the inner one"
        )
        raise BackendError(msg)

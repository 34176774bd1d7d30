"""What torch cannot do with a model under a plan, said before anything is changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from mpcore.errors import BackendError
from mpcore_torch.casting import is_prepared
from mpcore_torch.layers import leaves
from mpcore_torch.plan_guard import is_copy
from mpcore_torch.stored_low import refuse_low

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mpcore.policy.plan import Plan

__all__ = ["refuse", "refuse_prepared"]


def refuse(model: nn.Module, plan: Plan, optimizers: Iterable[torch.optim.Optimizer] = ()) -> None:
    """Raise BackendError where torch would fail later, or go on without the policy."""
    refuse_low(model, optimizers)
    _refuse_sharded_policy(model, plan)
    if plan.policy.by == "model":
        _refuse_wrapped(model)
    if plan.policy.by in ("op", "graph") and plan.policy.compute in _LSTM_KERNELS:
        _refuse_lstm(model, plan)


def refuse_prepared(model: nn.Module) -> None:
    """Raise BackendError if ``model`` was prepared before; a copy of such a model was not."""
    modules = (model, *leaves(model).values())
    if any(is_prepared(module) and not is_copy(module) for module in modules):
        msg = (
            f"`model` must not be prepared twice, this {type(model).__name__} or a part of it was: "
            "call `release()` on what `prepare` returned, or build it anew"
        )
        raise BackendError(msg)


def _refuse_wrapped(model: nn.Module) -> None:
    if any(hasattr(param, "placements") for param in model.parameters()):
        msg = (
            "by='model' is not possible for parameters that are sharded (FSDP2): they already are "
            "float32 masters, in shards; use by='layer', or by='op'"
        )
        raise BackendError(msg)
    for module in model.modules():
        if isinstance(module, nn.parallel.DistributedDataParallel):
            msg = (
                "`model` must be prepared before it is wrapped in DistributedDataParallel when "
                "by='model': DDP watches the float32 parameters, which are replaced"
            )
            raise BackendError(msg)


def _refuse_sharded_policy(model: nn.Module, plan: Plan) -> None:
    """Refuse FSDP2's own casts of parameters and inputs beside those of the plan."""
    for name, module in model.named_modules():
        state = module._get_fsdp_state() if hasattr(module, "_get_fsdp_state") else None
        own = getattr(getattr(state, "_mp_policy", None), "param_dtype", None)
        if own not in (None, torch.float32):
            msg = (
                f"`mp_policy` of fully_shard must leave the casting to the policy, that of "
                f"{name or 'the model'} has param_dtype={str(own).removeprefix('torch.')}; leave "
                f"it out, {plan.policy.compute} is computed in all the same "
                "(reduce_dtype may stay)"
            )
            raise BackendError(msg)


def _refuse_lstm(model: nn.Module, plan: Plan) -> None:
    modules = leaves(model)
    for entry in plan.layers:
        module = modules[entry.path]
        if entry.compute != "op" or not isinstance(module, nn.LSTM):
            continue
        if module.weight_hh_l0.device.type == "cpu":
            refuse_lstm(entry.path, plan.policy.compute)


def refuse_lstm(path: str, dtype: str) -> None:
    """Raise BackendError if an LSTM on this CPU cannot run in a region of this dtype."""
    kernel, flag, other = _LSTM_KERNELS[dtype]
    if _onednn_has(kernel):
        return
    msg = (
        f"{path or 'the model'} is an LSTM, which fails in {dtype} autocast on a CPU without "
        f"{flag} (torch 2.13.0, oneDNN); use by='layer', {other}or the rule 'full layer=LSTM'"
    )
    raise BackendError(msg)


_LSTM_KERNELS = {
    "float16": ("_is_mkldnn_fp16_supported", "avx512_fp16", "bfloat16, "),
    "bfloat16": ("_is_mkldnn_bf16_supported", "avx512", ""),
}
"""By dtype: who knows whether oneDNN has the kernels, what they need, what helps besides."""


def _onednn_has(kernel: str) -> bool:
    try:
        return bool(getattr(torch.ops.mkldnn, kernel)())
    except (AttributeError, RuntimeError):  # a build without oneDNN has no such kernel
        return True

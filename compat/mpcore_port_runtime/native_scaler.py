"""Scaling, clipping and the step in one call.

Sources: timm 1.0.9 ``utils/cuda.py``, ``utils/clip_grad.py``, ``utils/agc.py``. Compared with what
these gave.
"""

from __future__ import annotations

from typing import Any

from mindspore import Parameter, ops

from mpcore_port_runtime import apex
from mpcore_port_runtime.training import GradScaler, clip_grad_norm_, clip_grad_value_, step

__all__ = ["ApexScaler", "NativeScaler", "adaptive_clip_grad", "dispatch_clip_grad"]


class NativeScaler:
    """timm.utils.NativeScaler."""

    state_dict_key = "amp_scaler"

    def __init__(self) -> None:
        self._scaler = GradScaler()

    def __call__(
        self,
        loss: Any,
        optimizer: Any,
        clip_grad: float | None = None,
        clip_mode: str = "norm",
        parameters: Any = None,
        create_graph: bool = False,
        need_update: bool = True,
    ) -> None:
        """Run the backward pass, and the optimizer unless gradients are not finite."""
        self._scaler.scale(loss).backward(create_graph=create_graph)
        if not need_update:
            return
        if clip_grad is not None:
            if parameters is None:
                msg = "`parameters` must be given where gradients are clipped"
                raise AssertionError(msg)
            self._scaler.unscale_(optimizer)
            dispatch_clip_grad(parameters, clip_grad, mode=clip_mode)
        self._scaler.step(optimizer)
        self._scaler.update()

    def state_dict(self) -> dict[str, Any]:
        """Return the scaler's."""
        return self._scaler.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take the scaler's."""
        self._scaler.load_state_dict(state_dict)


class ApexScaler:
    """timm.utils.ApexScaler: the same through apex's amp."""

    state_dict_key = "amp"

    def __call__(
        self,
        loss: Any,
        optimizer: Any,
        clip_grad: float | None = None,
        clip_mode: str = "norm",
        parameters: Any = None,
        create_graph: bool = False,
        need_update: bool = True,
    ) -> None:
        """Run the backward pass, and the optimizer unless gradients are not finite."""
        del parameters  # apex's own are clipped
        with apex.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward(create_graph=create_graph)
        if not need_update:
            return
        if clip_grad is not None:
            dispatch_clip_grad(apex.master_params(optimizer), clip_grad, mode=clip_mode)
        step(optimizer)

    def state_dict(self) -> dict[str, Any]:
        """Return apex's loss scalers."""
        return apex.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take apex's loss scalers."""
        apex.load_state_dict(state_dict)


def dispatch_clip_grad(
    parameters: Any, value: float, mode: str = "norm", norm_type: float = 2.0
) -> None:
    """Clip gradients as timm.utils.dispatch_clip_grad does: by their norm, value, or weights."""
    if mode == "norm":
        clip_grad_norm_(parameters, value, norm_type=norm_type)
    elif mode == "value":
        clip_grad_value_(parameters, value)
    elif mode == "agc":
        adaptive_clip_grad(parameters, value, norm_type=norm_type)
    else:
        msg = f"`mode` must be 'norm', 'value' or 'agc', got {mode!r}"
        raise AssertionError(msg)


def adaptive_clip_grad(
    parameters: Any, clip_factor: float = 0.01, eps: float = 1e-3, norm_type: float = 2.0
) -> None:
    """Hold the gradient of each unit to a share of its weights, as timm.utils does."""
    if norm_type != 2.0:  # the usual norm
        msg = f"`norm_type` must be 2.0 here, got {norm_type!r}"
        raise NotImplementedError(msg)
    for param in [parameters] if isinstance(parameters, Parameter) else parameters:
        grad = getattr(param, "grad", None)
        if grad is None:
            continue
        most = ops.maximum(_of_units(param.value()), eps) * clip_factor
        norm = _of_units(grad)
        param.grad = ops.where(norm < most, grad, grad * (most / ops.maximum(norm, 1e-6)))


def _of_units(x: Any) -> Any:
    """Return the norm of each unit, that is of each first place; of a vector that of all."""
    if x.ndim <= 1:
        return ops.sqrt((x * x).sum())
    return ops.sqrt((x * x).sum(tuple(range(1, x.ndim)), keepdims=True))

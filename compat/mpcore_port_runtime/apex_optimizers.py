"""apex.optimizers where a script takes an optimizer out of it by name.

Each function has apex's arguments (NVIDIA/apex e13873debc46) and gives what a port writes for a
call that is written out.
"""

from __future__ import annotations

from typing import Any

from mpcore_port_runtime import optimizers
from mpcore_port_runtime.sign_and_layers import FusedLAMB

__all__ = ["FusedAdam", "FusedLAMB", "FusedSGD"]


def FusedAdam(  # noqa: N802  # apex's name
    params: Any,
    lr: float = 1e-3,
    bias_correction: bool = True,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    adam_w_mode: bool = True,
    weight_decay: float = 0.0,
    amsgrad: bool = False,
    set_grad_none: bool = True,
    capturable: bool = False,
    master_weights: bool = False,
) -> Any:
    """Return torch's AdamW, or its Adam where the decay is a part of the gradient."""
    del set_grad_none, capturable, master_weights
    if not bias_correction or amsgrad:
        msg = "FusedAdam was ported for `bias_correction=True, amsgrad=False` alone"
        raise NotImplementedError(msg)
    kind = optimizers.AdamW if adam_w_mode else optimizers.Adam
    return kind(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)


def FusedSGD(  # noqa: N802  # apex's name
    params: Any,
    lr: float,
    momentum: float = 0.0,
    dampening: float = 0.0,
    weight_decay: float = 0.0,
    nesterov: bool = False,
    wd_after_momentum: bool = False,
    materialize_master_grads: bool = True,
    set_grad_none: bool = False,
) -> Any:
    """Return torch's SGD."""
    del materialize_master_grads, set_grad_none
    if wd_after_momentum:
        msg = "FusedSGD was ported for `wd_after_momentum=False` alone"
        raise NotImplementedError(msg)
    return optimizers.SGD(params, lr, momentum, dampening, weight_decay, nesterov)


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(name)
    msg = f"apex.optimizers.{name} was not ported: FusedAdam, FusedLAMB and FusedSGD were"
    raise NotImplementedError(msg)

"""``torch_npu.npu.amp`` as it is on a device: with its differences from torch's scaler.

Source: torch_npu/npu/amp/grad_scaler.py, Ascend/pytorch 9e73e708ab93.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from mpcore_compat.torch_amp import npu
from mpcore_port.stubs.devices import is_on_device

__all__ = ["GradScaler", "autocast", "custom_bwd", "custom_fwd"]

custom_fwd = functools.partial(torch.amp.custom_fwd, device_type="npu")
custom_bwd = functools.partial(torch.amp.custom_bwd, device_type="npu")


class autocast(torch.amp.autocast_mode.autocast):  # type: ignore[misc]  # noqa: N801
    """``torch.npu.amp.autocast``: the first argument is ``enabled``."""

    def __init__(
        self, enabled: bool = True, dtype: Any = torch.float16, cache_enabled: bool = True
    ) -> None:
        super().__init__("npu", dtype, enabled, cache_enabled)


class GradScaler(npu.GradScaler):
    """mpcore's compatibility shim, with what a port must not run into.

    A state without ``dynamic`` is refused, and so are fused optimizers, as on the device. One
    overflow of any optimizer skips all of the update; the rule is the shim's.
    """

    def scale(self, outputs: Any) -> Any:
        """Scale a loss, or several.

        Raises:
            ValueError: one of them is on the CPU.
        """
        if self._enabled:
            for one in outputs if isinstance(outputs, (list, tuple)) else [outputs]:
                if isinstance(one, torch.Tensor) and not is_on_device(one):
                    msg = "Device type of outputs should be npu."
                    raise ValueError(msg)
        return super().scale(outputs)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state; its ``dynamic`` is read as the device reads it.

        Raises:
            KeyError: the state has no ``dynamic``: it was saved by torch's scaler.
        """
        if self._enabled:
            state_dict["dynamic"]
        super().load_state_dict(state_dict)

    def step(self, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        """Step unless an overflow was seen.

        Raises:
            TypeError: the optimizer is fused: it is handed ``grad_scaler``, which torch 2.13
                does not take.
        """
        if self._enabled and getattr(optimizer, "_step_supports_amp_scaling", False):
            msg = "step() got an unexpected keyword argument 'grad_scaler' (fused optimizer)"
            raise TypeError(msg)
        return super().step(optimizer, *args, **kwargs)

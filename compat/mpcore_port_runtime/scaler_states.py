"""What scripts ask torch's GradScaler for behind its interface, of the port's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mindspore as ms
from mindspore import ops

if TYPE_CHECKING:
    from mpcore.scaling.transition import LossScale, LossScaleState

__all__ = ["ScalerStates"]


class ScalerStates:
    """The attributes of torch's scaler that begin with a line, and the setters of its factors.

    Source: torch/amp/grad_scaler.py, torch 2.13.0.
    """

    _enabled: bool
    _rule: LossScale
    _state: LossScaleState
    _finite: dict[int, bool]
    _is_used: bool

    @property
    def _init_scale(self) -> float:
        return self._rule.init_scale

    @property
    def _growth_factor(self) -> float:
        return self._rule.growth_factor

    @property
    def _backoff_factor(self) -> float:
        return self._rule.backoff_factor

    @property
    def _growth_interval(self) -> int:
        return self._rule.growth_interval

    @property
    def _growth_tracker(self) -> Any:
        """The finite steps since the last growth, a tensor; None before the first use."""
        return ms.Tensor(int(self._state.good_steps), ms.int32) if self._is_used else None

    @property
    def _per_optimizer_states(self) -> _States:
        return _States(self._finite)

    def _found_inf_per_device(self, optimizer: Any) -> dict[str, Any]:
        """Return 1.0 where gradients overflowed, else 0.0; nothing before they are unscaled."""
        found: dict[str, Any] = self._per_optimizer_states[id(optimizer)]["found_inf_per_device"]
        return found

    def _check_inf_per_device(self, optimizer: Any) -> dict[str, Any]:
        """Look at gradients as they are, and keep what is found for the optimizer's step."""
        grads = (
            getattr(param, "grad", None)
            for group in optimizer.param_groups
            for param in group["params"]
        )
        finite = all(bool(ops.isfinite(grad).all()) for grad in grads if grad is not None)
        self._finite[id(optimizer)] = finite
        return self._found_inf_per_device(optimizer)

    def set_growth_factor(self, new_factor: float) -> None:
        """Set the multiplier on growth."""
        self._rule = self._rule.changed(growth_factor=float(new_factor))

    def set_backoff_factor(self, new_factor: float) -> None:
        """Set the multiplier on overflow."""
        self._rule = self._rule.changed(backoff_factor=float(new_factor))

    def set_growth_interval(self, new_interval: int) -> None:
        """Set the finite steps before a growth.

        Raises:
            NotImplementedError: there were as many already: torch's scale would grow no more until
                gradients overflow.
        """
        if int(self._state.good_steps) >= new_interval:
            msg = f"{new_interval} finite steps have passed already: set it before that"
            raise NotImplementedError(msg)
        self._rule = self._rule.changed(growth_interval=int(new_interval))


class _States(dict[int, dict[str, Any]]):
    """What each optimizer's gradients were; an optimizer that was not looked at has nothing."""

    def __init__(self, finite: dict[int, bool]) -> None:
        super().__init__({key: _found(good) for key, good in finite.items()})

    def __missing__(self, key: int) -> dict[str, Any]:
        return {"found_inf_per_device": {}}


def _found(good: bool) -> dict[str, Any]:
    found = ms.Tensor(0.0 if good else 1.0, ms.float32)
    return {"found_inf_per_device": {str(ms.get_context("device_target")): found}}

"""A prepared model as the GradScaler that a host, or a loop written for one, works with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from mpcore.errors import BackendError, GuardError
from mpcore_torch.calls import GRADIENTS, STEPPING, UNSCALED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mpcore_torch.amp import TorchAmp

__all__ = ["AmpGradScaler", "bare_optimizer"]


def bare_optimizer(optimizer: Any) -> Any:
    """Return the optimizer inside of a host's wrapper around it."""
    while True:
        inner = vars(optimizer).get("optimizer", vars(optimizer).get("_optimizer"))
        if not isinstance(inner, torch.optim.Optimizer) or inner is optimizer:
            return optimizer
        optimizer = inner


class AmpGradScaler(torch.amp.GradScaler):  # type: ignore[misc]  # torch is untyped here
    """The calls of a torch.amp.GradScaler, carried out by the steps of a prepared model.

    ``scale(loss).backward()``, ``unscale_``, ``step`` and ``update`` do what ``amp.backward``,
    ``amp.unscale`` and ``amp.apply`` do: a skipped step leaves buffers and state as they were,
    float32 masters are found, ranks agree. With several optimizers the step of all those that
    ``step`` was called for happens in ``update``, as one.

    What only a free-standing scaler has is refused: another scale, growth or backoff is the
    policy's.
    """

    def __init__(self, amp: TorchAmp) -> None:
        """Stand for ``amp``."""
        super().__init__("cpu")  # where its own scale would be; it has none
        self._amp = amp
        self._clip_norm: float | None = None
        self._waiting: list[str] = []

    @property
    def amp(self) -> TorchAmp:
        """The prepared model behind it."""
        return self._amp

    def scale(self, outputs: Any) -> Any:
        """Return ``outputs`` such that its ``backward`` is ``amp.backward`` of it.

        The value is the loss times the scale. Gradients that reach it by another way would not
        be counted as the step's, and are refused.
        """
        if isinstance(outputs, list | tuple):
            return type(outputs)(self.scale(each) for each in outputs)
        if not isinstance(outputs, torch.Tensor):
            msg = f"`outputs` must be a tensor, or a list or tuple of some, got {outputs!r:.60}"
            raise BackendError(msg)
        if not outputs.requires_grad:  # of a validation, say; `amp.backward` would refuse it
            return outputs.detach().float() * self._amp.scale
        if self._amp.transaction.calls.state == STEPPING:
            msg = "`scale` must not be called inside a step: return the loss, amp.step scales it"
            raise BackendError(msg)
        scaled = outputs.float() * self._amp.scale
        amp = self._amp

        def backward(
            gradient: Any = None,
            retain_graph: bool | None = None,
            create_graph: bool = False,
            inputs: Any = None,
        ) -> None:
            if gradient is not None or create_graph or inputs is not None:
                msg = (
                    "`backward` of a scaled loss takes `retain_graph` only, got `gradient`, "
                    "`create_graph` or `inputs`; penalties on gradients use `amp.gradient`"
                )
                raise BackendError(msg)
            amp.backward(outputs, retain_graph=bool(retain_graph))

        scaled.backward = backward
        scaled.register_hook(_refuse_others)
        return scaled

    def unscale_(self, optimizer: Any) -> None:
        """Divide the gradients, of every optimizer, unless that was done."""
        self._named(optimizer)
        self._amp.unscale()

    def clip(self, norm: float | None) -> None:
        """Let the next step clip to ``norm``, as ``amp.apply(clip_norm=...)`` does."""
        self._clip_norm = norm

    def step(self, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        """End the step for ``optimizer``; with several optimizers, in ``update``.

        Raises:
            BackendError: a closure, or an argument for the optimizer, was given, or there were
                no gradients.
        """
        if any(arg is not None for arg in (*args, *kwargs.values())):
            msg = "`step` of a prepared model takes the optimizer alone: no closure, no arguments"
            raise BackendError(msg)
        name = self._named(optimizer)
        if _makes_slots(self._amp.optimizers[name]):
            self._amp.optimizers[name].step()  # the guard sees to it that nothing moves
            return
        if len(self._amp.optimizers) == 1:
            self._apply(None)
            return
        if self._amp.transaction.calls.state not in (GRADIENTS, UNSCALED):
            self._amp.transaction.calls.check("apply")
        self._waiting.append(name)

    def update(self, new_scale: Any = None) -> None:
        """Take the step that waits, with several optimizers; the scale has moved with the step.

        Raises:
            BackendError: ``new_scale`` was given.
        """
        if new_scale is not None:
            self._refuse("update(new_scale)", "amp.state = amp.state._replace(scale=...)")
        if self._waiting:
            names, self._waiting = self._waiting, []
            self._apply(names)

    def _apply(self, names: list[str] | None) -> None:
        clip, self._clip_norm = self._clip_norm, None
        self._amp.apply(clip_norm=clip, optimizer=names)

    def _named(self, optimizer: Any) -> str:
        found = bare_optimizer(optimizer)
        for name, own in self._amp.optimizers.items():
            if own is found:
                return name
        msg = (
            f"`optimizer` must be one that the model was prepared with, "
            f"got another {type(found).__name__}"
        )
        raise BackendError(msg)

    def get_scale(self) -> float:
        """Return the scale of the next step."""
        return self._amp.scale

    def get_growth_factor(self) -> float:
        """Return the policy's."""
        return self._amp.policy.scaling.growth_factor

    def get_backoff_factor(self) -> float:
        """Return the policy's."""
        return self._amp.policy.scaling.backoff_factor

    def get_growth_interval(self) -> int:
        """Return the policy's."""
        return self._amp.policy.scaling.growth_interval

    def is_enabled(self) -> bool:
        """Return True: a scale that stays 1 needs the rest of a step all the same."""
        return True

    def state_dict(self) -> dict[str, Any]:
        """Return ``amp.state_dict()``: the scale, and the float32 values behind 16-bit ones."""
        return self._amp.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Resume as ``amp.load_state_dict`` does."""
        self._amp.load_state_dict(state_dict)

    def set_growth_factor(self, new_factor: float) -> None:
        """Refuse: it is the policy's."""
        self._refuse("set_growth_factor", f"a policy with `growth_factor={new_factor}`")

    def set_backoff_factor(self, new_factor: float) -> None:
        """Refuse: it is the policy's."""
        self._refuse("set_backoff_factor", f"a policy with `backoff_factor={new_factor}`")

    def set_growth_interval(self, new_interval: int) -> None:
        """Refuse: it is the policy's."""
        self._refuse("set_growth_interval", f"a policy with `growth_interval={new_interval}`")

    def _refuse(self, call: str, instead: str) -> None:
        msg = f"`{call}` is not possible: the loss scale is that of a prepared model; use {instead}"
        raise BackendError(msg)

    def _lazy_init_scale_growth_tracker(self, dev: torch.device) -> None:
        """Do nothing: some hosts call it before they load, and there is nothing to make."""

    def __getstate__(self) -> dict[str, Any]:
        """Refuse: a scaler without its model scales nothing."""
        msg = "`grad_scaler` cannot be pickled without its model; save `grad_scaler.state_dict()`"
        raise BackendError(msg)


def _makes_slots(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether this may be how torch's distributed checkpoints make the slots.

    Source: torch/distributed/checkpoint/state_dict.py, _init_optim_state, torch 2.13.0.
    """
    fresh = not optimizer.state
    return fresh and all(group.get("lr") == 0 for group in optimizer.param_groups)


def _refuse_others(grad: torch.Tensor) -> torch.Tensor:
    msg = (
        "a loss from `grad_scaler.scale` must be differentiated by its own `backward()`: "
        "`scale(loss / n).backward()`, not `(scale(loss) / n).backward()`; penalties on gradients "
        "use `amp.gradient`"
    )
    raise GuardError(msg)

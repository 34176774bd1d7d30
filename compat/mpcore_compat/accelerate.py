"""Accelerate trains under a policy: an Accelerator with one more argument.

``accelerator = Accelerator(policy="mixed_bfloat16")``; checked against accelerate 1.15.0. An
accelerator that somebody else has made, as HF Trainer's, is put ``under_policy``.
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import accelerate
import torch
from accelerate.optimizer import AcceleratedOptimizer
from torch import nn

import mpcore as mp
from mpcore.errors import BackendError
from mpcore_torch.shims import bare_optimizer

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Accelerator", "under_policy"]

_OWN_ENGINES = ("DEEPSPEED", "FSDP", "MEGATRON_LM", "XLA")


class Accelerator(accelerate.Accelerator):  # type: ignore[misc]  # accelerate is untyped here
    """An accelerate.Accelerator whose model trains under a policy.

    The model and its optimizer, or several, are given to one call of ``prepare``; what is given
    without an optimizer runs under the policy too. The loop stays as it is: ``backward``,
    ``accumulate``, ``clip_grad_norm_``, ``save_state``. A skipped step moves nothing, and
    ``optimizer.step_was_skipped`` says so, by which Accelerate holds its schedulers.

    Attributes:
        amp: the prepared model, once ``prepare`` got one with an optimizer.
    """

    amp: Any = None

    def __init__(self, *args: Any, policy: Any, options: Any = None, **kwargs: Any) -> None:
        """Take what accelerate.Accelerator takes, and a policy.

        Args:
            args: as accelerate.Accelerator.
            policy: as for ``mpcore.prepare``.
            options: further arguments of ``mpcore.prepare``, as a dict.
            kwargs: as accelerate.Accelerator.

        Raises:
            BackendError: Accelerate has a mixed precision of its own at the same time.
        """
        super().__init__(*args, **kwargs)
        self._begin(policy, options or {})

    def _begin(self, policy: Any, options: dict[str, Any]) -> None:
        if self.distributed_type.value in _OWN_ENGINES and not self.is_fsdp2:
            msg = (
                f"a policy is not possible under {self.distributed_type.value}, which casts and "
                "steps by itself: use one process, DDP, or FSDP2 (`fsdp_version=2`)"
            )
            raise BackendError(msg)
        if self.mixed_precision != "no":
            msg = (
                f"`mixed_precision` must be 'no' beside a policy, got {self.mixed_precision!r}: "
                "leave out `mixed_precision=` (HF: `fp16=`, `bf16=`) and ACCELERATE_MIXED_PRECISION"
            )
            raise BackendError(msg)
        self._policy, self._policy_options = mp.Policy.of(policy), options
        self._prepared: list[Any] = []
        self._regions: list[Any] = []
        self._inside = False

    # Preparing

    def prepare(self, *args: Any, device_placement: Any = None) -> Any:
        """Prepare as ever, and the model with its optimizers under the policy.

        Raises:
            BackendError: an optimizer came without its model, or there were several models to
                train.
        """
        models = [each for each in args if isinstance(each, nn.Module)]
        optimizers = [each for each in args if isinstance(each, torch.optim.Optimizer)]
        trained = self._trained(models, optimizers)
        late = self.is_fsdp2  # it replaces the parameters
        if not late:
            for model in models:
                self._apply(model, optimizers if model is trained else [], place=device_placement)
            self._renew(optimizers)
        self._inside = True
        try:
            result = super().prepare(*args, device_placement=device_placement)
        finally:
            self._inside = False
        if late and models:
            self._after_sharding(result if isinstance(result, list | tuple) else [result])
        return result

    def prepare_model(
        self, model: nn.Module, device_placement: bool | None = None, evaluation_mode: bool = False
    ) -> Any:
        """Prepare a model for evaluation; one to train goes through ``prepare``.

        Raises:
            BackendError: it is one to train.
        """
        if evaluation_mode and not self._inside and not self._known(model):
            self._apply(model, [], place=device_placement)
        elif not self._inside:
            self._refuse_apart("prepare_model")
        return super().prepare_model(model, device_placement, evaluation_mode)

    def prepare_optimizer(self, optimizer: Any, device_placement: bool | None = None) -> Any:
        """Refuse, outside of ``prepare``: the model and its optimizer belong to one call.

        Raises:
            BackendError: always, outside of ``prepare``.
        """
        if not self._inside:
            self._refuse_apart("prepare_optimizer")
        return super().prepare_optimizer(optimizer, device_placement)

    def _refuse_apart(self, call: str) -> None:
        msg = (
            f"`{call}` is not possible under a policy: give the model and its optimizers to one "
            "`accelerator.prepare(model, optimizer, ...)`"
        )
        raise BackendError(msg)

    def _trained(self, models: list[Any], optimizers: list[Any]) -> Any:
        if not optimizers:
            return None
        held = {
            id(param)
            for optimizer in optimizers
            for group in optimizer.param_groups
            for param in group["params"]
        }
        found = [m for m in models if any(id(param) in held for param in m.parameters())]
        other = self.amp is not None and not any(map(self._known, found))
        if len(found) != 1 or other:
            count = len(found) + other
            msg = (
                f"`prepare` must get one model to train with its optimizers, got {count}: put "
                "several into one nn.Module; `free_memory()` gives back an earlier one"
            )
            raise BackendError(msg)
        return found[0]

    def _known(self, model: nn.Module) -> bool:
        inner = getattr(model, "module", None)  # of DDP
        return any(amp.model is model or amp.model is inner for amp in self._prepared)

    def _apply(self, model: nn.Module, optimizers: list[Any], *, place: Any = None) -> None:
        if self._known(model):
            return
        if self.device_placement and place is not False and not self.is_fsdp2:
            model.to(self.device)  # a prepared model stays where it is
        found = [bare_optimizer(each) for each in optimizers]
        if found:
            one = found[0] if len(found) == 1 else found
            amp: Any = mp.prepare(model, one, self._policy, **self._policy_options)
            self.amp, self.scaler = amp, amp.grad_scaler
        else:
            # It never steps; with an optimizer the float32 values are kept, to be given back.
            amp = mp.prepare(model, torch.optim.SGD(model.parameters(), 0.0), self._policy)
        amp.told_of_files = True  # `save_state` writes `amp.state_dict()` beside
        self._prepared.append(amp)
        if self._policy.by == "op":
            self._regions.append(_Region(amp))

    def _after_sharding(self, result: list[Any] | tuple[Any, ...]) -> None:
        (model,) = (each for each in result if isinstance(each, nn.Module))
        wrapped = [each for each in result if isinstance(each, AcceleratedOptimizer)]
        self._apply(model, wrapped)
        self._renew(wrapped)

    def _renew(self, optimizers: list[Any]) -> None:
        """Let optimizers that Accelerate wrapped before step by this model."""
        for optimizer in optimizers:
            if isinstance(optimizer, AcceleratedOptimizer):
                optimizer.__init__(optimizer.optimizer, device_placement=False, scaler=self.scaler)

    # A step

    @contextmanager
    def autocast(self, autocast_handler: Any = None) -> Iterator[None]:
        """Run what is inside under the policy, where by="op"; elsewhere the model itself is.

        Raises:
            BackendError: ``autocast_handler`` was given.
        """
        if autocast_handler is not None:
            msg = "`autocast_handler` must be None under a policy, whose rules decide"
            raise BackendError(msg)
        if not self._prepared:
            msg = "`autocast` must follow `prepare`, which brings the model under the policy"
            raise BackendError(msg)
        with (self.amp or self._prepared[-1]).autocast():
            yield

    def unscale_gradients(self, optimizer: Any = None) -> None:
        """Make ``.grad`` true, of every optimizer; a second call does nothing."""
        self.amp.unscale()

    def clip_grad_norm_(
        self, parameters: Any, max_norm: float, norm_type: float = 2
    ) -> torch.Tensor:
        """Return the true norm; clip within the step, or a part of the parameters at once."""
        self.amp.unscale()
        params = self._with_true_gradients(parameters)
        norm = _plain(nn.utils.get_total_norm([param.grad for param in params], norm_type))
        if not math.isfinite(max_norm):
            return norm
        every = self._with_true_gradients(self.amp.model.parameters())
        if norm_type == 2 and len(params) == len(every):
            self.scaler.clip(float(max_norm))
        else:
            nn.utils.clip_grads_with_norm_(params, max_norm, norm)
        return norm

    def clip_grad_value_(self, parameters: Any, clip_value: float) -> None:
        """Clip each element of the true gradients."""
        self.amp.unscale()
        nn.utils.clip_grad_value_(self._with_true_gradients(parameters), clip_value)

    def _with_true_gradients(self, parameters: Any) -> list[Any]:
        if isinstance(parameters, torch.Tensor):
            parameters = [parameters]
        masters = self.amp.masters
        homes = (masters.get(param, param) for param in parameters)
        return [param for param in homes if param.grad is not None]

    def free_memory(self, *objects: Any) -> Any:
        """Give the models back, in float32, besides what Accelerate does."""
        for region in self._regions:
            region.remove()
        for amp in self._prepared:
            amp.abort_step()
            amp.release()
        self._prepared, self._regions = [], []
        self.amp = self.scaler = None
        return super().free_memory(*objects)


class _Region:
    """Lets a model run in the region of its policy, as Accelerate does by wrapping forward."""

    def __init__(self, amp: Any) -> None:
        self._amp = amp
        self._open: list[Any] = []
        self._handles = [
            amp.model.register_forward_pre_hook(self._enter),
            amp.model.register_forward_hook(self._leave, always_call=True),
        ]

    def _enter(self, *_: Any) -> None:
        region = self._amp.autocast()
        region.__enter__()
        self._open.append(region)

    def _leave(self, *_: Any) -> None:
        self._open.pop().__exit__(None, None, None)

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()


def _plain(norm: torch.Tensor) -> torch.Tensor:
    return norm.full_tensor() if hasattr(norm, "full_tensor") else norm


def under_policy(
    accelerator: accelerate.Accelerator, policy: Any, **options: Any
) -> accelerate.Accelerator:
    """Let an accelerator that prepared nothing yet train under ``policy``; returns the same one.

    Args:
        accelerator: what Accelerate or a library above it made.
        policy: as for ``mpcore.prepare``.
        options: further arguments of ``mpcore.prepare``.

    Raises:
        BackendError: it has a mixed precision of its own, has prepared a model already, or is of
            a class of its own.
    """
    if type(accelerator) is not accelerate.Accelerator:
        msg = f"`accelerator` must be an accelerate.Accelerator, got {type(accelerator).__name__}"
        raise BackendError(msg)
    if accelerator._models or accelerator._optimizers:
        msg = "`accelerator` must come under a policy before it prepares a model"
        raise BackendError(msg)
    accelerator.__class__ = Accelerator
    try:
        accelerator._begin(policy, options)
    except BaseException:
        accelerator.__class__ = accelerate.Accelerator
        raise
    return accelerator

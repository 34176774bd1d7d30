"""What ``amp.initialize`` does to an optimizer: masters, gradients of one backward pass, steps."""

from __future__ import annotations

import functools
import types
from typing import TYPE_CHECKING, Any, Protocol

import torch

from mpcore.errors import OptimizerError
from mpcore.scaling.transition import inverse
from mpcore_torch.shims import any_found, check_and_unscale_, merged, values_of

if TYPE_CHECKING:
    from torch import nn

    from mpcore_compat.apex.scaler import LossScaler

__all__ = ["Run", "Stash", "check_optimizer", "stash_of"]

_NAME = "_amp_stash"


class Run(Protocol):
    """What knows about all optimizers of a run."""

    def must_skip(self, stash: Stash) -> bool:
        """Return whether the step that is asked for has to be skipped."""
        ...

    def stepped(self, stash: Stash) -> None:
        """Note that the optimizer stepped, or was skipped."""
        ...


class Stash:
    """One optimizer under amp; hangs on it, and stands around its ``step`` and ``zero_grad``.

    Args:
        optimizer: its ``step``, ``zero_grad`` are replaced on the instance.
        masters: float32 master of each 16-bit parameter of the models; empty if there are none.
        has_masters: whether the level has master weights; its steps take no closure then.
        run: decides which steps are skipped, and is told what was done.
        safe: see what the division itself overflows.

    Attributes:
        overflowed: the scaler, by ``loss_id``, whose overflow skips the next step; or None.
        delayed: whether gradients were left scaled by ``delay_unscale``.

    Source: apex/amp/_process_optimizer.py and handle.py, NVIDIA/apex e13873debc46.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        masters: dict[nn.Parameter, nn.Parameter],
        *,
        has_masters: bool,
        run: Run,
        safe: bool,
    ) -> None:
        self.optimizer, self.safe = optimizer, safe
        self.overflowed: int | None = None
        self.delayed = False
        self._low_of = {master: low for low, master in masters.items()}
        self._has_masters = has_masters
        self._run = run
        self._kept: list[tuple[nn.Parameter, torch.Tensor]] = []
        setattr(optimizer, _NAME, self)
        # Bound methods, since schedulers wrap them once more and look for __func__.
        optimizer.step = types.MethodType(_stepping(self, optimizer.step), optimizer)
        if has_masters:
            optimizer.zero_grad = types.MethodType(_clearing(self, optimizer.zero_grad), optimizer)

    @property
    def pairs(self) -> list[tuple[nn.Parameter, nn.Parameter]]:
        """Pairs (16-bit parameter of the model, float32 master) of this optimizer."""
        return [(self._low_of[p], p) for p in self._params() if p in self._low_of]

    def _params(self) -> list[nn.Parameter]:
        return [param for group in self.optimizer.param_groups for param in group["params"]]

    def _full(self) -> list[nn.Parameter]:
        return [param for param in self._params() if param not in self._low_of]

    def prepare(self) -> None:
        """Put away the gradients that are there, so that those of one backward pass are alone."""
        if self.delayed:
            return  # they are scaled, and belong to it
        for low, _ in self.pairs:
            low.grad = None
        self._kept = [(param, param.grad) for param in self._full() if param.grad is not None]
        for param, _ in self._kept:
            param.grad = None

    def unscale(self, scaler: LossScaler) -> bool:
        """Divide the new gradients, add those that were there; return whether all are finite."""
        with torch.no_grad():
            new = [(m, low.grad.float()) for low, m in self.pairs if low.grad is not None]
            new += [(p, p.grad) for p in self._full() if p.grad is not None]
            new = [(param, merged(grad)) for param, grad in new]
            found = False
            if scaler.judges or scaler.loss_scale() != 1.0:
                values = [values_of(grad) for _, grad in new]
                factor = inverse(scaler.loss_scale())
                found = any_found(check_and_unscale_(values, factor, products=self.safe))
            kept = dict(self._kept)
            for param, grad in new:
                before = param.grad if param in self._low_of else kept.pop(param, None)
                param.grad = grad if before is None else grad + before
            for param, grad in kept.items():  # this backward pass did not reach them
                param.grad = grad
        self._kept, self.delayed = [], False
        return not found

    def copy_masters(self) -> None:
        """Round the masters into the model."""
        if pairs := self.pairs:
            with torch.no_grad():
                torch._foreach_copy_([low for low, _ in pairs], [master for _, master in pairs])

    def clear_masters(self) -> None:
        """Drop the masters' gradients, which ``model.zero_grad`` does not reach."""
        for _, master in self.pairs:
            master.grad = None


def check_optimizer(optimizer: torch.optim.Optimizer) -> None:
    """Raise RuntimeError for an optimizer that ``amp.initialize`` has prepared before."""
    if hasattr(optimizer, _NAME):
        msg = "`optimizers` must go through amp.initialize once, this one did before"
        raise RuntimeError(msg)


def stash_of(optimizer: Any) -> Stash:
    """Return what ``amp.initialize`` hung on ``optimizer``.

    Raises:
        OptimizerError: it did not come from there.
    """
    stash = getattr(optimizer, _NAME, None)
    if not isinstance(stash, Stash):
        msg = f"`optimizers` must come from amp.initialize, got {type(optimizer).__name__}"
        raise OptimizerError(msg)
    return stash


def _stepping(stash: Stash, original: Any) -> Any:
    @functools.wraps(original)  # schedulers leave marks on what they have wrapped
    def step(_self: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        closure = bool(args) or kwargs.get("closure") is not None
        skip = stash._run.must_skip(stash)
        if closure and (skip or stash._has_masters):
            msg = "`closure` must not be given under amp: it would run unscaled"
            raise RuntimeError(msg)
        result = None if skip else original(*args, **kwargs)
        if not skip:
            stash.copy_masters()
        stash.clear_masters()
        stash._run.stepped(stash)
        stash.overflowed = None
        return result

    return step


def _clearing(stash: Stash, original: Any) -> Any:
    def zero_grad(_self: torch.optim.Optimizer, set_to_none: bool = True) -> None:
        original(set_to_none=set_to_none)
        for low, _ in stash.pairs:
            if set_to_none:
                low.grad = None
            elif low.grad is not None:
                low.grad.detach_().zero_()
        stash.clear_masters()

    return zero_grad

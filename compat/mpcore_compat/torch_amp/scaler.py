"""``torch.amp.GradScaler`` with the state machine of mpcore."""

from __future__ import annotations

import functools
import inspect
import math
import operator
import warnings
from collections import defaultdict
from typing import Any

import numpy as np
import torch
from torch.amp.grad_scaler import GradScaler as TorchGradScaler
from torch.amp.grad_scaler import OptState, _refresh_per_optimizer_state

from mpcore.errors import MpcoreWarning, PolicyError
from mpcore.scaling.loss_scale import LossScale
from mpcore.scaling.transition import LossScaleState, inverse, narrow, transition
from mpcore_compat.torch_amp.groups import StepGroups
from mpcore_torch.shims import any_found, check, check_and_unscale_, merged, values_of

__all__ = ["GradScaler"]

_NEVER = 2**31 - 1  # an interval that an int32 count does not reach


@functools.lru_cache(maxsize=64)
def _rule(name: str, growth: float, backoff: float, interval: int, init: float) -> LossScale:
    """Return the rule of a scaler: a preset, or ours where ``name`` is empty."""
    interval = interval if interval > 0 else _NEVER  # torch never grows then
    if name:
        return LossScale.named(
            name, growth_factor=growth, backoff_factor=backoff, growth_interval=interval
        )
    ours = LossScale()
    init, growth, backoff = (float(np.float32(value)) for value in (init, growth, backoff))
    return LossScale(
        init_scale=init,
        growth_factor=growth,
        backoff_factor=backoff,
        growth_interval=interval,
        min_scale=init if 2.0**-126 <= init < ours.min_scale else ours.min_scale,
        max_scale=init if ours.max_scale < init < math.inf else ours.max_scale,
    )


class GradScaler(TorchGradScaler):  # type: ignore[misc]  # torch is untyped here
    """Imitates ``torch.amp.GradScaler`` of torch 2.13.0 bit for bit, or follows our rules.

    As it stands, a script that changes only its import trains the same: same weights, scales,
    exceptions, state dicts, private attributes. The order of calls, ``scale``, the getters and
    pickling are torch's own code, inherited; the next scale comes from the core's machine
    ``LossScale.named("torch")``, the gradients from ``mpcore_torch.shims``.

    With ``safe=True`` the traps go, and the loop stays the same:

    - the rule is mpcore's own: floor 1, cap 2**24 (or ``init_scale``, where that is beyond), so
      no state is left that finite steps could not recover from;
    - all optimizers of an update move, or none: before the first of several that step one after
      the other moves, the gradients of all are judged, and after an overflow nothing moves
      until ``update``. Which optimizers step together is learnt from the updates before, in the
      first one from the graph of the scaled losses. A call of ``scale`` between two steps (a
      GAN) parts them: what moved before it stays;
    - an overflow that the division itself makes is seen (scales below 1), and so is that of the
      sum of a sparse gradient's duplicates;
    - float16 gradients are unscaled like others; optimizers without gradients are no error, an
      update without any leaves the scale alone; a second ``unscale_`` does nothing.

    Args:
        device: type of the device, as for torch.
        init_scale: first scale; with ``safe`` >= 2**-126.
        growth_factor: multiplier on growth, > 1; ``safe`` rounds it to float32.
        backoff_factor: multiplier on overflow, in (0, 1); likewise.
        growth_interval: finite updates in a row before one growth.
        enabled: whether anything is scaled.
        safe: follow mpcore's rules instead of torch's.

    Raises:
        AssertionError: a factor out of its range, as torch raises it.
        PolicyError: with ``safe``, a number that the rule cannot have.

    Source: torch/amp/grad_scaler.py, torch 2.13.0. Other than there, ``update`` refuses a factor
    of 0 or less with PolicyError.
    """

    _preset = "torch"
    _per_optimizer_states: dict[int, dict[str, Any]]

    def __init__(
        self,
        device: str = "cuda",
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
        *,
        safe: bool = False,
    ) -> None:
        # Not super(): the classes of old spellings stand between, with other signatures.
        TorchGradScaler.__init__(
            self, device, init_scale, growth_factor, backoff_factor, growth_interval, enabled
        )
        self._safe = safe
        rule = LossScale() if safe else LossScale.named(self._preset)
        self._alone = rule.skip_scope == "optimizer"  # each optimizer skips for itself
        self._skipped: Any = 0  # updates with an overflow; on the scale's device after a step
        self._last_finite: Any = True
        self._groups = StepGroups()
        self._overflowed = False  # in this update; kept with safe only
        if safe and self._enabled:
            self._first_scale = float(init_scale)
            self._current_rule()  # refuses what it cannot have

    @property
    def last_skipped(self) -> bool:
        """Whether the last ``update`` followed an overflow: an optimizer, or all, did not move.

        Reading it may wait for the device.
        """
        return not bool(self._last_finite)

    @property
    def skipped_steps(self) -> int:
        """Updates that followed an overflow, since the start; reading may wait for the device."""
        return int(self._skipped)

    def scale(self, outputs: Any) -> Any:
        """Multiply a tensor, or those in nested iterables, by the scale; as torch does."""
        scaled = super().scale(outputs)
        if self._safe and self._enabled:
            self._groups.scaled(scaled)
        return scaled

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        """Divide the gradients of ``optimizer`` by the scale, and note what is not finite."""
        if self._safe and self._enabled:
            stage = self._per_optimizer_states[id(optimizer)]["stage"]
            if stage is OptState.UNSCALED:
                return
        super().unscale_(optimizer)

    def _unscale_grads_(
        self,
        optimizer: torch.optim.Optimizer,
        inv_scale: torch.Tensor,
        found_inf: torch.Tensor,
        allow_fp16: bool,
    ) -> dict[torch.device, torch.Tensor]:
        values = _gradient_values(optimizer, allow_fp16=allow_fp16 or self._safe, merge=self._safe)
        # Only a scale below 1 can make the division overflow; with safe the floor tells.
        products = self._safe and self._current_rule().min_scale < 1.0
        return check_and_unscale_(values, inv_scale, found_inf, products=products)

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        """Unscale the gradients unless that is done, then let ``optimizer`` step or skip.

        Args:
            optimizer: the optimizer.
            *args: passed on to ``optimizer.step``.
            **kwargs: likewise; no closure.

        Returns:
            What ``optimizer.step`` returns; None if it is skipped.

        Raises:
            RuntimeError: a closure, or a second step before ``update``.
            AssertionError: nothing was scaled before; without ``safe`` also: no gradients.
        """
        if not self._enabled or self._alone:
            return super().step(optimizer, *args, **kwargs)
        if kwargs.get("closure") is not None or any(callable(arg) for arg in args):
            msg = "`closure` must not be given while gradients are scaled: it would run unscaled"
            raise RuntimeError(msg)
        self._check_scale_growth_tracker("step")
        state = self._per_optimizer_states[id(optimizer)]
        if state["stage"] is OptState.STEPPED:
            msg = "`step` must be called once per optimizer and update: call `update` first"
            raise RuntimeError(msg)
        if state["stage"] is OptState.READY:
            if _asks_for_scaler(optimizer):
                self._check_inf_per_device(optimizer)  # it divides by the scale itself
                kwargs["grad_scaler"] = self
            else:
                self.unscale_(optimizer)
        elif _asks_for_scaler(optimizer):
            kwargs["grad_scaler"] = self
        self._overflowed = self._overflowed or self._any_overflow(optimizer)
        result = None if self._overflowed else optimizer.step(*args, **kwargs)
        state["stage"] = OptState.STEPPED
        self._groups.stepped(optimizer)
        return result

    def _any_overflow(self, optimizer: torch.optim.Optimizer) -> bool:
        """Judge all that is unscaled by now, and what is going to step with ``optimizer``."""
        if self._found_so_far():
            return True
        states = self._per_optimizer_states
        judged = {key for key, state in states.items() if state["stage"] is not OptState.READY}
        others = self._groups.others(optimizer, judged)
        return bool(others) and any_found(check(others, inverse(self.get_scale())))

    def _found_so_far(self) -> bool:
        states = self._per_optimizer_states.values()
        return any(any_found(state["found_inf_per_device"]) for state in states)

    def update(self, new_scale: float | torch.Tensor | None = None) -> None:
        """Move the scale by what the steps since the last call found, or set it.

        Args:
            new_scale: the next scale, a float or a tensor of one element; with ``safe`` within
                the floor and the cap. The count of finite updates goes on.

        Raises:
            AssertionError: nothing was scaled; without ``safe`` also: nothing was checked.
            PolicyError: with ``safe``, ``new_scale`` is outside the range.
        """
        if not self._enabled:
            return
        scale, tracker = self._check_scale_growth_tracker("update")
        states = self._per_optimizer_states.values()
        found = [flag for state in states for flag in state["found_inf_per_device"].values()]
        if new_scale is not None:
            if self._safe:
                self._check_range("new_scale", float(new_scale))
            super().update(new_scale)
            self._last_finite = not self._overflowed and _all_clear(found, scale.device)
            self._skipped = self._skipped + _one_if_not(self._last_finite)
        elif found or self._overflowed:
            clear = _all_clear(found, scale.device)
            self._last_finite = False if self._overflowed else clear
            self._move(scale, tracker, self._last_finite)
        elif self._safe:
            self._last_finite = True
        else:
            super().update()  # raises as torch does
        self._per_optimizer_states = defaultdict(_refresh_per_optimizer_state)
        self._overflowed = False
        self._groups.updated()

    def _current_rule(self) -> LossScale:
        return _rule(
            "" if self._safe else self._preset,
            float(self._growth_factor),
            float(self._backoff_factor),
            operator.index(self._growth_interval),
            self._first_scale if self._safe else 1.0,
        )

    def _move(self, scale: torch.Tensor, tracker: torch.Tensor, finite: Any) -> None:
        """Advance scale, count and skips: on the host for a CPU, else without waiting."""
        rule = self._current_rule()
        late = 0 if self._safe else 2**30
        if isinstance(finite, bool):
            state = LossScaleState(float(scale), int(tracker), int(self._skipped))
            new = _next(rule, state, finite, late, _pick, lambda x: narrow(rule, x))
        else:
            # Factors act in float64, as in torch's kernel; its one device without has none here.
            wide = torch.float32 if scale.device.type == "mps" else torch.float64
            skipped = torch.as_tensor(self._skipped, dtype=torch.int32, device=scale.device)
            state = LossScaleState(scale.to(wide), tracker, skipped)
            new = _next(rule, state, finite, late, torch.where, lambda x: x.float().to(wide))
        _set(scale, new.scale)
        _set(tracker, new.good_steps)
        self._skipped = new.skipped_steps

    def _check_range(self, name: str, value: float) -> None:
        rule = self._current_rule()
        if not rule.min_scale <= value <= rule.max_scale:
            low, high = rule.min_scale, rule.max_scale
            msg = f"`{name}` must be in [{low:g}, {high:g}] with safe=True, got {value!r}"
            raise PolicyError(msg)

    def set_growth_factor(self, new_factor: float) -> None:
        """Set the multiplier on growth; with ``safe`` it is checked at once."""
        self._set_checked("_growth_factor", new_factor)

    def set_backoff_factor(self, new_factor: float) -> None:
        """Set the multiplier on overflow; with ``safe`` it is checked at once."""
        self._set_checked("_backoff_factor", new_factor)

    def set_growth_interval(self, new_interval: int) -> None:
        """Set the finite updates before a growth.

        As torch does, a scaler without ``safe`` that has counted beyond the new interval does
        not grow before the next overflow: torch compares for equality.
        """
        self._set_checked("_growth_interval", new_interval)

    def _set_checked(self, name: str, value: Any) -> None:
        before = getattr(self, name, None)
        setattr(self, name, value)
        if self._safe and self._enabled:
            try:
                self._current_rule()
            except (TypeError, ValueError):
                setattr(self, name, before)
                raise

    def state_dict(self) -> dict[str, Any]:
        """Return torch's five entries; with ``safe`` also ``skipped_steps``."""
        state: dict[str, Any] = super().state_dict()
        if state and self._safe:
            state["skipped_steps"] = self.skipped_steps
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the state of this class or of torch's.

        With ``safe`` a scale outside the range becomes the nearest in it, with a warning.

        Raises:
            RuntimeError: an empty dict, of a scaler that was not enabled.
            PolicyError: with ``safe``, factors that the rule cannot have; nothing has changed.
        """
        if not (self._safe and self._enabled and state_dict):
            super().load_state_dict(state_dict)
            return
        loaded = dict(state_dict)
        rule = _rule(
            "",
            float(loaded["growth_factor"]),
            float(loaded["backoff_factor"]),
            operator.index(loaded["growth_interval"]),
            self._first_scale,
        )
        scale = float(loaded["scale"])
        within = min(max(scale, rule.min_scale), rule.max_scale)
        if scale != within:
            msg = f"the saved scale {scale:g} is outside the safe range and becomes {within:g}"
            warnings.warn(msg, MpcoreWarning, stacklevel=2)
        super().load_state_dict({**loaded, "scale": within})
        self._skipped = int(loaded.get("skipped_steps", 0))

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        state["_skipped"] = self.skipped_steps
        state["_last_finite"] = not self.last_skipped
        return state


def _asks_for_scaler(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether ``step`` of an optimizer takes the scaler, as torch's GradScaler asks it."""
    if not getattr(optimizer, "_step_supports_amp_scaling", False):
        return False
    return "grad_scaler" in inspect.signature(optimizer.step).parameters


def _gradient_values(
    optimizer: torch.optim.Optimizer, *, allow_fp16: bool, merge: bool
) -> list[torch.Tensor]:
    """Return the values of all gradients; merges the sparse ones in place where asked to."""
    values = []
    with torch.no_grad():
        for param in (param for group in optimizer.param_groups for param in group["params"]):
            if not isinstance(param, torch.Tensor):
                msg = f"parameters must be tensors, got {type(param).__name__}"
                raise AssertionError(msg)
            grad = param.grad
            if grad is None:
                continue
            if grad.dtype == torch.float16 and not allow_fp16:
                msg = "Attempting to unscale FP16 gradients."  # people look for these words
                raise ValueError(msg)
            if grad.is_sparse and (merge or grad.dtype == torch.float16):
                # In float16 a sum of duplicates overflows soon; torch merges it there alone.
                param.grad = grad = merged(grad)
            values.append(values_of(grad))
    return values


def _all_clear(found: list[torch.Tensor], device: torch.device) -> Any:
    """Return whether no flag is set: a bool for a CPU, a tensor on another device."""
    if device.type == "cpu":
        return not any(float(flag) != 0.0 for flag in found)
    if not found:
        return True
    return sum(flag.to(device, non_blocking=True) for flag in found) == 0.0


def _next(
    rule: LossScale, state: LossScaleState, finite: Any, late: int, where: Any, narrow: Any
) -> LossScaleState:
    """Return the core's next state; ``late`` other than 0 adds torch's trap.

    torch grows when the count equals the interval, so one beyond it (a smaller interval was set,
    or loaded) waits for an overflow: ``late`` is taken off such a count, and added again.
    """
    beyond = state.good_steps >= rule.growth_interval
    held = state._replace(good_steps=where(beyond, state.good_steps - late, state.good_steps))
    new = LossScaleState(*transition(rule, held, finite, where, narrow))
    good = where(finite, where(beyond, new.good_steps + late, new.good_steps), new.good_steps)
    return new._replace(good_steps=good)


def _pick(condition: Any, x: Any, y: Any) -> Any:
    return x if condition else y


def _one_if_not(finite: Any) -> Any:
    return int(not finite) if isinstance(finite, bool) else (~finite).int()


def _set(place: torch.Tensor, value: Any) -> None:
    # In place: others hold these tensors, CUDA graphs among them.
    if isinstance(value, torch.Tensor):
        place.copy_(value)
    else:
        place.fill_(value)

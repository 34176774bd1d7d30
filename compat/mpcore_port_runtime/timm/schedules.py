"""timm's schedules of learning rates.

Source: timm 1.0.31 ``scheduler/*.py``. Compared with the rates that it gave, and with those of
0.4.12, 0.5.4, 0.6.13, 0.9.16 and 1.0.9, which are the same but for these: up to 1.0.9 ``noise_std``
was not looked at; up to 0.6 ``StepLRScheduler`` and ``MultiStepLRScheduler`` did not count epochs
from the end of the warmup; up to 0.5 a group's ``lr_scale`` was not looked at; up to 0.4 a cosine
went up again behind its last epoch (``cycle_limit=0``) unless ``create_scheduler`` had made it.
"""

from __future__ import annotations

import bisect
import logging
import math
from typing import Any

from mpcore_port_runtime.sequences import ReduceLROnPlateau
from mpcore_port_runtime.timm.noises import Draws

__all__ = [
    "CosineLRScheduler",
    "MultiStepLRScheduler",
    "PlateauLRScheduler",
    "PolyLRScheduler",
    "Scheduler",
    "StepLRScheduler",
    "TanhLRScheduler",
    "create_scheduler",
    "create_scheduler_v2",
    "scheduler_kwargs",
]

_logger = logging.getLogger("timm.scheduler")


class Scheduler:
    """timm.scheduler.scheduler.Scheduler: told the epoch, or the count of updates, each time.

    Classes give ``_get_lr(t)``; ``get_epoch_values`` and ``get_update_values`` are asked where a
    class has them, as up to timm 0.6.
    """

    def __init__(
        self,
        optimizer: Any,
        param_group_field: str,
        t_in_epochs: bool = True,
        noise_range_t: Any = None,
        noise_type: str = "normal",
        noise_pct: float = 0.67,
        noise_std: float = 1.0,
        noise_seed: int | None = None,
        initialize: bool = True,
    ) -> None:
        self.optimizer, self.param_group_field = optimizer, param_group_field
        first = self._initial_param_group_field = f"initial_{param_group_field}"
        for number, group in enumerate(optimizer.param_groups):
            wanted = param_group_field if initialize else first
            if wanted not in group:
                msg = f"{wanted} missing from param_groups[{number}]"
                raise KeyError(msg)
            group.setdefault(first, group[wanted])
        self.base_values = [group[first] for group in optimizer.param_groups]
        self.metric: Any = None
        self.t_in_epochs = t_in_epochs
        self.noise_range_t, self.noise_type = noise_range_t, noise_type
        self.noise_pct, self.noise_std = noise_pct, noise_std
        self.noise_seed = 42 if noise_seed is None else noise_seed
        self.update_groups(self.base_values)

    def state_dict(self) -> dict[str, Any]:
        """Return everything but the optimizer."""
        return {name: value for name, value in vars(self).items() if name != "optimizer"}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take what ``state_dict`` returned."""
        vars(self).update(state_dict)

    def _get_lr(self, t: float) -> list[float]:
        raise NotImplementedError

    def _get_values(self, t: float, on_epoch: bool = True) -> Any:
        old = getattr(self, "get_epoch_values" if on_epoch else "get_update_values", None)
        if old is not None:
            return old(t)
        return self._get_lr(t) if on_epoch == self.t_in_epochs else None

    def step(self, epoch: int, metric: float | None = None) -> None:
        """Set the values of an epoch, where they go by epochs."""
        self.metric = metric
        self._set(self._get_values(epoch, on_epoch=True), epoch)

    def step_update(self, num_updates: int, metric: float | None = None) -> None:
        """Set the values behind so many updates, where they go by updates."""
        self.metric = metric
        self._set(self._get_values(num_updates, on_epoch=False), num_updates)

    def _set(self, values: Any, t: int) -> None:
        if values is not None:
            self.update_groups(self._add_noise(values, t))

    def update_groups(self, values: Any) -> None:
        """Give each group its value, times its ``lr_scale`` where it has one."""
        groups = self.optimizer.param_groups
        every = values if isinstance(values, list | tuple) else [values] * len(groups)
        for group, value in zip(groups, every, strict=False):  # as there: groups may be added later
            group[self.param_group_field] = (
                value * group["lr_scale"] if "lr_scale" in group else value
            )

    def _add_noise(self, lrs: list[float], t: int) -> list[float]:
        if not self._is_apply_noise(t):
            return lrs
        noise = self._calculate_noise(t)
        return [rate + rate * noise for rate in lrs]

    def _is_apply_noise(self, t: int) -> bool:
        span = self.noise_range_t
        if span is None:
            return False
        return bool(span[0] <= t < span[1] if isinstance(span, list | tuple) else t >= span)

    def _calculate_noise(self, t: int) -> float:
        draws = Draws(self.noise_seed + t)
        if self.noise_type != "normal":
            return 2 * (draws.share() - 0.5) * self.noise_pct
        while True:
            noise = draws.normal() * self.noise_std
            if abs(noise) < self.noise_pct:
                return noise


class _Warmed(Scheduler):
    """What rises in a line until ``warmup_t``, then does what ``_later`` says."""

    def _begin(self, warmup_t: int, warmup_lr_init: float, warmup_prefix: bool = False) -> None:
        self.warmup_t, self.warmup_lr_init = warmup_t, warmup_lr_init
        self.warmup_prefix = warmup_prefix
        self.warmup_steps: list[float] = [1 for _ in self.base_values]
        if warmup_t:
            goals = self._goals()
            self.warmup_steps = [(goal - warmup_lr_init) / warmup_t for goal in goals]
            self.update_groups(warmup_lr_init)

    def _goals(self) -> list[float]:
        return list(self.base_values)

    def _rising(self, t: float) -> list[float]:
        return [self.warmup_lr_init + t * step for step in self.warmup_steps]

    def _get_lr(self, t: float) -> list[float]:
        if t < self.warmup_t:
            return self._rising(t)
        return self._later(t - self.warmup_t if self.warmup_prefix else t)

    def _later(self, t: float) -> list[float]:
        raise NotImplementedError


class _Cycles(_Warmed):
    """Turns of ``t_initial``, each ``cycle_mul`` times as long, ``cycle_decay`` times as high."""

    t_initial: int
    lr_min: float

    def _turns(self, mul: float, decay: float, limit: float) -> None:
        if self.t_initial <= 0 or self.lr_min < 0:
            msg = f"`t_initial` must be > 0 and `lr_min` >= 0, got {self.t_initial}, {self.lr_min}"
            raise AssertionError(msg)
        if self.t_initial == 1 and mul == 1 and decay == 1:
            _logger.warning("a schedule of one epoch has no effect on the learning rate")
        self.cycle_mul, self.cycle_decay, self.cycle_limit = mul, decay, limit

    def _later(self, t: float) -> list[float]:
        if self.cycle_mul != 1:
            turn = math.floor(
                math.log(1 - t / self.t_initial * (1 - self.cycle_mul), self.cycle_mul)
            )
            length = self.cycle_mul**turn * self.t_initial
            done = t - (1 - self.cycle_mul**turn) / (1 - self.cycle_mul) * self.t_initial
        else:
            turn, length = int(t // self.t_initial), self.t_initial
            done = t - self.t_initial * turn
        if turn >= self.cycle_limit:
            return [self.lr_min for _ in self.base_values]
        high = [base * self.cycle_decay**turn for base in self.base_values]
        share = self._height(done, length)
        return [self.lr_min + (top - self.lr_min) * share for top in high]

    def _height(self, done: float, length: float) -> float:
        raise NotImplementedError

    def get_cycle_length(self, cycles: int = 0) -> int:
        """Return how long so many turns take."""
        cycles = max(1, cycles or (1 if self.cycle_limit == math.inf else int(self.cycle_limit)))
        if self.cycle_mul == 1.0:
            whole = self.t_initial * cycles
        else:
            mul = self.cycle_mul
            whole = math.floor(-self.t_initial * (mul**cycles - 1) / (1 - mul))
        return whole + self.warmup_t if self.warmup_prefix else whole


def _by_old_names(
    mul: float,
    decay: float,
    limit: int | None,
    t_mul: float | None,
    decay_rate: float | None,
    lr_min: float,
) -> tuple[float, float, float]:
    """Return what turns are made of; by timm 0.4.12's names they end only where it is said.

    Raises:
        NotImplementedError: the lowest rate decays too, as it did in timm 0.4.
    """
    if t_mul is None and decay_rate is None:
        return mul, decay, 1 if limit is None else limit
    if decay_rate not in (None, 1) and lr_min:
        msg = "`decay_rate` beside an `lr_min` lowers both in timm 0.4: give `cycle_decay`"
        raise NotImplementedError(msg)
    mul, decay = (mul if t_mul is None else t_mul), (decay if decay_rate is None else decay_rate)
    return mul, decay, limit or math.inf


class CosineLRScheduler(_Cycles):
    """timm.scheduler.CosineLRScheduler; ``t_mul`` and ``decay_rate`` are timm 0.4's names."""

    def __init__(
        self,
        optimizer: Any,
        t_initial: int,
        lr_min: float = 0.0,
        cycle_mul: float = 1.0,
        cycle_decay: float = 1.0,
        cycle_limit: int | None = None,
        warmup_t: int = 0,
        warmup_lr_init: float = 0.0,
        warmup_prefix: bool = False,
        t_in_epochs: bool = True,
        noise_range_t: Any = None,
        noise_pct: float = 0.67,
        noise_std: float = 1.0,
        noise_seed: int = 42,
        k_decay: float = 1.0,
        initialize: bool = True,
        *,
        t_mul: float | None = None,
        decay_rate: float | None = None,
    ) -> None:
        noise = (noise_range_t, "normal", noise_pct, noise_std, noise_seed)
        super().__init__(optimizer, "lr", t_in_epochs, *noise, initialize)
        self.t_initial, self.lr_min, self.k_decay = t_initial, lr_min, k_decay
        self._turns(*_by_old_names(cycle_mul, cycle_decay, cycle_limit, t_mul, decay_rate, lr_min))
        self._begin(warmup_t, warmup_lr_init, warmup_prefix)

    def _height(self, done: float, length: float) -> float:
        power = self.k_decay
        return 0.5 * (1 + math.cos(math.pi * done**power / length**power))


class PolyLRScheduler(_Cycles):
    """timm.scheduler.PolyLRScheduler."""

    def __init__(
        self,
        optimizer: Any,
        t_initial: int,
        power: float = 0.5,
        lr_min: float = 0.0,
        cycle_mul: float = 1.0,
        cycle_decay: float = 1.0,
        cycle_limit: int = 1,
        warmup_t: int = 0,
        warmup_lr_init: float = 0.0,
        warmup_prefix: bool = False,
        t_in_epochs: bool = True,
        noise_range_t: Any = None,
        noise_pct: float = 0.67,
        noise_std: float = 1.0,
        noise_seed: int = 42,
        k_decay: float = 1.0,
        initialize: bool = True,
    ) -> None:
        noise = (noise_range_t, "normal", noise_pct, noise_std, noise_seed)
        super().__init__(optimizer, "lr", t_in_epochs, *noise, initialize)
        self.t_initial, self.lr_min, self.k_decay, self.power = t_initial, lr_min, k_decay, power
        self._turns(cycle_mul, cycle_decay, cycle_limit)
        self._begin(warmup_t, warmup_lr_init, warmup_prefix)

    def _height(self, done: float, length: float) -> float:
        return float((1 - done**self.k_decay / length**self.k_decay) ** self.power)


class TanhLRScheduler(_Cycles):
    """timm.scheduler.TanhLRScheduler; without a prefix the warmup ends at the curve's rate.

    ``t_mul`` and ``decay_rate`` are timm 0.4's names.
    """

    def __init__(
        self,
        optimizer: Any,
        t_initial: int,
        lb: float = -7.0,
        ub: float = 3.0,
        lr_min: float = 0.0,
        cycle_mul: float = 1.0,
        cycle_decay: float = 1.0,
        cycle_limit: int | None = None,
        warmup_t: int = 0,
        warmup_lr_init: float = 0.0,
        warmup_prefix: bool = False,
        t_in_epochs: bool = True,
        noise_range_t: Any = None,
        noise_pct: float = 0.67,
        noise_std: float = 1.0,
        noise_seed: int = 42,
        initialize: bool = True,
        *,
        t_mul: float | None = None,
        decay_rate: float | None = None,
    ) -> None:
        noise = (noise_range_t, "normal", noise_pct, noise_std, noise_seed)
        super().__init__(optimizer, "lr", t_in_epochs, *noise, initialize)
        if lb >= ub:
            msg = f"`lb` must be below `ub`, got {lb}, {ub}"
            raise AssertionError(msg)
        self.t_initial, self.lr_min, self.lb, self.ub = t_initial, lr_min, lb, ub
        self._turns(*_by_old_names(cycle_mul, cycle_decay, cycle_limit, t_mul, decay_rate, lr_min))
        self._begin(warmup_t, warmup_lr_init, warmup_prefix)

    def _goals(self) -> list[float]:
        return super()._goals() if self.warmup_prefix else self._get_lr(self.warmup_t)

    def _height(self, done: float, length: float) -> float:
        share = done / length
        return 0.5 * (1 - math.tanh(self.lb * (1.0 - share) + self.ub * share))


class StepLRScheduler(_Warmed):
    """timm.scheduler.StepLRScheduler."""

    def __init__(
        self,
        optimizer: Any,
        decay_t: float,
        decay_rate: float = 1.0,
        warmup_t: int = 0,
        warmup_lr_init: float = 0.0,
        warmup_prefix: bool = True,
        t_in_epochs: bool = True,
        noise_range_t: Any = None,
        noise_pct: float = 0.67,
        noise_std: float = 1.0,
        noise_seed: int = 42,
        initialize: bool = True,
    ) -> None:
        noise = (noise_range_t, "normal", noise_pct, noise_std, noise_seed)
        super().__init__(optimizer, "lr", t_in_epochs, *noise, initialize)
        self.decay_t, self.decay_rate = decay_t, decay_rate
        self._begin(warmup_t, warmup_lr_init, warmup_prefix)

    def _later(self, t: float) -> list[float]:
        return [base * self.decay_rate ** (t // self.decay_t) for base in self.base_values]


class MultiStepLRScheduler(_Warmed):
    """timm.scheduler.MultiStepLRScheduler: a milestone acts one epoch before its number."""

    def __init__(
        self,
        optimizer: Any,
        decay_t: list[int],
        decay_rate: float = 1.0,
        warmup_t: int = 0,
        warmup_lr_init: float = 0.0,
        warmup_prefix: bool = True,
        t_in_epochs: bool = True,
        noise_range_t: Any = None,
        noise_pct: float = 0.67,
        noise_std: float = 1.0,
        noise_seed: int = 42,
        initialize: bool = True,
    ) -> None:
        noise = (noise_range_t, "normal", noise_pct, noise_std, noise_seed)
        super().__init__(optimizer, "lr", t_in_epochs, *noise, initialize)
        self.decay_t, self.decay_rate = decay_t, decay_rate
        self._begin(warmup_t, warmup_lr_init, warmup_prefix)

    def get_curr_decay_steps(self, t: float) -> int:
        """Return how many milestones are behind ``t``, counted from one."""
        return bisect.bisect_right(self.decay_t, t + 1)

    def _later(self, t: float) -> list[float]:
        done = self.get_curr_decay_steps(t)
        return [base * self.decay_rate**done for base in self.base_values]


class PlateauLRScheduler(_Warmed):
    """timm.scheduler.PlateauLRScheduler: ReduceLROnPlateau behind a warmup."""

    def __init__(
        self,
        optimizer: Any,
        decay_rate: float = 0.1,
        patience_t: int = 10,
        threshold: float = 1e-4,
        cooldown_t: int = 0,
        warmup_t: int = 0,
        warmup_lr_init: float = 0.0,
        lr_min: float = 0.0,
        mode: str = "max",
        noise_range_t: Any = None,
        noise_type: str = "normal",
        noise_pct: float = 0.67,
        noise_std: float = 1.0,
        noise_seed: int | None = None,
        initialize: bool = True,
    ) -> None:
        noise = (noise_range_t, noise_type, noise_pct, noise_std, noise_seed)
        super().__init__(optimizer, "lr", True, *noise, initialize)
        self.lr_scheduler = ReduceLROnPlateau(
            optimizer,
            mode=mode,
            factor=decay_rate,
            patience=patience_t,
            threshold=threshold,
            cooldown=cooldown_t,
            min_lr=lr_min,
        )
        self._begin(warmup_t, warmup_lr_init)
        self.restore_lr: list[float] | None = None

    def state_dict(self) -> dict[str, Any]:
        """Return the best value and the count of epochs, as timm's does."""
        return {"best": self.lr_scheduler.best, "last_epoch": self.lr_scheduler.last_epoch}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take what ``state_dict`` returned."""
        self.lr_scheduler.best = state_dict["best"]
        if "last_epoch" in state_dict:
            self.lr_scheduler.last_epoch = state_dict["last_epoch"]

    def step(self, epoch: int, metric: float | None = None) -> None:
        """Rise, or lower the rates where ``metric`` has not become better."""
        if epoch <= self.warmup_t:
            self.update_groups(self._rising(epoch))
            return
        groups = self.optimizer.param_groups
        if self.restore_lr is not None:
            for group, rate in zip(groups, self.restore_lr, strict=False):
                group["lr"] = rate
            self.restore_lr = None
        if metric is not None:
            self.lr_scheduler.step(metric)
        if self._is_apply_noise(epoch):
            noise = self._calculate_noise(epoch)
            self.restore_lr = [float(group["lr"]) for group in groups]
            for group, rate in zip(groups, self.restore_lr, strict=True):
                group["lr"] = rate + rate * noise

    def step_update(self, num_updates: int, metric: float | None = None) -> None:
        """Do nothing: it goes by epochs."""


def scheduler_kwargs(cfg: Any, decreasing_metric: bool | None = None) -> dict[str, Any]:
    """Return timm.scheduler.scheduler_kwargs: what ``create_scheduler_v2`` takes, of settings."""
    falls = decreasing_metric
    if falls is None:
        falls = "loss" in getattr(cfg, "eval_metric", "top1")
    found = {name: getattr(cfg, of, default) for name, (of, default) in _SETTINGS.items()}
    mode = "min" if falls else "max"
    steps = not getattr(cfg, "sched_on_updates", False)
    return {"sched": cfg.sched, **found, "plateau_mode": mode, "step_on_epochs": steps}


_SETTINGS: dict[str, tuple[str, Any]] = {
    "num_epochs": ("epochs", 100),
    "decay_epochs": ("decay_epochs", 30),
    "decay_milestones": ("decay_milestones", [30, 60]),
    "warmup_epochs": ("warmup_epochs", 5),
    "cooldown_epochs": ("cooldown_epochs", 0),
    "patience_epochs": ("patience_epochs", 10),
    "decay_rate": ("decay_rate", 0.1),
    "min_lr": ("min_lr", 0.0),
    "warmup_lr": ("warmup_lr", 1e-5),
    "warmup_prefix": ("warmup_prefix", False),
    "noise": ("lr_noise", None),
    "noise_pct": ("lr_noise_pct", 0.67),
    "noise_std": ("lr_noise_std", 1.0),
    "noise_seed": ("seed", 42),
    "cycle_mul": ("lr_cycle_mul", 1.0),
    "cycle_decay": ("lr_cycle_decay", 0.1),
    "cycle_limit": ("lr_cycle_limit", 1),
    "k_decay": ("lr_k_decay", 1.0),
    "decay_fn": ("lr_decay_fn", None),
    "stable_timescale": ("lr_stable_timescale", None),
}


def create_scheduler(
    args: Any, optimizer: Any, updates_per_epoch: int = 0
) -> tuple[Scheduler | None, int]:
    """Return timm.scheduler.create_scheduler: a schedule of settings, and its epochs."""
    return create_scheduler_v2(
        optimizer, **scheduler_kwargs(args), updates_per_epoch=updates_per_epoch
    )


def create_scheduler_v2(
    optimizer: Any,
    sched: str = "cosine",
    num_epochs: int = 300,
    decay_epochs: float | None = None,
    decay_milestones: Any = (90, 180, 270),
    cooldown_epochs: int = 0,
    patience_epochs: int = 10,
    decay_rate: float = 0.1,
    min_lr: float = 0.0,
    warmup_lr: float = 1e-5,
    warmup_epochs: int = 0,
    warmup_prefix: bool = False,
    noise: Any = None,
    noise_pct: float = 0.67,
    noise_std: float = 1.0,
    noise_seed: int = 42,
    cycle_mul: float = 1.0,
    cycle_decay: float = 0.1,
    cycle_limit: int = 1,
    k_decay: float = 1.0,
    decay_fn: str | None = None,
    stable_timescale: float | None = None,
    plateau_mode: str = "max",
    step_on_epochs: bool = True,
    updates_per_epoch: int = 0,
) -> tuple[Scheduler | None, int]:
    """Return timm.scheduler.create_scheduler_v2: a schedule by its name, and its epochs."""
    del decay_fn, stable_timescale  # of "wsd" and "rsqrt"
    if sched == "none":
        return None, num_epochs + (warmup_epochs if warmup_prefix else 0)
    if not step_on_epochs and updates_per_epoch <= 0:
        msg = "`updates_per_epoch` must be the number of batches where the rate goes by updates"
        raise AssertionError(msg)
    by = 1 if step_on_epochs else updates_per_epoch
    whole = num_epochs * by
    warm: dict[str, Any] = {"warmup_t": warmup_epochs * by, "warmup_lr_init": warmup_lr}
    prefixed: dict[str, Any] = {
        **warm,
        "warmup_prefix": warmup_prefix,
        "t_in_epochs": step_on_epochs,
    }
    noises: dict[str, Any] = {"noise_range_t": _span(noise, whole), "noise_pct": noise_pct}
    noises |= {"noise_std": noise_std, "noise_seed": noise_seed}
    turns: dict[str, Any] = {
        "cycle_mul": cycle_mul,
        "cycle_decay": cycle_decay,
        "cycle_limit": cycle_limit,
    }
    turns |= {"t_initial": whole, "lr_min": min_lr}
    made: Any
    if sched == "cosine":
        made = CosineLRScheduler(optimizer, **turns, **prefixed, **noises, k_decay=k_decay)
    elif sched == "tanh":
        made = TanhLRScheduler(optimizer, **turns, **prefixed, **noises)
    elif sched == "poly":  # the rate is the power
        power: dict[str, Any] = {"power": decay_rate, "k_decay": k_decay}
        made = PolyLRScheduler(optimizer, **turns, **power, **prefixed, **noises)
    elif sched in ("step", "constant"):
        every = (90 if decay_epochs is None else decay_epochs) * by if sched == "step" else 1
        rate = decay_rate if sched == "step" else 1.0
        made = StepLRScheduler(optimizer, every, rate, **prefixed, **noises)
    elif sched == "multistep":
        ends = [end * by for end in decay_milestones] if by > 1 else decay_milestones
        made = MultiStepLRScheduler(optimizer, ends, decay_rate, **prefixed, **noises)
    elif sched == "plateau":
        if not step_on_epochs:
            msg = "`step_on_epochs` must be true for 'plateau'"
            raise AssertionError(msg)
        more: dict[str, Any] = {
            "patience_t": patience_epochs,
            "lr_min": min_lr,
            "mode": plateau_mode,
        }
        made = PlateauLRScheduler(optimizer, decay_rate, **more, **warm, **noises)
    elif sched in ("wsd", "rsqrt"):
        msg = f"timm's schedule {sched!r} is not ported: take 'cosine', 'step' or 'poly'"
        raise NotImplementedError(msg)
    else:
        msg = f"`sched` must be a schedule of timm's, got {sched!r}"
        raise ValueError(msg)
    if isinstance(made, _Cycles):
        return made, (made.get_cycle_length() + cooldown_epochs * by) // by
    return made, num_epochs + (warmup_epochs if warmup_prefix else 0)


def _span(noise: Any, whole: int) -> Any:
    """Return from where to where rates are noisy, of shares of the whole."""
    if not isinstance(noise, list | tuple):
        return None if noise is None else noise * whole
    ends = [share * whole for share in noise]
    return ends[0] if len(ends) == 1 else ends

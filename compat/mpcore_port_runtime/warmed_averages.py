"""An average of a network that begins late and warms up, as ema_pytorch keeps it.

Source: ema_pytorch 0.7.7 ``ema_pytorch.py``. Compared with what it gave.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import mindspore as ms
from mindspore import Tensor, nn

from mpcore_port_runtime.in_place import put
from mpcore_port_runtime.modules import (
    evaluate,
    named_buffers,
    named_parameters,
    requires_grad_,
    train,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

__all__ = ["EMA"]

_HALF = 0.5


class EMA(nn.Cell):  # type: ignore[misc]  # MindSpore has no types
    """ema_pytorch.EMA: a network, ``online_model``, and its average, ``ema_model``."""

    def __init__(
        self,
        model: Any,
        ema_model: Any = None,
        beta: float = 0.9999,
        update_after_step: int = 100,
        update_every: int = 10,
        inv_gamma: float = 1.0,
        power: float = 2 / 3,
        min_value: float = 0.0,
        param_or_buffer_names_no_ema: Collection[str] = (),
        ignore_names: Collection[str] = (),
        ignore_startswith_names: Collection[str] = (),
        include_online_model: bool = True,
        allow_different_devices: bool = False,
        use_foreach: bool = False,
        update_model_with_ema_every: int | None = None,
        update_model_with_ema_beta: float = 0.0,
        forward_method_names: Collection[str] = (),
        move_ema_to_online_device: bool = False,
        coerce_dtype: bool = False,
        lazy_init_ema: bool = False,
    ) -> None:
        """Take ema_pytorch's arguments; of devices there is one."""
        super().__init__()
        del allow_different_devices, use_foreach, move_ema_to_online_device, coerce_dtype
        self.set_train()  # as modules start
        self.beta, self.is_frozen = beta, beta == 1.0
        self.include_online_model = include_online_model
        if include_online_model:
            self.online_model = model
        else:
            self.online_model = _Unlisted(model)
        self.ema_model: Any = None
        self.forward_method_names = forward_method_names
        if not isinstance(ema_model, nn.Cell) and callable(ema_model):
            ema_model = ema_model()
        if not lazy_init_ema:
            self.init_ema(ema_model)
        self.update_every, self.update_after_step = update_every, update_after_step
        self.inv_gamma, self.power, self.min_value = inv_gamma, power, min_value
        self.param_or_buffer_names_no_ema = param_or_buffer_names_no_ema
        self.ignore_names = ignore_names
        self.ignore_startswith_names = ignore_startswith_names
        self.update_model_with_ema_every = update_model_with_ema_every
        self.update_model_with_ema_beta = update_model_with_ema_beta
        self.register_buffer("initted", Tensor(False))
        self.register_buffer("step", Tensor(0, ms.int64))

    def init_ema(self, ema_model: Any = None) -> None:
        """Make the average, of a copy of the network if none is given; it takes no gradients."""
        made = copy.deepcopy(self.model) if ema_model is None else ema_model
        self.ema_model = requires_grad_(made, requires_grad=False)
        for name in self.forward_method_names:
            setattr(self, name, getattr(made, name))

    def add_to_optimizer_post_step_hook(self, optimizer: Any) -> None:
        """Refuse to move with an optimizer.

        Raises:
            NotImplementedError: always.
        """
        del optimizer
        msg = "`add_to_optimizer_post_step_hook` is not ported: call update() behind the step"
        raise NotImplementedError(msg)

    @property
    def model(self) -> Any:
        """The network."""
        return self.online_model if self.include_online_model else self.online_model.inner

    def eval(self) -> Any:
        """Have the average evaluate; return it."""
        return evaluate(self.ema_model)

    def forward_eval(self, *args: Any, **kwargs: Any) -> Any:
        """Run the average and leave its mode as it is."""
        was = self.ema_model.training
        out = self.ema_model(*args, **kwargs)
        train(self.ema_model, was)
        return out

    def restore_ema_model_device(self) -> None:
        """Move the average nowhere: there is one device."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the average."""
        return self.ema_model(*args, **kwargs)

    def _pairs(self, held: Any, new: Any) -> Iterator[tuple[str, Any, Any]]:
        """Yield name, own and other of the floats among parameters, then of those among buffers."""
        for every in (named_parameters, named_buffers):
            known = {name for name, one in every(self.ema_model) if one.is_floating_point()}
            mine = [(name, one) for name, one in every(held) if name in known]
            theirs = [one for name, one in every(new) if name in known]
            yield from ((name, own, other) for (name, own), other in zip(mine, theirs, strict=True))

    def copy_params_from_model_to_ema(self) -> None:
        """Give the average what the network has."""
        for _, own, other in self._pairs(self.ema_model, self.model):
            put(own, other.copy())

    def copy_params_from_ema_to_model(self) -> None:
        """Give the network what the average has."""
        for _, other, own in self._pairs(self.ema_model, self.model):
            put(own, other.copy())

    def update_model_with_ema(self, decay: float | None = None) -> None:
        """Move the network to the average, and keep ``decay`` of it."""
        decay = self.update_model_with_ema_beta if decay is None else decay
        if decay == 0.0:
            self.copy_params_from_ema_to_model()
        else:
            self.update_moving_average(self.model, self.ema_model, decay)

    def get_current_decay(self) -> float:
        """Return how much the average keeps of itself now."""
        epoch = max(int(self.step.asnumpy()) - self.update_after_step - 1, 0.0)
        if epoch <= 0:
            return 0.0
        value = 1.0 - (1.0 + epoch / self.inv_gamma) ** -self.power
        return float(min(max(value, self.min_value), self.beta))

    def update(self) -> None:
        """Count a step, and take the network or move to it where one is due."""
        step = int(self.step.asnumpy())
        put(self.step, Tensor(step + 1, ms.int64))
        if not bool(self.initted.asnumpy()):
            if self.ema_model is None:
                self.init_ema()
            self.copy_params_from_model_to_ema()
            put(self.initted, Tensor(True))
            return
        is_due = step % self.update_every == 0
        if is_due and step <= self.update_after_step:
            self.copy_params_from_model_to_ema()
            return
        if is_due:
            self.update_moving_average(self.ema_model, self.model)
        back = self.update_model_with_ema_every
        if back is not None and step % back == 0:
            self.update_model_with_ema()

    def update_moving_average(
        self, ma_model: Any, current_model: Any, current_decay: float | None = None
    ) -> None:
        """Move one network by a share of 1 - decay to another."""
        if self.is_frozen:
            return
        decay = self.get_current_decay() if current_decay is None else current_decay
        fronts = tuple(self.ignore_startswith_names)
        for name, own, other in self._pairs(ma_model, current_model):
            if name in self.ignore_names or name.startswith(fronts):
                continue
            taken = name in self.param_or_buffer_names_no_ema
            put(own, other.copy() if taken else _between(own, other, 1.0 - decay))


class _Unlisted:
    """Holds a network that is no part of the one around it."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getitem__(self, place: int) -> Any:
        """Return the network: ema_pytorch keeps it in a list."""
        return (self.inner,)[place]


def _between(own: Any, other: Any, share: float) -> Any:
    """Return torch's lerp, which begins at the nearer end."""
    if share < _HALF:
        return own + share * (other - own)
    return other - (other - own) * (1.0 - share)

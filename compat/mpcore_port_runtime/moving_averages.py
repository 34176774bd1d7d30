"""Averages of weights as packages keep them.

Sources: timm 1.0.9 ``utils/model_ema.py``, ``utils/model.py``; torch_ema 0.3 ``ema.py``. Compared
with what these gave.
"""

from __future__ import annotations

import copy
import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from mindspore import Tensor, nn

from mpcore_port_runtime.files import load
from mpcore_port_runtime.in_place import put
from mpcore_port_runtime.modules import (
    evaluate,
    live_state_dict,
    load_state_dict,
    requires_grad_,
    state_dict,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_LOGGER = logging.getLogger(__name__)

__all__ = [
    "ExponentialMovingAverage",
    "ModelEma",
    "ModelEmaV2",
    "get_state_dict",
    "unwrap_model",
]


def _moved(average: Any, model: Any, move: Callable[[Any, Any], Any]) -> None:
    """Give each weight and buffer of ``average`` what ``move`` makes of it and of ``model``'s."""
    held, new = live_state_dict(average), live_state_dict(model)
    for own, other in zip(held.values(), new.values(), strict=True):
        put(own, move(own, other))


class ModelEma:
    """timm.utils.ModelEma: a copy of a network, ``ema``, whose state is an average.

    ``resume`` names a file that ``port.save`` wrote, with the average as "state_dict_ema".
    """

    def __init__(
        self, model: Any, decay: float = 0.9999, device: Any = "", resume: Any = ""
    ) -> None:
        self.device = device
        self.ema = requires_grad_(evaluate(copy.deepcopy(model)), requires_grad=False)
        self.decay = decay
        self.ema_has_module = hasattr(self.ema, "module")
        if resume:
            self._load_checkpoint(resume)

    def _load_checkpoint(self, checkpoint_path: Any) -> None:
        found = load(checkpoint_path)
        if "state_dict_ema" not in found:
            _LOGGER.warning("Failed to find state_dict_ema, starting from loaded model weights")
            return
        held = found["state_dict_ema"].items()
        front = "module." if self.ema_has_module else ""
        named = {k if k.startswith("module") else f"{front}{k}": v for k, v in held}
        load_state_dict(self.ema, named)

    def update(self, model: Any) -> None:
        """Move the average by a share of 1 - decay to the state of ``model``."""
        inner = model.module if hasattr(model, "module") and not self.ema_has_module else model
        _moved(self.ema, inner, lambda own, other: own * self.decay + (1.0 - self.decay) * other)


class ModelEmaV2(nn.Cell):  # type: ignore[misc]  # MindSpore has no types
    """timm.utils.ModelEmaV2: a copy of a network, ``module``, whose state is an average."""

    def __init__(self, model: Any, decay: float = 0.9999, device: Any = None) -> None:
        super().__init__()
        self.set_train()  # itself, as modules start; what it holds is in evaluation mode
        self.device = device
        self.module = evaluate(copy.deepcopy(model))
        self.decay = decay

    def update(self, model: Any) -> None:
        """Move the average by a share of 1 - decay to the state of ``model``."""
        _moved(self.module, model, lambda own, other: self.decay * own + (1.0 - self.decay) * other)

    def set(self, model: Any) -> None:
        """Take the state of ``model``."""
        _moved(self.module, model, lambda _, other: other.copy())

    def construct(self, *args: Any, **kwargs: Any) -> Any:
        """Run the averaged network."""
        return self.module(*args, **kwargs)


def unwrap_model(model: Any) -> Any:
    """Return timm.utils.unwrap_model: the network inside of what is around it."""
    if isinstance(model, ModelEma):
        return unwrap_model(model.ema)
    return unwrap_model(model.module) if hasattr(model, "module") else model


def get_state_dict(model: Any, unwrap_fn: Callable[[Any], Any] = unwrap_model) -> dict[str, Any]:
    """Return timm.utils.get_state_dict: the state of the network inside."""
    return state_dict(unwrap_fn(model))


class ExponentialMovingAverage:
    """torch_ema.ExponentialMovingAverage."""

    def __init__(
        self, parameters: Iterable[Any], decay: float, use_num_updates: bool = True
    ) -> None:
        _check_decay(decay)
        self.decay = decay
        self.num_updates = 0 if use_num_updates else None
        self._given = list(parameters)
        self.shadow_params = _copies(self._given)
        self.collected_params: list[Any] | None = None

    def _listed(self, parameters: Iterable[Any] | None) -> list[Any]:
        listed = self._given if parameters is None else list(parameters)
        if len(listed) != len(self.shadow_params):
            msg = f"`parameters` must be {len(self.shadow_params)}, got {len(listed)}"
            raise ValueError(msg)
        return listed

    def update(self, parameters: Iterable[Any] | None = None) -> None:
        """Move the averages to the weights; the first updates move them more."""
        listed = self._listed(parameters)
        decay = self.decay
        if self.num_updates is not None:
            self.num_updates += 1
            decay = min(decay, (1 + self.num_updates) / (10 + self.num_updates))
        pairs = zip(self.shadow_params, listed, strict=True)
        self.shadow_params = [
            shadow - (shadow - param.value()) * (1.0 - decay) for shadow, param in pairs
        ]

    def copy_to(self, parameters: Iterable[Any] | None = None) -> None:
        """Give the weights the values of their averages."""
        for shadow, param in zip(self.shadow_params, self._listed(parameters), strict=True):
            put(param, shadow)

    def store(self, parameters: Iterable[Any] | None = None) -> None:
        """Keep the weights as they are, for ``restore``."""
        self.collected_params = _copies(self._listed(parameters))

    def restore(self, parameters: Iterable[Any] | None = None) -> None:
        """Give the weights what ``store`` has kept."""
        if self.collected_params is None:
            msg = "`restore` must come after `store`, no weights were kept"
            raise RuntimeError(msg)
        for kept, param in zip(self.collected_params, self._listed(parameters), strict=True):
            put(param, kept)

    @contextmanager
    def average_parameters(self, parameters: Iterable[Any] | None = None) -> Iterator[None]:
        """Have the weights be their averages inside of a ``with``."""
        listed = self._listed(parameters)
        self.store(listed)
        self.copy_to(listed)
        try:
            yield
        finally:
            self.restore(listed)

    def to(self, device: Any = None, dtype: Any = None) -> None:
        """Give the averages another type; there is one device."""
        del device
        if dtype is not None:
            self.shadow_params = [one.astype(dtype) for one in self.shadow_params]

    def state_dict(self) -> dict[str, Any]:
        """Return the averages and how they are made."""
        return {
            "decay": self.decay,
            "num_updates": self.num_updates,
            "shadow_params": self.shadow_params,
            "collected_params": self.collected_params,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take what ``state_dict`` returned."""
        _check_decay(state_dict["decay"])
        shadows, kept = state_dict["shadow_params"], state_dict["collected_params"]
        if len(shadows) != len(self._given):
            msg = f"`shadow_params` must be {len(self._given)}, got {len(shadows)}"
            raise ValueError(msg)
        self.decay, self.num_updates = state_dict["decay"], state_dict["num_updates"]
        self.shadow_params = _copies(shadows)
        self.collected_params = None if kept is None else _copies(kept)


def _check_decay(decay: float) -> None:
    if not 0.0 <= decay <= 1.0:
        msg = f"`decay` must be in [0, 1], got {decay}"
        raise ValueError(msg)


def _copies(tensors: Iterable[Any]) -> list[Any]:
    return [Tensor(one.asnumpy()) for one in tensors]

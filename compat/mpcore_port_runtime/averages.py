"""Averages of weights over training, as torch.optim.swa_utils keeps them."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import mindspore as ms
from mindspore import nn

from mpcore_port_runtime.modules import _every, _is_statistic

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["AveragedModel", "get_ema_avg_fn", "get_ema_multi_avg_fn"]


def get_ema_avg_fn(decay: float = 0.999) -> Callable[..., Any]:
    """Return the function that moves an average by a share of 1 - decay."""

    def moved(averaged: Any, current: Any, _: Any) -> Any:
        return decay * averaged + (1 - decay) * current

    return moved


def get_ema_multi_avg_fn(decay: float = 0.999) -> Callable[..., None]:
    """Return the same for lists of parameters, in place."""
    one = get_ema_avg_fn(decay)

    def move(averaged: list[Any], current: list[Any], count: Any) -> None:
        for held, new in zip(averaged, current, strict=True):
            held.set_data(one(held, new, count))

    return move


class AveragedModel(nn.Cell):  # type: ignore[misc]  # nn.Cell is untyped
    """A copy of a network whose weights are averages of those that it had.

    Source: torch/optim/swa_utils.py, torch 2.13.0.
    """

    def __init__(
        self,
        model: Any,
        device: Any = None,
        avg_fn: Callable[..., Any] | None = None,
        multi_avg_fn: Callable[..., None] | None = None,
        use_buffers: bool = False,
    ) -> None:
        super().__init__()
        if avg_fn is not None and multi_avg_fn is not None:
            msg = "`avg_fn` and `multi_avg_fn` are both given: give one"
            raise AssertionError(msg)
        del device
        self.module = copy.deepcopy(model)
        self.n_averaged = ms.Parameter(
            ms.Tensor(0, ms.int64), name="n_averaged", requires_grad=False
        )
        self.avg_fn, self.multi_avg_fn = avg_fn, multi_avg_fn
        self.use_buffers = use_buffers
        self.set_train(model.training)

    def construct(self, *args: Any, **kwargs: Any) -> Any:
        """Run the averaged network."""
        return self.module(*args, **kwargs)

    def update_parameters(self, model: Any) -> None:
        """Take the weights that ``model`` has into the average."""
        held, new = self._parts(self.module), self._parts(model)
        count = int(self.n_averaged.asnumpy())
        if not count:
            for own, other in zip(held, new, strict=True):
                own.set_data(ms.Tensor(other.asnumpy()))
        elif self.multi_avg_fn is not None:
            self.multi_avg_fn(held, new, ms.Tensor(count, ms.int64))
        else:
            average = self.avg_fn or _mean
            for own, other in zip(held, new, strict=True):
                own.set_data(average(own, other, ms.Tensor(count, ms.int64)).astype(own.dtype))
        if not self.use_buffers:
            pairs = zip(
                self._parts(self.module, statistics=True),
                self._parts(model, statistics=True),
                strict=True,
            )
            for own, other in pairs:
                own.set_data(ms.Tensor(other.asnumpy()))
        self.n_averaged.set_data(ms.Tensor(count + 1, ms.int64))

    def _parts(self, cell: Any, *, statistics: bool | None = None) -> list[Any]:
        """Return its weights, with its buffers where those are averaged; or these alone."""
        everything = [(_is_statistic(name), param) for name, param, _ in _every(cell)]
        if statistics is None and self.use_buffers:
            return [param for _, param in everything]
        return [param for is_one, param in everything if is_one == bool(statistics)]


def _mean(averaged: Any, current: Any, count: Any) -> Any:
    return averaged + (current - averaged) / (count + 1)

"""Ranger of lessw2020's package ``ranger``: RAdam, Lookahead and centred gradients in one.

Source: Ranger-Deep-Learning-Optimizer c82a3046 (20.4.11), ``ranger/ranger.py``. It prints nothing
here.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

from mindspore import ops

from mpcore_port_runtime.groups import Optimizer

__all__ = ["Ranger"]

_OF_LAYERS, _OF_CONVOLUTIONS = 1, 3
"""Gradients of more dimensions are centred."""


class Ranger(Optimizer):
    """ranger.Ranger, 20.4.11.

    As there, ``use_gc=False`` leaves gradients centred all the same, and a group's own ``alpha``
    and ``N_sma_threshhold`` are not asked: the optimizer's are.
    """

    keeps: ClassVar[tuple[str, ...]] = ("exp_avg", "exp_avg_sq", "slow_buffer")

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        alpha: float = 0.5,
        k: int = 6,
        N_sma_threshhold: float = 5,  # noqa: N803  # the package's name
        betas: tuple[float, float] = (0.95, 0.999),
        eps: float = 1e-5,
        weight_decay: float = 0,
        use_gc: bool = True,
        gc_conv_only: bool = False,
    ) -> None:
        """Take the package's arguments.

        Raises:
            ValueError: a number is out of its bounds.
        """
        if not (0 <= alpha <= 1 and k >= 1 and lr > 0 and eps > 0):
            msg = (
                "`alpha` must be in [0, 1], `k` at least 1, `lr` and `eps` above 0, got "
                f"{alpha}, {k}, {lr}, {eps}"
            )
            raise ValueError(msg)
        self.alpha, self.k, self.N_sma_threshhold = alpha, k, N_sma_threshhold
        self.use_gc = use_gc
        self.gc_gradient_threshold = _OF_CONVOLUTIONS if gc_conv_only else _OF_LAYERS
        defaults = {"lr": lr, "alpha": alpha, "k": k, "step_counter": 0, "betas": betas}
        more = {"N_sma_threshhold": N_sma_threshhold, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, defaults | more)

    def move(self, place: int, grad: Any, group: Any, rate: Any) -> None:
        """Move one parameter.

        Raises:
            NotImplementedError: groups have different betas, of which the package takes some
                for others' corrections.
        """
        if any(tuple(one["betas"]) != tuple(group["betas"]) for one in self.param_groups):
            msg = "Ranger was ported for the same `betas` in all groups"
            raise NotImplementedError(msg)
        param, step = self.parameters[place], int(self.counts[place].asnumpy())
        if step == 1:
            ops.assign(self.slow_buffer[place], param.value())
        beta1, beta2 = group["betas"]
        if grad.ndim > self.gc_gradient_threshold:
            grad = grad - grad.mean(axis=tuple(range(1, grad.ndim)), keep_dims=True)
        square = self.exp_avg_sq[place].value() * beta2 + grad * grad * (1 - beta2)
        mean = self.exp_avg[place].value() * beta1 + grad * (1 - beta1)
        ops.assign(self.exp_avg_sq[place], square)
        ops.assign(self.exp_avg[place], mean)
        weight = param.value()
        if group["weight_decay"]:
            weight = weight - weight * (group["weight_decay"] * rate)
        share = self._rectified(step, beta2)
        size = rate * ((share or 1.0) / (1 - beta1**step))
        weight = weight - size * (mean / (ops.sqrt(square) + group["eps"]) if share else mean)
        if step % group["k"] == 0:
            slow = self.slow_buffer[place].value()
            weight = slow + (weight - slow) * self.alpha
            ops.assign(self.slow_buffer[place], weight)
        ops.assign(param, weight)

    def _rectified(self, step: int, beta2: float) -> float:
        """Return by what a step is smaller while its variance is; 0 where it is not known yet.

        In Python's numbers, as there: float32 loses what it is about in the first steps.
        """
        power = beta2**step
        longest = 2 / (1 - beta2) - 1
        length = longest - 2 * step * power / (1 - power)
        if length <= self.N_sma_threshhold:
            return 0.0
        share = (length - 4) / (longest - 4) * (length - 2) / length * longest / (longest - 2)
        return math.sqrt((1 - power) * share)

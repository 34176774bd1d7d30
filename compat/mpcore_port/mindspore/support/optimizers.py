"""Optimizers whose formula in MindSpore is another one than torch's."""

from __future__ import annotations

import math
from typing import Any

import mindspore as ms
from mindspore import ops
from mindspore.experimental import optim

__all__ = ["Adam"]


class Adam(optim.Adam):  # type: ignore[misc]  # untyped
    """torch.optim.Adam: eps is added after the correction of bias, MindSpore's Adam before it.

    Source: ``_single_tensor_adam`` in torch/optim/adam.py, torch 2.13.0. State, arguments and
    parameter groups are those of mindspore.experimental.optim.Adam; ``amsgrad`` is not there.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        if amsgrad:
            msg = "`amsgrad` is not ported: use optim.AdamW(amsgrad=True, weight_decay=0.0)"
            raise NotImplementedError(msg)
        super().__init__(
            params, float(lr), tuple(betas), eps, float(weight_decay), maximize=maximize
        )

    def construct(self, gradients: Any) -> bool:
        """Apply one step; ``gradients`` in the order of ``parameters``."""
        ops.assign(self.state_step, self.state_step.value() + 1)
        for number, group in enumerate(self.param_groups):
            rate = self.lrs[number]
            first, last = self.group_start_id[number], self.group_start_id[number + 1]
            for place in range(first, last):
                self._move(place, gradients[place], group, rate)
        return True

    def _move(self, place: int, grad: Any, group: Any, rate: Any) -> None:
        param, mean, square = self.parameters[place], self.exp_avg[place], self.exp_avg_sq[place]
        beta1, beta2 = group["betas"]
        if group["maximize"]:
            grad = -grad
        if group["weight_decay"]:
            grad = grad + group["weight_decay"] * param.value()
        ops.assign(mean, mean.value() + (grad - mean.value()) * (1 - beta1))
        ops.assign(square, square.value() * beta2 + grad * grad * (1 - beta2))
        bias1, bias2 = self._bias(beta1), self._bias(beta2)
        denominator = ops.sqrt(square.value()) / ops.sqrt(bias2) + group["eps"]
        ops.assign(param, param.value() - rate * (mean.value() / denominator) / bias1)

    def _bias(self, beta: float) -> Any:
        """Return 1 - beta**step; the plain difference loses four digits in float32."""
        if beta == 0:
            return ms.Tensor(1.0, ms.float32)
        step = self.state_step.value().astype(ms.float32).reshape(())
        return -ops.expm1(step * math.log(beta))

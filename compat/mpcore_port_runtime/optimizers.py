"""Optimizers that in MindSpore have another formula than torch's, or fixed betas."""

from __future__ import annotations

import math
from typing import Any

import mindspore as ms
from mindspore import ops
from mindspore.experimental import optim

__all__ = ["Adam", "AdamW"]


def _averages(optimizer: Any, place: int, grad: Any, group: Any) -> tuple[Any, Any]:
    """Move both averages of a parameter; return them without their bias, the second as a root."""
    mean, square = optimizer.exp_avg[place], optimizer.exp_avg_sq[place]
    beta1, beta2 = group["betas"]
    ops.assign(mean, mean.value() + (grad - mean.value()) * (1 - beta1))
    ops.assign(square, square.value() * beta2 + grad * grad * (1 - beta2))
    step = optimizer.state_step.value().astype(ms.float32).reshape(())
    return mean.value() / _bias(step, beta1), ops.sqrt(square.value() / _bias(step, beta2))


def _bias(step: Any, beta: float) -> Any:
    """Return 1 - beta**step; the plain difference loses four digits in float32."""
    if beta == 0:
        return ms.Tensor(1.0, ms.float32)
    return -ops.expm1(step * math.log(beta))


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
        param = self.parameters[place]
        if group["maximize"]:
            grad = -grad
        if group["weight_decay"]:
            grad = grad + group["weight_decay"] * param.value()
        mean, root = _averages(self, place, grad, group)
        ops.assign(param, param.value() - rate * mean / (root + group["eps"]))


class AdamW(optim.AdamW):  # type: ignore[misc]
    """torch.optim.AdamW whose betas may change while it runs, as OneCycleLR has them.

    MindSpore's compiles its step with the betas inside, anew whenever they change: 0.2 s a step
    on CPU (2.10.0). Until they change, this is MindSpore's.

    Source: ``_single_tensor_adamw`` in torch/optim/adamw.py, torch 2.13.0.
    """

    def construct(self, gradients: Any) -> bool:
        """Apply one step; ``gradients`` in the order of ``parameters``."""
        first = self.defaults["betas"]
        if all(tuple(group["betas"]) == tuple(first) for group in self.param_groups):
            return bool(super().construct(gradients))
        ops.assign(self.state_step, self.state_step.value() + 1)
        for number, group in enumerate(self.param_groups):
            start, end = self.group_start_id[number], self.group_start_id[number + 1]
            for place in range(start, end):
                self._move(place, gradients[place], group, self.lrs[number])
        return True

    def _move(self, place: int, grad: Any, group: Any, rate: Any) -> None:
        param = self.parameters[place]
        kept = param.value() * (1 - rate * group["weight_decay"])
        mean, root = _averages(self, place, -grad if group["maximize"] else grad, group)
        if group["amsgrad"]:
            # the largest average is kept with its bias, torch divides by that of this step
            root = self._largest(place, group)
        ops.assign(param, kept - rate * mean / (root + group["eps"]))

    def _largest(self, place: int, group: Any) -> Any:
        largest = self.max_exp_avg_sq[place]
        ops.assign(largest, ops.maximum(largest.value(), self.exp_avg_sq[place].value()))
        step = self.state_step.value().astype(ms.float32).reshape(())
        return ops.sqrt(largest.value() / _bias(step, group["betas"][1]))

"""Optimizers of packages that go by signs of gradients, or by the norms of layers: Lion, LAMB.

Sources: lion_pytorch 0.2.5 ``lion_pytorch.py``; apex 22.03 ``optimizers/fused_lamb.py`` and
``csrc/multi_tensor_lamb.cu``.
"""

from __future__ import annotations

from typing import Any, ClassVar

import mindspore as ms
from mindspore import Tensor, ops

from mpcore_port_runtime.groups import Optimizer, bias

__all__ = ["FusedLAMB", "Lion"]


class Lion(Optimizer):
    """lion_pytorch.Lion."""

    keeps: ClassVar[tuple[str, ...]] = ("exp_avg",)

    def __init__(
        self,
        params: Any,
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
        use_triton: bool = False,
        decoupled_weight_decay: bool = False,
    ) -> None:
        """Take the package's arguments.

        Raises:
            ValueError: the rate or a beta is out of its bounds.
        """
        del use_triton  # the same numbers
        if not (lr > 0 and all(0 <= beta <= 1 for beta in betas)):
            msg = f"`lr` must be above 0 and `betas` in [0, 1], got {lr}, {betas}"
            raise ValueError(msg)
        self._first_rate, self._apart = float(lr), decoupled_weight_decay
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    def move(self, place: int, grad: Any, group: Any, rate: Any) -> None:
        """Move one parameter."""
        param, slot = self.parameters[place], self.exp_avg[place]
        beta1, beta2 = group["betas"]
        decay = group["weight_decay"] / (self._first_rate if self._apart else 1.0)
        signs = ops.sign(slot.value() * beta1 + grad * (1 - beta1))
        ops.assign(param, param.value() * (1.0 - rate * decay) - rate * signs)
        ops.assign(slot, slot.value() * beta2 + grad * (1 - beta2))


class FusedLAMB(Optimizer):
    """apex.optimizers.FusedLAMB: gradients by their norm over all, steps by each layer's."""

    keeps: ClassVar[tuple[str, ...]] = ("exp_avg", "exp_avg_sq")

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        amsgrad: bool = False,
        adam_w_mode: bool = True,
        grad_averaging: bool = True,
        set_grad_none: bool = True,
        max_grad_norm: float = 1.0,
        use_nvlamb: bool = False,
    ) -> None:
        """Take apex's arguments.

        Raises:
            RuntimeError: AMSGrad is asked for, which apex has not.
        """
        del set_grad_none
        if amsgrad:
            msg = "FusedLAMB does not support the AMSGrad variant."
            raise RuntimeError(msg)
        defaults = {"lr": lr, "bias_correction": bias_correction, "betas": betas, "eps": eps}
        more = {"weight_decay": weight_decay, "grad_averaging": grad_averaging}
        self._of_weights, self._always = adam_w_mode, use_nvlamb
        self._over: Any = None
        super().__init__(params, defaults | more | {"max_grad_norm": max_grad_norm})

    def construct(self, gradients: Any) -> bool:
        """Apply one step, of gradients that are divided where all together are too long."""
        known = [grad.astype(ms.float32) for grad in gradients if grad is not None]
        limit = float(self.defaults["max_grad_norm"])
        self._over = Tensor(1.0, ms.float32)
        if known and limit > 0:
            norm = ops.sqrt(ops.stack([(grad * grad).sum() for grad in known]).sum())
            self._over = ops.maximum(norm / limit, self._over)
        return bool(super().construct(gradients))

    def move(self, place: int, grad: Any, group: Any, rate: Any) -> None:
        """Move one parameter."""
        param, decay = self.parameters[place], group["weight_decay"]
        beta1, beta2 = group["betas"]
        weight = param.value()
        grad = grad / self._over
        if decay and not self._of_weights:
            grad = grad + decay * weight
        share = 1 - beta1 if group["grad_averaging"] else 1.0
        mean = self.exp_avg[place].value() * beta1 + grad * share
        square = self.exp_avg_sq[place].value() * beta2 + grad * grad * (1 - beta2)
        ops.assign(self.exp_avg[place], mean)
        ops.assign(self.exp_avg_sq[place], square)
        if group["bias_correction"]:
            step = self.counts[place].value()
            mean, square = mean / bias(step, beta1), square / bias(step, beta2)
        update = mean / (ops.sqrt(square) + group["eps"])
        if decay and self._of_weights:
            update = update + decay * weight
        size = rate
        if decay or self._always:
            long, moved = _norm(weight), _norm(update)
            both = ops.logical_and(long != 0, moved != 0)
            size = rate * ops.where(both, long / moved, ops.ones_like(long))
        ops.assign(param, weight - size * update)


def _norm(x: Any) -> Any:
    return ops.sqrt((x * x).sum())

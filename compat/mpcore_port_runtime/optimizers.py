"""torch's optimizers, step by step as torch writes them for one tensor.

Source: ``_single_tensor_*`` in torch/optim/*.py, torch 2.13.0. Arguments that only choose a faster
loop there are not taken.
"""

from __future__ import annotations

from typing import Any, ClassVar

from mindspore import Parameter, Tensor, ops

from mpcore_port_runtime.groups import Optimizer, bias, decayed, raised

__all__ = [
    "SGD",
    "Adadelta",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "NAdam",
    "RAdam",
    "RMSprop",
]


def __dir__() -> list[str]:
    """Return the names that torch.optim has, too: scripts look for classes among them."""
    return [*__all__, "Optimizer"]


def _shift(slot: Parameter, goal: Tensor, share: float) -> Tensor:
    """Move a slot towards ``goal`` by a share of the way; return it."""
    ops.assign(slot, slot.value() + (goal - slot.value()) * share)
    return slot.value()


def _mix(slot: Parameter, square: Tensor, kept: float) -> Tensor:
    """Keep a share of a slot and add the rest of ``square``; return it."""
    ops.assign(slot, slot.value() * kept + square * (1 - kept))
    return slot.value()


class SGD(Optimizer):
    """torch.optim.SGD.

    A parameter that came twice has no momentum in both of its first moves: the slots are read
    in front of a step (_single_tensor_sgd in torch/optim/sgd.py, torch 2.13.0).
    """

    keeps: ClassVar[tuple[str, ...]] = ("momentum_buffer",)

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        momentum: float = 0,
        dampening: float = 0,
        weight_decay: float = 0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        if nesterov and (momentum <= 0 or dampening != 0):
            msg = "`nesterov` must be with momentum > 0 and dampening 0"
            raise ValueError(msg)
        defaults = {"lr": lr, "momentum": momentum, "dampening": dampening}
        more = {"weight_decay": weight_decay, "nesterov": nesterov, "maximize": maximize}
        super().__init__(params, defaults | more)

    def move(self, place: int, grad: Any, group: Any, rate: Any) -> None:
        """Move one parameter."""
        param = self.parameters[place]
        grad = decayed(group, param, grad)
        if group["momentum"]:
            slot = self.momentum_buffer[place]
            fresh = slot.value() * group["momentum"] + grad * (1 - group["dampening"])
            often = self.moves_a_step(param)
            if group["dampening"] or often > 1:  # what is first is not damped, nor added up
                fresh = ops.where(self.counts[place].value() <= often, grad, fresh)
            ops.assign(slot, fresh)
            grad = grad + fresh * group["momentum"] if group["nesterov"] else fresh
        ops.assign(param, param.value() - rate * grad)


class Adam(Optimizer):
    """torch.optim.Adam; MindSpore's adds eps before the correction of bias."""

    keeps: ClassVar[tuple[str, ...]] = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")
    decoupled: ClassVar[bool] = False

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
        decoupled_weight_decay: bool = False,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        more = {"amsgrad": amsgrad, "maximize": maximize}
        apart = {"decoupled_weight_decay": decoupled_weight_decay or self.decoupled}
        super().__init__(params, defaults | more | apart)

    def move(self, place: int, grad: Any, group: Any, rate: Any) -> None:
        """Move one parameter."""
        param = self.parameters[place]
        if group["decoupled_weight_decay"]:
            grad = -grad if group["maximize"] else grad
            ops.assign(param, param.value() * (1 - rate * group["weight_decay"]))
        else:
            grad = decayed(group, param, grad)
        beta1, beta2 = group["betas"]
        mean = _shift(self.exp_avg[place], grad, 1 - beta1)
        square = _mix(self.exp_avg_sq[place], grad * grad, beta2)
        if group["amsgrad"]:
            largest = self.max_exp_avg_sq[place]
            ops.assign(largest, ops.maximum(largest.value(), square))
            square = largest.value()
        step = self.counts[place].value()
        root = ops.sqrt(square / bias(step, beta2)) + group["eps"]
        ops.assign(param, param.value() - rate * (mean / bias(step, beta1)) / root)


class AdamW(Adam):
    """torch.optim.AdamW."""

    decoupled: ClassVar[bool] = True

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad, maximize=maximize)


class RMSprop(Optimizer):
    """torch.optim.RMSprop."""

    keeps: ClassVar[tuple[str, ...]] = ("square_avg", "grad_avg", "momentum_buffer")

    def __init__(
        self,
        params: Any,
        lr: float = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0,
        momentum: float = 0,
        centered: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        defaults = {"lr": lr, "alpha": alpha, "eps": eps, "weight_decay": weight_decay}
        more = {"momentum": momentum, "centered": centered, "maximize": maximize}
        super().__init__(params, defaults | more)

    def move(self, place: int, grad: Any, group: Any, rate: Any) -> None:
        """Move one parameter."""
        param = self.parameters[place]
        grad = decayed(group, param, grad)
        square = _mix(self.square_avg[place], grad * grad, group["alpha"])
        if group["centered"]:
            mean = _shift(self.grad_avg[place], grad, 1 - group["alpha"])
            square = square - mean * mean
        grad = grad / (ops.sqrt(square) + group["eps"])
        if group["momentum"] > 0:
            slot = self.momentum_buffer[place]
            ops.assign(slot, slot.value() * group["momentum"] + grad)
            grad = slot.value()
        ops.assign(param, param.value() - rate * grad)


class Adadelta(Optimizer):
    """torch.optim.Adadelta."""

    keeps: ClassVar[tuple[str, ...]] = ("square_avg", "acc_delta")

    def __init__(
        self,
        params: Any,
        lr: float = 1.0,
        rho: float = 0.9,
        eps: float = 1e-6,
        weight_decay: float = 0,
        *,
        maximize: bool = False,
    ) -> None:
        defaults = {"lr": lr, "rho": rho, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, defaults | {"maximize": maximize})

    def move(self, place: int, grad: Any, group: Any, rate: Any) -> None:
        """Move one parameter."""
        param, eps = self.parameters[place], group["eps"]
        grad = decayed(group, param, grad)
        square = _mix(self.square_avg[place], grad * grad, group["rho"])
        slot = self.acc_delta[place]
        delta = ops.sqrt(slot.value() + eps) / ops.sqrt(square + eps) * grad
        _mix(slot, delta * delta, group["rho"])
        ops.assign(param, param.value() - rate * delta)


class Adagrad(Optimizer):
    """torch.optim.Adagrad."""

    keeps: ClassVar[tuple[str, ...]] = ("sum",)

    def __init__(
        self,
        params: Any,
        lr: float = 1e-2,
        lr_decay: float = 0,
        weight_decay: float = 0,
        initial_accumulator_value: float = 0,
        eps: float = 1e-10,
        *,
        maximize: bool = False,
    ) -> None:
        defaults = {"lr": lr, "lr_decay": lr_decay, "weight_decay": weight_decay, "eps": eps}
        self._initial = float(initial_accumulator_value)
        super().__init__(params, defaults | {"maximize": maximize})

    def _start(self, name: str) -> Any:
        return self._initial

    def move(self, place: int, grad: Any, group: Any, rate: Any) -> None:
        """Move one parameter."""
        param, slot = self.parameters[place], self.sum[place]
        grad = decayed(group, param, grad)
        ops.assign(slot, slot.value() + grad * grad)
        rate = rate / (1 + (self.counts[place].value() - 1) * group["lr_decay"])
        ops.assign(param, param.value() - rate * grad / (ops.sqrt(slot.value()) + group["eps"]))


class Adamax(Optimizer):
    """torch.optim.Adamax."""

    keeps: ClassVar[tuple[str, ...]] = ("exp_avg", "exp_inf")

    def __init__(
        self,
        params: Any,
        lr: float = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        *,
        maximize: bool = False,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, defaults | {"maximize": maximize})

    def move(self, place: int, grad: Any, group: Any, rate: Any) -> None:
        """Move one parameter."""
        param, slot = self.parameters[place], self.exp_inf[place]
        grad = decayed(group, param, grad)
        beta1, beta2 = group["betas"]
        mean = _shift(self.exp_avg[place], grad, 1 - beta1)
        ops.assign(slot, ops.maximum(slot.value() * beta2, ops.abs(grad) + group["eps"]))
        rate = rate / bias(self.counts[place].value(), beta1)
        ops.assign(param, param.value() - rate * mean / slot.value())


class NAdam(Optimizer):
    """torch.optim.NAdam."""

    keeps: ClassVar[tuple[str, ...]] = ("exp_avg", "exp_avg_sq", "mu_product")

    def __init__(
        self,
        params: Any,
        lr: float = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        momentum_decay: float = 4e-3,
        decoupled_weight_decay: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        more = {"momentum_decay": momentum_decay, "maximize": maximize}
        apart = {"decoupled_weight_decay": decoupled_weight_decay}
        super().__init__(params, defaults | more | apart)

    def _start(self, name: str) -> Any:
        return "ones" if name == "mu_product" else "zeros"

    def move(self, place: int, grad: Any, group: Any, rate: Any) -> None:
        """Move one parameter."""
        param, slot = self.parameters[place], self.mu_product[place]
        grad = _alone(group, param, grad, rate)
        beta1, beta2 = group["betas"]
        step, decay = self.counts[place].value(), group["momentum_decay"]
        now = beta1 * (1 - 0.5 * raised(0.96, step * decay))
        later = beta1 * (1 - 0.5 * raised(0.96, (step + 1) * decay))
        ops.assign(slot, slot.value() * now)
        mean = _shift(self.exp_avg[place], grad, 1 - beta1)
        square = _mix(self.exp_avg_sq[place], grad * grad, beta2)
        root = ops.sqrt(square / bias(step, beta2)) + group["eps"]
        done = slot.value()
        moved = grad * (1 - now) / (1 - done) + mean * later / (1 - done * later)
        ops.assign(param, param.value() - rate * moved / root)


class RAdam(Optimizer):
    """torch.optim.RAdam."""

    keeps: ClassVar[tuple[str, ...]] = ("exp_avg", "exp_avg_sq")

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        decoupled_weight_decay: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        more = {"maximize": maximize, "decoupled_weight_decay": decoupled_weight_decay}
        super().__init__(params, defaults | more)

    def move(self, place: int, grad: Any, group: Any, rate: Any) -> None:
        """Move one parameter."""
        param = self.parameters[place]
        grad = _alone(group, param, grad, rate)
        beta1, beta2 = group["betas"]
        mean = _shift(self.exp_avg[place], grad, 1 - beta1)
        square = _mix(self.exp_avg_sq[place], grad * grad, beta2)
        step = self.counts[place].value()
        far, rest = 2 / (1 - beta2) - 1, bias(step, beta2)
        length = far - 2 * step * (1 - rest) / rest
        share = (length - 4) * (length - 2) * far / ((far - 4) * (far - 2) * length)
        rectified = ops.sqrt(ops.maximum(share, ops.zeros_like(share)))
        adaptive = ops.sqrt(rest) / (ops.sqrt(square) + group["eps"]) * rectified
        factor = ops.where(length > 5, adaptive, ops.ones_like(adaptive))
        ops.assign(param, param.value() - rate * mean / bias(step, beta1) * factor)


def _alone(group: Any, param: Any, grad: Any, rate: Any) -> Any:
    """Return the gradient after a decay that is either part of it or apart from it."""
    if not group["decoupled_weight_decay"]:
        return decayed(group, param, grad)
    ops.assign(param, param.value() * (1 - rate * group["weight_decay"]))
    return -grad if group["maximize"] else grad

"""What every optimizer of a port has: torch's parameter groups, slots, and steps without gradients.

MindSpore's own compile their step over a group's numbers and over the memory of the parameters:
a rate that is set as ``group["lr"] = x`` or a ``param.data`` that is assigned goes unseen, and a
parameter without a gradient moves all the same (mindspore 2.10.0, experimental.optim).
"""

from __future__ import annotations

import warnings
from collections import Counter
from typing import TYPE_CHECKING, Any, ClassVar

import mindspore as ms
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, ops
from mindspore.experimental import optim

from mpcore_port_runtime.rates import Group
from mpcore_port_runtime.refusal import PortWarning
from mpcore_port_runtime.slots import States

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Optimizer", "bias", "decayed", "raised"]


def raised(base: float, exponent: Any) -> Any:
    """Return ``base`` to a power that is a tensor."""
    return ops.pow(Tensor(base, ms.float32), exponent)


def bias(step: Any, beta: float) -> Any:
    """Return 1 - beta**step; the plain difference loses four digits in float32."""
    if beta == 0:
        return Tensor(1.0, ms.float32)
    return -ops.expm1(step * float(np.log(beta)))


def decayed(group: Any, param: Any, grad: Any) -> Any:
    """Return a gradient as an optimizer with L2 sees it, turned round where it maximises."""
    if group["maximize"]:
        grad = -grad
    weight_decay = group["weight_decay"]
    return grad + weight_decay * param.value() if weight_decay else grad


def _apart(param_group: dict[str, Any], held: Iterable[Any]) -> dict[str, Any]:
    """Return a group whose parameters have names of their own: two networks of a class share some.

    MindSpore wants them so; states go by the paths of layers.
    """
    given = param_group["params"]
    params = [given] if isinstance(given, Parameter) else given
    params = params if isinstance(params, set) else list(params)
    taken = {param.name: param for param in held}
    for param in params:
        name, number = getattr(param, "name", ""), 1
        while taken.get(name, param) is not param:
            number += 1
            name = f"{param.name}_{number}"
        if name != getattr(param, "name", ""):
            param.name = name
        taken[name] = param
    return {**param_group, "params": params}


class Optimizer(optim.Optimizer):  # type: ignore[misc]  # untyped
    """Runs ``move`` on each parameter that has a gradient, with the numbers its group has now.

    Attributes:
        keeps: names of the slots, each a value of every parameter's shape.
        counts: for each parameter how often it moved, float32.
    """

    parameters: Any
    counts: Any
    keeps: ClassVar[tuple[str, ...]] = ()
    takes_none: ClassVar[bool] = True

    def __init__(self, params: Any, defaults: dict[str, Any], first: float = 0.0) -> None:
        rate = defaults["lr"]
        given = float(rate)
        super().__init__(params, defaults | {"lr": given})
        self._first = first
        self._wrap(range(len(self.param_groups)), given)
        self._grow(self.parameters)
        self.state = States(self)

    def _wrap(self, numbers: Iterable[int], rate: float) -> None:
        for number in numbers:
            group = self.param_groups[number]
            if not isinstance(group, Group):
                self.param_groups[number] = Group(group, rate)

    def _grow(self, params: Any) -> None:
        held = ParameterTuple(tuple(params))
        start = len(getattr(self, "counts", ()))
        for name in self.keeps:
            fresh = held.clone(prefix=name, init=self._start(name))
            setattr(self, name, ParameterTuple((*getattr(self, name, ()), *fresh)))
        counts = [
            Parameter(Tensor(0.0, ms.float32), name=f"count_{start + place}", requires_grad=False)
            for place in range(len(held))
        ]
        self.counts = ParameterTuple((*getattr(self, "counts", ()), *counts))

    def _start(self, name: str) -> Any:
        return "zeros"

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group; its parameters start as fresh ones."""
        before = len(self.parameters)
        param_group = self._once(_apart(param_group, self.parameters))
        rate = float(dict(param_group).get("lr", self.defaults["lr"]))
        super().add_param_group(dict(param_group))
        if hasattr(self, "counts"):
            self.parameters = ParameterTuple(tuple(self.parameters))
            self._wrap([len(self.param_groups) - 1], rate)
            self._grow(self.parameters[before:])
        else:
            self.param_groups[-1] = Group(self.param_groups[-1], rate)

    def _once(self, param_group: dict[str, Any]) -> dict[str, Any]:
        """Return a group that has each parameter once; one that came twice moves twice."""
        given = param_group["params"]
        if isinstance(given, set):
            return param_group  # refused below, as in torch
        params = list({id(param): param for param in given}.values())
        if len(params) < len(given):
            text = "an optimizer has a parameter twice and moves it twice, as torch's does"
            warnings.warn(text, PortWarning, stacklevel=4)
            self.__dict__.setdefault("_often", {}).update(Counter(map(id, given)))
        return {**param_group, "params": params}

    def moves_a_step(self, param: Any) -> int:
        """Return how often a step moves a parameter: as often as its group was given it."""
        return int(self.__dict__.get("_often", {}).get(id(param), 1))

    def construct(self, gradients: Any) -> bool:
        """Apply one step; ``gradients`` as ``parameters``, None where there is none."""
        held = isinstance(gradients, list)  # what parameters kept: of one frozen since, too
        for number, group in enumerate(self.param_groups):
            rate = self.lrs[number]
            for place in range(self.group_start_id[number], self.group_start_id[number + 1]):
                if gradients[place] is None:
                    continue
                if not held and not self.parameters[place].requires_grad:
                    continue  # as torch, which has no gradient there: weight decay and all
                for _ in range(self.moves_a_step(self.parameters[place])):
                    count = self.counts[place]
                    ops.assign(count, count.value() + 1)
                    self.move(place, gradients[place], group, rate)
        return True

    def move(self, place: int, grad: Any, group: Any, rate: Any) -> None:
        """Move one parameter."""
        raise NotImplementedError

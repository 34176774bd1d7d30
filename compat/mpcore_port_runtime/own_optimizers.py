"""What optimizers that a script writes itself have from torch.optim.Optimizer.

Source: torch/optim/optimizer.py, torch 2.13.0. Their ``step`` reads ``param.grad``; steps of
MindSpore's form hand gradients in by a call.
"""

from __future__ import annotations

from collections import defaultdict
from functools import wraps
from typing import TYPE_CHECKING, Any, ClassVar

from mindspore import Parameter, Tensor, ops

from mpcore_port_runtime import recorded

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["OwnOptimizer", "required"]


class _Required:
    """Stands for a value that each group has to bring along."""

    def __repr__(self) -> str:
        return "<required parameter>"


required = _Required()
"""torch.optim.optimizer.required: the default of what has none."""


class OwnOptimizer:
    """The base of an optimizer with a ``step`` of its own.

    Attributes:
        defaults: what a group has where it says nothing else.
        param_groups: dictionaries, their Parameters under ``"params"``.
        state: what a step keeps of each Parameter.
    """

    takes_none: ClassVar[bool] = True

    def __init_subclass__(cls, **given: Any) -> None:
        """Have a step record nothing, but by a closure: it changes ``p.data``."""
        super().__init_subclass__(**given)
        if "step" in vars(cls):
            cls.step = _unrecorded(cls.step)  # type: ignore[method-assign]

    def __init__(self, params: Any, defaults: dict[str, Any]) -> None:
        if isinstance(params, (Parameter, Tensor)):
            msg = f"`params` must be several Parameters or groups of such, got {type(params)}"
            raise TypeError(msg)
        groups = list(params)
        if not groups:
            msg = "`params` must hold Parameters, got an empty list"
            raise ValueError(msg)
        self.defaults = dict(defaults)
        self.param_groups: list[dict[str, Any]] = []
        self.state: dict[Any, Any] = defaultdict(dict)
        if not isinstance(groups[0], dict):
            groups = [{"params": groups}]
        for group in groups:
            self.add_param_group(group)

    @property
    def parameters(self) -> tuple[Any, ...]:
        """All Parameters, in the order of the groups."""
        return tuple(param for group in self.param_groups for param in group["params"])

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group; what it does not say is as in ``defaults``."""
        given = param_group["params"]
        group = {**param_group, "params": [given] if isinstance(given, Tensor) else list(given)}
        held = {id(param) for param in self.parameters}
        if held & {id(param) for param in group["params"]}:
            msg = "`params` must be in one group alone, some are in several"
            raise ValueError(msg)
        for name, default in self.defaults.items():
            if default is required and name not in group:
                msg = f"a group must have a value for `{name}`"
                raise ValueError(msg)
            group.setdefault(name, default)
        self.param_groups.append(group)

    def __call__(self, gradients: Sequence[Any]) -> bool:
        """Run one step with gradients, in the order of ``parameters``."""
        held = self.parameters
        for param, grad in zip(held, gradients, strict=True):
            param.grad = grad
        self.step()
        for param in held:
            param.grad = None
        return True

    def step(self, closure: Any = None) -> Any:
        """Move the Parameters; classes write it."""
        raise NotImplementedError

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients, or make zeros of those that are there."""
        for param in self.parameters:
            known = getattr(param, "grad", None)
            param.grad = None if set_to_none or known is None else ops.zeros_like(known)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take attributes over, as copies do."""
        self.__dict__.update(state)

    def state_dict(self) -> dict[str, Any]:
        """Return copies of the state by the Parameters' numbers, and groups; no functions."""
        numbers = {id(param): number for number, param in enumerate(self.parameters)}
        state = {numbers[id(param)]: _kept(value) for param, value in self.state.items()}
        return {
            "state": state,
            "param_groups": [
                {name: value for name, value in group.items() if not _is_left(name, value)}
                | {"params": [numbers[id(param)] for param in group["params"]]}
                for group in self.param_groups
            ],
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take what ``state_dict`` returned."""
        held, groups = self.parameters, state_dict["param_groups"]
        sizes = [len(group["params"]) for group in groups]
        if sizes != [len(group["params"]) for group in self.param_groups]:
            msg = f"`state_dict` must have groups of the same sizes, got {sizes}"
            raise ValueError(msg)
        self.state = defaultdict(dict)
        for number, value in state_dict["state"].items():
            self.state[held[int(number)]] = _kept(value)
        for own, other in zip(self.param_groups, groups, strict=True):
            own.update({name: value for name, value in other.items() if name != "params"})


def _is_left(name: str, value: Any) -> bool:
    return name == "params" or callable(value)


def _kept(value: Any) -> Any:
    """Return a value of a state with tensors of its own."""
    if isinstance(value, dict):
        return {name: _kept(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_kept(one) for one in value)
    return value.copy() if isinstance(value, Tensor) else value


def _unrecorded(step: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(step)
    def stepped(self: Any, *args: Any, **kwargs: Any) -> Any:
        if any(callable(one) for one in (*args, *kwargs.values())):  # a closure
            return step(self, *args, **kwargs)
        with recorded.unrecorded():
            return step(self, *args, **kwargs)

    return stepped

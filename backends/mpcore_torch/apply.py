"""Carry out a plan on a torch.nn.Module: every layer's ``forward`` is replaced on the instance.

A replaced forward costs nothing measurable, a nested autocast region about 35 us a layer.
The replacement is a bound method that holds only dtypes, so ``copy.deepcopy`` of the model
(for an average of the weights, say) gives a copy that uses its own weights.
"""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

from mpcore.errors import BackendError
from mpcore_torch.layers import leaves

if TYPE_CHECKING:
    from collections.abc import Callable

    from mpcore.plan import LayerPlan, Plan

__all__ = ["apply_plan", "cast_floats", "replace_forward", "store_low"]

Forward = "Callable[..., Any]"


def cast_floats(value: Any, dtype: torch.dtype) -> Any:
    """Return ``value`` with every floating-point tensor in it as ``dtype``; nests in containers."""
    if isinstance(value, torch.Tensor):
        return value.to(dtype) if value.is_floating_point() else value
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(cast_floats(item, dtype) for item in value))
    if isinstance(value, tuple | list):
        return type(value)(cast_floats(item, dtype) for item in value)
    if isinstance(value, dict):
        return {key: cast_floats(item, dtype) for key, item in value.items()}
    return value


def replace_forward(module: nn.Module, make: Callable[[Callable[..., Any]], Any]) -> None:
    """Put ``make(original)`` in the place of ``module.forward``; both take ``self`` first."""
    if "forward" in vars(module):
        bound = vars(module)["forward"]

        def original(_self: nn.Module, *args: Any, **kwargs: Any) -> Any:
            return bound(*args, **kwargs)

    else:
        original = type(module).forward
    new = make(original)
    new.mpcore = True
    # object.__setattr__: a bound method of itself is no submodule.
    object.__setattr__(module, "forward", types.MethodType(new, module))


def is_prepared(module: nn.Module) -> bool:
    """Return whether ``module.forward`` is one of ours."""
    return getattr(vars(module).get("forward"), "mpcore", False)


def apply_plan(model: nn.Module, plan: Plan) -> None:
    """Replace the forward of every leaf that the plan gives a dtype to.

    Raises:
        BackendError: the model was prepared before.
    """
    modules = leaves(model)
    if any(is_prepared(module) for module in modules.values()):
        msg = f"`model` must not be prepared twice, this {type(model).__name__} was; build it anew"
        raise BackendError(msg)
    if plan.policy.compute == "float32" and not plan.policy.rules:
        return  # nothing is cast anywhere
    for entry in plan.layers:
        if entry.compute not in ("follow", "op"):
            replace_forward(modules[entry.path], _maker(modules[entry.path], entry, plan))


def _maker(module: nn.Module, entry: LayerPlan, plan: Plan) -> Callable[[Any], Any]:
    compute, output = getattr(torch, entry.compute), getattr(torch, entry.output)
    in_region = plan.policy.by == "op"
    if entry.category == "embedding" and not in_region:
        # Rounding rows after the look-up equals looking up rounded rows, without the table.
        return lambda original: _cast_output(original, output)
    if type(module).forward is nn.Linear.forward and not in_region:
        return lambda _: _linear(compute)
    if isinstance(module, nn.modules.conv._ConvNd) and not in_region and _plain_conv(module):
        return lambda _: _conv(compute)
    if entry.category == "norm" and not in_region and compute == torch.float32:
        return lambda original: _norm(original, output)
    return lambda original: _general(original, compute, output, leave_region=in_region)


def _plain_conv(module: nn.Module) -> bool:
    return type(module).forward in (nn.Conv1d.forward, nn.Conv2d.forward, nn.Conv3d.forward)


def _cast_output(original: Any, output: torch.dtype) -> Any:
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return cast_floats(original(self, *args, **kwargs), output)

    return forward


def _linear(compute: torch.dtype) -> Any:
    def forward(self: nn.Linear, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - torch's name
        bias = self.bias
        return functional.linear(
            input.to(compute), self.weight.to(compute), None if bias is None else bias.to(compute)
        )

    return forward


def _conv(compute: torch.dtype) -> Any:
    def forward(self: Any, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - torch's name
        bias = self.bias
        return self._conv_forward(
            input.to(compute), self.weight.to(compute), None if bias is None else bias.to(compute)
        )

    return forward


def _norm(original: Any, output: torch.dtype) -> Any:
    def forward(self: nn.Module, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - torch's name
        if input.dtype == output and input.device.type == "cpu":
            # These kernels compute in float32 and round once; a cast before would cost a pass.
            return original(self, input)
        return original(self, input.float()).to(output)

    return forward


def _general(
    original: Any, compute: torch.dtype, output: torch.dtype, *, leave_region: bool
) -> Any:
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        args, kwargs = cast_floats(args, compute), cast_floats(kwargs, compute)
        with _CastParameters(self, compute):
            if not leave_region:
                return cast_floats(original(self, *args, **kwargs), output)
            device = next((a.device.type for a in args if isinstance(a, torch.Tensor)), "cpu")
            with torch.autocast(device, enabled=False):
                return cast_floats(original(self, *args, **kwargs), output)

    return forward


class _CastParameters:
    """While active, the parameters of a module and those inside read as ``dtype``."""

    def __init__(self, module: nn.Module, dtype: torch.dtype) -> None:
        self._module = module
        self._dtype = dtype

    def __enter__(self) -> None:
        self._saved = []
        for module in self._module.modules():
            own = dict(module._parameters)
            casts = {n: None if p is None else cast_floats(p, self._dtype) for n, p in own.items()}
            if any(casts[name] is not own[name] for name in own):
                self._saved.append((module, own))
                module._parameters.update(casts)  # type: ignore[arg-type]  # tensors for a while
                _refresh_recurrent(module)

    def __exit__(self, *exc: object) -> None:
        for module, own in self._saved:
            module._parameters.update(own)
            _refresh_recurrent(module)


def _refresh_recurrent(module: nn.Module) -> None:
    # RNNBase keeps a list of its weights besides the parameters.
    if isinstance(module, nn.RNNBase):
        names = module._flat_weights_names
        module._flat_weights = [module._parameters.get(name) for name in names]


def store_low(model: nn.Module, plan: Plan) -> list[tuple[nn.Parameter, nn.Parameter]]:
    """Give ``model`` 16-bit parameters where the plan says so.

    The float32 parameters stay what they are, and stay in the optimizer: they become the
    masters, made before any rounding. Tied parameters stay tied.

    Returns:
        Pairs (16-bit parameter in the model, its float32 master), each master once.
    """
    modules, made = leaves(model), dict[nn.Parameter, nn.Parameter]()
    for entry in plan.layers:
        if entry.param in ("", "float32"):
            continue
        dtype = getattr(torch, entry.param)
        inside = modules[entry.path]
        for module in inside.modules() if entry.category != "container" else [inside]:
            for name, param in list(module._parameters.items()):
                if param is None or not param.is_floating_point():
                    continue
                if param not in made:
                    made[param] = nn.Parameter(param.detach().to(dtype), param.requires_grad)
                module._parameters[name] = made[param]
            _refresh_recurrent(module)
    return [(low, master) for master, low in made.items()]

"""What ``amp.initialize`` does to a model: the policy, casts at its ends, state in float32."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

import mpcore as mp
from mpcore_torch.shims import apply_plan, cast_floats, replace_forward, store_low

if TYPE_CHECKING:
    from collections.abc import Callable

    from mpcore.policy.policy import Policy

__all__ = ["Ends", "check_model", "prepare_model"]

_LOW = (torch.float16, torch.bfloat16)
Pairs = list[tuple[nn.Parameter, nn.Parameter]]


class Ends:
    """What happens where a model is entered and left.

    Args:
        input: dtype that floating-point inputs are cast to, or None.
        output: dtype that outputs are cast to, or None.
        autocast: dtype of the autocast region around the model, or None.
        enters: called before a training pass.
        casts: whether that region opens now.
    """

    def __init__(
        self,
        input: torch.dtype | None,
        output: torch.dtype | None,
        autocast: torch.dtype | None,
        enters: Callable[[], None],
        casts: Callable[[], bool],
    ) -> None:
        self.input, self.output, self.autocast = input, output, autocast
        self.enters, self.casts = enters, casts

    def region(self, device: str) -> Any:
        """Return the context that the model runs in."""
        if self.autocast is None or not self.casts():
            return contextlib.nullcontext()
        return torch.autocast(device, self.autocast)

    def wrap(self, model: nn.Module) -> None:
        """Stand around ``model.forward``."""
        device = device_of(model)

        def make(original: Any) -> Any:
            def forward(root: nn.Module, *args: Any, **kwargs: Any) -> Any:
                if root.training and torch.is_grad_enabled():
                    self.enters()
                if self.input is not None:
                    args, kwargs = cast_floats(args, self.input), cast_floats(kwargs, self.input)
                with self.region(device):
                    result = original(root, *args, **kwargs)
                return result if self.output is None else cast_floats(result, self.output)

            return forward

        replace_forward(model, make)


def device_of(model: nn.Module) -> str:
    """Return the type of the device that ``model`` is on."""
    return next((param.device.type for param in model.parameters()), "cpu")


def check_model(model: nn.Module, *, any_dtype: bool) -> None:
    """Raise RuntimeError for a model that apex refuses, other than for not being on CUDA.

    Args:
        model: the model.
        any_dtype: let 16-bit parameters and buffers pass.
    """
    if isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel):
        msg = (
            f"`models` must go through amp.initialize before they are wrapped, got a "
            f"{type(model).__name__}"
        )
        raise RuntimeError(msg)
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.dtype in _LOW and not any_dtype:
            msg = (
                f"`models` must hold float32 parameters and buffers, {name} is {tensor.dtype}; "
                "amp.initialize casts them as opt_level says"
            )
            raise RuntimeError(msg)


def prepare_model(model: nn.Module, policy: Policy, ends: Ends, *, buffers: bool) -> Pairs:
    """Carry ``policy`` out on ``model`` in place.

    Args:
        model: a float32 model.
        policy: what runs in which dtype.
        ends: what happens where the model is entered and left.
        buffers: store buffers in 16 bits too, other than those of layers kept in float32; where
            False those of layers with 16-bit parameters alone.

    Returns:
        Pairs (16-bit parameter of the model, its float32 original), as ``store_low``.
    """
    pairs: Pairs = []
    if policy.by == "model":
        model.to(torch.float32)
        plan = mp.explain(model, policy)
        apply_plan(model, plan)
        pairs = store_low(model, plan)
        _lower_buffers(model, getattr(torch, policy.param), every=buffers)
        masters = dict(pairs) if policy.master == "copy" else {}
        for module in model.modules():
            module.register_state_dict_post_hook(_SaveFull(masters))
    elif ends.input is not None:
        model.to(ends.input)
    ends.wrap(model)
    return pairs


def _lower_buffers(model: nn.Module, dtype: torch.dtype, *, every: bool) -> None:
    # A batch normalisation computes with parameters and statistics of one dtype.
    for module in model.modules():
        dtypes = {param.dtype for param in module._parameters.values() if param is not None}
        kept = isinstance(module, nn.modules.batchnorm._BatchNorm) and torch.float32 in dtypes
        if dtype in dtypes or (every and not kept):
            for name, buffer in module._buffers.items():
                if buffer is not None:
                    module._buffers[name] = cast_floats(buffer, dtype)


class _SaveFull:
    """Hook of state_dict: 16-bit tensors are saved as float32, from their masters if any.

    apex saves them as float32 too, rounded. A copy of the model has other parameters, so the
    hook goes with it empty, and saves those.
    """

    def __init__(self, masters: dict[nn.Parameter, nn.Parameter]) -> None:
        self._masters = masters

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), ({},)

    def __call__(self, module: nn.Module, state: dict[str, Any], prefix: str, _: Any) -> None:
        """Replace the parameters of ``module`` itself; see ``register_state_dict_post_hook``."""
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is None or prefix + name not in state or tensor.dtype not in _LOW:
                continue
            master = self._masters.get(tensor) if isinstance(tensor, nn.Parameter) else None
            state[prefix + name] = (tensor if master is None else master).detach().float()

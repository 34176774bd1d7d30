"""The calls of a torch step, each run alone, forward and backward, as a plan has it.

A layer is run as a copy to which its part of the plan is applied, a function in the region of the
policy: what runs alone is what runs in a step, casts included. A tensor that came twice comes
twice, and the gradients that come back are those of a real backward pass: zeros are faster than
numbers in some kernels. Where several calls take one tensor, the sum of their gradients is a call.
Tried with torch 2.13.0 on CPU.
"""

from __future__ import annotations

import copy
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mpcore.backend.calls import Ready
from mpcore.errors import MpcoreError
from mpcore.policy.plan import Plan
from mpcore_torch.call_samples import GRADIENT_SUM, ROOT, dtype_name, go_back, hear, is_float
from mpcore_torch.casting import apply_plan, cast_floats
from mpcore_torch.layers import device_of
from mpcore_torch.op_list import OpList, op_list_of, region

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mpcore.backend.calls import ModelCall, Said
    from mpcore_torch.call_samples import Sample

__all__ = ["TorchCalls", "calls"]

_REFUSALS = (RuntimeError, TypeError, ValueError, MpcoreError)
_NOTHING = torch.zeros(())
_INPUTS = ((True, True), (False, True), (True, False))
"""How a call is tried, as (inputs are leaves of the graph, gradients come back): what works in
place refuses leaves."""


def calls(model: nn.Module, loss_fn: Callable[..., Any], batch: tuple[Any, ...]) -> TorchCalls:
    """Return the calls of one step of a model that is not prepared."""
    heard, samples = hear(model, loss_fn, batch)
    return TorchCalls(heard, samples, model, partial(loss_fn, *batch))


class _Kernels(TorchDispatchMode):  # type: ignore[misc]  # torch is untyped here
    """Notes what runs below autograd and autocast, forward and backward.

    Attributes:
        ran: each with the shapes and dtypes that came in.
    """

    def __init__(self) -> None:
        super().__init__()
        self.ran: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run a kernel and note it."""
        kwargs = kwargs or {}
        came = [
            f"{dtype_name(item)}{tuple(item.shape)}"
            if isinstance(item, torch.Tensor)
            else f"{item}"
            for item in tree_leaves((args, kwargs))
        ]
        self.ran.append(f"{func} {' '.join(came):.500}")
        return func(*args, **kwargs)


class TorchCalls:
    """Calls of one step; see ``mpcore.backend.calls.Calls``."""

    def __init__(
        self,
        calls: tuple[ModelCall, ...],
        samples: dict[str, Sample],
        model: nn.Module,
        forward: Callable[[], Any],
    ) -> None:
        self.calls, self._samples, self._model = calls, samples, model
        self._device, self._forward = device_of(model).type, forward

    def ready(self, index: int, said: Said, came: tuple[str, ...]) -> Ready | None:
        """Return a call with inputs of those dtypes; None where it cannot be run alone."""
        sample = self._samples[self.calls[index].key]
        try:
            called, enter = self._called(sample.called, said)
        except _REFUSALS:  # what was computed cannot be copied, say
            return None
        tensors = [
            sample.given.items[place].to(getattr(torch, dtype))
            for place, dtype in zip(sample.given.floats, came, strict=True)
        ]
        for is_leaf, wants in _INPUTS:
            grads = sample.given.grads if wants else (False,) * len(tensors)
            own = [_input(t, grad, is_leaf) for t, grad in zip(tensors, grads, strict=True)]
            try:
                return _ready(called, enter, sample, own)
            except _REFUSALS:
                continue
        return None

    def step(self, *, listed: bool) -> Callable[[], Any]:
        """Return a step in autocast, forward and backward, under an op list or under none.

        torch itself takes microseconds for each function that a mode hears, and in autocast more.
        """
        mode = OpList(self._device, {}) if listed else None

        def run() -> Any:
            with region(self._device, torch.bfloat16, mode):
                loss = self._forward()
            with nullcontext() if mode is None else mode:
                go_back(loss, self._model)
            return loss

        return run

    def _called(self, called: Any, said: Said) -> tuple[Any, Callable[[], Any]]:
        """Return what is called as the plan has it, and the region that it is called in."""
        policy = said.policy
        if called is GRADIENT_SUM:
            return torch.Tensor.add_, nullcontext
        if called is ROOT:
            output = getattr(torch, policy.output)
            return lambda value: cast_floats(value, output), nullcontext
        entries = () if said.entry is None else (said.entry,)
        # A list that meets nothing here is heard by the whole step: see `step`.
        plan = Plan(policy, entries, (), said.listed if said.ops else ())
        if isinstance(called, nn.Module):
            called = copy.deepcopy(called)
            apply_plan(called, plan)
        if policy.by != "op" or policy.compute == "float32":
            return called, nullcontext
        model = called if isinstance(called, nn.Module) else nn.Identity()
        mode = op_list_of(model, plan, self._device)
        dtype = getattr(torch, policy.compute)
        return called, lambda: region(self._device, dtype, mode)


class _Inner(torch.autograd.Function):  # type: ignore[misc]  # torch is untyped here
    """Hands a tensor on as a result of the graph."""

    @staticmethod
    def forward(ctx: Any, root: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
        """Return the same numbers in the same memory."""
        return tensor.detach()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Take the gradient and do nothing with it."""
        return _NOTHING, None


class _Input(NamedTuple):
    """A float tensor that a call gets.

    Attributes:
        tensor: made anew for a call where it is no leaf.
        root: what its gradient is asked of; None where none comes back.
    """

    tensor: Callable[[], torch.Tensor]
    root: torch.Tensor | None


def _input(tensor: torch.Tensor, wants: bool, is_leaf: bool) -> _Input:
    leaf = tensor.detach().requires_grad_(wants and is_leaf)
    if is_leaf or not wants:
        return _Input(lambda: leaf, leaf if wants else None)
    root = torch.zeros((), requires_grad=True)
    return _Input(lambda: _Inner.apply(root, leaf), root)


def _ready(called: Any, enter: Callable[[], Any], sample: Sample, own: Sequence[_Input]) -> Ready:
    first_of = sample.given.same
    wanted = [one.root for i, one in enumerate(own) if one.root is not None and first_of[i] == i]
    if isinstance(called, nn.Module):
        wanted += [p for p in called.parameters() if p.requires_grad]

    def forward() -> list[Any]:
        tensors = [one.tensor() for one in own]
        args, kwargs = sample.given.with_floats([tensors[first] for first in first_of])
        with enter():
            result = called(*args, **kwargs)
        return [one for one in tree_leaves(result) if is_float(one)]

    first = forward()
    went = tuple(dtype_name(one) for one in first)
    came = sample.gradients or dict.fromkeys(range(len(first)))
    places = [i for i, one in enumerate(first) if one.requires_grad and i in came]
    grads = [_gradient(came[i], first[i]) for i in places]
    if not wanted or not places:
        return Ready(forward, went, _kernels(forward))

    def both() -> None:
        results = forward()
        torch.autograd.grad([results[i] for i in places], wanted, grads, allow_unused=True)

    both()
    return Ready(both, went, _kernels(both))


def _gradient(came: torch.Tensor | None, result: torch.Tensor) -> torch.Tensor:
    """Return what comes back to a result: what came back in a step, or ones."""
    if came is None or came.shape != result.shape:
        return torch.ones_like(result)
    return came.to(result.dtype)


def _kernels(run: Callable[[], Any]) -> tuple[str, ...] | None:
    heard = _Kernels()
    try:
        with heard:
            run()
    except _REFUSALS:  # what runs below may be of a kind that no mode takes
        return None
    return tuple(heard.ran)

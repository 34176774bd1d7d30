"""The calls of a torch step, each run alone, forward and backward, as a plan has it.

Layers are heard through hooks, functions that are called outside of them through a
TorchFunctionMode. A layer is run as a copy to which its part of the plan is applied, a function in
the region of the policy: what runs alone is what runs in a step, casts included.
Tried with torch 2.13.0 on CPU.
"""

from __future__ import annotations

import copy
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from mpcore.backend.calls import ModelCall, Ready
from mpcore.errors import MpcoreError
from mpcore.policy.plan import Plan
from mpcore_torch.casting import apply_plan, cast_floats
from mpcore_torch.layers import device_of, leaves, list_layers
from mpcore_torch.op_list import OpList, op_list_of, region
from mpcore_torch.tap import OPS, layer_calls

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mpcore.backend.calls import Said

__all__ = ["TorchCalls", "calls"]

_ROOT = "output of the model"
_REFUSALS = (RuntimeError, TypeError, ValueError, MpcoreError)


@dataclass(frozen=True)
class _Given:
    """What a call got: arguments flat, and which of them are float tensors."""

    items: list[Any]
    shape: Any
    floats: tuple[int, ...]
    grads: tuple[bool, ...]

    def with_floats(self, tensors: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return arguments with other float tensors."""
        items = [*self.items]
        for place, tensor in zip(self.floats, tensors, strict=True):
            items[place] = tensor
        args, kwargs = tree_unflatten(items, self.shape)
        return args, kwargs


@dataclass(frozen=True)
class _Sample:
    """One of alike calls: what was called, with what."""

    called: Any
    given: _Given


def calls(model: nn.Module, loss_fn: Callable[..., Any], batch: tuple[Any, ...]) -> TorchCalls:
    """Return the calls of one forward pass of a model that is not prepared."""
    heard = _Heard(model)
    with heard.layers(), heard:
        loss_fn(*batch)
    device = device_of(model).type
    return TorchCalls(tuple(heard.calls), heard.samples, device, partial(loss_fn, *batch))


def _is_float(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


class _Heard(TorchFunctionMode):  # type: ignore[misc]  # torch is untyped here
    """Hears a forward pass.

    Attributes:
        calls: in order.
        samples: by key, the first of alike calls.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.calls: list[ModelCall] = []
        self.samples: dict[str, _Sample] = {}
        self._root = model
        inside = {
            e.path for e in list_layers(model) if e.category not in ("container", "parameters")
        }
        self._modules = {p: m for p, m in leaves(model).items() if p in inside or not p}
        self._leaves = inside
        self._open: list[tuple[str, _Given | None]] = []
        self._made: dict[int, tuple[int, int]] = {}
        self._kept: list[Any] = []  # an id stands for one tensor while that lives

    def layers(self) -> Any:
        """Return what hears layers."""
        return layer_calls(self._modules, self._enter, self._leave)

    @property
    def _inside(self) -> bool:
        return any(given is not None for _, given in self._open)

    def _enter(self, path: str, module: nn.Module, given: Any) -> None:
        is_call = path in self._leaves and not self._inside
        self._open.append((path, _taken(given) if is_call else None))

    def _leave(self, path: str, output: Any) -> None:
        while self._open:
            own, given = self._open.pop()
            if own != path:
                continue
            if given is not None:
                module = self._modules[path]
                home = "" if type(module).__module__.startswith("torch.nn") else path
                self._note(path, "", f"{home} {module!r}", module, given, output)
            if not path:
                self._note(None, "", _ROOT, _ROOT, _taken(((output,), {})), output)
            return

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run a function and note it."""
        kwargs = kwargs or {}
        if self._inside:
            return func(*args, **kwargs)
        given = _taken((args, kwargs))
        result = func(*args, **kwargs)
        if given.floats:
            name = str(resolve_name(func) or getattr(func, "__name__", func))
            self._note(None, OPS.neutral(name), name, func, given, result)
        return result

    def _note(
        self, layer: str | None, op: str, name: str, called: Any, given: _Given, result: Any
    ) -> None:
        results = [one for one in tree_leaves(result) if _is_float(one)]
        if not results:
            return
        tensors = [given.items[place] for place in given.floats]
        key = _key(name, given)
        if key not in self.samples:
            kept = replace(given, items=[_kept(item) for item in given.items])
            self.samples[key] = _Sample(called, kept)
        came = tuple(self._made.get(id(one), _dtype(one)) for one in tensors)
        self.calls.append(ModelCall(layer, op, key, came))
        self._kept += [*results, *tensors]
        for place, one in enumerate(results):
            self._made[id(one)] = len(self.calls) - 1, place


def _taken(given: Any) -> _Given:
    items, shape = tree_flatten(given)
    floats = tuple(i for i, item in enumerate(items) if _is_float(item))
    return _Given(items, shape, floats, tuple(items[i].requires_grad for i in floats))


def _kept(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    with torch.no_grad():
        return value.detach().clone()  # it keeps its strides


def _key(name: str, given: _Given) -> str:
    """Return what tells calls apart that take another time."""
    words = [name]
    for item in given.items:
        if isinstance(item, torch.Tensor):
            words.append(
                f"{_dtype(item) if not _is_float(item) else ''}{tuple(item.shape)}"
                f"{item.stride()}{item.requires_grad:d}"
            )
        else:
            words.append(f"{item!r:.60}")
    return " ".join(words)


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
            f"{_dtype(item)}{tuple(item.shape)}" if isinstance(item, torch.Tensor) else f"{item}"
            for item in tree_leaves((args, kwargs))
        ]
        self.ran.append(f"{func} {' '.join(came):.500}")
        return func(*args, **kwargs)


class TorchCalls:
    """Calls of one step; see ``mpcore.backend.calls.Calls``."""

    def __init__(
        self,
        calls: tuple[ModelCall, ...],
        samples: dict[str, _Sample],
        device: str,
        forward: Callable[[], Any],
    ) -> None:
        self.calls, self._samples, self._device = calls, samples, device
        self._forward = forward

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
        for wants in (sample.given.grads, ()):  # what works in place refuses leaves of the graph
            try:
                return _ready(called, enter, sample.given, tensors, wants)
            except _REFUSALS:
                continue
        return None

    def forward(self, *, listed: bool) -> Callable[[], Any]:
        """Return the forward pass of the step, under an op list that meets nothing or under none.

        torch itself takes microseconds for each function that a mode hears.
        """
        own = self._forward

        def run() -> Any:
            with OpList(self._device, {}) if listed else nullcontext():
                return own()

        return run

    def _called(self, called: Any, said: Said) -> tuple[Any, Callable[[], Any]]:
        """Return what is called as the plan has it, and the region that it is called in."""
        policy = said.policy
        if called is _ROOT:
            output = getattr(torch, policy.output)
            return lambda value: cast_floats(value, output), nullcontext
        entries = () if said.entry is None else (said.entry,)
        plan = Plan(policy, entries, (), said.listed)
        if isinstance(called, nn.Module):
            called = copy.deepcopy(called)
            apply_plan(called, plan)
        if policy.by != "op" or policy.compute == "float32":
            return called, nullcontext
        model = called if isinstance(called, nn.Module) else nn.Identity()
        mode = op_list_of(model, plan, self._device)
        dtype = getattr(torch, policy.compute)
        return called, lambda: region(self._device, dtype, mode)


def _ready(
    called: Any,
    enter: Callable[[], Any],
    given: _Given,
    tensors: Sequence[torch.Tensor],
    wants: tuple[bool, ...],
) -> Ready:
    wants = wants or (False,) * len(tensors)
    inputs = [t.detach().requires_grad_(want) for t, want in zip(tensors, wants, strict=True)]
    args, kwargs = given.with_floats(inputs)
    wanted = [t for t in inputs if t.requires_grad]
    if isinstance(called, nn.Module):
        wanted += [p for p in called.parameters() if p.requires_grad]

    def forward() -> list[Any]:
        with enter():
            result = called(*args, **kwargs)
        return [one for one in tree_leaves(result) if _is_float(one)]

    first = forward()
    went = tuple(_dtype(one) for one in first)
    places = [i for i, one in enumerate(first) if one.requires_grad]
    grads = [torch.ones_like(first[i]) for i in places]
    if not wanted or not places:
        return Ready(forward, went, _kernels(forward))

    def both() -> None:
        results = forward()
        torch.autograd.grad([results[i] for i in places], wanted, grads, allow_unused=True)

    both()
    return Ready(both, went, _kernels(both))


def _kernels(run: Callable[[], Any]) -> tuple[str, ...] | None:
    heard = _Kernels()
    try:
        with heard:
            run()
    except _REFUSALS:  # what runs below may be of a kind that no mode takes
        return None
    return tuple(heard.ran)

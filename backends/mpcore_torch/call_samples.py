"""What the calls of a torch step got and what gradients came back, heard of one real step.

Layers are heard through hooks, functions that are called outside of them through a
TorchFunctionMode, gradients through hooks of the results. Tried with torch 2.13.0 on CPU.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from mpcore.backend.calls import ModelCall
from mpcore_torch.layers import leaves, list_layers
from mpcore_torch.tap import OPS, layer_calls

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = [
    "GRADIENT_SUM",
    "ROOT",
    "Given",
    "Sample",
    "dtype_name",
    "go_back",
    "hear",
    "is_float",
]

ROOT = "output of the model"
GRADIENT_SUM = "sum of gradients"
_ZEROS = " whose gradients are mostly zero"
_REFUSALS = (RuntimeError, TypeError, ValueError)


@dataclass(frozen=True)
class Given:
    """What a call got.

    Attributes:
        items: arguments, flat.
        shape: how they were nested.
        floats: places of the float tensors in ``items``.
        grads: which of them require gradients.
        same: for each of them the first that is the same tensor, itself or one before.
    """

    items: list[Any]
    shape: Any
    floats: tuple[int, ...]
    grads: tuple[bool, ...]
    same: tuple[int, ...]

    @classmethod
    def of(cls, arguments: Any) -> Given:
        """Return what stands in (args, kwargs)."""
        items, shape = tree_flatten(arguments)
        floats = tuple(i for i, item in enumerate(items) if is_float(item))
        tensors = [items[i] for i in floats]
        first = {id(one): i for i, one in reversed([*enumerate(tensors)])}
        same = tuple(first[id(one)] for one in tensors)
        return cls(items, shape, floats, tuple(one.requires_grad for one in tensors), same)

    @property
    def tensors(self) -> list[Any]:
        """The float tensors."""
        return [self.items[place] for place in self.floats]

    def with_floats(self, tensors: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return arguments with other float tensors."""
        items = [*self.items]
        for place, tensor in zip(self.floats, tensors, strict=True):
            items[place] = tensor
        args, kwargs = tree_unflatten(items, self.shape)
        return args, kwargs


@dataclass(frozen=True)
class Sample:
    """One of alike calls.

    Attributes:
        called: a layer, a function, ``ROOT`` or ``GRADIENT_SUM``.
        given: with what.
        gradients: by place among the float results, where one came back.
    """

    called: Any
    given: Given
    gradients: dict[int, Any] = field(default_factory=dict)


def hear(
    model: nn.Module, loss_fn: Callable[..., Any], batch: tuple[Any, ...]
) -> tuple[tuple[ModelCall, ...], dict[str, Sample]]:
    """Return the calls of one step of a model that is not prepared, and a sample of each key."""
    heard = _Heard(model)
    with heard.layers(), heard:
        loss = loss_fn(*batch)
    heard.hear_gradients(loss)
    return heard.found()


def go_back(loss: Any, model: nn.Module) -> None:
    """Run the backward pass of a loss, if it has one; the gradients of the weights stay."""
    weights = [p for p in model.parameters() if p.requires_grad]
    if weights and isinstance(loss, torch.Tensor) and loss.requires_grad:
        torch.autograd.grad(loss.sum(), weights, allow_unused=True)


def is_float(value: Any) -> bool:
    """Return whether a value is a tensor of floats."""
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def dtype_name(tensor: torch.Tensor) -> str:
    """Return the name of its dtype."""
    return str(tensor.dtype).removeprefix("torch.")


class _Heard(TorchFunctionMode):  # type: ignore[misc]  # torch is untyped here
    """Hears a step."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._calls: list[ModelCall] = []
        self._samples: dict[str, Sample] = {}
        self._zeros: set[int] = set()  # calls whose gradients are mostly zero
        self._root = model
        inside = {
            e.path for e in list_layers(model) if e.category not in ("container", "parameters")
        }
        self._modules = {p: m for p, m in leaves(model).items() if p in inside or not p}
        self._leaves = inside
        self._open: list[tuple[str, Given | None]] = []
        self._made: dict[int, tuple[int, int]] = {}
        self._takers: dict[tuple[int, int], list[torch.Tensor]] = {}
        self._kept: list[Any] = []  # an id stands for one tensor while that lives

    def layers(self) -> Any:
        """Return what hears layers."""
        return layer_calls(self._modules, self._enter, self._leave)

    def hear_gradients(self, loss: Any) -> None:
        """Let gradients come back; the model's own stay as they are."""
        try:
            go_back(loss, self._root)
        except _REFUSALS:  # what cannot go back has no gradients: ones stand for them
            return

    def found(self) -> tuple[tuple[ModelCall, ...], dict[str, Sample]]:
        """Return the calls, sums of gradients behind them, and a sample of each key."""
        calls = [
            replace(call, key=call.key + _ZEROS) if index in self._zeros else call
            for index, call in enumerate(self._calls)
        ]
        for maker, takers in self._takers.items():
            for taken in takers[1:]:
                zeros = torch.zeros_like(taken, requires_grad=False)
                given = Given.of(((zeros, zeros.clone()), {}))
                key = _key(GRADIENT_SUM, given)
                self._samples.setdefault(key, Sample(GRADIENT_SUM, given))
                calls.append(ModelCall(None, "", key, (maker, maker)))
        return tuple(calls), self._samples

    @property
    def _inside(self) -> bool:
        return any(given is not None for _, given in self._open)

    def _enter(self, path: str, module: nn.Module, given: Any) -> None:
        is_call = path in self._leaves and not self._inside
        self._open.append((path, Given.of(given) if is_call else None))

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
                self._note(None, "", ROOT, ROOT, Given.of(((output,), {})), output)
            return

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run a function and note it."""
        kwargs = kwargs or {}
        if self._inside:
            return func(*args, **kwargs)
        given = Given.of((args, kwargs))
        result = func(*args, **kwargs)
        if given.floats:
            name = str(resolve_name(func) or getattr(func, "__name__", func))
            self._note(None, OPS.neutral(name), name, func, given, result)
        return result

    def _note(
        self, layer: str | None, op: str, name: str, called: Any, given: Given, result: Any
    ) -> None:
        results = [one for one in tree_leaves(result) if is_float(one)]
        if not results:
            return
        # What is done to keep a call is none of the model's.
        with torch._C.DisableTorchFunction():
            key = _key(name, given)
            if key not in self._samples:
                kept = replace(given, items=[_kept(item) for item in given.items])
                self._samples[key] = Sample(called, kept)
            self._await_gradients(len(self._calls), key, results)
        came = tuple(self._made.get(id(one), dtype_name(one)) for one in given.tensors)
        if any(one.requires_grad for one in results):
            self._take(given)
        self._calls.append(ModelCall(layer, op, key, came))
        self._kept += [*results, *given.tensors]
        for place, one in enumerate(results):
            self._made[id(one)] = len(self._calls) - 1, place

    def _take(self, given: Given) -> None:
        """Note whose gradients a call will add to."""
        for one in {id(one): one for one in given.tensors}.values():
            maker = self._made.get(id(one))
            if maker is not None and one.requires_grad:
                self._takers.setdefault(maker, []).append(one)

    def _await_gradients(self, index: int, key: str, results: Sequence[torch.Tensor]) -> None:
        def came(place: int, gradient: torch.Tensor) -> None:
            known = key
            if 2 * torch.count_nonzero(gradient) < gradient.numel():
                self._zeros.add(index)
                known += _ZEROS
            sample = self._samples.setdefault(known, replace(self._samples[key], gradients={}))
            sample.gradients.setdefault(place, _of_order_one(gradient))

        for place, one in enumerate(results):
            if one.requires_grad:
                one.register_hook(lambda gradient, place=place: came(place, gradient))


def _of_order_one(gradient: torch.Tensor) -> torch.Tensor:
    """Return it times a power of two: in 16 bits it must not be of subnormal numbers, or zero."""
    largest = gradient.abs().max()
    exponent = torch.frexp(largest).exponent if torch.isfinite(largest) else 0
    return torch.ldexp(gradient.detach(), torch.as_tensor(-exponent))


def _kept(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    with torch.no_grad():
        return value.detach().clone()  # it keeps its strides


def _key(name: str, given: Given) -> str:
    """Return what tells calls apart that take another time."""
    words = [name]
    for item in given.items:
        if isinstance(item, torch.Tensor):
            words.append(
                f"{dtype_name(item) if not is_float(item) else ''}{tuple(item.shape)}"
                f"{item.stride()}{item.requires_grad:d}"
            )
        else:
            words.append(f"{item!r:.60}")
    if given.same != tuple(range(len(given.same))):
        words.append(f"same {given.same}")
    return " ".join(words)

"""An op list of our own on top of a device's autocast list: a mode that catches what differs.

A ``TorchFunctionMode`` is seen by ``torch.compile``, which traces the casts and guards on the
mode; it belongs to a thread, ends with its region, and changes nothing outside. It is inert where
autocast is off, so that a nested ``torch.autocast(enabled=False)`` means what it says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from mpcore.errors import BackendError
from mpcore_torch.layers import leaves
from mpcore_torch.op_list_names import TWINS, actions_of

if TYPE_CHECKING:
    from mpcore.policy.plan import Plan
    from mpcore_torch.step import TorchTransaction

__all__ = ["OpList", "keep_in_backward", "op_list_of", "region"]

# Tensor.unflatten calls super(), which torch.compile does not follow under a mode (2.13.0).
_UNFLATTEN = torch.unflatten
_LOW = (torch.float16, torch.bfloat16, torch.float32)  # float64 is never cast, as in autocast


class Action(NamedTuple):
    """What happens to one op; None stands for what comes in.

    Attributes:
        compute: dtype of its inputs, or ``"promote"``.
        output: dtype of its result, or ``"compute"``.
    """

    compute: torch.dtype | str | None
    output: torch.dtype | str | None


class OpList(TorchFunctionMode):  # type: ignore[misc]  # torch is not followed
    """While active, the ops of the list run in its dtypes, forward and backward.

    Attributes:
        device: type of the device whose autocast region it goes with.
        actions: by the name of the function, what happens to it.
    """

    def __init__(self, device: str, actions: dict[str, Any]) -> None:
        """Know the list; it is not changed."""
        super().__init__()
        self.device, self.actions = device, actions

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run ``func``; with other dtypes if the list names it and autocast is on."""
        kwargs = kwargs or {}
        action = self.actions.get(getattr(func, "__name__", ""))
        if action is None:
            return func(*args, **kwargs)
        if not isinstance(action, Action):
            if action is _UNFLATTEN:
                return action(*args, **kwargs)
            with self:  # written in Python: what it calls is caught again
                return action(*args, **kwargs)
        if not torch.is_autocast_enabled(self.device) or _as_it_is(args, kwargs):
            return func(*args, **kwargs)
        found: list[torch.dtype] = []
        self._dtypes(args, found)
        self._dtypes(tuple(kwargs.values()), found)
        if not found:  # nothing of this device
            return func(*args, **kwargs)
        compute = _widest(found) if action.compute == "promote" else action.compute
        if isinstance(compute, torch.dtype):
            args = tuple([self._cast(item, compute) for item in args])
            kwargs = {name: self._cast(item, compute) for name, item in kwargs.items()}
        result = _outside(self.device, func, args, kwargs)
        if action.output == "compute":
            return result
        return self._cast(result, found[0] if action.output is None else action.output)

    def _dtypes(self, value: Any, found: list[torch.dtype]) -> None:
        if isinstance(value, torch.Tensor):
            if value.dtype in _LOW and value.device.type == self.device:
                found.append(value.dtype)
        elif isinstance(value, (tuple, list)):
            for item in value:
                self._dtypes(item, found)

    def _cast(self, value: Any, dtype: Any) -> Any:
        if isinstance(value, torch.Tensor):
            ours = value.dtype in _LOW and value.device.type == self.device
            return value.to(dtype) if ours else value
        if isinstance(value, (tuple, list)) and not hasattr(value, "_fields"):
            return type(value)([self._cast(item, dtype) for item in value])
        return value


def _as_it_is(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether the caller asked for a dtype, or for memory of its own: never cast."""
    if kwargs.get("dtype") is not None or kwargs.get("out") is not None or kwargs.get("inplace"):
        return True
    return any(isinstance(item, torch.dtype) for item in args)


def _widest(found: list[torch.dtype]) -> torch.dtype:
    widest = found[0]
    for dtype in found:
        widest = torch.promote_types(widest, dtype)
    return widest


def _outside(device: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call ``func`` without the device's own list."""
    if torch.compiler.is_compiling():
        with torch.autocast(device, enabled=False):
            return func(*args, **kwargs)
    torch.set_autocast_enabled(device, False)  # a tenth of the time of the context manager
    try:
        return func(*args, **kwargs)
    finally:
        torch.set_autocast_enabled(device, True)


def region(device: str, dtype: torch.dtype, mode: OpList | None) -> Any:
    """Return the context of a forward pass: autocast, and the list on top where there is one."""
    return torch.autocast(device, dtype) if mode is None else _Region(device, dtype, mode)


class _Region:
    """The context of a forward pass: autocast, and the list on top of it."""

    def __init__(self, device: str, dtype: torch.dtype, mode: OpList) -> None:
        """Be ready to be entered, once."""
        self._autocast, self._mode = torch.autocast(device, dtype), mode

    def __enter__(self) -> None:
        """Enter both."""
        self._autocast.__enter__()
        self._mode.__enter__()

    def __exit__(self, *exc: Any) -> None:
        """Leave both, whatever happened inside."""
        try:
            self._mode.__exit__(*exc)
        finally:
            self._autocast.__exit__(*exc)


def keep_in_backward(transaction: TorchTransaction, mode: OpList | None) -> None:
    """Let the list be at hand for what the backward pass computes again.

    Activation checkpointing restores the autocast state for that, and nothing else. Elsewhere in
    the backward pass autocast is off and the mode inert.
    """
    if mode is None:
        return
    backward = transaction.backward

    def run(*args: Any, **kwargs: Any) -> Any:
        with mode:
            return backward(*args, **kwargs)

    vars(transaction)["backward"] = run


def op_list_of(model: nn.Module, plan: Plan, device: str) -> OpList | None:
    """Return the mode that ``plan`` needs on a device; None where its own list does it all.

    Raises:
        BackendError: something runs where a mode does not reach, or no list is known there.
    """
    if plan.policy.by != "op" or not plan.ops:
        return None
    for entry in plan.layers:
        if entry.compute == "op" and entry.rule.startswith("rule: native"):
            msg = (
                f"{entry.rule!r} for {entry.path!r} is not possible in torch beside op rules or "
                "op_list='portable', which hold in the whole region; name a dtype, or 'native op='"
            )
            raise BackendError(msg)
    found: dict[str, Any] = {
        name: Action(
            "promote" if compute == "promote" else getattr(torch, compute, None),
            "compute" if output == compute else getattr(torch, output, None),
        )
        for name, (compute, output) in actions_of(plan, device).items()
    }
    _refuse_lstm(model, plan, device)
    if not found:
        return None
    if any(isinstance(module, nn.DataParallel) for module in model.modules()):
        msg = (
            "op rules and op_list='portable' do not reach into the threads of DataParallel; use "
            "DistributedDataParallel, the native list, or by='layer'"
        )
        raise BackendError(msg)
    return OpList(device, {"unflatten": _UNFLATTEN, **TWINS, **found})


def _refuse_lstm(model: nn.Module, plan: Plan, device: str) -> None:
    from mpcore_torch.refuse import refuse_lstm  # which reads op lists

    modules = leaves(model)
    for entry in plan.layers:
        lstm = entry.listed and isinstance(modules[entry.path], nn.LSTM)
        if lstm and device == "cpu" and entry.compute in ("float16", "bfloat16"):
            refuse_lstm(entry.path, entry.compute)

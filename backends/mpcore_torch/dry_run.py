"""Which dtypes a plan gives every op of a torch model on a device that need not be there.

A copy of the model without values (fake tensors) runs one batch forward through torch's own
autocast kernels for that device. Nothing is computed, and no memory is needed. Gradients are not
foretold: autograd asks for the device itself.

Tried with torch 2.13.0 for "cpu" and "cuda"; fake tensors say what dtype a kernel would hand
on, not whether the device has one.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeCopyMode,
    FakeTensorMode,
)
from torch.utils._pytree import tree_map

from mpcore.errors import BackendError
from mpcore.tools.inspection.recorder import Outcome
from mpcore_torch.casting import apply_plan, replace_root, store_low
from mpcore_torch.clashes import DTYPES
from mpcore_torch.op_list import op_list_of
from mpcore_torch.recorder import run

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from mpcore.policy.plan import Plan
    from mpcore.tools.inspection.dtypes import Dtypes

__all__ = ["dry_run"]

_DEVICES = ("cpu", "cuda")
_GROUPED = "Expected inputs of BF16 type"
_NO_KERNELS = ("not linked with support", "not compiled with CUDA")
"""What torch says in a build without a device's code, where an op asks for the device itself."""


def dry_run(
    model: nn.Module,
    plan: Plan,
    batch: tuple[Any, ...],
    device: str,
    calls: Dtypes,
    named: Mapping[str, Any] | None = None,
) -> Outcome:
    """Tell ``calls`` what would run, were ``plan`` applied to ``model`` on ``device``.

    On CPU a model in training mode runs as for a backward pass: torch chooses its kernels by it.

    Args:
        model: the model.
        plan: the plan for it.
        batch: what it is called with; values do not matter.
        device: the device.
        calls: what is told.
        named: arguments by name, besides.

    Raises:
        BackendError: fake tensors are not known to tell about that device, or the model depends
            on values.
    """
    kind = device.partition(":")[0] or "cpu"
    if kind not in _DEVICES:
        msg = f"`device` must be one of {', '.join(_DEVICES)} to run without it, got {device!r}"
        raise BackendError(msg)
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with FakeCopyMode(fake):
        ghost = copy.deepcopy(model)
    with fake, _unlogged():
        _move(ghost, kind)
        given = tree_map(lambda x: _like(x, kind), batch)
        others = tree_map(lambda x: _like(x, kind), dict(named or {}))
        trains = kind == "cpu" and model.training
        _apply(ghost, plan)

        def forward(*args: Any) -> Any:
            with torch.set_grad_enabled(trains):
                return ghost(*args, **others)

        how = f"fake tensors on {kind}: foretold, nothing was computed"
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "PyTorch was compiled without cuDNN")
                # Recurrent layers ask where their weights lie in memory (torch 2.11 with CUDA).
                warnings.filterwarnings("ignore", "Accessing the data pointer of FakeTensor")
                region = _region(ghost, plan, kind)
                return run(ghost, region, given, [(forward, [])], 1.0, calls, how)
        except (
            DataDependentOutputException,
            DynamicOutputShapeException,
            NotImplementedError,
        ) as exc:
            msg = f"`model` must not depend on values to be foretold ({exc}); observe it instead"
            raise BackendError(msg) from exc
        except (RuntimeError, AssertionError) as exc:
            if _GROUPED in str(exc):
                msg = (
                    f"`model` cannot be foretold: without values torch has its grouped product in "
                    f"bfloat16 alone ({exc}); observe it instead"
                )
                raise BackendError(msg) from exc
            if DTYPES.search(str(exc)):
                # As the step would: what ran before it is told.
                calls.fails(str(exc))
                return Outcome(0.0, {}, {}, how)
            if not any(words in str(exc) for words in _NO_KERNELS):
                raise
            msg = (
                f"`device` {device!r} cannot be foretold for this model: this build of torch has "
                f"no kernels of {kind} to ask (a build with them needs no device); "
                f"mpcore.explain and --device {kind} tell it layer by layer, from the op table"
            )
            raise BackendError(msg) from exc


@contextlib.contextmanager
def _unlogged() -> Iterator[None]:
    """Keep fake tensors from logging an error that is told in our words, or raised."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before


def _like(value: Any, device: str) -> Any:
    if not hasattr(value, "dtype") or not hasattr(value, "shape"):
        return value
    tensor = torch.as_tensor(value)
    dtype = torch.float32 if tensor.dtype == torch.float64 else tensor.dtype
    return torch.empty(tensor.shape, dtype=dtype, device=device)


def _move(model: nn.Module, device: str) -> None:
    """Put a model without values on ``device``; tied parameters stay tied."""
    made: dict[Any, Any] = {}
    for module in model.modules():
        for name, param in module._parameters.items():
            if param is not None:
                if param not in made:
                    values = torch.empty(param.shape, dtype=param.dtype, device=device)
                    # A gradient of a device that is not there ends the process.
                    moves = param.requires_grad and device == "cpu"
                    made[param] = nn.Parameter(values, requires_grad=moves)
                module._parameters[name] = made[param]
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = torch.empty(buffer.shape, dtype=buffer.dtype, device=device)
        if isinstance(module, nn.RNNBase):
            names = module._flat_weights_names
            # Past its own setter, which asks cuDNN.
            vars(module)["_flat_weights"] = [module._parameters.get(name) for name in names]


def _apply(model: nn.Module, plan: Plan) -> None:
    apply_plan(model, plan)
    if plan.policy.by == "model":
        store_low(model, plan)
    replace_root(model, plan)


@contextlib.contextmanager
def _region(model: nn.Module, plan: Plan, device: str) -> Iterator[None]:
    """Be in the autocast region of ``device``; ``torch.autocast`` refuses one that is not there."""
    policy = plan.policy
    if policy.by != "op" or policy.compute == "float32":
        yield
        return
    op_list = op_list_of(model, plan, device)
    before = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
    torch.set_autocast_enabled(device, True)
    torch.set_autocast_dtype(device, getattr(torch, policy.compute))
    torch.autocast_increment_nesting()
    try:
        with op_list if op_list is not None else contextlib.nullcontext():
            yield
    finally:
        if torch.autocast_decrement_nesting() == 0:
            torch.clear_autocast_cache()
        torch.set_autocast_enabled(device, before[0])
        torch.set_autocast_dtype(device, before[1])

"""A prepared torch model that changes its plan while it trains: ``on_overflow="keep full"``."""

from __future__ import annotations

import contextlib
import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_leaves

from mpcore.backend.backend import find_backend
from mpcore.capabilities.capabilities import honour
from mpcore.errors import BackendError
from mpcore.step.transaction import Latest, StepCall
from mpcore_torch.layers import device_of
from mpcore_torch.op_list import keep_in_backward, op_list_of, region
from mpcore_torch.refuse import refuse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import nn

    from mpcore.policy.plan import Plan
    from mpcore.policy.policy import Policy
    from mpcore_torch.op_list import OpList
    from mpcore_torch.step import TorchTransaction

__all__ = ["SeenCalls", "check_whole", "put_region", "region_of", "replanned"]

_SYNCS = ("require_backward_grad_sync", "require_forward_param_sync")


def replanned(model: nn.Module, policy: Policy, *, strict: bool) -> tuple[Plan, OpList | None]:
    """Return the plan of ``policy`` for a prepared model, and the op list that it needs.

    Raises:
        BackendError: torch cannot honour it here; nothing has changed.
    """
    backend = find_backend(model)
    can = backend.capabilities(model)
    plan, _ = honour(policy, backend.layers(model), can, strict=strict)
    refuse(model, plan)
    return plan, op_list_of(model, plan, device_of(model).type)


def region_of(policy: Policy, device: str, op_list: OpList | None) -> Callable[[], Any]:
    """Return what makes the context that a forward pass under ``policy`` runs in."""
    if policy.by not in ("op", "graph") or policy.compute == "float32":
        return contextlib.nullcontext
    dtype = getattr(torch, policy.compute)
    return lambda: region(device, dtype, op_list)


def put_region(tx: TorchTransaction, made: Callable[[], Any], op_list: OpList | None) -> None:
    """Let the losses of later steps run in another region."""
    tx.region = made
    vars(tx).pop("backward", None)  # that of the list before
    keep_in_backward(tx, op_list)


class SeenCalls:
    """What the model was called with since the latest step ended, and who wraps it.

    Attributes:
        open: whether calls are noted now: not while one is run again.
    """

    def __init__(self, model: nn.Module, random: Callable[[], Any]) -> None:
        """Note the calls of ``model``; ``random`` returns the state of the generators."""
        self.open = True
        self._model, self._of, self._random = weakref.ref(model), id(model), random
        self._calls: list[tuple[tuple[Any, ...], dict[str, Any], Any]] = []
        self._wrapper: weakref.ref[DistributedDataParallel] | None = None
        self._hook = model.register_forward_pre_hook(self._note, with_kwargs=True)

    def __deepcopy__(self, memo: dict[int, Any]) -> SeenCalls:
        return self  # the hook of a copy, which is not noted

    def __reduce__(self) -> tuple[Any, ...]:
        return _Deaf, ()

    def _note(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        wrapper = getattr(DistributedDataParallel, "_active_ddp_module", None)
        if isinstance(model, DistributedDataParallel):
            wrapper = model
        if wrapper is not None:
            self._wrapper = weakref.ref(wrapper)
        ours = id(model) == self._of  # a copy of the model has the hook, too
        if not self.open or not ours or torch.compiler.is_compiling():
            return
        if model.training and torch.is_grad_enabled():
            self._calls.append((args, kwargs, self._random()))

    def forget(self) -> None:
        """Let go of the calls of a step that has ended."""
        self._calls.clear()

    def end(self) -> None:
        """Note nothing more."""
        self._hook.remove()
        self.forget()

    def latest(self, step: int) -> list[Latest]:
        """Return each call as that of a loss: the mean of what the model hands on."""
        return [
            Latest(self._mean, (args, kwargs), StepCall(), random, step)
            for args, kwargs, random in self._calls
        ]

    def _mean(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        model: Any = self._model()
        found = [x for x in tree_leaves(model(*args, **kwargs)) if isinstance(x, torch.Tensor)]
        return sum(x.float().mean() for x in found if x.is_floating_point())

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Run the model without telling other ranks, and without noting it."""
        wrapper = None if self._wrapper is None else self._wrapper()
        before = {} if wrapper is None else {name: getattr(wrapper, name) for name in _SYNCS}
        was, self.open = self.open, False
        try:
            for name in before:
                setattr(wrapper, name, False)
            yield
        finally:
            self.open = was
            for name, value in before.items():
                setattr(wrapper, name, value)


class _Deaf:
    """What stands in the hook of a model that came out of a file."""

    def _note(self, *_: Any) -> None:
        """Take no note."""


def check_whole(model: nn.Module) -> None:
    """Refuse a model whose parameters are sharded over the ranks.

    Raises:
        BackendError: running it again on one rank would wait for the others.
    """
    if any(hasattr(param.data, "placements") for param in model.parameters()):
        msg = (
            "`on_overflow` must be 'skip' where parameters are sharded over ranks, got "
            "'keep full': a rank cannot run a batch again without the others"
        )
        raise BackendError(msg)

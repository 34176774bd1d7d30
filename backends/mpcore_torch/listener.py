"""The steps of a torch script: hooks on layers, on optimizers, and on the backward pass."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from mpcore.tools.inspection.recorder import BACKWARD, FORWARD
from mpcore_torch.layers import parameter_names
from mpcore_torch.tap import Tap

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import nn

    from mpcore.backend.listener import Told
    from mpcore_torch.amp import TorchAmp

__all__ = ["listen"]

_WORDS = {"lr": "rate", "weight_decay": "weight decay"}
_HOW = ("foreach", "fused", "capturable", "differentiable", "initial_lr")  # change no value
_NODES = 64  # behind the loss that are looked through for targets


def listen(model: nn.Module, amp: TorchAmp | None, told: Told) -> Callable[[], None]:
    """Follow the steps; see ``mpcore.backend.listener.Listener``."""
    listening = _Listening(model, amp, told)
    return listening.end


class _Listening:
    """Hooks that stay from one step to the next, and those of a step that is recorded."""

    def __init__(self, model: nn.Module, amp: TorchAmp | None, told: Told) -> None:
        self._model, self._amp, self._told = model, amp, told
        self._step: contextlib.ExitStack | None = None
        self._inside, self._tap = False, cast("Tap | None", None)
        self._handles = [
            register_optimizer_step_pre_hook(self._before),
            register_optimizer_step_post_hook(self._after),
        ]
        self._ended = False
        self._begin()

    def end(self) -> None:
        self._ended = True
        self._close()
        for handle in self._handles:
            handle.remove()

    def _begin(self) -> None:
        calls = self._told.wanted()
        if calls is None:
            return
        self._step = contextlib.ExitStack()
        self._tap = Tap(self._model, calls, self._tap)
        self._step.enter_context(self._tap.open())
        self._step.enter_context(calls.running(FORWARD))
        self._step.enter_context(_backward_heard(self._loss, partial(calls.running, BACKWARD)))
        first = self._model.register_forward_pre_hook(self._first)
        self._step.callback(first.remove)
        if calls.request.ops:
            self._step.enter_context(self._tap.kernels())
        self._begun = False

    def _close(self) -> None:
        if self._step is not None:
            self._step.close()
        self._step = None

    def _first(self, *_: Any) -> None:
        if not self._begun:
            self._begun = True
            self._told.begun(torch.get_rng_state().numpy().tobytes())

    def _loss(self, tensors: list[torch.Tensor]) -> None:
        scale = 1.0 if self._amp is None else float(self._amp.scale)
        for loss in tensors:
            if loss.numel() == 1:
                self._told.loss(float(loss.detach()) / scale, list(_targets(loss)))

    def _moves(self, optimizer: torch.optim.Optimizer) -> bool:
        own = {id(param) for param in self._model.parameters()}
        own |= {id(master) for master in self._masters().values()}
        return any(id(p) in own for group in optimizer.param_groups for p in group["params"])

    def _masters(self) -> dict[Any, Any]:
        return {} if self._amp is None else dict(self._amp.masters)

    def _before(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if self._step is None or self._inside or not self._moves(optimizer):
            return
        self._inside, masters = True, self._masters()
        grads = {}
        for param, name in parameter_names(self._model).items():
            grad = masters[param].grad if param in masters else param.grad
            if grad is not None:
                grads[name] = grad.to_dense() if grad.is_sparse else grad
        self._told.updates(grads, _settings(optimizer, self._paths()))

    def _paths(self) -> dict[int, str]:
        masters = self._masters()
        names = parameter_names(self._model)
        return {id(masters.get(param, param)): name for param, name in names.items()}

    def _after(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if self._ended or not self._moves(optimizer):
            return
        self._inside = False
        self._close()
        self._told.updated()
        if not self._ended:
            self._begin()


def _settings(optimizer: torch.optim.Optimizer, paths: dict[int, str]) -> dict[str, Any]:
    """Return what an optimizer is set to now, by group."""
    groups = []
    for group in optimizer.param_groups:
        told: dict[str, Any] = {}
        for name, value in group.items():
            if name == "betas":
                told |= {"beta1": float(value[0]), "beta2": float(value[1])}
            elif isinstance(value, bool | int | float) and name not in _HOW:
                told[_WORDS.get(name, name)] = value
            elif isinstance(value, torch.Tensor) and value.numel() == 1:
                told[_WORDS.get(name, name)] = float(value)
        arrays = [paths[id(p)] for p in group["params"] if id(p) in paths]
        groups.append({"arrays": arrays, **told})
    return {"type": type(optimizer).__name__, "groups": groups}


@contextlib.contextmanager
def _backward_heard(
    loss: Callable[[list[torch.Tensor]], None], running: Callable[[], Any]
) -> Iterator[None]:
    original = torch.autograd.backward

    def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
        loss([tensors] if isinstance(tensors, torch.Tensor) else list(tensors))
        with running():
            original(tensors, *args, **kwargs)

    torch.autograd.backward = backward
    try:
        yield
    finally:
        torch.autograd.backward = original


def _targets(loss: torch.Tensor) -> Iterator[Any]:
    """Yield what the loss function kept of its targets."""
    waiting, seen = [loss.grad_fn], set[Any]()
    while waiting and len(seen) < _NODES:
        node = waiting.pop(0)
        if node is None or node in seen:
            continue
        seen.add(node)
        found = getattr(node, "_saved_target", None)
        if isinstance(found, torch.Tensor):
            yield found.detach().to("cpu").numpy()
        waiting += [following for following, _ in node.next_functions]

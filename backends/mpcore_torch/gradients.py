"""The part of the transaction that makes gradients: losses, micro-batches, optimizers."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_map

from mpcore.errors import BackendError
from mpcore.step.transaction import Transaction
from mpcore_torch import ranks
from mpcore_torch.norms import plain
from mpcore_torch.unscale import any_found, check_and_unscale_

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from torch import nn

    Grads = dict[nn.Parameter, torch.Tensor]

__all__ = ["Differentiation", "as_loss", "widened"]


class Differentiation(Transaction):
    """The primitives up to the gradients of the scaled loss.

    Gradients are dicts from the model's parameters to tensors, in the order of the optimizers.

    Attributes:
        model: the prepared model.
        optimizers: by name.
        masters: float32 master of each 16-bit parameter.
        taking: names of the optimizers of the step that runs.
        apart: whether each backward pass leaves its own float32 gradients, to be added up here;
            else torch adds them up in ``.grad``.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizers: Mapping[str, torch.optim.Optimizer],
        region: Callable[[], Any],
    ) -> None:
        """Differentiate losses of ``model`` that run in ``region()``."""
        self.model, self.optimizers, self.region = model, optimizers, region
        self.masters: dict[nn.Parameter, nn.Parameter] = {}
        self.taking = tuple(optimizers)
        self.apart = False
        self._low_of: dict[nn.Parameter, nn.Parameter] = {}
        self._trained: dict[str, list[nn.Parameter]] = {}
        self._start: tuple[float, torch.device, torch.Tensor] | None = None

    def set_masters(self, pairs: list[tuple[nn.Parameter, nn.Parameter]]) -> None:
        """Say which model parameter is updated through which float32 master."""
        self.masters = dict(pairs)
        self._low_of = {master: low for low, master in pairs}

    def trained(self, names: Iterable[str]) -> list[nn.Parameter]:
        """Return the model's parameters behind those of the named optimizers, in their order."""
        return [param for name in names for param in self._trained[name]]

    def _behind(self, optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
        params = [param for group in optimizer.param_groups for param in group["params"]]
        low_of = self._low_of
        return [low_of.get(param, param) for param in params] if low_of else params

    def sums_apart(self) -> bool:
        """Return whether micro-batches are added up here, in float32, and not by torch."""
        return self.drops or any(
            param.dtype != torch.float32
            for optimizer in self.optimizers.values()
            for param in self._behind(optimizer)
        )

    def clear_grads(self) -> None:
        """Let every parameter be without a gradient."""
        for params in self._trained.values():
            for param in params:
                param.grad = None

    def differentiate(self, scale: float, index: int, count: int, *batch: Any) -> tuple[Any, Grads]:
        """Run ``batch[0]``, the loss function or several, on the rest, then backward.

        Tensors and arrays are cut, also inside containers; all else passes through.
        """
        losses, *inputs = batch
        if count > 1:
            inputs = tree_map(lambda item: _cut(item, index, count), inputs)
        if self.apart:
            self.clear_grads()
        if not isinstance(losses, dict):
            return self._one(losses, scale, inputs, self.taking), self.gradients(self.taking)
        total: Any = 0.0
        for name, loss_fn in losses.items():
            total = total + self._one(loss_fn, scale, inputs, (name,))
        return total, self.gradients(self.taking)

    def _one(
        self, loss_fn: Callable[..., Any], scale: float, inputs: list[Any], names: tuple[str, ...]
    ) -> torch.Tensor:
        with self.region():
            loss = loss_fn(*inputs)
        self.backward(loss, scale, names)
        return as_loss(loss)

    def check_loss(self, loss: Any, names: tuple[str, ...]) -> None:
        """Raise BackendError unless ``loss`` can be differentiated for those optimizers."""
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            got = tuple(loss.shape) if isinstance(loss, torch.Tensor) else type(loss).__name__
            msg = f"`loss` must be a tensor with one element, got {got}"
            raise BackendError(msg)
        if not loss.requires_grad and not self._frozen_beside_others(names):
            msg = (
                "`loss` must depend on parameters that require gradients, got a constant; it was "
                "detached, computed under torch.no_grad(), or every parameter is frozen"
            )
            raise BackendError(msg)

    def _frozen_beside_others(self, names: tuple[str, ...]) -> bool:
        frozen = {
            name: not any(p.requires_grad for p in self._behind(optimizer))
            for name, optimizer in self.optimizers.items()
        }
        return all(frozen[name] for name in names) and not all(frozen.values())

    def backward(
        self,
        loss: torch.Tensor,
        scale: float,
        names: tuple[str, ...],
        *,
        retain_graph: bool = False,
    ) -> None:
        """Add the gradients of the float32 loss times ``scale``, with which autograd begins.

        Only the parameters of the optimizers ``names`` get any, if those are not all.
        """
        self.check_loss(loss, names)
        if not loss.requires_grad:
            return
        loss = _shapeless(loss.float())
        run = partial(loss.backward, self._start_with(scale, loss.device), retain_graph)
        if len(names) == len(self.optimizers):
            run()
        elif ranks.in_group():
            self._for_some(run, names)
        else:
            wanted = [param for param in self.trained(names) if param.requires_grad]
            if wanted:
                run(inputs=wanted)

    def _start_with(self, scale: float, device: torch.device) -> torch.Tensor | None:
        """Return the gradient of the loss; the same tensor while the scale stays."""
        if scale == 1.0:
            return None
        if self._start is None or self._start[:2] != (scale, device):
            self._start = (scale, device, torch.full((), scale, device=device))
        return self._start[2]

    def _for_some(self, run: Callable[[], None], names: tuple[str, ...]) -> None:
        # The hooks of DDP and FSDP wait for every parameter; what the others got is dropped.
        others = self.trained(name for name in self.optimizers if name not in names)
        held = [param.grad for param in others]
        for param in others:
            param.grad = None
        run()
        for param, grad in zip(others, held, strict=True):
            param.grad = grad

    def gradients(self, names: Iterable[str]) -> Grads:
        """Return the gradients that exist; those that are added up here as float32 of our own."""
        grads = {p: p.grad for p in self.trained(names) if p.grad is not None}
        if not grads:
            self._check_current(names)
        if not self.apart:
            return grads
        # A reducer writes the next gradients over these.
        own = ranks.in_group()
        with torch.no_grad():
            return {p: widened(g, copy=own) for p, g in grads.items()}

    def _check_current(self, names: Iterable[str]) -> None:
        trained = self.trained(names)
        if trained and set(trained).isdisjoint(self.model.parameters()):
            msg = (
                "`optimizer` must hold parameters of `model`, which were replaced after "
                "`prepare`: shard the model first, then make the optimizer, then prepare"
            )
            raise BackendError(msg)
        if self.apart and any(param.requires_grad and _sharded(param) for param in trained):
            msg = (
                "micro-batches that are added up apart (on_bad_micro_batch='drop') must leave "
                "their "
                "gradients: leave out set_requires_gradient_sync(False), or use 'skip'"
            )
            raise BackendError(msg)

    def add(self, grads: Grads, others: Grads) -> Grads:
        """Return the sum; torch's backward pass has taken it already unless ``apart``."""
        if not self.apart:
            return others
        both = [param for param in others if param in grads]
        sparse = [p for p in both if others[p].is_sparse or grads[p].is_sparse]
        dense = [p for p in both if not (others[p].is_sparse or grads[p].is_sparse)]
        with torch.no_grad():
            for param in sparse:
                one, two = grads[param], others[param]
                grads[param] = two + one if one.is_sparse else one + two
            if dense:
                torch._foreach_add_(
                    [ranks.local(grads[p]) for p in dense], [ranks.local(others[p]) for p in dense]
                )
        return {**others, **grads}

    def all_clean(self, grads: Grads) -> bool:
        """Return whether all is finite, on every rank."""
        found = check_and_unscale_(map(plain, grads.values()), 1.0)
        return bool(self.detector.reduce((not any_found(found),), None)[0])

    def fold(self, clean: Any, sums: Any, loss: Any, grads: Grads) -> tuple[Any, Grads, float]:
        """Begin the sums, or add a micro-batch to them if it is clean."""
        if sums is None:
            if clean:
                return loss, grads, 1.0
            return loss, {p: torch.zeros_like(g) for p, g in grads.items()}, 0.0
        total, summed, count = sums
        if clean is None:
            return total + loss, self.add(summed, grads), count
        if not clean:
            return total, summed, count
        return (total + loss if count else loss), self.add(summed, grads), count + 1.0


def as_loss(loss: torch.Tensor) -> torch.Tensor:
    """Return the loss as it is reported: float32, no graph, shape ()."""
    return _shapeless(loss.detach().float())


def _shapeless(loss: torch.Tensor) -> torch.Tensor:
    return loss.reshape(()) if loss.dim() else loss


def widened(grad: torch.Tensor, *, copy: bool = False) -> torch.Tensor:
    """Return a gradient in float32, a complex one as it is; the same tensor unless ``copy``."""
    dtype = grad.dtype if grad.is_complex() else torch.float32
    return grad.to(dtype, copy=copy)


def _sharded(param: torch.Tensor) -> bool:
    return type(param.data) is not torch.Tensor and hasattr(param, "placements")


def _cut(item: Any, index: int, count: int) -> Any:
    if not getattr(item, "shape", ()):  # no tensor, or one without rows
        return item
    rows = item.shape[0]
    if rows % count:
        msg = (
            f"`micro_batches` must divide the batch evenly, got {count} for {rows} rows; "
            "choose a divisor, or leave out the last rows"
        )
        raise BackendError(msg)
    size = rows // count
    return item[index * size : (index + 1) * size]

"""Counts of the updates that rounding lost, in samples of every tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from mpcore.step import stagnation
from mpcore_torch.ranks import local

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from torch import nn

    from mpcore_torch.gradients import Grads
    from mpcore_torch.master_weights import Masters

__all__ = ["LostUpdates"]


class LostUpdates:
    """Compares what is stored before and after a step, at ``stagnation.sample`` indices.

    Under DTensors each rank counts in what it holds. Cost: three gathers of at most 4096 elements
    a tensor; nothing waits for the device.
    """

    def __init__(self, master_weights: Masters) -> None:
        """Compare what ``master_weights`` says of each parameter."""
        self._master_weights = master_weights
        self._indices: dict[tuple[int, torch.device], torch.Tensor] = {}
        self._before: dict[nn.Parameter, list[torch.Tensor]] = {}

    def before(self, params: Iterable[nn.Parameter]) -> None:
        """Take samples of what is stored for ``params``."""
        with torch.no_grad():
            self._before = {param: self._stored(param) for param in params}

    def after(self, grads: Grads, moved: Collection[nn.Parameter]) -> torch.Tensor:
        """Return (lost updates, updates looked at) of each parameter that has a gradient.

        Args:
            grads: true gradients.
            moved: parameters of optimizers that have stepped since ``before``.

        Returns:
            float32, shape (len(grads), 2); zeros where nothing moved.
        """
        rows, moving = [], set(moved)
        with torch.no_grad():
            for param, grad in grads.items():
                if param not in moving or param not in self._before:
                    rows.append(grad.new_zeros(2, dtype=torch.float32, layout=torch.strided))
                    continue
                now = self._stored(param)
                nonzero = self._sampled(local(grad)) != 0
                lost = nonzero.clone()
                for one, two in zip(self._before[param], now, strict=True):
                    lost &= one == two
                rows.append(torch.stack([lost.sum(), nonzero.sum()]).float())
        self._before = {}
        home = rows[0].device if rows else torch.device("cpu")
        return torch.stack([row.to(home) for row in rows]) if rows else torch.zeros(0, 2)

    def _stored(self, param: nn.Parameter) -> list[torch.Tensor]:
        state = self._master_weights.states.get(param)
        stored = [param] if state is None else state.moves()
        return [self._sampled(local(tensor.detach())) for tensor in stored]

    def _sampled(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a copy of the sampled elements, shape (elements,)."""
        if tensor.is_sparse:
            return self._of_rows(tensor)
        index = self._index(tensor.numel(), tensor.device)
        return torch.take(tensor, index) if tensor.numel() else tensor.reshape(-1)

    def _index(self, size: int, device: torch.device) -> torch.Tensor:
        key = size, device
        if key not in self._indices:
            self._indices[key] = torch.from_numpy(stagnation.sample(size)).to(device)
        return self._indices[key]

    def _of_rows(self, grad: torch.Tensor) -> torch.Tensor:
        """Return the sampled elements of a sparse gradient, as an embedding makes it."""
        grad = grad.coalesce()
        index = self._index(grad.numel(), grad.device)
        rows, values = grad.indices(), grad.values()
        if rows.shape[0] != 1 or not rows.shape[1]:
            return values.new_zeros(index.shape)
        width = values[0].numel()
        place = torch.searchsorted(rows[0], index // width).clamp_(max=rows.shape[1] - 1)
        held = rows[0][place] == index // width
        return torch.where(held, values.reshape(-1)[place * width + index % width], 0)

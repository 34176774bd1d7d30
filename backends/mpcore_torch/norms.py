"""Norms of gradients that are computed only if somebody looks at them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch.optim import optimizer as _everybody

from mpcore.errors import BackendError
from mpcore_torch import ranks
from mpcore_torch.unscale import values_of

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Norms", "leaves_gradients", "plain"]

# Their fused kernels read the gradients and write them only under a `grad_scale` (torch 2.13.0).
_FUSED = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad)


def plain(grad: torch.Tensor) -> torch.Tensor:
    """Return the strided tensor of this rank that holds a gradient's values."""
    if type(grad) is torch.Tensor and grad.layout is torch.strided:
        return grad  # nearly all of them
    return values_of(ranks.local(grad))


def leaves_gradients(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether a step of ``optimizer`` is known to leave ``.grad`` as it is."""
    hooks = (
        optimizer._optimizer_step_pre_hooks
        or optimizer._optimizer_step_post_hooks
        or _everybody._global_optimizer_pre_hooks
        or _everybody._global_optimizer_post_hooks
    )
    return (
        type(optimizer) in _FUSED
        and not hooks
        and all(group.get("fused") for group in optimizer.param_groups)
    )


class Norms:
    """L2 norms of gradients, over all of their shards; a pass over them when first asked for.

    Until then it keeps the gradients alive.
    """

    __slots__ = ("__weakref__", "_grads", "_total", "_value", "_versions")

    def __init__(self, grads: Iterable[torch.Tensor]) -> None:
        """Take true gradients, float32."""
        self._grads = list(grads)
        self._versions: list[int] | None = None
        self._value: torch.Tensor | None = None
        self._total: torch.Tensor | None = None

    @property
    def waits(self) -> bool:
        """Whether they are not computed yet."""
        return self._value is None

    def watch(self) -> None:
        """From now on refuse to answer for gradients that were written to."""
        self._versions = [grad._version for grad in self._grads]

    def settle(self) -> None:
        """Compute the norms before the gradients go, if they are what they were."""
        if self._value is None and not self._changed():
            self.read()

    def _changed(self) -> bool:
        return self._versions not in (None, [grad._version for grad in self._grads])

    def each(self) -> torch.Tensor:
        """Return the norm of each gradient, float32, shape (tensors,).

        Raises:
            BackendError: the gradients have changed since the step.
        """
        if self._value is None:
            if self._changed():
                msg = (
                    "`grad_norm` must be read before the gradients of its step are written to; "
                    "read it earlier, or let zero_grad set them to None"
                )
                raise BackendError(msg)
            with torch.no_grad():
                self._value = _norms(self._grads)
        return self._value

    def total(self) -> torch.Tensor:
        """Return the L2 norm of all gradients, float32, shape ()."""
        if self._total is None:
            self._total = torch.linalg.vector_norm(self.each())
        return self._total

    def read(self) -> float:
        """Return the total on the host, and let the gradients go.

        The squares of finite values beyond 1.8e19 overflow: such norms are computed anew, in
        units of the largest value. All ranks come to that together, since what they share is
        the same on each.
        """
        total = float(self.total())
        if not math.isfinite(total) and self._grads:
            with torch.no_grad():
                self._value = _wide_norms(self._grads, self.each())
                peak = self._value.amax()
                if peak.isfinite():  # else a tensor's own norm is beyond float32, and so is this
                    self._total = (self._value / peak).norm() * peak
                    total = float(self._total)
        self._grads = []
        return total


def _norms(grads: list[torch.Tensor]) -> torch.Tensor:
    if not grads:
        return torch.zeros(0)
    norms = torch._foreach_norm([plain(grad) for grad in grads])
    home = norms[0].device
    return ranks.over_shards(torch.stack([norm.to(home) for norm in norms]), grads)


def _wide_norms(grads: list[torch.Tensor], norms: torch.Tensor) -> torch.Tensor:
    """Return ``norms`` with those that overflowed computed without squares of large values."""
    rows = norms.isinf().nonzero().flatten().tolist()
    if not rows:
        return norms
    some = [grads[row] for row in rows]
    values = [plain(grad) for grad in some]
    peaks = [v.abs().amax() if v.numel() else v.new_zeros(()) for v in values]
    largest = ranks.largest(torch.stack([peak.to(norms.device) for peak in peaks]), some)
    pairs = zip(values, largest, strict=True)
    units = torch.stack([(v / peak.to(v.device)).norm().to(norms.device) for v, peak in pairs])
    wide = ranks.over_shards(units, some) * largest
    anew = norms.clone()
    anew[rows] = torch.where(wide.isfinite(), wide, norms[rows])
    return anew

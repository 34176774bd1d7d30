"""Master-weight state: what is stored beside a 16-bit parameter, and its float32 values."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from mpcore_torch import rounding

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from mpcore.numerics.master_weights import MasterWeights

__all__ = ["Copy", "Kahan", "MasterState", "Split", "Stochastic", "master_state_for"]


class MasterState:
    """One 16-bit parameter and the float32 one that the optimizer holds in its place.

    Between steps the float32 one is empty, unless the scheme keeps copies: it has its shape and
    reads as NaN, but takes no memory, and arithmetic in place is an error. ``open`` gives it
    values, ``close`` stores them as the scheme does.

    Attributes:
        low: the parameter of the model.
        master: the parameter of the optimizer.
        written: whether somebody may have written into ``low`` since the last step.
    """

    empties = True
    written = False

    def __init__(self, low: nn.Parameter, master: nn.Parameter, scheme: MasterWeights) -> None:
        """Store the values of ``master``."""
        self.low, self.master, self.scheme = low, master, scheme
        self._empty = _nothing_like(low)
        self.make()
        self.store(master.detach())
        self.shut()

    def make(self) -> None:
        """Make the parts beside ``low``, of any values."""

    def parts(self) -> list[torch.Tensor]:
        """Return what is stored beside ``low``."""
        return []

    def moves(self) -> list[torch.Tensor]:
        """Return tensors of the parameter's shape that all stay only if the float32 value does."""
        return [self.low, *self.parts()[:1]]

    def store(self, values: torch.Tensor, key: int | None = None) -> None:
        """Store float32 ``values``, of any strides, in ``low`` and the parts.

        NaN in ``values`` may be made canonical.

        Args:
            values: left as they are otherwise.
            key: tells the noise of this step, where there is any; None for values that come
                from elsewhere, which are rounded to nearest.
        """
        raise NotImplementedError

    def read(self, values: torch.Tensor) -> None:
        """Write what is stored into float32 ``values``."""
        raise NotImplementedError

    def float32(self) -> torch.Tensor:
        """Return the float32 values in a tensor of their own; ``put`` stores them again."""
        values = torch.empty_like(self.low, dtype=torch.float32)
        self.read(values)
        return values

    def to_save(self) -> torch.Tensor:
        """Return the float32 values for a checkpoint; where they are made for it, on the host."""
        return self.float32().cpu()

    def put(self, values: torch.Tensor) -> None:
        """Store other values, such as those of a checkpoint; any dtype."""
        taken = torch.empty_like(self.low, dtype=torch.float32)
        self.store(taken.copy_(values))

    def open(self, room: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Let ``master`` hold its values, in memory of ``room``."""
        values = room(self.low)
        self.read(values)
        self.master.data = values

    def close(self, key: int) -> None:
        """Store what ``master`` holds."""
        self.store(self.master.detach(), key)
        self.shut()

    @property
    def is_open(self) -> bool:
        """Whether ``master`` holds values that ``close`` would store."""
        return bool(self.master.data_ptr() != self._empty.data_ptr())

    def shut(self) -> None:
        """Let ``master`` be empty, whatever it held."""
        self.master.data = self._empty

    def take_written(self) -> None:
        """Let what is kept apart be what was written into ``low``."""

    def follow(self) -> None:
        """Move to where the model is now."""
        self._empty = _nothing_like(self.low)
        self.shut()

    def give_back(self) -> nn.Parameter:
        """Return ``master`` with its values, and as frozen as the model's parameter."""
        self.master.data = self.float32()
        return self.master.requires_grad_(self.low.requires_grad)


class Copy(MasterState):
    """A float32 copy, which is the master itself."""

    empties = False

    def parts(self) -> list[torch.Tensor]:
        """Return the copy."""
        return [self.master]

    def moves(self) -> list[torch.Tensor]:
        """Return the copy."""
        return [self.master]

    def store(self, values: torch.Tensor, key: int | None = None) -> None:
        """Round; keep the values."""
        if values.data_ptr() != self.master.data_ptr():
            self.master.detach().copy_(values)
        for _, (low, part) in rounding.blocks(self.low.detach(), self.master.detach()):
            rounding.round_into(low, part, self.scheme.rounding)

    def read(self, values: torch.Tensor) -> None:
        """Copy."""
        values.copy_(self._values())

    def to_save(self) -> torch.Tensor:
        """Return the copy itself, as a state dict does."""
        return self._values()

    def open(self, room: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Do nothing: it is open."""

    def take_written(self) -> None:
        """Take it; an element that was not written keeps its float32 value."""
        values = self._values()
        if values.data_ptr() != self.master.data_ptr():
            self.master.detach().copy_(values)
        self.written = False

    def _values(self) -> torch.Tensor:
        """Return the master's, and those of ``low`` where they do not round to it."""
        low, master = self.low.detach(), self.master.detach()
        if not self.written:
            return master
        rounded = master.to(low.dtype)
        if torch.equal(rounded, low):
            return master
        return torch.where(rounded == low, master, low.float())

    @property
    def is_open(self) -> bool:
        """Always."""
        return True

    def shut(self) -> None:
        """Do nothing: it stays."""

    def follow(self) -> None:
        """Move to where the model is now."""
        self.master.data = self.master.data.to(self.low.device)

    def give_back(self) -> nn.Parameter:
        """Return the copy."""
        return self.master.requires_grad_(self.low.requires_grad)


class Split(MasterState):
    """The further 16 bits of each value, and the ties that no bit is left for."""

    def make(self) -> None:
        """Make room for the further bits."""
        self._rest = torch.empty_like(self.low, dtype=torch.int16, requires_grad=False)
        self._ties: torch.Tensor | None = None

    def parts(self) -> list[torch.Tensor]:
        """Return the further bits, and the list of ties if there is one."""
        return [self._rest] if self._ties is None else [self._rest, self._ties]

    def store(self, values: torch.Tensor, key: int | None = None) -> None:
        """Cut in two."""
        found = []
        for start, (low, rest, part) in rounding.blocks(self.low.detach(), self._rest, values):
            ties = rounding.split(low, rest, part, self.scheme.rounding)
            if ties is not None:
                found.append(ties + start)
        if self.scheme.rounding == "nearest":
            none = torch.empty(0, dtype=torch.int64, device=self.low.device)
            self._ties = torch.cat(found) if found else none

    def read(self, values: torch.Tensor) -> None:
        """Put together."""
        for start, (part, low, rest) in rounding.blocks(values, self.low.detach(), self._rest):
            ties = self._ties
            if ties is not None:
                first, last = torch.searchsorted(
                    ties, ties.new_tensor([start, start + part.numel()])
                ).tolist()
                ties = ties[first:last] - start
            rounding.join(part, low, rest, self.scheme.rounding, ties)

    def follow(self) -> None:
        """Move to where the model is now."""
        super().follow()
        self._rest = self._rest.to(self.low.device)
        if self._ties is not None:
            self._ties = self._ties.to(self.low.device)


class Kahan(MasterState):
    """What rounding left out, in bfloat16."""

    def make(self) -> None:
        """Make room for the remainder."""
        self._remainder = torch.empty_like(self.low, requires_grad=False)

    def parts(self) -> list[torch.Tensor]:
        """Return the remainder."""
        return [self._remainder]

    def store(self, values: torch.Tensor, key: int | None = None) -> None:
        """Round, and keep what is missing."""
        for _, (low, rest, part) in rounding.blocks(self.low.detach(), self._remainder, values):
            rounding.compensate(low, rest, part)

    def read(self, values: torch.Tensor) -> None:
        """Add up."""
        for _, (part, low, rest) in rounding.blocks(values, self.low.detach(), self._remainder):
            rounding.sum_of(part, low, rest)

    def float32(self) -> torch.Tensor:
        """Return the sums, such that storing them gives the same parts again."""
        values = super().float32()
        if self.low.dtype == torch.bfloat16:  # assigned in another, it is refused by the next step
            rounding.resumable(values, self.low.detach())
        return values

    def follow(self) -> None:
        """Move to where the model is now."""
        super().follow()
        self._remainder = self._remainder.to(self.low.device)


class Stochastic(MasterState):
    """Nothing: values are rounded up or down by chance, so that the mean of many is right."""

    def store(self, values: torch.Tensor, key: int | None = None) -> None:
        """Round by chance, in a step; 16-bit values stay as they are."""
        for start, (low, part) in rounding.blocks(self.low.detach(), values):
            if key is None:
                rounding.round_into(low, part, "nearest")
            else:
                rounding.round_stochastic(low, part, key, start)

    def read(self, values: torch.Tensor) -> None:
        """Widen."""
        values.copy_(self.low.detach())


def _nothing_like(low: torch.Tensor) -> torch.Tensor:
    """Return NaN in the shape of ``low``, in the memory of one number."""
    return torch.full((), torch.nan, device=low.device).expand(low.shape)


_KINDS: dict[str, type[MasterState]] = {
    "copy": Copy,
    "split": Split,
    "kahan": Kahan,
    "stochastic": Stochastic,
}


def master_state_for(low: nn.Parameter, master: nn.Parameter, scheme: MasterWeights) -> MasterState:
    """Return the master-weight state of ``low`` under ``scheme``, which is not ``"none"``."""
    with torch.no_grad():
        return _KINDS[scheme.name](low, master, scheme)

"""What an optimizer keeps of each parameter, as torch's ``optimizer.state`` shows it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

__all__: list[str] = []

_ASKED = {"momentum_buffer": "momentum", "max_exp_avg_sq": "amsgrad", "grad_avg": "centered"}
"""Slots that are kept where a setting of the group says so."""


class States(Mapping[Any, dict[str, Any]]):
    """By parameter its slots; of one that has not moved yet, none."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer

    def _moved(self) -> list[int]:
        return [place for place in range(len(self._optimizer.counts)) if self._has_moved(place)]

    def _has_moved(self, place: int) -> bool:
        return float(self._optimizer.counts[place].asnumpy()) > 0

    def __getitem__(self, key: Any) -> dict[str, Any]:
        """Return the slots of a parameter: what is put in them stays."""
        optimizer = self._optimizer
        place = next((n for n, one in enumerate(optimizer.parameters) if one is key), -1)
        if place < 0 or not self._has_moved(place):
            return {}
        found: dict[str, Any] = {"step": optimizer.counts[place]}
        group = self._group(place)
        for name in optimizer.keeps:
            if name not in _ASKED or group[_ASKED[name]]:
                found[name] = getattr(optimizer, name)[place]
        return found

    def _group(self, place: int) -> Any:
        starts = self._optimizer.group_start_id
        number = max(n for n, start in enumerate(starts[:-1]) if start <= place)
        return self._optimizer.param_groups[number]

    def __contains__(self, key: object) -> bool:
        """Return whether a parameter has moved."""
        return any(one is key for one in self)

    def __iter__(self) -> Iterator[Any]:
        """Yield the parameters that have moved."""
        return (self._optimizer.parameters[place] for place in self._moved())

    def __len__(self) -> int:
        """Return how many have moved."""
        return len(self._moved())

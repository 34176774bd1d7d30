"""Parameters in a list that a Cell holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mindspore as ms
from mindspore import nn

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["ParameterList"]


class ParameterList(nn.Cell):  # type: ignore[misc]  # nn.Cell is untyped
    """torch.nn.ParameterList: ``"0"``, ``"1"`` and so on are the names in the state."""

    def __init__(self, values: Iterable[Any] | None = None) -> None:
        super().__init__()
        self._path = ""
        self._plain: dict[str, Any] = {}  # what is no Parameter: torch keeps it as it is
        self.extend(values or ())

    def update_parameters_name(self, prefix: str = "", recurse: bool = True) -> None:
        """Take the name that the Cell around has for this list."""
        super().update_parameters_name(prefix, recurse)
        self._path = prefix

    def append(self, value: Any) -> ParameterList:
        """Put a Parameter behind the others; a plain tensor becomes one."""
        self[len(self)] = value
        return self

    def extend(self, values: Iterable[Any]) -> ParameterList:
        """Put Parameters of any iterable behind the others."""
        for value in values:
            self.append(value)
        return self

    def __iadd__(self, values: Iterable[Any]) -> ParameterList:
        return self.extend(values)

    def __setitem__(self, place: int, value: Any) -> None:
        name = str(place if place >= 0 else len(self) + place)
        if not isinstance(value, ms.Tensor):
            self._plain[name] = value
            return
        param = value if isinstance(value, ms.Parameter) else ms.Parameter(value)
        setattr(self, name, param)
        if self._path:
            param.name = self._path + name

    def __getitem__(self, place: Any) -> Any:
        held = self._held()[place]
        return ParameterList(held) if isinstance(place, slice) else held

    def _held(self) -> list[Any]:
        if not self._plain:
            return list(self._params.values())
        every = {**self._params, **self._plain}
        return [every[str(place)] for place in range(len(every))]

    def __len__(self) -> int:
        return len(self._params) + len(self._plain)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._held())

"""An optimizer that a Cell holds, and what is put around it: ``self.opt = prepare(self.opt)``.

MindSpore's optimizers are Cells: one that a Cell holds is a part of it, and a part is replaced by
Cells alone (``Cell._set_attr_for_object`` in mindspore/nn/cell.py, 2.10.0). torch's are no Modules.
"""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any

from mindspore import nn

if TYPE_CHECKING:
    from collections.abc import Callable

__all__: list[str] = []

_SET = getattr(nn.Cell, "_set_attr_for_object", None)  # not public: another version may not have it


def _letting_go(put: Callable[..., None]) -> Callable[..., None]:
    """Return what sets a Cell's attribute, and lets an optimizer go that ``value`` is around."""

    @wraps(put)
    def _set(self: Any, name: str, value: Any) -> None:
        parts = self.__dict__.get("_cells") or {}
        inner = getattr(value, "optimizer", None)
        if inner is not None and parts.get(name) is inner:
            del parts[name]
        put(self, name, value)

    return _set


if _SET is not None:
    nn.Cell._set_attr_for_object = _letting_go(_SET)

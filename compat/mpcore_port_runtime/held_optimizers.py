"""An optimizer that a Cell holds, and what is put around it: ``self.opt = prepare(self.opt)``.

MindSpore's optimizers are Cells: one that a Cell holds is a part of it, and a part is replaced by
Cells alone (``Cell._set_attr_for_object`` in mindspore/nn/cell.py, 2.10.0). torch's are no Modules.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

from mindspore import nn

__all__: list[str] = []

_SET = nn.Cell._set_attr_for_object


@wraps(_SET)
def _set(self: Any, name: str, value: Any) -> None:
    parts = self.__dict__.get("_cells") or {}
    inner = getattr(value, "optimizer", None)
    if inner is not None and parts.get(name) is inner:
        del parts[name]
    _SET(self, name, value)


nn.Cell._set_attr_for_object = _set

"""Attributes that scripts set, and that a Cell of MindSpore has to be read only: ``self.compiled``.

A network whose base stands in another file keeps such names: nothing says there that it is one.
MindSpore's own calls read what is hidden behind them (mindspore/nn/cell.py, 2.10.0).
"""

from __future__ import annotations

from typing import Any

from mindspore import nn

__all__: list[str] = []

_NAMES = (
    *("cls_name", "compile_cache", "compiled", "create_time", "enable_backward_hook"),
    *("exist_names", "exist_objs", "jit_config_dict", "param_prefix", "phase_cache"),
)


def _settable(name: str, own: property) -> property:
    """Return a property that gives what was set, and what the Cell itself has before that."""
    key = f"_mpcore_own_{name}"

    def get(self: Any) -> Any:
        kept = self.__dict__
        return kept[key] if key in kept or own.fget is None else own.fget(self)

    def put(self: Any, value: Any) -> None:
        self.__dict__[key] = value

    return property(get, put, doc=own.__doc__)


for _name in _NAMES:
    _own = getattr(nn.Cell, _name, None)
    if isinstance(_own, property) and _own.fset is None:
        setattr(nn.Cell, _name, _settable(_name, _own))

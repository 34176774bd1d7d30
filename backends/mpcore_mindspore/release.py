"""What a network was before it was prepared, and the way back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mindspore import ParameterTuple
from mindspore._c_expression import Cell_, MixedPrecisionType

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mindspore import nn

__all__ = ["MARK", "Original", "clear_precision", "original_of", "own_dtype", "replace_parameters"]

MARK = "mpcore_prepared"
_FLAGS = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}
# What casting sets on the instance; see Cell.to_float in mindspore/nn/cell.py and
# auto_mixed_precision in mindspore/train/amp.py, mindspore 2.10.0.
_NAMES = (
    *_FLAGS,
    "construct",
    "add_flags_recursive",
    "amp_strategy",
    "_amp_level",
    "_cell_init_args",
    "mixed_precision_type",
)


class Original:
    """A network's constructs, precision flags and Parameter names, before they are changed.

    Attributes:
        own: dtype by ``id`` of the Cell, where the user had set one.
        shadows: Cells outside the network that run its Parameters in another dtype.
        swapped: pairs (16-bit Parameter in the network, float32 Parameter before it).
        amp: what the network was prepared into; None while that is made.
    """

    def __init__(self, net: nn.Cell, optimizers: Iterable[Any]) -> None:
        """Remember ``net``, and the names of the Parameters of ``optimizers``."""
        self._net: Any = net
        self._cells = [(cell, _saved(cell)) for _, cell in net.cells_and_names()]
        params = [*net.get_parameters()]
        for optimizer in optimizers:
            params += [*optimizer.get_parameters(), *_rates(optimizer)]
        self._names = [(param, param.name) for param in {id(p): p for p in params}.values()]
        self.own = {id(cell): own_dtype(cell) for cell, _ in self._cells}
        self.shadows: list[Any] = []
        self.swapped: list[tuple[Any, Any]] = []
        self.amp: Any = None
        object.__setattr__(net, MARK, self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Original:
        """Return the mark of a copy of the network: it is cast, and nobody holds the way back."""
        made = object.__new__(Original)
        made._net, made._cells, made._names = None, [], []
        made.own, made.shadows, made.swapped, made.amp = {}, [], [], None
        return made

    def put_back(self) -> None:
        """Undo everything; float32 Parameters keep the values that they have now."""
        back = {id(low): param for low, param in self.swapped}
        for cell, (attributes, flags) in self._cells:
            replace_parameters(cell, back)
            for name in _NAMES:
                cell.__dict__.pop(name, None)
            cell.__dict__.update(attributes)
            current = cell.__dict__.get("_func_graph_flags", {})
            for name in _FLAGS:
                current.pop(name, None)
            current.update(flags)
            kind = cell.mixed_precision_type
            Cell_.set_mixed_precision_type(
                cell, MixedPrecisionType.NOTSET if kind is None else kind
            )
            cell.compile_cache.clear()  # a compiled call holds the casts
        for param, name in self._names:
            param.name = name
        object.__delattr__(self._net, MARK)


def _saved(cell: nn.Cell) -> tuple[dict[str, Any], dict[str, Any]]:
    flags = cell.__dict__.get("_func_graph_flags", {})
    return (
        {name: cell.__dict__[name] for name in _NAMES if name in cell.__dict__},
        {name: flags[name] for name in _FLAGS if name in flags},
    )


def _rates(optimizer: nn.Optimizer) -> list[Any]:
    rates = [group.get("lr") for group in getattr(optimizer, "param_groups", [])]
    return [rate for rate in rates if hasattr(rate, "name")]


def original_of(net: nn.Cell) -> Original | None:
    """Return what a prepared network was; None for one that is not prepared."""
    found: Original | None = net.__dict__.get(MARK)
    return found


def own_dtype(cell: nn.Cell) -> str:
    """Return the dtype of the user's ``to_float``, on the Cell or one around it, else ``""``."""
    return next((name for flag, name in _FLAGS.items() if cell.__dict__.get(flag)), "")


def clear_precision(cell: nn.Cell) -> None:
    """Take the flags of ``to_float`` from a Cell and all inside it."""
    for _, inner in cell.cells_and_names():
        for name in _FLAGS:
            inner.__dict__.pop(name, None)
            inner.__dict__.get("_func_graph_flags", {}).pop(name, None)
        inner.mixed_precision_type = None
        Cell_.set_mixed_precision_type(inner, MixedPrecisionType.NOTSET)


def replace_parameters(cell: nn.Cell, made: dict[int, Any]) -> None:
    """Put other Parameters into one Cell, by ``id`` of those that are there."""
    for name, param in list(cell._params.items()):
        if id(param) in made:
            cell._params[name] = made[id(param)]
    for name, value in list(vars(cell).items()):
        if isinstance(value, ParameterTuple):  # recurrent layers hold their weights twice
            swapped = ParameterTuple([made.get(id(param), param) for param in value])
            object.__setattr__(cell, name, swapped)

"""A network that comes with 16-bit Parameters: what is trained is widened, what is frozen stays.

A frozen layer is cast where it computes, which ``Cell.to_float`` does: its kernels want one dtype.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mindspore as ms
import numpy as np
from mindspore import ops

from mpcore.errors import BackendError
from mpcore_mindspore.layers import STATISTICS, dtype_name, leaves, own_parameters, parameter_paths
from mpcore_mindspore.release import own_dtype

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mindspore import nn

    from mpcore.policy.plan import LayerPlan, Plan

__all__ = ["Widened", "cast_frozen", "holds_low", "low_param", "refuse_low", "write"]

_LOW = (ms.float16, ms.bfloat16)


def low_param(param: ms.Parameter) -> bool:
    """Return whether a Parameter has a 16-bit float dtype."""
    return param.dtype in _LOW


def write(param: ms.Parameter, values: ms.Tensor) -> None:
    """Write values into the memory of a Parameter, in its dtype; CPU assigns no bfloat16."""
    values = values.astype(param.dtype)
    if param.dtype == ms.bfloat16:
        param.copy_(values)
    else:
        ops.assign(param, values)


def holds_low(cell: nn.Cell) -> bool:
    """Return whether a Cell holds 16-bit Parameters, in itself or inside."""
    return any(low_param(param) for param in cell.get_parameters())


def _statistic(param: ms.Parameter) -> bool:
    return not param.requires_grad and param.name.endswith(STATISTICS)


def refuse_low(net: nn.Cell, optimizers: Iterable[Any], plan: Plan, native: frozenset[str]) -> None:
    """Raise BackendError where 16-bit Parameters cannot be widened, or cast; changes nothing."""
    if not holds_low(net):
        return
    optimizers = list(optimizers)
    for optimizer in optimizers:
        _refuse_moments(optimizer)
    moved = {id(param) for optimizer in optimizers for param in optimizer.parameters}
    cells = leaves(net)
    for entry in plan.layers:
        cell, category = cells[entry.path]
        frozen = {
            name: param
            for name, param in own_parameters(cell, category).items()
            if low_param(param)
            and id(param) not in moved
            and not (category == "norm" and _statistic(param))
        }
        for name, param in frozen.items():
            path = f"{entry.path}.{name}".lstrip(".")
            _refuse_frozen(path, param, entry, plan, native, cell)


def _refuse_frozen(
    path: str,
    param: ms.Parameter,
    entry: LayerPlan,
    plan: Plan,
    native: frozenset[str],
    cell: nn.Cell,
) -> None:
    dtype = dtype_name(param.dtype)
    statistics = any(_statistic(each) for each in cell.get_parameters())
    why = ""
    if plan.policy.by == "op":
        why = 'under by="op", where each op takes what it is given; write by="layer", or make it'
    elif entry.category == "container":
        why = "beside layers in one Cell, which is not cast as a whole; make it"
    elif entry.category == "norm" and dtype == "bfloat16" and statistics:
        why = "in a norm with running statistics, whose kernel takes no bfloat16; make it"
    elif dtype == "float16" and entry.compute == "bfloat16" and "bfloat16" not in native:
        why = "under bfloat16 that is simulated on this device; make it bfloat16 or"
    if why:
        msg = (
            f"`model` must not hold frozen {dtype} parameters {why} float32 first "
            f"(`param.set_dtype(mindspore.float32)`): {path}"
        )
        raise BackendError(msg)


def _refuse_moments(optimizer: Any) -> None:
    moved = {id(param) for param in optimizer.parameters}
    if not any(low_param(param) for param in optimizer.parameters):
        return
    for param in optimizer.get_parameters():
        if id(param) in moved:
            continue
        ran = param.dtype in (ms.int32, ms.int64) and bool(param.asnumpy().any())
        if ran or (low_param(param) and not _begins(param)):
            msg = (
                f"`optimizer` must not have run, or begin, with values of 16 bits "
                f"({param.name}): they are rounded already; make the trained parameters float32 "
                "(`param.set_dtype(mindspore.float32)`), and the optimizer anew from them"
            )
            raise BackendError(msg)


def _begins(param: ms.Parameter) -> bool:
    """Return whether all are 0 or 1, where moments begin that no rounding has changed."""
    return bool(np.isin(param.astype(ms.float32).asnumpy(), (0, 1)).all())


class Widened:
    """Trained 16-bit Parameters, their moments and all statistics, made float32 in place.

    Attributes:
        trained: the dtype that each trained one had, by path.
    """

    def __init__(self, net: nn.Cell, optimizers: Iterable[Any]) -> None:
        """Widen them; the Parameters stay the objects that they are."""
        self.trained: dict[str, str] = {}
        self._before: list[tuple[Any, Any]] = []
        paths = parameter_paths(net)
        for optimizer in optimizers:
            moved = {id(param): param for param in optimizer.parameters}
            for param in moved.values():
                if low_param(param):
                    self.trained[paths[id(param)]] = dtype_name(param.dtype)
            for param in (*moved.values(), *optimizer.get_parameters()):
                self._widen(param)
        for cell, category in leaves(net).values():
            if category == "norm":
                for param in filter(_statistic, own_parameters(cell, category).values()):
                    self._widen(param)

    def undo(self) -> None:
        """Give all their dtypes back; the values are what they were."""
        for param, dtype in self._before:
            param.set_dtype(dtype)

    def _widen(self, param: Any) -> None:
        if low_param(param):
            self._before.append((param, param.dtype))
            param.set_dtype(ms.float32)


def cast_frozen(net: nn.Cell) -> None:
    """Let each layer with 16-bit Parameters compute in float32, where nothing else casts it."""
    for cell, category in leaves(net).values():
        if category != "container" and not own_dtype(cell) and holds_low(cell):
            cell.to_float(ms.float32)

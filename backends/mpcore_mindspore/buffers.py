"""What a skipped step puts back: the buffers of a network, and what the user guards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mindspore as ms
from mindspore import Parameter, Tensor, nn

from mpcore.errors import BackendError
from mpcore.policy.registry import registered
from mpcore_mindspore.assigned import assigned
from mpcore_mindspore.layers import by_class, leaves, own_parameters

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["buffers", "copies", "guarded_parameters"]

_WEIGHTS = ("linear", "conv", "conv_transpose", "attention", "recurrent", "embedding")


def buffers(net: nn.Cell) -> list[Any]:
    """Return the Parameters that a forward pass may write: all that it is seen to, and others."""
    return [
        *assigned(net),
        *(
            param
            for cell, category in leaves(net).values()
            # Frozen weights of MindSpore's own layers are only read.
            if category not in _WEIGHTS or registered(type(cell)) or not by_class(cell)
            for param in own_parameters(cell, category).values()
            # Frozen bfloat16 ones are weights that came so: CPU has no assignment of them.
            if not param.requires_grad and param.dtype != ms.bfloat16
        ),
    ]


def guarded_parameters(guard: Iterable[Any]) -> list[Any]:
    """Return the Parameters of Cells, Parameters, and lists and dicts of them.

    Raises:
        BackendError: something else; a Tensor too: MindSpore replaces it and cannot write to it.
    """
    found: list[Any] = []
    for entry in guard:
        if isinstance(entry, Parameter):
            found.append(entry)
        elif isinstance(entry, nn.Cell):
            found += entry.get_parameters()
        elif isinstance(entry, list | tuple):
            found += guarded_parameters(entry)
        elif isinstance(entry, dict):
            found += guarded_parameters(entry.values())
        else:
            why = type(entry).__name__
            if isinstance(entry, Tensor):
                why = "a Tensor: only a Parameter can be put back, so keep that state in one"
            msg = (
                "`restore_on_skip` must hold Cells, Parameters, or lists and dicts of them, "
                f"got {why}"
            )
            raise BackendError(msg)
    return found


def copies(params: Iterable[Any], label: str) -> list[tuple[Any, Any]]:
    """Return pairs (Parameter, a Parameter that starts as its copy), each once.

    Args:
        params: any Parameters; several may be the same, several may have the same name.
        label: begins the names of the copies.
    """
    each = {id(param): param for param in params}
    return [
        (
            param,
            Parameter(
                Tensor(param.astype(ms.float32).asnumpy()).astype(param.dtype)
                if param.dtype == ms.bfloat16
                else Tensor(param.asnumpy().copy()),
                name=f"{label}.{index}.{param.name}",
                requires_grad=False,
            ),
        )
        for index, param in enumerate(each.values())
    ]

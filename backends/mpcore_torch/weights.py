"""The float32 values of a model on its way out and in, and the bytes that its arrays take."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.tensor import DTensor, distribute_tensor

from mpcore_torch.layers import leaves, list_layers, parameter_names
from mpcore_torch.ranks import local

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import numpy as np
    import numpy.typing as npt
    from torch import nn

    from mpcore_torch.master_weights import Masters

__all__ = ["bytes_of", "read_weights", "write_weights"]


def read_weights(model: nn.Module, master_weights: Masters) -> dict[str, npt.NDArray[np.float32]]:
    """Return new float32 arrays by path: master values of parameters, and saved float buffers.

    Shards are gathered, so that under FSDP2 every rank has to call this.
    """
    found = {name: master_weights.of(param) for param, name in _parameters(model).items()}
    found |= {path: home[name] for path, home, name in _buffers(model)}
    with torch.no_grad():
        return {name: _array(value) for name, value in found.items()}


def _array(value: torch.Tensor) -> npt.NDArray[np.float32]:
    whole = value.detach()
    if isinstance(whole, DTensor):
        whole = whole.full_tensor()
    array: npt.NDArray[np.float32] = whole.to("cpu", torch.float32, copy=True).contiguous().numpy()
    return array


def write_weights(
    model: nn.Module, master_weights: Masters, weights: Mapping[str, npt.NDArray[np.float32]]
) -> None:
    """Put in what ``read_weights`` gave, or the like, in place."""
    with torch.no_grad():
        for param, name in _parameters(model).items():
            master_weights.put(param, _like(weights[name], param))
        for path, home, name in _buffers(model):
            home[name].copy_(_like(weights[path], home[name]))


def _like(array: npt.NDArray[np.float32], target: torch.Tensor) -> torch.Tensor:
    value = torch.tensor(array, device=target.device)
    if isinstance(target.detach(), DTensor):
        # Every rank has all of it: None keeps them from sending it around.
        sharded: DTensor = target.detach()
        return distribute_tensor(value, sharded.device_mesh, sharded.placements, src_data_rank=None)
    return value


def _parameters(model: nn.Module) -> dict[nn.Parameter, str]:
    names = parameter_names(model)
    return {p: name for p, name in names.items() if p.is_floating_point() and not p.is_meta}


def _buffers(model: nn.Module) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yield (path, dict, key) of every float buffer that a state dict holds, once each."""
    seen: set[int] = set()
    for layer, (path, module) in zip(list_layers(model), leaves(model).items(), strict=True):
        inside = [("", module)] if layer.category == "container" else module.named_modules()
        for prefix, owner in inside:
            for name, buffer in owner._buffers.items():
                hidden = name in owner._non_persistent_buffers_set or buffer is None
                if hidden or not buffer.is_floating_point() or id(buffer) in seen:
                    continue
                seen.add(id(buffer))
                yield ".".join(part for part in (path, prefix, name) if part), owner._buffers, name


def bytes_of(
    model: nn.Module, master_weights: Masters, optimizers: Iterable[torch.optim.Optimizer]
) -> dict[str, int]:
    """Return the bytes of arrays by kind; see ``mpcore.Amp.array_bytes``.

    Of a sharded array it is what this rank holds.
    """
    params = list(model.parameters())
    slots = [
        slot for entry in optimizers for state in entry.state.values() for slot in _tensors(state)
    ]
    return {
        "parameters": _bytes(params),
        "gradients": _bytes(param.grad for param in params if param.grad is not None),
        "masters": _bytes(master_weights.beside()),
        "optimizer": _bytes(slots),
    }


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict | list | tuple):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _tensors(item)


def _bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Return the bytes of ``tensors``, each once."""
    once = {id(tensor): local(tensor) for tensor in tensors}
    return sum(
        (t.coalesce().values().nbytes + t.coalesce().indices().nbytes) if t.is_sparse else t.nbytes
        for t in once.values()
    )

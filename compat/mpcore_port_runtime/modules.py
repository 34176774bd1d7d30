"""What torch's modules have and Cells lack: parameters by torch's names, state, fills."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mindspore as ms
from mindspore import Tensor, nn, ops
from mindspore.common.initializer import Uniform, initializer

from mpcore.errors import BackendError
from mpcore_port_runtime.in_place import put
from mpcore_port_runtime.instances import InstanceNorm1d, InstanceNorm2d, InstanceNorm3d

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "Parameter",
    "add_module",
    "children",
    "fill",
    "fill_uniform",
    "get_submodule",
    "grad_of",
    "held",
    "holds",
    "in_training",
    "live_state_dict",
    "load_state_dict",
    "modules",
    "named_children",
    "named_modules",
    "named_parameters",
    "parameters",
    "register_parameter",
    "requires_grad_",
    "rounded",
    "state_dict",
]

_NORM = {"gamma": "weight", "beta": "bias"}
_STATISTICS = {"moving_mean": "running_mean", "moving_variance": "running_var"}
_TORCH = {
    nn.BatchNorm1d: _NORM | _STATISTICS,
    nn.BatchNorm2d: _NORM | _STATISTICS,
    nn.BatchNorm3d: _NORM | _STATISTICS,
    nn.SyncBatchNorm: _NORM | _STATISTICS,
    InstanceNorm1d: _NORM | _STATISTICS,
    InstanceNorm2d: _NORM | _STATISTICS,
    InstanceNorm3d: _NORM | _STATISTICS,
    nn.LayerNorm: _NORM,
    nn.GroupNorm: _NORM,
    nn.Embedding: {
        "embedding_table": "weight",
        "vocab_size": "num_embeddings",
        "embedding_size": "embedding_dim",
    },
    nn.Dense: {"in_channels": "in_features", "out_channels": "out_features"},
    nn.PReLU: {"w": "weight"},
}
_INNER = {  # Cells that hold what torch holds itself, or under another name
    nn.BatchNorm3d: {"bn2d": ""},
    nn.TransformerEncoderLayer: {"dense1": ".linear1", "dense2": ".linear2"},
    nn.TransformerDecoderLayer: {"dense1": ".linear1", "dense2": ".linear2"},
}
_KEPT = "num_batches_tracked"


def Parameter(data: Any, requires_grad: bool = True) -> Any:  # noqa: N802  # torch's name
    """Return a Parameter over ``data``; a Cell names it when it takes it."""
    return ms.Parameter(data, requires_grad=requires_grad)


def held(owner: Any, name: str, *default: Any) -> Any:
    """Return ``owner.name`` as torch means it: ``weight`` of a norm is its ``gamma``."""
    for kind, names in _TORCH.items():
        if isinstance(owner, kind):
            native = {other: one for one, other in names.items()}
            return getattr(owner, native.get(name, name), *default)
    return getattr(owner, name, *default)


def holds(owner: Any, name: str) -> bool:
    """Return whether ``owner`` has the attribute ``name`` as torch means it."""
    missing = object()
    return held(owner, name, missing) is not missing


def torch_name(cell: Any, name: str) -> str:
    """Return what torch calls the Parameter ``name`` of ``cell``."""
    for kind, names in _TORCH.items():
        if isinstance(cell, kind):
            return names.get(name, name)
    return name


def _every(cell: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield (torch's full name, Parameter or buffer, the Cell it belongs to), each once."""
    seen = set()
    renamed: dict[str, str] = {}
    for path, inner in cell.cells_and_names():
        inside = {
            (f"{path}." if path else "") + name: other
            for kind, names in _INNER.items()
            if isinstance(inner, kind)
            for name, other in names.items()
        }
        renamed |= {own: own.rpartition(".")[0] + other for own, other in inside.items()}
        shown = renamed.get(path, path).lstrip(".")
        dot = f"{shown}." if shown else ""
        for name, param in inner._params.items():
            if param is not None and id(param) not in seen:
                seen.add(id(param))
                yield dot + torch_name(inner, name), param, inner


def _is_statistic(name: str) -> bool:
    last = name.rpartition(".")[2]
    return last in _STATISTICS.values() or last == "n_averaged"  # AveragedModel's count


def named_parameters(cell: Any) -> Iterator[tuple[str, Any]]:
    """Yield parameters by torch's names, frozen ones too, statistics not."""
    for name, param, _ in _every(cell):
        if not _is_statistic(name):
            yield name, param


def parameters(cell: Any) -> list[Any]:
    """Return what torch's ``parameters()`` yields: frozen ones too, statistics not."""
    return [param for _, param in named_parameters(cell)]


def named_modules(cell: Any) -> Iterator[tuple[str, Any]]:
    """Yield the Cell and all below it by their paths."""
    yield from cell.cells_and_names()


def modules(cell: Any) -> Iterator[Any]:
    """Yield the Cell and all below it."""
    for _, inner in cell.cells_and_names():
        yield inner


def children(cell: Any) -> Iterator[Any]:
    """Yield the Cells right below."""
    yield from cell.cells()


def state_dict(holder: Any) -> dict[str, Any]:
    """Return what ``load_state_dict`` takes: of a Cell by torch's names, else by its own."""
    if hasattr(holder, "param_groups"):
        return _optimizer_state(holder)
    if isinstance(holder, nn.Cell):
        found = {name: param.value().copy() for name, param, _ in _every(holder)}
        return found | {name: buffer.copy() for name, buffer in holder.named_buffers()}
    return dict(holder.state_dict())


def live_state_dict(cell: Any) -> dict[str, Any]:
    """Return the Parameters and buffers themselves, by torch's names: what is put in them stays."""
    found = {name: param for name, param, _ in _every(cell)}
    return found | dict(cell.named_buffers())


def load_state_dict(holder: Any, state: dict[str, Any], strict: bool = True) -> None:
    """Put back what ``state_dict`` returned; a Cell also takes torch's arrays by torch's names.

    Raises:
        BackendError: a name or shape does not fit; nothing has changed.
    """
    if hasattr(holder, "param_groups"):
        _load_optimizer(holder, state)
    elif isinstance(holder, nn.Cell):
        _load_cell(holder, state, strict)
    else:
        holder.load_state_dict(state)


def _load_cell(cell: Any, state: dict[str, Any], strict: bool) -> None:
    targets = {name: param for name, param, _ in _every(cell)} | dict(cell.named_buffers())
    given = {n: v for n, v in state.items() if n.rpartition(".")[2] != _KEPT}
    missing, surplus = sorted(set(targets) - set(given)), sorted(set(given) - set(targets))
    if strict and (missing or surplus):
        msg = f"`state` must hold the names of the Cell; missing {missing}, surplus {surplus}"
        raise BackendError(msg)
    both = {name: _tensor(value) for name, value in given.items() if name in targets}
    for name, value in both.items():
        if value.size != targets[name].size:
            msg = f"{name}: shape {tuple(value.shape)} does not fit {tuple(targets[name].shape)}"
            raise BackendError(msg)
    for name, value in both.items():
        target = targets[name]
        ops.assign(target, value.reshape(target.shape).astype(target.dtype))


def _tensor(value: Any) -> Any:
    return value if isinstance(value, Tensor) else Tensor(value)


def _optimizer_parameters(optimizer: Any) -> dict[str, Any]:
    trained = {id(param) for param in optimizer.parameters}
    own = [param for param in optimizer.get_parameters() if id(param) not in trained]
    found = {f"{place}": param for place, param in enumerate(own)}
    for place, group in enumerate(optimizer.param_groups):
        rate = getattr(group, "parameter", None) or group.get("lr")
        if isinstance(rate, ms.Parameter):
            found[f"lr.{place}"] = rate
    return found


def _optimizer_state(optimizer: Any) -> dict[str, Any]:
    return {name: param.value().copy() for name, param in _optimizer_parameters(optimizer).items()}


def _load_optimizer(optimizer: Any, state: dict[str, Any]) -> None:
    targets = _optimizer_parameters(optimizer)
    if set(targets) != set(state):
        msg = (
            f"`state` must be of an optimizer of the same kind: {len(state)} tensors against "
            f"{len(targets)} here"
        )
        raise BackendError(msg)
    for name, value in state.items():
        ops.assign(targets[name], _tensor(value).astype(targets[name].dtype))


def rounded(cell: Any, dtype: Any) -> Any:
    """Round what a Cell holds to ``dtype`` and back, as ``net.half().float()`` does; return it."""
    for _, held, _ in _every(cell):
        if held.dtype in (ms.float32, ms.float64):
            put(held, held.astype(dtype).astype(held.dtype))
    return cell


def fill(tensor: Any, init: Any) -> Any:
    """Give a Parameter the values of an initializer, in place; return it."""
    ops.assign(tensor, initializer(init, tensor.shape, tensor.dtype).init_data())
    return tensor


def fill_uniform(tensor: Any, low: float, high: float) -> Any:
    """Give a Parameter uniform values in [low, high); return it."""
    half = (high - low) / 2
    made = initializer(Uniform(half), tensor.shape, tensor.dtype).init_data()
    ops.assign(tensor, made + (low + half))
    return tensor


def grad_of(param: Any) -> Any:
    """Return the gradient that backward passes have added up, or None."""
    return getattr(param, "grad", None)


def requires_grad_(cell: Any, requires_grad: bool = True) -> Any:
    """Freeze a Cell's parameters, or let them learn, or a tensor; return it."""
    if isinstance(cell, Tensor):
        cell.requires_grad = requires_grad
        return cell
    for param in parameters(cell):
        param.requires_grad = requires_grad
    return cell


def add_module(cell: Any, name: str, module: Any) -> None:
    """Have a Cell hold another by a name, a SequentialCell behind its others."""
    setattr(cell, name, module)
    if isinstance(cell, nn.SequentialCell) and module is not None:
        cell._is_dynamic_name.append(False)
        cell.cell_list = list(cell._cells.values())


def named_children(cell: Any) -> Iterator[tuple[str, Any]]:
    """Yield the Cells right below, by their names."""
    yield from ((name, one) for name, one in cell._cells.items() if one is not None)


def get_submodule(cell: Any, target: str) -> Any:
    """Return the Cell at a path such as ``"layers.0"``; of an empty one the Cell itself."""
    for name in target.split(".") if target else ():
        cell = cell._cells[name]
    return cell


def register_parameter(cell: Any, name: str, param: Any) -> None:
    """Have a Cell hold a Parameter, or None, as torch's ``register_parameter`` has a module."""
    if param is None:
        setattr(cell, name, None)
        return
    cell.insert_param_to_cell(name, param, check_name_contain_dot=False)


def in_training(made: Any) -> Any:
    """Put a Cell into training mode, as torch's modules start; return it, or what else it is."""
    return made.set_train() if isinstance(made, nn.Cell) else made

"""What torch's modules have and Cells lack: parameters by torch's names, state, fills."""

from __future__ import annotations

import re
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops
from mindspore.common.initializer import Uniform, initializer
from mindspore.experimental import optim

from mpcore.errors import BackendError
from mpcore_port_runtime.in_place import put
from mpcore_port_runtime.instances import InstanceNorm1d, InstanceNorm2d, InstanceNorm3d
from mpcore_port_runtime.overridden import own_first, start_training
from mpcore_port_runtime.own_optimizers import OwnOptimizer
from mpcore_port_runtime.rates import has_groups, set_lr

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "Parameter",
    "add_module",
    "buffers",
    "children",
    "class_name",
    "evaluate",
    "fill",
    "fill_part",
    "fill_seen",
    "fill_uniform",
    "get_submodule",
    "grad_of",
    "held",
    "hold",
    "holds",
    "in_training",
    "live_state_dict",
    "load_state_dict",
    "modules",
    "named_buffers",
    "named_children",
    "named_modules",
    "named_parameters",
    "parameters",
    "put_back",
    "register_parameter",
    "requires_grad_",
    "rounded",
    "set_part",
    "started",
    "state_dict",
    "train",
]

_GROUPS = "param_groups"
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
_RECURRENT = re.compile(r"(?:weight|bias)_[ih]h_l(\d+)(_reverse)?")
_OPTIMIZERS = (nn.Optimizer, optim.Optimizer)
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


def hold(owner: Any, name: str, value: Any) -> None:
    """Set ``owner.name`` as torch means it: ``weight`` of an Embedding is its table."""
    names = next((names for kind, names in _TORCH.items() if isinstance(owner, kind)), {})
    native = {other: one for one, other in names.items()}
    setattr(owner, native.get(name, name), value)
    if name == "bias" and hasattr(owner, "has_bias"):
        owner.has_bias = value is not None  # MindSpore's layers ask that, not the bias
        if not hasattr(owner, "bias_add"):
            owner.bias_add = ops.BiasAdd()


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
    for path, inner in _shown(cell):
        dot = f"{path}." if path else ""
        for name, param in _in_order(inner):
            if param is not None and id(param) not in seen:
                seen.add(id(param))
                yield dot + torch_name(inner, name), param, inner


def _shown(cell: Any) -> Iterator[tuple[str, Any]]:
    """Yield the Cell and all below it by torch's paths; what torch holds itself by its owner's."""
    held: tuple[str, ...] = ()
    renamed: dict[str, str] = {}
    for path, inner in cell.cells_and_names():
        if path and isinstance(inner, _OPTIMIZERS):
            held = (*held, f"{path}.")
        if f"{path}.".startswith(held or "\n"):
            continue
        shown = _renamed(path, renamed)
        for kind, names in _INNER.items():
            if isinstance(inner, kind):
                front = f"{path}." if path else ""
                renamed |= {
                    front + name: (shown + other).lstrip(".") for name, other in names.items()
                }
        yield shown, inner


def _renamed(path: str, renamed: dict[str, str]) -> str:
    """Return a path, the part in front of it that has another name in torch by that."""
    for own, other in renamed.items():
        if path == own or path.startswith(f"{own}."):
            return (other + path.removeprefix(own)).lstrip(".")
    return path


def _in_order(cell: Any) -> list[tuple[str, Any]]:
    """Return a Cell's own Parameters in torch's order.

    Those of a recurrent layer come layer by layer, the statistics of a norm behind the others.
    """

    def place(item: tuple[str, Any]) -> tuple[bool, int, bool]:
        found = _RECURRENT.fullmatch(item[0])
        layer = (int(found[1]), bool(found[2])) if found else (-1, False)
        return (item[0] in _STATISTICS, *layer)

    return sorted(cell._params.items(), key=place)


def _is_statistic(name: str) -> bool:
    last = name.rpartition(".")[2]
    return last in _STATISTICS.values() or last == "n_averaged"  # AveragedModel's count


@own_first
def named_parameters(
    cell: Any, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
) -> Iterator[tuple[str, Any]]:
    """Yield parameters by torch's names, frozen ones too, statistics not."""
    _check_once(remove_duplicate)
    if not isinstance(cell, nn.Cell):
        given = {"prefix": prefix} if prefix else {}
        yield from cell.named_parameters(**given | ({} if recurse else {"recurse": recurse}))
        return
    front = f"{prefix}." if prefix else ""
    for name, param, _ in _every(cell):
        if not _is_statistic(name) and (recurse or "." not in name):
            yield front + name, param


@own_first
def parameters(cell: Any, recurse: bool = True) -> list[Any]:
    """Return what torch's ``parameters()`` yields: frozen ones too, statistics not."""
    if not isinstance(cell, nn.Cell):
        return list(cell.parameters() if recurse else cell.parameters(recurse))
    return [param for _, param in named_parameters(cell, "", recurse)]


@own_first
def named_buffers(
    cell: Any, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
) -> Iterator[tuple[str, Any]]:
    """Yield buffers, and the statistics of norms, by torch's names; no count of batches is kept."""
    _check_once(remove_duplicate)
    if not isinstance(cell, nn.Cell):
        yield from cell.named_buffers()
        return
    kept: dict[int, list[tuple[str, Any]]] = {}
    for name, param, owner in _every(cell):
        if _is_statistic(name):
            kept.setdefault(id(owner), []).append((name, param))
    front = f"{prefix}." if prefix else ""
    for path, inner in _shown(cell):
        if not recurse and inner is not cell:
            continue
        dot = f"{path}." if path else ""
        own = [(dot + name, one) for name, one in inner._buffers.items() if one is not None]
        for name, one in [*kept.get(id(inner), ()), *own]:
            yield front + name, one


@own_first
def buffers(cell: Any, recurse: bool = True) -> Iterator[Any]:
    """Yield buffers, and the statistics of norms; no count of batches is kept."""
    if not isinstance(cell, nn.Cell):
        yield from cell.buffers()
        return
    yield from (one for _, one in named_buffers(cell, "", recurse))


_CLASSES = {
    "Cell": "Module",
    "CellDict": "ModuleDict",
    "CellList": "ModuleList",
    "Conv1dTranspose": "ConvTranspose1d",
    "Conv2dTranspose": "ConvTranspose2d",
    "Conv3dTranspose": "ConvTranspose3d",
    "Dense": "Linear",
    "HSigmoid": "Hardsigmoid",
    "HSwish": "Hardswish",
    "SequentialCell": "Sequential",
}


def class_name(value: Any) -> str:
    """Return the name of something's class, of a Cell of MindSpore's own as torch has it."""
    kind = type(value)
    foreign = kind.__module__.partition(".")[0] in ("mindspore", __name__.partition(".")[0])
    return _CLASSES.get(kind.__name__, kind.__name__) if foreign else kind.__name__


@own_first
def named_modules(
    cell: Any, memo: Any = None, prefix: str = "", remove_duplicate: bool = True
) -> Iterator[tuple[str, Any]]:
    """Yield the Cell and all below it by their paths.

    Optimizers that a network holds are Cells, too; in torch they are no part of it.
    """
    _check_once(remove_duplicate and memo is None)
    if not isinstance(cell, nn.Cell):
        yield from cell.named_modules()
        return
    before = ""
    for path, inner in _shown(cell):
        if inner is cell or path != before:  # a part that torch holds itself has its owner's path
            yield ".".join(part for part in (prefix, path) if part), inner
        before = path


def _check_once(once: bool) -> None:
    if not once:
        msg = (
            "a network's parts come each once here: remove_duplicate=False, and a memo of its own, "
            "are not ported; go through named_children() instead"
        )
        raise NotImplementedError(msg)


@own_first
def modules(cell: Any) -> Iterator[Any]:
    """Yield the Cell and all below it."""
    if not isinstance(cell, nn.Cell):
        yield from cell.modules()
        return
    for _, inner in named_modules(cell):
        yield inner


@own_first
def add_module(owner: Any, name: str, module: Any) -> None:
    """Give a Cell another one by a name; one of a row runs behind those that it has."""
    if not isinstance(owner, nn.Cell):
        owner.add_module(name, module)
        return
    if module is not None:
        module.update_parameters_name(f"{name}.")
    if isinstance(owner, nn.SequentialCell):
        if name not in owner._cells:
            owner._is_dynamic_name.append(False)
        owner._cells[name] = module
        owner.cell_list = list(owner._cells.values())
    else:
        owner._cells[name] = module


def set_part(owner: Any, name: str, value: Any) -> None:
    """Set an attribute by its name; a part of a Sequential is what it runs from then on."""
    if isinstance(owner, nn.SequentialCell) and isinstance(value, nn.Cell):
        add_module(owner, name, value)
    else:
        setattr(owner, name, value)


@own_first
def children(cell: Any) -> Iterator[Any]:
    """Yield the Cells right below."""
    if not isinstance(cell, nn.Cell):
        yield from cell.children()
        return
    yield from (inner for inner in cell.cells() if not isinstance(inner, _OPTIMIZERS))


@own_first
def named_children(cell: Any) -> Iterator[tuple[str, Any]]:
    """Yield the Cells right below by their names, each once."""
    if not isinstance(cell, nn.Cell):
        yield from cell.named_children()
        return
    names = next((names for kind, names in _INNER.items() if isinstance(cell, kind)), {})
    for name, one in cell.name_cells().items():
        shown = names.get(name, name).lstrip(".")
        if shown and not isinstance(one, _OPTIMIZERS):
            yield shown, one


def train(holder: Any, *mode: Any) -> Any:
    """Put a Cell into training mode; anything else has a ``train`` of its own.

    ``super()`` of a class has one where no base is a Cell, or a base in another file says how.
    """
    cell = isinstance(holder, nn.Cell) or not hasattr(holder, "train")
    return holder.set_train(*mode) if cell else holder.train(*mode)


def evaluate(holder: Any) -> Any:
    """Put a Cell into evaluation mode; anything else has an ``eval`` of its own."""
    cell = isinstance(holder, nn.Cell) or not hasattr(holder, "eval")
    return holder.set_train(False) if cell else holder.eval()


@own_first
def register_parameter(owner: Any, name: str, param: Any) -> None:
    """Have ``owner`` hold a Parameter under a name, or None."""
    if param is None or not isinstance(owner, nn.Cell) or hasattr(owner, "has_bias"):
        hold(owner, name, param)
    else:
        owner.insert_param_to_cell(name, param, check_name_contain_dot=False)


@own_first
def state_dict(
    holder: Any, destination: Any = None, prefix: str = "", keep_vars: bool = False
) -> dict[str, Any]:
    """Return what ``load_state_dict`` takes: of a Cell by torch's names, else by its own."""
    if isinstance(holder, OwnOptimizer):
        return holder.state_dict()
    if isinstance(holder, ms.amp.LossScaler):
        return _scaler_state(holder)
    if has_groups(holder):
        return _optimizer_state(holder)
    if isinstance(holder, nn.Cell):
        found = {
            prefix + name: one if keep_vars else _value_of(one).copy()
            for name, one in live_state_dict(holder).items()
        }
        if destination is None:
            return found
        destination.update(found)
        return cast("dict[str, Any]", destination)
    return dict(holder.state_dict(**({"prefix": prefix} if prefix else {})))


def _scaler_state(scaler: Any) -> dict[str, Any]:
    """Return the scale and its count, as ports in one file write them; {} of a constant one."""
    if not isinstance(scaler, ms.amp.DynamicLossScaler):
        return {}
    return {"scale": scaler.scale_value.item(), "_growth_tracker": scaler.counter.item()}


def _load_scaler(scaler: Any, state: dict[str, Any]) -> None:
    if isinstance(scaler, ms.amp.DynamicLossScaler):
        scaler.scale_value.set_data(Tensor(state["scale"], ms.float32))
        scaler.counter.set_data(Tensor(state["_growth_tracker"], ms.int32))


def _value_of(held: Any) -> Any:
    return held.value() if isinstance(held, ms.Parameter) else held


def live_state_dict(cell: Any) -> dict[str, Any]:
    """Return the Parameters and buffers themselves, by torch's names: what is put in them stays."""
    found = {name: param for name, param, _ in _every(cell)}
    return found | dict(_buffers(cell))


def _buffers(cell: Any) -> Iterator[tuple[str, Any]]:
    """Yield the buffers that belong to the state, by torch's names."""
    for path, inner in cell.cells_and_names():
        for name, buffer in inner._buffers.items():
            if buffer is not None and name not in inner._non_persistent_buffers_set:
                yield f"{path}.{name}" if path else name, buffer


class Unmatched(NamedTuple):
    """What ``load_state_dict`` of a Cell returns, as torch's does."""

    missing_keys: list[str]
    unexpected_keys: list[str]

    def __str__(self) -> str:
        if self.missing_keys or self.unexpected_keys:
            return repr(self)
        return "<All keys matched successfully>"


@own_first
def load_state_dict(
    holder: Any,
    state_dict: dict[str, Any],
    strict: bool = True,
    assign: bool = False,
) -> Any:
    """Put back what ``state_dict`` returned; a Cell also takes torch's arrays by torch's names.

    With ``assign`` a Parameter keeps its type, too: torch's takes that of what is loaded.

    Returns:
        Of a Cell the names that were missing and those that were not expected.

    Raises:
        BackendError: a name or shape does not fit; nothing has changed.
        NotImplementedError: ``assign``, and what is loaded has another type.
    """
    if isinstance(holder, OwnOptimizer):
        holder.load_state_dict(state_dict)
    elif isinstance(holder, ms.amp.LossScaler):
        _load_scaler(holder, state_dict)
    elif has_groups(holder):
        _load_optimizer(holder, state_dict)
    elif isinstance(holder, nn.Cell):
        if assign:
            _check_types(holder, state_dict)
        return _load_cell(holder, state_dict, strict)
    else:
        return holder.load_state_dict(*((state_dict,) if strict is True else (state_dict, strict)))
    return None


def _check_types(cell: Any, state: dict[str, Any]) -> None:
    for name, own in live_state_dict(cell).items():
        dtype = getattr(state.get(name, own), "dtype", own.dtype)
        if str(dtype).rpartition(".")[2].lower() != str(own.dtype).lower():
            msg = (
                f"{name} is {own.dtype}, what is loaded {dtype}: with assign=True torch's becomes "
                "that; a Parameter keeps its type here. Leave assign out, or convert what is loaded"
            )
            raise NotImplementedError(msg)


def put_back(held: Any, value: Any) -> Any:
    """Return what a checkpoint gives for ``held``: a Cell itself, with the weights saved of it."""
    if isinstance(held, nn.Cell) and isinstance(value, dict):
        load_state_dict(held, value)
        return held
    return value


def _load_cell(cell: Any, state: dict[str, Any], strict: bool) -> Unmatched:
    targets = {name: param for name, param, _ in _every(cell)} | dict(_buffers(cell))
    given = {n: v for n, v in state.items() if n.rpartition(".")[2] != _KEPT}
    missing = [name for name in targets if name not in given]
    surplus = [name for name in given if name not in targets]
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
        fresh = value.reshape(target.shape).astype(target.dtype)
        if isinstance(target, ms.Parameter):
            ops.assign(target, fresh)
        else:  # a buffer may be a view (`pe.unsqueeze(0)`), which nothing can be assigned to
            target.assign_value(fresh.copy())
    return Unmatched(missing, surplus)


def _tensor(value: Any) -> Any:
    return value if isinstance(value, Tensor) else Tensor(value)


def _optimizer_parameters(optimizer: Any) -> dict[str, Any]:
    trained = {id(param) for param in optimizer.parameters}
    own = [param for param in optimizer.get_parameters() if id(param) not in trained]
    found = {f"{place}": param for place, param in enumerate(own)}
    for place, group in enumerate(optimizer.param_groups):
        own_rate = getattr(group, "parameter", None)  # whose truth is that of its number: 0 is none
        rate = group.get("lr") if own_rate is None else own_rate
        if isinstance(rate, ms.Parameter):
            found[f"lr.{place}"] = rate
    return found


class _OptimizerState(dict[str, Any]):
    """The tensors of an optimizer and its groups; torch's ``state`` is made when asked for."""

    def __init__(self, optimizer: Any) -> None:
        held = _optimizer_parameters(optimizer)
        tensors = {name: param.value().copy() for name, param in held.items()}
        super().__init__({**tensors, _GROUPS: _saved_groups(optimizer)})
        self._optimizer = weakref.ref(optimizer)  # a copy of the state is none of the optimizer

    def __missing__(self, key: str) -> Any:
        """Return what is kept of each parameter, by numbers, as torch does."""
        optimizer: Any = self._optimizer()
        if key != "state" or not hasattr(optimizer, "state"):
            raise KeyError(key)
        slots = ((n, optimizer.state[param]) for n, param in enumerate(optimizer.parameters))
        return {number: own for number, own in slots if own}

    def get(self, key: str, default: Any = None) -> Any:
        """Return it, too."""
        try:
            return self[key]
        except KeyError:
            return default


def _saved_groups(optimizer: Any) -> list[dict[str, Any]]:
    """Return what the groups are set to, with the places of their parameters, as torch has it."""
    groups, first = [], 0
    for group in optimizer.param_groups:
        own = {key: _as_number(value) for key, value in group.items() if key != "params"}
        last = first + len(group["params"])
        settings = {key: value for key, value in own.items() if _is_setting(value)}
        groups.append({**settings, "params": list(range(first, last))})
        first = last
    return groups


def _is_setting(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(_is_setting(one) for one in value)
    return value is None or isinstance(value, (bool, int, float, str))


def _as_number(value: Any) -> Any:
    if isinstance(value, Tensor) and value.size == 1:
        return value.asnumpy().item()
    return value.item() if isinstance(value, np.generic) else value


def _optimizer_state(optimizer: Any) -> dict[str, Any]:
    return _OptimizerState(optimizer)


def _load_optimizer(optimizer: Any, state: dict[str, Any]) -> None:
    targets = _optimizer_parameters(optimizer)
    tensors = {name: value for name, value in state.items() if name != _GROUPS}
    if set(targets) != set(tensors):
        msg = (
            f"`state` must be of an optimizer of the same kind: {len(tensors)} tensors against "
            f"{len(targets)} here"
        )
        raise BackendError(msg)
    for name, value in tensors.items():
        ops.assign(targets[name], _tensor(value).astype(targets[name].dtype))
    for group, given in zip(optimizer.param_groups, state.get(_GROUPS, ()), strict=False):
        for key, value in given.items():
            if key == "lr":
                set_lr(group, value)
            elif key != "params":
                group[key] = _as_number(value)


def rounded(cell: Any, dtype: Any) -> Any:
    """Round what a Cell holds to ``dtype`` and back, as ``net.half().float()`` does; return it."""
    if not isinstance(cell, nn.Cell):
        return cell.to(dtype)
    for _, held, _ in _every(cell):
        if held.dtype in (ms.float32, ms.float64):
            put(held, held.astype(dtype).astype(held.dtype))
    return cell


def fill(tensor: Any, init: Any) -> Any:
    """Give a Parameter the values of an initializer, in place; return it."""
    ops.assign(tensor, initializer(init, tensor.shape, tensor.dtype).init_data())
    return tensor


def fill_part(whole: Any, place: Any, init: Any) -> Any:
    """Give a part of a Parameter, ``whole[place]``, the values of an initializer; return it."""
    part = whole[place]
    whole[place] = initializer(init, part.shape, part.dtype).init_data()
    return whole[place]


def fill_seen(whole: Any, init: Any, *shape: Any) -> Any:
    """Give a Parameter values that an initializer has for another shape of it; return it."""
    seen = whole.view(*shape)
    values = initializer(init, seen.shape, seen.dtype).init_data()
    ops.assign(whole, values.reshape(whole.shape))
    return whole.view(*shape)


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
        cell.requires_grad = requires_grad  # where all is recorded, it is a leaf from here on
        return cell
    for param in parameters(cell):
        param.requires_grad = requires_grad
    return cell


@own_first
def get_submodule(cell: Any, target: str) -> Any:
    """Return the Cell at a path such as ``"layers.0"``; of an empty one the Cell itself."""
    for name in target.split(".") if target else ():
        cell = cell._cells[name]
    return cell


def in_training(made: Any) -> Any:
    """Put a Cell into training mode, as torch's modules start; return it, or what else it is."""
    return start_training(made) if isinstance(made, nn.Cell) else made


def started(make: Any) -> Any:
    """Return what makes a Cell in training mode, of a class of Cells; anything else as it is.

    What a function makes it hands over in a mode of its own choice.
    """
    if not isinstance(make, type) or not issubclass(make, nn.Cell):
        return make
    return lambda *args, **keywords: start_training(make(*args, **keywords))

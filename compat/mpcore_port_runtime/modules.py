"""What torch's modules have and Cells lack: parameters by torch's names, state, fills."""

from __future__ import annotations

import re
import weakref
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops
from mindspore.common.initializer import Uniform, initializer
from mindspore.experimental import optim

from mpcore.errors import BackendError
from mpcore_port_runtime import recorded
from mpcore_port_runtime.instances import InstanceNorm1d, InstanceNorm2d, InstanceNorm3d
from mpcore_port_runtime.overridden import asked_in_turn, is_of_script, own_first, start_training
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
    "forward_of",
    "get_submodule",
    "grad_of",
    "held",
    "hold",
    "holds",
    "in_training",
    "live_state_dict",
    "load_from_state_dict",
    "load_state_dict",
    "modules",
    "named_buffers",
    "named_children",
    "named_modules",
    "named_parameters",
    "parameters",
    "put_back",
    "register_load_hook",
    "register_parameter",
    "requires_grad_",
    "save_to_state_dict",
    "set_part",
    "started",
    "state_dict",
    "train",
]

_GROUPS = "param_groups"
_LOADED = ("_load_from_state_dict", "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks")
_SAVED = ("_save_to_state_dict", "_state_dict_pre_hooks", "_state_dict_hooks")
_NORM = {"gamma": "weight", "beta": "bias"}
_STATISTICS = {"moving_mean": "running_mean", "moving_variance": "running_var"}
_OF_STATISTICS = {other: one for one, other in _STATISTICS.items()}
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
_LIVE: list[Any] = []  # what is asked for its Parameters themselves at the moment


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
    word = native.get(name, name)
    if renews_buffer(owner, word, value):
        return
    setattr(owner, word, value)
    if name == "bias" and hasattr(owner, "has_bias"):
        owner.has_bias = value is not None  # MindSpore's layers ask that, not the bias
        if not hasattr(owner, "bias_add"):
            owner.bias_add = ops.BiasAdd()


def renews_buffer(owner: Any, name: str, value: Any) -> bool:
    """Register a buffer anew, and return whether it is one; it stays in the state, or out of it."""
    if not isinstance(value, Tensor):
        return False
    word = _OF_STATISTICS.get(name, name)
    if word in _STATISTICS and isinstance(owner, nn.BatchNorm3d):
        owner = owner.bn2d  # a Cell of MindSpore's own, which has them
    if word in _STATISTICS and word in owner.__dict__.get("_params", ()):
        _renew_statistics(owner, word, value)
        return True
    if name not in owner.__dict__.get("_buffers", ()):
        return False
    kept = name not in owner._non_persistent_buffers_set
    plain = value.value() if isinstance(value, ms.Parameter) else value
    owner.register_buffer(name, plain, persistent=kept)
    return True


def _renew_statistics(norm: Any, word: str, value: Any) -> None:
    """Give a norm other statistics, of another size perhaps: they are no buffers in MindSpore."""
    held = norm._params[word]
    if held.shape == value.shape and held.dtype == value.dtype:
        held.set_data(value)
    else:
        plain = value.value() if isinstance(value, ms.Parameter) else value
        norm._params[word] = ms.Parameter(plain, name=held.name, requires_grad=False)


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


def _shown(cell: Any, again: bool = False) -> Iterator[tuple[str, Any]]:
    """Yield the Cell and all below it by torch's paths; what torch holds itself by its owner's.

    With ``again`` a Cell that has two owners comes twice, as in torch's ``state_dict``.
    """
    held: tuple[str, ...] = ()
    renamed: dict[str, str] = {}
    for path, inner in _all_below(cell, "", ()) if again else cell.cells_and_names():
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


def _all_below(cell: Any, path: str, above: tuple[int, ...]) -> Iterator[tuple[str, Any]]:
    yield path, cell
    for name, inner in cell._cells.items():
        if inner is not None and id(inner) not in above:
            yield from _all_below(inner, f"{path}.{name}" if path else name, (*above, id(cell)))


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
    yield from (inner for _, inner in named_children(cell))


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
    """Return what ``load_state_dict`` takes: of a Cell by torch's names, else by its own.

    Of a Cell it is an ``OrderedDict``, as torch's is: scripts tell bare weights by that.
    """
    if isinstance(holder, OwnOptimizer):
        return holder.state_dict()
    if isinstance(holder, ms.amp.LossScaler):
        return _scaler_state(holder)
    if has_groups(holder):
        return _optimizer_state(holder)
    if isinstance(holder, nn.Cell):
        if asked_in_turn(holder, _SAVED) or _has_own_states(holder):
            found = _saved_in_turn(holder, OrderedDict(), prefix, keep_vars)
        else:
            kept = _kept(_live(holder), keep_vars).items()
            found = OrderedDict((prefix + name, one) for name, one in kept)
        if destination is None:
            return found
        destination.update(found)
        return cast("dict[str, Any]", destination)
    return dict(holder.state_dict(**({"prefix": prefix} if prefix else {})))


def _has_own_states(cell: Any) -> bool:
    """Return whether a Cell below has a ``state_dict`` of its own, which torch asks."""
    inner = (one for _, one in cell.cells_and_names() if one is not cell)
    return any(is_of_script(type(one), "state_dict") for one in inner)


def _kept(parts: dict[str, Any], keep_vars: bool) -> dict[str, Any]:
    """Return copies of parts, or the parts themselves."""
    kept = keep_vars or bool(_LIVE)
    return {name: one if kept else _value_of(one).copy() for name, one in parts.items()}


@own_first
def _save_to_state_dict(cell: Any, destination: Any, prefix: str, keep_vars: bool) -> None:
    """Put a Cell's own parts into a state, those of no Cell below it."""
    for name, one in _kept(_own_parts(cell), keep_vars).items():
        destination[prefix + name] = one


save_to_state_dict = _save_to_state_dict


def _saved_in_turn(
    cell: Any, found: dict[str, Any], prefix: str, keep_vars: bool
) -> dict[str, Any]:
    """Return a state that each Cell's own method or hooks have a say in, as torch's does."""
    for hook in cell._state_dict_pre_hooks.values():
        hook(cell, prefix, keep_vars)
    _save_to_state_dict(cell, found, prefix, keep_vars)
    for name, inner in named_children(cell):
        if not isinstance(inner, nn.Cell) or is_of_script(type(inner), "state_dict"):
            inner.state_dict(destination=found, prefix=f"{prefix}{name}.", keep_vars=keep_vars)
        else:
            _saved_in_turn(inner, found, f"{prefix}{name}.", keep_vars)
    for hook in cell._state_dict_hooks.values():
        hook(cell, found, prefix, {})
    return found


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


def live_state_dict(holder: Any) -> dict[str, Any]:
    """Return the Parameters and buffers themselves, by torch's names: what is put in them stays.

    A class that has a ``state_dict`` of its own gives what that chooses of them.
    """
    _LIVE.append(holder)
    try:
        return state_dict(holder)
    finally:
        _LIVE.pop()


def _live(cell: Any) -> dict[str, Any]:
    """Return what a state holds in torch's order: of each Cell Parameters, then buffers.

    What has two owners is there by both names.
    """
    found: dict[str, Any] = {}
    for path, inner in _shown(cell, again=True):
        dot = f"{path}." if path else ""
        params = {torch_name(inner, name): one for name, one in _in_order(inner)}
        buffers = {
            name: buffer
            for name, buffer in inner._buffers.items()
            if name not in inner._non_persistent_buffers_set
        }
        for name, one in (params | buffers).items():
            if one is not None:
                found[dot + name] = one
    return found


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
        BackendError: a name or shape does not fit; what fits has been loaded, as in torch.
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
    for name, own in _live(cell).items():
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


def register_load_hook(cell: Any, hook: Any, with_module: bool = False) -> Any:
    """Have a hook change what is loaded into a Cell, as ``_register_load_state_dict_pre_hook``.

    Source: ``torch.nn.Module``, torch/nn/modules/module.py, torch 2.13.0.
    """
    if with_module:
        return cell.register_load_state_dict_pre_hook(hook)
    return cell.register_load_state_dict_pre_hook(lambda _, *given: hook(*given))


def _own_parts(cell: Any) -> dict[str, Any]:
    """Return what a Cell holds itself by torch's names: nothing of the Cells below it."""
    below = tuple(f"{name}." for name, _ in named_children(cell))
    return {n: one for n, one in _live(cell).items() if not n.startswith(below or "\n")}


@own_first
def _load_from_state_dict(
    cell: Any,
    state_dict: Any,
    prefix: str,
    local_metadata: Any,
    strict: bool,
    missing_keys: list[str],
    unexpected_keys: list[str],
    error_msgs: list[str],
) -> None:
    """Put what a Cell holds itself back from a state, and write down what did not fit.

    Source: ``torch.nn.Module``, torch/nn/modules/module.py, torch 2.13.0.
    """
    if not isinstance(cell, nn.Cell):
        lists = (missing_keys, unexpected_keys, error_msgs)
        cell._load_from_state_dict(state_dict, prefix, local_metadata, strict, *lists)
        return
    for hook in cell._load_state_dict_pre_hooks.values():
        lists = (missing_keys, unexpected_keys, error_msgs)
        hook(cell, state_dict, prefix, local_metadata, strict, *lists)
    held = _own_parts(cell)
    for name, target in held.items():
        key = prefix + name
        if key not in state_dict:
            missing_keys += [key] if strict else []
        else:
            error_msgs += _put_where_it_fits(target, state_dict[key], key, cell)
    if strict:
        below = [*(f"{name}." for name, _ in named_children(cell)), *held]
        known = {*held, _KEPT, *("".join(name.partition(".")[:2]) for name in below)}
        own = [key.removeprefix(prefix) for key in state_dict if key.startswith(prefix)]
        unexpected_keys += [
            prefix + one for one in own if "".join(one.partition(".")[:2]) not in known
        ]


load_from_state_dict = _load_from_state_dict


def _load_in_turn(cell: Any, state: Any, strict: bool) -> Unmatched:
    """Load a state that each Cell's own method or hooks have a say in, as torch's does."""
    missing: list[str] = []
    surplus: list[str] = []
    errors: list[str] = []

    def load(inner: Any, given: dict[str, Any], prefix: str) -> None:
        _load_from_state_dict(inner, given, prefix, {}, True, missing, surplus, errors)
        for name, one in named_children(inner):
            front = f"{prefix}{name}."
            load(one, {n: v for n, v in given.items() if n.startswith(front)}, front)
        for hook in inner._load_state_dict_post_hooks.values():
            hook(inner, Unmatched(missing, surplus))

    load(cell, dict(state), "")
    _raise_unfit(cell, (missing, surplus) if strict else ([], []), errors)
    return Unmatched(missing, surplus)


def _load_cell(cell: Any, state: dict[str, Any], strict: bool) -> Unmatched:
    if asked_in_turn(cell, _LOADED):
        return _load_in_turn(cell, state, strict)
    targets = _live(cell)
    given = {n: v for n, v in state.items() if n.rpartition(".")[2] != _KEPT}
    missing = [name for name in targets if name not in given]
    surplus = [name for name in given if name not in targets]
    errors = []
    for name, target in targets.items():
        if name in given:
            errors += _put_where_it_fits(target, given[name], name, cell)
    _raise_unfit(cell, (missing, surplus) if strict else ([], []), errors)
    return Unmatched(missing, surplus)


def _raise_unfit(cell: Any, names: tuple[list[str], list[str]], errors: list[str]) -> None:
    """Raise in torch's words, which scripts look for; what fits has been loaded by then, as there.

    Source: ``torch.nn.Module.load_state_dict``, torch/nn/modules/module.py, torch 2.13.0.
    """
    kinds = zip(("Missing", "Unexpected"), names, strict=True)
    listed = [(kind, ", ".join(f'"{one}"' for one in found)) for kind, found in kinds if found]
    said = [f"{kind} key(s) in state_dict: {found}. " for kind, found in listed] + errors
    if said:
        inner = "\n\t".join(said)
        msg = f"Error(s) in loading state_dict for {class_name(cell)}:\n\t{inner}"
        raise BackendError(msg)


def _put_where_it_fits(target: Any, value: Any, name: str, cell: Any) -> list[str]:
    """Put a value into its place, or return what torch says where its shape is another.

    A convolution in one axis has an axis of 1 more here; one number fits a tensor without axes.
    """
    given = _tensor(value)
    theirs, own = tuple(given.shape), tuple(target.shape)
    less, more = sorted((theirs, own), key=len)
    narrow = len(less) == 3 and more == (*less[:2], 1, less[2])
    if theirs == own or narrow or (theirs, own) == ((1,), ()):
        _put_into(target, given)
        return []
    sizes = [f"torch.Size({list(one)})" for one in (theirs, own)]
    return [
        f"size mismatch for {name}: copying a param with shape {sizes[0]} from checkpoint, "
        f"the shape in current model is {sizes[1]}."
    ]


def _put_into(target: Any, value: Any) -> None:
    fresh = value.reshape(target.shape).astype(target.dtype)
    if isinstance(target, ms.Parameter):
        ops.assign(target, fresh)
    else:  # a buffer may be a view (`pe.unsqueeze(0)`), which nothing can be assigned to
        target.assign_value(fresh.copy())


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
    """The tensors of an optimizer and its groups; torch's ``state`` is made when asked for.

    One that is made as a dictionary is, ``type(state)({...})``, is of no optimizer.
    """

    _optimizer: Any = None

    @classmethod
    def of(cls, optimizer: Any) -> _OptimizerState:
        """Return the state of an optimizer."""
        held = _optimizer_parameters(optimizer)
        tensors = {name: param.value().copy() for name, param in held.items()}
        made = cls({**tensors, _GROUPS: _saved_groups(optimizer)})
        made._optimizer = weakref.ref(optimizer)  # a copy of the state is none of the optimizer
        return made

    def __missing__(self, key: str) -> Any:
        """Return what is kept of each parameter, by numbers, as torch does."""
        optimizer: Any = self._optimizer and self._optimizer()
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
    return _OptimizerState.of(optimizer)


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
        recorded.want(cell, requires_grad)
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


def forward_of(holder: Any) -> Any:
    """Return what ``holder.forward`` is: of a Cell ``construct``, of another object its own."""
    return holder.construct if isinstance(holder, nn.Cell) else holder.forward


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

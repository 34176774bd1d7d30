"""Weights that are computed of other Parameters each time a layer runs.

Names of Parameters and buffers are torch's, of both of its ways. Sources, torch 2.13.0:
``torch/nn/utils/weight_norm.py``, ``spectral_norm.py``, ``parametrizations.py``,
``parametrize.py``; papers: Salimans 2016 (arXiv 1602.07868), Miyato 2018 (1802.05957).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import mindspore as ms
from mindspore import nn, ops

from mpcore.errors import BackendError

__all__ = [
    "parametrized_spectral_norm",
    "parametrized_weight_norm",
    "remove_parametrizations",
    "remove_spectral_norm",
    "remove_weight_norm",
    "spectral_norm",
    "weight_norm",
]

_FLAT = 4  # axes of a weight of MindSpore's own layers of one dimension
_NEWER = "parametrizations"  # the Cell that torch's newer way keeps originals in
_FIRST_STEPS = 15  # power iterations of torch.nn.utils.parametrizations.spectral_norm's start


@dataclass(frozen=True)
class _WeightNorm:
    """``weight = g * v / |v|``.

    Attributes:
        holder: where the Parameters are, below the layer: names of Cells.
        g: the name of the length.
        v: the name of the direction.
        dim: the axis whose slices have a length each; None for one of all.
        axes: how many axes the layer's own weight has.
    """

    holder: tuple[str, ...]
    g: str
    v: str
    dim: int | None
    axes: int

    def of(self, cell: Any) -> Any:
        """Return the weight."""
        held = _below(cell, self.holder)
        v = getattr(held, self.v)
        made = v * (getattr(held, self.g) / _length(v, self.dim))
        return made if made.ndim == self.axes else made.expand_dims(2)


@dataclass(frozen=True)
class _SpectralNorm:
    """``weight = w / s``, where ``s`` is the largest singular value of ``w`` as a matrix.

    Attributes:
        holder: where the Parameter is, below the layer: names of Cells.
        original: its name.
        vectors: where the buffers are, below the layer.
        u: the name of the left singular vector.
        v: the name of the right one.
        dim: the axis of the matrix' rows.
        steps: power iterations of a run in training mode.
        eps: the least length by which a vector is divided.
        axes: how many axes the layer's own weight has.
    """

    holder: tuple[str, ...]
    original: str
    vectors: tuple[str, ...]
    u: str
    v: str
    dim: int
    steps: int
    eps: float
    axes: int

    def of(self, cell: Any) -> Any:
        """Return the weight; in training mode the vectors move first."""
        whole = getattr(_below(cell, self.holder), self.original)
        matrix = _rows(whole, self.dim)
        held = _below(cell, self.vectors)
        if cell.training:
            self.move(matrix, held, self.steps)
        u, v = held._buffers[self.u], held._buffers[self.v]
        made = whole / (u * ops.mv(matrix, v)).sum()
        return made if made.ndim == self.axes else made.expand_dims(2)

    def move(self, matrix: Any, held: Any, steps: int) -> None:
        """Run power iterations; nothing of them is differentiated."""
        matrix = ops.stop_gradient(matrix)
        u, v = held._buffers[self.u], held._buffers[self.v]
        if self.holder:  # torch's newer way moves the left one first
            for _ in range(steps):
                u = _unit(ops.mv(matrix, v), self.eps)
                v = _unit(ops.mv(matrix.T, u), self.eps)
        else:
            for _ in range(steps):
                v = _unit(ops.mv(matrix.T, u), self.eps)
                u = _unit(ops.mv(matrix, v), self.eps)
        held._buffers[self.u] = ops.stop_gradient(u)
        held._buffers[self.v] = ops.stop_gradient(v)


class _Computed:
    """A layer whose weights are made anew whenever it runs."""

    def construct(self, *args: Any, **given: Any) -> Any:
        """Run the layer with the weights of now."""
        _renew(self)
        return super().construct(*args, **given)  # type: ignore[misc]  # nn.Cell's


def _renew(cell: Any) -> None:
    for name, recipe in cell.__dict__["_mpcore_recipes"].items():
        cell.__dict__[name] = recipe.of(cell)


def weight_norm(module: Any, name: str = "weight", dim: int | None = 0) -> Any:
    """Return a layer whose weight is ``weight_g * weight_v / |weight_v|``, the layer itself.

    Args:
        module: a layer; it is changed.
        name: of the Parameter.
        dim: the axis whose slices have a length each; None for one length of all.

    Raises:
        BackendError: the layer has no such Parameter, or it is computed already.
    """
    return _by_length(module, name, dim, (), f"{name}_g", f"{name}_v")


def parametrized_weight_norm(module: Any, name: str = "weight", dim: int | None = 0) -> Any:
    """Return what ``torch.nn.utils.parametrizations.weight_norm`` does: by its names."""
    return _by_length(module, name, dim, (_NEWER, name), "original0", "original1")


def spectral_norm(
    module: Any,
    name: str = "weight",
    n_power_iterations: int = 1,
    eps: float = 1e-12,
    dim: int | None = None,
) -> Any:
    """Return a layer whose weight is divided by its largest singular value, the layer itself.

    Args:
        module: a layer; it is changed. Its vectors start from other random numbers than torch's.
        name: of the Parameter.
        n_power_iterations: how often the vectors move when it runs in training mode.
        eps: the least length by which a vector is divided.
        dim: the axis of the matrix' rows; None for 1 of transposed convolutions, else 0.

    Raises:
        BackendError: the layer has no such Parameter, or it is computed already.
    """
    words = ((), f"{name}_orig", (), f"{name}_u", f"{name}_v")
    return _by_spectrum(module, name, words, _dim(module, dim), n_power_iterations, eps)


def parametrized_spectral_norm(
    module: Any,
    name: str = "weight",
    n_power_iterations: int = 1,
    eps: float = 1e-12,
    dim: int | None = None,
) -> Any:
    """Return what ``torch.nn.utils.parametrizations.spectral_norm`` does: by its names."""
    holder = (_NEWER, name)
    words = (holder, "original", (*holder, "0"), "_u", "_v")
    return _by_spectrum(module, name, words, _dim(module, dim), n_power_iterations, eps)


def _by_length(
    module: Any, name: str, dim: int | None, holder: tuple[str, ...], g: str, v: str
) -> Any:
    value, front, axes = _taken(module, name, "weight_norm")
    _put(module, holder, g, _length(value, dim), front)
    _put(module, holder, v, value, front)
    return _with(module, name, _WeightNorm(holder, g, v, dim, axes))


def _by_spectrum(
    module: Any,
    name: str,
    words: tuple[tuple[str, ...], str, tuple[str, ...], str, str],
    dim: int,
    steps: int,
    eps: float,
) -> Any:
    value, front, axes = _taken(module, name, "spectral_norm")
    recipe = _SpectralNorm(*words, dim, steps, eps, axes)
    _put(module, recipe.holder, recipe.original, value, front)
    matrix, held = _rows(value, dim), _below(module, recipe.vectors)
    for vector, size in ((recipe.u, matrix.shape[0]), (recipe.v, matrix.shape[1])):
        held.register_buffer(vector, _unit(ops.randn(size), eps))
    if recipe.holder:
        recipe.move(matrix, held, _FIRST_STEPS)
    return _with(module, name, recipe)


def remove_weight_norm(module: Any, name: str = "weight") -> Any:
    """Return the layer with the weight of now as its Parameter."""
    return _removed(module, name, _WeightNorm, "weight_norm")


def remove_spectral_norm(module: Any, name: str = "weight") -> Any:
    """Return the layer with the weight of now as its Parameter."""
    return _removed(module, name, _SpectralNorm, "spectral_norm")


def remove_parametrizations(module: Any, tensor_name: str, leave_parametrized: bool = True) -> Any:
    """Return the layer with the weight of now, or with the original one, as its Parameter."""
    recipe = module.__dict__.get("_mpcore_recipes", {}).get(tensor_name)
    if recipe is None or not recipe.holder:
        msg = f"{tensor_name!r} of {type(module).__name__} has no parametrization"
        raise BackendError(msg)
    if not leave_parametrized and isinstance(recipe, _WeightNorm):
        msg = "`leave_parametrized` must be True: what is normed has two originals"
        raise BackendError(msg)
    value = None
    if not leave_parametrized:
        value = getattr(_below(module, recipe.holder), recipe.original).value()
    return _removed(module, tensor_name, type(recipe), "parametrization", value)


# --- what they share ------------------------------------------------------------------------------


def _below(cell: Any, path: tuple[str, ...]) -> Any:
    """Return the Cell at a path, and make those on it that are not there."""
    for name in path:
        if name not in cell._cells:
            cell.insert_child_to_cell(name, nn.Cell())
        cell = cell._cells[name]
    return cell


def _length(value: Any, dim: int | None) -> Any:
    """Return lengths in float32, with the value's axes; of all one without axes."""
    wide = value.astype(ms.float32)
    if dim is None or dim == -1:  # torch takes -1 for all
        return (wide * wide).sum().sqrt()
    axes = tuple(axis for axis in range(value.ndim) if axis != dim % value.ndim)
    return (wide * wide).sum(axes, keepdims=True).sqrt()


def _rows(value: Any, dim: int) -> Any:
    """Return a weight as a matrix, an axis of it as rows."""
    if dim:
        others = [axis for axis in range(value.ndim) if axis != dim]
        value = value.permute(dim, *others)
    return value.reshape(value.shape[0], -1)


def _unit(vector: Any, eps: float) -> Any:
    return vector / ops.clamp((vector * vector).sum().sqrt(), min=eps)


def _dim(module: Any, dim: int | None) -> int:
    back = (nn.Conv1dTranspose, nn.Conv2dTranspose, nn.Conv3dTranspose)
    return int(isinstance(module, back)) if dim is None else dim


def _taken(module: Any, name: str, what: str) -> tuple[Any, str, int]:
    """Take a Parameter out of a layer: its values by torch's axes, its name's front, its axes."""
    held = getattr(module, "_params", {}).get(name)
    if held is None:
        found = ", ".join(getattr(module, "_params", {})) or "none"
        msg = f"{what}: {type(module).__name__} has no Parameter {name!r}; it has {found}"
        raise BackendError(msg)
    if isinstance(module, nn.LSTM | nn.GRU | nn.RNN):
        msg = f"{what} of a recurrent layer is not ported: its kernel takes Parameters"
        raise BackendError(msg)
    value = held.value().copy()
    axes = value.ndim
    if isinstance(module, nn.Conv1d | nn.Conv1dTranspose) and axes == _FLAT:
        value = value.squeeze(2)
    del module._params[name]
    module.__dict__.pop(name, None)
    return value, held.name.removesuffix(name), axes


def _put(module: Any, holder: tuple[str, ...], name: str, value: Any, front: str) -> None:
    path = "".join(f"{part}." for part in holder)
    param = ms.Parameter(value, name=f"{front}{path}{name}")
    _below(module, holder).insert_param_to_cell(name, param)


def _with(module: Any, name: str, recipe: Any) -> Any:
    """Give a layer its recipe, and a class that follows it."""
    recipes = module.__dict__.setdefault("_mpcore_recipes", {})
    recipes[name] = recipe
    if not isinstance(module, _Computed):
        own, word = type(module), "Parametrized" if recipe.holder else ""
        space = {"__module__": own.__module__, "__doc__": own.__doc__}
        module.__class__ = type(word + own.__name__, (_Computed, own), space)
    training, module.training = module.training, False  # its vectors stay
    _renew(module)
    module.training = training
    return module


def _removed(module: Any, name: str, kind: Any, what: str, value: Any = None) -> Any:
    recipes = module.__dict__.get("_mpcore_recipes", {})
    recipe: Any = recipes.get(name)
    if type(recipe) is not kind:
        msg = f"{what} of {name!r} not found in {type(module).__name__}"
        raise ValueError(msg)
    training, module.training = module.training, False
    value = recipe.of(module) if value is None else value
    module.training = training
    held = _below(module, recipe.holder)
    words = (recipe.g, recipe.v) if isinstance(recipe, _WeightNorm) else (recipe.original,)
    front = held._params[words[0]].name.removesuffix(words[0])
    for word in words:
        del held._params[word]
    if isinstance(recipe, _SpectralNorm):
        vectors = _below(module, recipe.vectors)
        del vectors._buffers[recipe.u], vectors._buffers[recipe.v]
    if recipe.holder:
        front = front.removesuffix(f"{_NEWER}.{name}.")
        del module._cells[_NEWER]._cells[name]
        if not module._cells[_NEWER]._cells:
            del module._cells[_NEWER]
    del recipes[name], module.__dict__[name]
    if not recipes:
        module.__class__ = type(module).__mro__[2]
    _put(module, (), name, value, front)
    return module

"""Cells of torch's meaning where mindspore.nn has another one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mindspore as ms
from mindspore import nn, ops

from mpcore_port_runtime.device import get_world_size
from mpcore_port_runtime.functional import as_tuple, layer_norm, selu
from mpcore_port_runtime.resizing import interpolate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = [
    "SELU",
    "CrossEntropyLoss",
    "Dropout2d",
    "Embedding",
    "LayerNorm",
    "LogSoftmax",
    "ModuleDict",
    "ModuleList",
    "NLLLoss",
    "Sequential",
    "Softmax",
    "Softplus",
    "Upsample",
    "convert_sync_batchnorm",
    "embedding_of",
    "log_softmax",
    "softmax",
]


def _axis(x: Any) -> int:
    """Return the axis of a softmax that is not told one.

    Source: ``_get_softmax_dim`` in torch/nn/functional.py, torch 2.13.0.
    """
    return 0 if x.ndim in (0, 1, 3) else 1


def softmax(logits: Any, dtype: Any = None) -> Any:
    """Return torch.nn.functional.softmax of a tensor alone: its rank says the axis."""
    return ops.softmax(logits, axis=_axis(logits), dtype=dtype)


def log_softmax(
    logits: Any = None,
    dim: int | None = None,
    _stacklevel: Any = None,
    dtype: Any = None,
    *,
    input: Any = None,  # torch's name
) -> Any:
    """Return torch's log_softmax; without an axis the rank of the tensor says it.

    Of ``torch.log_softmax`` the third argument is the type that the tensor is cast to first.
    """
    logits = input if logits is None else logits
    if isinstance(_stacklevel, ms.Type):
        dtype = _stacklevel
    logits = logits if dtype is None else logits.astype(dtype)
    return ops.log_softmax(logits, axis=_axis(logits) if dim is None else dim)


class Softmax(nn.Cell):  # type: ignore[misc]  # nn.Cell is untyped
    """torch.nn.Softmax without an axis."""

    def construct(self, logits: Any) -> Any:
        """Return the shares along the axis that the rank says."""
        return softmax(logits)


class LogSoftmax(nn.Cell):  # type: ignore[misc]
    """torch.nn.LogSoftmax without an axis."""

    def construct(self, logits: Any) -> Any:
        """Return the logarithms of the shares along the axis that the rank says."""
        return log_softmax(logits)


class CrossEntropyLoss(nn.Cell):  # type: ignore[misc]  # nn.Cell is untyped
    """torch.nn.CrossEntropyLoss; integer labels of any width."""

    def __init__(
        self,
        weight: Any = None,
        *,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__()
        self.weight, self.ignore_index, self.reduction = weight, ignore_index, reduction
        self.label_smoothing = float(label_smoothing)

    def construct(self, logits: Any, target: Any) -> Any:
        """Return the loss of logits (N, C) or (N, C, ...)."""
        given = self.weight, self.ignore_index, self.reduction, self.label_smoothing
        return ops.cross_entropy(logits, target, *given)


class NLLLoss(nn.Cell):  # type: ignore[misc]
    """torch.nn.NLLLoss; integer labels of any width."""

    def __init__(
        self, weight: Any = None, *, ignore_index: int = -100, reduction: str = "mean"
    ) -> None:
        super().__init__()
        self.weight, self.ignore_index, self.reduction = weight, ignore_index, reduction

    def construct(self, logits: Any, target: Any) -> Any:
        """Return the loss of log-probabilities (N, C)."""
        return ops.nll_loss(logits, target, self.weight, self.ignore_index, self.reduction)


class Sequential(nn.SequentialCell):  # type: ignore[misc]
    """torch.nn.Sequential for classes that are made of it: attributes are layers of the row."""

    def construct(self, input_data: Any) -> Any:
        """Return what the layers give, each of what the one before gave."""
        for cell in self._cells.values():
            if cell is not None:
                input_data = cell(input_data)
        return input_data


class Upsample(nn.Cell):  # type: ignore[misc]
    """torch.nn.Upsample."""

    def __init__(
        self,
        size: Any = None,
        scale_factor: Any = None,
        mode: str = "nearest",
        align_corners: bool | None = None,
        recompute_scale_factor: bool | None = None,
    ) -> None:
        super().__init__()
        self.size, self.scale_factor, self.mode = size, scale_factor, mode
        self.align_corners = align_corners
        self.recompute_scale_factor = recompute_scale_factor

    def construct(self, x: Any) -> Any:
        """Return ``x``, enlarged."""
        more = self.align_corners, self.recompute_scale_factor
        return interpolate(x, self.size, self.scale_factor, self.mode, *more)


class Softplus(nn.Cell):  # type: ignore[misc]
    """torch.nn.Softplus."""

    def __init__(self, beta: float = 1.0, threshold: float = 20.0) -> None:
        super().__init__()
        self.beta, self.threshold = beta, threshold

    def construct(self, x: Any) -> Any:
        """Return ``softplus(x)``."""
        return ops.softplus(x, self.beta, self.threshold)


class SELU(nn.Cell):  # type: ignore[misc]
    """torch.nn.SELU."""

    def construct(self, x: Any) -> Any:
        """Return ``selu(x)``."""
        return selu(x)


class LayerNorm(nn.LayerNorm):  # type: ignore[misc]
    """torch.nn.LayerNorm over several axes, or without a scale or a shift."""

    def __init__(
        self,
        normalized_shape: Any,
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        nn.Cell.__init__(self)  # nn.LayerNorm always makes both
        self.normalized_shape, self.epsilon = as_tuple(normalized_shape), float(eps)
        self.eps, self.elementwise_affine = self.epsilon, bool(elementwise_affine)
        self.gamma = ms.Parameter(ops.ones(self.normalized_shape)) if elementwise_affine else None
        shifted = elementwise_affine and bias
        self.beta = ms.Parameter(ops.zeros(self.normalized_shape)) if shifted else None

    def construct(self, x: Any) -> Any:
        """Return ``x`` with its last axes normalised."""
        return layer_norm(x, self.normalized_shape, self.gamma, self.beta, self.epsilon)

    def extend_repr(self) -> str:
        """Return what stands between the brackets of ``repr``."""
        return f"{self.normalized_shape}, eps={self.epsilon}, affine={self.gamma is not None}"


class Embedding(nn.Embedding):  # type: ignore[misc]
    """nn.Embedding whose padding row gets no gradient; sizes may be numbers of NumPy."""

    def __init__(
        self, vocab_size: int, embedding_size: int, *args: Any, padding_idx: Any = None, **more: Any
    ) -> None:
        rows = int(vocab_size)
        if padding_idx is not None and padding_idx < 0:
            padding_idx = rows + padding_idx
        super().__init__(rows, int(embedding_size), *args, padding_idx=padding_idx, **more)

    @property
    def weight(self) -> Any:
        """Its rows, by torch's name."""
        return self.embedding_table

    def construct(self, ids: Any) -> Any:
        """Return (*ids.shape, features)."""
        rows = super().construct(ids)
        if self.padding_idx is None:
            return rows
        padding = (ids == self.padding_idx).expand_dims(-1)
        return ops.where(padding, ops.stop_gradient(rows), rows)


def embedding_of(embeddings: Any, freeze: bool = True, padding_idx: int | None = None) -> Any:
    """Return an Embedding whose rows are ``embeddings``; frozen ones are not trained."""
    rows, size = embeddings.shape
    made = Embedding(rows, size, padding_idx=padding_idx)
    made.embedding_table.set_data(embeddings.astype(made.embedding_table.dtype))
    made.embedding_table.requires_grad = not freeze
    return made


class ModuleList(nn.CellList):  # type: ignore[misc]
    """A list of Cells that grows after it was given to another Cell.

    nn.CellList names Parameters of what comes later by their place in the list alone, and of two
    such lists an optimizer refuses the second.
    """

    def __init__(self, modules: Any = ()) -> None:
        super().__init__()
        self._path = ""
        self.extend(modules)

    def update_parameters_name(self, prefix: str = "", recurse: bool = True) -> None:
        """Take the name that the Cell around has for this list."""
        super().update_parameters_name(prefix, recurse)
        self._path = prefix

    def append(self, cell: Any) -> ModuleList:
        """Put a Cell behind the others, or None: a place without one."""
        if cell is None:
            self._cells[str(len(self))] = None
            return self
        if None in self._cells.values():  # CellList looks for names in all that it has
            self._cells[str(len(self))] = cell
        else:
            super().append(cell)
        cell.update_parameters_name(f"{self._path}{len(self) - 1}.")
        return self

    def extend(self, cells: Any) -> ModuleList:
        """Put Cells of any iterable behind the others."""
        for cell in cells:
            self.append(cell)
        return self

    def __iadd__(self, cells: Any) -> ModuleList:
        return self.extend(cells)

    def set_grad(self, flag: bool = True) -> None:
        """Say whether gradients are wanted, to the Cells that are there."""
        self.requires_grad = flag
        for cell in self._cells.values():
            if cell is not None:
                cell.set_grad(flag)


class ModuleDict(nn.Cell):  # type: ignore[misc]
    """Cells by name, each also an attribute; lists of Cells may be among them (not in CellDict)."""

    def __init__(self, modules: Any = None) -> None:
        super().__init__()
        self.update(modules or {})

    def update(self, modules: Any) -> None:
        """Take Cells from a dictionary, or from pairs."""
        for name, cell in dict(modules).items():
            self[name] = cell

    def __setitem__(self, name: str, cell: Any) -> None:
        setattr(self, name, cell)

    def __getitem__(self, name: str) -> Any:
        return self._cells[name]

    def __delitem__(self, name: str) -> None:
        delattr(self, name)

    def __contains__(self, name: object) -> bool:
        return name in self._cells

    def __iter__(self) -> Iterator[str]:
        return iter(self._cells)

    def __len__(self) -> int:
        return len(self._cells)

    def keys(self) -> Any:
        """Return the names."""
        return self._cells.keys()

    def values(self) -> Any:
        """Return the Cells."""
        return self._cells.values()

    def items(self) -> Any:
        """Return names and Cells."""
        return self._cells.items()

    def pop(self, name: str) -> Any:
        """Take a Cell away, and return it."""
        cell = self[name]
        del self[name]
        return cell

    def clear(self) -> None:
        """Take all away."""
        for name in list(self):
            del self[name]


class Dropout2d(nn.Dropout2d):  # type: ignore[misc]
    """nn.Dropout2d that takes (N, C) and (N, C, L) too, as torch's does."""

    def __init__(self, p: float = 0.5) -> None:
        super().__init__(p=float(p))

    def construct(self, x: Any) -> Any:
        """Return ``x`` with whole channels left out."""
        wanted = tuple(x.shape)
        if len(wanted) >= 4:
            return super().construct(x)
        return super().construct(x.reshape((*wanted, *(1,) * (4 - len(wanted))))).reshape(wanted)


def convert_sync_batchnorm(module: Any) -> Any:
    """Have batch normalisations count over all processes; in one process that is what they do.

    Not run on several. In place, but for a Cell that is itself a batch normalisation.
    """
    return module if get_world_size() == 1 else replace_norms(module, _synchronised)


def replace_norms(module: Any, make: Callable[[Any], Any]) -> Any:
    """Put ``make(norm)`` in the place of each BatchNorm1d and BatchNorm2d; return the Cell."""
    norms = nn.BatchNorm1d | nn.BatchNorm2d
    if isinstance(module, norms):
        return make(module)
    for _, cell in list(module.cells_and_names()):
        for name, inner in list(cell._cells.items()):
            if isinstance(inner, norms):
                cell._cells[name] = make(inner)
        if isinstance(cell, nn.SequentialCell):
            cell.cell_list = list(cell._cells.values())  # what it runs
    return module


def _synchronised(norm: Any) -> Any:
    made = nn.SyncBatchNorm(norm.num_features, eps=norm.eps, momentum=norm.momentum)
    for name in ("gamma", "beta", "moving_mean", "moving_variance"):
        setattr(made, name, getattr(norm, name))
    return made.set_train(norm.training)

"""Functions of torch that MindSpore has no equal of on every device; torch's signatures."""

from __future__ import annotations

import math
from contextlib import ContextDecorator
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, mint, ops

from mpcore.errors import BackendError
from mpcore_mindspore.shims import pynative_executor

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "addcdiv",
    "addmm",
    "argsort",
    "as_tuple",
    "bincount",
    "calculate_gain",
    "diag",
    "diag_embed",
    "embedding",
    "enable_grad",
    "equal",
    "fill_diagonal",
    "finfo",
    "full",
    "grad_mode",
    "index_add",
    "index_fill",
    "is_grad_enabled",
    "isin",
    "layer_norm",
    "lerp",
    "linspace",
    "masked_fill",
    "max_pool1d",
    "multinomial",
    "no_grad",
    "normalize",
    "one_hot",
    "ones",
    "places",
    "repeat",
    "rms_norm",
    "roll",
    "scaled_dot_product_attention",
    "scatter",
    "selu",
    "set_grad_enabled",
    "sort",
    "sparse_coo_tensor",
    "std",
    "std_mean",
    "topk",
    "true_places",
    "var",
    "var_mean",
    "zeros",
]


class no_grad(ContextDecorator):  # noqa: N801  # torch's name
    """Nothing inside is differentiated (mindspore 2.10.0, ``ms._no_grad``).

    As torch's, it may stand over a function with parentheses and without.
    """

    def __new__(cls, function: Any = None) -> Any:
        """Return a region, or the function that runs in one."""
        made: Any = super().__new__(cls)
        return made if function is None else made(function)

    def _recreate_cm(self) -> Any:
        return no_grad()  # one for each call: a function may call itself

    def __enter__(self) -> None:
        self._inside = ms._no_grad()
        self._inside.__enter__()
        _OFF.set((*_OFF.get(), True))

    def __exit__(self, *exc: object) -> None:
        _OFF.set(_OFF.get()[:-1])
        self._inside.__exit__(*exc)


class enable_grad(ContextDecorator):  # noqa: N801  # torch's name
    """Gradients as anywhere outside of ``no_grad``, inside of one as well (mindspore 2.10.0)."""

    def _recreate_cm(self) -> Any:
        return enable_grad()  # as no_grad

    def __enter__(self) -> None:
        self._before = pynative_executor.enable_grad()
        pynative_executor.set_enable_grad(True)
        _OFF.set((*_OFF.get(), False))

    def __exit__(self, *_: object) -> None:
        _OFF.set(_OFF.get()[:-1])
        pynative_executor.set_enable_grad(self._before)


def one_hot(tensor: Any) -> Any:
    """Return torch's ``one_hot`` of as many classes as the labels name, read from them."""
    return ops.one_hot(tensor, int(tensor.max()) + 1)


def is_grad_enabled() -> bool:
    """Return whether no ``no_grad`` is open, or an ``enable_grad`` inside of it."""
    return not (_OFF.get() and _OFF.get()[-1])


def grad_mode(mode: bool) -> Any:
    """Return the context of ``set_grad_enabled(mode)``, and of ``inference_mode(not mode)``."""
    return enable_grad() if mode else no_grad()


def set_grad_enabled(mode: bool) -> None:
    """Have nothing differentiated from here on, or again, as torch's switch on its own line does.

    What stands around ends it: behind a ``no_grad`` it is as it was before.
    """
    if mode and _SWITCHED:
        _SWITCHED.pop().__exit__(None, None, None)
    if mode and not is_grad_enabled():
        pynative_executor.set_enable_grad(True)
        _OFF.set((*_OFF.get()[:-1], False))
    elif not mode and is_grad_enabled():
        _SWITCHED.append(no_grad())
        _SWITCHED[-1].__enter__()


_SWITCHED: list[no_grad] = []
_OFF: ContextVar[tuple[bool, ...]] = ContextVar("off", default=())


def as_tuple(value: Any) -> tuple[int, ...]:
    """Return a shape as a tuple; a number is a shape of one axis, and may be a tensor of none."""
    if isinstance(value, int) or (isinstance(value, Tensor) and not value.ndim):
        return (int(value),)
    return tuple(int(one) if isinstance(one, Tensor) else one for one in value)


def repeat(value: Any, repeats: Any) -> Any:
    """Return ``value.repeat(repeats)`` of one argument: of a tensor all over again, as torch's."""
    if not isinstance(value, Tensor):
        return value.repeat(repeats)
    many = repeats if hasattr(repeats, "__iter__") else (repeats,)
    return ops.tile(value, tuple(int(one) for one in many))


def embedding(input: Any, weight: Any, padding_idx: int | None = None) -> Any:  # torch's name
    """Return the rows of ``weight`` (rows, features) that ``input`` numbers.

    The row ``padding_idx``, counted from the end if negative, gets no gradient.
    """
    rows = ops.gather(weight, input, 0)
    if padding_idx is None:
        return rows
    padding = (input == int(padding_idx) % weight.shape[0]).expand_dims(-1)
    return ops.where(padding, ops.stop_gradient(rows), rows)


def layer_norm(
    input: Any,  # torch's name
    normalized_shape: Sequence[int],
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
) -> Any:
    """Return the norm over the last axes, in the dtype of the input; moments in float32.

    MindSpore's kernel needs gamma and beta on CPU, so it is written out.
    """
    axes = tuple(range(-len(normalized_shape), 0))
    x = input.astype(ms.float32)
    centred = x - x.mean(axes, keep_dims=True)
    variance = (centred * centred).mean(axes, keep_dims=True)
    y = centred * ops.rsqrt(variance + eps)
    if weight is not None:
        y = y * weight
    if bias is not None:
        y = y + bias
    return y.astype(input.dtype)


def places(mask: Any) -> Any:
    """Return where a mask of one axis is true: MindSpore takes no mask beside other places.

    Raises:
        BackendError: the mask has several axes.
    """
    if mask.ndim != 1:
        msg = f"a mask beside other places must have one axis, got shape {tuple(mask.shape)}"
        raise BackendError(msg)
    return Tensor(np.flatnonzero(mask.asnumpy()))


def true_places(condition: Any) -> tuple[Any, ...]:
    """Return torch.where of a condition alone: for each axis, where it is true."""
    places = mint.nonzero(condition)
    return tuple(places[:, axis] for axis in range(places.shape[1]))


def lerp(input: Any, end: Any, weight: Any) -> Any:  # torch's name
    """Return torch.lerp; a whole number counts as a float, for which alone there is a kernel."""
    return mint.lerp(input, end, float(weight) if isinstance(weight, int) else weight)


def rms_norm(
    input: Any,  # torch's name
    normalized_shape: Sequence[int],
    weight: Any = None,
    eps: float | None = None,
) -> Any:
    """Return ``input`` over its root mean square; ``eps`` None is float32's, as in torch."""
    axes = tuple(range(-len(normalized_shape), 0))
    x = input.astype(ms.float32)
    y = x * ops.rsqrt((x * x).mean(axes, keep_dims=True) + (2.0**-23 if eps is None else eps))
    return (y if weight is None else y * weight).astype(input.dtype)


def normalize(
    input: Any,  # torch's name
    p: float = 2.0,
    dim: int = 1,
    eps: float = 1e-12,
) -> Any:
    """Return ``input`` divided by its norm along ``dim``, at least ``eps``."""
    if p == 2:
        norm = _root((input * input).sum(dim, keepdims=True))
    elif p > 0 and p != math.inf:
        norm = ops.pow(ops.pow(ops.abs(input), p).sum(dim, keepdims=True), 1 / p)
    else:
        msg = f"`p` must be positive and finite, got {p!r}: other norms are not ported"
        raise NotImplementedError(msg)
    return input / ops.maximum(norm, Tensor(eps, norm.dtype))


def scaled_dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Return attention written out: (..., L, E), (..., S, E), (..., S, Ev) to (..., L, Ev).

    With ``enable_gqa`` each head of ``key`` and ``value`` serves several of ``query``.
    """
    if enable_gqa:
        heads = query.shape[-3]
        key, value = (one.repeat_interleave(heads // one.shape[-3], -3) for one in (key, value))
    factor = 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = ops.matmul(query, key.swapaxes(-2, -1)) * factor
    if is_causal:
        lower = ops.tril(ops.ones((query.shape[-2], key.shape[-2]), ms.float32)) > 0
        scores = scores.masked_fill(~lower, -math.inf)
    if attn_mask is not None and attn_mask.dtype == ms.bool_:
        scores = scores.masked_fill(~attn_mask, -math.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    weights = ops.softmax(scores, axis=-1)
    if dropout_p:
        weights = ops.dropout(weights, p=dropout_p, training=True)
    return ops.matmul(weights, value)


def var(
    input: Any,  # torch's name
    dim: Any = None,
    unbiased: bool = True,
    keepdim: bool = False,
    correction: int | None = None,
) -> Any:
    """Return the variance over ``dim``, divided by n - 1 unless told otherwise.

    Of an array it is numpy's, which divides by n: no rule saw what the method was called on.
    """
    if isinstance(input, np.ndarray | np.generic):
        return input.var(axis=dim, keepdims=keepdim)
    lost = int(unbiased) if correction is None else correction
    axes = tuple(range(input.ndim)) if dim is None else as_tuple(dim)
    count = math.prod(input.shape[axis] for axis in axes)
    centred = input - input.mean(axes, keep_dims=True)
    return (centred * centred).sum(axes, keepdims=keepdim) / (count - lost)


def std(
    input: Any,  # torch's name
    dim: Any = None,
    unbiased: bool = True,
    keepdim: bool = False,
    correction: int | None = None,
) -> Any:
    """Return the standard deviation over ``dim``, of n - 1 unless told otherwise; numpy's too."""
    if isinstance(input, np.ndarray | np.generic):
        return input.std(axis=dim, keepdims=keepdim)
    return _root(var(input, dim, unbiased, keepdim, correction))


def var_mean(
    input: Any,  # torch's name
    dim: Any = None,
    unbiased: bool = True,
    keepdim: bool = False,
    correction: int | None = None,
) -> tuple[Any, Any]:
    """Return torch.var_mean."""
    mean = input.mean() if dim is None else input.mean(dim, keepdim)
    return var(input, dim, unbiased, keepdim, correction), mean


def std_mean(
    input: Any,  # torch's name
    dim: Any = None,
    unbiased: bool = True,
    keepdim: bool = False,
    correction: int | None = None,
) -> tuple[Any, Any]:
    """Return torch.std_mean."""
    spread, mean = var_mean(input, dim, unbiased, keepdim, correction)
    return _root(spread), mean


def isin(
    elements: Any, test_elements: Any, *, assume_unique: bool = False, invert: bool = False
) -> Any:
    """Return torch.isin: where a number is one of some."""
    del assume_unique  # how fast it is
    some = test_elements.reshape(-1) if isinstance(test_elements, Tensor) else test_elements
    one = elements.expand_dims(-1) if isinstance(elements, Tensor) else Tensor(elements)
    found = (one == some).any(-1)
    return ~found if invert else found


def _root(total: Any) -> Any:
    """Return the square root of sums of squares: where they are 0, torch's has the slope 0."""
    zero = total == 0
    return ops.where(zero, total, ops.sqrt(ops.where(zero, ops.ones_like(total), total)))


def sort(
    input: Any,  # torch's name
    dim: int = -1,
    descending: bool = False,
    stable: bool = False,
) -> Any:
    """Return (values, int64 places)."""
    del stable
    values, places = ops.sort(input, dim, descending)
    return values, places.astype(ms.int64)


def topk(
    input: Any,  # torch's name
    k: int,
    dim: int = -1,
    largest: bool = True,
    sorted: bool = True,  # torch's name
) -> Any:
    """Return (the ``k`` largest, int64 places): MindSpore's are int32, which join no int64."""
    values, places = ops.topk(input, k, dim, largest, sorted)
    return values, places.astype(ms.int64)


def argsort(
    input: Any,  # torch's name
    dim: int = -1,
    descending: bool = False,
    stable: bool = False,
) -> Any:
    """Return the int64 places that sort ``input``, of an array as numpy does it."""
    if isinstance(input, np.ndarray):
        return input.argsort(axis=dim)
    return sort(input, dim, descending, stable)[1]


def roll(input: Any, shifts: Any, dims: Any = None) -> Any:  # torch's name
    """Return ``input`` shifted around along ``dims``; along all elements if there are none."""
    if dims is None:
        return roll(input.reshape(-1), shifts, 0).reshape(input.shape)
    for shift, axis in zip(as_tuple(shifts), as_tuple(dims), strict=True):
        length = input.shape[axis]
        cut = (-shift) % length
        if cut:
            parts = ops.split(input, [cut, length - cut], axis)
            input = ops.cat((parts[1], parts[0]), axis)
    return input


def equal(input: Any, other: Any) -> bool:  # torch's name
    """Return whether shapes and all elements are equal, as a bool."""
    return tuple(input.shape) == tuple(other.shape) and bool((input == other).all())


def full(size: Any, fill_value: Any, *, dtype: Any = None) -> Any:
    """Return a tensor of one value; a Python float is float32."""
    if dtype is None:
        kind = {bool: ms.bool_, int: ms.int64}.get(type(fill_value), ms.float32)
    else:
        kind = dtype
    return ops.full(as_tuple(size), fill_value, dtype=kind)


def zeros(size: Any, *, dtype: Any = None) -> Any:
    """Return zeros; of shape () too, which MindSpore's CPU build does not make (2.10.0)."""
    return _filled(ops.zeros, 0, as_tuple(size), dtype)


def ones(size: Any, *, dtype: Any = None) -> Any:
    """Return ones; of shape () too, which MindSpore's CPU build does not make (2.10.0)."""
    return _filled(ops.ones, 1, as_tuple(size), dtype)


def _filled(make: Any, value: int, size: tuple[int, ...], dtype: Any) -> Any:
    kind = ms.float32 if dtype is None else dtype
    return make(size, dtype=kind) if size else Tensor(value, kind)


def linspace(start: float, end: float, steps: int, *, dtype: Any = None) -> Any:
    """Return ``steps`` float32 numbers from ``start`` to ``end``, both included."""
    made = ops.linspace(Tensor(start, ms.float32), Tensor(end, ms.float32), steps)
    return made if dtype is None else made.astype(dtype)


class _Limits:
    """Limits of a float dtype, numbers of Python, which tensors are filled with."""

    def __init__(self, dtype: Any) -> None:
        found = np.finfo(ms.dtype_to_nptype(dtype))
        self.bits, self.dtype = int(found.bits), str(dtype).lower()
        self.max, self.min, self.eps = float(found.max), float(found.min), float(found.eps)
        self.tiny = self.smallest_normal = float(found.smallest_normal)
        self.resolution = float(found.resolution)


def finfo(dtype: Any = ms.float32) -> Any:
    """Return the limits of a float dtype: ``max``, ``min``, ``eps``, ``tiny``, ``bits``, ..."""
    return _Limits(dtype)


def multinomial(input: Any, num_samples: int, replacement: bool = False) -> Any:
    """Return ``num_samples`` int64 places for each row of weights."""
    return ops.multinomial(input, num_samples, replacement).astype(ms.int64)


def max_pool1d(
    input: Any,  # torch's name
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
) -> Any:
    """Return torch.nn.functional.max_pool1d, as pooling of a picture that is one row high."""
    size, step, edge, apart = (
        one[0] if isinstance(one, tuple | list) else one
        for one in (kernel_size, kernel_size if stride is None else stride, padding, dilation)
    )
    row = input.expand_dims(-2)
    made = ops.max_pool2d(
        row, (1, size), (1, step), padding=(0, edge), dilation=(1, apart), ceil_mode=ceil_mode
    )
    return made.squeeze(-2)


def selu(input: Any) -> Any:  # torch's name
    """Return SELU, written out: the gradient of MindSpore's is wrong on CPU (2.10.0)."""
    alpha, scale = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946
    above = input > 0  # at 0 the slope is that from below, which minimum would halve
    low = alpha * (ops.exp(ops.where(above, ops.zeros_like(input), input)) - 1)
    return scale * ops.where(above, input, low)


def index_add(input: Any, dim: int, index: Any, source: Any, alpha: float = 1) -> Any:
    """Return torch.index_add; MindSpore's takes indices of 32 bits only."""
    added = source.astype(input.dtype)
    added = added if alpha == 1 else added * alpha
    return ops.index_add(input, index.astype(ms.int32), added, dim)


def diag_embed(input: Any) -> Any:
    """Return torch.diag_embed: matrices of the last two axes with these diagonals."""
    return input.expand_dims(-1) * ops.eye(input.shape[-1], input.shape[-1], input.dtype)


def diag(input: Any, diagonal: int = 0) -> Any:  # torch's name
    """Return the matrix with a vector on a diagonal, or a diagonal of a matrix."""
    if input.ndim != 1:
        return input.diagonal(diagonal)
    made = ops.diag(input)
    count, beside = input.shape[0], abs(diagonal)
    if not beside:
        return made
    wide, flat = (count, beside), (beside, count + beside)
    parts = (
        [made, ops.zeros(wide, made.dtype)] if diagonal < 0 else [ops.zeros(wide, made.dtype), made]
    )
    made = ops.cat(parts, 1)
    rest = ops.zeros(flat, made.dtype)
    return ops.cat([rest, made] if diagonal < 0 else [made, rest], 0)


def addcdiv(input: Any, tensor1: Any, tensor2: Any, value: Any = 1) -> Any:  # torch's names
    """Return ``input + value * tensor1 / tensor2``; MindSpore's has inf for small divisors."""
    return input + value * (tensor1 / tensor2)


def addmm(input: Any, mat1: Any, mat2: Any, beta: Any = 1, alpha: Any = 1) -> Any:  # torch's names
    """Return ``beta * input + alpha * mat1 @ mat2``; torch up to 1.5 had the factors in front."""
    if not isinstance(mat1, Tensor):
        mat1, mat2, beta, alpha = beta, alpha, mat1, mat2
    return beta * input + alpha * ops.matmul(mat1, mat2)


def fill_diagonal(input: Any, fill_value: Any, wrap: bool = False) -> Any:  # torch's name
    """Return a matrix with another main diagonal.

    Raises:
        BackendError: it has more than two axes, or ``wrap`` would begin a second diagonal.
    """
    rows, *columns = input.shape
    if len(columns) != 1 or (wrap and rows > columns[0] + 1):
        msg = f"`fill_diagonal_` must be of a matrix without wrap, got shape {input.shape}"
        raise BackendError(msg)
    place = Tensor(np.eye(rows, columns[0], dtype=bool))
    return ops.where(place, Tensor(fill_value).astype(input.dtype), input)


def masked_fill(input: Any, mask: Any, value: Any) -> Any:
    """Return ``input`` with ``value`` where ``mask`` is True; a tensor of no axes may be given."""
    if isinstance(value, Tensor):
        value = value.astype(input.dtype)
    return input.masked_fill(mask, value)


def index_fill(input: Any, dim: int, index: Any, value: Any) -> Any:  # torch's name
    """Return ``input`` with one value in the slices that ``index`` numbers along an axis."""
    held = value.astype(input.dtype) if isinstance(value, Tensor) else value
    if not isinstance(held, Tensor):
        held = Tensor(held, input.dtype)
    chosen = np.zeros(input.shape[dim], dtype=bool)
    chosen[index.asnumpy()] = True
    shape = [1] * input.ndim
    shape[dim] = -1
    place = Tensor(chosen).reshape(tuple(shape)).broadcast_to(input.shape)
    return ops.where(place, held, input)


def bincount(input: Any, weights: Any = None, minlength: int = 0) -> Any:  # torch's name
    """Return torch.bincount: how often each number comes, int64, or its weights' sums."""
    given = None if weights is None else weights.asnumpy()
    found = np.bincount(input.asnumpy(), given, minlength)
    kind = np.int64 if given is None else (np.float32 if given.dtype == np.float32 else np.float64)
    return Tensor(found.astype(kind))


def scatter(input: Any, dim: int, index: Any, src: Any) -> Any:
    """Return torch.scatter; a number is filled in in the dtype of ``input``.

    MindSpore's own takes no whole number on CPU, and behind tensors of more axes it writes to
    other places there (mindspore 2.10.0).
    """
    if not isinstance(src, Tensor):
        src = ops.full(tuple(index.shape), src, dtype=input.dtype)
    part = src[tuple(slice(size) for size in index.shape)]
    return ops.tensor_scatter_elements(input, index, part.astype(input.dtype), dim)


def sparse_coo_tensor(indices: Any, values: Any, size: Any = None) -> Any:
    """Return the dense tensor of torch.sparse_coo_tensor's arguments: values of a place add up."""
    places = np.asarray(indices.asnumpy() if isinstance(indices, Tensor) else indices)
    if size is None:
        size = tuple(int(most) + 1 for most in places.max(axis=1))
    sizes = tuple(int(one) for one in size)
    held = values if isinstance(values, Tensor) else Tensor(np.asarray(values))
    flat = np.ravel_multi_index(tuple(places), sizes[: len(places)])
    rest = sizes[len(places) :]
    made = ops.zeros((int(np.prod(sizes[: len(places)])), *rest), held.dtype)
    return made.index_add(0, Tensor(flat.astype(np.int32)), held).reshape(sizes)


_GAINS = {
    "sigmoid": 1.0,
    "linear": 1.0,
    "tanh": 5.0 / 3,
    "relu": math.sqrt(2.0),
    "selu": 3.0 / 4,
}


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """Return torch.nn.init.calculate_gain: by how much an activation lessens what it is given.

    Source: ``calculate_gain`` in torch/nn/init.py, torch 2.13.0.
    """
    if nonlinearity.startswith("conv"):
        return 1.0
    if nonlinearity == "leaky_relu":
        slope = 0.01 if param is None else float(param)
        return math.sqrt(2.0 / (1 + slope**2))
    if nonlinearity not in _GAINS:
        msg = f"Unsupported nonlinearity {nonlinearity}"
        raise ValueError(msg)
    return _GAINS[nonlinearity]

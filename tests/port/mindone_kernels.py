"""Kernels that MindSpore's CPU build lacks and mindone calls, made of others; for tests alone."""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Tensor, mint, ops

functional = mint.nn.functional


def _numbers(values, dtype):
    array = np.asarray(values)
    made = Tensor(array.astype(np.float32) if array.dtype == np.float64 else array)
    return made if dtype is None else made.astype(dtype)


def _plain(value):
    return value.asnumpy() if isinstance(value, Tensor) else value


def arange(start, end=None, step=1, *, dtype=None):
    first, last = (0, start) if end is None else (start, end)
    return _numbers(np.arange(_plain(first), _plain(last), _plain(step)), dtype)


def full(size, fill_value, *, dtype=None):
    sizes = size if isinstance(size, int) else tuple(int(one) for one in size)
    return _numbers(np.full(sizes, _plain(fill_value)), dtype)


def addmm(input, mat1, mat2, *, beta=1, alpha=1):
    return beta * input + alpha * ops.matmul(mat1, mat2)


def embedding(ids, weight, padding_idx=None):
    found = ops.gather(weight, ids, 0)
    if padding_idx is None:
        return found
    return ops.where((ids == padding_idx).expand_dims(-1), ops.stop_gradient(found), found)


def pad(input, pad, mode="constant", value=0.0):
    assert mode == "constant"
    pairs = [int(one) for one in _plain(pad)]
    for place in range(len(pairs) // 2):
        axis = input.ndim - 1 - place
        before, after = pairs[2 * place : 2 * place + 2]
        sizes = list(input.shape)
        kept = [slice(None)] * input.ndim
        kept[axis] = slice(max(0, -before), sizes[axis] - max(0, -after))
        parts = [input[tuple(kept)] if before < 0 or after < 0 else input]
        for count, at in ((before, 0), (after, len(parts))):
            if count > 0:
                sizes[axis] = count
                parts.insert(
                    at if at == 0 else len(parts),
                    ops.full(tuple(sizes), value or 0, dtype=input.dtype),
                )
        input = ops.cat(parts, axis) if len(parts) > 1 else parts[0]
    return input


def layer_norm(x, shape, weight=None, bias=None, eps=1e-5):
    axes = tuple(range(-len(shape), 0))
    apart = x - x.mean(axes, keep_dims=True)
    made = apart / ops.sqrt((apart * apart).mean(axes, keep_dims=True) + eps)
    made = made if weight is None else made * weight
    return made if bias is None else made + bias


def cumsum(input, dim=None, *, dtype=None, axis=None):
    dim = axis if dim is None else dim
    wanted = dtype or (ms.int64 if input.dtype == ms.bool_ else input.dtype)
    return ops.cumsum(input.astype(ms.int32 if wanted == ms.int64 else wanted), dim).astype(wanted)


def cross_entropy(
    input, target, weight=None, ignore_index=-100, reduction="mean", label_smoothing=0.0
):
    return ops.cross_entropy(input, target, weight, ignore_index, reduction, label_smoothing)


def conv2d(input, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):
    two = [
        (one, one) if isinstance(one, int) else tuple(one) for one in (stride, padding, dilation)
    ]
    made = ops.conv2d(input, weight, None, two[0], "pad", two[1], two[2], groups)
    return made if bias is None else made + bias.reshape(1, -1, 1, 1)


def einsum(equation, *tensors):
    given, wanted = equation.replace(" ", "").split("->")
    names = given.split(",")
    order = list(wanted) + sorted(set(given) - {","} - set(wanted))
    product = None
    for name, tensor in zip(names, tensors, strict=True):
        have = [letter for letter in order if letter in name]
        moved = tensor.transpose(tuple(name.index(letter) for letter in have))
        sizes = dict(zip(have, moved.shape, strict=True))
        moved = moved.reshape(tuple(sizes.get(letter, 1) for letter in order))
        product = moved if product is None else product * moved
    summed = tuple(range(len(wanted), len(order)))
    return product.sum(summed) if summed else product


def triu(input, diagonal=0):
    kept = Tensor(np.triu(np.ones(input.shape[-2:], bool), diagonal))
    if input.dtype == ms.bool_:
        return ops.logical_and(input, kept)
    return ops.where(kept, input, ops.zeros_like(input))


def tril(input, diagonal=0):
    kept = Tensor(np.tril(np.ones(input.shape[-2:], bool), diagonal))
    if input.dtype == ms.bool_:
        return ops.logical_and(input, kept)
    return ops.where(kept, input, ops.zeros_like(input))


def clone(self):
    return ops.logical_or(self, self) if self.dtype == ms.bool_ else self * 1


def argmax(input, dim=None, keepdim=False):
    return Tensor(np.argmax(input.asnumpy(), axis=dim, keepdims=keepdim).astype(np.int64))


def nonzero(input, *, as_tuple=False):
    found = np.nonzero(input.asnumpy())
    return tuple(map(Tensor, found)) if as_tuple else Tensor(np.stack(found, 1))


def rms_norm(x, gamma, epsilon=1e-6):
    return x / ops.sqrt((x * x).mean(-1, keep_dims=True) + epsilon) * gamma, None


def vector_norm(x, ord=2, dim=None, keepdim=False, *, dtype=None):
    axes = tuple(range(x.ndim)) if dim is None else dim
    return ops.sqrt((x * x).sum(axes, keepdims=keepdim))


def _written(values):
    def put(self, *args, **kwargs):
        kwargs.pop("generator", None)
        self.assign_value(Tensor(values(self.shape, *args, **kwargs)).astype(self.dtype))
        return self

    return put


def _drawn(shape, mean=0.0, std=1.0):
    return np.random.default_rng(0).normal(mean, std, shape).astype(np.float32)


def _masked_fill_(self, mask, value):
    filled = np.where(mask.asnumpy(), _plain(value), self.asnumpy())
    self.assign_value(Tensor(filled.astype(self.asnumpy().dtype)))
    return self


def norm(input, p="fro", dim=None, keepdim=False, *, dtype=None):
    assert p in ("fro", 2)
    return vector_norm(input, 2, dim, keepdim)


def roll(input, shifts, dims=None):
    pairs = ((shifts, dims),) if isinstance(shifts, int) else zip(shifts, dims, strict=True)
    for shift, dim in pairs:
        at = -shift % input.shape[dim]
        front, behind = ops.split(input, [at, input.shape[dim] - at], dim) if at else (input, None)
        input = input if behind is None else ops.cat([behind, front], dim)
    return input


def randn(*size, dtype=None, generator=None):
    return _numbers(_drawn(size[0] if isinstance(size[0], (tuple, list)) else size), dtype)


def install():
    """Put them where mindone finds them."""
    mint.addmm, mint.arange, mint.full, mint.cumsum = addmm, arange, full, cumsum
    mint.triu, mint.tril, mint.clone, mint.argmax = triu, tril, clone, argmax
    mint.linalg.vector_norm, mint.norm, mint.randn = vector_norm, norm, randn
    mint.einsum, ops.rms_norm = einsum, rms_norm
    mint.stack = lambda tensors, dim=0: ops.stack(tensors, dim)
    mint.full_like = lambda x, value, *, dtype=None: full(x.shape, value, dtype=dtype or x.dtype)
    mint.zeros_like = lambda x, *, dtype=None: full(x.shape, 0.0, dtype=dtype or x.dtype)
    mint.linspace = lambda start, end, steps, *, dtype=None: _numbers(
        np.linspace(start, end, steps), dtype
    )
    mint.index_select = lambda x, dim, index: ops.gather(x, index, dim)
    mint.log_softmax = functional.log_softmax = lambda x, dim, *, dtype=None: ops.log_softmax(
        x, dim
    )
    functional.embedding, functional.pad, functional.conv2d = embedding, pad, conv2d
    functional.layer_norm, functional.cross_entropy = layer_norm, cross_entropy
    functional.gelu = lambda x, *, approximate="none": ops.gelu(x, approximate)
    layers = mint.nn
    layers.Embedding.construct = lambda self, x: embedding(x, self.weight, self.padding_idx)
    layers.Conv2d.construct = lambda self, x: conv2d(
        x, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups
    )
    layers.LayerNorm.construct = lambda self, x: layer_norm(
        x, self.normalized_shape, self.weight, self.bias, self.eps
    )
    layers.GELU.construct = lambda self, x: ops.gelu(x, getattr(self, "approximate", "none"))
    layers.CrossEntropyLoss.construct = lambda self, x, y: cross_entropy(
        x, y, self.weight, self.ignore_index, self.reduction, self.label_smoothing
    )
    Tensor.zero_ = _written(lambda shape: np.zeros(shape, np.float32))
    Tensor.fill_ = _written(lambda shape, value: np.full(shape, float(value), np.float32))
    Tensor.normal_ = _written(_drawn)
    Tensor.masked_fill_ = _masked_fill_
    mint.roll = roll
    mint.rand = lambda *size, **_: randn(*size) * 0 + 0.5
    Tensor.cumsum, Tensor.clone = cumsum, clone
    Tensor.index_select = lambda self, axis, index: ops.gather(self, index, axis)
    Tensor.nonzero = nonzero
    Tensor.argmax = lambda self, axis=None, keepdims=False: argmax(self, axis, keepdims)

"""Products, factors and solutions of matrices: torch.linalg and its older names.

Factors are numpy's, as torch's on a CPU: both call LAPACK, and so their signs are the same.

Source: torch/csrc/autograd/FunctionsManual.cpp and torch/functional.py, torch 2.13.0.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import numpy as np
from mindspore import Tensor, ops

from mpcore_port_runtime.by_numpy import ByNumpy

__all__ = [
    "addbmm",
    "addmv",
    "addr",
    "block_diag",
    "broadcast_tensors",
    "chain_matmul",
    "cholesky",
    "cholesky_solve",
    "eigh",
    "eigvalsh",
    "inner",
    "kron",
    "lstsq",
    "matrix_power",
    "matrix_rank",
    "multi_dot",
    "old_qr",
    "old_solve",
    "old_svd",
    "pinv",
    "qr",
    "slogdet",
    "solve",
    "solve_triangular",
    "svd",
    "svdvals",
    "tensordot",
    "vecdot",
]


class QR(NamedTuple):
    """What qr returns."""

    Q: Any
    R: Any


class SVD(NamedTuple):
    """What torch.linalg.svd returns."""

    U: Any
    S: Any
    Vh: Any


class OldSVD(NamedTuple):
    """What torch.svd returns."""

    U: Any
    S: Any
    V: Any


class Eigen(NamedTuple):
    """What eigh returns."""

    eigenvalues: Any
    eigenvectors: Any


class LogDet(NamedTuple):
    """What slogdet returns."""

    sign: Any
    logabsdet: Any


class LeastSquares(NamedTuple):
    """What lstsq returns; torch's residuals, rank and singular values are not computed."""

    solution: Any


def _t(x: Any) -> Any:
    return np.swapaxes(x, -1, -2)


def _cholesky_backward(_: Any, outs: Any, grads: Any) -> tuple[Any]:
    (low,), (grad,) = outs, grads
    half = np.tril(_t(low) @ grad)
    half = half * (1 - 0.5 * np.eye(half.shape[-1], dtype=half.dtype))
    inverse = np.linalg.inv(low)
    return (_t(inverse) @ ((half + _t(half)) / 2) @ inverse,)


def cholesky(input: Any, *, upper: bool = False) -> Any:
    """Return torch.linalg.cholesky: the lower factor, or its transpose."""
    made = ByNumpy(lambda x: (np.linalg.cholesky(x),), _cholesky_backward)(input)
    return made.swapaxes(-1, -2) if upper else made


def _qr_backward(_: Any, outs: Any, grads: Any) -> tuple[Any]:
    (q, r), (grad_q, grad_r) = outs, grads
    if r.shape[-1] > r.shape[-2] or q.shape[-1] != r.shape[-1]:
        msg = "the gradient of qr is there where Q has the shape of the matrix, mode='reduced'"
        raise NotImplementedError(msg)
    both = r @ _t(grad_r) - _t(grad_q) @ q
    both = np.tril(both) + _t(np.tril(both, -1))
    return ((grad_q + q @ both) @ _t(np.linalg.inv(r)),)


def qr(A: Any, mode: Any = "reduced") -> QR:  # noqa: N803  # torch's name
    """Return torch.linalg.qr; ``mode="r"`` leaves an empty Q."""
    if mode == "r":
        made = ByNumpy(lambda x: np.linalg.qr(x), _qr_backward)(A)
        return QR(Tensor(np.zeros(0, np.float32)).astype(A.dtype), made[1])
    return QR(*ByNumpy(lambda x: np.linalg.qr(x, mode), _qr_backward)(A))


def old_qr(input: Any, some: bool = True) -> QR:
    """Return torch.qr."""
    return qr(input, "reduced" if some else "complete")


def _svd_backward(_: Any, outs: Any, grads: Any) -> tuple[Any]:
    (u, s, vh), (grad_u, grad_s, grad_vh) = outs, grads
    size = s.shape[-1]  # torch leaves gradients of further vectors out, too
    u, grad_u = u[..., :size], grad_u[..., :size]
    vh, grad_vh = vh[..., :size, :], grad_vh[..., :size, :]
    v, grad_v = _t(vh), _t(grad_vh)
    eye = np.eye(size, dtype=s.dtype)
    squares = s * s
    apart = squares[..., None, :] - squares[..., :, None] + eye

    def skew(x: Any) -> Any:
        return x - _t(x)

    inner = (skew(_t(u) @ grad_u) / apart) * s[..., None, :]
    inner = inner + s[..., :, None] * (skew(_t(v) @ grad_v) / apart)
    inner = inner + grad_s[..., None] * eye
    made = u @ inner @ vh
    if u.shape[-2] > size:
        left = grad_u / s[..., None, :]
        made = made + (left - u @ (_t(u) @ left)) @ vh
    if v.shape[-2] > size:
        right = grad_v / s[..., None, :]
        made = made + u @ _t(right - v @ (_t(v) @ right))
    return (made,)


def svd(A: Any, full_matrices: bool = True) -> SVD:  # noqa: N803
    """Return torch.linalg.svd."""
    return SVD(*ByNumpy(lambda x: np.linalg.svd(x, full_matrices), _svd_backward)(A))


def svdvals(A: Any) -> Any:  # noqa: N803
    """Return torch.linalg.svdvals."""
    return svd(A, False).S


def old_svd(input: Any, some: bool = True, compute_uv: bool = True) -> OldSVD:
    """Return torch.svd: V, not its transpose.

    Raises:
        NotImplementedError: ``compute_uv`` is false.
    """
    if not compute_uv:
        msg = "`compute_uv` must be True: ask for torch.linalg.svdvals"
        raise NotImplementedError(msg)
    u, s, vh = svd(input, not some)
    return OldSVD(u, s, vh.swapaxes(-1, -2))


def _eigh_backward(_: Any, outs: Any, grads: Any) -> tuple[Any]:
    (values, vectors), (grad_values, grad_vectors) = outs, grads
    eye = np.eye(values.shape[-1], dtype=values.dtype)
    apart = values[..., None, :] - values[..., :, None] + eye
    inner = (_t(vectors) @ grad_vectors) / apart * (1 - eye) + grad_values[..., None] * eye
    return (vectors @ inner @ _t(vectors),)


def eigh(A: Any, UPLO: Any = "L") -> Eigen:  # noqa: N803
    """Return torch.linalg.eigh: eigenvalues from the smallest on, and their vectors."""
    return Eigen(*ByNumpy(lambda x: np.linalg.eigh(x, UPLO), _eigh_backward)(A))


def eigvalsh(A: Any, UPLO: Any = "L") -> Any:  # noqa: N803
    """Return torch.linalg.eigvalsh."""
    return eigh(A, UPLO).eigenvalues


def _solved(a: Any, b: Any) -> Any:
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return np.linalg.solve(a, np.broadcast_to(b, batch + b.shape[-2:]))


def _solve_backward(given: Any, outs: Any, grads: Any) -> tuple[Any, Any]:
    (a, b), (x,), (grad,) = given, outs, grads
    grad_b = _solved(_t(a), grad)
    return _fit(-grad_b @ _t(x), a), _fit(grad_b, b)


def _fit(grad: Any, like: Any) -> Any:
    """Return a gradient summed over axes along which its tensor was repeated."""
    extra = grad.ndim - like.ndim
    grad = grad.sum(tuple(range(extra))) if extra else grad
    wide = tuple(i for i, n in enumerate(like.shape) if n == 1 and grad.shape[i] != 1)
    return grad.sum(wide, keepdims=True) if wide else grad


def _are_vectors(matrix: Any, right: Any) -> bool:
    """Return whether a right side is a vector, or one for each matrix."""
    each = matrix.ndim - 1 == right.ndim and right.shape == matrix.shape[:-1]
    return bool(right.ndim == 1 or each)


def solve(A: Any, B: Any, *, left: bool = True) -> Any:  # noqa: N803
    """Return torch.linalg.solve: X of AX = B, or of XA = B; B may be a vector, or several."""
    if _are_vectors(A, B):
        return solve(A, B.expand_dims(-1), left=left).squeeze(-1)
    if not left:
        return solve(A.swapaxes(-1, -2), B.swapaxes(-1, -2)).swapaxes(-1, -2)
    return ByNumpy(lambda a, b: (_solved(a, b),), _solve_backward)(A, B)


def old_solve(input: Any, A: Any) -> Any:  # noqa: N803
    """Return torch.solve, of before torch 1.13: the solution, and in LU's place None."""
    return solve(A, input), None


def solve_triangular(
    A: Any,  # noqa: N803
    B: Any,  # noqa: N803
    *,
    upper: bool,
    left: bool = True,
    unitriangular: bool = False,
) -> Any:
    """Return torch.linalg.solve_triangular: what is outside of A's triangle is not read."""
    kept = ops.triu(A, 1 if unitriangular else 0) if upper else ops.tril(A, -int(unitriangular))
    if unitriangular:
        kept = kept + ops.eye(A.shape[-1], A.shape[-1], A.dtype)
    return solve(kept, B, left=left)


def cholesky_solve(B: Any, L: Any, upper: bool = False) -> Any:  # noqa: N803
    """Return torch.cholesky_solve."""
    kept = ops.triu(L) if upper else ops.tril(L)  # the rest is not read
    whole = kept.swapaxes(-1, -2) @ kept if upper else kept @ kept.swapaxes(-1, -2)
    return solve(whole, B)


def pinv(A: Any, rcond: float | None = None, hermitian: bool = False) -> Any:  # noqa: N803
    """Return torch.linalg.pinv, by singular values, as torch does."""
    u, s, vh = svd(A, False)
    share = max(A.shape[-2:]) * float(np.finfo(s.asnumpy().dtype).eps) if rcond is None else rcond
    kept = s > share * s.max(-1, keepdims=True)
    inverse = ops.where(kept, 1 / ops.where(kept, s, ops.ones_like(s)), ops.zeros_like(s))
    return (vh.swapaxes(-1, -2) * inverse.expand_dims(-2)) @ u.swapaxes(-1, -2)


def lstsq(A: Any, B: Any, rcond: float | None = None, *, driver: Any = None) -> LeastSquares:  # noqa: N803
    """Return torch.linalg.lstsq's solution, of matrices of full rank."""
    flat = _are_vectors(A, B)
    right = B.expand_dims(-1) if flat else B
    made = ops.matmul(pinv(A, rcond), right)
    return LeastSquares(made.squeeze(-1) if flat else made)


def matrix_power(input: Any, n: int) -> Any:
    """Return torch.linalg.matrix_power; below zero of the inverse."""
    if n < 0:
        return matrix_power(ops.inverse(input), -n)
    if n == 0:
        return ops.zeros_like(input) + ops.eye(input.shape[-1], input.shape[-1], input.dtype)
    return functools.reduce(ops.matmul, [input] * n)


def matrix_rank(A: Any, tol: Any = None, hermitian: bool = False) -> Any:  # noqa: N803
    """Return torch.linalg.matrix_rank."""
    found = np.linalg.matrix_rank(A.asnumpy(), tol, hermitian)
    return Tensor(np.asarray(found, np.int64))


def slogdet(A: Any) -> LogDet:  # noqa: N803
    """Return torch.linalg.slogdet."""
    return LogDet(*ops.slogdet(A))


def multi_dot(tensors: Any) -> Any:
    """Return torch.linalg.multi_dot, from the left on."""
    return functools.reduce(ops.matmul, list(tensors))


def chain_matmul(*matrices: Any) -> Any:
    """Return torch.chain_matmul: the product of all."""
    return multi_dot(matrices)


def inner(input: Any, other: Any) -> Any:
    """Return torch.inner: over the last axes of both."""
    if not input.ndim or not other.ndim:
        return input * other
    return tensordot(input, other, ([-1], [-1]))


def vecdot(x: Any, y: Any, *, dim: int = -1) -> Any:
    """Return torch.linalg.vecdot."""
    return (x * y).sum(dim)


def addmv(input: Any, mat: Any, vec: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """Return torch.addmv."""
    return beta * input + alpha * ops.matmul(mat, vec)


def addr(input: Any, vec1: Any, vec2: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """Return torch.addr."""
    return beta * input + alpha * ops.outer(vec1, vec2)


def tensordot(a: Any, b: Any, dims: Any = 2, out: Any = None) -> Any:
    """Return torch.tensordot: the last axes of ``a`` against the first of ``b``, or pairs."""
    if isinstance(dims, Tensor):
        dims = dims.asnumpy().tolist()
    if isinstance(dims, int):
        ours, theirs = list(range(a.ndim - dims, a.ndim)), list(range(dims))
    else:
        ours, theirs = (list(one) if isinstance(one, tuple | list) else [one] for one in dims)
    ours, theirs = [one % a.ndim for one in ours], [one % b.ndim for one in theirs]
    kept = [one for one in range(a.ndim) if one not in ours]
    left = [one for one in range(b.ndim) if one not in theirs]
    size = math.prod(a.shape[one] for one in ours)
    first = a.permute(*kept, *ours) if a.ndim > 1 else a
    second = b.permute(*theirs, *left) if b.ndim > 1 else b
    made = ops.matmul(first.reshape((-1, size)), second.reshape((size, -1)))
    return made.reshape(tuple(a.shape[i] for i in kept) + tuple(b.shape[i] for i in left))


def kron(input: Any, other: Any) -> Any:
    """Return torch.kron."""
    rank = max(input.ndim, other.ndim)
    first = input.reshape((1,) * (rank - input.ndim) + tuple(input.shape))
    second = other.reshape((1,) * (rank - other.ndim) + tuple(other.shape))
    one = first.reshape(tuple(n for size in first.shape for n in (size, 1)))
    two = second.reshape(tuple(n for size in second.shape for n in (1, size)))
    sizes = zip(first.shape, second.shape, strict=True)
    return (one * two).reshape(tuple(m * n for m, n in sizes))


def block_diag(*tensors: Any) -> Any:
    """Return torch.block_diag: matrices along the diagonal, zeros elsewhere."""
    blocks = [one.reshape((1, -1)) if one.ndim < 2 else one for one in tensors]
    width = sum(one.shape[1] for one in blocks)
    rows, at = [], 0
    for one in blocks:
        after = width - at - one.shape[1]
        parts = [ops.zeros((one.shape[0], n), one.dtype) for n in (at, after)]
        kept = [part for part in (parts[0], one, parts[1]) if part.shape[1]]
        rows.append(ops.cat(kept, 1) if len(kept) > 1 else kept[0])
        at += one.shape[1]
    return ops.cat(rows, 0) if len(rows) > 1 else rows[0]


def addbmm(input: Any, batch1: Any, batch2: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """Return torch.addbmm."""
    return beta * input + alpha * ops.matmul(batch1, batch2).sum(0)


def broadcast_tensors(*tensors: Any) -> Any:
    """Return torch.broadcast_tensors: each in the shape of all."""
    given = tensors[0] if len(tensors) == 1 and isinstance(tensors[0], tuple | list) else tensors
    shape = np.broadcast_shapes(*(tuple(one.shape) for one in given))
    return tuple(one.broadcast_to(shape) for one in given)

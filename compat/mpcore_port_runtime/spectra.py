"""Complex numbers and Fourier transforms: torch.fft, stft, windows, and torch's complex functions.

MindSpore's kernels on a CPU add, transform and take complex numbers apart with torch's gradients;
products of them have none, and their size is complex. Once a port has made a complex tensor,
``*``, ``/``, ``**``, ``mean`` and ``abs`` of such tensors are torch's.

Source: torch/functional.py, torch/fft/__init__.py and torch/signal/windows/windows.py, torch
2.13.0.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, mint, ops

from mpcore_port_runtime.padding import pad

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "angle",
    "as_complex",
    "as_real",
    "bartlett_window",
    "blackman_window",
    "complex_kind",
    "conj",
    "fft",
    "fft2",
    "fftfreq",
    "fftn",
    "fftshift",
    "hamming_window",
    "hann_window",
    "ifft",
    "ifft2",
    "ifftn",
    "ifftshift",
    "imag",
    "imag_part",
    "irfft",
    "irfft2",
    "irfftn",
    "is_complex",
    "istft",
    "kaiser_window",
    "made_complex",
    "polar",
    "real",
    "real_part",
    "rfft",
    "rfft2",
    "rfftfreq",
    "rfftn",
    "stft",
    "window",
]

_COMPLEX = (ms.complex64, ms.complex128)
_joined = ops.Complex()
_own: dict[str, Any] = {}


def is_complex(input: Any) -> bool:
    """Return torch.is_complex."""
    return input.dtype in _COMPLEX


def _of(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that gives complex tensors, whose operators work from then on."""

    def made(*args: Any, **words: Any) -> Any:
        _install()
        return function(*args, **words)

    made.__name__, made.__doc__ = function.__name__, function.__doc__
    return made


def _parts(x: Any, like: Any) -> tuple[Any, Any]:
    """Return the real and the imaginary part of a tensor or number."""
    if isinstance(x, Tensor):
        if x.dtype in _COMPLEX:
            return ops.real(x), ops.imag(x)
        wide = x.dtype == ms.float64 or getattr(like, "dtype", None) == ms.complex128
        kind = ms.float64 if wide else ms.float32
        return x.astype(kind), 0.0
    return x.real, x.imag


def _put_together(re: Any, im: Any) -> Any:
    if im.dtype != re.dtype:
        re, im = re.astype(ms.float64), im.astype(ms.float64)
    return _joined(re, im)


def _times(a: Any, b: Any) -> Any:
    (ar, ai), (br, bi) = _parts(a, b), _parts(b, a)
    if isinstance(ai, float):
        return _put_together(ar * br, ar * bi)
    if isinstance(bi, float | int) and bi == 0:
        return _put_together(ar * br, ai * br)
    return _put_together(ar * br - ai * bi, ar * bi + ai * br)


def _over(a: Any, b: Any) -> Any:
    (br, bi) = _parts(b, a)
    if isinstance(bi, float | int) and bi == 0:
        return _times(a, 1 / br)
    size = br * br + bi * bi
    if isinstance(b, Tensor):
        return _times(a, _put_together(br / size, -bi / size))
    return _times(a, complex(br / size, -bi / size))


def _power(a: Any, b: Any) -> Any:
    if isinstance(b, int) and 0 < b < 9:  # as products
        made = a
        for _ in range(b - 1):
            made = _times(made, a)
        return made
    whole = a if isinstance(a, Tensor) else made_complex(*(Tensor(float(n)) for n in _parts(a, b)))
    return ops.exp(_times(ops.log(whole), b))


def _average(x: Any, axis: Any = None, keep_dims: bool = False, **words: Any) -> Any:
    axis = words.pop("dim", axis)
    keep_dims = words.pop("keepdim", keep_dims)
    re, im = (part.mean(axis, keep_dims) for part in (ops.real(x), ops.imag(x)))
    return _put_together(re, im)


def _install() -> None:
    """Have operators of complex tensors be those of their parts; of others they stay."""
    if _own:
        return

    def either(name: str, ours: Callable[[Any, Any], Any]) -> None:
        _own[name] = getattr(Tensor, name)
        native = _own[name]

        def run(self: Any, other: Any) -> Any:
            asked = self.dtype in _COMPLEX or isinstance(other, complex)
            asked = asked or (isinstance(other, Tensor) and other.dtype in _COMPLEX)
            return ours(self, other) if asked else native(self, other)

        setattr(Tensor, name, run)

    either("__mul__", _times)
    either("__rmul__", _times)
    either("__truediv__", _over)
    either("__rtruediv__", lambda a, b: _over(b, a))
    either("__pow__", _power)
    _own["mean"] = Tensor.mean

    def mean(self: Any, *args: Any, **words: Any) -> Any:
        return (_average if self.dtype in _COMPLEX else _own["mean"])(self, *args, **words)

    Tensor.mean = mean
    for holder, name in ((Tensor, "abs"), (Tensor, "__abs__"), (ops, "abs"), (mint, "abs")):
        setattr(holder, name, _magnitude(getattr(holder, name)))


def _magnitude(native: Callable[[Any], Any]) -> Callable[..., Any]:
    """Return ``abs`` whose answer is real: MindSpore's of a complex tensor stays complex."""

    def magnitude(input: Any) -> Any:
        found = native(input)
        return ops.real(found) if isinstance(input, Tensor) and input.dtype in _COMPLEX else found

    return magnitude


@_of
def made_complex(real: Any, imag: Any) -> Any:
    """Return torch.complex."""
    return _joined(real, imag)


@_of
def polar(abs: Any, angle: Any) -> Any:  # torch's names
    """Return torch.polar."""
    return _joined(abs * ops.cos(angle), abs * ops.sin(angle))


@_of
def as_complex(input: Any) -> Any:
    """Return torch.view_as_complex, a copy."""
    return _joined(input[..., 0], input[..., 1])


def as_real(input: Any) -> Any:
    """Return torch.view_as_real, a copy."""
    return ops.cat([ops.real(input).expand_dims(-1), ops.imag(input).expand_dims(-1)], -1)


def real(input: Any) -> Any:
    """Return the real part; of a tensor that is not complex itself."""
    return ops.real(input) if input.dtype in _COMPLEX else input


def imag(input: Any) -> Any:
    """Return torch.imag.

    Raises:
        RuntimeError: the tensor is not complex.
    """
    if input.dtype not in _COMPLEX:
        msg = "imag is not implemented for tensors with non-complex dtypes."
        raise RuntimeError(msg)
    return ops.imag(input)


def real_part(x: Any) -> Any:
    """Return ``x.real`` of a tensor, or of anything else that has such an attribute."""
    return real(x) if isinstance(x, Tensor) else x.real


def imag_part(x: Any) -> Any:
    """Return ``x.imag`` of a tensor, or of anything else that has such an attribute."""
    return imag(x) if isinstance(x, Tensor) else x.imag


def complex_kind(width: int) -> Any:
    """Return torch.complex64 or torch.complex128."""
    _install()
    return ms.complex64 if width == 64 else ms.complex128


def conj(input: Any) -> Any:
    """Return torch.conj; of a tensor that is not complex itself."""
    return ops.conj(input) if input.dtype in _COMPLEX else input


def angle(input: Any) -> Any:
    """Return torch.angle; of real numbers pi below zero and 0 else, without a slope."""
    if input.dtype in _COMPLEX:
        return ops.angle(input)
    flat = ops.where(input < 0, ops.full_like(input, math.pi), ops.zeros_like(input))
    return ops.where(ops.isnan(input), input, flat)


def _transform(name: str, several: bool) -> Callable[..., Any]:
    """Return one function of torch.fft, of one axis or of several."""
    native = getattr(ops, name)

    if several:
        two = name.endswith("2")

        def transform(
            input: Any, s: Any = None, dim: Any = (-2, -1) if two else None, norm: Any = None
        ) -> Any:
            sizes = None if s is None else tuple(s)
            axes = None if dim is None else tuple(dim)
            if sizes is not None and axes is None:
                axes = tuple(range(-len(sizes), 0))
            return native(input, s=sizes, dim=axes, norm=norm)
    else:

        def transform(input: Any, n: Any = None, dim: int = -1, norm: Any = None) -> Any:  # type: ignore[misc]
            return native(input, n=n, dim=dim, norm=norm)

    transform.__name__ = name
    transform.__doc__ = f"Return torch.fft.{name}."
    return _of(transform)


fft, ifft, rfft, irfft = (_transform(name, False) for name in ("fft", "ifft", "rfft", "irfft"))
fft2, ifft2, rfft2, irfft2 = (
    _transform(name, True) for name in ("fft2", "ifft2", "rfft2", "irfft2")
)
fftn, ifftn, rfftn, irfftn = (
    _transform(name, True) for name in ("fftn", "ifftn", "rfftn", "irfftn")
)


def fftshift(input: Any, dim: Any = None) -> Any:
    """Return torch.fft.fftshift: zero in the middle."""
    return _rolled(input, dim, lambda n: n // 2)


def ifftshift(input: Any, dim: Any = None) -> Any:
    """Return torch.fft.ifftshift."""
    return _rolled(input, dim, lambda n: (n + 1) // 2)


def _rolled(input: Any, dim: Any, by: Callable[[int], int]) -> Any:
    axes = range(input.ndim) if dim is None else (dim,) if isinstance(dim, int) else dim
    for axis in axes:
        size = input.shape[axis]
        places = (np.arange(size) - by(size)) % size
        input = ops.gather(input, Tensor(places), axis)
    return input


def fftfreq(n: int, d: float = 1.0, *, dtype: Any = None) -> Any:
    """Return torch.fft.fftfreq."""
    return Tensor(np.fft.fftfreq(n, d), ms.float32 if dtype is None else dtype)


def rfftfreq(n: int, d: float = 1.0, *, dtype: Any = None) -> Any:
    """Return torch.fft.rfftfreq."""
    return Tensor(np.fft.rfftfreq(n, d), ms.float32 if dtype is None else dtype)


def window(kind: str, length: int, periodic: bool, *weights: float, dtype: Any = None) -> Any:
    """Return one of torch's windows: "cosines" of weights, "bartlett" or "kaiser"."""
    made = np.ones(length)
    if length > 1:
        size = length + 1 if periodic else length
        at = np.arange(size)
        if kind == "cosines":
            turns = 2 * math.pi * at / (size - 1)
            made = sum((-1) ** k * w * np.cos(k * turns) for k, w in enumerate(weights))
        elif kind == "bartlett":
            made = np.bartlett(size)
        else:
            made = np.kaiser(size, weights[0])
        made = made[:length]
    return Tensor(np.asarray(made), ms.float32 if dtype is None else dtype)


def hann_window(window_length: int, periodic: bool = True, *, dtype: Any = None) -> Any:
    """Return torch.hann_window."""
    return window("cosines", window_length, periodic, 0.5, 0.5, dtype=dtype)


def hamming_window(
    window_length: int,
    periodic: bool = True,
    alpha: float = 0.54,
    beta: float = 0.46,
    *,
    dtype: Any = None,
) -> Any:
    """Return torch.hamming_window."""
    return window("cosines", window_length, periodic, alpha, beta, dtype=dtype)


def blackman_window(window_length: int, periodic: bool = True, *, dtype: Any = None) -> Any:
    """Return torch.blackman_window."""
    return window("cosines", window_length, periodic, 0.42, 0.5, 0.08, dtype=dtype)


def bartlett_window(window_length: int, periodic: bool = True, *, dtype: Any = None) -> Any:
    """Return torch.bartlett_window."""
    return window("bartlett", window_length, periodic, dtype=dtype)


def kaiser_window(
    window_length: int, periodic: bool = True, beta: float = 12.0, *, dtype: Any = None
) -> Any:
    """Return torch.kaiser_window."""
    return window("kaiser", window_length, periodic, beta, dtype=dtype)


def _whole_window(given: Any, win_length: int | None, n_fft: int, dtype: Any) -> Any:
    """Return the window in the middle of ``n_fft``."""
    length = n_fft if win_length is None else win_length
    held = ops.ones((length,), dtype) if given is None else given
    left = (n_fft - length) // 2
    return pad(held, (left, n_fft - length - left)) if length < n_fft else held


def _kind(x: Any) -> Any:
    """Return the dtype of the parts of a tensor."""
    return {ms.complex64: ms.float32, ms.complex128: ms.float64}.get(x.dtype, x.dtype)


def stft(
    input: Any,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Any = None,
    center: bool = True,
    pad_mode: str = "reflect",
    normalized: bool = False,
    onesided: bool | None = None,
    return_complex: bool | None = None,
    align_to_window: Any = None,
) -> Any:
    """Return torch.stft of signals (..., length): frequencies by frames."""
    _install()
    hop = n_fft // 4 if hop_length is None else hop_length
    rows = input if input.ndim > 1 else input.expand_dims(0)
    if center:
        half = n_fft // 2
        rows = pad(rows.expand_dims(1), (half, half), pad_mode).squeeze(1)
    count = (rows.shape[-1] - n_fft) // hop + 1
    places = np.arange(count)[:, None] * hop + np.arange(n_fft)
    frames = ops.gather(rows, Tensor(places.reshape(-1)), 1).reshape((-1, count, n_fft))
    frames = frames * _whole_window(window, win_length, n_fft, _kind(input))
    norm = "ortho" if normalized else None
    both = onesided is False or is_complex(input)
    made = (fft if both else rfft)(frames, norm=norm).swapaxes(1, 2)
    made = made if input.ndim > 1 else made.squeeze(0)
    return made if return_complex else as_real(made)


def istft(
    input: Any,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Any = None,
    center: bool = True,
    normalized: bool = False,
    onesided: bool | None = None,
    length: int | None = None,
    return_complex: bool = False,
) -> Any:
    """Return torch.istft of what stft gives: signals, put together where frames overlap.

    Raises:
        NotImplementedError: ``return_complex`` is true, or both sides are given.
    """
    if return_complex or onesided is False:
        msg = "`return_complex` and `onesided=False` of istft are not ported"
        raise NotImplementedError(msg)
    hop = n_fft // 4 if hop_length is None else hop_length
    if not is_complex(input):
        input = as_complex(input)  # as up to torch 1.8
    rows = input if input.ndim > 2 else input.expand_dims(0)  # with signals
    frames = irfft(rows.swapaxes(1, 2), n_fft, norm="ortho" if normalized else None)
    held = _whole_window(window, win_length, n_fft, frames.dtype)
    count, size = frames.shape[1], n_fft + hop * (frames.shape[1] - 1)
    places = Tensor((np.arange(count)[:, None] * hop + np.arange(n_fft)).reshape(-1, 1))

    def put(parts: Any) -> Any:
        flat = parts.reshape((parts.shape[0], -1)).swapaxes(0, 1)
        return ops.tensor_scatter_add(
            ops.zeros((size, parts.shape[0]), parts.dtype), places, flat
        ).swapaxes(0, 1)

    made = put(frames * held)
    weight = put((held * held).expand_dims(0).tile((count, 1)).expand_dims(0))
    start = n_fft // 2 if center else 0
    whole = size - start if center else size
    end = whole if length is None else start + length
    last = min(end, size)
    made = made[:, start:last] / weight[:, start:last]
    if end > size:
        made = pad(made, (0, end - size))
    return made if input.ndim > 2 else made.squeeze(0)

"""Sounds as torchaudio's scripts use them: files, spectrograms, mels, other rates, masks.

Files are read by the package soundfile. Source: torchaudio 2.11.1 ``functional/functional.py``,
``transforms/_transforms.py``; what is not random was compared with what they gave.
"""

from __future__ import annotations

import importlib
import math
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from mpcore_port_runtime.spectra import as_real, hann_window, stft

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "MFCC",
    "AmplitudeToDB",
    "FrequencyMasking",
    "MelScale",
    "MelSpectrogram",
    "MuLawDecoding",
    "MuLawEncoding",
    "Resample",
    "Spectrogram",
    "TimeMasking",
    "amplitude_to_DB",
    "create_dct",
    "info",
    "load",
    "mask_along_axis",
    "melscale_fbanks",
    "mu_law_decoding",
    "mu_law_encoding",
    "resample",
    "save",
    "spectrogram",
]


# --- files ---------------------------------------------------------------------------------------


def load(
    filepath: Any,
    frame_offset: int = 0,
    num_frames: int = -1,
    normalize: bool = True,
    channels_first: bool = True,
    format: str | None = None,
    **_: Any,
) -> tuple[Any, int]:
    """Return the sound of a file, (channels, length) in [-1, 1], and its rate."""
    soundfile = importlib.import_module("soundfile")

    kind = "float32"
    if not normalize:
        kinds = {"PCM_16": "int16", "PCM_32": "int32", "DOUBLE": "float64"}
        kind = kinds.get(soundfile.info(filepath).subtype, "float32")
    words = {"frames": num_frames, "start": frame_offset, "dtype": kind, "always_2d": True}
    array, rate = soundfile.read(filepath, **words, **({"format": format} if format else {}))
    return Tensor(np.ascontiguousarray(array.T if channels_first else array)), rate


def save(
    uri: Any,
    src: Any,
    sample_rate: int,
    channels_first: bool = True,
    format: str | None = None,
    **_: Any,
) -> None:
    """Write a sound into a file of the kind that its name says."""
    soundfile = importlib.import_module("soundfile")

    array = src.asnumpy() if isinstance(src, Tensor) else np.asarray(src)
    soundfile.write(uri, array.T if channels_first else array, sample_rate, format=format)


def info(filepath: Any, *_: Any, **__: Any) -> Any:
    """Return what a file says of itself."""
    soundfile = importlib.import_module("soundfile")

    held = soundfile.info(filepath)
    bits = {"PCM_S8": 8, "PCM_16": 16, "PCM_24": 24, "PCM_32": 32, "FLOAT": 32, "DOUBLE": 64}
    return SimpleNamespace(
        sample_rate=held.samplerate,
        num_frames=held.frames,
        num_channels=held.channels,
        bits_per_sample=bits.get(held.subtype, 0),
        encoding="PCM_F" if held.subtype in ("FLOAT", "DOUBLE") else "PCM_S",
    )


# --- functions -----------------------------------------------------------------------------------


def spectrogram(
    waveform: Any,
    pad: int,
    window: Any,
    n_fft: int,
    hop_length: int,
    win_length: int,
    power: float | None,
    normalized: Any,
    center: bool = True,
    pad_mode: str = "reflect",
    onesided: bool = True,
    return_complex: bool | None = None,
) -> Any:
    """Return torchaudio.functional.spectrogram: (..., frequencies, frames)."""
    del return_complex
    if normalized not in (False, True, "window", "frame_length"):
        msg = f"Invalid normalized parameter: {normalized}"
        raise ValueError(msg)
    x = waveform
    if pad > 0:
        x = ops.pad(x, (pad, pad))
    rows = x.reshape((-1, x.shape[-1]))
    by_frame = normalized == "frame_length"
    settings = (n_fft, hop_length, win_length, window, center, pad_mode, by_frame, onesided)
    found = stft(rows, *settings, return_complex=True)
    found = found.reshape((*x.shape[:-1], *found.shape[-2:]))
    scale = ops.sqrt((window**2).sum()) if normalized in (True, "window") else None
    if power is None:
        return found if scale is None else found / scale
    parts = as_real(found)
    square = parts[..., 0] ** 2 + parts[..., 1] ** 2
    square = square if scale is None else square / (scale * scale)
    if power == 2.0:
        return square
    # as torch's abs has it, the slope at 0 is 0
    silent = square == 0
    size = ops.sqrt(ops.where(silent, ops.ones_like(square), square))
    size = ops.where(silent, ops.zeros_like(size), size)
    return size if power == 1.0 else size**power


def _to_mel(freq: float, scale: str) -> float:
    if scale not in ("slaney", "htk"):
        msg = 'mel_scale should be one of "htk" or "slaney".'
        raise ValueError(msg)
    if scale == "htk":
        return 2595.0 * math.log10(1.0 + freq / 700.0)
    step, least = 200.0 / 3, 1000.0
    if freq < least:
        return freq / step
    return least / step + math.log(freq / least) / (math.log(6.4) / 27.0)


def _from_mel(mels: Any, scale: str) -> Any:
    if scale == "htk":
        return (700.0 * (10.0 ** (mels / 2595.0) - 1.0)).astype(np.float32)
    step, least = 200.0 / 3, 1000.0
    found, first = step * mels, least / step
    high = mels >= first
    found[high] = least * np.exp(math.log(6.4) / 27.0 * (mels[high] - first))
    return found.astype(np.float32)


def melscale_fbanks(
    n_freqs: int,
    f_min: float,
    f_max: float,
    n_mels: int,
    sample_rate: int,
    norm: str | None = None,
    mel_scale: str = "htk",
) -> Any:
    """Return triangles over frequencies, one for each mel: (frequencies, mels)."""
    if norm not in (None, "slaney"):
        msg = 'norm must be one of None or "slaney"'
        raise ValueError(msg)
    every = np.linspace(0, sample_rate // 2, n_freqs, dtype=np.float32)
    ends = _to_mel(f_min, mel_scale), _to_mel(f_max, mel_scale)
    points = _from_mel(np.linspace(*ends, n_mels + 2, dtype=np.float32), mel_scale)
    apart = points[1:] - points[:-1]
    slopes = points[None] - every[:, None]
    found = np.maximum(0, np.minimum(-slopes[:, :-2] / apart[:-1], slopes[:, 2:] / apart[1:]))
    if norm == "slaney":
        found = found * (2.0 / (points[2 : n_mels + 2] - points[:n_mels]))[None]
    return Tensor(found.astype(np.float32))


def create_dct(n_mfcc: int, n_mels: int, norm: str | None) -> Any:
    """Return a cosine transform: (mels, coefficients)."""
    if norm not in (None, "ortho"):
        msg = 'norm must be either "ortho" or None'
        raise ValueError(msg)
    places, waves = np.arange(float(n_mels)), np.arange(float(n_mfcc))[:, None]
    found = np.cos(math.pi / n_mels * (places + 0.5) * waves)
    if norm is None:
        found = found * 2.0
    else:
        found[0] *= 1.0 / math.sqrt(2.0)
        found = found * math.sqrt(2.0 / n_mels)
    return Tensor(np.ascontiguousarray(found.T.astype(np.float32)))


def amplitude_to_DB(  # noqa: N802  # torchaudio's name
    x: Any, multiplier: float, amin: float, db_multiplier: float, top_db: float | None = None
) -> Any:
    """Return decibels, none of them more than ``top_db`` below the loudest."""
    found = multiplier * ops.log10(x.clip(amin, None)) - multiplier * db_multiplier
    if top_db is None:
        return found
    bands = found.shape[-3] if found.ndim > 2 else 1
    whole = found.reshape((-1, bands, *found.shape[-2:]))
    least = whole.max((1, 2, 3), keepdims=True) - top_db
    return ops.maximum(whole, least).reshape(found.shape)


def mu_law_encoding(x: Any, quantization_channels: int) -> Any:
    """Return whole numbers of a sound in [-1, 1]."""
    mu = quantization_channels - 1.0
    value = x if x.dtype in (ms.float16, ms.float32, ms.float64) else x.astype(ms.float32)
    value = ops.sign(value) * ops.log1p(mu * ops.abs(value)) / math.log1p(mu)
    return ((value + 1) / 2 * mu + 0.5).astype(ms.int64)


def mu_law_decoding(x_mu: Any, quantization_channels: int) -> Any:
    """Return a sound of its whole numbers."""
    mu = quantization_channels - 1.0
    x = x_mu if x_mu.dtype in (ms.float16, ms.float32, ms.float64) else x_mu.astype(ms.float32)
    x = x / mu * 2 - 1.0
    return ops.sign(x) * (ops.exp(ops.abs(x) * math.log1p(mu)) - 1.0) / mu


def _kernel(old: int, new: int, width: int, rolloff: float, method: str, beta: Any) -> Any:
    hann = ("sinc_interp_hann", "sinc_interpolation")
    if method not in (*hann, "sinc_interp_kaiser", "kaiser_window"):
        msg = f"Invalid resampling method: {method}"
        raise ValueError(msg)
    base = min(old, new) * rolloff
    half = math.ceil(width * old / base)
    places = np.arange(-half, half + old, dtype=np.float64)[None, None] / old
    # torch counts the new places in whole numbers, and divides them in float32
    steps = (np.arange(0, -new, -1, dtype=np.float32) / np.float32(new))[:, None, None]
    t = np.clip((steps.astype(np.float64) + places) * base, -width, width)
    if method in hann:
        window = np.cos(t * math.pi / width / 2) ** 2
    else:
        bend = np.float32(14.769656459379492 if beta is None else beta)
        window = np.i0(bend * np.sqrt(1 - (t / width) ** 2)) / np.i0(bend)
    t = t * math.pi
    waves = np.where(t == 0, 1.0, np.sin(t) / np.where(t == 0, 1.0, t))
    return Tensor((waves * window * (base / old)).astype(np.float32)), half


def resample(
    waveform: Any,
    orig_freq: int,
    new_freq: int,
    lowpass_filter_width: int = 6,
    rolloff: float = 0.99,
    resampling_method: str = "sinc_interp_hann",
    beta: float | None = None,
) -> Any:
    """Return a sound of another rate."""
    if orig_freq == new_freq:
        return waveform
    common = math.gcd(int(orig_freq), int(new_freq))
    old, new = int(orig_freq) // common, int(new_freq) // common
    kernel, half = _kernel(old, new, lowpass_filter_width, rolloff, resampling_method, beta)
    rows = waveform.reshape((-1, waveform.shape[-1]))
    padded = ops.pad(rows, (half, half + old)).expand_dims(1)
    found = ops.conv1d(padded, kernel.astype(waveform.dtype), stride=old)
    found = found.swapaxes(1, 2).reshape((rows.shape[0], -1))
    found = found[..., : math.ceil(new * rows.shape[-1] / old)]
    return found.reshape((*waveform.shape[:-1], found.shape[-1]))


def mask_along_axis(
    specgram: Any, mask_param: int, mask_value: float, axis: int, p: float = 1.0
) -> Any:
    """Return a spectrogram with some of its columns, or rows, covered."""
    if axis not in (specgram.ndim - 2, specgram.ndim - 1):
        msg = f"Only Frequency and Time masking are supported, got axis {axis}"
        raise ValueError(msg)
    length = specgram.shape[axis]
    most = mask_param if p == 1.0 else min(mask_param, int(length * p))
    if most < 1:
        return specgram
    draws = ops.rand(2).asnumpy()
    width = float(draws[0]) * most
    first = int(float(draws[1]) * (length - width))
    covered = np.zeros(length, bool)
    covered[first : first + int(width)] = True
    covered = covered[:, None] if axis == specgram.ndim - 2 else covered
    return specgram.masked_fill(Tensor(covered), mask_value)


# --- layers --------------------------------------------------------------------------------------


class Spectrogram(nn.Cell):  # type: ignore[misc]  # nn.Cell is untyped
    """spectrogram as a layer."""

    def __init__(
        self,
        n_fft: int = 400,
        win_length: int | None = None,
        hop_length: int | None = None,
        pad: int = 0,
        window_fn: Callable[..., Any] = hann_window,
        power: float | None = 2.0,
        normalized: Any = False,
        wkwargs: dict[str, Any] | None = None,
        center: bool = True,
        pad_mode: str = "reflect",
        onesided: bool = True,
        return_complex: bool | None = None,
    ) -> None:
        super().__init__()
        del return_complex
        self.n_fft, self.win_length = n_fft, n_fft if win_length is None else win_length
        self.hop_length = self.win_length // 2 if hop_length is None else hop_length
        self.register_buffer("window", window_fn(self.win_length, **(wkwargs or {})))
        self.pad, self.power, self.normalized = pad, power, normalized
        self.center, self.pad_mode, self.onesided = center, pad_mode, onesided
        self.set_train()

    def construct(self, waveform: Any) -> Any:
        """Return the spectrogram."""
        sizes = (self.n_fft, self.hop_length, self.win_length, self.power, self.normalized)
        settings = (*sizes, self.center, self.pad_mode, self.onesided)
        return spectrogram(waveform, self.pad, self.window, *settings)


class AmplitudeToDB(nn.Cell):  # type: ignore[misc]
    """amplitude_to_DB as a layer."""

    def __init__(self, stype: str = "power", top_db: float | None = None) -> None:
        super().__init__()
        if top_db is not None and top_db < 0:
            msg = "top_db must be positive value"
            raise ValueError(msg)
        self.stype, self.top_db = stype, top_db
        self.multiplier = 10.0 if stype == "power" else 20.0
        self.amin, self.ref_value, self.db_multiplier = 1e-10, 1.0, 0.0
        self.set_train()

    def construct(self, x: Any) -> Any:
        """Return decibels."""
        return amplitude_to_DB(x, self.multiplier, self.amin, self.db_multiplier, self.top_db)


class MelScale(nn.Cell):  # type: ignore[misc]
    """Mels of a spectrogram."""

    def __init__(
        self,
        n_mels: int = 128,
        sample_rate: int = 16000,
        f_min: float = 0.0,
        f_max: float | None = None,
        n_stft: int = 201,
        norm: str | None = None,
        mel_scale: str = "htk",
    ) -> None:
        super().__init__()
        self.n_mels, self.sample_rate, self.f_min = n_mels, sample_rate, f_min
        self.f_max = float(sample_rate // 2) if f_max is None else f_max
        self.n_stft, self.norm, self.mel_scale = n_stft, norm, mel_scale
        if f_min > self.f_max:
            msg = f"Require f_min: {f_min} <= f_max: {self.f_max}"
            raise ValueError(msg)
        sizes = (n_stft, f_min, self.f_max, n_mels, sample_rate, norm, mel_scale)
        self.register_buffer("fb", melscale_fbanks(*sizes))
        self.set_train()

    def construct(self, specgram: Any) -> Any:
        """Return mels by frames."""
        return ops.matmul(specgram.swapaxes(-1, -2), self.fb).swapaxes(-1, -2)


class MelSpectrogram(nn.Cell):  # type: ignore[misc]
    """A spectrogram, and its mels."""

    def __init__(
        self,
        sample_rate: int = 16000,
        n_fft: int = 400,
        win_length: int | None = None,
        hop_length: int | None = None,
        f_min: float = 0.0,
        f_max: float | None = None,
        pad: int = 0,
        n_mels: int = 128,
        window_fn: Callable[..., Any] = hann_window,
        power: float = 2.0,
        normalized: Any = False,
        wkwargs: dict[str, Any] | None = None,
        center: bool = True,
        pad_mode: str = "reflect",
        onesided: bool | None = None,
        norm: str | None = None,
        mel_scale: str = "htk",
    ) -> None:
        super().__init__()
        del onesided
        self.sample_rate, self.n_fft = sample_rate, n_fft
        self.win_length = n_fft if win_length is None else win_length
        self.hop_length = self.win_length // 2 if hop_length is None else hop_length
        self.pad, self.power, self.normalized, self.n_mels = pad, power, normalized, n_mels
        self.f_max, self.f_min = f_max, f_min
        settings: tuple[Any, ...] = (window_fn, power, normalized, wkwargs, center, pad_mode)
        sizes = (n_fft, self.win_length, self.hop_length, pad)
        self.spectrogram = Spectrogram(*sizes, *settings)
        scale = (n_mels, sample_rate, f_min, f_max, n_fft // 2 + 1, norm, mel_scale)
        self.mel_scale = MelScale(*scale)
        self.set_train()

    def construct(self, waveform: Any) -> Any:
        """Return mels by frames."""
        return self.mel_scale(self.spectrogram(waveform))


class MFCC(nn.Cell):  # type: ignore[misc]
    """Coefficients of mels in decibels."""

    def __init__(
        self,
        sample_rate: int = 16000,
        n_mfcc: int = 40,
        dct_type: int = 2,
        norm: str = "ortho",
        log_mels: bool = False,
        melkwargs: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        if dct_type != 2:
            msg = f"DCT type not supported: {dct_type}"
            raise ValueError(msg)
        self.sample_rate, self.n_mfcc, self.dct_type, self.norm = sample_rate, n_mfcc, 2, norm
        self.top_db, self.log_mels = 80.0, log_mels
        self.amplitude_to_DB = AmplitudeToDB("power", self.top_db)
        self.MelSpectrogram = MelSpectrogram(sample_rate=sample_rate, **(melkwargs or {}))
        if n_mfcc > self.MelSpectrogram.n_mels:
            msg = "Cannot select more MFCC coefficients than # mel bins"
            raise ValueError(msg)
        self.register_buffer("dct_mat", create_dct(n_mfcc, self.MelSpectrogram.n_mels, norm))
        self.set_train()

    def construct(self, waveform: Any) -> Any:
        """Return coefficients by frames."""
        mels = self.MelSpectrogram(waveform)
        mels = ops.log(mels + 1e-6) if self.log_mels else self.amplitude_to_DB(mels)
        return ops.matmul(mels.swapaxes(-1, -2), self.dct_mat).swapaxes(-1, -2)


class Resample(nn.Cell):  # type: ignore[misc]
    """resample as a layer."""

    def __init__(
        self,
        orig_freq: int = 16000,
        new_freq: int = 16000,
        resampling_method: str = "sinc_interp_hann",
        lowpass_filter_width: int = 6,
        rolloff: float = 0.99,
        beta: float | None = None,
        *,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        del dtype
        self.orig_freq, self.new_freq = orig_freq, new_freq
        self._settings = (lowpass_filter_width, rolloff, resampling_method, beta)
        self.set_train()

    def construct(self, waveform: Any) -> Any:
        """Return the sound of the new rate."""
        return resample(waveform, self.orig_freq, self.new_freq, *self._settings)


class _Masking(nn.Cell):  # type: ignore[misc]
    _axis = -1

    def __init__(self, mask_param: int, iid_masks: bool = False, p: float = 1.0) -> None:
        super().__init__()
        if iid_masks:
            msg = "`iid_masks` is not ported: leave it out"
            raise NotImplementedError(msg)
        self.mask_param, self.iid_masks, self.p = mask_param, iid_masks, p
        self.set_train()

    def construct(self, specgram: Any, mask_value: float = 0.0) -> Any:
        """Return the spectrogram with a part of it covered."""
        axis = specgram.ndim + self._axis
        return mask_along_axis(specgram, self.mask_param, mask_value, axis, self.p)


class FrequencyMasking(_Masking):
    """Frequencies covered."""

    _axis = -2

    def __init__(self, freq_mask_param: int, iid_masks: bool = False) -> None:
        super().__init__(freq_mask_param, iid_masks)


class TimeMasking(_Masking):
    """Frames covered."""

    def __init__(self, time_mask_param: int, iid_masks: bool = False, p: float = 1.0) -> None:
        super().__init__(time_mask_param, iid_masks, p)


class MuLawEncoding(nn.Cell):  # type: ignore[misc]
    """mu_law_encoding as a layer."""

    def __init__(self, quantization_channels: int = 256) -> None:
        super().__init__()
        self.quantization_channels = quantization_channels
        self.set_train()

    def construct(self, x: Any) -> Any:
        """Return whole numbers."""
        return mu_law_encoding(x, self.quantization_channels)


class MuLawDecoding(MuLawEncoding):
    """mu_law_decoding as a layer."""

    def construct(self, x: Any) -> Any:
        """Return a sound."""
        return mu_law_decoding(x, self.quantization_channels)

"""Kaldi's features of sounds, as torchaudio computes them; data, through which no gradient goes.

Source: torchaudio 2.11.1 ``compliance/kaldi.py``. They are computed by NumPy in float64.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from mindspore import Tensor

__all__ = ["fbank", "get_mel_banks", "mfcc", "spectrogram"]

_LEAST = float(np.finfo(np.float32).eps)
_FRAMES: tuple[str, ...] = (
    "blackman_coeff",
    "dither",
    "energy_floor",
    "preemphasis_coefficient",
    "raw_energy",
)
_FRAMES += ("remove_dc_offset", "snip_edges", "window_type")
_SIZES = ("channel", "frame_length", "frame_shift", "round_to_power_of_two", "sample_frequency")
_USUAL: dict[str, Any] = {
    "blackman_coeff": 0.42,
    "channel": -1,
    "dither": 0.0,
    "energy_floor": 1.0,
    "frame_length": 25.0,
    "frame_shift": 10.0,
    "min_duration": 0.0,
    "preemphasis_coefficient": 0.97,
    "raw_energy": True,
    "remove_dc_offset": True,
    "round_to_power_of_two": True,
    "sample_frequency": 16000.0,
    "snip_edges": True,
    "subtract_mean": False,
    "window_type": "povey",
}
_MELS: dict[str, Any] = {
    "high_freq": 0.0,
    "htk_compat": False,
    "low_freq": 20.0,
    "num_mel_bins": 23,
    "use_energy": False,
    "use_log_fbank": True,
    "use_power": True,
    "vtln_high": -500.0,
    "vtln_low": 100.0,
    "vtln_warp": 1.0,
}

# --- frames --------------------------------------------------------------------------------------


def _settings(of: str, usual: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """Return settings by name.

    Raises:
        TypeError: there is none of that name.
    """
    for name in given:
        if name not in usual:
            msg = f"{of}() got an unexpected keyword argument {name!r}"
            raise TypeError(msg)
    return usual | given


def _sizes(
    waveform: Any,
    *,
    channel: int,
    frame_length: float,
    frame_shift: float,
    round_to_power_of_two: bool,
    sample_frequency: float,
) -> tuple[Any, int, int, int]:
    """Return one channel, the step between frames, their length and what it is padded to."""
    sound = waveform.asnumpy() if isinstance(waveform, Tensor) else np.asarray(waveform)
    row = sound[max(channel, 0)].astype(np.float64)
    step, length = (int(sample_frequency * one * 0.001) for one in (frame_shift, frame_length))
    if not 2 <= length <= len(row):
        msg = f"choose a window size {length} that is [2, {len(row)}]"
        raise AssertionError(msg)
    whole = 2 ** (length - 1).bit_length() if round_to_power_of_two else length
    if step <= 0 or whole % 2:
        msg = "`frame_shift` must be above 0, and the padded window of even length"
        raise AssertionError(msg)
    return row, step, length, whole


def _cut(row: Any, length: int, step: int, snip_edges: bool) -> Any:
    """Return the frames of a sound; where edges are not snipped they are mirrored."""
    if snip_edges:
        count = 1 + (len(row) - length) // step
    else:
        count = (len(row) + step // 2) // step
        before = length // 2 - step // 2
        front = [row[::-1][-before:], row] if before > 0 else [row[-before:]]
        row = np.concatenate([*front, row[::-1]])
    return np.stack([row[place * step : place * step + length] for place in range(count)])


def _window(kind: str, length: int, blackman_coeff: float) -> Any:
    turn = 2 * math.pi * np.arange(length) / (length - 1)
    if kind in ("hanning", "povey"):
        return (0.5 - 0.5 * np.cos(turn)) ** (0.85 if kind == "povey" else 1.0)
    if kind == "hamming":
        return 0.54 - 0.46 * np.cos(turn)
    if kind == "rectangular":
        return np.ones(length)
    if kind == "blackman":
        second = (0.5 - blackman_coeff) * np.cos(2 * turn)
        return blackman_coeff - 0.5 * np.cos(turn) + second
    msg = f"Invalid window type {kind}"
    raise ValueError(msg)


def _energy(frames: Any, floor: float) -> Any:
    found = np.log(np.maximum((frames**2).sum(1), _LEAST))
    return np.maximum(found, math.log(floor)) if floor else found


def _frames(
    sizes: tuple[Any, int, int, int],
    *,
    blackman_coeff: float,
    dither: float,
    energy_floor: float,
    preemphasis_coefficient: float,
    raw_energy: bool,
    remove_dc_offset: bool,
    snip_edges: bool,
    window_type: str,
) -> tuple[Any, Any]:
    """Return frames as they are transformed, and the logarithm of their energies."""
    row, step, length, whole = sizes
    frames = _cut(row, length, step, snip_edges)
    if dither:
        frames = frames + np.random.randn(*frames.shape) * dither  # noqa: NPY002  # as manual_seed
    if remove_dc_offset:
        frames = frames - frames.mean(1, keepdims=True)
    energy = _energy(frames, energy_floor)
    if preemphasis_coefficient:
        shifted = np.concatenate([frames[:, :1], frames[:, :-1]], 1)
        frames = frames - preemphasis_coefficient * shifted
    frames = frames * _window(window_type, length, blackman_coeff)
    if not raw_energy:
        energy = _energy(frames, energy_floor)
    return np.pad(frames, ((0, 0), (0, whole - length))), energy


def _of_frames(waveform: Any, told: dict[str, Any]) -> tuple[Any, Any, int] | None:
    """Return the spectrum of each frame, energies and the padded length; None of what is short."""
    sizes = _sizes(waveform, **{name: told[name] for name in _SIZES})
    if len(sizes[0]) < told["min_duration"] * told["sample_frequency"]:
        return None
    frames, energy = _frames(sizes, **{name: told[name] for name in _FRAMES})
    return np.abs(np.fft.rfft(frames)), energy, sizes[3]


def _given(found: Any, subtract_mean: bool) -> Tensor:
    if subtract_mean:
        found = found - found.mean(0, keepdims=True)
    return Tensor(found.astype(np.float32))


# --- mels ----------------------------------------------------------------------------------------


def _to_mel(freq: Any) -> Any:
    kind = freq.dtype.type if isinstance(freq, np.ndarray) else np.float64
    return kind(1127.0) * np.log(kind(1.0) + freq / kind(700.0))


def _warped(mel: Any, span: tuple[float, float], vtln: tuple[float, float, float]) -> Any:
    """Return mels of a voice of another length: straight between two bends, and to the ends."""
    (low, high), (vtln_low, vtln_high, factor) = span, vtln
    first, last = vtln_low * max(1.0, factor), vtln_high * min(1.0, factor)
    if not (vtln_low > low and vtln_high < high and first > low and last < high):
        msg = "`vtln_low` and `vtln_high` must lie between low-freq and high-freq, bends too"
        raise AssertionError(msg)
    places, values = [low, first, last, high], [low, first / factor, last / factor, high]
    freq = 700.0 * (np.exp(mel / 1127.0) - 1.0)
    within = (freq >= low) & (freq <= high)
    return _to_mel(np.where(within, np.interp(freq, places, values), freq))


def _banks(
    num_bins: int,
    window_length_padded: int,
    sample_freq: float,
    low_freq: float,
    high_freq: float,
    vtln_low: float,
    vtln_high: float,
    vtln_warp_factor: float,
) -> tuple[Any, Any]:
    """Return the share that each bin has of each frequency, and the bins' centres."""
    half = 0.5 * sample_freq
    high = high_freq + half if high_freq <= 0.0 else high_freq
    if num_bins <= 3 or not (0.0 <= low_freq < high <= half):
        msg = f"Bad values in options: num-bins {num_bins}, low-freq {low_freq}, high-freq {high}"
        raise AssertionError(msg)
    first, last = _to_mel(low_freq), _to_mel(high)
    step = (last - first) / (num_bins + 1)
    # in float32 as there: slopes of narrow bins are differences of large numbers
    edges = np.float32(first) + np.arange(num_bins + 2, dtype=np.float32) * np.float32(step)
    if vtln_warp_factor != 1.0:
        bend = vtln_high + half if vtln_high < 0.0 else vtln_high
        edges = _warped(edges, (low_freq, high), (vtln_low, bend, vtln_warp_factor))
    left, centre, right = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    places = np.arange(window_length_padded // 2, dtype=np.float32)
    mel = _to_mel(np.float32(sample_freq / window_length_padded) * places)[None]
    up, down = (mel - left) / (centre - left), (right - mel) / (right - centre)
    shares = np.maximum(0.0, np.minimum(up, down))
    return shares, 700.0 * (np.exp(centre / 1127.0) - 1.0)


def get_mel_banks(*settings: Any, **named: Any) -> tuple[Tensor, Tensor]:
    """Return torchaudio.compliance.kaldi.get_mel_banks."""
    shares, centres = _banks(*settings, **named)
    return Tensor(shares.astype(np.float32)), Tensor(centres.astype(np.float32))


def _mels(waveform: Any, told: dict[str, Any]) -> tuple[Any, Any] | None:
    """Return the energies of mels, and those of frames."""
    found = _of_frames(waveform, told)
    if found is None:
        return None
    spectrum, energy, whole = found
    vtln = told["vtln_low"], told["vtln_high"], told["vtln_warp"]
    sizes = told["num_mel_bins"], whole, told["sample_frequency"]
    shares, _ = _banks(*sizes, told["low_freq"], told["high_freq"], *vtln)
    if told["use_power"]:
        spectrum = spectrum**2
    mels = spectrum[:, :-1] @ shares.T
    return (np.log(np.maximum(mels, _LEAST)) if told["use_log_fbank"] else mels), energy


# --- features ------------------------------------------------------------------------------------


def spectrogram(waveform: Any, **settings: Any) -> Tensor:
    """Return torchaudio.compliance.kaldi.spectrogram: (frames, frequencies)."""
    told = _settings("spectrogram", _USUAL, settings)
    found = _of_frames(waveform, told)
    if found is None:
        return Tensor(np.zeros(0, np.float32))
    power = np.log(np.maximum(found[0] ** 2, _LEAST))
    power[:, 0] = found[1]
    return _given(power, told["subtract_mean"])


def fbank(waveform: Any, **settings: Any) -> Tensor:
    """Return torchaudio.compliance.kaldi.fbank: (frames, mels)."""
    told = _settings("fbank", _USUAL | _MELS, settings)
    found = _mels(waveform, told)
    if found is None:
        return Tensor(np.zeros(0, np.float32))
    mels, energy = found
    if told["use_energy"]:
        parts = (mels, energy[:, None]) if told["htk_compat"] else (energy[:, None], mels)
        mels = np.concatenate(parts, 1)
    return _given(mels, told["subtract_mean"])


def mfcc(waveform: Any, **settings: Any) -> Tensor:
    """Return torchaudio.compliance.kaldi.mfcc: (frames, coefficients)."""
    own = {"cepstral_lifter": 22.0, "num_ceps": 13}
    usual = _USUAL | _MELS | own
    for name in ("use_log_fbank", "use_power"):
        del usual[name]
    told = _settings("mfcc", usual, settings) | {"use_log_fbank": True, "use_power": True}
    bins, count = told["num_mel_bins"], told["num_ceps"]
    if count > bins:
        msg = f"num_ceps cannot be larger than num_mel_bins: {count} vs {bins}"
        raise AssertionError(msg)
    found = _mels(waveform, told)
    if found is None:
        return Tensor(np.zeros(0, np.float32))
    mels, energy = found
    angles = math.pi / bins * (np.arange(bins)[:, None] + 0.5) * np.arange(count)[None]
    turned = np.cos(angles) * math.sqrt(2.0 / bins)
    turned[:, 0] = math.sqrt(1.0 / bins)
    features = mels @ turned
    if (lifter := told["cepstral_lifter"]) != 0.0:
        features = features * (1.0 + 0.5 * lifter * np.sin(math.pi * np.arange(count) / lifter))
    if told["use_energy"]:
        features[:, 0] = energy
    if told["htk_compat"]:
        scale = 1.0 if told["use_energy"] else math.sqrt(2)
        features = np.concatenate([features[:, 1:], features[:, :1] * scale], 1)
    return _given(features, told["subtract_mean"])

"""What torchaudio's Kaldi gives, for ``test_plain_run.py``; into ``traces/kaldi.json``.

In an environment with torch, and a folder of packages that has ``torchaudio==2.11.1``, whose one
file is loaded alone:

    python tests/port/record_kaldi.py FOLDER_OF_PACKAGES
"""

from __future__ import annotations

import importlib.util
import json
import math
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["CASES", "KALDI", "sound"]

KALDI = Path(__file__).parent / "traces" / "kaldi.json"
_AST: dict[str, Any] = {"htk_compat": True, "window_type": "hanning", "num_mel_bins": 128}
CASES: list[tuple[str, dict[str, Any]]] = [
    ("fbank", {}),
    ("fbank", {**_AST, "use_energy": False, "dither": 0.0, "frame_shift": 10}),
    ("fbank", {"use_energy": True, "snip_edges": False, "window_type": "hamming"}),
    ("fbank", {"use_energy": True, "raw_energy": False, "channel": 0}),
    ("fbank", {"use_power": False, "use_log_fbank": False, "window_type": "blackman"}),
    ("fbank", {"use_energy": True, "htk_compat": True, "subtract_mean": True}),
    ("fbank", {"vtln_warp": 1.1, "num_mel_bins": 40}),
    ("fbank", {"vtln_warp": 0.9, "num_mel_bins": 40}),
    ("fbank", {"low_freq": 40, "high_freq": -200, "energy_floor": 0.0}),
    ("fbank", {"frame_length": 2.0, "frame_shift": 5.0, "snip_edges": False, "num_mel_bins": 4}),
    ("fbank", {"window_type": "rectangular", "remove_dc_offset": False}),
    ("fbank", {"preemphasis_coefficient": 0.0, "round_to_power_of_two": False}),
    ("fbank", {"min_duration": 1.0}),
    ("mfcc", {}),
    ("mfcc", {"use_energy": True, "htk_compat": True, "cepstral_lifter": 0.0}),
    ("mfcc", {"htk_compat": True, "num_mel_bins": 40, "num_ceps": 20}),
    ("spectrogram", {}),
    ("spectrogram", {"subtract_mean": True, "min_duration": 0.1}),
    ("spectrogram", {"min_duration": 1.0}),
]


def sound() -> Any:
    """Return one channel of noise around two tones."""
    places = np.arange(3000, dtype=np.float32)
    tones = np.sin(places * 0.05) + 0.3 * np.sin(places * 0.9)
    noise = np.random.RandomState(0).randn(3000) * 0.1  # the stream that stays
    return (tones * np.linspace(0.1, 1.0, 3000) + noise).astype(np.float32)[None]


def _dct(torch: Any, count: int, mels: int, norm: str) -> Any:
    """Return torchaudio.functional.create_dct with norm="ortho"."""
    del norm
    rows = torch.arange(float(count)).unsqueeze(1)
    made = torch.cos(math.pi / mels * (torch.arange(float(mels)) + 0.5) * rows)
    made[0] *= 1.0 / math.sqrt(2.0)
    return (made * math.sqrt(2.0 / mels)).t()


def main(folder: str) -> None:
    """Write the file."""
    import torch

    package: Any = types.ModuleType("torchaudio")  # its own libraries are for CUDA
    package.functional = types.SimpleNamespace(create_dct=lambda *given: _dct(torch, *given))
    sys.modules["torchaudio"] = package
    path = Path(folder) / "torchaudio" / "compliance" / "kaldi.py"
    spec: Any = importlib.util.spec_from_file_location("kaldi", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    rows = []
    for name, settings in CASES:
        found = getattr(module, name)(torch.from_numpy(sound()), **settings).numpy()
        kept = [round(float(one), 6) for one in found[::3].reshape(-1)[::5]]
        rows.append([list(found.shape), kept])
    KALDI.write_text(json.dumps(rows) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])

"""What functions of torchvision's transforms give, for ``test_plain_path.py``.

They go to ``traces/pictures.json``.

In an environment with torch and ``torchvision==0.28.0`` (its Python part is enough):

    python tests/port/record_pictures.py
"""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

for name in ("_meta_registrations", "_autograd_registrations"):
    sys.modules[f"torchvision.{name}"] = types.ModuleType(name)  # of kernels that are not there
torch.library.define("torchvision::nms", "(Tensor dets, Tensor scores, float by) -> Tensor")
from torchvision.transforms import InterpolationMode  # noqa: E402  # behind what it asks for
from torchvision.transforms import functional as functions  # noqa: E402
from torchvision.transforms.autoaugment import _apply_op  # noqa: E402

BYTES = (np.arange(13 * 17 * 3) * 37 % 251).astype(np.uint8).reshape(13, 17, 3)
FLOATS = torch.from_numpy(BYTES.transpose(2, 0, 1) / 255).float()
KINDS: dict[str, Any] = {
    "picture": Image.fromarray(BYTES),
    "grey": Image.fromarray(BYTES[:, :, 0]),
    "floats": FLOATS,
    "batch": torch.stack([FLOATS, FLOATS * 0.5]),
}
CASES: list[tuple[str, list[Any], dict[str, Any]]] = [
    *[
        ("resize", [size], {"interpolation": way})
        for size in (7, [9, 5], [20], [30, 31])
        for way in ("bilinear", "nearest", "bicubic")
    ],
    ("resize", [7], {"max_size": 8}),
    ("resize", [[9, 5]], {"antialias": False}),
    *[("crop", part, {}) for part in ([2, 3, 5, 6], [-2, -3, 10, 8], [8, 10, 10, 12])],
    *[("center_crop", [size], {}) for size in (5, [4, 9], [20, 21], [14, 8])],
    ("resized_crop", [1, 2, 8, 9, [5, 6]], {}),
    ("five_crop", [5], {}),
    ("ten_crop", [[4, 6]], {"vertical_flip": True}),
    *[("pad", [sides], {"fill": 7}) for sides in (2, [1, 2], [1, 2, 3, 4])],
    *[
        ("pad", [[1, 2, 3, 4]], {"padding_mode": mode})
        for mode in ("constant", "edge", "reflect", "symmetric")
    ],
    ("hflip", [], {}),
    ("vflip", [], {}),
    ("rotate", [17], {}),
    ("rotate", [45.5], {"interpolation": "bilinear", "expand": True}),
    ("rotate", [-90], {"center": [2, 3], "fill": 9}),
    ("affine", [12, [2, -3], 1.2, [5, -3]], {}),
    ("affine", [12, [2, -3], 0.8, [3.0]], {"interpolation": "bilinear", "fill": 4}),
    (
        "perspective",
        [[[0, 0], [16, 0], [16, 12], [0, 12]], [[1, 2], [15, 1], [14, 11], [2, 10]]],
        {},
    ),
    *[
        (name, [by], {})
        for name in ("brightness", "contrast", "saturation", "gamma", "sharpness", "hue")
        for by in ((0.3, 1.7) if name != "hue" else (-0.3, 0.2))
    ],
    ("rgb_to_grayscale", [3], {}),
    ("to_grayscale", [1], {}),
    ("invert", [], {}),
    ("posterize", [3], {}),
    ("solarize", [0.5], {}),
    ("autocontrast", [], {}),
    ("equalize", [], {}),
    ("gaussian_blur", [[5, 3], [0.7, 1.2]], {}),
    ("gaussian_blur", [7], {"sigma": 2.0}),
    ("normalize", [[0.1, 0.2, 0.3], [0.5, 0.6, 0.7]], {}),
]
CASES = [
    (f"adjust_{n}" if n in "brightness contrast saturation gamma sharpness hue" else n, a, k)
    for n, a, k in CASES
]
OPS = ["ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate", "Brightness", "Color", "Contrast"]
OPS += ["Sharpness", "Posterize", "Solarize", "AutoContrast", "Equalize", "Identity"]


def numbers(found: Any) -> list[Any]:
    """Return shapes and sums of what a function gives, weighed by place."""
    if isinstance(found, (list, tuple)):
        return [one for part in found for one in numbers(part)]
    array = np.asarray(found, np.float64)
    weights = np.cos(np.arange(array.size) * 0.7).reshape(array.shape)
    return [*array.shape, float(f"{array.mean():.6g}"), float(f"{(array * weights).mean():.6g}")]


def main() -> None:
    """Write one row for each case and kind of picture that torchvision takes."""
    rows = []
    for name, given, words in CASES:
        settings = dict(words)
        if "interpolation" in settings:
            settings["interpolation"] = InterpolationMode(settings["interpolation"])
        for kind, picture in KINDS.items():
            try:
                found = getattr(functions, name)(picture, *given, **settings)
            except (TypeError, ValueError, RuntimeError):
                continue
            rows.append([name, given, words, kind, numbers(found)])
    for name in OPS:
        far = 5.0 if name == "Posterize" else 0.3
        found = _apply_op(KINDS["picture"], name, far, InterpolationMode.NEAREST, None)
        rows.append(["applied", [name, far, "nearest", None], {}, "picture", numbers(found)])
    text = ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows)
    path = Path(__file__).parent / "traces" / "pictures.json"
    path.write_text(f"[\n{text}\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()

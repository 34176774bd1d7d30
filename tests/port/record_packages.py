"""What boxes, schedules and optimizers of packages give, for ``test_boxes_and_named_schedules.py``.

In an environment with torch, torchvision 0.28.0, transformers 5.23.0, diffusers 0.42.1 and
lion_pytorch 0.2.5:

    python tests/port/record_packages.py

torchvision's kernels are not asked for: ``nms`` stands here as its ``nms_kernel.cpp`` has it.
"""

from __future__ import annotations

import json
import runpy
import sys
import types
from pathlib import Path

import torch


def one_by_one(dets: torch.Tensor, scores: torch.Tensor, iou_threshold: float) -> torch.Tensor:
    """Go over boxes, best first, and drop those that overlap one of those before by more."""
    kept: list[int] = []
    for number in torch.argsort(scores, descending=True, stable=True).tolist():
        x1, y1, x2, y2 = dets[number]
        for other in kept:
            a1, b1, a2, b2 = dets[other]
            wide = (torch.minimum(x2, a2) - torch.maximum(x1, a1)).clamp(min=0)
            high = (torch.minimum(y2, b2) - torch.maximum(y1, b1)).clamp(min=0)
            both = (a2 - a1) * (b2 - b1) + (x2 - x1) * (y2 - y1)
            if wide * high / (both - wide * high) > iou_threshold:
                break
        else:
            kept.append(number)
    return torch.tensor(kept, dtype=torch.int64)


for name in ("_meta_registrations", "_autograd_registrations"):
    sys.modules[f"torchvision.{name}"] = types.ModuleType(name)  # of kernels that are not there
signature = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
torch.library.define("torchvision::nms", signature)
torch.library.impl("torchvision::nms", "CPU", one_by_one)
import torchvision.ops.boxes  # noqa: E402  # behind what it would register for

torchvision.ops.boxes._assert_has_ops = lambda: None
HERE = Path(__file__).parent
found = runpy.run_path(str(HERE / "hosts" / "package_lives.py"), run_name="script")
text = json.dumps([float(f"{one:.9g}") for one in found["made"]], separators=(",", ":"))
(HERE / "traces" / "packages.json").write_text(text + "\n", encoding="utf-8")

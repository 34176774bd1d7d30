"""What tests beside host libraries share: which libraries there are, and timm without CUDA."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

# No test of this suite asks a hub for anything: models are built from their configurations.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["ACCELERATE_USE_CPU"] = str(int(os.environ.get("MPCORE_DEVICE", "cpu") == "cpu"))

VISION = Path(sys.prefix) / "vision"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--hosts",
        action="store_true",
        help="fail, where a host library is missing, instead of skipping its tests",
    )


def pytest_configure(config: pytest.Config) -> None:
    # Of the libraries themselves, on import and in use; ours stay errors.
    for line in (
        "ignore::DeprecationWarning:(lightning|torchmetrics|accelerate|transformers|peft)",
        "ignore::FutureWarning:(lightning|torchmetrics|accelerate|transformers|peft)",
    ):
        config.addinivalue_line("filterwarnings", line)


@pytest.fixture(scope="session")
def timm() -> Iterator[Any]:
    """timm, beside a CPU build of torch.

    torchvision is built for CUDA where it comes from an index: its Python part imports as soon as
    the two operators are declared that it describes without having them.
    """
    if not VISION.is_dir():
        pytest.skip("timm is not installed: `make hosts` installs it")
    import torch

    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    sys.path.append(str(VISION))
    yield importlib.import_module("timm")
    sys.path.remove(str(VISION))

"""The libraries that this suite is about are there, as pinned; elsewhere its tests skip."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import site
import sys
from pathlib import Path
from typing import Any

import pytest

LIBRARIES = ("lightning", "accelerate", "transformers", "peft", "torchao")
PINS = Path(__file__).parents[2] / "constraints.txt"


@pytest.mark.parametrize("name", LIBRARIES)
def test_library_is_there_as_pinned(name: str, request: pytest.FixtureRequest) -> None:
    if not request.config.getoption("--hosts"):
        pytest.importorskip(name)
    pinned = dict(
        line.split("==") for line in PINS.read_text(encoding="utf-8").split() if "==" in line
    )
    assert importlib.metadata.version(name) == pinned[name]
    assert importlib.util.find_spec(name) is not None


def test_libraries_brought_no_torch_of_their_own(request: pytest.FixtureRequest) -> None:
    if not request.config.getoption("--hosts"):
        pytest.skip("only in the environment that `make hosts` makes")
    import torch

    assert not any(Path(folder, "torchvision").exists() for folder in site.getsitepackages())
    assert not Path(torch.__file__).resolve().is_relative_to(Path(sys.prefix).resolve())


def test_timm_builds_a_model(timm: Any) -> None:
    import torch

    model = timm.create_model("convnext_atto", pretrained=False, num_classes=3, depths=(1, 1, 1, 1))
    assert model(torch.zeros(1, 3, 32, 32)).shape == (1, 3)

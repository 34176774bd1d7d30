"""A file or folder of the script that is named torch: ``import torch`` is torch all the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mpcore_port.engine import port_tree
from mpcore_port.source import walk
from mpcore_port.targets import Options

from .ports import TARGET

if TYPE_CHECKING:
    from pathlib import Path

SCRIPT = """import torch
import own.torch as ptu
from torch import nn


class Net(nn.Module):
    def forward(self, x):
        return torch.tanh(x).to(ptu.device)
"""


@pytest.mark.parametrize("name", ["own/torch.py", "torch/train.py"])
def test_torch_is_ported_beside_a_file_of_its_name(name: str, tmp_path: Path) -> None:
    (tmp_path / name).parent.mkdir()
    (tmp_path / name).write_text("device = None\n", encoding="utf-8")
    (tmp_path / "a.py").write_text(SCRIPT, encoding="utf-8")
    result = port_tree(walk(tmp_path), TARGET, Options())
    (found,) = (one for one in result.files if "class Net" in one.text)
    assert "import torch\n" not in found.text
    assert "from torch" not in found.text
    assert "class Net(nn.Cell):" in found.text
    assert "import own.torch as ptu" in found.text

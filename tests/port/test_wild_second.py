"""Kinds that scripts nobody had tuned for bring: each failed before."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import numpy as np
import pytest
from mindspore import Tensor, nn
from PIL import Image

import mpcore_port_runtime as port
import mpcore_port_runtime.timm  # the ports' way to it is `port.timm`
from mpcore_port.engine import port_tree
from mpcore_port.source import walk
from mpcore_port.targets import Options, load_target

from .ports import FILLED, beside, loaded, ported

if TYPE_CHECKING:
    from pathlib import Path

# --- tensors that are made in another's size ------------------------------------------------------

TO_SIZE = """
import torch
made = []
far = torch.tensor([[1.5, -2.0, 0.25]])
names = torch.tensor([4, 7, 9])
made.append(far.new().resize_as_(far).fill_(1))
made.append(names.new().resize_as_(names).copy_(torch.arange(0, 3)).unsqueeze(0).expand(3, 3))
made.append(far.new().resize_(2, 3).zero_())
made.append(names.new().resize_(far.size()).fill_(2))
"""


def test_empty_tensors_that_are_resized(tmp_path: Path) -> None:
    found = beside(TO_SIZE, tmp_path)
    assert "resize" not in found.text


# --- methods that arrays have, too ----------------------------------------------------------------

OF_ARRAYS = """
import numpy as np
import torch
def hits(found, kept):
    few = found[kept]
    sums = few.cumsum()
    sums[sums > 1] = 1
    return sums, few.repeat(2)
made = list(hits(np.array([0, 1, 0, 1]), np.array([True, True, False, True])))
made.append(torch.ones(3).cumsum(0))
"""


def test_a_method_without_what_torch_wants_is_an_arrays(tmp_path: Path) -> None:
    found = beside(OF_ARRAYS, tmp_path)
    assert not [edit for edit in found.edits if edit.kind == "refused"]
    assert "few.cumsum()" in found.text


def test_a_tensors_method_still_wants_it() -> None:
    found = ported("import torch\nx = torch.ones(3)\ny = x.cumsum()\n")
    assert [edit.line for edit in found.edits if edit.kind == "refused"] == [3]


# --- names of older timm --------------------------------------------------------------------------


def test_the_folder_of_pictures_of_old_timm(tmp_path: Path) -> None:
    for place, name in enumerate(("cat", "dog")):
        (tmp_path / name).mkdir()
        Image.new("RGB", (4, 4), (place * 50, 0, 0)).save(tmp_path / name / "a.png")
    script = (
        "import torch\nfrom timm.data import Dataset\n"
        f"data = Dataset({str(tmp_path)!r}, False, lambda one: one.getpixel((0, 0))[0])\n"
        "made = [data[0], data[1], len(data.imgs)]\n"
    )
    found = ported(script)
    assert loaded(found.text, tmp_path)["made"] == [(0, 0), (50, 1), 2]


BITS = {
    "one": [63, 63, 63, 63, 33, 33, 33, 63, 63, 63, 63, 63, 63, 63, 63, 49],
    "many": [63, 62, 62, 62, 56, 56, 56, 63, 63, 39, 15, 15, 47, 63, 57, 63],
}
"""Rows of what timm 1.0.9 left of ones, as bits, one after the other from one seed."""


def test_boxes_that_are_erased_are_timms(tmp_path: Path) -> None:
    script = """import torch
from timm.data.random_erasing import RandomErasing
one = RandomErasing(probability=0.9, device='cpu')
many = RandomErasing(probability=1.0, mode='const', min_count=2, max_count=4, device='cpu')
noise = RandomErasing(probability=1.0, mode='pixel', max_count=1, device='cpu')
"""
    found = loaded(ported(script).text, tmp_path)
    random.seed(3)
    for name, rows in BITS.items():
        left = found[name](Tensor(np.ones((2, 1, 8, 6), np.float32))).asnumpy()
        bits = left.reshape(-1, 6).astype(int) @ (1 << np.arange(6)[::-1])
        assert bits.tolist() == rows
    given = Tensor(np.ones((3, 8, 8), np.float32))
    assert 0 < (found["noise"](given).asnumpy() != 1).sum() < 192
    assert (given.asnumpy() == 1).all()


def test_blocks_in_the_order_of_old_timm() -> None:
    late = (0.0, 0.0, 0.3, nn.GELU, nn.LayerNorm)

    def norm(size: int) -> nn.LayerNorm:
        return nn.LayerNorm((size,))

    oldest = port.timm.Block(8, 2, 2.0, True, 0.5, *late[:3], nn.ReLU, norm)
    assert oldest.attn.scale == 0.5
    assert isinstance(oldest.mlp.act, nn.ReLU)
    assert oldest.drop_path is oldest.drop_path1
    assert oldest.drop_path.drop_prob == 0.3
    newer = port.timm.Block(8, 2, 2.0, True, *late[:3], nn.ReLU, norm)
    assert newer.attn.scale == 0.5  # 1 / sqrt(8 / 2)
    del newer.attn
    newer.attn = nn.Identity()
    assert isinstance(newer.attn, nn.Identity)
    with pytest.raises(TypeError, match="by keyword"):
        port.timm.Block(8, 2, 2.0, True, False, 0.1)


# --- modules that a project builds ----------------------------------------------------------------


@pytest.mark.parametrize("target", ["torch_npu", "mindspore"])
@pytest.mark.parametrize(
    "line", ["from own import _C", "from own._C import far", "from .. import _C", "import own._ext"]
)
def test_modules_that_a_project_builds_are_named(tmp_path: Path, line: str, target: str) -> None:
    (tmp_path / "own" / "kernels").mkdir(parents=True)
    (tmp_path / "own" / "__init__.py").write_text("")
    (tmp_path / "own" / "kernels" / "__init__.py").write_text("")
    (tmp_path / "own" / "kernels" / "far.py").write_text(
        f"import torch\n{line}\nx = torch.ones(2)\n"
    )
    found = port_tree(walk(tmp_path), load_target(target), Options())
    said = [e.line for file in found.files for e in file.edits if "builds of" in e.reason]
    assert said == [2]


def test_built_modules_of_packages_are_the_packages() -> None:
    found = ported("import torch\nfrom torch import _C\nfrom scipy import _C as far\n")
    assert not [edit for edit in found.edits if "builds of" in edit.reason]


# --- settings of a layer, handed on ---------------------------------------------------------------

OWN_SETTINGS = (
    FILLED
    + """
import torch.nn.functional as F
class Low(nn.Embedding):
    def __init__(self, n, d):
        super().__init__(n, d, padding_idx=0)
        self.low = nn.Parameter(torch.zeros(2, n))
    def forward(self, x):
        return F.embedding(x, self.low.t(), self.padding_idx, self.max_norm, self.norm_type,
                           self.scale_grad_by_freq, self.sparse)
class Part(nn.Module):
    def __init__(self, n, d):
        super().__init__()
        self.table = nn.Embedding(n, d)
    def forward(self, x):
        return F.embedding(x, self.table.weight[..., :2], self.table.padding_idx,
                           self.table.max_norm, sparse=self.table.sparse)
for net in (filled(Low(4, 3)), filled(Part(4, 3))):
    loss = (net(torch.tensor([[0, 2], [3, 0]])) ** 2).sum()
    loss.backward()
    made += [loss.detach()] + [p.grad for p in net.parameters() if p.grad is not None]
"""
)


def test_settings_of_a_layer_are_its_defaults(tmp_path: Path) -> None:
    found = beside(OWN_SETTINGS, tmp_path)
    assert not [edit for edit in found.edits if edit.kind == "refused"]


@pytest.mark.parametrize(
    "settings",
    ["self.padding_idx, self.max_norm, self.norm_type, True", "None, self.max_norm, 2.0"],
)
def test_settings_of_others_are_not(settings: str) -> None:
    script = (
        "import torch\nimport torch.nn.functional as F\n"
        "class Own(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        f"        return F.embedding(x, self.low, {settings})\n"
    )
    assert [edit.line for edit in ported(script).edits if edit.kind == "refused"] == [5]

"""Names of torch that a file imports from a neighbour: a port imports them from torch itself."""

from __future__ import annotations

import runpy
import sys

import numpy as np
import pytest

from mpcore_port.engine import port_tree
from mpcore_port.source import walk
from mpcore_port.targets import Options, load_target

NEIGHBOUR = """import torch.nn.init as init
from torch import nn, Tensor
from torch.nn import functional as F
try:
    from apex.optimizers import FusedAdam as Adam
    from apex.normalization import FusedLayerNorm as LayerNorm
except ImportError:
    from torch.optim import AdamW as Adam
    from torch.nn import LayerNorm
def halved(x):
    return x / 2
"""
USES = """import torch
{imports}
made = []
net = {at}nn.Linear(3, 2)
{at}init.constant_(net.weight, 0.5)
{at}init.zeros_(net.bias)
norm = {at}LayerNorm(2)
opt = {at}Adam(net.parameters(), lr=0.1, weight_decay=0.0)
x = torch.arange(6.0).reshape(2, 3)
for turn in range(3):
    opt.zero_grad()
    loss = {at}F.mse_loss({at}halved(norm(net(x))) + net(x), torch.ones(2, 2))
    loss.backward()
    opt.step()
    made.append(loss.detach())
"""
ALL = "nn, init, F, halved, LayerNorm, Adam"
FORMS = {
    "names": ("from parts.layers import " + ALL, ""),
    "lines": (
        "from parts.layers import (\n    nn, init,\n    F, halved,\n    LayerNorm, Adam)",
        "",
    ),
    "star": ("from parts.layers import *", ""),
    "package": ("from parts import " + ALL, ""),
    "module": ("from parts import layers", "layers."),
    "renamed": ("import parts.layers as held", "held."),
}


def written(folder, imports, at):
    (folder / "parts").mkdir(parents=True)
    (folder / "parts" / "__init__.py").write_text("from .layers import *\n")
    (folder / "parts" / "layers.py").write_text(NEIGHBOUR)
    (folder / "use.py").write_text(USES.format(imports=imports, at=at))


def port_folder(folder, target):
    found = port_tree(walk(folder), load_target(target), Options())
    assert not found.unread
    for file in found.files:
        assert not file.failures, file.failures
        (folder / file.source.path).write_text(file.text)
    return {file.source.path: file for file in found.files}


def run(folder, monkeypatch):
    monkeypatch.syspath_prepend(str(folder))
    for name in [one for one in sys.modules if one.partition(".")[0] == "parts"]:
        del sys.modules[name]
    return runpy.run_path(str(folder / "use.py"))["made"]


@pytest.mark.parametrize("form", ["lines", "star", "renamed"])
def test_a_port_imports_from_torch_itself(form, tmp_path, monkeypatch):
    imports, at = FORMS[form]
    written(tmp_path, imports, at)
    theirs = [one.item() for one in run(tmp_path, monkeypatch)]
    files = port_folder(tmp_path, "mindspore")
    ours = [float(one) for one in run(tmp_path, monkeypatch)]
    np.testing.assert_allclose(ours, theirs, rtol=1e-4)
    edits = [edit for edit in files["use.py"].edits if edit.rule == "handed on"]
    assert {edit.kind for edit in edits} == {"exact"}
    assert min(edit.line for edit in edits) == 2


@pytest.mark.parametrize("form", FORMS)
def test_apex_is_named_where_it_is_used(form, tmp_path):
    written(tmp_path, *FORMS[form])
    text = port_folder(tmp_path, "torch_npu")["use.py"].text
    assert "opt = torch.optim.AdamW(" in text
    assert "norm = torch.nn.LayerNorm(2)" in text
    assert "Adam" not in text.partition("made = []")[0].replace("FusedAdam as Adam", "")


def test_names_of_its_own_stay(tmp_path):
    (tmp_path / "own.py").write_text(
        "from torch import nn\nF = 3\nfrom torch.nn import GELU as F\n"
    )
    text = "import torch\nfrom own import F, halved\nprint(F, torch.ones(2))\n"
    (tmp_path / "use.py").write_text(text)
    files = port_tree(walk(tmp_path), load_target("mindspore"), Options()).files
    made = next(file for file in files if file.source.path == "use.py")
    assert "from own import F, halved" in made.text

"""Weights that are fetched by an address, and functions that torch computes twice: beside torch."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch

import mpcore_port_runtime as port
from mpcore.errors import BackendError
from mpcore.tools.convert import convert

from .ports import FILLED, beside, compare, loaded, ported

# --- weights -------------------------------------------------------------------------------------

FETCHED = """
import os
import torch
from torch.hub import load_state_dict_from_url
from torch.utils import model_zoo
made = []
URL = "https://somewhere.org/files/small-0a1b.pth"
made.append(torch.hub.get_dir() == os.path.join(os.environ["TORCH_HOME"], "hub"))
state = load_state_dict_from_url(URL, map_location="cpu", check_hash=True)
made.append(state["model"]["weight"])
made.append(state["epoch"])
net = torch.nn.Linear(2, 3)
net.load_state_dict(load_state_dict_from_url(url=URL, progress=False)["model"])
made.append(net.weight)
made.append(model_zoo.load_url(URL, map_location=torch.device("cpu"))["model"]["bias"])
made.append(torch.hub.load_state_dict_from_url(URL, file_name="other.pth")["bias"])
"""


def _written(folder, name, state):
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(state, folder / f"{name}.pth")
    convert(folder / f"{name}.pth", folder / f"{name}.safetensors")


def test_weights_by_an_address_are_read_where_the_hub_keeps_them(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    net = torch.nn.Linear(2, 3)
    folder = tmp_path / "hub" / "checkpoints"
    _written(folder, "small-0a1b", {"model": net.state_dict(), "epoch": 7})
    _written(folder, "other", net.state_dict())
    found = beside(FETCHED, tmp_path)
    assert not [edit for edit in found.edits if edit.kind == "refused"]
    assert any("nothing is fetched" in edit.effect for edit in found.edits)


def test_weights_that_are_not_there_are_asked_for_by_their_address(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    with pytest.raises(BackendError, match=r"put https://a.b/c/d.pth at .*mpcore convert-weights"):
        port.load_state_dict_from_url("https://a.b/c/d.pth")
    with pytest.raises(BackendError, match=r"elsewhere/d\.safetensors is not there"):
        port.load_state_dict_from_url("https://a.b/c/d.pth", tmp_path / "elsewhere")


def test_files_are_fetched_whole_or_not_at_all(tmp_path):
    (tmp_path / "a.bin").write_bytes(b"abc")
    address, kept = (tmp_path / "a.bin").as_uri(), tmp_path / "b.bin"
    port.download_url_to_file(address, kept, hashlib.sha256(b"abc").hexdigest()[:8])
    assert kept.read_bytes() == b"abc"
    with pytest.raises(RuntimeError, match="invalid hash value"):
        port.download_url_to_file(address, tmp_path / "c.bin", "0000", progress=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.bin", "b.bin"]


# --- computed twice ------------------------------------------------------------------------------

RECOMPUTED = (
    FILLED
    + """
import torch.nn.functional as F
import torch.utils.checkpoint as cp
from torch.utils.checkpoint import checkpoint, checkpoint_sequential
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 4), nn.Linear(4, 4)
        self.rest = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    def run(self, x, by=1.0):
        return F.relu(self.second(x)) * by
    def forward(self, x):
        x = self.first(x)
        x = checkpoint(self.run, x, use_reentrant=False, by=0.5)
        x = cp.checkpoint(self.run, x, use_reentrant=True, preserve_rng_state=True)
        return checkpoint_sequential(self.rest, 2, x, use_reentrant=False)
net = filled(Net())
opt = torch.optim.SGD(net.parameters(), lr=0.1)
x, y = torch.linspace(-1, 1, 12).view(4, 3), torch.tensor([0, 1, 1, 0])
for _ in range(3):
    opt.zero_grad()
    loss = F.cross_entropy(net(x), y)
    loss.backward()
    opt.step()
    made.append(loss.item())
made.append(net.first.weight)
made.append(net.rest[0].weight)
"""
)


def test_what_torch_computes_twice_is_computed_once(tmp_path):
    found = ported(RECOMPUTED)
    compare(RECOMPUTED, found.text, tmp_path, 1e-4)
    said = [edit for edit in found.edits if "nothing is computed twice" in edit.effect]
    assert {edit.kind for edit in said} == {"changed"}
    assert found.status == "runs"


def test_the_context_of_a_forward_pass_is_open():
    seen = []

    class Noted:
        def __enter__(self):
            seen.append("in")

        def __exit__(self, *_):
            seen.append("out")

    made = port.checkpoint(lambda x: seen.append(x) or x, 3, context_fn=lambda: (Noted(), None))
    assert (made, seen) == (3, ["in", 3, "out"])


def test_the_layout_of_what_is_made_contiguous_means_nothing(tmp_path):
    script = """
import torch
x = torch.arange(16.0).view(1, 4, 2, 2)
made = [x.contiguous(memory_format=torch.channels_last) * 2]
made.append(x.clone(memory_format=torch.contiguous_format) + 1)
made.append(x.permute(0, 2, 3, 1).contiguous(memory_format=torch.preserve_format).flatten())
"""
    found = beside(script.replace("preserve_format", "contiguous_format"), tmp_path)
    assert not [edit for edit in found.edits if edit.kind in ("unproven", "refused")]
    made = loaded(ported(script).text, tmp_path)["made"]
    assert np.array_equal(made[0].asnumpy(), np.arange(16.0).reshape(1, 4, 2, 2) * 2)

"""What norms are, and what goes on behind ``fork_rng``; beside torch."""

from __future__ import annotations

import numpy as np

import mpcore_port_runtime as port

from .ports import beside, ported

SCRIPT = """
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.modules.instancenorm import _InstanceNorm
made = []
layers = [nn.Linear(2, 2), nn.BatchNorm1d(2), nn.BatchNorm2d(2), nn.BatchNorm3d(2),
          nn.InstanceNorm1d(2), nn.InstanceNorm2d(2, affine=True), nn.GroupNorm(1, 2),
          nn.LayerNorm(2)]
for m in layers:
    kinds = [isinstance(m, _NormBase), isinstance(m, (nn.Linear, _InstanceNorm)),
             isinstance(m, _BatchNorm), issubclass(type(m), _NormBase)]
    made.append(torch.tensor([float(k) for k in kinds]))
"""


def test_norms_are_of_torchs_kinds(tmp_path):
    found = beside(SCRIPT, tmp_path)
    assert not [edit for edit in found.edits if edit.kind in ("refused", "unproven")]
    assert "nn.SyncBatchNorm" in found.text


def drawn():
    return port.rand(4).asnumpy().tolist()


def test_behind_a_fork_the_stream_goes_on():
    """A script that seeds inside of it in each epoch has not the same numbers in all of them."""
    port.manual_seed(0)
    behind = []
    for _ in range(2):
        with port.fork_rng():
            port.manual_seed(7)
            inside = drawn()
        behind.append(drawn())
    assert behind[0] != behind[1]
    with port.fork_rng(devices=[], enabled=True):
        port.manual_seed(7)
        assert drawn() == inside
    assert drawn() != inside
    port.manual_seed(3)
    first = drawn()
    port.manual_seed(3)
    with port.fork_rng(enabled=False):
        assert drawn() == first


def test_a_fork_is_said_to_change_numbers():
    script = "import torch\nwith torch.random.fork_rng(devices=[0]):\n    torch.manual_seed(1)\n"
    found = ported(script)
    assert "port.fork_rng(devices=[0])" in found.text
    assert [e.kind for e in found.edits if "fork_rng" in e.old] == ["changed"]


class Settings(dict):
    __getattr__ = dict.__getitem__


def test_settings_whose_attributes_are_keys_are_no_optimizers():
    settings = Settings(net=port.torch_nn.Linear(2, 1))
    loss = port.loss(lambda: (settings.net(port.rand(3, 2)) ** 2).mean(), settings.net)
    assert not port.rates.has_groups(settings)
    assert np.isfinite(float(loss))

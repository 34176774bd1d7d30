"""Random masks are replayed: a script with dropout and dropped rows gives the port's own losses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mpcore_port.engine import port_text
from mpcore_port.mindspore.replay import replay
from mpcore_port.targets import load_target

pytest.importorskip("torch")
pytest.importorskip("mindspore")

pytestmark = pytest.mark.usefixtures("warm_workers")
SCRIPT = """
import torch
import torch.nn as nn
import torch.nn.functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 16), nn.Linear(16, 4)
        self.drop = nn.Dropout(0.3)

    def forward(self, x):
        h = F.dropout(torch.relu(self.a(x)), p=0.2, training=self.training)
        keep = torch.rand(h.shape[0], 1, device=h.device) + 0.8
        return self.b(self.drop(h * torch.floor(keep)))


model = Net().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for step in range(6):
    x = torch.randn(16, 8, device="cuda")
    y = torch.randint(0, 4, (16,), device="cuda")
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
"""


def test_masks_are_those_of_the_original(tmp_path: Path) -> None:
    original, port = tmp_path / "original.py", tmp_path / "port.py"
    original.write_text(SCRIPT, encoding="utf-8")
    found = port_text(SCRIPT, load_target("mindspore"))
    port.write_text(found.text, encoding="utf-8")
    theirs, ours = replay(original, port, "float32", tmp_path, losses=6)
    losses = [value for kind, value in theirs if kind == "loss"]
    own = [value for kind, value in ours if kind == "loss"]
    assert len(losses) == 6
    assert own == pytest.approx(losses, rel=0, abs=5e-6)


def test_initialisers_leave_the_stream_of_numpy_alone(monkeypatch):
    ms = pytest.importorskip("mindspore")
    from mindspore.common import initializer

    from mpcore_port.mindspore.replay import own_stream

    monkeypatch.setattr(initializer, "_numpy_seed", initializer._numpy_seed)
    own_stream()
    np.random.seed(3)  # noqa: NPY002  # the stream that scripts draw from
    before = np.random.rand(4)  # noqa: NPY002
    np.random.seed(3)  # noqa: NPY002  # the stream that scripts draw from
    ms.nn.Dense(3, 2)
    np.testing.assert_array_equal(np.random.rand(4), before)  # noqa: NPY002

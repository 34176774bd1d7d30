"""Random numbers of a port's run are those of its original, whatever initialises the layers."""

from __future__ import annotations

import numpy as np

from mpcore_port.mindspore.replay import replay
from mpcore_port.verify.standing import _unlogged

from .ports import ported

ATTENTION = """import torch
from torch import nn
net = nn.MultiheadAttention(4, 2)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(2):
    x = torch.randn(3, 2, 4)
    optimizer.zero_grad()
    loss = (net(x, x, x)[0] - torch.randn_like(x)).pow(2).mean()
    loss.backward()
    optimizer.step()
"""


def test_what_initialises_attention_does_not_draw_from_the_data(tmp_path):
    """torch's layer holds xavier_uniform_ by its own name: noise behind it was another."""
    original, port, work = tmp_path / "original.py", tmp_path / "port.py", tmp_path / "work"
    original.write_text(ATTENTION, encoding="utf-8")
    port.write_text(ported(ATTENTION).text, encoding="utf-8")
    work.mkdir()
    theirs, mine = replay(original, port, "float32", work, losses=2, at=9)
    losses = [[value for kind, value in run if kind == "loss"] for run in (theirs, mine)]
    assert len(losses[0]) == 2
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)


def test_what_a_logger_gets_is_compared_without_what_makes_it_plain():
    text = (
        'wandb.log(port.logged({"a": f(x),\n    "b": [y(1)]}), step=port.logged)\nz = logged(2)\n'
    )
    plain = 'wandb.log({"a": f(x),\n    "b": [y(1)]}, step=port.logged)\nz = logged(2)'
    assert _unlogged(text) == plain
    assert _unlogged("x = (") == "x = ("

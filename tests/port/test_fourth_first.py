"""What scripts that nobody had tuned for asked for, port beside original."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .ports import FILLED, beside, ported

if TYPE_CHECKING:
    from pathlib import Path

MAYBE = """import torch
made = []
def step(model, opt, amp, cast, x):
    made.append(amp is None)
    made.append(cast is None)
    loss = model(x).sum()
    loss.backward()
    opt.step()
def main(use):
    model = torch.nn.Linear(2, 2)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    {none}
    cast = None
    if use:
        from apex import amp
        from torch.cuda.amp import autocast as cast, GradScaler
        model, opt = amp.initialize(model, opt, opt_level="O1")
    made.append(scaler is None)
    step(model, opt, amp, cast, torch.ones(2, 2))
main(False)
"""


@pytest.mark.parametrize("none", ["amp = scaler = None", "amp, scaler = None, None"])
def test_imports_of_a_branch_are_none_where_it_did_not_run(none: str, tmp_path: Path) -> None:
    script = MAYBE.format(none=none)
    found = beside(script, tmp_path)
    assert "amp = port.apex" in found.text
    assert "cast = port.autocast" in found.text
    assert "port.apex, scaler" not in found.text


def test_imports_that_may_fail_are_there() -> None:
    script = """amp = None
try:
    from apex import amp
except ImportError:
    amp = None
def main(model, opt):
    if amp is not None:
        model, opt = amp.initialize(model, opt)
"""
    assert "amp = port.apex" not in ported(script).text


ROWS = (
    FILLED
    + """net = filled(nn.Embedding(4, 2))
rows = net.weight.data
rows[1].copy_(rows[0])
rows[2].data.copy_(rows[0])
made.append(net.weight.detach())
net.weight.data[3].data.copy_(rows[0])
made.append(net.weight.detach())
"""
)


def test_rows_of_weights_are_written(tmp_path: Path) -> None:
    beside(ROWS, tmp_path)

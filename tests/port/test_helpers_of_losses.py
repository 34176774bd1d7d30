"""Losses of two networks that helpers of other files make, and regions of apex of one name."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import pytest
from mindspore import ops

from .ports import FILLED, NET, beside, ported


def _of_real(net: Any, made: Any, real: Any) -> Any:
    off = made.detach() if hasattr(made, "detach") else ops.stop_gradient(made)
    return ((net(real) - 1) ** 2).mean() + (net(off) ** 2).mean()


@pytest.fixture(autouse=True)
def _there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have both sides import a helper that takes what it is handed off the graph."""
    module = types.ModuleType("theirs")
    module.of_real = _of_real  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "theirs", module)


HEAD = f"""{FILLED}
from theirs import of_real
{NET}
maker, judge = filled(Net()), filled(Net())
first = torch.optim.SGD(maker.parameters(), lr=0.02)
second = torch.optim.SGD(judge.parameters(), lr=0.02)
loader = [torch.cos(torch.arange(12.0) * step).view(4, 3) for step in range(1, 6)]
"""
MAKER = """
        loss_m = (judge(x + y.mean()) - 1).pow(2).mean() + y.pow(2).mean()
        first.zero_grad()
        loss_m.backward()
        first.step()
"""
JUDGE = """
        second.zero_grad()
        loss_j = of_real(judge, x * y.mean(), x)
        loss_j.backward()
        second.step()
"""
LOOP = """
def train(maker, judge, first, second):
    for x in loader:
        y = maker(x)
{steps}
        made.extend([loss_m, loss_j])
train(*[maker, judge, first, second])
made += [p.sum() for p in maker.parameters()] + [p.sum() for p in judge.parameters()]
"""


@pytest.mark.parametrize("steps", [MAKER + JUDGE, JUDGE + MAKER], ids=["maker first", "last"])
def test_what_a_pass_went_through_is_constant_for_a_helper(steps: str, tmp_path: Path) -> None:
    found = beside(HEAD + LOOP.format(steps=steps), tmp_path)
    assert not [one for one in found.edits if one.kind == "refused"]


def test_heads_of_one_line_are_no_graph_of_each_other(tmp_path: Path) -> None:
    steps = """
        a, b = maker(x), judge(x)
        first.zero_grad()
        loss_m = a.pow(2).mean()
        loss_m.backward()
        first.step()
        second.zero_grad()
        loss_j = b.pow(2).mean()
        loss_j.backward()
        second.step()
"""
    beside(HEAD + LOOP.format(steps=steps), tmp_path)


OF_APEX = f"""{FILLED}
from apex import amp
from theirs import of_real
{NET}
maker, judge = filled(Net()), filled(Net())
first = torch.optim.SGD(maker.parameters(), lr=0.02)
second = torch.optim.SGD(judge.parameters(), lr=0.1)
maker, first = amp.initialize(maker, first, opt_level="O0", verbosity=0)
judge, second = amp.initialize(judge, second, opt_level="O0", verbosity=0)
loader = [torch.cos(torch.arange(12.0) * step).view(4, 3) for step in range(1, 6)]
for x in loader:
    y = maker(x)
    loss_m = (judge(x + y.mean()) - 1).pow(2).mean()
    first.zero_grad()
    with amp.scale_loss(loss_m, first) as scaled_loss:
        scaled_loss.backward()
    first.step()
    second.zero_grad()
    loss_j = {{loss}}
    with amp.scale_loss(loss_j, second) as scaled_loss:
        scaled_loss.backward()
    second.step()
    made += [loss_m, loss_j]
"""


@pytest.mark.parametrize(
    "loss",
    ["of_real(judge, x * y.mean(), x)", "(judge(x * y.mean().detach()) ** 2).mean()"],
)
def test_regions_of_apex_that_give_one_name_are_each_of_their_own_loss(loss: str) -> None:
    found = ported(OF_APEX.format(loss=loss))
    assert not [one for one in found.edits if one.kind == "refused"]
    assert found.text.count("value_and_grad(") + found.text.count("port.loss(") == 2

"""Steps whose scaler is off, or has no part in one branch: torch takes them whatever they hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mpcore_port.engine import port_text
from mpcore_port.targets import Options

from .ports import FILLED, NET, TARGET, compare

if TYPE_CHECKING:
    from pathlib import Path

DATA = """inf = float("inf")
batches = [torch.ones(2, 3), torch.full((2, 3), 2.0), torch.tensor([[inf, 1.0, 1.0]] * 2)]
"""
"""The last batch has gradients that are not finite: they are taken, and nothing else is."""

MAKERS = {
    "always": "scaler = torch.amp.GradScaler('cpu', init_scale=4.0, growth_interval=1)\n",
    "perhaps": "scaler = torch.amp.GradScaler('cpu', init_scale=4.0) if amp else None\n",
    "off": "scaler = torch.amp.GradScaler('cpu', enabled=amp)\n",
}

TWO_WAYS = """        if amp:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = net(x).float().sum()
            scaler.scale(loss).backward()
            scaler.unscale_(opt)
            torch.nn.utils.clip_grad_norm_(net.parameters(), 5.0)
            scaler.step(opt)
            scaler.update()
        else:
            loss = net(x).float().sum()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 5.0)
            opt.step()
"""

ONE_WAY = """        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=amp):
            loss = net(x).float().sum()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
"""

SCRIPT = """amp = {amp}
net = filled(Net())
opt = torch.optim.SGD(net.parameters(), lr=0.1)
{maker}
def run():
    for x in batches:
        opt.zero_grad()
{step}        made.append(float(net.weight.detach().sum()))
run()
for p in net.parameters():
    made.append(p.detach().numpy())
"""


def _beside(maker: str, step: str, folder: Path, end: str = "", *, plain: bool = True) -> str:
    """Return the port of a script that trains without a scaler, run beside it."""
    text = SCRIPT.format(amp=False, maker=MAKERS[maker], step=step)
    script = FILLED + NET + DATA + text + end
    found = port_text(script, TARGET, Options(plain=plain))
    assert "train_step" in found.text
    compare(script, found.text, folder)
    return found.text


@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize(
    ("maker", "step"),
    [("always", TWO_WAYS), ("perhaps", TWO_WAYS), ("off", TWO_WAYS), ("off", ONE_WAY)],
    ids=["always", "perhaps", "off", "one way"],
)
def test_steps_without_a_scaler_are_taken(maker, step, plain, tmp_path):
    _beside(maker, step, tmp_path, plain=plain)


def test_a_scale_that_one_branch_moves_rests_in_the_other(tmp_path):
    text = _beside("always", TWO_WAYS, tmp_path, "made.append(scaler.get_scale())\n")
    assert "loss_scaler = scaler if amp else ms.amp.StaticLossScaler(1.0)" in text


def test_a_condition_that_makes_the_scaler_chooses_it_once(tmp_path):
    assert "loss_scaler" not in _beside("perhaps", TWO_WAYS, tmp_path)

"""timm's schedules and losses, by what timm gave (``record_timm.py``)."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest

import mpcore_port_runtime as port

from .ports import loaded, ported
from .record_timm import LABELS, SCORES, SHARES, rates

TRACES = json.loads((Path(__file__).parent / "traces" / "timm.json").read_text("utf-8"))


def optimizer():
    first, second = (ms.Parameter(ms.Tensor([0.0], ms.float32), name=name) for name in "ab")
    return port.SGD([{"params": [first]}, {"params": [second], "lr_scale": 0.1}], lr=0.5)


@pytest.mark.parametrize(("name", "given", "wanted"), TRACES["schedules"])
def test_a_schedule_sets_timms_rates(name, given, wanted):
    held = optimizer()
    made = getattr(port.timm, name)(held, **given)
    found = rates(made, held.param_groups, not given.get("t_in_epochs", True))
    np.testing.assert_allclose(found, wanted, rtol=1e-12)
    assert float(held.param_groups[0].parameter) == np.float32(wanted[-1][0])  # what the step reads


@pytest.mark.parametrize(("given", "epochs", "wanted"), TRACES["settings"])
def test_settings_make_timms_schedule(given, epochs, wanted):
    held = optimizer()
    made, count = port.timm.create_scheduler(argparse.Namespace(epochs=8, **given), held, 2)
    assert count == epochs
    moved = rates(made, held.param_groups, given.get("sched_on_updates", False)) if made else []
    np.testing.assert_allclose(moved, wanted, rtol=1e-12)


@pytest.mark.parametrize("name", ["CosineLRScheduler", "TanhLRScheduler"])
def test_old_names_of_turns_are_taken(name):
    """Scripts of timm 0.4.12 say ``t_mul`` and ``decay_rate``; they raised TypeError."""
    new = getattr(port.timm, name)(optimizer(), 3, cycle_mul=2.0, cycle_decay=0.5, cycle_limit=2)
    old = getattr(port.timm, name)(optimizer(), 3, t_mul=2.0, decay_rate=0.5, cycle_limit=2)
    assert [new._get_lr(t) for t in range(12)] == [old._get_lr(t) for t in range(12)]
    endless = getattr(port.timm, name)(optimizer(), 3, t_mul=1.0)
    assert endless._get_lr(4) == endless._get_lr(1) != new._get_lr(10)  # as in 0.4: no limit
    assert endless.get_cycle_length() == 3
    with pytest.raises(NotImplementedError, match="cycle_decay"):
        getattr(port.timm, name)(optimizer(), 3, decay_rate=0.5, lr_min=0.1)


class _Halved(port.timm.Scheduler):
    def __init__(self, optimizer):
        super().__init__(optimizer, param_group_field="lr", noise_range_t=None, initialize=True)

    def get_epoch_values(self, epoch):
        return [base / 2**epoch for base in self.base_values]

    def get_update_values(self, num_updates):
        return None


def test_a_class_of_the_scripts_own_may_say_its_values_as_before():
    held = optimizer()
    made = _Halved(held)
    made.step_update(7)
    made.step(2)
    assert [group["lr"] for group in held.param_groups] == [0.125, 0.0125]


def test_states_are_taken_over():
    one, other = (port.timm.PlateauLRScheduler(optimizer(), patience_t=1) for _ in "ab")
    one.step(1, 0.5)
    other.load_state_dict(one.state_dict())
    assert other.lr_scheduler.best == 0.5
    made = port.timm.CosineLRScheduler(optimizer(), 8)
    made.load_state_dict({"t_initial": 4})
    assert made.get_cycle_length() == 4
    assert "optimizer" not in made.state_dict()


def test_what_is_no_schedule_here_is_refused():
    with pytest.raises(NotImplementedError, match="wsd"):
        port.timm.create_scheduler_v2(optimizer(), "wsd")
    with pytest.raises(ValueError, match="sched"):
        port.timm.create_scheduler_v2(optimizer(), "cosin")
    with pytest.raises(AssertionError, match="updates_per_epoch"):
        port.timm.create_scheduler_v2(optimizer(), step_on_epochs=False)
    with pytest.raises(KeyError, match="initial_lr"):
        port.timm.CosineLRScheduler(optimizer(), 8, initialize=False)


@pytest.mark.parametrize(("name", "given", "of", "value", "slopes"), TRACES["losses"])
def test_a_loss_and_its_gradients_are_timms(name, given, of, value, slopes):
    made, rows = getattr(port.timm, name)(**given), len(slopes)
    target = ms.Tensor(LABELS[:rows]) if of == "labels" else ms.Tensor(SHARES[:rows], ms.float32)
    run = ms.value_and_grad(lambda scores: made(scores, target))
    found, grads = run(ms.Tensor(SCORES[:rows], ms.float32))
    np.testing.assert_allclose(float(found), value, rtol=2e-6)
    np.testing.assert_allclose(grads.asnumpy(), slopes, rtol=2e-5, atol=1e-7)


def test_losses_refuse_what_timms_refuse():
    with pytest.raises(AssertionError, match="splits"):
        port.timm.JsdCrossEntropy(5)(ms.Tensor(SCORES, ms.float32), ms.Tensor(LABELS))
    with pytest.raises(AssertionError, match="smoothing"):
        port.timm.BinaryCrossEntropy(smoothing=1.0)
    with pytest.raises(ValueError, match="reduction"):
        port.timm.AsymmetricLossMultiLabel(reduction="all")
    with pytest.raises(AssertionError, match="rows"):
        port.timm.BinaryCrossEntropy()(ms.Tensor(SCORES, ms.float32), ms.Tensor(LABELS[:2]))


# --- what stars of timm bring ---------------------------------------------------------------------

STARRED = """import torch
from torch import nn
from timm.loss import *
from timm.scheduler import *
{behind}
kinds = [StepLRScheduler]

def go(model, loader):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = CosineLRScheduler(optimizer, t_initial=4, warmup_t=1, warmup_lr_init=0.01)
    criterion = BinaryCrossEntropy(smoothing=0.2)
    made = []
    for x, y in loader:
        loss = criterion(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step(len(made) + 1)
        made.append(loss.item())
    return made

def weigh(counts):
    return resolve_class_weights(counts)
"""


def test_names_of_a_star_are_ported_one_by_one():
    found = ported(STARRED.format(behind=""))
    assert found.status == "runs unless line 23 is reached"
    assert "timm" not in found.text.replace("port.timm", "").replace("of timm its", "")
    assert "kinds = [port.timm.StepLRScheduler]" in found.text


@pytest.mark.parametrize("behind", ["from data import *", "from .data import *"])
def test_a_star_behind_may_bring_the_same_names(behind):
    found = ported(STARRED.format(behind=behind))
    assert found.status == "does not run"
    assert "port.timm" not in found.text


def test_timms_pieces_in_a_loop_give_torchs_numbers(tmp_path):
    script = STARRED.format(behind="") + (
        "torch.manual_seed(0)\n"
        "net = nn.Sequential(nn.Flatten(), nn.Linear(12, 4))\n"
        "for p in net.parameters():\n"
        "    p.data.copy_(torch.linspace(-1, 1, p.numel()).view(p.shape))\n"
        "x = torch.linspace(-1, 1, 48).view(4, 3, 2, 2)\n"
        "made = go(net, [(x * k, torch.tensor([0, 3, 1, 2])) for k in (1.0, 2.0, 0.5)])\n"
    )
    made = loaded(ported(script).text, tmp_path)["made"]
    np.testing.assert_allclose(made, TRACES["loop"], rtol=1e-5)

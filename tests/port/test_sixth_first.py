"""Faults that readers found at first sight: switches of anomalies, what a scaler is asked."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest

from mpcore_port_runtime import GradScaler

from .ports import FILLED, NET, beside, loaded, ported, ported_folder

if TYPE_CHECKING:
    from pathlib import Path


WATCHED = f"""{FILLED}
{NET}
def fit(net, detect=False):
    torch.set_anomaly_enabled(detect)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for i in range(3):
        opt.zero_grad()
        loss = (net(torch.ones(2, 3) * (i + 1)) ** 2).sum() * 0.01
        loss.backward()
        opt.step()
        made.append(loss.item())
fit(Net())
"""


def test_a_search_for_anomalies_is_switched_by_its_old_name(tmp_path: Path) -> None:
    found = beside(WATCHED, tmp_path)
    said = [edit for edit in found.edits if "set_anomaly_enabled" in edit.old]
    assert [edit.kind for edit in said] == ["changed"]


ASKED = f"""{FILLED}
{NET}
net = Net()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
for i in range(7):
    made.append(len(scaler._found_inf_per_device(opt)))
    opt.zero_grad()
    with torch.autocast("cpu", enabled=False):
        loss = (net(torch.ones(2, 3) * (float("inf") if i == 3 else i)) ** 2).sum() * 0.01
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    bad = sum(v.item() for v in scaler._found_inf_per_device(opt).values())
    made.append(bad)
    if not bad:
        torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)
    scaler.step(opt)
    for found in scaler._per_optimizer_states[id(opt)]["found_inf_per_device"].values():
        made.append(found.item())
    scaler.update()
    if i == 5:
        scaler.set_growth_factor(4.0)
        scaler.set_backoff_factor(0.25)
        scaler.set_growth_interval(1)
    made.extend([scaler.get_scale(), scaler._growth_interval, scaler._growth_factor])
    if scaler._growth_tracker is not None:
        made.append(int(scaler._growth_tracker))
    made.append(net.weight.detach().clone())
opt.zero_grad()
scaler.scale((net(torch.ones(2, 3)) * float("inf")).sum()).backward()
made.extend(v.item() for v in scaler._check_inf_per_device(opt).values())
"""


def test_what_a_scaler_knows_of_its_optimizers_is_asked(tmp_path: Path) -> None:
    beside(ASKED, tmp_path)


def test_an_interval_that_has_passed_is_refused() -> None:
    scaler = GradScaler(growth_interval=5)
    for _ in range(3):
        scaler._judge(finite=True)
    with pytest.raises(NotImplementedError, match="3 finite steps"):
        scaler.set_growth_interval(3)


WRAPPED = f"""{FILLED}
{NET}
class Trainer(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = Net()
        self.wrapped = False
    def wrap(self):
        object.__setattr__(self, "both", nn.DataParallel(self.net))
        self.wrapped = True
    def build(self):
        self.scorer = Net(5)
    def run(self, x):
        if self.wrapped:
            return self.both(x)
        return self.net(x)
    def score(self, x):
        out = self.run(x)
        if hasattr(self, "scorer"):
            out = out + self.scorer(x)
        return {{"loss": (out ** 2).sum() * 0.01}}
    def fit(self, scaler):
        opt = torch.optim.SGD(self.net.parameters(), lr=0.1)
        for i in range(3):
            if "cpu" in "cpu cuda":
                losses = self.score(torch.ones(2, 3) * (i + 1))
            else:
                losses = self.score(torch.ones(2, 3))
            loss = losses["loss"] / 2
            scaler.scale(loss).backward()
            if not sum(v.item() for v in scaler._found_inf_per_device(opt).values()):
                made.append(torch.nn.utils.clip_grad_norm_(self.parameters(), 5.0).item())
            scaler.step(opt)
            scaler.update()
            opt.zero_grad()
            made.append(loss.item())
trainer = Trainer()
trainer.fit(torch.amp.GradScaler("cpu"))
made.append(trainer.net.weight.detach().clone())
"""


def test_a_network_that_a_method_may_not_have_made_is_not_asked_for(tmp_path: Path) -> None:
    beside(WRAPPED, tmp_path)


def test_a_network_whose_base_is_elsewhere_sets_what_a_cell_only_shows(tmp_path: Path) -> None:
    (tmp_path / "sixthbase.py").write_text(
        "from mindspore import nn\nclass Base(nn.Cell):\n    pass\n", encoding="utf-8"
    )
    script = """import torch
from sixthbase import Base
class Own(Base):
    def __init__(self):
        super().__init__()
        self.compiled = False
        self.phase_cache = {"a": 1}
    def run(self):
        if not self.compiled:
            self.compiled = "yes"
        return self.compiled, self.phase_cache, torch.ones(2).sum().item()
own = Own()
made = list(own.run())
was = Base().compiled, Base().phase_cache
torch.manual_seed(0)
"""
    sys.path.insert(0, str(tmp_path))
    try:
        given = loaded(ported(script).text, tmp_path)
    finally:
        sys.path.remove(str(tmp_path))
    assert given["made"] == ["yes", {"a": 1}, 2.0]
    assert given["was"] == (False, {})


def test_a_class_that_asks_itself_for_weights_is_a_network_of_another_file(tmp_path: Path) -> None:
    (tmp_path / "sixthnet.py").write_text(
        "from torch import nn\nclass Base(nn.Module):\n    pass\n"
    )
    (tmp_path / "sixth.py").write_text(
        """import torch
from sixthnet import Base
class Trained(Base):
    def fit(self, x):
        opt = torch.optim.SGD(self.parameters(), lr=0.1)
        sizes = [len(list(self.modules()))]
        for i in range(3):
            opt.zero_grad()
            with torch.autocast("cpu", enabled=False):
                out = self.once(x)
            loss = out.sum() / 1
            loss.backward()
            opt.step()
            sizes.append(loss.item())
        return sizes, len(self.state_dict())
    def once(self, x):
        return self.forward(x)
"""
    )
    text = ported_folder(tmp_path)["sixth.py"]
    (tmp_path / "sixthtrained.py").write_text(text.replace("sixthnet", "sixthcells"))
    (tmp_path / "sixthcells.py").write_text(
        "from mindspore import nn\nclass Base(nn.Cell):\n    pass\n"
    )
    own = """from mindspore import nn, ops
import mindspore as ms
from sixthtrained import Trained
class Net(Trained):
    def __init__(self):
        super().__init__()
        self.weight = ms.Parameter(ops.ones((3, 2)))
    def construct(self, x):
        return x @ self.weight
made = Net().fit(ops.ones((2, 3)))
"""
    sys.path.insert(0, str(tmp_path))
    try:
        sizes, parts = loaded(own, tmp_path)["made"]
    finally:
        sys.path.remove(str(tmp_path))
    assert parts == 1
    np.testing.assert_allclose(sizes, [1, 12.0, 9.6, 7.2], rtol=1e-6)

"""A scaler that a caller hands in, or None where the loss is not scaled, beside torch."""

from __future__ import annotations

from typing import Any

import mindspore as ms
import numpy as np
import pytest
import torch

import mpcore_port_runtime as port
from mpcore.errors import BackendError
from mpcore_port.verify.twins import with_twins

from .ports import FILLED, beside, loaded, ported, ported_folder, verified
from .test_turns import HEAD, LEFT

SCRIPT = """
def fit(model, optimizer, loader, fp16, scaler):
    for x, y in loader:
        optimizer.zero_grad()
        if not fp16:
            out = model(x)
            loss = criterion(out, y)
            loss.backward()
            optimizer.step()
        else:
            from torch.cuda.amp import autocast
            with autocast(enabled=False):
                out = model(x)
                loss = criterion(out, y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        made.append(loss.item())
        made.append(out.detach())
class Trainer:
    def step(self, x, y, fp16=False, scaler=None):
        optimizer.zero_grad()
        if fp16:
            losses = self.forward(x, y)
            scaler.scale(losses[-1]).backward()
            scaler.step(optimizer)
            scaler.update()
        else:
            losses = self.forward(x, y)
            losses[-1].backward()
            optimizer.step()
        return losses
    def forward(self, x, y):
        out = model(x)
        return [out.mean(), criterion(out, y)]
"""
RUN = """
fit(model, optimizer, batches, False, None)
made.append(Trainer().step(*batches[0])[-1].detach())
"""


def test_there_is_none_where_nothing_is_scaled(tmp_path):
    found = beside(HEAD + SCRIPT + RUN + LEFT, tmp_path)
    assert "port.loss(" not in found.text
    assert "loss_scaler = scaler if fp16 else ms.amp.StaticLossScaler(1.0)" in found.text


LOOPS = {
    "as torchvision's reference": """
def fit(model, optimizer, loader, every, scaler=None, limit=None):
    for i, (x, y) in enumerate(loader):
        with torch.autocast("cpu", enabled=False):
            out = model(x)
            loss = criterion(out, y)
        optimizer.zero_grad()
        if scaler is not None:
            scaler.scale(loss).backward()
            if limit is not None:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), limit)
            scaler.step(optimizer)
            scaler.update()
        else:
            loss.backward()
            if limit is not None:
                nn.utils.clip_grad_norm_(model.parameters(), limit)
            optimizer.step()
        made.append(loss.item())
""",
    "a window in each branch": """
def fit(model, optimizer, loader, every, scaler=None, limit=None):
    for i, (x, y) in enumerate(loader):
        loss = criterion(model(x), y) / every
        if scaler:
            # the loss is scaled
            scaler.scale( loss ).backward()
            if (i + 1) % every == 0:
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()  # and anew
        else:
            loss.backward()
            if (i + 1) % every == 0:
                optimizer.step()
                optimizer.zero_grad()
        made.append(loss.item())
""",
}
NETWORK = """
net = filled(nn.Sequential(nn.Linear(3, 4), nn.Sigmoid(), nn.Linear(4, 1)))
criterion = nn.MSELoss()
optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
data = [(torch.arange(6.0).view(2, 3) / (n + 1), torch.ones(2, 1) * n) for n in range(6)]
data[2] = (data[2][0], data[2][1] * float("inf"))
"""


@pytest.mark.parametrize("limit", [None, 0.5])
@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("loop", LOOPS)
def test_a_scaler_that_may_be_none(tmp_path, loop, scaled, limit):
    """Losses, weights and scales are torch's, a step that overflows among them."""
    script = FILLED + NETWORK + LOOPS[loop]
    theirs: dict[str, Any] = {"__name__": "script"}
    exec(script, theirs)
    found = ported(script)
    assert "value_and_grad" in found.text
    assert "port.loss(" not in found.text
    ours = loaded(found.text, tmp_path)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2) if scaled else None
    own = ms.amp.DynamicLossScaler(1024.0, 2, 2) if scaled else None
    part = slice(None) if scaled else slice(0, 2)
    for one, made in ((theirs, scaler), (ours, own)):
        one["fit"](one["net"], one["optimizer"], one["data"][part], 2, made, limit)
    np.testing.assert_allclose(ours["made"], theirs["made"], rtol=1e-5)
    for one, other in zip(ours["net"].trainable_params(), theirs["net"].parameters(), strict=True):
        np.testing.assert_allclose(one.asnumpy(), other.detach().numpy(), rtol=1e-5, atol=1e-6)
    if scaled:
        assert own.scale_value.item() == scaler.get_scale()


def test_a_scaler_of_the_runtime_is_no_none(tmp_path):
    """It is not what a step of MindSpore's takes: it is not passed by in silence."""
    script = FILLED + NETWORK + LOOPS["as torchvision's reference"]
    ours = loaded(ported(script).text, tmp_path)
    with pytest.raises(TypeError, match="takes one of its scalers"):
        ours["fit"](ours["net"], ours["optimizer"], ours["data"], 2, port.GradScaler())


MAIN = """import torch
from engine import fit, net, optimizer, data, made
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
if __name__ == "__main__":
    fit(net, optimizer, data, 2, scaler, 0.5)
    torch.save({"scaler": scaler.state_dict()}, "last.pth")
"""


@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("loop", LOOPS)
def test_a_scaler_that_another_file_makes(tmp_path, loop, scaled):
    """The file that makes it keeps torch's; the loop is MindSpore's own form, on its state."""
    (tmp_path / "engine.py").write_text(FILLED + NETWORK + LOOPS[loop], encoding="utf-8")
    (tmp_path / "main.py").write_text(MAIN, encoding="utf-8")
    texts = ported_folder(tmp_path)
    assert "value_and_grad" in texts["engine.py"]
    assert "port.GradScaler" in texts["main.py"]
    theirs: dict[str, Any] = {"__name__": "script"}
    exec(FILLED + NETWORK + LOOPS[loop], theirs)
    ours = loaded(texts["engine.py"], tmp_path)
    settings = {"init_scale": 1024.0, "growth_interval": 2}
    scaler = torch.amp.GradScaler("cpu", **settings) if scaled else None
    own = port.GradScaler(**settings) if scaled else None
    part = slice(None) if scaled else slice(0, 2)
    for one, made in ((theirs, scaler), (ours, own)):
        one["fit"](one["net"], one["optimizer"], one["data"][part], 2, made, 0.5)
    np.testing.assert_allclose(ours["made"], theirs["made"], rtol=1e-5)
    for one, other in zip(ours["net"].trainable_params(), theirs["net"].parameters(), strict=True):
        np.testing.assert_allclose(one.asnumpy(), other.detach().numpy(), rtol=1e-5, atol=1e-6)
    if scaled:
        assert own.get_scale() == scaler.get_scale()
        assert own.state_dict() == scaler.state_dict()


def test_what_is_handed_in_and_is_no_scaler_raises():
    with pytest.raises(BackendError, match="GradScaler or None, got str"):
        port.loss_scaler("on")


GROUPS = """
weights = [p for p in net.parameters() if p.ndim > 1]
biases = [p for p in net.parameters() if p.ndim == 1]
optimizer = torch.optim.SGD(weights, lr=0.05, momentum=0.9)
optimizer.add_param_group({"params": biases, "lr": 0.1, "weight_decay": 0.1})
for epoch in range(2):
    for x, y in data[:2]:
        optimizer.zero_grad()
        loss = criterion(net(x), y)
        loss.backward()
        optimizer.step()
        made.append(loss.item())
made += [p.detach() for p in net.parameters()]
"""


def test_parameters_that_come_in_front_of_the_loop(tmp_path):
    found = beside(FILLED + NETWORK + GROUPS, tmp_path)
    assert "value_and_grad" in found.text


def test_parameters_that_come_later(tmp_path):
    line = 'optimizer.add_param_group({"params": biases, "lr": 0.1, "weight_decay": 0.1})\n'
    late = f"    if epoch == 1:\n        {line}"
    script = GROUPS.replace(line, "").replace("    for x, y", f"{late}    for x, y")
    found = beside(FILLED + NETWORK + script, tmp_path)
    assert "value_and_grad" not in found.text


def test_what_is_left_out_of_one_branch_is_left_out_of_the_other():
    text = LOOPS["as torchvision's reference"]
    lines = text.splitlines()
    places = [n for n, line in enumerate(lines, 1) if "clip_grad_norm_" in line]
    assert with_twins(text, places[:1]) == set(places)
    assert with_twins(text, [4]) == {4}


@pytest.mark.parametrize("loop", LOOPS)
def test_such_a_step_is_verified(tmp_path, loop):
    script = "import torch\nfrom torch import nn\nmade = []\n" + LOOPS[loop]
    script = script.replace("loader, every, ", "criterion, loader, every, ")
    found = verified(script, tmp_path, ("float32", "mixed"))
    assert found.passed, found.why_not
    assert bool(found.comparisons[1].original_scales) is ("torchvision" in loop)  # a window is 64

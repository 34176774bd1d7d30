"""What a lot showed: scales that are read, scalers made late, jumps, forked processes."""

from __future__ import annotations

from typing import Any

import mindspore as ms
import numpy as np
import pytest
import torch

import mpcore_port_runtime as port

from .ports import FILLED, beside, loaded, ported, ported_folder

HEAD = (
    FILLED
    + """
net = filled(nn.Linear(3, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
data = [(torch.arange(6.0).view(2, 3) / (n + 1), torch.ones(2, 1) * n) for n in range(5)]
data[2] = (data[2][0], data[2][1] * float("inf"))
criterion = nn.MSELoss()
"""
)
BETWEEN = """
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
for x, y in data:
    loss = criterion(net(x), y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    scaler.step(optimizer)
    scale = scaler.get_scale()
    scaler.update()
    if scale == scaler.get_scale():
        scheduler.step()
    optimizer.zero_grad()
    made += [scale, scaler.get_scale(), optimizer.param_groups[0]["lr"]]
made += [p.detach() for p in net.parameters()]
"""


def test_a_scale_that_is_read_between_step_and_update(tmp_path):
    """Schedulers that pass by skipped steps moved with each: the scale was the new one by then."""
    found = beside(HEAD + BETWEEN, tmp_path)
    assert "scaler.adjust(finite)" in found.text
    assert "value_and_grad" in found.text


LATE = """
def train(amp):
    for x, y in data[:2]:
        optimizer.zero_grad()
        loss = criterion(net(x), y)
        if amp:
            scale = torch.amp.GradScaler("cpu", init_scale=8.0)
            scale.scale(loss).backward()
            print(scale.get_scale())
            scale.step(optimizer)
            scale.update()
        else:
            loss.backward()
            optimizer.step()
        made.append(loss.item())
train(True)
train(False)
made += [p.detach() for p in net.parameters()]
"""


def test_a_scaler_that_is_made_behind_what_it_scales(tmp_path):
    """The port asked for it in front of the line that makes it."""
    found = beside(HEAD + LATE, tmp_path)
    assert "scaler=scale" not in found.text


JUMP = """
from rendering_afar import render
def train():
    for x, y in data[:2]:
        out, count = render(net, x)
        if count == 0:
            continue
        loss = criterion(out, y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        optimizer.step()
scaler = torch.amp.GradScaler("cpu", init_scale=1.0)
"""


def test_what_another_file_makes_of_a_network_in_front_of_a_jump_is_differentiated():
    """The loss alone was, of numbers: nothing was trained, without a word."""
    text = ported(HEAD + JUMP).text
    assert text.count("out, count = render(net, x)") == 2


FORKS = """import torch
import multiprocessing as mp
from concurrent.futures import ProcessPoolExecutor
net = torch.nn.Linear(3, 2)
with {} as pool:
    pool.submit(print, net)
"""


@pytest.mark.parametrize(
    ("made", "named"),
    [
        ("ProcessPoolExecutor(2)", 1),
        ("mp.Pool(2)", 1),
        ('ProcessPoolExecutor(2, mp_context=mp.get_context("spawn"))', 0),
    ],
)
def test_processes_that_are_forked_are_named(made, named):
    found = [e for e in ported(FORKS.format(made)).edits if "forked" in e.reason]
    assert len(found) == named


BASE = (
    FILLED
    + """
class Model(nn.Module):
    def fit(self, batches, every=2):
        self.optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        for step, batch in enumerate(batches):
            loss = self.criterion(self.forward(batch), batch[:, :1]) / every
            loss.backward()
            if (step + 1) % every:
                continue
            self.optimizer.step()
            self.optimizer.zero_grad()
    def time_decoder(self, x):
        def forward():
            return self.decoder(x)
        return forward()
class Heir(Model):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(3, 1)
        self.criterion = nn.MSELoss()
    def forward(self, x):
        return self.encoder(x)
model = filled(Heir())
model.fit([torch.arange(6.0).view(2, 3) / (n + 1) for n in range(4)])
made += [p.detach() for p in model.parameters()]
"""
)


def test_a_function_in_a_method_is_no_method(tmp_path):
    """``self.forward(x)`` was taken for a function of that name in another method."""
    found = beside(BASE, tmp_path)
    assert "self.decoder" not in next(
        line for line in found.text.splitlines() if "port.loss(" in line
    )


WORDS = """
def step(x, y, device):
    if device == "cuda":
        made.append(1)
    if device != "cuda":
        made.append(2)
    net(x)
step(*data[0], "cuda")
step(*data[0], "cpu")
"""


def test_a_word_for_a_device_is_asked_for_by_what_it_means(tmp_path):
    found = beside(HEAD + WORDS, tmp_path)
    assert "port.is_accelerator(device)" in found.text
    assert port.is_accelerator(ms.get_context("device_target"))
    assert port.is_accelerator("npu:0")
    assert not port.is_accelerator("cpu")


SHARED = """
def fit(loader, scaler):
    for x, y in loader:
        first.zero_grad()
        scaler.scale(criterion(a(x), y)).backward()
        scaler.step(first)
        second.zero_grad()
        scaler.scale(criterion(b(x), y)).backward()
        scaler.step(second)
        scaler.update()
a, b = filled(nn.Linear(3, 1)), filled(nn.Linear(3, 1))
first = torch.optim.SGD(a.parameters(), lr=0.05)
second = torch.optim.SGD(b.parameters(), lr=0.1)
"""


def test_one_scaler_of_another_file_scales_two_steps(tmp_path):
    (tmp_path / "engine.py").write_text(HEAD + SHARED, encoding="utf-8")
    main = "import torch\nfrom engine import fit, data\nfit(data, torch.amp.GradScaler('cpu'))\n"
    (tmp_path / "main.py").write_text(main, encoding="utf-8")
    text = ported_folder(tmp_path)["engine.py"]
    assert text.count("port.loss_scaler(scaler)") == 1
    theirs: dict[str, Any] = {"__name__": "script"}
    exec(HEAD + SHARED, theirs)
    ours = loaded(text, tmp_path)
    scaler, own = torch.amp.GradScaler("cpu"), port.GradScaler()
    theirs["fit"](theirs["data"], scaler)
    ours["fit"](ours["data"], own)
    for name in ("a", "b"):
        pairs = zip(ours[name].trainable_params(), theirs[name].parameters(), strict=True)
        for one, other in pairs:
            np.testing.assert_allclose(one.asnumpy(), other.detach().numpy(), rtol=1e-5, atol=1e-6)
    assert own.get_scale() == scaler.get_scale()

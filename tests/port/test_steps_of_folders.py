"""Steps of whole public folders: weights, settings and functions that are not there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mpcore_port.verify.extract import extract
from mpcore_port.verify.judge import NOT_RUN

from .ports import verified

if TYPE_CHECKING:
    from mpcore_port.verify.judge import Verification

BOTH = pytest.mark.parametrize("target", ["torch_npu", "mindspore"])

PRETRAINED = """import torch
from torch import nn
from data_of_mine import Pictures
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(12, 6)
        self.head = nn.Linear(6, 10)
        self.load_state_dict(torch.load("../weights/body.pth"), strict=False)
    def forward(self, x):
        return self.head(torch.relu(self.body(x)))
def main():
    net = Net()
    kept = torch.load("whole.pth", map_location="cpu")
    net.load_state_dict({k.replace("module.", ""): v for k, v in kept["model"].items()})
    net.cuda()
    loader = torch.utils.data.DataLoader(Pictures("/data"), batch_size=8)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = torch.cuda.amp.GradScaler()
    for x, y in loader:
        optimizer.zero_grad()
        with torch.cuda.amp.autocast():
            loss = nn.functional.cross_entropy(net(x.cuda()), y.cuda())
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
main()
"""


def _passes(found: Verification) -> None:
    assert found.passed, (found.why_not, found.step)
    assert all(one.verdict in ("same", "close", NOT_RUN) for one in found.comparisons)


@BOTH
def test_a_network_keeps_its_weights_where_a_checkpoint_is_not_there(
    tmp_path: Path, target: str
) -> None:
    found = verified(PRETRAINED, tmp_path, ("float32",), target)
    _passes(found)
    assert found.step is not None
    assert not found.step["stand_ins"]
    assert "[8,12]" in found.step["inputs"]  # its own first layer says what it takes


APEX = """import torch
from torch import nn
from apex import amp
from maker import make_net
from data_of_mine import Pictures
def train(make):
    loader = torch.utils.data.DataLoader(Pictures("/data"), batch_size=8)
    net = make()
    net.train(True)
    net.cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net, optimizer = amp.initialize(net, optimizer, opt_level="O2")
    for x, y in loader:
        one, two, three = net(x.cuda())
        loss = sum(nn.functional.cross_entropy(part, y.cuda()) for part in (one, two, three))
        optimizer.zero_grad()
        with amp.scale_loss(loss, optimizer) as scaled:
            scaled.backward()
        optimizer.step()
train(make_net)
"""


def test_answers_of_a_stand_in_that_apex_casts_are_taken_apart(tmp_path: Path) -> None:
    _passes(verified(APEX, tmp_path, ("float32", "mixed"), "torch_npu"))


FUNCTIONS = """import kornia
import torch
from torch import nn
from ranks import mean_of_ranks
from mixing import mix
def crop(*pictures):
    return [kornia.center_crop(kornia.resize(one, (32, 32)), (16, 16)) for one in pictures]
def main(loader):
    net = nn.Sequential(nn.Conv2d(3, 10, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()).cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for x, y in loader:
        x, y = x.cuda(), y.cuda()
        (x,) = crop(x)
        x, y = mix(x, y)
        loss = nn.functional.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss = mean_of_ranks(loss, 1)
        print(f"{loss.item():.4f}")
"""


def test_functions_of_what_is_not_there_give_back_what_the_caller_binds_anew(
    tmp_path: Path,
) -> None:
    target = "torch_npu"
    found = verified(FUNCTIONS, tmp_path, ("float32",), target)
    _passes(found)
    assert found.step is not None
    assert not found.step["stand_ins"]


BY_KEY = """import torch
class Trainer:
    def __init__(self, exp, args):
        self.exp, self.args = exp, args
        self.scaler = torch.cuda.amp.GradScaler(enabled=args.fp16)
    def train(self):
        model = self.exp.get_model()
        model = self.resume(model.cuda())
        self.model = model
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        for self.epoch in range(self.begin, 1):
            for images, targets in self.exp.get_loader():
                self.one(images, targets)
    def resume(self, model):
        self.begin = 0
        return model
    def one(self, images, targets):
        with torch.cuda.amp.autocast(enabled=self.args.fp16):
            outputs = self.model(images.cuda(), targets.cuda())
        loss = outputs["total_loss"]
        self.optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
"""


def test_a_stand_in_gives_a_dict_where_items_are_asked_for_by_words(tmp_path: Path) -> None:
    target = "torch_npu"
    _passes(verified(BY_KEY, tmp_path, ("float32",), target))


def test_what_is_read_by_its_place_is_no_number(tmp_path: Path) -> None:
    text = """import torch
def train_one_epoch(model, loader, optimizer, lr_schedule_values=None, start_steps=None):
    for step, (x, y) in enumerate(loader):
        if lr_schedule_values is not None:
            optimizer.param_groups[0]["lr"] = lr_schedule_values[start_steps + step]
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
    call = extract(text, tmp_path).call
    assert "lr_schedule_values" not in call
    assert "start_steps=0" in call


SETTINGS = """import json
import os
import torch
from torch import nn
path = "configs/small.json"
if not os.path.exists(path):
    raise ValueError(path)
with open(path) as file:
    config = json.load(file)
with open(config["list"]) as file:
    known = json.load(file)
net = nn.Sequential(nn.Linear(config["width"], 4), nn.ReLU(), nn.Linear(4, 1)).cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=config["rate"])
for (x,) in torch.load(os.path.join(config["folder"], "batches.pth")):
    loss = net(x.cuda()).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def test_a_script_that_asks_for_its_settings_finds_them(tmp_path: Path) -> None:
    (tmp_path / "configs").mkdir()
    text = '{"width": 12, "rate": 0.1, "folder": "/data", "list": "/data/list.json"}'
    (tmp_path / "configs" / "small.json").write_text(text, encoding="utf-8")
    found = verified(SETTINGS, tmp_path, ("float32",), "torch_npu")
    _passes(found)
    assert found.step is not None
    assert "[8,12]" in found.step["inputs"]
    assert not any("raise" in one["what"] for one in found.step["replaced"])


FAILED = """import torch
from torch import nn
def read(path):
    return {"/data": 1}[path]
hps = read("settings")
net = nn.Linear(16, 1).cuda()
optimizer = torch.optim.AdamW(net.parameters(), hps.learning_rate, betas=hps.betas, eps=hps.eps)
for epoch in range(hps.epochs):
    for (x,) in torch.load("/data"):
        loss = net(x.cuda()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


@BOTH
def test_settings_that_cannot_be_made_are_what_their_names_say(tmp_path: Path, target: str) -> None:
    _passes(verified(FAILED, tmp_path, ("float32",), target))


OUTSIDE = """import os, socket, subprocess, torch
from torch import nn
net = nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(4):
    os.system("touch MARK")
    try:
        socket.create_connection(("example.org", 80), timeout=1)
        os.mkdir("MARK")
    except ConnectionRefusedError:
        os.mkdir("MARK")
    except OSError as exc:
        if "while a script is verified" not in str(exc):
            os.mkdir("MARK")
    loss = net(torch.ones(2, 4)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.day
def test_no_command_and_no_connection_leaves_a_script(tmp_path: Path) -> None:
    target = "torch_npu"
    mark = tmp_path / "mark"
    script = tmp_path / "train.py"
    script.write_text(OUTSIDE.replace("MARK", str(mark)), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", "from mpcore.cli import main; raise SystemExit(main())", "port",
         str(script), "--to", target, "--verify", "--output", str(tmp_path / "port.py")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "verified" in done.stdout, done.stdout + done.stderr
    assert not mark.exists()


PARTS = """import torch
def train_one_epoch(model, criterion, loader, optimizer, log):
    for x, y in loader:
        loss, metrics = criterion(model(x.cuda()), y.cuda(), 3)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for name, value in metrics.items():
            log.update(**{name: value.item()})
"""


def test_a_part_of_an_answer_is_a_dict_where_it_is_taken_for_one(tmp_path: Path) -> None:
    target = "torch_npu"
    _passes(verified(PARTS, tmp_path, ("float32",), target))


def test_an_else_behind_a_loop_goes_with_what_is_in_it(tmp_path: Path) -> None:
    text = """import torch
net = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
def main(loader):
    try:
        for epoch in range(3):
            for x in loader:
                loss = net(x).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            else:
                print("an epoch is over")
        else:
            # all epochs
            print("all are over")
    except KeyboardInterrupt:
        print("ended")
main([])
"""
    script = extract(text, tmp_path).script(tmp_path, "float32[8,4]")
    compile(script, "step.py", "exec")
    assert "all are over" not in script


WORDS = """import torch
from apex import amp
class Trainer:
    def __init__(self, opt, net):
        self.net, self.opt = net, opt
        self.optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        self.net, self.optimizer = amp.initialize(
            net, self.optimizer, opt_level=opt.fp16_opt_level
        )
    def update(self, batch):
        loss = self.net(batch).square().mean()
        self.optimizer.zero_grad()
        with amp.scale_loss(loss, self.optimizer) as scaled:
            scaled.backward()
        self.optimizer.step()
"""


def test_a_level_of_apex_that_nothing_gives_is_one_of_its_words(tmp_path: Path) -> None:
    _passes(verified(WORDS, tmp_path, ("float32", "mixed"), "torch_npu"))


TUPLES = """import torch
from apex import amp
from loading import load_model
def load(path):
    return {"/data": (None, None, None)}[path]
def main(loader):
    config, tokenizer, model = load("/models")
    words, teacher = load_model("/models")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = amp.initialize(model, optimizer, opt_level="O1")
    teacher = amp.initialize(teacher, opt_level="O1")
    for x, y in loader:
        loss = torch.nn.functional.cross_entropy(model(x) + teacher(x).detach(), y)
        optimizer.zero_grad()
        with amp.scale_loss(loss, optimizer) as scaled:
            scaled.backward()
        optimizer.step()
main([])
"""


def test_a_network_among_others_that_are_not_there_is_one(tmp_path: Path) -> None:
    _passes(verified(TUPLES, tmp_path, ("float32", "mixed"), "torch_npu"))

"""Steps of trainers whose base, batches and helpers are not there: what stands in, by their use."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .ports import verified

if TYPE_CHECKING:
    from pathlib import Path

MANAGER = """import torch
class Manager:
    def __init__(self, activated):
        self.activated = activated
        if self.activated:
            self.scaler = torch.cuda.amp.GradScaler()
    def backward(self, loss):
        if self.activated:
            self.scaler.scale(loss).backward()
        else:
            loss.backward()
    def step(self, encoder, optimizer):
        if self.activated:
            self.scaler.step(optimizer)
            self.scaler.update()
        else:
            optimizer.step()
        optimizer.zero_grad()
"""
OF_A_BASE = """import torch
import torch.nn.functional as F
from torch.cuda.amp import GradScaler, autocast
from engines import Trainer, compute_accuracy
class Prompts(Trainer):
    def build_model(self):
        self.model = self.make_model()
        self.optim = self.make_optimizer(self.model)
        self.scaler = GradScaler()
    def forward_backward(self, batch):
        image, label = batch["img"].to(self.device), batch["label"].to(self.device)
        with autocast():
            output = self.model(image)
            loss = F.cross_entropy(output, label)
        self.optim.zero_grad()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optim)
        self.scaler.update()
        return {"loss": loss.item(), "acc": compute_accuracy(output, label)[0].item()}
"""
CONDITIONS = """import torch
from absents import log
class Loop:
    def __init__(self, model, data, tb_write_every_n_steps):
        self.model, self.data, self.each = model, data, tb_write_every_n_steps
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.scaler = torch.cuda.amp.GradScaler()
        self.step = 0
    def run(self):
        while self.step < 64:
            batch, cond = next(self.data)
            self.run_step(batch, cond)
            if self.step % self.each == 0:
                log(self.step)
            self.step += 1
    def run_step(self, batch, cond):
        given = {k: v.to("cuda") for k, v in cond.items()}
        with torch.autocast("cuda"):
            loss = self.model(batch.to("cuda"), **given).float().square().mean()
        self.optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
"""
OF_APEX = """from apex import amp
def train(model, loader, optimizer, criterion):
    model.train()
    for x, y in loader:
        loss = criterion(model(x.cuda()), y.cuda())
        optimizer.zero_grad()
        with amp.scale_loss(loss, optimizer) as scaled:
            scaled.backward()
        optimizer.step()
"""
SCHEDULED = """import tqdm
import torch
from absents import create_model, create_optimizer_and_scheduler, create_scheduler
def main(args, train_loader):
    model = create_model(args.model).cuda()
    optimizer, scheduler = create_optimizer_and_scheduler(args, model)
    by_epochs, epochs = create_scheduler(args, optimizer)
    scaler = torch.cuda.amp.GradScaler()
    for epoch in tqdm.trange(0, epochs):
        train(model, optimizer, scaler, train_loader)
        scheduler.step()
        by_epochs(epoch)
def train(model, optimizer, scaler, loader):
    for x, y in loader:
        with torch.autocast("cuda"):
            loss = torch.nn.functional.cross_entropy(model(x.cuda()), y.cuda())
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""


@pytest.mark.day
@pytest.mark.parametrize(
    "text",
    [MANAGER, OF_A_BASE, CONDITIONS, OF_APEX, SCHEDULED],
    ids=["its own step", "a base that is not there", "dictionaries", "apex", "schedulers beside"],
)
def test_a_trainer_of_absent_parts_is_verified(text: str, tmp_path: Path) -> None:
    done = verified(text, tmp_path, ("float32", "overflow"), "torch_npu")
    assert done.passed, done.lines()
    scales = done.comparisons[1].original_scales
    assert scales[-1] < scales[0]

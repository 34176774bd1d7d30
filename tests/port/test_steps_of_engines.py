"""Steps of files that train what others hand them: scaler classes, engines, bars, settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mpcore_port.verify.judge import NOT_RUN

from .ports import verified

if TYPE_CHECKING:
    from pathlib import Path

SCALER = """import torch
from torch._six import inf
class NativeScaler:
    def __init__(self):
        self._scaler = torch.cuda.amp.GradScaler()
    def __call__(self, loss, optimizer, clip_grad=None, parameters=None, update_grad=True):
        self._scaler.scale(loss).backward()
        if update_grad:
            self._scaler.unscale_(optimizer)
            norm = norm_of(parameters)
            self._scaler.step(optimizer)
            self._scaler.update()
        else:
            norm = None
        return norm
def norm_of(parameters, kind: float = 2.0):
    parameters = [p for p in parameters if p.grad is not None]
    if kind == inf:
        return max(p.grad.detach().abs().max() for p in parameters)
    return torch.norm(torch.stack([torch.norm(p.grad.detach(), kind) for p in parameters]), kind)
"""
ENGINE = """import torch
from tqdm import tqdm
from core.norms import get_grad_norm
def run(model, x, y, criterion):
    return criterion(model(x), y)
def train_one_epoch(config, model: torch.nn.Module, criterion: torch.nn.Module, loader, optimizer):
    model.train()
    seen = 0.0
    bar = enumerate(loader)
    bar = tqdm(bar, total=len(loader))
    for i, (images, targets) in bar:
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=config.AMP.ENABLED):
            loss = run(model, images.cuda(), targets.cuda(), criterion)
        optimizer.zero_grad()
        loss.backward()
        seen += float(get_grad_norm(model.parameters()))
        optimizer.step()
def validate(model, loader):
    bar = tqdm(loader)
    for images in bar:
        model(images)
"""


DINO = """import math
import sys
import torch
import utils
import models.vits as vits
def train(args):
    if args.arch in vits.__dict__.keys():
        student = vits.__dict__[args.arch]()
        teacher = vits.__dict__[args.arch]()
    else:
        print(f"unknown {args.arch}")
    for p in teacher.parameters():
        p.requires_grad = False
    optimizer = torch.optim.AdamW(student.parameters())
    rates = utils.cosine_scheduler(args.lr, args.epochs)
    momenta = utils.cosine_scheduler(args.momentum_teacher, args.epochs)
    loader = iter(utils.loader(args))
    logger = utils.MetricLogger()
    for epoch in range(args.epochs):
        for i in logger.log_every(range(32), 10):
            x = next(loader)
            for group in optimizer.param_groups:
                group["lr"] = rates[i]
            loss = (student(x) - teacher(x).detach() - 1.0).square().mean()
            if not math.isfinite(loss.item()):
                sys.exit(1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            m = momenta[i]
            with torch.no_grad():
                for q, k in zip(student.parameters(), teacher.parameters()):
                    k.data.mul_(m).add_((1 - m) * q.detach().data)
if __name__ == "__main__":
    train(utils.parse())
"""


def test_a_class_around_a_scaler_that_nothing_calls_is_verified(tmp_path: Path) -> None:
    done = verified(SCALER, tmp_path, ("float32", "overflow"))
    assert done.passed, done.lines()
    assert done.comparisons[1].original_scales[-1] < done.comparisons[1].original_scales[0]


@pytest.mark.day
def test_an_engine_in_bfloat16_is_verified_in_float32_alone(tmp_path: Path) -> None:
    done = verified(ENGINE, tmp_path, ("float32", "mixed", "overflow"))
    assert done.passed, done.lines()
    assert [one.verdict for one in done.comparisons] == ["close", NOT_RUN, NOT_RUN]
    assert done.comparisons[0].steps == 4


@pytest.mark.day
def test_names_of_a_module_and_numbers_of_schedules_stand_in(tmp_path: Path) -> None:
    done = verified(DINO, tmp_path, ("float32", "overflow"))
    assert done.passed, done.lines()
    assert done.comparisons[0].steps == 4
    counts = [len(one) for one in (done.comparisons[1].original, done.comparisons[1].port)]
    assert max(counts) - min(counts) <= 1

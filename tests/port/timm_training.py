"""A script that trains by timm's pieces, and the pictures it reads; for ``record_timm.py``, too."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["SCRIPT", "write_pictures"]


def write_pictures(folder: Path) -> None:
    """Write pictures of three classes whose natural order is not that of their letters."""
    for part, count in (("train", 4), ("validation", 3)):
        for number, name in enumerate(("c10", "c2", "c1")):
            for place in range(count):
                shape = 20 + 3 * place, 24 + 5 * number, 3
                every = np.arange(np.prod(shape), dtype=np.int64).reshape(shape)
                path = folder / part / name / f"im{place * 7}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                pixels = (every * (number + 2) * 37 + place * 11) % (97 + 50 * number)
                Image.fromarray(pixels.astype(np.uint8)).save(path)


SCRIPT = """
import argparse
import os
import torch
from torch import nn
from timm.data import create_dataset, create_loader, resolve_data_config, Mixup, FastCollateMixup
from timm.models import create_model, safe_model_name, resume_checkpoint, load_checkpoint
from timm.models import model_parameters
from timm.models.registry import register_model
from timm.utils import *
from timm.loss import *
from timm.optim import create_optimizer_v2, optimizer_kwargs
from timm.scheduler import create_scheduler

class Tiny(nn.Module):
    def __init__(self, num_classes=10, drop_rate=0.0):
        super().__init__()
        self.num_classes = num_classes
        self.stem = nn.Conv2d(3, 6, 3, stride=2, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(6)
        self.head = nn.Linear(6, num_classes)
    def forward(self, x):
        return self.head(torch.relu(self.norm(self.stem(x))).mean((2, 3)))

@register_model
def tiny(pretrained=False, **kwargs):
    for name in ("pretrained_cfg", "pretrained_cfg_overlay", "cache_dir"):
        kwargs.pop(name, None)
    model = Tiny(**kwargs)
    for name, p in model.named_parameters():
        if p.dim() > 1:
            p.data.copy_(torch.linspace(-1.0, 1.0, p.numel()).view(p.shape))
        elif name.endswith("bias"):
            p.data.fill_(0.1)
    return model

def train_one_epoch(epoch, model, loader, optimizer, loss_fn, args, lr_scheduler, model_ema):
    second_order = hasattr(optimizer, "is_second_order") and optimizer.is_second_order
    losses_m = AverageMeter()
    model.train()
    num_updates = epoch * len(loader)
    for batch_idx, (input, target) in enumerate(loader):
        input, target = input.to(args.device), target.to(args.device)
        loss = loss_fn(model(input), target)
        losses_m.update(loss.item(), input.size(0))
        optimizer.zero_grad()
        loss.backward(create_graph=second_order)
        if args.clip_grad is not None:
            dispatch_clip_grad(
                model_parameters(model, exclude_head="agc" in args.clip_mode),
                value=args.clip_grad, mode=args.clip_mode)
        optimizer.step()
        model_ema.update(model)
        num_updates += 1
        lr_scheduler.step_update(num_updates=num_updates, metric=losses_m.avg)
    return {"loss": losses_m.avg}

def validate(model, loader, loss_fn, args):
    losses_m, top1_m = AverageMeter(), AverageMeter()
    model.eval()
    with torch.no_grad():
        for input, target in loader:
            output = model(input.to(args.device))
            acc1, acc5 = accuracy(output, target, topk=(1, 5))
            losses_m.update(loss_fn(output, target).item(), input.size(0))
            top1_m.update(acc1.item(), output.size(0))
    return {"loss": losses_m.avg, "top1": top1_m.avg}

def main(args):
    setup_default_logging()
    random_seed(args.seed, 0)
    model = create_model(args.model, pretrained=False, num_classes=3, drop_rate=None)
    config = resolve_data_config(vars(args), model=model)
    model.to(args.device)
    optimizer = create_optimizer_v2(model, **optimizer_kwargs(cfg=args))
    model_ema = ModelEmaV2(model, decay=0.5)
    made.append(float(model_ema.module.training))
    start = 0
    if args.resume:
        start = resume_checkpoint(model, args.resume, optimizer=optimizer)
        load_checkpoint(model_ema.module, args.resume, use_ema=True)
    lr_scheduler, epochs = create_scheduler(args, optimizer)
    lr_scheduler.step(start)
    loaders = []
    for split, training in (("train", True), ("val", False)):
        dataset = create_dataset("", root=args.data, split=split, is_training=training)
        loaders.append(create_loader(
            dataset, input_size=config["input_size"], batch_size=args.batch, is_training=training,
            use_prefetcher=False, no_aug=True, interpolation=config["interpolation"],
            mean=config["mean"], std=config["std"], num_workers=0, crop_pct=config["crop_pct"],
            pin_memory=False, persistent_workers=False))
    criterion = LabelSmoothingCrossEntropy(smoothing=0.1)
    folder = get_outdir(args.output, safe_model_name(args.model))
    saver = CheckpointSaver(
        model=model, optimizer=optimizer, args=args, model_ema=model_ema, checkpoint_dir=folder,
        recovery_dir=folder, decreasing=True, max_history=2)
    for epoch in range(start, epochs):
        trained = train_one_epoch(
            epoch, model, loaders[0], optimizer, criterion, args, lr_scheduler, model_ema)
        found = validate(model, loaders[1], nn.CrossEntropyLoss(), args)
        averaged = validate(model_ema.module, loaders[1], nn.CrossEntropyLoss(), args)
        lr_scheduler.step(epoch + 1, found["loss"])
        update_summary(epoch, trained, found, os.path.join(folder, "summary.csv"),
                       write_header=epoch == 0)
        best, best_epoch = saver.save_checkpoint(epoch, metric=found["loss"])
        made.extend([trained["loss"], *found.values(), *averaged.values(), best, best_epoch])
        made.extend(group["lr"] for group in optimizer.param_groups)

made = []
def go(data, output, **more):
    given = dict(
        model="tiny", data=data, output=output, batch=12, device="cpu", seed=3, img_size=16,
        opt="adamw", lr=0.02, weight_decay=0.05, momentum=0.9, clip_grad=0.5, clip_mode="norm",
        sched="cosine", epochs=4, warmup_epochs=1, warmup_lr=0.001, min_lr=0.0, cooldown_epochs=1,
        resume="")
    main(argparse.Namespace(**{**given, **more}))
"""
"""``go(data, output)`` leaves rates, losses and what was best in ``made``, epoch after epoch.

A batch is all of the pictures, so that their order does not matter.
"""

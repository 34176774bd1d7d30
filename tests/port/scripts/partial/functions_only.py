"""Functions for another file to call: nothing here is run."""

import math
import sys

import torch
import torch.nn as nn


class Patches(nn.Module):
    def __init__(self, in_chans, dim, patch=4):
        super().__init__()
        self.proj = nn.Conv2d(in_chans, dim, kernel_size=patch, stride=patch)

    def forward(self, x):
        return self.proj(x).flatten(2).transpose(1, 2)


class Mixer(nn.Module):
    def __init__(self, num_classes, in_chans=3, dim=24, tokens=64):
        super().__init__()
        self.patches = Patches(in_chans, dim)
        self.norm = nn.LayerNorm(dim)
        self.mix = nn.Linear(tokens, tokens)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))
        self.head = nn.Linear(dim, num_classes)

    def forward(self, x):
        x = self.patches(x)
        x = x + self.mix(self.norm(x).transpose(1, 2)).transpose(1, 2)
        x = x + self.mlp(self.norm(x))
        return self.head(x.mean(dim=1))


def train_one_epoch(
    model, criterion, data_loader, optimizer, device, epoch, loss_scaler, max_norm=1.0, log_writer=None
):
    model.train(True)
    for data_iter_step, (samples, targets) in enumerate(data_loader):
        samples = samples.to(device, non_blocking=True)
        targets = targets.to(device, non_blocking=True)
        with torch.cuda.amp.autocast():
            outputs = model(samples)
            loss = criterion(outputs, targets)
        loss_value = loss.item()
        if not math.isfinite(loss_value):
            print(f"Loss is {loss_value}, stopping training")
            sys.exit(1)
        optimizer.zero_grad()
        loss_scaler.scale(loss).backward()
        loss_scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        loss_scaler.step(optimizer)
        loss_scaler.update()
        if log_writer is not None:
            log_writer.add_scalar("loss", loss_value, data_iter_step)
    return {"loss": loss_value, "epoch": epoch}


@torch.no_grad()
def evaluate(data_loader, model, device):
    model.eval()
    right = count = 0
    for images, target in data_loader:
        output = model(images.to(device))
        right += output.argmax(1).eq(target.to(device)).sum().item()
        count += len(target)
    return right / count

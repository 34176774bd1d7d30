import math
import sys

import torch


def train_one_epoch(model, criterion, loader, optimizer, device, loss_scaler, accum_iter):
    optimizer.zero_grad()
    for step, (samples, targets) in enumerate(loader):
        samples = samples.to(device, non_blocking=True)
        targets = targets.to(device, non_blocking=True)
        with torch.cuda.amp.autocast():
            outputs = model(samples)
            loss = criterion(outputs, targets)
        loss_value = loss.item()
        if not math.isfinite(loss_value):
            sys.exit(1)
        loss /= accum_iter
        loss_scaler(loss, optimizer, parameters=model.parameters())
        if (step + 1) % accum_iter == 0:
            optimizer.zero_grad()
        print(loss_value, outputs.size(0))

import math

import torch


def adjust(optimizer, epoch, base):
    lr = base * 0.5 * (1 + math.cos(math.pi * epoch / 10))
    for group in optimizer.param_groups:
        group["lr"] = lr
    print(optimizer.param_groups[0]["lr"])


def build(model):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    return optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10)

"""Two processes train two networks, one step by step, one in windows of two; losses to a file."""

import os
import sys
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

criterion = nn.CrossEntropyLoss()


def network(rank):
    """Return a network that differs from process to process until it is wrapped."""
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    with torch.no_grad():
        for p in model.parameters():
            p.copy_((rank + 1) * torch.linspace(-0.5, 0.4, p.numel()).view(p.shape))
    return DistributedDataParallel(model)


def batch(step, rank):
    x = torch.linspace(-1, 1 + step % 3, 64).view(8, 8) * (1 + 0.3 * rank)
    return x, torch.arange(8) % (3 + rank)


def clipped(rank, out):
    model = network(rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(20):
        x, y = batch(step, rank)
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        out.write(f"{loss.item():.9g}\n")


def in_windows(rank, out):
    model = network(rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(20):
        x, y = batch(step, rank)
        last = (step + 1) % 2 == 0
        with nullcontext() if last else model.no_sync():
            loss = criterion(model(x), y) / 2
            loss.backward()
        if last:
            optimizer.step()
            optimizer.zero_grad()
        out.write(f"{loss.item():.9g}\n")


def main():
    dist.init_process_group("gloo")
    rank = int(os.environ["LOCAL_RANK"])
    with open(f"{sys.argv[1]}/losses-{rank}.txt", "w") as out:
        clipped(rank, out)
        in_windows(rank, out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

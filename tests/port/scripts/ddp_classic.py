"""One process for each device, gradients averaged by DistributedDataParallel."""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.cuda.amp import GradScaler, autocast
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def setup(args):
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", args.port)
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    backend = args.dist_backend if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend=backend, rank=rank, world_size=world)
    if dist.get_backend() == "nccl":
        torch.cuda.set_device(args.local_rank)
    return rank, world


def reduce_mean(value, world):
    total = value.clone().detach()
    dist.all_reduce(total, op=dist.ReduceOp.SUM)
    return total / world


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--local_rank", type=int, default=int(os.environ.get("LOCAL_RANK", 0)))
    parser.add_argument("--dist-backend", default="nccl", choices=["nccl", "gloo"])
    parser.add_argument("--port", default="29541")
    args = parser.parse_args()
    rank, world = setup(args)
    gpu = torch.cuda.is_available()
    device = torch.device(f"cuda:{args.local_rank}") if gpu else torch.device("cpu")

    torch.manual_seed(0)
    data = TensorDataset(torch.randn(160, 10), torch.randn(160, 1))
    sampler = DistributedSampler(data, num_replicas=world, rank=rank, shuffle=True)
    loader = DataLoader(data, batch_size=16, sampler=sampler)
    model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1)).to(device)
    if world > 1:
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    ddp = DDP(model, device_ids=[args.local_rank] if gpu else None)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-2)
    scaler = GradScaler(enabled=gpu)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for x, y in loader:
            x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
            with autocast(enabled=gpu):
                loss = nn.functional.mse_loss(ddp(x), y)
            optimizer.zero_grad(set_to_none=True)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            mean = reduce_mean(loss, world)
            if rank == 0:
                print(f"epoch {epoch} loss {mean.item():.6f}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

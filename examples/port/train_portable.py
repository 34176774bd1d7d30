"""Train a small image classifier in mixed precision on one GPU or several.

    python train.py --amp --epochs 3
    torchrun --nproc-per-node 4 train.py --amp --resume last.pth
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
# mpcore port: removed: from torch.cuda.amp import GradScaler, autocast (each use is written out, by the device that is there)
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

# mpcore port: keep
try:
    import torch_npu
except ImportError:
    torch_npu = None
# mpcore port: keep
_port_device = "npu" if torch_npu is not None and torch.npu.is_available() else "cuda"
# mpcore port: keep
_port_device = _port_device if _port_device == "npu" or torch.cuda.is_available() else "cpu"
# mpcore port: keep
_port_accelerator = torch.npu if _port_device == "npu" else torch.cuda
# mpcore port: keep
_port_backend = {"npu": "hccl", "cuda": "nccl", "cpu": "gloo"}[_port_device]
# mpcore port: keep
def _port_place(device=None):
    if isinstance(device, int):
        return torch.device(_port_device, device if _port_device != "cpu" else 0)
    return torch.device(device or _port_device)

torch.backends.cudnn.benchmark = True


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU()

    def forward(self, x):
        y = self.relu(self.norm1(self.conv1(x)))
        return self.relu(x + self.norm2(self.conv2(y)))


class Net(nn.Module):
    def __init__(self, classes=10, width=16):
        super().__init__()
        self.stem = nn.Conv2d(1, width, 3, padding=1)
        self.blocks = nn.Sequential(Block(width), nn.MaxPool2d(2), Block(width))
        self.head = nn.Linear(width * 49, classes)

    def forward(self, x):
        return self.head(torch.flatten(self.blocks(self.stem(x)), 1))


def parse():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default=_port_device, help="cuda or cpu")
    parser.add_argument("--amp", action="store_true", help="mixed precision")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--clip", type=float, default=1.0)
    parser.add_argument("--dist-backend", default=_port_backend)
    parser.add_argument("--resume", default="")
    parser.add_argument("--save", default="")
    return parser.parse_args()


def batches(args):
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(320, 1, 14, 14, generator=generator)
    labels = images.mean(dim=(1, 2, 3)).mul(40).long().clamp(-5, 4) + 5
    return DataLoader(TensorDataset(images, labels), batch_size=args.batch_size, shuffle=True)


def train_one_epoch(args, model, criterion, loader, optimizer, scaler, device):
    model.train()
    started = time.time()
    for step, (images, labels) in enumerate(loader):
        images = images.to(device, non_blocking=True, memory_format=torch.contiguous_format)
        labels = labels.to(device, non_blocking=True)
        with torch.autocast(_port_device, enabled=args.amp, dtype=torch.float16):
            loss = criterion(model(images), labels)
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        scaler.step(optimizer)
        scaler.update()
        if step % 5 == 0:
            print(f"step {step} loss {loss.item():.6f} scale {scaler.get_scale():g}")
    if device.type == _port_device:
        (_port_accelerator.synchronize() if _port_device != "cpu" else None)
        used = _port_accelerator.max_memory_allocated() / 2**20
        print(f"{time.time() - started:.1f} s, {used:.0f} MiB")


def load(args, model, optimizer, scaler, device):
    state = torch.load(args.resume, map_location=device)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    scaler.load_state_dict(state["scaler"])
    return state["epoch"] + 1


def main():
    args = parse()
    if args.device == _port_device and not _port_accelerator.is_available():
        args.device = "cpu"
    local_rank = int(os.environ.get("LOCAL_RANK", 0))
    device = torch.device(f"{_port_device}:{local_rank}" if args.device == _port_device else "cpu")
    torch.manual_seed(0)
    model = Net().to(device)
    if "LOCAL_RANK" in os.environ:
        (_port_accelerator.set_device(local_rank) if _port_device != "cpu" else None)
        dist.init_process_group(args.dist_backend)
        model = DistributedDataParallel(model, device_ids=([local_rank] if _port_device != "cpu" else None))
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr / 10)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=args.epochs)
    scaler = torch.amp.GradScaler(_port_device, enabled=args.amp)
    criterion = nn.CrossEntropyLoss()
    first = load(args, model, optimizer, scaler, device) if args.resume else 0
    loader = batches(args)
    for epoch in range(first, args.epochs):
        train_one_epoch(args, model, criterion, loader, optimizer, scaler, device)
        scheduler.step()
        if args.save:
            state = {
                "epoch": epoch,
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "scaler": scaler.state_dict(),
            }
            torch.save(state, args.save)


if __name__ == "__main__":
    main()

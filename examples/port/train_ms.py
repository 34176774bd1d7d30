"""Train a small image classifier in mixed precision on one GPU or several.

    python train.py --amp --epochs 3
    torchrun --nproc-per-node 4 train.py --amp --resume last.pth
"""

import argparse
import os
import time

import mindspore as ms
from mindspore import ops
from mindspore import mint
from mindspore import nn
import mpcore_port_runtime as port

# mpcore port: removed: torch.backends.cudnn.benchmark = True (a switch of torch's kernels; MindSpore has none)


class Block(nn.Cell):
    def __init__(self, width):
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, has_bias=False, pad_mode='pad')
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, has_bias=False, pad_mode='pad')
        self.norm2 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU()

    def construct(self, x):
        y = self.relu(self.norm1(self.conv1(x)))
        return self.relu(x + self.norm2(self.conv2(y)))


class Net(nn.Cell):
    def __init__(self, classes=10, width=16):
        super().__init__()
        self.stem = nn.Conv2d(1, width, 3, padding=1, has_bias=True, pad_mode='pad')
        self.blocks = nn.SequentialCell(Block(width), nn.MaxPool2d(2, stride=2), Block(width))
        self.head = nn.Dense(width * 49, classes)

    def construct(self, x):
        return self.head(mint.flatten(self.blocks(self.stem(x)), 1))


def parse():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda", help="cuda or cpu")
    parser.add_argument("--amp", action="store_true", help="mixed precision")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--clip", type=float, default=1.0)
    parser.add_argument("--dist-backend", default="nccl")
    parser.add_argument("--resume", default="")
    parser.add_argument("--save", default="")
    return parser.parse_args()


def batches(args):
    generator = port.Generator().manual_seed(0)
    images = port.randn(320, 1, 14, 14, generator=generator)
    labels = images.mean(dim=(1, 2, 3)).mul(40).long().clamp(-5, 4) + 5
    return port.DataLoader(port.TensorDataset(images, labels), batch_size=args.batch_size, shuffle=True)


def train_one_epoch(args, model, criterion, loader, optimizer, scaler, device):
    model.set_train()
    started = time.time()
    for step, (images, labels) in enumerate(loader):
        def forward():
            with port.autocast(enabled=args.amp):
                loss = criterion(model(images), labels)
            return loss
        loss = port.loss(forward, criterion, model, scaler=scaler)
        port.zero_grad(optimizer, set_to_none=True)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        port.clip_grad_norm_(port.parameters(model), args.clip)
        scaler.step(optimizer)
        scaler.update()
        if step % 5 == 0:
            print(f"step {step} loss {loss.item():.6f} scale {scaler.get_scale():g}")
    if device.type == "cuda":
        ms.runtime.synchronize()
        used = ms.runtime.max_memory_allocated() / 2**20
        print(f"{time.time() - started:.1f} s, {used:.0f} MiB")


def load(args, model, optimizer, scaler, device):
    state = port.load(args.resume)
    port.load_state_dict(model, state["model"])
    port.load_state_dict(optimizer, state["optimizer"])
    port.load_state_dict(scaler, state["scaler"])
    return state["epoch"] + 1


def main():
    args = parse()
    local_rank = int(os.environ.get("LOCAL_RANK", 0))
    device = port.device(f"cuda:{local_rank}" if args.device == "cuda" else "cpu")
    ms.set_seed(0)
    model = Net().set_train()
    if "LOCAL_RANK" in os.environ:
        # mpcore port: removed: torch.cuda.set_device(local_rank) (one process has one device)
        port.init_process_group()
        model = port.data_parallel(model)
    optimizer = port.AdamW(model.trainable_params(), lr=args.lr / 10)
    scheduler = port.CosineAnnealingLR(optimizer, T_max=args.epochs)
    scaler = port.GradScaler(enabled=args.amp)
    criterion = ops.cross_entropy
    first = load(args, model, optimizer, scaler, device) if args.resume else 0
    loader = batches(args)
    for epoch in range(first, args.epochs):
        train_one_epoch(args, model, criterion, loader, optimizer, scaler, device)
        scheduler.step()
        if args.save:
            state = {
                "epoch": epoch,
                "model": port.state_dict(model),
                "optimizer": port.state_dict(optimizer),
                "scaler": port.state_dict(scaler),
            }
            port.save(state, args.save)


if __name__ == "__main__":
    main()

"""Train a small image classifier in mixed precision on one GPU or several.

    python train.py --amp --epochs 3
    torchrun --nproc-per-node 4 train.py --amp --resume last.pth
"""

import argparse
import os
import time
import mpcore_port_runtime as port
from mindspore import ops
from mindspore import mint
from mindspore import nn
import mindspore as ms

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

    def forward_fn(images, labels):
        loss = criterion(model(images), labels)
        return scaler.scale(loss.astype(ms.float32)), loss

    if args.amp:
        forward_fn = ms.amp.auto_mixed_precision(forward_fn, "auto", ms.float16)
    grad_fn = ms.value_and_grad(forward_fn, None, optimizer.parameters, has_aux=True)

    grad_reducer = port.grad_reducer(optimizer.parameters)

    def train_step(images, labels):
        (_, loss), grads = grad_fn(images, labels)
        grads = grad_reducer(grads)
        grads = scaler.unscale(grads)
        finite = ms.amp.all_finite(grads)
        if not isinstance(scaler, ms.amp.DynamicLossScaler) or finite:
            grads = ops.clip_by_global_norm(grads, args.clip)
            optimizer(grads)
        scaler.adjust(finite)
        return loss

    for step, (images, labels) in enumerate(loader):
        loss = train_step(images, labels)
        if step % 5 == 0:
            print(f"step {step} loss {loss.item():.6f} scale {scaler.scale_value.item():g}")
    if device.type == "npu":
        ms.runtime.synchronize()
        used = ms.runtime.max_memory_allocated() / 2**20
        print(f"{time.time() - started:.1f} s, {used:.0f} MiB")


def load(args, model, optimizer, scaler, device):
    state = port.load(args.resume)
    port.load_state_dict(model, state["model"])
    port.load_state_dict(optimizer, state["optimizer"])
    ((scaler.scale_value.set_data(ms.Tensor(state["scaler"]["scale"], ms.float32)), scaler.counter.set_data(ms.Tensor(state["scaler"]["_growth_tracker"], ms.int32))) if isinstance(scaler, ms.amp.DynamicLossScaler) else None)
    return state["epoch"] + 1


def main():
    args = parse()
    local_rank = int(os.environ.get("LOCAL_RANK", 0))
    device = port.device(f"cuda:{local_rank}" if port.is_accelerator(args.device) else "cpu")
    ms.set_seed(0)
    model = Net().set_train()
    if "LOCAL_RANK" in os.environ:
        # mpcore port: removed: torch.cuda.set_device(local_rank) (one process has one device)
        port.init_process_group()
        model = port.data_parallel(model)
    optimizer = port.AdamW(model.trainable_params(), lr=args.lr / 10)
    scheduler = port.CosineAnnealingLR(optimizer, T_max=args.epochs)
    scaler = ms.amp.DynamicLossScaler(scale_value=2.0**16, scale_factor=2, scale_window=2000) if args.amp else ms.amp.StaticLossScaler(1.0)
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
                "scaler": ({"scale": scaler.scale_value.item(), "_growth_tracker": scaler.counter.item()} if isinstance(scaler, ms.amp.DynamicLossScaler) else {}),
            }
            port.save(state, args.save)


if __name__ == "__main__":
    main()

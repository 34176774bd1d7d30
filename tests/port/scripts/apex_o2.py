"""apex, level from the command line: masters, batch normalisation in float32, a checkpoint."""

import argparse
import io

import torch
import torch.nn as nn

try:
    from apex import amp
    from apex.parallel import DistributedDataParallel as DDP
except ImportError as exc:
    raise ImportError("this script needs apex") from exc


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--opt-level", type=str, default="O2")
    parser.add_argument("--keep-batchnorm-fp32", type=str, default=None)
    parser.add_argument("--loss-scale", type=str, default=None)
    parser.add_argument("--distributed", action="store_true")
    return parser.parse_args()


def main():
    args = parse()
    torch.manual_seed(11)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(8 * 36, 4),
    ).to(device)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, weight_decay=1e-4)
    model, optimizer = amp.initialize(
        model,
        optimizer,
        opt_level=args.opt_level,
        keep_batchnorm_fp32=args.keep_batchnorm_fp32,
        loss_scale=args.loss_scale,
    )
    if args.distributed:
        model = DDP(model, delay_allreduce=True)
    criterion = nn.CrossEntropyLoss().to(device)
    for step in range(20):
        x, y = torch.randn(8, 3, 6, 6).to(device), torch.randint(0, 4, (8,)).to(device)
        loss = criterion(model(x), y)
        optimizer.zero_grad()
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        optimizer.step()
        print(f"{step} {loss.item():.6f}")
    saved = io.BytesIO()
    torch.save({"model": model.state_dict(), "amp": amp.state_dict()}, saved)


if __name__ == "__main__":
    main()

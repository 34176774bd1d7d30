"""Mixed precision by a flag that only the tail of the step asks for."""

import argparse

import torch
from torch import nn
from torch.cuda import amp


def get_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--no-amp", dest="amp", action="store_false")
    parser.add_argument("--accum", type=int, default=2)
    return parser.parse_args()


def main():
    args = get_args()
    torch.manual_seed(12)
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    net = nn.Sequential(nn.Linear(6, 18), nn.ReLU(), nn.Dropout(0.0), nn.Linear(18, 4)).to(device)
    criterion = nn.CrossEntropyLoss().to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    scaler = amp.GradScaler(enabled=args.amp)
    batches = [(torch.randn(10, 6), torch.randint(0, 4, (10,))) for _ in range(10)]
    step = 0
    for epoch in range(2):
        net.train()
        optimizer.zero_grad()
        for idx, (data, label) in enumerate(batches):
            data, label = data.to(device), label.to(device)
            with amp.autocast(enabled=args.amp):
                logits = net(data)
                loss = criterion(logits, label) / args.accum
            if args.amp:
                scaler.scale(loss).backward()
            else:
                loss.backward()
            if (idx + 1) % args.accum == 0:
                if args.amp:
                    scaler.step(optimizer)
                    scaler.update()
                else:
                    optimizer.step()
                optimizer.zero_grad()
                step += 1
            if idx % 5 == 0:
                print(epoch, step, loss.item(), (logits.argmax(1) == label).float().mean().item())


if __name__ == "__main__":
    main()

"""Pictures in folders, from a command line that must name them."""

import argparse
import os
import time

import torch
import torch.nn as nn
import torchvision.transforms as transforms
from torch.cuda.amp import GradScaler, autocast
from torchvision import datasets


class SmallNet(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.conv2 = nn.Conv2d(8, 16, 3, stride=2, padding=1)
        self.bn = nn.BatchNorm2d(16)
        self.fc = nn.Linear(16 * 7 * 7, classes)

    def forward(self, x):
        x = torch.relu(self.conv1(x))
        x = torch.relu(self.bn(self.conv2(x)))
        return self.fc(torch.flatten(x, 1))


def accuracy(output, target):
    with torch.no_grad():
        return output.argmax(1).eq(target).float().mean().item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", help="folder with train and val")
    parser.add_argument("--arch", required=True, choices=["small", "large"])
    parser.add_argument("--classes", type=int, required=True)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--resume", default="")
    args = parser.parse_args()
    args.classes = max(args.classes, 10)
    print("classes", sorted(os.listdir(args.data)))

    torch.manual_seed(0)
    normalize = transforms.Normalize([0.5] * 3, [0.25] * 3)
    folder = os.path.join(args.data, "train")
    train_set = datasets.ImageFolder(
        folder, transforms.Compose([transforms.ToTensor(), normalize])
    )
    train_loader = torch.utils.data.DataLoader(
        train_set,
        batch_size=args.batch_size,
        shuffle=True,
        num_workers=4,
        pin_memory=True,
    )
    model = SmallNet(args.classes).cuda()
    criterion = nn.CrossEntropyLoss().cuda()
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1)
    scaler = GradScaler()
    if args.resume:
        checkpoint = torch.load(args.resume, map_location="cuda")
        model.load_state_dict(checkpoint["model"])
    best = 0.0
    for epoch in range(args.epochs):
        model.train()
        started = time.time()
        for i, (images, target) in enumerate(train_loader):
            images = images.cuda(non_blocking=True)
            target = target.cuda(non_blocking=True)
            with autocast():
                output = model(images)
                loss = criterion(output, target)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            if i % 10 == 0:
                seconds = time.time() - started
                print(f"{epoch} {i} {loss.item():.4f} {accuracy(output, target):.3f} {seconds:.1f}")
        scheduler.step()
        score = validate(model, os.path.join(args.data, "val"))
        if score > best:
            best = score
            torch.save({"model": model.state_dict()}, "best.pth")


def validate(model, folder):
    loader = torch.utils.data.DataLoader(datasets.ImageFolder(folder))
    model.eval()
    with torch.no_grad():
        found = [accuracy(model(x.cuda()), y.cuda()) for x, y in loader]
    return sum(found) / len(found)


if __name__ == "__main__":
    main()

"""Segmentation with a small U-Net; mixed precision is a flag."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F


class DoubleConv(nn.Sequential):
    def __init__(self, inputs, outputs):
        super().__init__(
            nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
        )


class UNet(nn.Module):
    def __init__(self, channels=1, classes=2):
        super().__init__()
        self.inc = DoubleConv(channels, 8)
        self.down = DoubleConv(8, 16)
        self.up = nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.conv = DoubleConv(16, 8)
        self.outc = nn.Conv2d(8, classes, 1)

    def forward(self, x):
        a = self.inc(x)
        b = self.down(F.max_pool2d(a, 2))
        return self.outc(self.conv(torch.cat([a, self.up(b)], dim=1)))


def dice_loss(logits, masks):
    probs = F.softmax(logits, dim=1).float()[:, 1]
    truth = masks.float()
    inter = 2 * (probs * truth).sum()
    return 1 - (inter + 1e-6) / (probs.sum() + truth.sum() + 1e-6)


def train_model(model, device, steps, amp, gradient_clipping=1.0):
    optimizer = torch.optim.RMSprop(
        model.parameters(), lr=1e-4, weight_decay=1e-8, momentum=0.9, foreach=True
    )
    grad_scaler = torch.cuda.amp.GradScaler(enabled=amp)
    criterion = nn.CrossEntropyLoss()
    for step in range(steps):
        images = torch.randn(4, 1, 16, 16)
        masks = torch.randint(0, 2, (4, 16, 16))
        images = images.to(device=device, dtype=torch.float32, memory_format=torch.channels_last)
        masks = masks.to(device=device, dtype=torch.long)
        with torch.autocast(device.type if device.type != "mps" else "cpu", enabled=amp):
            pred = model(images)
            loss = criterion(pred, masks)
            loss += dice_loss(pred, masks)
        optimizer.zero_grad(set_to_none=True)
        grad_scaler.scale(loss).backward()
        grad_scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), gradient_clipping)
        grad_scaler.step(optimizer)
        grad_scaler.update()
        print(f"{step} {loss.item():.6f}")


def get_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--amp", action="store_true", default=False, help="mixed precision")
    parser.add_argument("--steps", type=int, default=20)
    return parser.parse_args()


if __name__ == "__main__":
    args = get_args()
    torch.manual_seed(2)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = UNet().to(memory_format=torch.channels_last)
    model.to(device=device)
    try:
        train_model(model, device, args.steps, args.amp)
    except torch.cuda.OutOfMemoryError:
        torch.cuda.empty_cache()
        raise

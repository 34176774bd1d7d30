"""A residual network trained through a class that wraps the scaler."""

import torch
from torch import nn

torch.backends.cudnn.benchmark = True


class NativeScaler:
    """Scale, clip and step in one call."""

    state_dict_key = "amp_scaler"

    def __init__(self):
        self._scaler = torch.cuda.amp.GradScaler()

    def __call__(self, loss, optimizer, clip_grad=None, parameters=None, need_update=True):
        self._scaler.scale(loss).backward()
        if not need_update:
            return
        if clip_grad is not None:
            self._scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(parameters, clip_grad)
        self._scaler.step(optimizer)
        self._scaler.update()

    def state_dict(self):
        return self._scaler.state_dict()

    def load_state_dict(self, state_dict):
        self._scaler.load_state_dict(state_dict)


class Block(nn.Module):
    def __init__(self, width, stride=1):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
        )
        self.skip = nn.Identity() if stride == 1 else nn.Conv2d(width, width, 1, stride=stride)
        self.act = nn.ReLU()

    def forward(self, x):
        return self.act(self.body(x) + self.skip(x))


class ResNet(nn.Module):
    def __init__(self, classes=5, width=8):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.layers = nn.Sequential(Block(width), Block(width, stride=2))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        x = self.layers(self.stem(x))
        return self.head(self.pool(x).flatten(1))


def train_one_epoch(model, criterion, batches, optimizer, device, loss_scaler, max_norm):
    model.train(True)
    for samples, targets in batches:
        samples = samples.to(device, non_blocking=True)
        targets = targets.to(device, non_blocking=True)
        with torch.cuda.amp.autocast():
            outputs = model(samples)
            loss = criterion(outputs, targets)
        optimizer.zero_grad()
        loss_scaler(loss, optimizer, clip_grad=max_norm, parameters=model.parameters())
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        print(f"loss {loss.item():.6f}")


def main():
    torch.manual_seed(0)
    device = "cuda:0" if torch.cuda.is_available() else "cpu"
    model = ResNet().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=3)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    loss_scaler = NativeScaler()
    batches = [(torch.randn(8, 3, 12, 12), torch.randint(0, 5, (8,))) for _ in range(8)]
    for _ in range(3):
        train_one_epoch(model, criterion, batches, optimizer, device, loss_scaler, max_norm=1.0)
        scheduler.step()


if __name__ == "__main__":
    main()

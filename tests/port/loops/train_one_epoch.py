"""train_one_epoch with a scaler: clipping, a schedule in each step, accuracy of the outputs."""

import torch
from torch import nn
from torch.amp import GradScaler, autocast


def train_one_epoch(model, loader, criterion, optimizer, scheduler, scaler, device):
    model.train()
    running_loss, correct, total = 0.0, 0, 0
    for images, targets in loader:
        images = images.to(device, non_blocking=True)
        targets = targets.to(device, non_blocking=True)
        optimizer.zero_grad(set_to_none=True)
        with autocast(device_type="cuda", dtype=torch.float16):
            outputs = model(images)
            loss = criterion(outputs, targets)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        running_loss += loss.item() * images.size(0)
        correct += outputs.argmax(1).eq(targets).sum().item()
        total += targets.size(0)
    return running_loss / total, correct / total


def main():
    torch.manual_seed(1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3)).to(device)
    loader = [(torch.randn(8, 1, 8, 8), torch.randint(0, 3, (8,))) for _ in range(7)]
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.05)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=21)
    scaler = GradScaler("cuda", growth_interval=5)
    for epoch in range(3):
        loss, accuracy = train_one_epoch(
            model, loader, criterion, optimizer, scheduler, scaler, device
        )
        print(f"epoch {epoch} loss {loss:.4f} accuracy {accuracy:.3f} scale {scaler.get_scale()}")


if __name__ == "__main__":
    main()

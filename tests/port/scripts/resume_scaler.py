"""Half a run, a checkpoint with the scaler in it, and the other half from there."""

import os
import tempfile

import torch
import torch.nn as nn


def build(device):
    torch.manual_seed(6)
    model = nn.Sequential(nn.Linear(8, 24), nn.Tanh(), nn.Linear(24, 2)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    scaler = torch.cuda.amp.GradScaler(init_scale=2.0**8, growth_interval=4)
    return model, optimizer, scaler


def run(model, optimizer, scaler, first, last, device):
    criterion = nn.CrossEntropyLoss()
    for step in range(first, last):
        generator = torch.Generator().manual_seed(step)
        x = torch.randn(16, 8, generator=generator).to(device)
        y = torch.randint(0, 2, (16,), generator=generator).to(device)
        optimizer.zero_grad()
        with torch.autocast(device_type="cuda", dtype=torch.float16):
            loss = criterion(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        print(f"{step} {loss.item():.6f} {scaler.get_scale()}")


def main():
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "last.pth")
        model, optimizer, scaler = build(device)
        run(model, optimizer, scaler, 0, 10, device)
        state = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "scaler": scaler.state_dict(),
        }
        torch.save(state, path)
        model, optimizer, scaler = build(device)
        checkpoint = torch.load(path, map_location=device)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        if scaler.is_enabled():
            scaler.load_state_dict(checkpoint["scaler"])
        run(model, optimizer, scaler, 10, 20, device)


if __name__ == "__main__":
    main()

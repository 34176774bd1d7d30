"""A regressor: settings by keyword, the norm is logged, tqdm-like counting."""

import math

import torch
import torch.nn as nn
import torch.optim as optim


class Regressor(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(9, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU())
        self.out = nn.Linear(width, 1)

    def forward(self, x):
        return self.out(self.layers(x)).squeeze(1)


def epoch_regressor(model, dataloader, loss_function, optimizer, scaler, clip_norm=5.0):
    model.train()
    losses, norms = [], []
    for X, y in dataloader:
        optimizer.zero_grad()
        with torch.autocast(device_type="cuda"):
            pred = model(X)
            loss = loss_function(pred, y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        total_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
        norms.append(float(total_norm))
    return sum(losses) / len(losses), max(norms)


def fit(epochs=4):
    torch.manual_seed(11)
    model = Regressor().cuda()
    data = [(torch.randn(12, 9), torch.randn(12)) for _ in range(5)]
    opt = optim.Adam(model.parameters(), lr=2e-3)
    scaler = torch.cuda.amp.GradScaler(init_scale=2.0**10)
    for e in range(epochs):
        loss, norm = epoch_regressor(model, data, nn.HuberLoss(), opt, scaler)
        print(e, loss, math.isfinite(norm))


fit()

"""The same step twice, with mixed precision and without, under a flag."""

import torch
from torch import nn
from torch.cuda.amp import GradScaler, autocast

use_amp = True
torch.manual_seed(4)
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(10, 20), nn.LayerNorm(20), nn.ReLU(), nn.Linear(20, 1)).to(device)
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
criterion = nn.BCEWithLogitsLoss()
scaler = GradScaler() if use_amp else None
for step in range(20):
    x, y = torch.randn(8, 10).to(device), torch.randint(0, 2, (8, 1)).float().to(device)
    optimizer.zero_grad()
    if use_amp:
        with autocast():
            out = model(x)
            loss = criterion(out, y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 2.0)
        scaler.step(optimizer)
        scaler.update()
    else:
        out = model(x)
        loss = criterion(out, y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 2.0)
        optimizer.step()
    print(step, loss.item(), out.mean().item())

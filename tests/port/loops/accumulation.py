"""Gradients of four batches in one step, counted by the index of the batch."""

import torch
import torch.nn as nn
import torch.nn.functional as F

accumulation_steps = 4


def train(model, loader, optimizer, scaler):
    model.train()
    optimizer.zero_grad()
    for i, (x, y) in enumerate(loader):
        x, y = x.cuda(), y.cuda()
        with torch.cuda.amp.autocast():
            loss = F.mse_loss(model(x), y)
            loss = loss / accumulation_steps
        scaler.scale(loss).backward()
        if (i + 1) % accumulation_steps == 0 or (i + 1) == len(loader):
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        print(i, loss.item() * accumulation_steps)


torch.manual_seed(2)
net = nn.Sequential(nn.Linear(5, 12), nn.Tanh(), nn.Linear(12, 1)).cuda()
adam = torch.optim.AdamW(net.parameters(), lr=3e-3)
grad_scaler = torch.cuda.amp.GradScaler(init_scale=1024, growth_interval=2)
data = [(torch.randn(8, 5), torch.randn(8, 1)) for _ in range(10)]
for _ in range(2):
    train(net, data, adam, grad_scaler)

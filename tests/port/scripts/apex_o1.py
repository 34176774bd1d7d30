"""apex, level O1: one model, one optimizer, one loss."""

import torch
import torch.nn as nn
from apex import amp

torch.manual_seed(5)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.LayerNorm(32), nn.Linear(32, 3)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
criterion = nn.CrossEntropyLoss()
model, optimizer = amp.initialize(model, optimizer, opt_level="O1")

inputs = torch.randn(20, 16, 12)
labels = torch.randint(0, 3, (20, 16))
for step in range(20):
    x, y = inputs[step].to(device), labels[step].to(device)
    optimizer.zero_grad()
    out = model(x)
    loss = criterion(out, y)
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        scaled_loss.backward()
    torch.nn.utils.clip_grad_norm_(amp.master_params(optimizer), 1.0)
    optimizer.step()
    print(f"{step} {loss.item():.6f}")

import torch
from torch import nn

model = nn.Linear(4, 1)
criterion = nn.MSELoss()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)


def train(batches):
    model.train()
    total = 0.0
    for x, y in batches:
        optimizer.zero_grad()
        # forward
        pred = model(x)
        loss = criterion(pred, y)
        loss.backward()
        optimizer.step()
        total += loss.item() * pred.size(0)
    return total

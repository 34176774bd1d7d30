"""A script at module level, without mixed precision."""

import torch
import torch.nn as nn

torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3)).to(device)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=5, gamma=0.5)
batches = [(torch.randn(8, 6), torch.randint(0, 3, (8,))) for _ in range(10)]
for epoch in range(2):
    model.train()
    correct = 0
    for x, y in batches:
        x, y = x.to(device), y.to(device)
        optimizer.zero_grad()
        outputs = model(x)
        loss = criterion(outputs, y)
        loss.backward()
        optimizer.step()
        correct += (outputs.argmax(dim=1) == y).sum().item()
    scheduler.step()
    print(epoch, loss.item(), correct)

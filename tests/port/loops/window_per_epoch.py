"""Windows of two batches in epochs of five: each epoch drops what its last batch has added up."""

import torch
import torch.nn as nn


def train(model, batches, optimizer, criterion, epochs):
    for _ in range(epochs):
        model.train()
        optimizer.zero_grad()
        for i, (x, y) in enumerate(batches):
            loss = criterion(model(x), y)
            loss.backward()
            if i % 2:
                optimizer.step()
                optimizer.zero_grad()
            print(i, loss.item())


torch.manual_seed(3)
net = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1))
sgd = torch.optim.SGD(net.parameters(), lr=0.2, momentum=0.9)
data = [(torch.randn(4, 5), torch.randn(4, 1)) for _ in range(5)]
train(net, data, sgd, nn.MSELoss(), 4)

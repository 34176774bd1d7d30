"""A weight of the loss that grows is all that comes back beside it, and it is no tensor."""

import torch
from torch import nn


def fit(net, batches, epochs):
    measure = nn.L1Loss()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.02)
    weight, last = 0.1, None
    for _ in range(epochs):
        for x, y in batches:
            optimizer.zero_grad()
            out = net(x)
            weight = min(1.0, weight * 1.3)
            loss = measure(out, y) * weight
            if weight > 2:
                last = loss
            loss.backward()
            optimizer.step()
    print(last)


torch.manual_seed(3)
fit(nn.Linear(3, 2), [(torch.randn(6, 3), torch.randn(6, 2)) for _ in range(5)], 4)

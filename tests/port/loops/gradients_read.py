"""A classifier whose noise follows its gradients, which are read behind the step."""

import torch
from torch import nn


def sizes(network):
    return [float(p.grad.abs().max()) for p in network.parameters() if p.grad is not None]


def fit(network, batches, epochs, bound=0.7):
    loss_of = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.8)
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**9)
    seen, most = 0, 0.0
    for epoch in range(epochs):
        for rows, labels in batches:
            rows = rows * (1 + most)
            with torch.autocast("cuda", dtype=torch.float16):
                scores = network(rows)
                loss = loss_of(scores, labels)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(network.parameters(), bound)
            scaler.step(optimizer)
            scaler.update()
            seen += 1
            if seen % 2 == 0:
                most = 0.0
                for p in network.parameters():
                    if p.grad is not None and torch.isfinite(p.grad).all():
                        most = max(most, p.grad.abs().max().item())
                print(epoch, seen, loss.item(), 0 < most <= bound, len(sizes(network)))


torch.manual_seed(21)
small = nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 3))
fit(small, [(torch.randn(9, 6), torch.randint(0, 3, (9,))) for _ in range(4)], 5)

"""One function trains and evaluates: without an optimizer the same forward pass runs alone."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(5, 12), nn.BatchNorm1d(12), nn.ReLU())
        self.head = nn.Linear(12, 3)

    def forward(self, x):
        return self.head(self.body(x))


def one_pass(net, batches, measure, optimizer=None, scaler=None):
    training = optimizer is not None
    net.train(training)
    total, hits, warm = 0.0, 0, 0.5
    for x, y in batches:
        with torch.set_grad_enabled(training):
            with torch.autocast("cuda", dtype=torch.float16):
                scores = net(x)
                warm = min(1.0, warm + 0.1)
                loss = measure(scores, y) * warm
        total += loss.item()
        if training:
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            print("moved")
        hits += (scores.argmax(1) == y).sum().item()
    return total / len(batches), hits


def run():
    torch.manual_seed(31)
    net = Net()
    train = [(torch.randn(8, 5), torch.randint(0, 3, (8,))) for _ in range(5)]
    held = [(torch.randn(8, 5), torch.randint(0, 3, (8,))) for _ in range(2)]
    sgd = torch.optim.SGD(net.parameters(), lr=0.05)
    grow = torch.cuda.amp.GradScaler(init_scale=2.0**8, growth_interval=3)
    measure = nn.CrossEntropyLoss()
    for epoch in range(5):
        done = one_pass(net, train, measure, sgd, grow)
        seen = one_pass(net, held, measure)
        print(epoch, done, seen)


run()

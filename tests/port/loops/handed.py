"""A trainer whose loss goes to a method that moves the weights, in training alone."""

import torch
from torch import nn


class Trainer:
    def __init__(self, net, rate):
        self.net = net
        self.measure = nn.MSELoss()
        self.optimizer = torch.optim.AdamW(net.parameters(), lr=rate)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 4, gamma=0.7)
        self.scaler = torch.amp.GradScaler("cuda", init_scale=2.0**9)
        self.moves = 0

    def move(self, cost, limit):
        """Move the weights by a cost."""
        self.optimizer.zero_grad()
        self.scaler.scale(cost).backward()
        self.scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_norm_(self.net.parameters(), limit)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.scheduler.step()
        self.moves += 1

    def turn(self, batches, train=True):
        self.net.train(train)
        most = 0.0
        for x, y in batches:
            with torch.inference_mode() if not train else torch.enable_grad():
                loss = self.measure(self.net(x), y)
                most = max(most, loss.item())
            if train:
                self.move(loss, 0.5)
                print(self.moves)
        return most


torch.manual_seed(17)
trainer = Trainer(nn.Sequential(nn.Linear(4, 9), nn.Tanh(), nn.Linear(9, 2)), 1e-2)
seen = [(torch.randn(7, 4), torch.randn(7, 2)) for _ in range(5)]
for epoch in range(5):
    print(epoch, trainer.turn(seen), trainer.turn(seen[:1], train=False))

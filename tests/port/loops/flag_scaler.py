"""A trainer that has a scaler under a flag only; without the flag its attribute is not there."""

import torch
from torch import nn


class Trainer:
    def __init__(self, use_amp):
        self.use_amp = use_amp
        self.model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 3))
        self.criterion = nn.CrossEntropyLoss()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)
        if self.use_amp:
            self.scaler = torch.cuda.amp.GradScaler()

    def train(self, steps):
        for step in range(steps):
            x, y = torch.randn(8, 6), torch.randint(0, 3, (8,))
            with torch.cuda.amp.autocast(enabled=self.use_amp):
                out = self.model(x)
                loss = self.criterion(out, y)
            self.optimizer.zero_grad()
            if self.use_amp:
                self.scaler.scale(loss).backward()
                self.scaler.unscale_(self.optimizer)
                torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                self.scaler.step(self.optimizer)
                self.scaler.update()
            else:
                loss.backward()
                torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                self.optimizer.step()
            print(step, loss.item(), out.shape)


torch.manual_seed(3)
Trainer(use_amp=False).train(20)

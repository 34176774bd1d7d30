"""A learner whose region and scaler are switched by one argument of its constructor."""

import torch
import torch.nn as nn


class Learner:
    def __init__(self, model, optimizer, max_norm, **kwargs):
        self.model, self.optimizer, self.max_norm = model, optimizer, max_norm
        self.autocast = torch.cuda.amp.autocast(enabled=kwargs.get("fp16", False))
        self.scaler = torch.cuda.amp.GradScaler(enabled=kwargs.get("fp16", False))
        self.loss_fn = nn.L1Loss()

    def train(self, batches, epochs):
        for _ in range(epochs):
            for x, y in batches:
                loss = self.train_step(x, y)
                print(loss.item(), float(self.grad_norm) > 0)

    def train_step(self, x, y):
        for param in self.model.parameters():
            param.grad = None
        with self.autocast:
            predicted = self.model(x)
            loss = self.loss_fn(y, predicted)
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        self.grad_norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.max_norm or 1e9)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss


torch.manual_seed(7)
net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
learner = Learner(net, torch.optim.Adam(net.parameters(), lr=5e-3), 0.5, fp16=True)
learner.train([(torch.randn(8, 4), torch.randn(8, 2)) for _ in range(5)], 4)

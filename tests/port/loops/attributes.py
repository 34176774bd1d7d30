"""A Trainer that keeps its loss and its norm in attributes, and clears gradients by hand."""

import torch
import torch.nn as nn


class Trainer:
    def __init__(self, model, optimizer, penalty):
        self.model, self.optimizer, self.penalty = model, optimizer, penalty
        self.criterion = nn.SmoothL1Loss()
        self.scaler = torch.cuda.amp.GradScaler()

    def fit(self, batches, epochs):
        extra = torch.zeros(())
        for epoch in range(epochs):
            for number, (x, y) in enumerate(batches):
                for param in self.model.parameters():
                    param.grad = None
                with torch.cuda.amp.autocast():
                    prediction = self.model(x)
                    self.loss = self.criterion(prediction, y)
                    if number > 1:
                        extra = prediction.float().pow(2).mean()
                        self.loss = self.loss + self.penalty * extra
                    if self.penalty > 1:
                        more = extra * 2
                self.scaler.scale(self.loss).backward(retain_graph=True)
                self.scaler.unscale_(self.optimizer)
                self.grad_norm = nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
                self.scaler.step(self.optimizer)
                self.scaler.update()
                print(epoch, self.loss.item(), float(self.grad_norm) > 0, extra.item() >= 0)
                if self.penalty > 1:
                    print(more)


torch.manual_seed(6)
net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
trainer = Trainer(net, torch.optim.SGD(net.parameters(), lr=5e-2), 0.1)
trainer.fit([(torch.randn(8, 4), torch.randn(8, 2)) for _ in range(5)], 4)

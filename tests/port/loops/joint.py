"""Two optimizers on one loss, an encoder and a head; a schedule for one of them; no scaler."""

import torch
from torch import nn, optim


class Model:
    def __init__(self, width):
        self.encoder = nn.Sequential(nn.Linear(5, width), nn.Tanh())
        self.head = nn.Linear(width, 2)
        self.opt_enc = optim.SGD(self.encoder.parameters(), lr=0.02)
        self.opt_head = optim.Adam(self.head.parameters(), lr=0.01)
        self.sched = optim.lr_scheduler.ExponentialLR(self.opt_enc, gamma=0.9)
        self.criterion = nn.MSELoss()

    def run(self, batches):
        total = 0.0
        for i, (x, target) in enumerate(batches):
            self.opt_enc.zero_grad()
            self.opt_head.zero_grad()
            features = self.encoder(x)
            pred = self.head(features)
            loss = self.criterion(pred, target) + 1e-3 * features.pow(2).mean()
            loss.backward()
            self.opt_enc.step()
            self.opt_head.step()
            self.sched.step()
            total += loss.detach().item()
        return total / len(batches)


torch.manual_seed(14)
model = Model(10)
data = [(torch.randn(7, 5), torch.randn(7, 2)) for _ in range(10)]
for _ in range(2):
    print(model.run(data))

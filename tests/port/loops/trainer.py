"""A Trainer whose method is one step."""

import torch
import torch.nn as nn


class Trainer:
    def __init__(self, model, optimizer, device):
        self.model, self.optimizer, self.device = model.to(device), optimizer, device
        self.criterion = nn.SmoothL1Loss()
        self.scaler = torch.amp.GradScaler(device)
        self.history = []

    def train_step(self, batch):
        x, y = batch
        x, y = x.to(self.device), y.to(self.device)
        self.optimizer.zero_grad()
        with torch.autocast(device_type=self.device):
            prediction = self.model(x)
            loss = self.criterion(prediction, y)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.history.append(loss.item())
        return {"loss": loss.item(), "mean": prediction.mean().item()}

    def fit(self, batches, epochs):
        for epoch in range(epochs):
            self.model.train()
            for batch in batches:
                logs = self.train_step(batch)
            print(epoch, logs["loss"], logs["mean"])


torch.manual_seed(5)
net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
trainer = Trainer(net, torch.optim.Adam(net.parameters(), lr=5e-3), "cuda")
trainer.fit([(torch.randn(8, 4), torch.randn(8, 2)) for _ in range(5)], 4)

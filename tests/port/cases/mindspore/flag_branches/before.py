import torch
from torch.cuda.amp import GradScaler, autocast


class Trainer:
    def __init__(self, model, optimizer, use_amp):
        self.model = model
        self.optimizer = optimizer
        self.use_amp = use_amp
        self.scaler = GradScaler(enabled=use_amp)
        self.criterion = torch.nn.CrossEntropyLoss()

    def step(self, x, y):
        self.optimizer.zero_grad()
        if self.use_amp:
            with autocast():
                loss = self.criterion(self.model(x), y)
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            loss = self.criterion(self.model(x), y)
            loss.backward()
            self.optimizer.step()
        return loss.item()

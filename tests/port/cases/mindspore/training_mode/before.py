import torch.nn as nn
from model import ResNet, build_optimizer


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Dropout(0.1), nn.Linear(2, 2))


class Trainer:
    def __init__(self):
        self.model = Block().to("cuda")


model = ResNet(18)
head = nn.Sequential(Block(), nn.BatchNorm1d(2))
loss = nn.MSELoss()
optimizer = build_optimizer(model)

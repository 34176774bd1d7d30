import mindspore as ms
import mpcore_port_runtime as port
from mindspore import nn
from model import ResNet, build_optimizer


class Block(nn.Cell):
    def __init__(self):
        super().__init__()
        self.body = nn.SequentialCell(nn.Dropout(p=0.1), nn.Dense(2, 2))


class Trainer:
    def __init__(self):
        self.model = Block().set_train()


model = port.in_training(ResNet(18))
head = nn.SequentialCell(Block(), nn.BatchNorm1d(2)).set_train()
loss = nn.MSELoss()
optimizer = build_optimizer(model)

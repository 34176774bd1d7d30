import mindspore as ms
from mindspore.common.initializer import Normal
import mpcore_port_runtime as port
from mindspore import nn


class Head(nn.Cell):
    def __init__(self, width, classes):
        super().__init__()
        self.norm = nn.LayerNorm((width,), epsilon=1e-05)
        self.act = nn.GELU(approximate=False)  # exact
        self.drop = nn.Dropout(p=0.1)
        self.fc = nn.Dense(width, classes, has_bias=False)
        self.table = port.Embedding(10, width, padding_idx=0, embedding_table=Normal(1.0))
        self.pool = nn.MaxPool2d(2, stride=2)
        self.leaky = port.LeakyReLU()
        self.loss = nn.SmoothL1Loss(reduction='mean')

    def construct(self, x):
        return self.fc(self.drop(self.act(self.norm(x))))

import mindspore as ms
from mindspore import ops
import mpcore_port_runtime as port
from mindspore import nn


class Scale(nn.Cell):
    def __init__(self, n):
        super(Scale, self).__init__()
        self.gamma = port.Parameter(ops.ones(n))
        self.register_buffer("offset", ops.zeros(n))
        self.blocks = nn.CellList([nn.Dense(n, n) for _ in range(2)])

    def construct(self, x):
        for block in self.blocks:
            x = block(x)
        return x * self.gamma + self.offset


def groups(model):
    decay = [p for n, p in port.named_parameters(model) if p.requires_grad and "bias" not in n]
    return decay, sum(p.numel() for p in port.parameters(model))

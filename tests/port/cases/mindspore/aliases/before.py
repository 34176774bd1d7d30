import torch as ch
import torch.nn.functional as fun
from torch import nn as layers, optim as opt


def squash(x: ch.Tensor) -> ch.Tensor:
    """Keep it small."""
    y = fun.leaky_relu(x) + fun.softmax(x, dim=-1)
    return ch.stack([y, ch.zeros(2, 3, device=x.device)], dim=1).to(ch.float32)


net = layers.Linear(3, 3)
sgd = opt.SGD(net.parameters(), lr=0.1)

import torch
import torch.nn as nn


def odd(x, weights):
    middle = torch.median(x)
    fast = torch.jit.trace(nn.Linear(2, 2), x)
    x.t_()
    pooled = nn.Softmin()(x)
    return middle, fast, pooled

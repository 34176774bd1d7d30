import torch
from torch import nn


class Net(nn.Module):
    def cuda(self, device=None):
        self.moved = True
        return super().cuda(device)

    def forward(self, x):
        return x.cuda(non_blocking=True) if not x.is_cuda else x


net = Net().cuda(0)
half = torch.ones(2).cuda().half()
kind = torch.cuda.FloatTensor if half.is_cuda else torch.FloatTensor
data = half.type("torch.cuda.HalfTensor")

import torch
import torch_npu
from torch import nn


class Net(nn.Module):
    def npu(self, device=None):
        self.moved = True
        return super().npu(device)

    def forward(self, x):
        return x.npu(non_blocking=True) if not x.is_npu else x


net = Net().npu(0)
half = torch.ones(2).npu().half()
kind = torch.npu.FloatTensor if half.is_npu else torch.FloatTensor
data = half.type("torch.npu.HalfTensor")

import torch
import torch_npu

scaler = torch.npu.amp.GradScaler()
a, b = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
first = torch.optim.Adam(a.parameters())
second = torch.optim.Adam(b.parameters())
scaler.step(first)
scaler.step(second)
scaler.update()

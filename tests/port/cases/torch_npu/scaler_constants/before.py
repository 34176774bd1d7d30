import torch
from torch.amp import GradScaler

a = torch.cuda.amp.GradScaler(2.0**14, 2.0, 0.5, 500, True)
b = GradScaler("cuda", 1024.0, growth_interval=100)
c = GradScaler(device="cuda", enabled=False)
d = torch.GradScaler(init_scale=8.0)
options = {"init_scale": 4.0}
e = torch.cuda.amp.GradScaler(**options)
values = [4.0]
f = torch.cuda.amp.GradScaler(*values)

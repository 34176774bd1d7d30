import torch
import torch_npu

model = torch.nn.Linear(2, 2).npu()
scaler = torch.npu.amp.GradScaler()
first = torch.optim.AdamW(model.parameters(), lr=1e-3)
second = torch.optim.Adam(
    model.parameters(),
    lr=1e-3,
)
options = {"lr": 1e-3, "fused": False}
third = torch.optim.SGD(model.parameters(), **options)

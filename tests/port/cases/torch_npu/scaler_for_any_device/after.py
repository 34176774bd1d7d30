import torch
import torch_npu
from torch.amp import GradScaler, autocast

device_type = "npu" if torch.npu.is_available() else "cpu"
scaler = GradScaler(device_type)
quiet = GradScaler("cpu", enabled=False)
with autocast(device_type):
    loss = torch.ones(1, device=device_type).sum()

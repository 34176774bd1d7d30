import torch
from torch.amp import GradScaler, autocast

device_type = "cuda" if torch.cuda.is_available() else "cpu"
scaler = GradScaler(device_type)
quiet = GradScaler("cpu", enabled=False)
with autocast(device_type):
    loss = torch.ones(1, device=device_type).sum()

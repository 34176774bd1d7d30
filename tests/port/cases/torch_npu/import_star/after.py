import torch
import torch_npu
from torch_npu.npu.amp import *

scaler = GradScaler()
with autocast():
    print(torch.ones(1).npu())

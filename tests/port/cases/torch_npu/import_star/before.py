import torch
from torch.cuda.amp import *

scaler = GradScaler()
with autocast():
    print(torch.ones(1).cuda())

import torch as ch
from torch.cuda.amp import GradScaler as Scaler
import torch.cuda.amp as tamp

scaler = Scaler()
with tamp.autocast(enabled=True, dtype=ch.bfloat16):
    y = ch.ones(2, 2).cuda() @ ch.ones(2, 2).cuda()
ch.cuda.synchronize()

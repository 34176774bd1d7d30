import torch as ch
import torch_npu
from torch_npu.npu.amp import GradScaler as Scaler
import torch_npu.npu.amp as tamp

scaler = Scaler()
with tamp.autocast(enabled=True, dtype=ch.bfloat16):
    y = ch.ones(2, 2).npu() @ ch.ones(2, 2).npu()
ch.npu.synchronize()

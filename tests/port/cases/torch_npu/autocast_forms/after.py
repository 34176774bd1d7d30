import torch
import torch_npu
from torch import amp, autocast

dtype = torch.bfloat16
with torch.npu.amp.autocast(): pass
with torch.npu.amp.autocast(False): pass
with torch.npu.amp.autocast(True, torch.float16): pass
with torch.autocast("npu"): pass
with torch.autocast(device_type='npu', dtype=dtype, enabled=True): pass
with amp.autocast("npu", dtype=dtype), torch.no_grad(): pass
with autocast("npu"): pass
settings = {"device_type": "npu", "dtype": dtype}
with torch.autocast(**settings): pass

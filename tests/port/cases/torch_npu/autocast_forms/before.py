import torch
from torch import amp, autocast

dtype = torch.bfloat16
with torch.cuda.amp.autocast(): pass
with torch.cuda.amp.autocast(False): pass
with torch.cuda.amp.autocast(True, torch.float16): pass
with torch.autocast("cuda"): pass
with torch.autocast(device_type='cuda', dtype=dtype, enabled=True): pass
with amp.autocast("cuda", dtype=dtype), torch.no_grad(): pass
with autocast("cuda"): pass
settings = {"device_type": "cuda", "dtype": dtype}
with torch.autocast(**settings): pass

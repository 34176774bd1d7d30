import torch
from torch import amp, autocast

# mpcore port: keep
try:
    import torch_npu
except ImportError:
    torch_npu = None
# mpcore port: keep
_port_device = "npu" if torch_npu is not None and torch.npu.is_available() else "cuda"
# mpcore port: keep
_port_device = _port_device if _port_device == "npu" or torch.cuda.is_available() else "cpu"
# mpcore port: keep
_port_accelerator = torch.npu if _port_device == "npu" else torch.cuda
# mpcore port: keep
_port_backend = {"npu": "hccl", "cuda": "nccl", "cpu": "gloo"}[_port_device]
# mpcore port: keep
def _port_place(device=None):
    if isinstance(device, int):
        return torch.device(_port_device, device if _port_device != "cpu" else 0)
    return torch.device(device or _port_device)

dtype = torch.bfloat16
with torch.autocast(_port_device, dtype=torch.float16): pass
with torch.autocast(_port_device, enabled=False, dtype=torch.float16): pass
with torch.autocast(_port_device, enabled=True, dtype=torch.float16): pass
with torch.autocast(_port_device): pass
with torch.autocast(device_type=_port_device, dtype=dtype, enabled=True): pass
with amp.autocast(_port_device, dtype=dtype), torch.no_grad(): pass
with autocast(_port_device): pass
settings = {"device_type": _port_device, "dtype": dtype}
with torch.autocast(**settings): pass

import torch

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

# mpcore port: removed: from torch.cuda.amp import ( GradScaler, # the scaler autocast, # the region ) (each use is written out, by the device that is there)
# mpcore port: removed: from torch.cuda import ( device_count as count, is_available, ) (each use is written out, by the device that is there)

print(_port_accelerator.device_count(), _port_accelerator.is_available(), torch.amp.GradScaler, torch.autocast)

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

# mpcore port: removed: from torch.amp import GradScaler (each use is written out, by the device that is there)

a = torch.amp.GradScaler(_port_device, init_scale=2.0**14, growth_factor=2.0, backoff_factor=0.5, growth_interval=500, enabled=True)
b = torch.amp.GradScaler(_port_device, 1024.0, growth_interval=100)
c = torch.amp.GradScaler(device=_port_device, enabled=False)
d = torch.amp.GradScaler(_port_device, init_scale=8.0)
options = {"init_scale": 4.0}
e = torch.amp.GradScaler(_port_device, **options)
values = [4.0]
f = torch.amp.GradScaler(_port_device, *values)

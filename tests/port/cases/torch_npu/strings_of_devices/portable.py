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

rank = 1
places = [_port_device, (_port_device + ':0'), f"{_port_device}:{rank}", (_port_device + ":") + str(rank), (_port_device + ":{}").format(rank)]
device = torch.device(_port_device, rank)
if device.type == _port_device or _port_device in str(device) or device.type != _port_device:
    x = torch.randn(2, device=device, generator=torch.Generator(_port_device))
note = "train on cuda: it is faster"

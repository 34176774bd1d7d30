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

# mpcore port: removed: from torch.cuda import amp (each use is written out, by the device that is there)


class Twice(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type=_port_device)
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    @torch.amp.custom_bwd(device_type=_port_device)
    def backward(ctx, grad):
        return 2 * grad


class Thrice(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(cast_inputs=torch.float16, device_type=_port_device)
    def forward(ctx, x):
        return 3 * x

    @staticmethod
    @torch.amp.custom_bwd(device_type=_port_device)
    def backward(ctx, grad):
        return 3 * grad

import torch as ch

# mpcore port: keep
try:
    import torch_npu
except ImportError:
    torch_npu = None
# mpcore port: keep
_port_device = "npu" if torch_npu is not None and ch.npu.is_available() else "cuda"
# mpcore port: keep
_port_device = _port_device if _port_device == "npu" or ch.cuda.is_available() else "cpu"
# mpcore port: keep
_port_accelerator = ch.npu if _port_device == "npu" else ch.cuda
# mpcore port: keep
_port_backend = {"npu": "hccl", "cuda": "nccl", "cpu": "gloo"}[_port_device]
# mpcore port: keep
def _port_place(device=None):
    if isinstance(device, int):
        return ch.device(_port_device, device if _port_device != "cpu" else 0)
    return ch.device(device or _port_device)

# mpcore port: removed: from torch.cuda.amp import GradScaler as Scaler (each use is written out, by the device that is there)
# mpcore port: removed: import torch.cuda.amp as tamp (each use is written out, by the device that is there)

scaler = ch.amp.GradScaler(_port_device)
with ch.autocast(_port_device, enabled=True, dtype=ch.bfloat16):
    y = ch.ones(2, 2).to(_port_device) @ ch.ones(2, 2).to(_port_device)
(_port_accelerator.synchronize() if _port_device != "cpu" else None)

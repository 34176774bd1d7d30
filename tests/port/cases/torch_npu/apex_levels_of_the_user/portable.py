import argparse

import mpcore_compat.apex as apex
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

parser = argparse.ArgumentParser()
parser.add_argument("--opt-level", default="O2")
args = parser.parse_args()
model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(torch.nn.Linear(2, 2).to(_port_device))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
model, optimizer = apex.amp.initialize(
    model, optimizer, opt_level=args.opt_level, keep_batchnorm_fp32=True, loss_scale="dynamic"
)
model = torch.nn.parallel.DistributedDataParallel(model, broadcast_buffers=False)

import torch
import torch_npu
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


# mpcore port: keep
class _port_one_device(torch.nn.DataParallel):
    """Runs the module on the one device there is; keeps ``.module`` and the saved names."""

    def __init__(self, module, device_ids=None, output_device=None, dim=0):
        torch.nn.Module.__init__(self)
        self.module = module
        self.dim = dim
        self.device_ids = []

    def forward(self, *inputs, **kwargs):
        return self.module(*inputs, **kwargs)


def wrap(model, ranks):
    if torch.npu.device_count() > 1 and not ranks:
        model = _port_one_device(model).npu()
    return model.module if isinstance(model, (nn.DataParallel, DDP)) else model


pool = nn.MaxPool1d(2)

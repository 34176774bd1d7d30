import torch
import torch_npu
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

# mpcore port: keep
def _port_one_device(module, device_ids=None, output_device=None, dim=0):
    """Return a DataParallel that runs the module on the one device there is.

    It is of torch's own class, ``type(model) is DataParallel``, and keeps the saved names.
    """
    alone = torch.nn.DataParallel.__new__(torch.nn.DataParallel)
    torch.nn.Module.__init__(alone)
    alone.module, alone.dim, alone.device_ids = module, dim, []  # of none: forward calls the module
    return alone


def wrap(model, ranks):
    if torch.npu.device_count() > 1 and not ranks:
        model = _port_one_device(model).npu()
    return model.module if isinstance(model, (nn.DataParallel, DDP)) else model


pool = nn.MaxPool1d(2)

import torch
import torch_npu
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


# mpcore port: keep
class _mpcore_refused:
    """Stands where the port has no equivalent; raises, with the reason, as soon as it is used."""

    def __init__(self, reason):
        self.__dict__["reason"] = reason

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        raise NotImplementedError(self.__dict__["reason"])

    def __call__(self, *args, **kwargs):
        raise NotImplementedError(self.reason)


def wrap(model, ranks):
    if torch.npu.device_count() > 1 and not ranks:
        # mpcore port: refused: nn.DataParallel: not supported on an NPU (docs torch-nn.md); use DistributedDataParallel, one process for each device
        model = _mpcore_refused("nn.DataParallel: not supported on an NPU (docs torch-nn.md); use DistributedDataParallel, one process for each device")(model).npu()
    return model.module if isinstance(model, (nn.DataParallel, DDP)) else model


pool = nn.MaxPool1d(2)

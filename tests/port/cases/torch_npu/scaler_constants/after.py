import torch
import torch_npu
from torch_npu.npu.amp import GradScaler


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


a = torch.npu.amp.GradScaler(init_scale=2.0**14, growth_factor=2.0, backoff_factor=0.5, growth_interval=500, enabled=True)
b = GradScaler(init_scale=1024.0, growth_interval=100)
c = GradScaler(enabled=False)
d = torch.npu.amp.GradScaler(init_scale=8.0)
options = {"init_scale": 4.0}
e = torch.npu.amp.GradScaler(**options)
values = [4.0]
# mpcore port: refused: torch.cuda.amp.GradScaler: positional arguments behind * have another order on an NPU; write keywords
f = _mpcore_refused("torch.cuda.amp.GradScaler: positional arguments behind * have another order on an NPU; write keywords")()

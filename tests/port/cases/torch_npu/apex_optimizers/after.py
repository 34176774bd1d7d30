import torch
import torch_npu


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


# mpcore port: removed: from apex.normalization import FusedLayerNorm (each use is a name of torch now)
# mpcore port: refused: from apex.optimizers import FusedAdam, FusedLAMB, FusedSGD: torch has no LAMB; torch_npu.optim.NpuFusedLamb is another one, which was not compared
FusedLAMB = _mpcore_refused("from apex.optimizers import FusedAdam, FusedLAMB, FusedSGD: torch has no LAMB; torch_npu.optim.NpuFusedLamb is another one, which was not compared")

params = [torch.nn.Parameter(torch.ones(2))]
a = torch.optim.Adam(params, lr=1e-3, weight_decay=0.1)
b = torch.optim.AdamW(params, weight_decay=0.0)
c = torch.optim.SGD(params, lr=0.1, momentum=0.9)
d = FusedLAMB(params, lr=1e-3)
norm = torch.nn.LayerNorm(8, eps=1e-6)

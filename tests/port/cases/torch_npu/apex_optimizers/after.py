import torch
import torch_npu


# mpcore port: keep
class _mpcore_refused:
    """Stands where the port has no equivalent; raises, with the reason, as soon as it is used."""

    def __init__(self, reason):
        self.__dict__["reason"] = reason

    def _raise(self, *args, **kwargs):
        raise NotImplementedError(self.__dict__["reason"])

    def __getattr__(self, name):
        if name.startswith("__") and name not in ("__name__", "__qualname__"):
            raise AttributeError(name)
        self._raise()

    def __mro_entries__(self, bases):
        return (type("_mpcore_refused_base", (), {"__new__": self._raise}),)

    __call__ = __bool__ = __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __hash__ = _raise
    __str__ = __repr__ = __format__ = __int__ = __float__ = __index__ = __len__ = __iter__ = __contains__ = _raise
    __getitem__ = __setattr__ = __enter__ = __exit__ = __add__ = __radd__ = __mul__ = __rmul__ = __mod__ = _raise


# mpcore port: removed: from apex.normalization import FusedLayerNorm (each use is a name of torch now)
# mpcore port: refused: from apex.optimizers import FusedAdam, FusedLAMB, FusedSGD: torch has no LAMB; torch_npu.optim.NpuFusedLamb is another one, which was not compared
FusedLAMB = _mpcore_refused("from apex.optimizers import FusedAdam, FusedLAMB, FusedSGD: torch has no LAMB; torch_npu.optim.NpuFusedLamb is another one, which was not compared")

params = [torch.nn.Parameter(torch.ones(2))]
a = torch.optim.Adam(params, lr=1e-3, weight_decay=0.1)
b = torch.optim.AdamW(params, weight_decay=0.0)
c = torch.optim.SGD(params, lr=0.1, momentum=0.9)
d = FusedLAMB(params, lr=1e-3)
norm = torch.nn.LayerNorm(8, eps=1e-6)

import torch
import torch_npu
from torch_npu.npu.amp import GradScaler


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


a = torch.npu.amp.GradScaler(init_scale=2.0**14, growth_factor=2.0, backoff_factor=0.5, growth_interval=500, enabled=True)
b = GradScaler(init_scale=1024.0, growth_interval=100)
c = GradScaler(enabled=False)
d = torch.npu.amp.GradScaler(init_scale=8.0)
options = {"init_scale": 4.0}
e = torch.npu.amp.GradScaler(**options)
values = [4.0]
# mpcore port: refused: torch.cuda.amp.GradScaler: positional arguments behind * have another order on an NPU; write keywords
f = _mpcore_refused("torch.cuda.amp.GradScaler: positional arguments behind * have another order on an NPU; write keywords")()

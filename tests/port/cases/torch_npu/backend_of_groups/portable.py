import torch.distributed as dist
import torch

# mpcore port: keep
try:
    import torch_npu
except ImportError:
    torch_npu = None


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


def start(rank, world):
    dist.init_process_group(backend=_port_backend, rank=rank, world_size=world)
    side = dist.new_group(ranks=[0], backend=_port_backend)
    if (_port_backend != "gloo") and dist.get_backend() == _port_backend:
        return side
    # mpcore port: refused: "cpu:gloo,cuda:nccl": write the string for the device that is there, by hand
    return dist.new_group(backend=_mpcore_refused("'cpu:gloo,cuda:nccl': write the string for the device that is there, by hand"))

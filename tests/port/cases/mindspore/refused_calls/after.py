import mindspore as ms
from mindspore import nn
import mpcore_port_runtime as port


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


def odd(x, weights):
    middle = port.median(x)
    # mpcore port: refused: torch.jit.trace: use ms.jit on the function
    fast = _mpcore_refused("torch.jit.trace: use ms.jit on the function")(nn.Dense(2, 2), x)
    # mpcore port: refused: x.t_: in-place operations change nothing in MindSpore's eager mode on CPU, and another name may hold this tensor; write x = x.t(...), or port.put(x, ...) of a Parameter
    _mpcore_refused("x.t_: in-place operations change nothing in MindSpore's eager mode on CPU, and another name may hold this tensor; write x = x.t(...), or port.put(x, ...) of a Parameter")()
    # mpcore port: refused: nn.Softmin: `dim` of torch.nn.Softmin: torch guesses the axis from the rank of the input; write dim=
    pooled = _mpcore_refused("nn.Softmin: `dim` of torch.nn.Softmin: torch guesses the axis from the rank of the input; write dim=")()(x)
    return middle, fast, pooled

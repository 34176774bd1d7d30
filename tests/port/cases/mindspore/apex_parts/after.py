import mindspore as ms
import mpcore_port_runtime as port
from mindspore import nn


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


def build(model, args):
    model.norm = nn.LayerNorm((8,), epsilon=1e-6)
    model = port.convert_sync_batchnorm(model)
    model = port.convert_sync_batchnorm(model)
    a = port.AdamW(model.trainable_params(), 1e-3, weight_decay=0.0)
    # mpcore port: refused: FusedAdam: `adam_w_mode` of apex.optimizers.FusedAdam: write torch.optim.Adam, which decays as it does
    b = _mpcore_refused("FusedAdam: `adam_w_mode` of apex.optimizers.FusedAdam: write torch.optim.Adam, which decays as it does")(port.parameters(model), adam_w_mode=False)
    c = port.SGD(model.trainable_params(), lr=0.1, momentum=0.9)
    d = port.sign_and_layers.FusedLAMB(model.trainable_params(), lr=1e-3)
    return port.data_parallel(model), a, b, c, d

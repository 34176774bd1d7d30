import mindspore as ms
from mindspore import ops
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


train = port.vision.Compose(
    [
        port.vision.Resize(256, interpolation='bicubic'),
        port.vision.RandomCrop(32, padding=4),
        port.vision.RandomHorizontalFlip(),
        port.vision.ToTensor(),
        port.vision.Normalize((0.5,), (0.25,)),
    ]
)
data = port.pictures.MNIST("data", train=True, download=True, transform=train)
more = port.pictures.ImageFolder("pictures", transform=port.vision.ToTensor())
loader = port.DataLoader(data, 64, True, drop_last=True)
net = port.networks.resnet50(weights=None)
grid = port.pictures.make_grid(ops.zeros((4, 3, 8, 8)))
# mpcore port: refused: v2.ScaleJitter: not ported: use mindspore.dataset.vision on PIL pictures
jitter = _mpcore_refused("v2.ScaleJitter: not ported: use mindspore.dataset.vision on PIL pictures")(0.1)

import torch


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


# mpcore port: refused: import transformer_engine: kernels for CUDA; use torch.nn
transformer_engine = _mpcore_refused("import transformer_engine: kernels for CUDA; use torch.nn")
# mpcore port: refused: from nvidia.dali import pipeline_def, fn: decodes on CUDA; use torchvision transforms
pipeline_def = _mpcore_refused("from nvidia.dali import pipeline_def, fn: decodes on CUDA; use torchvision transforms")
fn = _mpcore_refused("from nvidia.dali import pipeline_def, fn: decodes on CUDA; use torchvision transforms")

try:
    import xformers.ops
except ImportError:
    xformers = None


def layer(size):
    return transformer_engine.pytorch.Linear(size, size)

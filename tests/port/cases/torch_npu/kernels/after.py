import torch
import mpcore_compat.torch_scatter as torch_scatter
import mpcore_compat.xformers.ops as xops
# mpcore port: refused: from flash_attn import flash_attn_func as flash, flash_attn_with_kvcache: use torch.nn.functional.scaled_dot_product_attention, or torch_npu.npu_fusion_attention
from mpcore_compat.flash_attn import flash_attn_func as flash


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


flash_attn_with_kvcache = _mpcore_refused("from flash_attn import flash_attn_func as flash, flash_attn_with_kvcache: use torch.nn.functional.scaled_dot_product_attention, or torch_npu.npu_fusion_attention")


def attend(q, k, v, rows):
    near = torch_scatter.scatter_sum(k, rows, dim=1)
    seen = xops.memory_efficient_attention(q, near, v, attn_bias=xops.LowerTriangularMask())
    return seen + flash(q, k, v, causal=True)


def cached(q, k):
    # mpcore port: refused: xops.cross_entropy: use torch.nn.functional.scaled_dot_product_attention
    return flash_attn_with_kvcache(q, k), _mpcore_refused("xops.cross_entropy: use torch.nn.functional.scaled_dot_product_attention")(q, k)

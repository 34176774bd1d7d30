"""What training scripts take of xformers, by torch's own operations.

``memory_efficient_attention`` and its masks, and ``SwiGLU`` are here; kernels of xformers were not
run beside them. Attention is ``torch.nn.functional.scaled_dot_product_attention``, whose rounding
is another one.

Source: xformers 0.0.28, ``xformers/ops/fmha/__init__.py``, ``fmha/attn_bias.py``,
``ops/swiglu_op.py`` and ``ops/unbind.py``.
"""

from mpcore_compat.xformers import ops

__all__ = ["ops"]

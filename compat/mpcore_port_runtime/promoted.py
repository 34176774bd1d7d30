"""Functions whose values are no whole numbers, of tensors of whole numbers: float32, as in torch.

MindSpore has no kernels for them on CPU (mindspore 2.10.0). Graphs of ``ms.jit`` hold methods of
tensors themselves, and leave those alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mindspore as ms
from mindspore import Tensor, mint, ops

if TYPE_CHECKING:
    from collections.abc import Callable

__all__: list[str] = []

_WHOLE = frozenset((ms.bool_, ms.uint8, ms.int8, ms.int16, ms.int32, ms.int64))
_NAMES = """
    acos acosh arccos arccosh arcsin arcsinh arctan arctanh asin asinh atan atanh cos cosh erf erfc
    erfinv exp exp2 expm1 log log10 log1p log2 rsqrt sigmoid sin sinc sinh sqrt tan tanh
""".split()  # noqa: SIM905  # a list of words is read


def _promoted(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return it for tensors of whole numbers, too."""

    def taken(input: Any, *args: Any, **settings: Any) -> Any:
        if isinstance(input, Tensor) and input.dtype in _WHOLE:
            return function(input.astype(ms.float32), *args, **settings)
        return function(input, *args, **settings)

    return taken


for _home in (Tensor, mint, ops):
    for _name in _NAMES:
        if hasattr(_home, _name):
            setattr(_home, _name, _promoted(getattr(_home, _name)))

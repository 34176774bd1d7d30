"""What layers keep of what they were given, by torch's names: ``pool.output_size == 1``.

MindSpore's hand it on to their operation, which has it otherwise: one size for each axis, ``axis``
for ``dim`` (mindspore/nn/layer/pooling.py and activation.py, 2.10.0).
"""

from __future__ import annotations

from functools import wraps
from inspect import signature
from typing import TYPE_CHECKING, Any

from mindspore import nn

if TYPE_CHECKING:
    from collections.abc import Callable

__all__: list[str] = []


def _keeping(make: Callable[..., None], word: str, name: str) -> Callable[..., None]:
    """Return an ``__init__`` that keeps what is given for ``word`` as ``name``."""
    asked = signature(make)

    @wraps(make)
    def made(self: Any, *args: Any, **settings: Any) -> None:
        make(self, *args, **settings)
        given = asked.bind(self, *args, **settings)
        given.apply_defaults()
        setattr(self, name, given.arguments[word])

    return made


_WORDS = {
    nn.AdaptiveAvgPool2d: ("output_size", "output_size"),
    nn.Softmax: ("axis", "dim"),
    nn.LogSoftmax: ("axis", "dim"),
}
for _layer, (_word, _name) in _WORDS.items():
    if _word in signature(_layer.__init__).parameters:
        _layer.__init__ = _keeping(_layer.__init__, _word, _name)

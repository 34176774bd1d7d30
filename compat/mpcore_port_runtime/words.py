"""What tokenizers and processors give for ``return_tensors="pt"``, as tensors of MindSpore.

Source: BatchEncoding and BatchFeature, transformers 4.57.1 (tokenization_utils_base.py,
feature_extraction_utils.py). They are asked for arrays of numpy; their own methods stay.
"""

from __future__ import annotations

from collections import UserDict
from collections.abc import Mapping
from typing import Any

import mindspore as ms
import numpy as np

__all__ = ["of_words"]


class _Words(UserDict[str, Any]):
    """Tensors by name, and by attribute; what else is asked is the package's own."""

    def __init__(self, given: Any) -> None:
        super().__init__({name: _tensor(value) for name, value in given.items()})
        self._given = given

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("data", "_given"):
            raise AttributeError(name)
        return self.data[name] if name in self.data else getattr(self._given, name)

    def __getitem__(self, key: Any) -> Any:
        return self.data[key] if isinstance(key, str) else self._given[key]

    def to(self, *args: Any, **kwargs: Any) -> _Words:
        """Give back itself; tensors of floats in another dtype, where one is named."""
        kinds = [one for one in (*args, *kwargs.values()) if type(one) is type(ms.float32)]
        for kind in kinds:
            for name, value in self.data.items():
                if isinstance(value, ms.Tensor) and value.is_floating_point():
                    self.data[name] = value.astype(kind)
        return self

    def cuda(self, *_: Any) -> _Words:
        """Give back itself: a process has one device."""
        return self


def of_words(given: Any) -> Any:
    """Return what a tokenizer or a processor made as arrays, as tensors.

    Args:
        given: an array, or a mapping of them as BatchEncoding is; anything else stays.
    """
    if isinstance(given, np.ndarray):
        return _tensor(given)
    return _Words(given) if isinstance(given, Mapping) else given


def _tensor(value: Any) -> Any:
    plain = isinstance(value, np.ndarray) and value.dtype.kind in "biuf"
    return ms.Tensor(value) if plain else value

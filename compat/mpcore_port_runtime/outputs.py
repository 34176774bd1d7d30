"""What networks of transformers and diffusers give: fields that are read by name, key and place.

Source: transformers 5.23.0 ``src/transformers/utils/generic.py`` (``ModelOutput``), diffusers 0.31
``src/diffusers/utils/outputs.py`` (``BaseOutput``): a field that is None is left out of keys,
items and places. A first field that is a dictionary, or a list of pairs, is not taken apart.
"""

from __future__ import annotations

import os
import re
from collections import OrderedDict
from dataclasses import fields
from typing import Any

__all__ = ["BaseOutput", "ModelOutput", "get_last_checkpoint"]


class ModelOutput(OrderedDict[Any, Any]):
    """The base of dataclasses of fields.

    Raises:
        TypeError: an entry is to be removed, or it is updated as a dictionary.
    """

    def __post_init__(self) -> None:
        """Enter the fields that are not None."""
        for field in fields(self):  # type: ignore[arg-type]  # those derived are dataclasses
            value = getattr(self, field.name)
            if value is not None:
                OrderedDict.__setitem__(self, field.name, value)

    def _kept(self, *_: Any, **__: Any) -> Any:
        msg = f"entries of {type(self).__name__} stay: set its fields"
        raise TypeError(msg)

    __delitem__ = setdefault = pop = update = _kept

    def __getitem__(self, key: Any) -> Any:
        """Return a field by its name, or those that are not None by their places."""
        return OrderedDict.__getitem__(self, key) if isinstance(key, str) else self.to_tuple()[key]

    def __setattr__(self, name: str, value: Any) -> None:
        """Set a field, and its entry."""
        if value is not None and any(field.name == name for field in fields(self)):  # type: ignore[arg-type]
            OrderedDict.__setitem__(self, name, value)
        object.__setattr__(self, name, value)

    def __setitem__(self, key: Any, value: Any) -> None:
        """Set an entry, and its field."""
        OrderedDict.__setitem__(self, key, value)
        object.__setattr__(self, key, value)

    def to_tuple(self) -> tuple[Any, ...]:
        """Return the fields that are not None."""
        return tuple(self[key] for key in self.keys())  # its items are fields


class BaseOutput(ModelOutput):
    """``ModelOutput`` by the name that diffusers has for it."""


_CHECKPOINT = re.compile(r"checkpoint-(\d+)")


def get_last_checkpoint(folder: str) -> str | None:
    """Return the ``checkpoint-N`` of a folder with the greatest number, or None."""
    found = [
        (int(match[1]), name)
        for name in os.listdir(folder)
        if (match := _CHECKPOINT.fullmatch(name)) and os.path.isdir(os.path.join(folder, name))
    ]
    return os.path.join(folder, max(found)[1]) if found else None

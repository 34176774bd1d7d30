"""What a module was made with, as Lightning keeps it: ``save_hyperparameters`` and ``hparams``.

Source: lightning 2.6.6, ``pytorch/core/mixins/hparams_mixin.py``, ``pytorch/utilities/parsing.py``.
"""

from __future__ import annotations

import copy
import inspect
from argparse import Namespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

__all__ = ["AttributeDict", "Hyperparameters"]


class AttributeDict(dict[str, Any]):
    """A dictionary whose values are attributes, too."""

    def __getattr__(self, key: str) -> Any:
        """Return a value by its name."""
        try:
            return self[key]
        except KeyError as exc:
            msg = f'Missing attribute "{key}"'
            raise AttributeError(msg) from exc

    def __setattr__(self, key: str, value: Any) -> None:
        """Set a value by its name."""
        self[key] = value

    def __deepcopy__(self, memo: Any) -> AttributeDict:
        """Return a copy whose values are copies."""
        return AttributeDict({key: copy.deepcopy(value, memo) for key, value in self.items()})


class Hyperparameters:
    """The part of modules and data modules that remembers arguments."""

    def save_hyperparameters(
        self,
        *args: Any,
        ignore: Sequence[str] | str | None = None,
        frame: FrameType | None = None,
        logger: bool = True,
    ) -> None:
        """Keep the arguments of ``__init__``, those that are named, or what is handed over."""
        if len(args) == 1 and not isinstance(args[0], str) and not args[0]:
            return
        here = frame or inspect.currentframe().f_back  # type: ignore[union-attr]  # CPython
        given = _arguments_of(here, type(self))
        left = [ignore] if isinstance(ignore, str) else list(ignore or ())
        given = {name: value for name, value in given.items() if name not in left}
        whole = [one for one in args if not isinstance(one, str)]
        if not args:
            self._keep(given)
        elif len(whole) == 1:
            self._keep(whole[0])
        else:
            self._keep({name: given[name] for name in args})
        self._held()["logged"] = logger

    def _held(self) -> dict[str, Any]:
        return vars(self).setdefault("_mpcore_hparams", {})  # type: ignore[no-any-return]

    def _keep(self, given: Any) -> None:
        if isinstance(given, Namespace):
            given = vars(given)
        if not isinstance(given, dict):
            msg = f"`save_hyperparameters` must be given a dictionary or a Namespace, got {given!r}"
            raise TypeError(msg)
        known = self._held().setdefault("values", AttributeDict())
        known.update(given)
        self._held()["first"] = copy.copy(known)

    @property
    def hparams(self) -> Any:
        """What was kept; an empty one before."""
        return self._held().setdefault("values", AttributeDict())

    @hparams.setter
    def hparams(self, given: Any) -> None:
        values = vars(given) if isinstance(given, Namespace) else given
        self._held()["values"] = AttributeDict(values) if isinstance(values, dict) else values

    @property
    def hparams_initial(self) -> Any:
        """What was kept, as it was then."""
        return copy.copy(self._held().get("first", AttributeDict()))


def _arguments_of(frame: Any, kind: type) -> dict[str, Any]:
    """Return the arguments of the ``__init__`` that runs, and of those of its heirs around it."""
    merged: dict[str, Any] = {}
    inside = False
    while frame is not None:
        one = _of_one(frame, kind)
        if one is None and inside:
            break
        if one is not None:
            merged |= one
            inside = True
        frame = frame.f_back
    return merged


def _of_one(frame: Any, kind: type) -> dict[str, Any] | None:
    local = frame.f_locals
    if "__class__" not in local or frame.f_code.co_name != "__init__":
        return None
    own, *names = inspect.signature(local["__class__"].__init__).parameters.values()
    if not isinstance(local.get("self"), kind) and not issubclass(kind, local["__class__"]):
        return None
    del own
    values: dict[str, Any] = {}
    for one in names:
        if one.kind is inspect.Parameter.VAR_KEYWORD:
            values |= local[one.name]
        elif one.kind is not inspect.Parameter.VAR_POSITIONAL and one.name in local:
            values[one.name] = local[one.name]
    return values

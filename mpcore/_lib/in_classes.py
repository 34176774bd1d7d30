"""Put something in the place of a method, in classes that are not ours and in all below them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["InClasses"]

_MADE = "__init_subclass__"


class InClasses:
    """What stands in the place of one method, wherever a class below ``base`` defines it.

    Classes that are made while it stands get it too. Those that inherit the method have it from
    the class above. Instances, and what ``super()`` means, stay as they are.
    """

    def __init__(
        self,
        base: type,
        name: str,
        instead: Callable[[Any], Any],
        but: Callable[[type], bool] = lambda kind: False,
    ) -> None:
        """Change nothing yet.

        Args:
            base: the class at the top.
            name: of the method.
            instead: of what stood in a class, returns what shall stand there.
            but: which classes keep their own.
        """
        self._base, self._name, self._instead, self._but = base, name, instead, but
        self._before: dict[type, Any] = {}
        self._made_before: Any = None

    def begin(self) -> None:
        """Put it there; a second call does nothing."""
        if self._before:
            return
        for kind in _with_all_below(self._base):
            self._replace(kind)
        self._made_before = vars(self._base).get(_MADE)
        setattr(self._base, _MADE, classmethod(self._made))

    def end(self) -> None:
        """Put back what stood there; a second call does nothing."""
        if not self._before:
            return
        for kind, before in self._before.items():
            setattr(kind, self._name, before)
        self._before.clear()
        if self._made_before is None:
            delattr(self._base, _MADE)
        else:
            setattr(self._base, _MADE, self._made_before)

    def _replace(self, kind: type) -> None:
        own = vars(kind).get(self._name)
        if own is not None and kind not in self._before and not self._but(kind):
            self._before[kind] = own
            setattr(kind, self._name, self._instead(own))

    def _made(self, kind: type[Any], /, **given: Any) -> None:
        if self._made_before is None:
            super(self._base, kind).__init_subclass__(**given)  # type: ignore[arg-type]  # a class
        else:
            self._made_before.__get__(None, kind)(**given)
        self._replace(kind)


def _with_all_below(kind: type[Any]) -> Iterator[type[Any]]:
    yield kind
    for below in kind.__subclasses__():
        yield from _with_all_below(below)

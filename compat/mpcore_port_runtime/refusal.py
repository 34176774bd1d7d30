"""What stands for a package that a port cannot use, and what warns."""

from __future__ import annotations

from typing import Any, NoReturn

__all__ = ["PortWarning", "refused"]


class PortWarning(UserWarning):
    """A port does something in another way than the script asked for."""


class _Refused:
    """Raises, with the reason, as soon as it is used."""

    def __init__(self, reason: str) -> None:
        self.__dict__["reason"] = reason

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise NotImplementedError(self.__dict__["reason"])

    def __call__(self, *_: Any, **__: Any) -> NoReturn:
        """Raise NotImplementedError."""
        raise NotImplementedError(self.__dict__["reason"])


def refused(reason: str) -> Any:
    """Return what raises NotImplementedError with ``reason`` when it is called or looked into."""
    return _Refused(reason)

"""What stands for a package that a port cannot use, and what warns."""

from __future__ import annotations

from typing import Any, NoReturn

__all__ = ["PortWarning", "refused"]


class PortWarning(UserWarning):
    """A port does something in another way than the script asked for."""


def only(name: str, value: Any, *allowed: Any) -> None:
    """Raise where an argument has a value that MindSpore's layer has no equal of."""
    if value not in allowed:
        msg = f"`{name}` must be {allowed[0]!r} in MindSpore's layer, got {value!r}"
        raise NotImplementedError(msg)


class _Refused:
    """Raises, with the reason, as soon as it is used."""

    def __init__(self, reason: str, has_instances: bool = True, kernels: bool = False) -> None:
        self.__dict__.update(reason=reason, has_instances=has_instances, kernels=kernels)

    def _raise(self, *_: Any, **__: Any) -> NoReturn:
        raise NotImplementedError(self.__dict__["reason"])

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in ("__name__", "__qualname__"):
            raise AttributeError(name)
        if self.__dict__["kernels"] and name in _MAKE_KERNELS:
            return _Kernels(self.__dict__["reason"])
        return self._raise()

    def __instancecheck__(self, _: Any) -> bool:
        """Return False where nothing can be an instance: no class of that package is ported."""
        if self.__dict__["has_instances"]:
            self._raise()
        return False

    __subclasscheck__ = __instancecheck__

    def __mro_entries__(self, _: tuple[object, ...]) -> tuple[type]:
        """Let a class be made of it: making an instance raises."""
        return (type("refused", (), {"__new__": self._raise}),)


_MAKE_KERNELS = ("jit", "autotune", "heuristics", "Config", "constexpr")


class _Kernels:
    """What a kernel is made with: a file that has one is imported, and raises at its launch."""

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def __call__(self, *args: Any, **settings: Any) -> Any:
        """Return the kernel of a function or kernel; of settings what is put on top of one."""
        if len(args) == 1 and not settings and (callable(args[0]) or _is_kernel(args[0])):
            return _Refused(self.reason)
        return self


def _is_kernel(one: Any) -> bool:
    return type(one) is _Refused


for _name in (  # what a value can be asked, so that no answer is a wrong one
    *("call", "bool", "eq", "ne", "lt", "le", "gt", "ge", "hash", "str", "repr", "format"),
    *("int", "float", "index", "len", "iter", "contains", "getitem", "setattr", "enter", "exit"),
    *("add", "radd", "mul", "rmul", "mod"),
):
    setattr(_Refused, f"__{_name}__", _Refused._raise)


def refused(reason: str, has_instances: bool = True, kernels: bool = False) -> Any:
    """Return what raises NotImplementedError with ``reason`` when it is called or looked into.

    Without ``has_instances`` it may be asked whether something is an instance: nothing is.
    With ``kernels`` functions may be made to kernels by it, which raise when they are launched.
    """
    return _Refused(reason, has_instances, kernels)

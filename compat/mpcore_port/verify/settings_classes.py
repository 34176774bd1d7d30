"""Classes of settings that a script, or a module beside it, writes: what they lack, names say.

``HParams`` and ``AttrDict`` hold what a file gives them that is not there, or what is made by lines
that a step leaves out.
"""

from __future__ import annotations

import builtins
import re
import sys
from typing import TYPE_CHECKING, Any

from mpcore_port.verify.asked import is_of_package, only_asks
from mpcore_port.verify.synthetic import parts_of

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["install"]

_NAMES = re.compile(
    r"_*(h_?params?|hyper_?param(eter)?s?|(attr(ibute)?|easy|dot|ad|config|param)_?dict|config(uration)?"
    r"|cfg|conf|settings|options?|opts?|args|arguments|namespace|params)",
    re.I,
)
_BUILD = builtins.__build_class__


def install() -> None:
    """Let such classes, if made from now on in this process, have what they are asked for."""
    builtins.__build_class__ = _build  # type: ignore[assignment]  # words of any class


def _build(body: Any, name: str, *bases: Any, **kwargs: Any) -> Any:
    made = _BUILD(body, name, *bases, **kwargs)
    file = getattr(getattr(body, "__code__", None), "co_filename", "")
    if _is_of_settings(made, name, file):
        own = getattr(made, "__getattr__", None)
        made.__getattr__ = _or_known(own, "hps" if "hp" in name.lower() else "config")
    return made


def _is_of_settings(made: Any, name: str, file: str) -> bool:
    if not isinstance(made, type) or _NAMES.fullmatch(name) is None:
        return False
    if is_of_package(file) or hasattr(made, "__dataclass_fields__"):
        return False
    return not hasattr(made, "_member_map_")


def _or_known(own: Callable[[Any, str], Any] | None, role: str) -> Callable[[Any, str], Any]:
    asked = own or _lacks

    def ask(one: Any, name: str) -> Any:
        try:
            return asked(one, name)
        except (AttributeError, KeyError):
            if name.startswith("_") or only_asks(sys._getframe(1)):
                raise
        return parts_of(role)(name)

    return ask


def _lacks(one: Any, name: str) -> Any:
    msg = f"{type(one).__name__!r} object has no attribute {name!r}"
    raise AttributeError(msg)

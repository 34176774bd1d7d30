"""NumPy's words that functions of torch take as well: ``torch.argmax(x, axis=1)``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.mindspore.checked import signature
from mpcore_port.mindspore.rules.place import PortRule

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["AliasRule"]

_ALIASES = {"axis": "dim", "keepdims": "keepdim", "x": "input", "x2": "other"}


class AliasRule(PortRule):
    """``axis`` of a function of torch is ``dim``."""

    name = "alias"
    reason = "torch takes NumPy's word for the argument, too"
    visits = (cst.Call,)

    def idle(self, at: At) -> bool:
        """Whether no such word is given, or the script is a port."""
        return super().idle(at) or not any(f"{word}=" in at.code for word in _spaced())

    def act(self, old: cst.Call, new: cst.Call, at: At) -> Any:
        """Give one call torch's own words."""
        name = at.names.called(old) or ""
        if not name.startswith("torch.") or name.count(".") != 1:
            return None
        sign = signature(name)
        if sign is None:
            return None
        takes = {param.name for param in sign.params}
        args = [_renamed(arg, takes) for arg in new.args]
        if all(one is other for one, other in zip(args, new.args, strict=True)):
            return None
        made = new.with_changes(args=args)
        at.note(self, old, made)
        return made


def _spaced() -> list[str]:
    return [spelled for word in _ALIASES for spelled in (word, f"{word} ")]


def _renamed(arg: cst.Arg, takes: set[str]) -> cst.Arg:
    word = arg.keyword.value if arg.keyword else ""
    own = _ALIASES.get(word, "")
    if not own or word in takes or own not in takes:
        return arg
    return arg.with_changes(keyword=cst.Name(own))

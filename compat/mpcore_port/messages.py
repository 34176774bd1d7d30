"""Words about a package that a port has taken out."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.names import string_of
from mpcore_port.rule import Rule

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["PackageMessages"]

_ABSENT = re.compile(r"\bapex\b", re.I)
_ASKS = re.compile(r"install|github|not (found|available|there|import)|no module|missing", re.I)
_SAID = "mpcore is needed: pip install mpcore"


class PackageMessages(Rule):
    """``"Please install apex ..."`` asks for what the port needs in its place."""

    name = "messages"
    reason = "the package that it asks for is not used any more"
    visits = (cst.SimpleString,)

    def leave(self, old: Any, new: Any, at: At) -> Any:
        """Replace one message."""
        text = string_of(old) or ""
        if not _ABSENT.search(text) or not _ASKS.search(text):
            return None
        if isinstance(at.names.parents.get(old), cst.Expr):
            return None
        if not any(name.partition(".")[0] == "apex" for name, _ in at.names.imports):
            return None
        quote = old.quote
        changed = new.with_changes(value=f"{quote}{_SAID}{quote}")
        at.note(self, old, changed, "changed", "", "what the script says")
        return changed

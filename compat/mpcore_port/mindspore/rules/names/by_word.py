"""``getattr(torch.cuda.amp, "autocast")``: a name of torch that is asked for by a word."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.mindspore.rules.place import PortRule, by_name
from mpcore_port.names import code_of, string_of
from mpcore_port.torch_names import EXPORTS

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["WordRule"]

_ALONE, _BOTH = 2, 3
"""How many arguments getattr has, without and with what it gives where there is no such name."""


class WordRule(PortRule):
    """A word that torch's module is asked for becomes the name; one without an equal the default.

    What a port has not, a script says itself what it does then, as with ``hasattr``.
    """

    name = "word"
    reason = "the name that the word says"
    visits = (cst.Call,)

    def act(self, old: cst.Call, new: cst.Call, at: At) -> Any:
        """Write out one name."""
        if code_of(old.func) != "getattr" or len(old.args) not in (_ALONE, _BOTH):
            return None
        holder, word = old.args[0].value, string_of(old.args[1].value)
        module = at.names.qualified(holder)
        if module not in EXPORTS or at.names.imported(holder) is None:
            return None
        if not word or not word.isidentifier() or any(arg.star for arg in old.args):
            return None
        row = by_name(f"{module}.{word}", at.options)
        has = row is not None and not row.refuse_all
        if has or len(old.args) == _ALONE:
            made: Any = cst.Attribute(new.args[0].value, cst.Name(word))
        else:
            made = new.args[2].value
        at.note(self, old, made)
        return made

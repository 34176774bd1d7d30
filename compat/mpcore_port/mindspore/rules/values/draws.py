"""What a script draws from numpy's stream, which layers of MindSpore draw from when they are made.

The runtime of ports keeps them apart where it is imported; it must be there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.mindspore.rules.place import PortRule, need

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["DrawRule", "draws"]

_OF_NUMPY = "numpy.random."
_APART = ("default_rng", "RandomState", "Generator", "SeedSequence", "PCG64", "get_state")


class DrawRule(PortRule):
    """A port that draws from numpy imports the runtime: its layers leave numpy's stream alone."""

    name = "draws"
    reason = "layers draw from numpy's stream as they are made: these are other numbers"
    visits = (cst.Call,)

    def act(self, old: cst.Call, new: cst.Call, at: At) -> Any:
        """Look at one call."""
        if not draws(old, at) or not any(name.startswith("torch") for name, _ in at.names.imports):
            return None
        if at.options.plain:
            at.unproven(self, old, self.reason)
            return None
        need(at, "port")
        at.note(self, old, new, reason=_KEPT)
        return new


_KEPT = "with the runtime there, layers that are made leave numpy's stream alone, as torch's"


def draws(call: cst.Call, at: At) -> bool:
    """Return whether a call sets numpy's global stream, or draws from it."""
    name = at.names.called(call) or ""
    return name.startswith(_OF_NUMPY) and name.removeprefix(_OF_NUMPY) not in _APART

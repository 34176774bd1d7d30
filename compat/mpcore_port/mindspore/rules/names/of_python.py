"""Python's own modules and types by names of torch: ``torch.math.log``, ``string_classes``."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.mindspore.rules.place import PortRule

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["ForkRule", "PythonRule"]

_MATH = "torch.math."
_SIX = {
    "torch._six.container_abcs": "collections.abc",
    "torch._six.int_classes": "int",
    "torch._six.string_classes": "(str, bytes)",
}
"""What torch up to 1.12 had for Python 2 and 3, in torch 1.10's words."""


class PythonRule(PortRule):
    """A name of torch for what is Python's becomes Python's."""

    name = "of Python"
    reason = "torch's name for what Python has itself"
    visits = (cst.Attribute, cst.Name)

    def act(self, old: Any, new: Any, at: At) -> Any:
        """Replace one name."""
        if not at.names.is_reference(old) and not isinstance(
            at.names.parents.get(old), cst.Attribute
        ):
            return None
        if isinstance(at.names.parents.get(old), cst.Attribute) and _is_part(old, at):
            return None
        name = at.names.qualified(old) or ""
        if at.names.imported(old) is None:
            return None
        made = self._found(name, at)
        if made is None:
            return None
        at.note(self, old, made)
        return made

    def _found(self, name: str, at: At) -> Any:
        if name.startswith(_MATH) and hasattr(math, name.removeprefix(_MATH)):
            return cst.parse_expression(at.name_of(f"math.{name.removeprefix(_MATH)}"))
        if name == "torch._six.container_abcs":
            return cst.parse_expression(at.name_of(_SIX[name]))
        return cst.parse_expression(_SIX[name]) if name in _SIX else None


_FORKS = {
    "concurrent.futures.ProcessPoolExecutor",
    "concurrent.futures.process.ProcessPoolExecutor",
    "multiprocessing.Pool",
    "multiprocessing.Process",
}
_WORDS = ("ProcessPoolExecutor", "multiprocessing")
_FORKED = (
    "its processes are forked: an operation of MindSpore hangs in them once this one has run any; "
    'hand them arrays, or make them spawned, by multiprocessing.get_context("spawn")'
)


class ForkRule(PortRule):
    """Processes that Python forks are named: no operation of MindSpore comes back in them."""

    name = "processes"
    reason = "processes of Python's own"
    visits = (cst.Call,)

    def idle(self, at: At) -> bool:
        """Whether nothing makes processes, or the script is a port."""
        return super().idle(at) or not any(word in at.code for word in _WORDS)

    def act(self, old: cst.Call, new: Any, at: At) -> Any:
        """Name one call that makes such processes."""
        if at.names.called(old) not in _FORKS or not at.scan.torch_names:
            return None
        if any(arg.keyword is not None and arg.keyword.value == "mp_context" for arg in old.args):
            return None
        at.unproven(self, old, _FORKED)
        return None


def _is_part(node: cst.CSTNode, at: At) -> bool:
    """Return whether a name is the last word of a longer one, not what that begins with."""
    parent: Any = at.names.parents.get(node)
    return parent.attr is node

"""What ``hasattr(torch.nn.functional, "scaled_dot_product_attention")`` is in a port.

So is ``"sinc" in dir(torch)``.

The port has what a fact is about; of what it has not, a script says itself what it does then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.mindspore.rules.place import by_name
from mpcore_port.mindspore.tables import FILES, table
from mpcore_port.names import code_of, string_of
from mpcore_port.torch_names import EXPORTS

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["has_equal", "lists_equal"]


def has_equal(node: cst.Call, at: At) -> bool | None:
    """Return whether a port has what a module of torch is asked for; None: it is not asked."""
    if code_of(node.func) != "hasattr" or len(node.args) != 2:
        return None
    return _has(node.args[0].value, node.args[1].value, at)


def lists_equal(node: cst.Comparison, at: At) -> bool | None:
    """Return what ``"sinc" in dir(torch)`` is in a port, or ``not in``; None: it is not that."""
    target = node.comparisons[0]
    listed = target.comparator
    if len(node.comparisons) != 1 or not isinstance(target.operator, (cst.In, cst.NotIn)):
        return None
    if not isinstance(listed, cst.Call) or code_of(listed.func) != "dir" or len(listed.args) != 1:
        return None
    there = _has(listed.args[0].value, node.left, at)
    return there if there is None or isinstance(target.operator, cst.In) else not there


def _has(holder: cst.BaseExpression, asked: cst.BaseExpression, at: At) -> bool | None:
    module = at.names.qualified(holder)
    word: Any = string_of(asked)
    if module not in EXPORTS or module == "torch.Tensor" or not word or word.startswith("__"):
        return None
    if module.startswith("torch.") and not at.names.imported(holder):
        return None
    name = f"{module}.{word}"
    row = by_name(name, at.options)
    if row is not None:
        return not row.refuse_all
    if name in EXPORTS:
        return any(one.startswith(f"{name}.") for file in FILES for one in table(file))
    return False

"""What ``hasattr(torch.nn.functional, "scaled_dot_product_attention")`` is in a port.

The port has what a fact is about; of what it has not, a script says itself what it does then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mpcore_port.mindspore.rules.place import by_name
from mpcore_port.mindspore.tables import FILES, table
from mpcore_port.names import code_of, string_of
from mpcore_port.torch_names import EXPORTS

if TYPE_CHECKING:
    import libcst as cst

    from mpcore_port.rule import At

__all__ = ["has_equal"]


def has_equal(node: cst.Call, at: At) -> bool | None:
    """Return whether a port has what a module of torch is asked for; None: it is not asked."""
    if code_of(node.func) != "hasattr" or len(node.args) != 2:
        return None
    module = at.names.qualified(node.args[0].value)
    word: Any = string_of(node.args[1].value)
    if module not in EXPORTS or module == "torch.Tensor" or not word or word.startswith("__"):
        return None
    if module.startswith("torch.") and not at.names.imported(node.args[0].value):
        return None
    name = f"{module}.{word}"
    row = by_name(name, at.options)
    if row is not None:
        return not row.refuse_all
    if name in EXPORTS:
        return any(one.startswith(f"{name}.") for file in FILES for one in table(file))
    return False

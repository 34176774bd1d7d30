"""What originals ask of torch as it was before, for their steps to run beside their ports.

Until torch 0.3 a loss was a tensor of one number with one dimension, and ``loss.data[0]`` a number
of Python; ports to MindSpore read it so. Adam took whole numbers for its ``betas`` for longer.
"""

from __future__ import annotations

import ast
import functools
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mpcore_port.verify.module import Module

__all__ = [
    "AS_BEFORE",
    "WHOLE_BETAS",
    "has_whole_betas",
    "install",
    "is_of_old_torch",
    "take_betas",
]

AS_BEFORE = "torch before 0.4: x[0] of one number is that number; with torch of today it raises"
WHOLE_BETAS = "torch of before: betas may be whole numbers; Adam of torch today raises"
_RAISED = "invalid index of a 0-dim tensor"


def is_of_old_torch(words: str) -> bool:
    """Return whether an error is that of a script which was written for torch before 0.4."""
    return _RAISED in words


def install(wanted: bool) -> None:
    """Let the first of one number be that number, in this process, if that is ``wanted``."""
    torch = sys.modules.get("torch")
    if not wanted or torch is None or "mindspore" in sys.modules:
        return
    original = torch.Tensor.__getitem__

    def first(tensor: Any, index: Any) -> Any:
        if type(index) is int and not index and not tensor.dim():
            return tensor if tensor.requires_grad else tensor.item()
        return original(tensor, index)

    torch.Tensor.__getitem__ = first  # this process alone


def has_whole_betas(module: Module) -> bool:
    """Return whether a script gives an optimizer whole numbers for betas: ``betas=(0, 0.9)``."""
    for node in ast.walk(module.tree):
        if not (isinstance(node, ast.keyword) and node.arg == "betas"):
            continue
        for value in (node.value, *module.values(ast.unparse(node.value))):
            if isinstance(value, (ast.Tuple, ast.List)) and any(map(_is_whole, value.elts)):
                return True
    return False


def _is_whole(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) is int


def take_betas(wanted: bool) -> None:
    """Let Adam and AdamW take whole numbers for betas, in this process, if that is ``wanted``."""
    torch = sys.modules.get("torch")
    if not wanted or torch is None or "mindspore" in sys.modules:
        return
    for kind in (torch.optim.Adam, torch.optim.AdamW):
        kind.__init__ = _with_floats(kind.__init__)  # this process alone


def _with_floats(init: Any) -> Any:
    @functools.wraps(init)
    def begin(optimizer: Any, *args: Any, **kwargs: Any) -> None:
        if isinstance(kwargs.get("betas"), (tuple, list)):
            given = kwargs["betas"]
            kwargs["betas"] = tuple(float(one) if type(one) is int else one for one in given)
        init(optimizer, *args, **kwargs)

    return begin

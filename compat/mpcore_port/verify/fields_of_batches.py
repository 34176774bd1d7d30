"""Which attributes a step reads of a batch that tensors have not: ``batch.images``."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mpcore_port.verify.module import Module

__all__ = ["fields_read", "handed_on"]

_MOST = 12  # fields of one batch
_OF_TENSORS = {
    *("data", "device", "dtype", "grad", "grad_fn", "H", "imag", "is_cpu", "is_cuda", "is_leaf"),
    *("is_npu", "is_sparse", "itemsize", "layout", "mH", "mT", "name", "names", "nbytes", "ndim"),
    *("real", "requires_grad", "shape", "T", "volatile"),
}
"""Attributes of ``torch.Tensor`` of torch 2.9 that are read and not called."""


def fields_read(module: Module, scope: ast.AST, name: str, depth: int = 3) -> list[str]:
    """Return what is read of a name that holds tensors, here or where it is handed to.

    What is called is a method, as ``to`` is; what is set first is no field.

    Args:
        module: the script.
        scope: a loop, or a function.
        name: of a batch, or of a part of one, in it.
        depth: how many functions it is followed into.
    """
    found: dict[str, None] = {}
    stored: dict[str, int] = {}
    nodes = sorted(_attributes(scope, name), key=lambda node: (node.lineno, node.col_offset))
    called = {node.func for node in ast.walk(scope) if isinstance(node, ast.Call)}
    for node in nodes:
        if node in called or node.attr in _OF_TENSORS or node.attr.startswith("_"):
            continue
        if isinstance(node.ctx, ast.Store):
            stored.setdefault(node.attr, node.lineno)
        elif stored.get(node.attr, node.lineno) >= node.lineno:  # x.a = f(x.a) reads it first
            found[node.attr] = None
    if depth:
        for call in (node for node in ast.walk(scope) if isinstance(node, ast.Call)):
            for inner, own in handed_on(module, call, name):
                found |= dict.fromkeys(fields_read(module, inner, own, depth - 1))
    return list(found) if len(found) <= _MOST else []


def handed_on(module: Module, call: ast.Call, name: str) -> Iterator[tuple[ast.AST, str]]:
    """Give the functions that a call hands a name to, each with what it calls it."""
    places = [place for place, arg in enumerate(call.args) if ast.unparse(arg) == name]
    function = module.called(call) if places else None
    if function is not None:
        listed = [one.arg for one in function.args.args if one.arg != "self"]
        yield from ((function, listed[place]) for place in places if place < len(listed))


def _attributes(scope: ast.AST, name: str) -> Iterator[ast.Attribute]:
    for node in ast.walk(scope):
        held = node.value if isinstance(node, ast.Attribute) else None
        if isinstance(node, ast.Attribute) and isinstance(held, ast.Name) and held.id == name:
            yield node

"""Scalers that one branch makes and the other goes without: ``if amp: scaler = GradScaler()``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.names import code_of

if TYPE_CHECKING:
    from mpcore_port.mindspore.rules.losses.planned import Sink
    from mpcore_port.names import Binding
    from mpcore_port.rule import At

__all__ = ["made_in_branch"]


def made_in_branch(sink: Sink, line: cst.CSTNode, at: At) -> str:
    """Return a loss's scaler as code, or None in its place where the branch is not taken.

    Args:
        sink: the backward pass.
        line: what the loss is made of begins there, outside of the branch of its backward pass.
        at: the module.
    """
    root = sink.scaler.partition(".")[0]
    made = at.names.scope(sink.call).find(root) if root else []
    if made and all(_is_made_behind(one, line, at) for one in made):
        return ""  # whose loss it is shows when it goes back
    if not made or not all(_is_one_way(one.node, root, at) for one in made):
        return sink.scaler
    around = list(at.names.ancestors(line))
    inside = list(at.names.ancestors(sink.call))
    ways = [one for one in reversed(inside) if isinstance(one, cst.If) and one not in around]
    tests = [_taken(one, inside, alone=len(ways) == 1) for one in ways]
    return f"{sink.scaler} if {' and '.join(tests)} else None" if tests else sink.scaler


def _is_made_behind(binding: Binding, line: cst.CSTNode, at: At) -> bool:
    """Return whether a name gets its value in the function of a loss, below what it is made of."""
    homes = {at.names.enclosing(one, cst.FunctionDef) for one in (binding.node, line)}
    below = binding.kind != "param" and at.line(binding.node) > at.line(line)
    return below and len(homes) == 1


def _taken(branch: cst.If, inside: list[Any], *, alone: bool) -> str:
    test = code_of(branch.test)
    if branch.body in inside:
        return test if alone else f"({test})"
    return f"not ({test})"


def _is_one_way(node: Any, name: str, at: At) -> bool:
    """Return whether a name is bound in one branch alone."""
    branch = at.names.enclosing(node, cst.If)
    if branch is None or branch.orelse is None:
        return branch is not None
    inside = list(at.names.ancestors(node))
    other: Any = branch.orelse if branch.body in inside else branch.body
    targets = [
        one for one in at.names.by_type[cst.AssignTarget] if other in at.names.ancestors(one)
    ]
    return not any(code_of(one.target) == name for one in targets)

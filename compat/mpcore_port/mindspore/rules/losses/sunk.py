"""A network in front of branches that all make a loss of it: it runs in the losses alone.

``out = model(x)``, ``if accumulates: loss = criterion(out, y) / n``, ``else: loss = ...``: one of
the branches is taken, so the network runs once, as it did.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.children import calls_in
from mpcore_port.mindspore.rules.losses.between import disturbed
from mpcore_port.mindspore.rules.losses.names_in import assigned, jumps, needs, read

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mpcore_port.rule import At

__all__ = ["leaves_around", "may_sink", "untouched"]

_MOVING = frozenset({"backward", "step", "update", "unscale_", "clip_grad_norm_"})


def leaves_around(block: Any, at: At) -> tuple[Any, list[Any]] | None:
    """Return the ``if`` of a block, with all its branches; None where it has no ``else``."""
    node: Any = at.names.parents.get(block)
    if isinstance(node, cst.Else):
        node = at.names.parents.get(node)
    while isinstance(above := at.names.parents.get(node), cst.If):
        node = above
    if not isinstance(node, cst.If):
        return None
    leaves: list[Any] = []
    branch: Any = node
    while isinstance(branch, cst.If):
        leaves.append(branch.body)
        branch = branch.orelse
    if branch is None:
        return None
    leaves.append(branch.body)
    plain = all(isinstance(leaf, cst.IndentedBlock) for leaf in leaves)
    return (node, leaves) if plain and any(leaf is block for leaf in leaves) else None


def may_sink(needed: Sequence[Any], chosen: cst.If, at: At) -> list[Any]:
    """Return what stands around branches and may run in their losses instead, in order.

    Args:
        needed: what the losses need of the block that holds ``chosen``, perhaps twice.
        chosen: the ``if``.
        at: the module.

    Returns:
        ``needed``, each once; nothing where they have to run where they are.
    """
    body = getattr(at.names.parents.get(chosen), "body", ())
    asked = {id(line) for line in needed}
    places = [place for place, line in enumerate(body) if id(line) in asked]
    end = next((place for place, line in enumerate(body) if line is chosen), -1)
    if not places or len(places) != len(asked) or places[-1] >= end:
        return []
    lines = [body[place] for place in places]
    between = [body[p] for p in range(places[0], end) if p not in places]
    made = {name for line in lines for name in assigned(line)}
    test: Any = chosen
    while isinstance(test, cst.If):
        if read(test.test) & made:
            return []
        test = test.orelse
    if any(jumps(line) or _moves(line) for line in lines):
        return []
    return lines if untouched(between, lines, at) else []


def untouched(between: Sequence[Any], lines: Sequence[Any], at: At) -> bool:
    """Return whether statements neither see nor change what others make and need."""
    made = {name for line in lines for name in assigned(line)}
    asked = needs(lines)
    changed = {name for line in between for name in assigned(line)}
    seen = {name for line in between for name in read(line)}
    if made & (seen | changed) or asked & changed:
        return False
    return not any(map(_moves, between)) and not disturbed(between, asked, at)


def _moves(statement: cst.CSTNode) -> bool:
    funcs = (call.func for call in calls_in(statement))
    return any(isinstance(f, cst.Attribute) and f.attr.value in _MOVING for f in funcs)

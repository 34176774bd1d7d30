"""What a loss may compute once more behind a jump: ``out = model(x)``, ``if bad(out): break``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.children import Walker, calls_in
from mpcore_port.mindspore.rules.losses.between import disturbed
from mpcore_port.mindspore.rules.losses.carried import plain_values
from mpcore_port.mindspore.rules.losses.lasting import lasts
from mpcore_port.mindspore.rules.losses.names_in import (
    assigned,
    assigned_first,
    jumps,
    needs,
    surely_made,
)
from mpcore_port.mindspore.rules.losses.networks_in import networks_given
from mpcore_port.mindspore.rules.losses.own_passes import called
from mpcore_port.names import code_of, dotted
from mpcore_port.packages import of_another_file

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mpcore_port.rule import At

__all__ = ["around_jump", "keeps_nothing", "once_more"]

_MOVING = frozenset({"backward", "step", "update", "unscale_", "clip_grad_norm_"})


def around_jump(
    body: Sequence[Any], places: list[int], last: int, at: At
) -> tuple[list[int], list[int]] | None:
    """Cut the statements of a loss at the last jump between them.

    Args:
        body: the statements of a block.
        places: which of them a loss is made of.
        last: the last place that is looked at.
        at: the module.

    Returns:
        What has to run in front of the jump, which may ask for it, and in the loss once more;
        and the rest. None where that is not the same.
    """
    jump = max(place for place in range(places[0], last) if jumps(body[place]))
    first = [place for place in places if place < jump]
    rest = [place for place in places if place > jump]
    if jump in places or not first or not rest:
        return None
    between = [body[place] for place in range(first[0], rest[0]) if place not in first]
    again = once_more([body[place] for place in first], between, at)
    if again is None:
        return None
    return [place for place in first if any(body[place] is line for line in again)], rest


def once_more(lines: Sequence[Any], between: Sequence[Any], at: At) -> list[Any] | None:
    """Return the statements that a loss computes once more; None where that may differ.

    Args:
        lines: what the names of the loss come from, in order.
        between: all other statements from the first of them to the loss.
        at: the module.
    """
    made = {name for line in lines for name in assigned(line)}
    changed = {name for line in between for name in assigned(line)}
    asked = needs(lines)
    if made & (asked | changed) or asked & changed:
        return None
    if any(map(_moves, (*lines, *between))) or disturbed(between, asked, at):
        return None
    if not all(_is_again(line, at) for line in lines):
        return None
    plain = plain_values(lines, at)
    again = [line for line in lines if not set(assigned(line)) <= plain or _runs_afar(line, at)]
    return None if any(lasts(line, at) for line in again) else again


def _runs_afar(statement: Any, at: At) -> bool:
    """Return whether another file's function is handed a network: ``rgb = render(net, rays)``."""
    return any(
        of_another_file(at.names.called(call) or "") and networks_given(call, at)
        for call in calls_in(statement)
    )


def _moves(statement: cst.CSTNode) -> bool:
    """Return whether a statement runs a backward pass, or moves an optimizer or a scaler."""
    funcs = (call.func for call in calls_in(statement))
    return any(isinstance(f, cst.Attribute) and f.attr.value in _MOVING for f in funcs)


def _is_again(statement: Any, at: At) -> bool:
    """Return whether a statement makes names anew, and changes nothing else."""
    made = assigned(statement)
    anew = surely_made(statement) >= set(made) and not any("." in name for name in made)
    return anew and not _Changed.of(statement) and keeps_nothing(statement, at)


def keeps_nothing(node: cst.CSTNode, at: At, inside: frozenset[int] = frozenset()) -> bool:
    """Return whether functions of the file that ``node`` calls change nothing that outlives them.

    Networks are not looked into.
    """
    for function in (one for call in calls_in(node) for one in called(call, at)):
        if id(function) in inside:
            continue
        own = set(assigned_first(function.body)) - set(at.names.scope_of(function).outer)
        own -= {param.name.value for param in function.params.params}
        outer = bool(at.names.scope_of(function).outer)
        if outer or _Changed.of(function.body) - own:
            return False
        if not keeps_nothing(function.body, at, inside | {id(function)}):
            return False
    return True


class _Changed(Walker):
    """Names whose holders are changed in place: ``x += 1``, ``x[0] = 1``, ``x.n = 1``, calls."""

    def __init__(self) -> None:
        self.found: set[str] = set()

    @classmethod
    def of(cls, node: cst.CSTNode) -> set[str]:
        walk = cls()
        walk.walk(node)
        return walk.found

    def on_visit(self, node: Any) -> bool:
        if isinstance(node, cst.AugAssign):
            self._root(node.target)
        elif isinstance(node, cst.AssignTarget) and not isinstance(node.target, cst.Name):
            for target in getattr(node.target, "elements", ()):
                self._root(target.value, plain=True)
            if not hasattr(node.target, "elements"):
                self._root(node.target)
        elif isinstance(node, cst.Expr) and isinstance(node.value, cst.Call):
            func = node.value.func
            self._root(func.value if isinstance(func, cst.Attribute) else func)
        return True

    def _root(self, node: Any, *, plain: bool = False) -> None:
        if plain and isinstance(node, cst.Name):
            return
        while isinstance(node, (cst.Attribute, cst.Subscript)):
            node = node.value
        self.found.add(node.value if isinstance(node, cst.Name) else dotted(node) or code_of(node))

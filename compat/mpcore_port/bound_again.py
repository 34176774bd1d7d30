"""Which of a name's bindings are still meant where it stands: a later one takes an import's place.

``from torch.utils import data`` and then ``for step, data in enumerate(loader)``; two imports of
one name. Only what surely runs in between counts: a branch or a ``try`` leaves both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libcst as cst

if TYPE_CHECKING:
    from collections.abc import Callable

    from mpcore_port.names import Binding, Names

__all__ = ["still_meant", "surely_meant"]

_ANEW = frozenset({"value", "element", "for", "with", "def", "class"})
_DEFINED = frozenset({"import", "def", "class"})
_BLOCKS = (cst.IndentedBlock, cst.Module)


def still_meant(
    found: list[Binding], node: cst.Name, names: Names, before: Callable[[Any, Any], bool]
) -> list[Binding]:
    """Return the bindings of a name without imports that surely are replaced where it stands.

    Args:
        found: all that its scope has.
        node: the name.
        names: of its module.
        before: whether one node stands in front of another.
    """
    imports = [b for b in found if b.kind == "import"]
    if not imports or len(found) == len({b.qualified for b in imports}) == 1:
        return found
    gone: set[int] = set()
    for late in found:
        earlier = {id(b) for b in imports if b is not late and before(b.node, late.node)}
        if earlier and _replaces(late, node, names, before):
            gone |= earlier
    return [b for b in found if id(b) not in gone]


def _replaces(
    late: Binding, node: cst.Name, names: Names, before: Callable[[Any, Any], bool]
) -> bool:
    """Return whether a binding surely came before a name is looked up, and after all else."""
    around = list(names.ancestors(node))
    if late.kind != "import" and late.kind not in _ANEW:
        return False
    later = _is_run_later(late, node, names)
    if late.kind in _DEFINED and later and _is_plain(late, names):
        return True
    if late.kind in _DEFINED and any(one is late.node for one in around):
        return later  # bases, decorators and defaults are looked up first
    if not before(late.node, node):
        return False
    if any(one is late.value for one in (node, *around)):
        return False  # what is assigned, gone through or opened is looked up first
    if any(one is late.node for one in around):
        return True
    block = names.parents.get(names.statement(late.node))
    return isinstance(block, _BLOCKS) and any(one is block for one in around)


def surely_meant(
    found: list[Binding], node: cst.Name, names: Names, before: Callable[[Any, Any], bool]
) -> list[Binding]:
    """Return those of a name's bindings that can be meant where it stands; all where none is sure.

    A binding in a block around the name comes in front of it each time; what is bound in front of
    that is gone, and what is bound behind the name comes again in a loop around it alone.

    Args:
        found: all that its scope has.
        node: the name.
        names: of its module.
        before: whether one node stands in front of another.
    """
    sure = [b for b in found if b.kind in _ANEW and _replaces(b, node, names, before)]
    own = [b for b in sure if b.scope is names.scope(node)]
    if not own:
        return found
    last = own[0]
    for one in own[1:]:
        if before(last.node, one.node):
            last = one
    block = names.parents.get(names.statement(last.node))
    inner: list[Any] = []
    for above in names.ancestors(node):
        if above is block:
            break
        inner.append(above)
    loops = [one for one in inner if isinstance(one, (cst.For, cst.While))]
    return [b for b in found if b is last or _comes_between(b, last, node, loops, names, before)]


def _comes_between(
    one: Binding,
    last: Binding,
    node: cst.Name,
    loops: list[Any],
    names: Names,
    before: Callable[[Any, Any], bool],
) -> bool:
    """Return whether a binding may come between the last sure one and the place of a name."""
    if before(one.node, last.node):
        return False
    above = list(names.ancestors(one.node))
    if any(loop is part for loop in loops for part in above):
        return True
    return before(one.node, node) and not any(part is one.value for part in names.ancestors(node))


def _is_run_later(late: Binding, node: cst.Name, names: Names) -> bool:
    """Return whether a name stands in a function that the scope of its binding holds."""
    scope = names.scope(node)
    while scope.kind == "comprehension" and scope.parent is not None:
        scope = scope.parent
    return scope is not late.scope


def _is_plain(late: Binding, names: Names) -> bool:
    """Return whether a binding is a statement of its scope itself: no branch, no loop."""
    line = names.statement(late.node)
    block = names.parents.get(line)
    if isinstance(block, cst.Module):
        return True
    owner = names.parents.get(block) if block is not None else None
    return late.scope is not None and owner is late.scope.node

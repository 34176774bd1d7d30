"""Which statements a loss is made of."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.children import calls_in
from mpcore_port.lines import leaves
from mpcore_port.mindspore.rules.losses.carried import is_plain
from mpcore_port.mindspore.rules.losses.inputs import asked_for, reads_gradient
from mpcore_port.mindspore.rules.losses.names_in import assigned, filled, read, surely, surely_made
from mpcore_port.mindspore.rules.losses.networks_in import is_called_loss, parameters_read, runs
from mpcore_port.mindspore.rules.losses.own_passes import gives_values, own_passes
from mpcore_port.mindspore.rules.place import is_module
from mpcore_port.names import code_of, dotted
from mpcore_port.packages import of_another_file
from mpcore_port.torch_names import EXPORTS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mpcore_port.rule import At

__all__ = [
    "Slice",
    "slice_of",
]


@dataclass
class Slice:
    """The statements of one block that a loss is made of.

    Attributes:
        places: their indices in the block, ascending.
        needed: names that they read and do not make.
    """

    places: list[int] = field(default_factory=list)
    needed: set[str] = field(default_factory=set)


def slice_of(
    body: Sequence[Any],
    end: int,
    wanted: set[str],
    at: At,
    *,
    whole: bool = False,
    more: Callable[[Any], set[str]] | None = None,
) -> Slice:
    """Return the statements before ``end`` that the names ``wanted`` come from.

    What only prepares data, before the first statement that runs a network or a loss, is left
    out, unless it is made of a tensor whose gradient is read, or ``whole`` is true. ``more`` gives
    names that a statement makes by what it calls.
    """
    needed = set(wanted)
    places: list[int] = []
    for place in range(end - 1, -1, -1):
        statement = body[place]
        made = set(assigned(statement))
        if more is not None:
            made |= more(statement)
        if _keeps_its_own(statement) and not needed & set(assigned(statement.test)):
            continue  # what it makes does not come further
        if made & needed:
            if isinstance(statement, cst.ClassDef) or _is_of_before(statement, at):
                needed -= made
                continue
            if _makes_network(statement, [body[one] for one in places], wanted, at):
                needed -= made
                continue
            places.insert(0, place)
            # A name that is only changed, or perhaps, is still wanted from before.
            if surely(statement):
                needed -= made
            needed |= read(statement)
    inputs = set(at.once(asked_for))
    last = max((place for place in range(end) if reads_gradient(body[place], at)), default=-1)
    left: list[int] = []
    while places and not whole and not runs(body[places[0]], at):
        first = body[places[0]]
        if filled(body[place] for place in places[1:]) & surely_made(first):
            break  # a function's own: what it is handed from outside it may not fill
        if places[0] > last and inputs & read(first) and not inputs & set(assigned(first)):
            break
        left.append(places.pop(0))
    if not any(_learns(body[place], at) for place in places):
        first = next((n for n, place in enumerate(left) if _asks_another(body[place], at)), None)
        places = places if first is None else [*left[first:], *places]
    return Slice(places, needed)


def _unknown(statement: Any, at: At) -> list[cst.Call]:
    """Return the calls of a statement that may run weights, and are no losses by their names."""
    every = (call for call in calls_in(statement) if not is_plain(call, at, functional=True))
    return [call for call in every if not is_called_loss(call)]


def _learns(statement: Any, at: At) -> bool:
    """Return whether a statement may run something that learns: no loss of torch's alone does."""
    return bool(_unknown(statement, at) or parameters_read(statement, at))


def _asks_another(statement: Any, at: At) -> bool:
    """Return whether an object that nothing is known of is asked: it may hold the network.

    Or a function of another file, which may be handed such an object.
    """
    asked = any(
        isinstance(call.func, cst.Attribute) and call.args and dotted(call.func)
        for call in _unknown(statement, at)
    )
    every = [call for call in calls_in(statement) if not is_called_loss(call)]
    return asked or any(of_another_file(at.names.called(call) or "") for call in every)


def _makes_network(statement: Any, users: Sequence[Any], wanted: set[str], at: At) -> bool:
    """Return whether a statement makes networks that those behind it run, and no more.

    Their weights are what the loss is differentiated by: they are there before.
    """
    if not users or not isinstance(statement, cst.SimpleStatementLine) or len(statement.body) != 1:
        return False
    small = statement.body[0]
    if not isinstance(small, cst.Assign) or len(small.targets) != 1:
        return False
    targets, values = _one_by_one(small.targets[0].target), _one_by_one(small.value)
    names = [target.value for target in targets if isinstance(target, cst.Name)]
    if len(names) < len(targets) or set(names) & wanted or not is_module(at, targets[0]):
        return False
    if any(not isinstance(one, cst.Call) or set(names) & read(one) for one in values):
        return False
    if any(at.values.kind(one) == "tensor" for one in (*values, *targets)):
        return False
    run = [_is_only_run(name, users) for name in names]
    return None not in run and True in run


def _one_by_one(node: Any) -> list[Any]:
    return [one.value for one in node.elements] if isinstance(node, cst.Tuple) else [node]


def _is_only_run(name: str, users: Sequence[Any]) -> bool | None:
    """Return whether statements run a network and no more; None where they do more."""
    run = [call for user in users for call in calls_in(user) if _runs_it(call.func, name)]
    named = sum(len(re.findall(rf"(?<![\w.]){name}\b", code_of(user))) for user in users)
    return bool(run) if named == len(run) else None


def _runs_it(func: Any, name: str) -> bool:
    """Return whether ``name(...)`` or ``name.method(...)`` is called, and no method of a tensor."""
    root, _, rest = dotted(func).partition(".")
    return root == name and rest.partition(".")[0] not in EXPORTS["torch.Tensor"]


def _keeps_its_own(statement: Any) -> bool:
    """Return whether a branch leaves the block, and has no other."""
    return isinstance(statement, cst.If) and statement.orelse is None and leaves(statement)


def _is_of_before(statement: Any, at: At) -> bool:
    """Return whether what a statement makes are gradients, or values behind a backward pass."""
    own = own_passes(statement, at)
    if own:
        return all(gives_values(one, at) for one in own)
    return surely(statement) and reads_gradient(statement, at)

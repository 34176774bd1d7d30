"""Losses of what a network makes outside of their block: ``if a: loss = criterion(out, y)``."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.children import calls_in
from mpcore_port.mindspore.rules.losses.afar import is_run, is_without
from mpcore_port.mindspore.rules.losses.carried import attached, constant
from mpcore_port.mindspore.rules.losses.flow import Slice, slice_of
from mpcore_port.mindspore.rules.losses.names_in import assigned, bound_by, read, surely_made
from mpcore_port.mindspore.rules.losses.networks_in import is_called_loss
from mpcore_port.mindspore.rules.losses.own_passes import called, gives_values, trains
from mpcore_port.mindspore.rules.losses.twice import once_more
from mpcore_port.names import code_of

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["Outside", "graded", "handed_in", "made_outside", "without_network"]

_NUMBERS = re.compile(r"\b(argmax|argmin|argsort|long|int|bool|len|range|print)\(|\]\s*\[1\]$")
_COUNTS = re.compile(r"(range|trange|count|itertools\.count)\(")
_VALUES = re.compile(r"\.(detach|item|numpy|tolist)\(|\.data\b")


@dataclass
class Outside:
    """What a loss needs of a block around its own.

    Attributes:
        name: a name that a network makes there, which the loss differentiates.
        lines: the statements there that the names of the loss come from, in order.
        between: all others from the first of them to the loss, in blocks on the way too.
        loops: whether a loop on the way runs the loss more than once.
    """

    name: str
    lines: list[Any]
    between: list[Any] = field(default_factory=list)
    loops: bool = False

    def once_more(self, at: At) -> list[Any] | None:
        """Return the statements that the loss computes once more; None where that may differ."""
        return None if self.loops else once_more(self.lines, self.between, at)


def made_outside(block: Any, part: Slice, at: At) -> Outside | None:
    """Return what networks make around the block of a loss that it differentiates; or None."""
    below: Any = block
    needed = set(part.needed)
    between: list[Any] = []
    places = range(part.places[0])
    between += [block.body[place] for place in places]
    loops = False
    for above in at.names.ancestors(block):
        if isinstance(above, (cst.FunctionDef, cst.ClassDef)):
            break
        if isinstance(above, (cst.IndentedBlock, cst.Module)):
            lines = list(above.body)
            end = next((i for i, line in enumerate(lines) if line is below), 0)
            found = slice_of(lines, end, needed, at)
            made = graded([lines[p] for p in found.places], at) & needed
            made -= _called(block, part)
            if made and not constant([block.body[place] for place in part.places], made):
                own = [lines[place] for place in found.places]
                rest = [lines[p] for p in range(found.places[0], end) if p not in found.places]
                return Outside(min(made), own, [*rest, *between], loops)
            between += lines[:end]
        if tested := _tested(above, at) & needed:
            return Outside(min(tested), [above], between, loops=True)
        if bound := bound_by(above) & needed:
            needed = (needed - bound) | _given_by(above)
        loops = loops or isinstance(above, (cst.For, cst.While))
        if isinstance(above, cst.BaseStatement):
            below = above
    return None


def handed_in(nodes: list[Any], place: cst.CSTNode, at: At, depth: int = 4) -> str:
    """Return a parameter that a loss differentiates and that a caller's network makes; "" for none.

    Args:
        nodes: what the loss is made of, in a function's order.
        place: a node of that function.
        at: the module.
        depth: through how many callers it is followed.
    """
    function = at.names.enclosing(place, cst.FunctionDef)
    if function is None or depth == 0:
        return ""
    params = {param.name.value: param for param in _parameters(function, at)}
    called = {c.func.value for n in nodes for c in calls_in(n) if isinstance(c.func, cst.Name)}
    for name in sorted(attached(nodes, set(params) - called)):
        for call, value in _given(function, params[name], at):
            if _comes_from_network(call, value, at) or handed_in([value], call, at, depth - 1):
                return name
    return ""


def without_network(nodes: list[Any], needed: set[str], place: cst.CSTNode, at: At) -> str:
    """Return a parameter that a loss differentiates where nothing in the file has a network for it.

    Nobody calls the function here, and all that the loss calls is torch's, or a loss by its class
    or its name: what learns has to be handed in, and no gradient of it would come back.

    Args:
        nodes: as for ``handed_in``.
        needed: names that they read, and do not make.
        place: as for ``handed_in``.
        at: as for ``handed_in``.
    """
    function = at.names.enclosing(place, cst.FunctionDef)
    if function is None or ".grad" in code_of(function):
        return ""
    if any(function in called(call, at) for call in at.names.callers(function.name.value)):
        return ""
    calls = [call for node in nodes for call in calls_in(node)]
    params = {param.name.value for param in _parameters(function, at)}
    losses = {code_of(call.func) for call in calls if _is_loss(call, at)}
    if not all(_is_weightless(call, at) or code_of(call.func) in losses for call in calls):
        return ""
    known = losses | {"self"}
    others = [n for n in needed if n not in known and n.partition(".")[0] not in params]
    if not all(_is_imported(name, at) for name in others):
        return ""
    found = sorted(attached(nodes, params - losses))
    optimizers = (c for c in at.names.calls if "optim" in (at.names.called(c) or ""))
    learns = any(set(found) & read(call) for call in optimizers)
    return found[0] if found and not learns else ""


def _is_imported(name: str, at: At) -> bool:
    held = at.names.top.bindings.get(name.partition(".")[0], [])
    return any(one.kind == "import" for one in held)


def _is_loss(call: cst.Call, at: At) -> bool:
    made = at.names.call_names(call.func)
    if made:
        return all(name.endswith("Loss") for name in made)
    return at.names.called(call) is None and is_called_loss(call)


def _is_weightless(call: cst.Call, at: At) -> bool:
    """Return whether a call surely runs nothing with weights: torch's, or a method of a tensor."""
    name = at.names.called(call)
    if name is not None:
        return name.startswith("torch.") and not name.startswith("torch.nn.Parameter")
    if isinstance(call.func, cst.Name):
        return call.func.value in _PLAIN
    func = call.func
    if not isinstance(func, cst.Attribute):
        return False
    return at.values.kind(func.value) == "tensor" or func.attr.value in _OF_TENSORS


_PLAIN = ("abs", "float", "int", "len", "max", "min", "range", "sum", "zip")
_OF_TENSORS = frozenset(
    """
    abs backward clamp contiguous cpu cuda detach dim exp flatten float item log log_softmax
    long max mean min norm permute pow reshape size softmax sqrt square squeeze sum to
    transpose unsqueeze view
    """.split()  # noqa: SIM905  # a list of words is read
)


def _parameters(function: cst.FunctionDef, at: At) -> list[cst.Param]:
    """Return the parameters of a function that a call gives by their place, ``self`` aside."""
    params = [*function.params.posonly_params, *function.params.params]
    holder = at.names.enclosing(function, cst.ClassDef, cst.FunctionDef)
    return params[1:] if isinstance(holder, cst.ClassDef) else params


def _given(
    function: cst.FunctionDef, param: cst.Param, at: At
) -> list[tuple[cst.Call, cst.BaseExpression]]:
    """Return the calls of the file that give a parameter, each with what it gives."""
    calls = at.names.callers(function.name.value)
    if function.name.value == "__call__":
        holder = at.names.enclosing(function, cst.ClassDef)
        calls = [call for call in at.names.calls if at.names.class_named(call.func) is holder]
    place = next(i for i, one in enumerate(_parameters(function, at)) if one is param)
    found = []
    for call in calls:
        if _is_anothers(call, function, at):
            continue
        for index, arg in enumerate(call.args):
            keyword = arg.keyword.value if arg.keyword else ""
            if keyword == param.name.value or (not keyword and not arg.star and index == place):
                found.append((call, arg.value))
    return found


def _is_anothers(call: cst.Call, function: cst.FunctionDef, at: At) -> bool:
    """Return whether a method calls one of its name of something else: ``scheduler.step(loss)``."""
    func = call.func
    if not isinstance(func, cst.Attribute) or code_of(func.value) in ("self", "cls", "super()"):
        return False
    return any(one is function for one in at.names.ancestors(call))


def _comes_from_network(call: cst.Call, value: cst.BaseExpression, at: At) -> bool:
    """Return whether what a call gives is of a network, with its gradients."""
    if _VALUES.search(code_of(value)):
        return False
    lines: list[Any] = []
    below: Any = call
    for above in at.names.ancestors(call):
        if is_without(above, at):
            return False
        if isinstance(above, (cst.IndentedBlock, cst.Module)):
            body: list[Any] = list(above.body)
            end = next((i for i, line in enumerate(body) if line is below), 0)
            lines = body[:end] + lines
        if isinstance(above, (cst.FunctionDef, cst.ClassDef)):
            break
        if isinstance(above, cst.BaseStatement):
            below = above
    runs = any(is_run(one, at) for one in calls_in(value))
    return runs or bool(graded(lines, at) & attached([value], read(value)))


def _given_by(node: Any) -> set[str]:
    """Return what a loop takes its values of; nothing of what counts."""
    if not isinstance(node, cst.For) or _COUNTS.match(code_of(node.iter)):
        return set()
    return read(node.iter)


def _tested(node: Any, at: At) -> set[str]:
    """Return what a condition names that a network makes: ``if (out := model(x)) is not None``."""
    if not isinstance(node, (cst.If, cst.While)) or not _surely_runs(node.test, at):
        return set()
    return set(assigned(node.test))


def graded(lines: list[Any], at: At) -> set[str]:
    """Return the names that networks make, and those that are made of such: ``part = out[0]``."""
    found: set[str] = set()
    for line in lines:
        if isinstance(line, (cst.FunctionDef, cst.ClassDef)):
            continue  # runs nothing yet
        made = set(assigned(line))
        asked = found & read(line)
        if _surely_runs(line, at) or (asked and _carries(line, at) and attached([line], asked)):
            found |= made
        elif not found & made & read(line):
            found -= surely_made(line)
    return found


def _carries(line: Any, at: At) -> bool:
    """Return whether gradients may go through a statement; through numbers of classes none do."""
    return not (_makes_values(line, at) or _NUMBERS.search(code_of(line)))


def _makes_values(line: Any, at: At) -> bool:
    """Return whether a statement is a block without gradients, or makes values of them."""
    return is_without(line, at) or bool(_VALUES.search(code_of(line)))


def _surely_runs(line: Any, at: At) -> bool:
    """Return whether a statement calls what is known, or named, as a network, for gradients."""
    if _makes_values(line, at):
        return False
    return any(is_run(call, at) for call in calls_in(line)) or _is_run_inside(line, at)


def _is_run_inside(node: cst.CSTNode, at: At, depth: int = 4) -> bool:
    """Return whether a function of the file that a statement calls runs a network for gradients."""
    own = [one for call in calls_in(node) for one in called(call, at)]
    for function in own if depth else ():
        if trains(function, at) or gives_values(function, at):
            continue
        runs = any(is_run(call, at) for call in calls_in(function.body))
        if runs or _is_run_inside(function.body, at, depth - 1):
            return True
    return False


def _called(block: Any, part: Slice) -> set[str]:
    """Return the names that the statements of a loss call: networks and losses."""
    funcs = [c.func for place in part.places for c in calls_in(block.body[place])]
    return {func.value for func in funcs if isinstance(func, cst.Name)}

"""A method that keeps what networks give, run once more in the loss of another method.

``self.forward()`` sets ``self.fake``, ``self.backward_g()`` makes a loss of it: torch goes back
through both. The loss runs the first one again, where that is the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.children import calls_in
from mpcore_port.mindspore.rules.losses.between import disturbed
from mpcore_port.mindspore.rules.losses.carried import weights_run
from mpcore_port.mindspore.rules.losses.lasting import lasts
from mpcore_port.mindspore.rules.losses.names_in import assigned, read
from mpcore_port.mindspore.rules.losses.own_passes import called, trains
from mpcore_port.names import code_of, dotted

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mpcore_port.rule import At

__all__ = ["Rerun", "rerun"]

_NOISE = ("bernoulli", "multinomial", "normal", "poisson", "rand")
_NOISY = frozenset({"bernoulli_", "normal_", "random_", "rsample", "sample", "uniform_"})
_DEPTH = 4


@dataclass
class Rerun:
    """What a loss runs once more.

    Attributes:
        line: the call, as it stands where both methods are called.
        unsure: calls between the two of methods that another file has.
    """

    line: Any
    unsure: list[Any] = field(default_factory=list)


def rerun(
    makers: Iterable[Any], method: cst.FunctionDef, before: Sequence[Any], at: At
) -> Rerun | None:
    """Return the call that a loss of ``method`` runs once more for what ``makers`` have kept.

    Args:
        makers: the methods that keep it.
        method: the one that makes the loss.
        before: its statements in front of those that the loss is made of.
        at: the module.

    Returns:
        None where a second run may give something else, or nothing says that the first comes
        before each call of ``method``.
    """
    found = {id(one): one for one in makers}
    maker = next(iter(found.values()), None)
    if len(found) != 1 or not isinstance(maker, cst.FunctionDef) or not _is_again(maker, at):
        return None
    calls = [call for call in at.names.callers(method.name.value) if method in called(call, at)]
    pairs = [_before(call, maker, at) for call in calls]
    if not pairs or any(pair is None for pair in pairs):
        return None
    between = [line for pair in pairs if pair is not None for line in pair[1]]
    between += before
    if _changes(between, maker, at) or _steps(between, maker, at, _DEPTH):
        return None
    first = pairs[0]
    assert first is not None  # noqa: S101  # asked for above
    return Rerun(first[0], [line for line in between if _is_unknown(line, at)])


def _is_again(maker: cst.FunctionDef, at: At) -> bool:
    """Return whether a method takes nothing, draws nothing and only sets anew what it keeps."""
    params = maker.params
    given = (*params.posonly_params, *params.params, *params.kwonly_params)
    if len(given) != 1 or maker.decorators or trains(maker, at):
        return False
    asked, kept = _asked_and_kept(maker)
    if asked & kept or _is_noisy(maker, at, _DEPTH):
        return False
    call = next((c for c in at.names.callers(maker.name.value) if maker in called(c, at)), None)
    return call is not None and not lasts(call, at)


def _asked_and_kept(maker: cst.FunctionDef) -> tuple[set[str], set[str]]:
    """Return what a method reads of before it, and the attributes that it sets."""
    asked: set[str] = set()
    made: set[str] = set()
    for line in maker.body.body:
        asked |= _asked(line) - made
        if isinstance(line, cst.SimpleStatementLine):
            made |= {name for name in assigned(line) if "." in name}
    return asked, {name for name in assigned(maker.body) if "." in name}


def _asked(node: Any) -> set[str]:
    """Return what a statement reads; attributes that it only sets are not."""
    if isinstance(node, cst.Assign):
        parts = [node.value, *(t.target for t in node.targets if not dotted(t.target))]
        return {name for part in parts for name in read(part)}
    if isinstance(node, (cst.SimpleStatementLine, cst.IndentedBlock)):
        return {name for line in node.body for name in _asked(line)}
    if isinstance(node, cst.If):
        other = _asked(node.orelse) if node.orelse is not None else set()
        return read(node.test) | _asked(node.body) | other
    return _asked(node.body) if isinstance(node, cst.Else) else read(node)


def _is_noisy(function: cst.FunctionDef, at: At, depth: int) -> bool:
    for call in calls_in(function.body):
        name = at.names.called(call) or ""
        last = name.removeprefix("torch.") if name.startswith("torch.") else ""
        if last.startswith(_NOISE):
            return True
        if isinstance(call.func, cst.Attribute) and call.func.attr.value in _NOISY:
            return True
        if depth and any(_is_noisy(one, at, depth - 1) for one in called(call, at)):
            return True
    return False


def _before(call: cst.Call, maker: cst.FunctionDef, at: At) -> tuple[Any, list[Any]] | None:
    """Return the last call of ``maker`` in front of another method's, and what is between."""
    below: Any = at.names.statement(call)
    block = at.names.parents.get(below)
    if not isinstance(block, cst.IndentedBlock):
        return None
    end = next(i for i, line in enumerate(block.body) if line is below)
    for place in range(end - 1, -1, -1):
        line = block.body[place]
        if _is_call_of(line, maker, at):
            return line, list(block.body[place + 1 : end])
    return None


def _is_call_of(line: Any, maker: cst.FunctionDef, at: At) -> bool:
    """Return whether a statement is ``self.maker()`` and nothing else."""
    if not isinstance(line, cst.SimpleStatementLine) or len(line.body) != 1:
        return False
    small = line.body[0]
    value = small.value if isinstance(small, cst.Expr) else None
    return isinstance(value, cst.Call) and not value.args and maker in called(value, at)


def _changes(between: list[Any], maker: cst.FunctionDef, at: At) -> bool:
    """Return whether what ``maker`` reads or keeps is another one behind some statements."""
    asked, kept = _asked_and_kept(maker)
    plain = {name for line in between for name in _set(line, at, _DEPTH)}
    return bool(plain & (asked | kept)) or disturbed(between, asked | kept, at)


def _set(line: Any, at: At, depth: int) -> set[str]:
    """Return the attributes that a statement, and the methods that it calls, set."""
    found = {name for name in assigned(line) if "." in name}
    for call in calls_in(line) if depth else ():
        for function in called(call, at):
            found |= _set(function.body, at, depth - 1)
    return found


def _steps(between: list[Any], maker: cst.FunctionDef, at: At, depth: int) -> bool:
    """Return whether an optimizer between may move a network that ``maker`` runs."""
    networks = weights_run(maker.body, at)
    return any(_moves(line, networks, at, depth) for line in between)


def _moves(node: Any, networks: set[str], at: At, depth: int) -> bool:
    for call in calls_in(node):
        func = call.func
        if isinstance(func, cst.Attribute) and func.attr.value == "step":
            held = call.args[0].value if call.args else func.value
            if not _is_of_others(held, networks, at):
                return True
        if depth and any(_moves(f.body, networks, at, depth - 1) for f in called(call, at)):
            return True
    return False


def _is_of_others(optimizer: Any, networks: set[str], at: At) -> bool:
    """Return whether an optimizer surely moves parameters of other networks alone."""
    made = [one for one in at.names.origins(optimizer) if isinstance(one, cst.Call)]
    given = [code_of(one.args[0].value) for one in made if one.args]
    if not made or len(given) != len(made) or len(made) != len(at.names.origins(optimizer)):
        return False
    plain = all(text.endswith(".parameters()") and "(" not in text[:-2] for text in given)
    return plain and not {text.removesuffix(".parameters()") for text in given} & networks


def _is_unknown(line: Any, at: At) -> bool:
    """Return whether a statement calls a method of ``self`` that this file does not show."""
    for call in calls_in(line):
        text = dotted(call.func)
        own = text.startswith("self.") and text.count(".") == 1
        owner = at.names.enclosing(call, cst.ClassDef)
        if own and not called(call, at) and not at.names.attribute(owner, text):
            return True
    return False

"""Gradients that a loss is made of: penalties of critics, derivatives in physics.

``torch.autograd.grad(outputs=D(x), inputs=x, create_graph=True)`` differentiates what was computed;
MindSpore differentiates functions. The statements that make the outputs of the inputs become one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.children import calls_in
from mpcore_port.lines import leaves
from mpcore_port.mindspore.rules.losses.inputs import GRADIENT, GRADIENT_ORDER
from mpcore_port.mindspore.rules.losses.names_in import assigned, assigned_first, jumps, needs, read
from mpcore_port.mindspore.rules.losses.own_passes import own_passes
from mpcore_port.mindspore.rules.place import PortRule, need
from mpcore_port.names import code_of
from mpcore_port.scan import arguments

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["LACKS", "PenaltyRule"]

_ORDER = (*GRADIENT_ORDER, "only_inputs")
_IGNORED = {"retain_graph", "only_inputs"}
_ONES = re.compile(r"^torch\.ones(_like)?\(|\.new_ones\(")
_MOVING = frozenset({"backward", "step", "update", "zero_grad"})
LACKS = (
    "MindSpore 2.10 has no second derivative of LayerNorm, GroupNorm, ELU, maximum pooling and "
    "cross entropy on CPU: a network with one raises there"
)
_TWICE = (
    f"{LACKS}; computed where it was, and in the function that is differentiated once more: "
    "buffers such as BatchNorm's move twice, dropout and noise draw anew"
)
_GIVEN = (
    "differentiated by what is handed in: what else is handed in, and made of it, was not looked "
    f"at; {LACKS}"
)


@dataclass(frozen=True)
class _Asked:
    """A gradient that is differentiated again.

    Attributes:
        call: what asks for it.
        outputs, weights: what is differentiated, and what it is weighted by; None for ones.
        inputs: the names of the tensors that it is differentiated by.
    """

    call: cst.Call
    outputs: Any
    weights: Any
    inputs: tuple[str, ...]


class PenaltyRule(PortRule):
    """``autograd.grad(D(x), x, create_graph=True)`` is the gradient of a function of ``x``."""

    name = "penalty"
    reason = "MindSpore differentiates functions: port.gradients takes the one that outputs come of"
    visits = (cst.IndentedBlock, cst.Module)

    def idle(self, at: At) -> bool:
        """Whether no gradient is asked for by its function, or the script is a port."""
        return super().idle(at) or "autograd" not in at.code

    def act(self, old: Any, new: Any, at: At) -> Any:
        """Write such gradients of one block."""
        asked = {place: found for place, line in enumerate(old.body) if (found := _of(line, at))}
        if not asked or len(old.body) != len(new.body):
            return None
        body: list[Any] = [[line] for line in new.body]
        written = [self._write(one, place, old, body, at) for place, one in asked.items()]
        lines = [line for part in body for line in part]
        return new.with_changes(body=lines) if any(written) else None

    def _write(self, one: _Asked, place: int, old: Any, body: list[Any], at: At) -> bool:
        """Put the function of one gradient in front of its statement; return whether it can."""
        part = _slice(one, [(p, line) for p in range(place) for line in body[p]], old, at)
        if part is None:
            return False
        name = _fresh(f"{_word(one.outputs)}_of", at)
        value = code_of(one.outputs)
        if one.weights is not None:
            value = f"({value}) * ({code_of(one.weights)})"
        gone = [] if _is_read(part, old.body[place], at) else part.lines
        lines = [line.with_changes(leading_lines=()) if gone else line for line in part.lines]
        inner = cst.IndentedBlock(
            [*(line.deep_clone() for line in lines), cst.parse_statement(f"return {value}")]
        )
        given = [cst.Param(cst.Name(text)) for text in one.inputs]
        function = cst.FunctionDef(cst.Name(name), cst.Parameters(given), inner)
        made = f"{need(at, 'port', 'torch')}.gradients({', '.join((name, *one.inputs))})"
        statement = body[place][-1].visit(_Replaced(code_of(one.call), cst.parse_expression(made)))
        lead = statement.leading_lines
        for where in range(place):
            body[where] = [line for line in body[where] if all(line is not left for left in gone)]
        body[place][-1:] = [
            function.with_changes(leading_lines=lead),
            statement.with_changes(leading_lines=()),
        ]
        if not part.starts:
            at.unproven(self, one.call, _GIVEN, cst.parse_expression(made))
        elif gone:
            at.note(self, one.call, made, "changed", "", LACKS)
        else:
            at.note(self, one.call, made, "changed", "", _TWICE)
        return True


class _Replaced(cst.CSTTransformer):
    """Puts an expression in the place of a call."""

    def __init__(self, code: str, made: cst.BaseExpression) -> None:
        super().__init__()
        self.code, self.made = code, made

    def leave_Call(  # noqa: N802  # libcst's
        self, original_node: cst.Call, updated_node: cst.Call
    ) -> cst.BaseExpression:
        """Return what stands there now."""
        return self.made if code_of(original_node) == self.code else updated_node


def _of(line: Any, at: At) -> _Asked | None:
    """Return the gradient that a statement asks for, and that has gradients itself."""
    if not isinstance(line, cst.SimpleStatementLine) or len(line.body) != 1:
        return None
    calls = [call for call in calls_in(line) if at.names.called(call) == GRADIENT]
    if len(calls) != 1 or any(arg.star for arg in calls[0].args):
        return None
    (call,) = calls
    given: dict[str, Any] = arguments(call, _ORDER)
    if len(call.args) > len(_ORDER) or set(given) - set(_ORDER) or "inputs" not in given:
        return None
    if code_of(given.get("create_graph", cst.Name("False"))) != "True":
        return None
    outputs, weights = _alone(given["outputs"]), _alone(given.get("grad_outputs"))
    wanted = given["inputs"]
    several = isinstance(wanted, (cst.List, cst.Tuple))
    nodes = [part.value for part in wanted.elements] if several else [wanted]
    names = tuple(node.value for node in nodes if isinstance(node, cst.Name))
    if outputs is None or not names or len(set(names)) != len(nodes):
        return None
    if weights is not None and (code_of(weights) == "None" or _is_ones(weights, at)):
        weights = None
    return _Asked(call, outputs, weights, names)


def _alone(node: Any) -> Any:
    """Return what stands alone in a list, or the node itself; None of several."""
    if not isinstance(node, (cst.List, cst.Tuple)):
        return node
    return node.elements[0].value if len(node.elements) == 1 else None


def _is_ones(node: Any, at: At) -> bool:
    """Return whether all weights surely are one: what they are made by says so."""
    if not isinstance(node, cst.Call):
        return False
    inner: Any = node
    while isinstance(inner, cst.Call) and isinstance(inner.func, cst.Attribute):
        if inner.func.attr.value not in ("cuda", "cpu", "to", "type_as"):
            break
        inner = inner.func.value
    return at.names.called(inner) in ("torch.ones", "torch.ones_like")


@dataclass(frozen=True)
class _Part:
    """Statements that outputs are made of, as they were, and whether their tensor starts there."""

    lines: list[Any]
    origins: list[Any]
    starts: bool


def _slice(one: _Asked, before: list[tuple[int, Any]], old: Any, at: At) -> _Part | None:
    """Return the statements that make the outputs of the inputs; None where that is not sure."""
    lines = [line for _, line in before]
    starts = [
        max((place for place, line in enumerate(lines) if _starts(name, line)), default=-1)
        for name in one.inputs
    ]
    first = max(starts)
    wanted = read(one.outputs) | (read(one.weights) if one.weights is not None else set())
    taken: list[int] = []
    for place in range(len(lines) - 1, first, -1):
        line = lines[place]
        made = set(assigned(line))
        if not made & wanted:
            continue
        if made & set(one.inputs) or not _is_movable(line, old.body[before[place][0]], at):
            return None
        taken.insert(0, place)
        if isinstance(line, (cst.SimpleStatementLine, cst.FunctionDef)):
            wanted -= made
        wanted |= read(line)
    if not wanted & set(one.inputs) or any(_made_early(one, lines[: first + 1], s) for s in starts):
        return None
    # What they read of around them has to be the same where the function runs.
    needed = needs(lines[place] for place in taken)
    others = [lines[p] for p in range(min(taken, default=0), len(lines)) if p not in taken]
    if any(set(assigned(line)) & needed for line in others):
        return None
    origins = [old.body[before[place][0]] for place in taken]
    return _Part([lines[place] for place in taken], origins, min(starts) >= 0)


def _starts(name: str, line: Any) -> bool:
    """Return whether a statement makes a tensor that is differentiated by, or has it want that."""
    wants = rf"(?<![\w.]){name}\.(requires_grad|retain_grad)"
    return name in assigned(line) or bool(re.search(wants, code_of(line)))


def _made_early(one: _Asked, lines: list[Any], start: int) -> bool:
    """Return whether something of one input is made before another one starts: not taken along."""
    if start < 0 or len(one.inputs) == 1:
        return False
    behind = ((read(line) & set(one.inputs), set(assigned(line))) for line in lines[start + 1 :])
    return any(made and given - made for given, made in behind)


def _is_movable(line: Any, origin: Any, at: At) -> bool:
    """Return whether a statement may stand in a function: it binds plain names, and leaves not."""
    if jumps(line) or leaves(line) or set(assigned(line)) != set(assigned_first(line)):
        return False
    calls = calls_in(line)
    moves = any(isinstance(c.func, cst.Attribute) and c.func.attr.value in _MOVING for c in calls)
    return not moves and not own_passes(origin, at)


def _is_read(part: _Part, statement: Any, at: At) -> bool:
    """Return whether something else reads what the statements make."""
    made = {name for line in part.lines for name in assigned_first(line)}
    inside = {id(line) for line in (*part.origins, statement)}
    home = at.names.enclosing(statement, cst.FunctionDef) or at.module
    for node in at.names.by_type[cst.Name]:
        if node.value in made and not isinstance(at.names.parents.get(node), cst.Param):
            around = list(at.names.ancestors(node))
            bound = any(isinstance(above, cst.AssignTarget) for above in around)
            if home in around and not bound and inside.isdisjoint(map(id, around)):
                return True
    return False


def _word(node: Any) -> str:
    """Return the first name in an expression."""
    found = re.search(r"[A-Za-z_]\w*", code_of(node))
    return found[0] if found else "outputs"


def _fresh(name: str, at: At) -> str:
    taken = at.once(_taken)
    number, fresh = 1, name
    while fresh in taken:
        number += 1
        fresh = f"{name}_{number}"
    taken.add(fresh)
    return fresh


def _taken(at: At) -> set[str]:
    return set(re.findall(r"\w+", at.code))

"""Which statements every loss of a script is made of, and what becomes of them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.children import Walker, below, calls_in
from mpcore_port.mindspore.loop.makers import maker_of, model_of
from mpcore_port.mindspore.rules.accelerated import accelerated
from mpcore_port.mindspore.rules.afar import Graded, kept_by_methods, read_for_gradients
from mpcore_port.mindspore.rules.divided import Division, divisions
from mpcore_port.mindspore.rules.flow import (
    Slice,
    assigned,
    assigned_first,
    bound_before,
    bound_by,
    constant,
    detaches,
    is_part_network,
    jumps,
    needed_again,
    needs,
    networks_given,
    parameters_read,
    plain_values,
    read,
    read_first,
    slice_of,
    weights_run,
)
from mpcore_port.mindspore.rules.imported_networks import runs_imported
from mpcore_port.mindspore.rules.inputs import gradient_call, inputs_read, weights_call
from mpcore_port.mindspore.rules.kept_outside import kept_outside
from mpcore_port.mindspore.rules.methods import Rerun, rerun
from mpcore_port.mindspore.rules.outside import handed_in, made_outside, without_network
from mpcore_port.mindspore.rules.own_passes import called, own_passes
from mpcore_port.mindspore.rules.place import is_module
from mpcore_port.mindspore.rules.stale import stale
from mpcore_port.mindspore.rules.sunk import leaves_around, may_sink, untouched
from mpcore_port.mindspore.rules.touching import handed_weights
from mpcore_port.mindspore.rules.twice import around_jump
from mpcore_port.names import code_of, dotted, target_names
from mpcore_port.scan import arguments, is_optimizer

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from mpcore_port.mindspore.rules.outside import Outside
    from mpcore_port.rule import At

__all__ = ["Plan", "Plans", "Sink", "only", "plans_of", "trains_nothing"]


@dataclass
class Sink:
    """A place where a loss is handed to a backward pass."""

    call: cst.Call
    loss: cst.BaseExpression
    scaler: str = ""
    holders: str = ""
    """Whose gradients apex divides by the scale, as code."""
    within: Sink | None = None
    """The backward pass itself, where ``call`` hands the loss to the function that has it."""
    gradients: tuple[str, ...] = ()
    """Tensors that ``call`` returns the gradients of, where it is ``torch.autograd.grad``."""
    weights: Any = None
    """Parameters that ``call`` returns the gradients by, where it is that."""


@dataclass
class Plan:
    """What becomes of one block for one loss."""

    sink: Sink
    block: Any
    places: list[int]
    again: list[int]
    parts: list[str]
    function: str
    bound: str
    result: cst.BaseExpression
    kept: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    word: str = "nonlocal"
    moved: list[int] = field(default_factory=list)
    inputs: tuple[str, ...] = ()
    saved: dict[str, str] = field(default_factory=dict)
    """Names that its statements overwrite and a later loss needs as they were, under other names"""
    restored: dict[str, str] = field(default_factory=dict)
    before: set[str] = field(default_factory=set)
    """Names of ``kept`` that its statements may read as a turn before has left them"""
    front: list[Any] = field(default_factory=list)
    """Statements of a block around, which are computed again"""
    sunk: bool = False
    """Whether those of ``front`` run here alone: in one of several branches"""
    unsure: list[Any] = field(default_factory=list)
    """Statements that stand between, and hand weights to another file's code"""
    between: list[Any] = field(default_factory=list)
    """Statements between a method and the loss that runs it once more, of unknown methods"""
    twice: bool = False
    """Whether what is computed again runs where it was as well"""
    late: list[str] = field(default_factory=list)
    """Networks that are run again, whose weights an optimizer has moved since"""
    condition: cst.BaseExpression | None = None
    """Of the branch that makes the loss, and of another that has its backward pass."""

    @cached_property
    def wanted(self) -> set[str]:
        """Names that the statements of ``places`` read of before them."""
        return needs(self.block.body[place] for place in self.places)


@dataclass(eq=False)
class _Group:
    """Branches of which one is taken, and the statements in front that their losses take along."""

    lines: list[Any]
    leaves: list[Any]
    sinks: list[Sink]


def only(statement: Any, wanted: set[str]) -> Any:
    """Return a ``with`` block with the statements that make ``wanted`` names."""
    if not isinstance(statement, cst.With) or not isinstance(statement.body, cst.IndentedBlock):
        return statement
    kept: list[Any] = []
    needed = set(wanted)
    for line in reversed(statement.body.body):
        made = set(assigned(line))
        if made & needed:
            kept.insert(0, line)
            needed = (needed - made) | read(line)
    return statement.with_changes(body=statement.body.with_changes(body=kept), leading_lines=())


@dataclass(frozen=True)
class Plans:
    """What becomes of a module's losses; keys are ids of nodes of the original tree.

    Attributes:
        blocks: by block, one plan for each loss that is made in it.
        losses: by expression, the name that stands in the place of a loss.
        refused: by the function of a backward call, why its loss has no plan.
        sinks: every place where a loss is handed to a backward pass.
        handed: by the function of a backward call, the parameter that its loss is, where nothing in
            the file calls the function.
        torn: by the id of a backward call whose loss needs a network that runs outside of its
            block, why no function of its own block has it.
        inputs: names of tensors that a loss is a function of, with the id of its backward call.
        started: by a function's block, the names that are None where it begins, each with the id
            of the backward call that they are for.
        divided: what blocks between a loss and its backward pass divide it by, each with its name,
            by the statements and what they assign.
        sunk: statements that run in the losses of the branches behind them alone.
    """

    blocks: dict[int, list[Plan]] = field(default_factory=dict)
    losses: dict[int, str] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)
    sinks: list[Sink] = field(default_factory=list)
    handed: dict[int, str] = field(default_factory=dict)
    torn: dict[int, str] = field(default_factory=dict)
    inputs: dict[int, tuple[str, ...]] = field(default_factory=dict)
    started: dict[int, list[tuple[str, int]]] = field(default_factory=dict)
    divided: dict[int, tuple[str, Division]] = field(default_factory=dict)
    sunk: set[int] = field(default_factory=set)


def trains_nothing(at: At) -> bool:
    """Return whether nothing in a module looks like a backward pass, or like a scaler."""
    asked = at.names.callers("backward") or at.names.callers("grad")
    return not asked and "scaler" not in at.code.lower()


def plans_of(at: At) -> Plans:
    """Find every backward pass and what its loss is made of; ask by ``at.once``."""
    return _Planner(at).make()


class _Planner:
    def __init__(self, at: At) -> None:
        self.at, self.names = at, at.names
        self.found = Plans()
        self._functions: set[str] = set()
        self._fronts: set[int] = set()  # ids of statements that stay where a loss runs them again
        self._scopes: dict[int, list[_Part]] = {}  # by the id of a scope's node: read once
        self._nested: dict[int, tuple[Any, list[Plan]]] = {}  # by function, the plans inside
        self._groups: list[_Group] = []  # branches of which one is taken, with what runs before

    def make(self) -> Plans:
        done: dict[tuple[int, str], Sink] = {}
        self.found.sinks.extend(self._sinks())
        for sink in self.found.sinks:
            self._plan(sink, done)
        self._raise_again()
        self._bind()
        return self.found

    # --- where losses go --------------------------------------------------------------------

    def _sinks(self) -> list[Sink]:
        found, wrappers = [], []
        for call in self.names.calls:
            sink = self._sink(call)
            if sink is None:
                continue
            if name := self._engine(sink):
                self._refuse(sink, _ENGINE.format(name))
                continue
            place = self._parameter(sink.loss)
            if place is not None and (sink.gradients or sink.weights is not None):
                continue  # refused where it is called
            if place is not None:
                wrappers.append((*place, sink))
            else:
                found.append(sink)
        for function, index, name, sink in wrappers:
            callers = self._through(function, index, name, sink)
            if not callers:
                self.found.handed[id(sink.call.func)] = name
            found += callers
        found += self._by_name()
        order = {id(call): place for place, call in enumerate(self.names.calls)}
        # What runs under a condition is computed again for it: the others have to run without.
        return sorted(found, key=lambda s: (self._branches(s.call), order[id(s.call)]))

    def _engine(self, sink: Sink) -> str:
        """Return the name of a network whose own ``backward`` is handed a loss; "" for none."""
        func: Any = sink.call.func
        if not sink.call.args or getattr(func, "value", None) is not sink.loss:
            return ""
        return code_of(sink.loss) if is_module(self.at, sink.loss) else ""

    def _branches(self, node: cst.CSTNode) -> int:
        """Return how many conditions of its function a node stands under."""
        count = 0
        for above in self.names.ancestors(node):
            if isinstance(above, cst.FunctionDef):
                break
            count += isinstance(above, cst.If)
        return count

    def _sink(self, call: cst.Call) -> Sink | None:
        if asked := gradient_call(call, self.at):
            return Sink(call, *self._unscaled(asked[0]), gradients=asked[1])
        if by_weights := weights_call(call, self.at):
            return Sink(call, *self._unscaled(by_weights[0]), weights=by_weights[1])
        if not isinstance(call.func, cst.Attribute) or call.func.attr.value != "backward":
            return None
        if loss := accelerated(call, self.at):
            return Sink(call, loss, code_of(call.func.value))
        if self.names.called(call) is not None or called(call, self.at):
            return None  # a method of the class itself has the loss
        inside: Any = call.func.value
        of_apex = self._scaled_by_apex(inside)
        if of_apex is not None:
            return Sink(call, *of_apex)
        return Sink(call, *self._unscaled(inside))

    def _unscaled(self, loss: Any) -> tuple[Any, str]:
        """Return the loss of ``scaler.scale(loss)`` and its scaler; of another one itself."""
        scaled = isinstance(loss, cst.Call) and isinstance(loss.func, cst.Attribute)
        if scaled and loss.func.attr.value == "scale" and len(loss.args) == 1:
            holder = loss.func.value
            return loss.args[0].value, code_of(holder) if dotted(holder) else ""
        return loss, ""

    def _scaled_by_apex(self, scaled: Any) -> tuple[cst.BaseExpression, str, str] | None:
        """Return the loss of ``with amp.scale_loss(loss, o) as scaled``, its scaler and ``o``."""
        if not isinstance(scaled, cst.Name):
            return None
        for binding in self.names.scope(scaled).find(scaled.value):
            if binding.kind != "with" or not isinstance(binding.value, cst.Call):
                continue
            if self.names.called(binding.value) == "apex.amp.scale_loss":
                order = ("loss", "optimizers", "loss_id", "model", "delay_unscale")
                given = arguments(binding.value, order)
                number = code_of(given["loss_id"]) if "loss_id" in given else ""
                holders = code_of(given["optimizers"]) if "optimizers" in given else ""
                return given["loss"], f"port.apex.scaler({number})", holders
        return None

    def _parameter(self, loss: cst.BaseExpression) -> tuple[cst.FunctionDef, int, str] | None:
        """Return the function whose parameter a loss is, with its place and name."""
        if not isinstance(loss, cst.Name):
            return None
        bindings = self.names.scope(loss).find(loss.value)
        if not bindings or any(b.kind != "param" for b in bindings):
            return None
        function = self.names.enclosing(bindings[0].node, cst.FunctionDef)
        if function is None:
            return None
        params = [*function.params.posonly_params, *function.params.params]
        if self._is_method(function):
            params = params[1:]
        index = next((i for i, p in enumerate(params) if p.name.value == loss.value), -1)
        return function, index, loss.value

    def _is_method(self, function: cst.FunctionDef) -> bool:
        holder = self.names.enclosing(function, cst.ClassDef, cst.FunctionDef)
        return isinstance(holder, cst.ClassDef)

    def _through(
        self, function: cst.FunctionDef, index: int, name: str, within: Sink
    ) -> list[Sink]:
        """Return the calls that hand a loss to ``function``."""
        holder = self.names.enclosing(function, cst.ClassDef)
        calls = self.names.callers(function.name.value)
        if function.name.value == "__call__":
            calls = [c for c in self.names.calls if self.names.class_named(c.func) is holder]
        found = []
        for call in calls:
            for place, arg in enumerate(call.args):
                keyword = arg.keyword.value if arg.keyword else ""
                meant = keyword == name or (not keyword and not arg.star and place == index)
                if meant and self._parameter(arg.value) is None:
                    found.append(Sink(call, arg.value, within=within))
        return found

    def _by_name(self) -> list[Sink]:
        """Return calls such as ``loss_scaler(loss, optimizer)`` of a class from another file."""
        found = []
        for call in self.names.calls:
            text = dotted(call.func).rpartition(".")[2].lower()
            if (
                "scaler" not in text
                or not call.args
                or self.names.class_named(call.func) is not None
            ):
                continue
            if self.names.called(call) is not None:
                continue
            if isinstance(call.func, cst.Attribute) and code_of(call.func.value) != "self":
                continue
            if "loss" in code_of(call.args[0].value).lower():
                found.append(Sink(call, call.args[0].value))
        return found

    # --- what they are made of --------------------------------------------------------------

    def _plan(self, sink: Sink, done: dict[tuple[int, str], Sink]) -> None:
        wanted = read(sink.loss)
        found = self._find(sink, wanted)
        if found is None:
            if self._parameter(sink.loss) is None:  # else it is planned where it is made
                self._refuse(sink, "what its loss is made of was not found in this function")
            return
        block, part, end = found
        key = (id(block), f"{part.places[-1] if part.places else end}:{code_of(sink.loss)}")
        simple = isinstance(sink.loss, cst.Name)
        if key in done:
            self._as_its_first(sink, done[key])
            return
        if not simple and wanted & set(assigned(block.body[end])):
            why = "its loss reads what is made only where the backward pass is: name it there"
            self._refuse(sink, why)
            return
        done[key] = sink
        for place in part.places:
            if jumps(block.body[place]):
                why = "the statements that make its loss leave the function or loop: move the jump"
                self._refuse(sink, why)
                return
        nodes = [*(block.body[place] for place in part.places), sink.loss]
        if name := handed_in(nodes, sink.call, self.at):
            self._tear(sink, _HANDED_IN.format(name))
            return
        if name := without_network(nodes, part.needed, sink.call, self.at):
            self._tear(sink, _WITHOUT.format(name))
            return
        lines = [block.body[place] for place in part.places]
        if held := {name for line in lines for name in self._kept(line)}:
            self.found.torn[id(sink.call)] = _KEPT.format(min(held))
        front: list[Any] = []
        unsure: list[Any] = []
        if afar := self._afar(lines, sink):
            why = self.found.torn[id(sink.call)] = _AFAR.format(min(afar))
            again_first = self._rerun(afar, block, part)
            if again_first is None:
                self._refuse(sink, why)
                return
            front, unsure = [again_first.line], again_first.unsure
        passes = [one for place in part.places for one in own_passes(block.body[place], self.at)]
        if passes:
            self._refuse(sink, _OWN_PASS.format(passes[0].name.value))
            return
        if name := kept_outside(nodes, part.needed - set(afar), sink.call, self.at):
            self._tear(sink, _AFAR.format(name))
            return
        if any(_moves(block.body[place], _MOVING - {"zero_grad"}) for place in part.places):
            why = "an optimizer steps among the statements that make its loss: move it out of them"
            self._refuse(sink, why)
            return
        if self._comes_late(sink, block.body[part.places[-1] + 1 : end]):
            self._refuse(sink, "its scaler is chosen after the loss: choose it in front of it")
            return
        own = {p for plan in self.found.blocks.get(id(block), []) for p in plan.places}
        again = [place for place in part.places if place in own]
        places = [place for place in part.places if place not in own]
        if not places:
            self._refuse(sink, "a second backward pass through one forward pass: add the losses")
            return
        made = {name for place in again for name in assigned(block.body[place])}
        made -= plain_values([block.body[place] for place in again], self.at)
        if constant([*(block.body[place] for place in places), sink.loss], made):
            again = []  # as they were computed: by other weights than those of now, perhaps
        kept = self._needed(block, again, places, sink, made)
        again = kept or []
        late = self._moved_weights(block, again, places)
        again, values = self._as_before(block, again, places, late, sink)
        if kept is None or self._moved_since(block, again, places):
            why = (
                "a value that is detached there is of before an optimizer's step: make it a loss's"
            )
            self._refuse(sink, why)
            return
        every, jumped, sunk = self._with_between(block, places), False, False
        if any(jumps(block.body[place]) for place in every):
            cut = None if again else around_jump(block.body, places, every[-1], self.at)
            if cut is None:
                self._refuse(sink, _JUMP)
                return
            again, places = cut
            every, jumped = self._with_between(block, places), True
        places = every
        if outside := made_outside(block, part, self.at):
            why = _OUTSIDE.format(outside.name)
            self.found.torn[id(sink.call)] = why
            group = None if front else self._group(outside, block, sink)
            once_more = outside.once_more(self.at)
            if group is not None:
                front, sunk = group.lines, True
            elif front or once_more is None or self._is_taken(once_more):
                self._refuse(sink, why)
                return
            else:
                front = once_more
                self._fronts |= {id(line) for line in front}
        if any(id(block.body[place]) in self._fronts for place in places):
            self._refuse(sink, _FRONT)
            return
        lines = [*front, *(block.body[place] for place in sorted({*places, *again}))]
        inputs = self._inputs(block, lines, min((*places, *again)), sink)
        if sink.gradients and set(sink.gradients) - set(inputs):
            self._refuse(sink, "its loss is no function of that tensor where it is made")
            return
        nodes = [*front, *(block.body[place] for place in part.places)]
        parts = [] if sink.gradients else self._parts(nodes, sink)
        if not sink.gradients and all(self._starts_as_none(part, nodes[0]) for part in parts):
            parts += [one for one in self._stepping(sink) if one not in parts]
        if not parts and not inputs:
            self._refuse(sink, "no network is in sight that its loss comes from")
            return
        if not inputs and all(self._may_be_none(one, sink) for one in parts):
            self._tear(sink, _OPTIONAL.format(parts[0]))
            return
        bound = code_of(sink.loss) if simple else self._fresh("total_loss")
        plan = Plan(sink, block, places, again, parts, self._fresh("forward"), bound, sink.loss)
        plan.parts = [*parts, *(one for part in parts for one in self._more_weights(part))]
        plan.inputs, plan.condition = inputs, self._condition(block, places, sink)
        plan.front, plan.sunk, plan.twice = front, sunk, jumped or bool(front)
        for name in values:
            plan.saved[name] = fresh = self._fresh(f"{name}_before")
            plan.restored[name] = f"{fresh}.detach()"
        plan.late = sorted(late & {n for p in again for n in weights_run(block.body[p], self.at)})
        if inputs:
            self.found.inputs[id(sink.call)] = inputs
        if not simple:
            self.found.losses[id(sink.loss)] = bound
        own = {*part.places, *again}
        between = [block.body[place] for place in places if place not in own]
        plan.unsure = [line for line in between if handed_weights(line, self.at)]
        plan.between = unsure
        self._save(plan)
        self._share(plan)
        plan.moved = self._moved(plan)
        self.found.blocks.setdefault(id(block), []).append(plan)

    def _group(self, outside: Outside, block: Any, sink: Sink) -> _Group | None:
        """Return the branches that a loss's block is one of, where all of them run a network."""
        known = next((g for g in self._groups if any(leaf is block for leaf in g.leaves)), None)
        if known is not None:
            lines = {id(line) for line in known.lines}
            return known if sink in known.sinks and lines >= set(map(id, outside.lines)) else None
        around = leaves_around(block, self.at)
        if around is None or outside.loops:
            return None
        chosen, leaves = around
        inside = [one for one in self.found.sinks if self._is_below(one.call, chosen)]
        needed = [line for one in inside for line in self._needed_around(one, leaves)]
        group = _Group(may_sink([*outside.lines, *needed], chosen, self.at), leaves, inside)
        if not group.lines or self._is_taken(group.lines) or not self._all_make(group):
            return None
        for other in self.found.sinks:
            found = None if other in inside else self._find(other, read(other.loss))
            lines = {id(found[0].body[place]) for place in found[1].places} if found else set()
            if any(id(one) in lines for one in group.lines):
                return None
        self._groups.append(group)
        self.found.sunk.update(id(line) for line in group.lines)
        return group

    def _needed_around(self, sink: Sink, leaves: list[Any]) -> list[Any]:
        """Return what a loss of one of several branches needs of the block around them."""
        found = self._find(sink, read(sink.loss))
        if found is None or not found[1].places or not any(found[0] is leaf for leaf in leaves):
            return []
        outside = made_outside(found[0], found[1], self.at)
        return [] if outside is None else outside.lines

    def _is_below(self, node: cst.CSTNode, top: cst.CSTNode) -> bool:
        return any(above is top for above in self.names.ancestors(node))

    def _all_make(self, group: _Group) -> bool:
        """Return whether each branch makes its losses itself, and nothing else in front of them."""
        held: set[int] = set()
        for sink in group.sinks:
            found = self._find(sink, read(sink.loss))
            leaf = next((one for one in group.leaves if found and found[0] is one), None)
            if found is None or leaf is None or not found[1].places:
                return False
            first = found[1].places[0]
            if not untouched(leaf.body[:first], group.lines, self.at):
                return False
            held.add(id(leaf))
        return len(held) == len(group.leaves)

    def _raise_again(self) -> None:
        """Refuse all branches of a network where one of them has no plan: it has to run there."""
        for group in self._groups:
            plans = [p for leaf in group.leaves for p in self.found.blocks.get(id(leaf), [])]
            left = [one for one in group.sinks if id(one.call.func) in self.found.refused]
            if not left and plans and all(plan.sunk for plan in plans):
                continue
            self.found.sunk.difference_update(id(line) for line in group.lines)
            for plan in plans:
                self.found.blocks[id(plan.block)].remove(plan)
                for _, nested in self._nested.values():
                    if plan in nested:
                        nested.remove(plan)
            for sink in group.sinks:
                self._refuse(sink, _FRONT)

    def _as_its_first(self, sink: Sink, first: Sink) -> None:
        """Treat a backward pass as the earlier one of its loss: refused, or by the loss's name."""
        if bound := self.found.losses.get(id(first.loss)):
            self.found.losses[id(sink.loss)] = bound
        for found, one, other in (
            (self.found.refused, first.call.func, sink.call.func),
            (self.found.torn, first.call, sink.call),
        ):
            if id(one) in found:
                found.setdefault(id(other), found[id(one)])

    def _tear(self, sink: Sink, why: str) -> None:
        """Refuse a loss in every form: a network that it needs runs elsewhere."""
        self.found.torn[id(sink.call)] = why
        self._refuse(sink, why)

    def _is_taken(self, lines: list[Any]) -> bool:
        """Return whether a plan before has moved one of some statements."""
        plans = (plan for block in self.found.blocks.values() for plan in block)
        taken = {id(plan.block.body[place]) for plan in plans for place in plan.places}
        return any(id(line) in taken for line in lines)

    def _inputs(self, block: Any, lines: list[Any], first: int, sink: Sink) -> tuple[str, ...]:
        """Return the tensors that a loss's function takes: their gradients are read."""
        names = {name for node in (*lines, sink.loss) for name in read(node)}
        made = {name for line in lines for name in assigned(line)}
        return inputs_read(names, made, sink.call, block, first, self.at)

    def _save(self, plan: Plan) -> None:
        """Find what is computed again from names that are overwritten there: ``y = cut(y)``."""
        lines = [only(plan.block.body[place], plan.wanted) for place in plan.again]
        made = {name for line in lines for name in assigned_first(line)}
        for name in sorted(needs(lines) & made):
            for owner in self.found.blocks[id(plan.block)]:
                if set(owner.places) & set(plan.again):
                    fresh = owner.saved.get(name) or self._fresh(f"{name}_before")
                    owner.saved[name] = plan.restored[name] = fresh

    def _condition(self, block: Any, places: list[int], sink: Sink) -> Any:
        """Return the condition under which alone a loss is made, where it is that of its use."""
        wanted = read(sink.loss)
        makers = [block.body[p] for p in places if set(assigned(block.body[p])) & wanted]
        if not makers or not all(isinstance(one, cst.If) and not one.orelse for one in makers):
            return None
        users = [one for one in self.names.ancestors(sink.call) if isinstance(one, cst.If)]
        tests = {code_of(one.test) for one in makers}
        return (
            makers[0].test if len(tests) == 1 and tests & {code_of(u.test) for u in users} else None
        )

    def _needed(
        self, block: Any, again: list[int], places: list[int], sink: Sink, made: set[str]
    ) -> list[int] | None:
        """Leave out what would be computed again and is read detached, or not at all."""
        if not again or not any(_moves(line) for line in block.body[again[-1] + 1 : places[0]]):
            return again
        nodes = [*(block.body[place] for place in places), sink.loss]
        lines = [only(block.body[place], needs(nodes)) for place in again]
        kept = needed_again(lines, nodes, made)
        if kept is None:
            return None
        return [p for p, line in zip(again, lines, strict=True) if any(line is k for k in kept)]

    def _moved_since(self, block: Any, again: list[int], places: list[int]) -> bool:
        """Whether what would be computed again has detached values, and weights moved since."""
        if not again:
            return False
        wanted = needs(block.body[place] for place in places)
        lines = [only(block.body[place], wanted) for place in again]
        made = {name for line in lines for name in assigned_first(line)}
        steps = any(_moves(line) for line in block.body[again[-1] + 1 : places[0]])
        return steps and any(detaches(line, made) for line in lines)

    def _moved_weights(self, block: Any, again: list[int], places: list[int]) -> set[str]:
        """Return the networks that optimizers move between what is computed again and the loss."""
        if not again:
            return set()
        between = block.body[again[-1] + 1 : places[0]]
        steps = [call for line in between for call in calls_in(line) if _is_step(call)]
        held = [call.args[0].value if call.args else call.func.value for call in steps]  # type: ignore[attr-defined]
        makers = [maker for one in held if (maker := maker_of(one, self.at)) is not None]
        return {name for maker in makers if (name := model_of(maker))}

    def _as_before(
        self, block: Any, again: list[int], places: list[int], late: set[str], sink: Sink
    ) -> tuple[list[int], list[str]]:
        """Leave out what runs networks alone that have moved since; return the names it makes.

        They are of before. What the loss would add to the gradients of these networks has to be
        forgotten before they move again.
        """
        forgotten = {name for name in late if self._forgets(name, sink)}
        runs = {place: weights_run(block.body[place], self.at) for place in again}
        left = {place for place, run in runs.items() if run and not run - forgotten}
        kept = [place for place in again if place not in left]
        wanted = needs([*(block.body[p] for p in kept), *(block.body[p] for p in places)])
        values = sorted(wanted & {name for p in left for name in assigned(block.body[p])})
        for owner in self.found.blocks.get(id(block), []):
            if left & set(owner.places):
                owner.kept += [name for name in values if name not in owner.kept]
        return kept, values

    def _forgets(self, network: str, sink: Sink) -> bool:
        """Return whether the function of a loss zeroes a network's gradients by some name."""
        home = self.names.enclosing(sink.call, cst.FunctionDef)
        for call in self.names.callers("zero_grad"):
            if not isinstance(call.func, cst.Attribute):
                continue
            held = call.func.value
            maker = maker_of(held, self.at)
            named = {code_of(held), model_of(maker) if maker is not None else ""}
            if self.names.enclosing(call, cst.FunctionDef) is home and network in named:
                return True
        return False

    def _comes_late(self, sink: Sink, between: Sequence[Any]) -> bool:
        """Whether what the scaler is found by is assigned between the loss and its use."""
        if not sink.scaler:
            return False
        names = read(cst.parse_expression(sink.scaler))
        return any(set(assigned(line)) & names for line in between)

    def _with_between(self, block: Any, places: list[int]) -> list[int]:
        """Take along what stands between the statements of a loss, in its order.

        ``value = loss.item()`` in front of ``loss = loss / steps`` has to stay there, and so has
        ``model.eval()`` between two forward passes. Only calls that move optimizers stay out.
        """
        taken = {p for plan in self.found.blocks.get(id(block), []) for p in plan.places}
        every = set(places)
        for place in range(places[0] + 1, places[-1]):
            line = block.body[place]
            if place not in taken and not _moves(line) and not own_passes(line, self.at):
                every.add(place)
        return sorted(every)

    def _refuse(self, sink: Sink, why: str) -> None:
        self.found.refused[id(sink.call.func)] = why

    def _find(self, sink: Sink, wanted: set[str]) -> tuple[Any, Slice, int] | None:
        """Return the nearest block around a backward pass that makes ``wanted`` before it.

        What blocks on the way only divide is made further out.
        """
        inner: cst.CSTNode = sink.call
        divided: list[Division] = []
        nearest: tuple[Any, Slice, int] | None = None
        for outer in self.names.ancestors(sink.call):
            if isinstance(outer, (cst.IndentedBlock, cst.Module)):
                end = next(i for i, line in enumerate(outer.body) if line is inner)
                part = self._part(outer, end, wanted, sink)
                more = self._divided(outer, end, wanted, sink)
                if more:
                    divided += more
                    nearest = nearest or ((outer, part, end) if part.places else None)
                elif part.places:
                    self._divide(divided, sink)
                    return outer, part, end
                elif any(set(assigned(line)) & wanted for line in outer.body[:end]):
                    return nearest
            if isinstance(outer, (cst.FunctionDef, cst.ClassDef)):
                break
            wanted = wanted - bound_by(outer)
            inner = outer
        return nearest

    def _part(self, outer: Any, end: int, wanted: set[str], sink: Sink) -> Slice:
        """Return what makes ``wanted`` in a block; with its data where that has gradients."""
        part = slice_of(outer.body, end, wanted, self.at, more=self._kept)
        whole = slice_of(outer.body, end, wanted, self.at, whole=True, more=self._kept)
        lines = [outer.body[place] for place in whole.places]
        graded = len(whole.places) > len(part.places) and (
            made_outside(outer, whole, self.at) or self._afar(lines, sink)
        )
        return whole if graded else part

    def _divided(self, outer: Any, end: int, wanted: set[str], sink: Sink) -> list[Division]:
        """Return what a block does to a loss of a block around it, where it only divides it."""
        if sink.gradients or sink.weights is not None:
            return []
        whole = slice_of(outer.body, end, wanted, self.at, whole=True, more=self._kept)
        return divisions([outer.body[p] for p in whole.places], sink.loss, self.at) or []

    def _divide(self, divided: list[Division], sink: Sink) -> None:
        """Have the statements that divide a loss divide its gradients as well."""
        for one in divided:
            self.found.divided[id(one.node)] = code_of(sink.loss), one
            self.found.torn[id(sink.call)] = _DIVIDED.format(code_of(sink.loss))

    def _kept(self, line: Any) -> set[str]:
        """Return the attributes with gradients that a statement sets by the methods it calls."""
        return {name for _, made in kept_by_methods(line, self.at) for name in made}

    def _afar(self, lines: list[Any], sink: Sink) -> dict[str, list[Any]]:
        """Return what a loss differentiates that networks made in other functions, and where."""
        home = self.names.enclosing(sink.call, cst.FunctionDef)
        if home is None or sink.gradients:
            return {}
        graded, made = self.at.once(Graded), {name for line in lines for name in self._kept(line)}
        asked = read_for_gradients(lines, sink.loss, self.at) - made
        found = {name: graded.afar(name, home) for name in sorted(asked)}
        return {name: makers for name, makers in found.items() if makers}

    def _rerun(self, afar: dict[str, list[Any]], block: Any, part: Slice) -> Rerun | None:
        """Return the method that a loss runs once more for what it keeps; None for none."""
        home = self.names.enclosing(block, cst.FunctionDef)
        if block is not home.body or any(not name.startswith("self.") for name in afar):
            return None
        makers = [one for found in afar.values() for one in found]
        return rerun(makers, home, block.body[: part.places[0]], self.at)

    def _parts(self, nodes: list[Any], sink: Sink) -> list[str]:
        local = {name for node in nodes for name in assigned(node)}
        local -= {name for node in nodes for name in self._given_again(node)}
        found: list[str] = []
        for node in [*nodes, sink.loss]:
            self._candidates(node, local, found, set())
        return [self._held(text, nodes) for text in found]

    def _given_again(self, node: cst.CSTNode) -> set[str]:
        """Return what is handed to a call that gives it back: ``model, loss = step(model, x)``."""
        return {
            name
            for line in below(node)
            if isinstance(line, cst.Assign) and isinstance(line.value, cst.Call)
            for arg in line.value.args
            if (name := dotted(arg.value)) and name in assigned(line)
        }

    def _may_be_none(self, name: str, sink: Sink) -> bool:
        """Return whether a name is a parameter of the function here that need not be given."""
        function = self.names.enclosing(sink.call, cst.FunctionDef)
        if function is None:
            return False
        given = [*function.params.params, *function.params.kwonly_params]
        defaults = [one.default for one in given if one.name.value == name]
        return any(one is not None and code_of(one) == "None" for one in defaults)

    def _more_weights(self, part: str) -> list[str]:
        """Return what a network is asked for besides ``parameters()``: it may hold more of them."""
        found: list[str] = []
        for call in self.names.calls:
            func = call.func
            if call.args or not isinstance(func, cst.Attribute) or dotted(func.value) != part:
                continue
            name = func.attr.value
            if _MORE.search(name) and f"*{code_of(call)}" not in found:
                found.append(f"*{code_of(call)}")
        return found

    def _stepping(self, sink: Sink) -> list[str]:
        """Return the optimizers that step in the same function: what they move gets gradients."""
        home = self.names.enclosing(sink.call, cst.FunctionDef)
        found: list[str] = []
        for call in self.names.callers("step"):
            func = call.func
            if self.names.enclosing(call, cst.FunctionDef) is not home:
                continue
            if not isinstance(func, cst.Attribute) or self.names.called(call) is not None:
                continue
            held = call.args[0].value if call.args else func.value
            text = _of_names(held)
            made = self.names.call_names(held)
            known = any(is_optimizer(name) for name in made)
            if text and text not in found and (known or (not made and "optim" in text.lower())):
                found.append(text)
        return found

    def _starts_as_none(self, text: str, node: cst.CSTNode) -> bool:
        """Return whether a name is None where nothing else was made of it: it has no weights."""
        bindings = self.names.scope(node).find(text)
        values = [b.value for b in bindings if b.kind == "value" and b.value is not None]
        return any(code_of(value) == "None" for value in values)

    def _held(self, text: str, nodes: list[cst.CSTNode]) -> str:
        """Return a network as it is, or as one that may not be there: a branch runs it."""
        if text.isidentifier():
            return self._bound(text, nodes)
        if not re.fullmatch(r"self\.\w+", text):
            return text
        calls = [c for node in nodes for c in calls_in(node) if dotted(c.func).startswith(text)]
        if not calls or not all(self._in_branch(call, nodes) for call in calls):
            return text
        owner = self.names.enclosing(calls[0], cst.ClassDef)
        given = [b.value for b in self.names.attribute(owner, text) if b.value is not None]
        if any(self.names.enclosing(value, cst.If) is None for value in given):
            return text
        return f'getattr(self, "{text.removeprefix("self.")}", None)'

    def _bound(self, name: str, nodes: list[cst.CSTNode]) -> str:
        """Return a name as it is, or as one that its function may not have bound."""
        calls = [c for node in nodes for c in calls_in(node) if code_of(c.func) == name]
        if not calls or not all(self._in_branch(call, nodes) for call in calls):
            return name
        home = self.names.enclosing(calls[0], cst.FunctionDef)
        bindings = self.names.scope(calls[0]).bindings.get(name, [])
        made = [self.names.enclosing(b.node, cst.If) for b in bindings]
        if (
            not made
            or None in made
            or name in bound_before(nodes[0], home or self.at.module, self.at)
        ):
            return name
        return f'{"globals" if home is None else "locals"}().get("{name}")'

    def _in_branch(self, call: cst.Call, nodes: list[cst.CSTNode]) -> bool:
        """Return whether a call stands under a condition among the statements of a loss."""
        branches = (cst.If, cst.IfExp)
        around = [call, *self.names.ancestors(call)]
        ends = next((i for i, n in enumerate(around) if any(n is node for node in nodes)), 0)
        return any(isinstance(node, branches) for node in around[: ends + 1])

    def _candidates(
        self, node: cst.CSTNode, local: set[str], found: list[str], seen: set[int]
    ) -> None:
        for call in calls_in(node):
            name = self.names.called(call) or ""
            if name.startswith("torch."):
                continue
            given = [dotted(value) for value in networks_given(call, self.at)]
            if runs_imported(call, self.at):
                given.append(dotted(call.func))
            found += [t for t in given if t not in found and t.partition(".")[0] not in local]
            if name:
                continue
            text = self._candidate(call, local, found, seen)
            if text and text.partition(".")[0] not in local | {""} and text not in found:
                found.append(text)
        for name in parameters_read(node, self.at):
            if name not in found and name not in local:
                found.append(name)

    def _candidate(self, call: cst.Call, local: set[str], found: list[str], seen: set[int]) -> str:
        func = call.func
        if isinstance(func, cst.Subscript):  # self.model["generator"](x)
            text = _of_names(func)
            return text if text and is_module(self.at, func.value) else ""
        if isinstance(func, cst.Name):
            bindings = self.names.meanings(func)
            kinds = {b.kind for b in bindings}
            if kinds & {"def"}:
                self._in_functions(call, local, found, seen)
                return ""
            return func.value if kinds and not kinds & {"class", "import"} else ""
        if not isinstance(func, cst.Attribute):
            return ""
        text = dotted(func)
        owner = self.names.enclosing(call, cst.ClassDef)
        if text.startswith("self.") and text.count(".") == 1:
            if self.names.attribute(owner, text):
                return text
            if self._inside(owner, call, local, found, seen):
                return "self" if is_module(self.at, func.value) else ""
            return text  # of a base class in another file: no Cell says nothing
        if is_part_network(func, self.at):
            return text if is_module(self.at, func) else dotted(func.value)
        return dotted(func.value) if is_module(self.at, func.value) else ""

    def _inside(
        self, owner: Any, call: cst.Call, local: set[str], found: list[str], seen: set[int]
    ) -> bool:
        """Look into a method of the same class, if it is one: it runs networks of ``self``."""
        func: Any = call.func
        named = self.names.functions.get(func.attr.value, [])
        own = [one for one in named if self.names.enclosing(one, cst.ClassDef) is owner]
        for function in own:
            self._look_into(function, call, local, found, seen)
        return bool(own)

    def _in_functions(
        self, call: cst.Call, local: set[str], found: list[str], seen: set[int]
    ) -> None:
        """Look into the functions that a name stands for: for networks of the scopes around."""
        for function in called(call, self.at):
            self._look_into(function, call, local, found, seen)

    def _look_into(
        self,
        function: cst.FunctionDef,
        call: cst.Call,
        local: set[str],
        found: list[str],
        seen: set[int],
    ) -> None:
        """Find the networks of a function's body; of its parameters, what the call hands over."""
        given = _given(call, function, is_method=self._is_method(function))
        key = hash((id(function), *given.items()))
        if key in seen:
            return
        seen.add(key)
        own = _own_names(function)
        inner: list[str] = []
        self._candidates(function.body, own - set(given), inner, seen)
        for text in inner:
            root, dot, rest = text.partition(".")
            name = f"{given[root]}{dot}{rest}" if root in given else text
            outer = local if root in given else local | own
            if name.partition(".")[0] not in outer and name not in found:
                found.append(name)

    def _fresh(self, name: str) -> str:
        taken = self._functions | set(self.names.top.bindings)
        for scope in self.names._scopes.values():
            if scope.kind != "class":
                taken |= set(scope.bindings)
        number, fresh = 1, name
        while fresh in taken:
            number += 1
            fresh = f"{name}_{number}"
        self._functions.add(fresh)
        return fresh

    # --- names that both sides share --------------------------------------------------------

    def _share(self, plan: Plan) -> None:
        """Find the names that the function assigns and the rest of the scope reads."""
        every = sorted({*plan.places, *plan.again})
        made: list[str] = []
        bodies = [(place, plan.block.body[place]) for place in every]
        lines = [only(line, plan.wanted) if p in plan.again else line for p, line in bodies]
        sunk = plan.front if plan.sunk else []
        lines = [*sunk, *lines]
        before = plan.before
        before |= stale([*lines, cst.SimpleStatementLine([cst.Expr(plan.result)])])
        for line in lines:
            before |= read_first(line, set(made))
            made += [name for name in assigned_first(line) if name not in made]
        scope_node = self.names.enclosing(plan.sink.call, cst.FunctionDef, cst.ClassDef)
        top = scope_node is None or isinstance(scope_node, cst.ClassDef)
        root: Any = self.at.module if scope_node is None else scope_node
        skipped = {id(line) for line in (*sunk, *(plan.block.body[p] for p in plan.places))}
        if id(root) not in self._scopes:
            self._scopes[id(root)] = _parts(root)
        outside = _outside(self._scopes[id(root)], skipped)
        plan.word = "global" if top else "nonlocal"
        for name in dict.fromkeys(made):
            if name in before or (name in outside.read and name != plan.bound):
                plan.kept.append(name)
        if not top:
            declared = self.names.scope_of(root).outer
            if any(declared.get(n) == "global" for n in plan.kept):
                plan.word = "global"
            self._nested.setdefault(id(root), (root, []))[1].append(plan)

    def _bind(self) -> None:
        """Find the names that nothing but the new functions assigns: nonlocal needs a binding."""
        for root, plans in self._nested.values():
            inside = {id(plan.block.body[place]) for plan in plans for place in plan.places}
            inside |= {id(line) for plan in plans if plan.sunk for line in plan.front}
            given = root.params
            params = (*given.posonly_params, *given.params, *given.kwonly_params)
            bound = set(_outside(self._scopes[id(root)], inside).made)
            bound |= {param.name.value for param in params} | set(self.names.scope_of(root).outer)
            for plan in plans:
                missing = [name for name in plan.kept if name not in bound]
                plan.missing = [name for name in missing if name not in plan.before]
                started = [(name, id(plan.sink.call)) for name in missing if name in plan.before]
                self.found.started.setdefault(id(root.body), []).extend(started)
                bound |= set(missing)

    def _moved(self, plan: Plan) -> list[int]:
        """Return statements between those of the loss that read what it makes."""
        made = {n for place in plan.places for n in assigned(plan.block.body[place])}
        first, last = plan.places[0], plan.places[-1]
        moved = []
        for place in range(first + 1, last):
            if place in plan.places:
                continue
            line = plan.block.body[place]
            if read(line) & made or set(assigned(line)) & made:
                moved.append(place)
                made |= set(assigned(line))
        return moved


_JUMP = "a jump stands between the statements that make its loss: move it"
_OWN_PASS = "`{}` has a backward pass of its own, and what it returns may have gradients: detach it"
_ENGINE = (
    "`{}` is a network, and goes back by itself: an engine as DeepSpeed's, which has no equal; "
    "scale the loss by a scaler"
)
_HANDED_IN = "a network makes `{}` where this function is called: run it in this function"
_WITHOUT = (
    "no network is in sight that `{}` comes from, and its gradients would end here: run it in this "
    "function"
)
_OPTIONAL = (
    "no network is in sight that its loss comes from but `{}`, which may be None: have the file "
    "say what else it calls, as in self.model = Net()"
)
_FRONT = "another loss of a branch runs what makes it: make both in one block"
_KEPT = "it keeps {}, which a compiled function cannot"
_AFAR = (
    "a network makes `{}` in another function, and the gradients of it end here: make it in this "
    "function, or detach it"
)
_DIVIDED = "`{}` is divided in another block than the network's"
_OUTSIDE = "a network makes `{}` outside of the block that makes its loss: make both in one block"


def _own_names(function: cst.FunctionDef) -> set[str]:
    """Return the names that mean something of its own in a function, ``self`` aside."""
    params = function.params
    given = (*params.posonly_params, *params.params, *params.kwonly_params)
    own = {param.name.value for param in given} | set(assigned_first(function.body))
    return own - {"self"}


def _given(call: cst.Call, function: cst.FunctionDef, *, is_method: bool) -> dict[str, str]:
    """Return the names and attributes that a call hands to parameters of a function."""
    params = [*function.params.posonly_params, *function.params.params][int(is_method) :]
    names = [param.name.value for param in params]
    if any(arg.star for arg in call.args):
        return {}
    found = {name: dotted(value) for name, value in arguments(call, names).items()}
    return {name: text for name, text in found.items() if text}


def _of_names(node: Any) -> str:
    """Return the code of a name, an attribute, or a part of one by a constant; "" for others."""
    if isinstance(node, cst.Subscript):
        index = node.slice[0].slice if len(node.slice) == 1 else None
        plain = isinstance(index, cst.Index) and isinstance(
            index.value, (cst.SimpleString, cst.Integer)
        )
        return code_of(node) if plain and dotted(node.value) else ""
    return dotted(node)


_MORE = re.compile(r"^(?!named_).+_param(eter)?s$")
_MOVING = frozenset({"backward", "step", "update", "zero_grad", "unscale_", "clip_grad_norm_"})


def _moves(statement: cst.CSTNode, moving: Collection[str] = _MOVING) -> bool:
    """Return whether a statement runs gradients or optimizers."""
    names = (call.func for call in calls_in(statement))
    return any(
        isinstance(f, cst.Attribute) and f.attr.value in moving and not _is_anothers(f)
        for f in names
    )


def _is_step(call: cst.Call) -> bool:
    func = call.func
    return isinstance(func, cst.Attribute) and func.attr.value == "step" and not _is_anothers(func)


def _is_anothers(func: cst.Attribute) -> bool:
    """Return whether a method of that name is surely another thing's: a meter's, a game's."""
    held = code_of(func.value).lower()
    if func.attr.value == "update":
        return "scaler" not in held
    return func.attr.value == "step" and bool(re.search(r"(^|[._])envs?(_\w+)?$", held))


@dataclass
class _Outside:
    read: set[str]
    made: list[str]


@dataclass(frozen=True)
class _Part:
    """What one place of a scope reads and assigns, and the statements that it lies in."""

    inside: frozenset[int]
    read: frozenset[str]
    made: tuple[str, ...]


def _parts(root: Any) -> list[_Part]:
    """Return the places of a scope, in order; nested functions and classes included."""
    found: list[_Part] = []
    stack: list[int] = []
    own: list[set[str]] = [set()]  # of the nested functions around a place

    def add(names: Iterable[str], made: Iterable[str] = ()) -> None:
        outer = (name for name in made if name not in own[-1])
        found.append(_Part(frozenset(stack), frozenset(names) - own[-1], tuple(outer)))

    class _Walk(Walker):
        def on_visit(self, node: cst.CSTNode) -> bool:
            if isinstance(node, cst.BaseStatement):
                stack.append(id(node))
            if isinstance(node, cst.SimpleStatementLine):
                add(read(node), assigned_first(node))
                return False
            for part in ("test", "iter", "item", "default"):
                value = getattr(node, part, None)
                if isinstance(value, cst.CSTNode):
                    add(read(value))
            if isinstance(node, cst.For):
                add((), target_names(node.target))
            if isinstance(node, (cst.FunctionDef, cst.ClassDef)) and node is not root:
                add(read(node))
            if isinstance(node, cst.FunctionDef) and node is not root:
                own.append(own[-1] | (_own_names(node) - _of_outer(node)))
            return True

        def on_leave(self, node: cst.CSTNode) -> None:
            if isinstance(node, cst.FunctionDef) and node is not root:
                own.pop()
            if isinstance(node, cst.BaseStatement):
                stack.pop()

    _Walk().walk(root)
    return found


def _of_outer(function: cst.FunctionDef) -> set[str]:
    """Return the names that a function says are of the scope around it, or the module's."""
    kinds = (cst.Nonlocal, cst.Global)
    said = [one for one in below(function.body) if isinstance(one, kinds)]
    return {item.name.value for one in said for item in one.names}


def _outside(parts: list[_Part], skipped: set[int]) -> _Outside:
    """Return what a scope reads and assigns outside some statements."""
    names: set[str] = set()
    made: list[str] = []
    for part in parts:
        if part.inside.isdisjoint(skipped):
            names |= part.read
            made += part.made
    return _Outside(names, made)

"""Which statements every loss of a script is made of, and what becomes of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.children import calls_in
from mpcore_port.mindspore.loop.makers import maker_of, model_of
from mpcore_port.mindspore.rules.losses.afar import Graded, kept_by_methods, read_for_gradients
from mpcore_port.mindspore.rules.losses.carried import (
    constant,
    detaches,
    needed_again,
    plain_values,
    through,
    weights_run,
)
from mpcore_port.mindspore.rules.losses.divided import Division, divisions
from mpcore_port.mindspore.rules.losses.flow import Slice, slice_of
from mpcore_port.mindspore.rules.losses.inputs import GRADIENT, in_own_backward, inputs_read
from mpcore_port.mindspore.rules.losses.kept_outside import kept_outside
from mpcore_port.mindspore.rules.losses.methods import Rerun, rerun
from mpcore_port.mindspore.rules.losses.moving import MOVING, is_step, moves
from mpcore_port.mindspore.rules.losses.names_in import (
    assigned,
    assigned_first,
    bound_by,
    jumps,
    needs,
    read,
)
from mpcore_port.mindspore.rules.losses.networks_run import NetworksRun
from mpcore_port.mindspore.rules.losses.outside import handed_in, made_outside, without_network
from mpcore_port.mindspore.rules.losses.own_passes import own_passes
from mpcore_port.mindspore.rules.losses.planned import Plan, Plans, Sink
from mpcore_port.mindspore.rules.losses.shared_names import SharedNames, only
from mpcore_port.mindspore.rules.losses.sinks import parameter_of, sinks_of
from mpcore_port.mindspore.rules.losses.sunk import leaves_around, may_sink, untouched
from mpcore_port.mindspore.rules.losses.touching import handed_weights
from mpcore_port.mindspore.rules.losses.twice import around_jump
from mpcore_port.names import code_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mpcore_port.mindspore.rules.losses.outside import Outside
    from mpcore_port.rule import At

__all__ = ["plans_of", "trains_nothing"]


@dataclass(eq=False)
class _Group:
    """Branches of which one is taken, and the statements in front that their losses take along."""

    lines: list[Any]
    leaves: list[Any]
    sinks: list[Sink]


@dataclass(eq=False)
class _Draft:
    """What is known of a loss on the way to its plan; places are of statements of its block."""

    sink: Sink
    block: Any
    part: Slice
    end: int
    afar: dict[str, list[Any]] = field(default_factory=dict)
    """Names with gradients that networks make in other functions"""
    front: list[Any] = field(default_factory=list)
    unsure: list[Any] = field(default_factory=list)
    again: list[int] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    moved: list[int] = field(default_factory=list)
    """Places between them of what reads what they make"""
    late: set[str] = field(default_factory=set)
    """Networks that an optimizer has moved since"""
    values: list[str] = field(default_factory=list)
    """Names that stay as they were made before it has"""
    freed: set[int] = field(default_factory=set)
    """Places whose graph an earlier backward pass has let go: what they made is constant"""
    jumped: bool = False
    sunk: bool = False

    def lines(self, places: Iterable[int]) -> list[Any]:
        """Return statements of the block."""
        return [self.block.body[place] for place in places]


class _NoPlan(Exception):  # noqa: N818  # no error: a loss that has no plan
    """Why a loss is refused; ``torn`` where no form of the loop has it."""

    def __init__(self, why: str, *, torn: bool = False) -> None:
        super().__init__(why)
        self.why, self.torn = why, torn


def trains_nothing(at: At) -> bool:
    """Return whether nothing in a module looks like a backward pass, or like a scaler."""
    asked = at.names.callers("backward") or at.names.callers("grad")
    return not asked and not _asks_for_gradients(at) and "scaler" not in at.code.lower()


def _asks_for_gradients(at: At) -> bool:
    return "autograd" in at.code and any(
        at.names.called(call) == GRADIENT for call in at.names.calls
    )


def plans_of(at: At) -> Plans:
    """Find every backward pass and what its loss is made of; ask by ``at.once``."""
    return _Planner(at).make()


class _Planner:
    def __init__(self, at: At) -> None:
        self.at, self.names = at, at.names
        self.found = Plans()
        self.networks, self.shared = NetworksRun(at), SharedNames(at)
        self._fronts: set[int] = set()  # ids of statements that stay where a loss runs them again
        self._groups: list[_Group] = []  # branches of which one is taken, with what runs before

    def make(self) -> Plans:
        done: dict[tuple[int, str], Sink] = {}
        sinks = sinks_of(self.at)
        self.found.sinks.extend(sinks.found)
        self.found.handed.update(sinks.handed)
        self.found.refused.update(sinks.refused)
        for sink in self.found.sinks:
            self._plan(sink, done)
        self._raise_again()
        self._record_gradients()
        self.shared.bind(self.found.started)
        return self.found

    def _record_gradients(self) -> None:
        """Have ``torch.autograd.grad`` without a plan go back through what is recorded."""
        planned = {id(plan.sink.call) for block in self.found.blocks.values() for plan in block}
        by_weights = {id(sink.call) for sink in self.found.sinks if sink.weights is not None}
        gone = self.found.refused.keys() | self.found.recorded.keys()
        for call in self.names.calls:
            if self.names.called(call) != GRADIENT or id(call.func) in gone:
                continue
            if in_own_backward(call, self.at):
                self.found.apart.add(id(call.func))
                continue
            torn = id(call) in self.found.torn
            if id(call) not in planned | self.found.inputs.keys() | by_weights or torn:
                self.found.recorded[id(call.func)] = _ELSEWHERE

    def _plan(self, sink: Sink, done: dict[tuple[int, str], Sink]) -> None:
        """Plan one loss, or keep why it has no plan."""
        try:
            draft = self._drafted(sink, done)
            if draft is None:
                return
            self._check(draft)
            self._compute_again(draft)
            self._take_along(draft)
            self._write(draft)
        except _NoPlan as no:
            if no.torn:
                self.found.torn[id(sink.call)] = no.why
            self._go_back_recorded(sink, no.why)

    def _drafted(self, sink: Sink, done: dict[tuple[int, str], Sink]) -> _Draft | None:
        """Find the statements that make a loss; None where they are planned already."""
        wanted = read(sink.loss)
        found = self._find(sink, wanted)
        if found is None:
            if parameter_of(sink.loss, self.at) is None:  # else it is planned where it is made
                raise _NoPlan(_NOT_FOUND)
            return None
        block, part, end = found
        key = (id(block), f"{part.places[-1] if part.places else end}:{code_of(sink.loss)}")
        if key in done:
            self._as_its_first(sink, done[key])
            return None
        if not isinstance(sink.loss, cst.Name) and wanted & set(assigned(block.body[end])):
            raise _NoPlan(_NAMED_THERE)
        done[key] = sink
        return _Draft(sink, block, part, end)

    def _check(self, draft: _Draft) -> None:
        """Refuse statements that cannot be a function of their own; find the method in front."""
        sink, block, part = draft.sink, draft.block, draft.part
        lines = draft.lines(part.places)
        if any(jumps(line) for line in lines):
            raise _NoPlan(_LEAVES)
        nodes = [*lines, sink.loss]
        if name := handed_in(nodes, sink.call, self.at):
            raise _NoPlan(_HANDED_IN.format(name), torn=True)
        if name := without_network(nodes, part.needed, sink.call, self.at):
            raise _NoPlan(_WITHOUT.format(name), torn=True)
        if held := {name for line in lines for name in self._kept(line)}:
            self.found.torn[id(sink.call)] = _KEPT.format(min(held))
        draft.afar = self._afar(lines, sink)
        if draft.afar:
            why = self.found.torn[id(sink.call)] = _AFAR.format(min(draft.afar))
            again_first = self._rerun(draft.afar, block, part)
            if again_first is None:
                raise _NoPlan(why)
            draft.front, draft.unsure = [again_first.line], again_first.unsure
        passes = [one for line in lines for one in own_passes(line, self.at)]
        if passes:
            raise _NoPlan(_OWN_PASS.format(passes[0].name.value))
        if name := kept_outside(nodes, part.needed - set(draft.afar), sink.call, self.at):
            raise _NoPlan(_AFAR.format(name), torn=True)
        if any(moves(line, MOVING - {"zero_grad"}) for line in lines):
            raise _NoPlan(_STEPS)
        if self._comes_late(sink, block.body[part.places[-1] + 1 : draft.end]):
            raise _NoPlan(_LATE)

    def _compute_again(self, draft: _Draft) -> None:
        """Tell what is computed once more, as an earlier loss has made it, from what is its own."""
        sink, block, part = draft.sink, draft.block, draft.part
        own = {p for plan in self.found.blocks.get(id(block), []) for p in plan.places}
        again = [place for place in part.places if place in own]
        places = [place for place in part.places if place not in own]
        if not places:
            raise _NoPlan(_TWICE)
        made = {name for line in draft.lines(again) for name in assigned(line)}
        made -= plain_values(draft.lines(again), self.at)
        if constant([*draft.lines(places), sink.loss], made):
            again = []  # as they were computed: by other weights than those of now, perhaps
        again, freed = self._without_freed(draft, again, places)
        kept = self._needed(block, again, places, sink, made)
        again = kept or []
        draft.late = self._moved_weights(block, again, places)
        again, values = self._as_before(block, again, places, draft.late, sink)
        draft.values = sorted({*values, *freed})
        if kept is None or self._moved_since(block, again, places):
            raise _NoPlan(_DETACHED)
        every = self._with_between(block, places)
        if any(jumps(line) for line in draft.lines(every)):
            cut = None if again else around_jump(block.body, places, every[-1], self.at)
            if cut is None:
                raise _NoPlan(_JUMP)
            again, places = cut
            every, draft.jumped = self._with_between(block, places), True
        draft.again, draft.places = again, every

    def _take_along(self, draft: _Draft) -> None:
        """Have a loss run statements of a block around its own where they run its network."""
        sink, block = draft.sink, draft.block
        if outside := made_outside(block, draft.part, self.at):
            why = self.found.torn[id(sink.call)] = _OUTSIDE.format(outside.name)
            group = None if draft.front else self._group(outside, block, sink)
            once_more = outside.once_more(self.at)
            if group is not None:
                draft.front, draft.sunk = group.lines, True
            elif draft.front or once_more is None or self._is_taken(once_more):
                raise _NoPlan(why)
            else:
                draft.front = once_more
                self._fronts |= {id(line) for line in once_more}
        if any(id(line) in self._fronts for line in draft.lines(draft.places)):
            raise _NoPlan(_FRONT)
        draft.moved = self._moved(block, draft.places)
        behind = draft.lines(draft.moved)
        if any(moves(line, MOVING - {"zero_grad", "backward"}) for line in behind):
            raise _NoPlan(_STEPS)

    def _write(self, draft: _Draft) -> None:
        """Make the plan: what its function is called, runs, is given and shares."""
        sink, block, places, again = draft.sink, draft.block, draft.places, draft.again
        lines = [*draft.front, *draft.lines(sorted({*places, *again}))]
        inputs = self._inputs(block, lines, min((*places, *again)), sink)
        if sink.gradients and set(sink.gradients) - set(inputs):
            raise _NoPlan(_NO_FUNCTION)
        parts = self._networks(draft, inputs)
        own = {*draft.part.places, *again}
        between = draft.lines(place for place in places if place not in own)
        made = {name for line in between for name in assigned(line)}
        if late := next((part for part in parts if part.partition(".")[0] in made), ""):
            raise _NoPlan(_MADE_THERE.format(late), torn=True)
        simple, fresh = isinstance(sink.loss, cst.Name), self.shared.fresh
        bound = code_of(sink.loss) if simple else fresh("total_loss")
        plan = Plan(sink, block, places, again, parts, fresh("forward"), bound, sink.loss)
        plan.inputs, plan.condition = inputs, self._condition(block, places, sink)
        plan.front, plan.sunk = draft.front, draft.sunk
        plan.twice = draft.jumped or bool(draft.front)
        for name in draft.values:
            plan.saved[name] = before = fresh(f"{name}_before")
            plan.restored[name] = f"{before}.detach()"
        run_again = {name for line in draft.lines(again) for name in weights_run(line, self.at)}
        plan.late = sorted(draft.late & run_again)
        if inputs:
            self.found.inputs[id(sink.call)] = inputs
        if not simple:
            self.found.losses[id(sink.loss)] = bound
        plan.unsure = [line for line in between if handed_weights(line, self.at)]
        plan.between = draft.unsure
        self._save(plan)
        self.shared.share(plan)
        plan.moved = draft.moved
        self.found.blocks.setdefault(id(block), []).append(plan)

    def _networks(self, draft: _Draft, inputs: tuple[str, ...]) -> list[str]:
        """Return whose weights get gradients by a loss; it has to have some, or inputs."""
        sink, networks = draft.sink, self.networks
        own = (place for place in draft.part.places if place not in draft.freed)
        nodes = [*draft.front, *draft.lines(own)]
        parts = [] if sink.gradients else networks.of(nodes, sink)
        if not sink.gradients and all(networks.starts_as_none(part, nodes[0]) for part in parts):
            parts += [one for one in networks.stepping(sink) if one not in parts]
        elif networks.others and not all(networks.may_be_none(one, sink) for one in parts):
            parts += [one for one in networks.moved(sink, nodes) if one not in parts]
        before = "" if sink.gradients else networks.before(nodes)
        if before:
            raise _NoPlan(_BEFORE.format(before), torn=True)
        if not parts and not inputs:
            raise _NoPlan(_NO_NETWORK)
        if not inputs and all(networks.may_be_none(one, sink) for one in parts):
            raise _NoPlan(_OPTIONAL.format(parts[0]), torn=True)
        return [*parts, *(one for part in parts for one in networks.more_weights(part))]

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
            gone = self.found.refused.keys() | self.found.recorded.keys()
            left = [one for one in group.sinks if id(one.call.func) in gone]
            if not left and plans and all(plan.sunk for plan in plans):
                continue
            self.found.sunk.difference_update(id(line) for line in group.lines)
            for plan in plans:
                self.found.blocks[id(plan.block)].remove(plan)
                self.shared.forget(plan)
            for sink in group.sinks:
                self._go_back_recorded(sink, _FRONT)

    def _as_its_first(self, sink: Sink, first: Sink) -> None:
        """Treat a backward pass as the earlier one of its loss: refused, or by the loss's name."""
        if bound := self.found.losses.get(id(first.loss)):
            self.found.losses[id(sink.loss)] = bound
        if sink.scaler and not first.scaler:  # a branch without mixed precision stands first
            self.found.scaling.setdefault(id(first), sink)
        for found, one, other in (
            (self.found.refused, first.call.func, sink.call.func),
            (self.found.recorded, first.call.func, sink.call.func),
            (self.found.torn, first.call, sink.call),
        ):
            if id(one) in found:
                found.setdefault(id(other), found[id(one)])

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
                    fresh = owner.saved.get(name) or self.shared.fresh(f"{name}_before")
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
        if not again or not any(moves(line) for line in block.body[again[-1] + 1 : places[0]]):
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
        steps = any(moves(line) for line in block.body[again[-1] + 1 : places[0]])
        return steps and any(detaches(line, made) for line in lines)

    def _moved_weights(self, block: Any, again: list[int], places: list[int]) -> set[str]:
        """Return the networks that optimizers move between what is computed again and the loss."""
        if not again:
            return set()
        between = block.body[again[-1] + 1 : places[0]]
        steps = [call for line in between for call in calls_in(line) if is_step(call)]
        held = [call.args[0].value if call.args else call.func.value for call in steps]  # type: ignore[attr-defined]
        makers = [maker for one in held if (maker := maker_of(one, self.at)) is not None]
        return {name for maker in makers if (name := model_of(maker))}

    def _without_freed(
        self, draft: _Draft, again: list[int], places: list[int]
    ) -> tuple[list[int], list[str]]:
        """Leave out what an earlier backward pass went through; return the names it makes.

        Torch lets go of a graph that nobody retains, and would raise if a second pass came to it:
        what reads these names is detached where nobody sees it, in a helper of another file.
        """
        if not again:
            return again, []
        block = draft.block
        between = block.body[again[-1] + 1 : places[0]]
        plans = self.found.blocks.get(id(block), [])
        earlier = [plan for plan in plans if self._goes_back_between(plan.sink, between)]
        wanted = needs([*draft.lines(places), draft.sink.loss])
        for plan in earlier:
            found = self._find(plan.sink, read(plan.sink.loss))
            own = found[1].places if found is not None and found[0] is block else []
            for place in set(own) & set(again):
                made = set(assigned(block.body[place])) & wanted
                lines = [*draft.lines(q for q in own if q > place), plan.sink.loss]
                if (
                    made
                    and weights_run(block.body[place], self.at)
                    and through(lines, made, self.at)
                ):
                    draft.freed.add(place)
                    plan.kept += [name for name in sorted(made) if name not in plan.kept]
        kept = [place for place in again if place not in draft.freed]
        return kept, sorted({n for p in draft.freed for n in assigned(block.body[p])} & wanted)

    def _goes_back_between(self, sink: Sink, between: Sequence[Any]) -> bool:
        """Return whether one of some statements is the backward pass of a loss, graph and all."""
        return any(
            self._is_below(sink.call, line) and "retain_graph" not in code_of(line)
            for line in between
            if not isinstance(line, (cst.If, cst.For, cst.While, cst.Try))
        )

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
            if place not in taken and not moves(line) and not own_passes(line, self.at):
                every.add(place)
        return sorted(every)

    def _go_back_recorded(self, sink: Sink, why: str) -> None:
        """Have a loss without a plan go back through what is recorded."""
        self.found.recorded[id(sink.call.func)] = why.partition(": ")[0]

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

    def _moved(self, block: Any, places: list[int]) -> list[int]:
        """Return statements between those of the loss that read what it makes."""
        made = {n for place in places for n in assigned(block.body[place])}
        first, last = places[0], places[-1]
        moved = []
        for place in range(first + 1, last):
            if place in places:
                continue
            line = block.body[place]
            if read(line) & made or set(assigned(line)) & made:
                moved.append(place)
                made |= set(assigned(line))
        return moved


_ELSEWHERE = "what it is the gradient of is no loss of this function alone"
_NOT_FOUND = "what its loss is made of was not found in this function"
_LATE = "its scaler is chosen after the loss: choose it in front of it"
_NO_FUNCTION = "its loss is no function of that tensor where it is made"
_NO_NETWORK = "no network is in sight that its loss comes from"
_NAMED_THERE = "its loss reads what is made only where the backward pass is: name it there"
_MADE_THERE = "`{}` is made among the statements that make its loss: make it in front of them"
_LEAVES = "the statements that make its loss leave the function or loop: move the jump"
_STEPS = "an optimizer steps among the statements that make its loss: move it out of them"
_TWICE = "a second backward pass through one forward pass: add the losses"
_DETACHED = "a value that is detached there is of before an optimizer's step: make it a loss's"
_JUMP = "a jump stands between the statements that make its loss: move it"
_OWN_PASS = "`{}` has a backward pass of its own, and what it returns may have gradients: detach it"
_HANDED_IN = "a network makes `{}` where this function is called: run it in this function"
_WITHOUT = (
    "no network is in sight that `{}` comes from: its gradients would end here; run it in this "
    "function"
)
_BEFORE = "`{}`, in front of what its loss is made of, may run a network that nothing here names"
_OPTIONAL = (
    "no network is in sight that its loss comes from but `{}`, which may be None: have the file "
    "say what else it calls, as in self.model = Net()"
)
_FRONT = "another loss of a branch runs what makes it: make both in one block"
_KEPT = "it keeps {}, which a compiled function cannot"
_AFAR = (
    "a network makes `{}` in another function: the gradients of it end here; make it in this "
    "function, or detach it"
)
_DIVIDED = "`{}` is divided in another block than the network's"
_OUTSIDE = "a network makes `{}` outside of the block that makes its loss: make both in one block"

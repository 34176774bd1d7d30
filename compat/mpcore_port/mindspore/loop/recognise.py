"""From a scope's statements to its training steps, or to the line that is in the way."""

from __future__ import annotations

import re
import textwrap
import tokenize
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.children import below, calls_in
from mpcore_port.mindspore.loop.covered import covers
from mpcore_port.mindspore.loop.description import (
    Block,
    Forward,
    Group,
    Line,
    NotPlain,
    Opened,
)
from mpcore_port.mindspore.loop.forwards import forward_of
from mpcore_port.mindspore.loop.lines import Taken, every
from mpcore_port.mindspore.loop.makers import maker_of, model_of, stepping
from mpcore_port.mindspore.rules.losses.between import disturbed
from mpcore_port.mindspore.rules.losses.carried import (
    carrying,
    constant,
    needed_again,
    plain_values,
    values_alone,
    weights_run,
)
from mpcore_port.mindspore.rules.losses.lasting import lasts
from mpcore_port.mindspore.rules.losses.names_in import (
    assigned,
    assigned_first,
    jumps,
    needs,
    read,
    set_parts,
    surely_made,
)
from mpcore_port.mindspore.rules.losses.networks_in import parameters_read
from mpcore_port.mindspore.rules.losses.touching import is_known, may_touch
from mpcore_port.mindspore.rules.losses.twice import keeps_nothing
from mpcore_port.mindspore.rules.place import is_module
from mpcore_port.names import code_of, dotted
from mpcore_port.places import raw
from mpcore_port.scan import is_clip
from mpcore_port.values import vocabulary

if TYPE_CHECKING:
    from mpcore_port.mindspore.loop.acts import Acts
    from mpcore_port.rule import At

__all__ = ["Steps", "steps_of_scope"]

_LOOPS = (cst.For, cst.While)


@dataclass(eq=False)
class Steps:
    """The training steps of one scope.

    Attributes:
        node: the function or module.
        block: its lines.
        groups: the steps, in order.
        late: lines that read what a loss is made of, and come behind the step, by its group.
        joint: lines that move a scale that several groups share, and the groups.
        cleared: lines outside of a window's loop that zero what it has added up, and its group.
        valued: lines that make numbers of networks, which a later loss is handed.
        opened: regions and branches that are gone, their lines apart.
    """

    node: Any
    block: Block
    groups: list[Group] = field(default_factory=list)
    late: dict[int, list[Line]] = field(default_factory=dict)
    joint: dict[int, list[Group]] = field(default_factory=dict)
    cleared: dict[int, Group] = field(default_factory=dict)
    valued: set[int] = field(default_factory=set)
    opened: list[Opened] = field(default_factory=list)


def steps_of_scope(node: Any, acts: Acts, at: At) -> Steps:
    """Return the steps of a function or module.

    Raises:
        NotPlain: the description cannot hold one of them.
    """
    body = node.body if isinstance(node, cst.Module) else node.body.body
    taken = Taken(acts)
    steps = Steps(node, taken.block(body))
    steps.opened = [one for one in taken.opened if _is_used(one.node, steps)]
    _Grouping(steps, at).run()
    for place, group in enumerate(steps.groups):
        _hand_in(group, steps, place, at)
    for forward in (one for group in steps.groups for one in group.forwards):
        _check_parts(forward, steps)
    made = {id(line) for g in steps.groups for f in g.forwards for line in f.lines}
    for group in steps.groups:
        _check_zeros(group, steps, at)
        steps.late[id(group)] = _late_of(group, made, steps, at)
    _name(steps.groups)
    return steps


def _check_parts(forward: Forward, steps: Steps) -> None:
    """Raise if the loss sets a part of an input that others read: a step's function has a copy.

    Raises:
        NotPlain: another line reads more of it than its sizes.
    """
    parts = {name for line in forward.lines for name in set_parts(line.node)}
    parts -= {name for line in forward.lines for name in surely_made(line.node)}
    for line, _ in every(steps.block) if parts else ():
        if any(line is one for one in forward.lines):
            continue
        text = _SIZES.sub("", _words(line.node))
        for name in sorted(parts & read(line.node)):
            if re.search(rf"(?<![\w.]){name}\b", text) and name not in assigned_first(line.node):
                raise NotPlain(line.node, f"it reads {name}, of which the loss sets a part")


_SIZES = re.compile(r"(?<![\w.])\w+\.(size\(|shape\b|dim\(|device\b|dtype\b)|\blen\(\w+\)")


def _is_used(statement: Any, steps: Steps) -> bool:
    """Return whether a statement that was taken apart is none of the lines."""
    return all(line.node is not statement for line, _ in every(steps.block))


_TOUCHES = re.compile(r"\.grad\b|\.data\s*[-+*/]?=[^=]|\.[a-z]+_\(")


_READS = re.compile(r"\.grad\b(?!\s*=[^=])")
_CHANGES = re.compile(r"\.grad(\.data)?(\[[^]]*\])?(\.\w+_\(|\s*[-+*/]=)")


def _words(node: Any) -> str:
    """Return the code of a statement without its comments, to look for words in."""
    text = raw(node)
    text = code_of(node) if text is None else text
    return _without_comments(text) if "#" in text else text


def _without_comments(text: str) -> str:
    lines = textwrap.dedent(text).splitlines(keepends=True)
    try:
        tokens = list(tokenize.generate_tokens(iter(lines).__next__))
    except (tokenize.TokenError, SyntaxError):  # half a statement: its comments stay
        return text
    for token in reversed(tokens):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column] + lines[row - 1][token.end[1] :]
    return "".join(lines)


def _reads_gradients(line: Line, at: At) -> bool:
    """Return whether a line that is no part of a step looks at gradients, by a function too."""
    if line.act is not None or line.inner:
        return False
    if _READS.search(_words(line.node)):
        return True
    called = {dotted(call.func).removeprefix("self.") for call in calls_in(line.node)}
    own = (one for name in called for one in at.names.functions.get(name, ()))
    return any(_READS.search(_words(one.body)) for one in own)


class _Grouping:
    """One walk over the lines: which losses and clips belong to which step."""

    def __init__(self, steps: Steps, at: At) -> None:
        self.steps, self.at = steps, at
        self.pending: list[Forward] = []
        self.clips: list[tuple[Line, Block]] = []
        self.unscaled: set[str] = set()
        self.last: Group | None = None
        self.open: dict[str, list[Group]] = {}

    def run(self) -> None:
        for line, block in every(self.steps.block):
            if line.act is not None:
                getattr(self, f"_{line.act.kind}")(line, block, line.act)
            elif self.pending and not line.inner and _TOUCHES.search(_words(line.node)):
                raise NotPlain(line.node, "gradients or parameters change before the step")
            elif self.pending and not line.inner and not _reads_gradients(line, self.at):
                self._check_between(line)
        reading = [one for one, _ in every(self.steps.block) if _reads_gradients(one, self.at)]
        if self.steps.groups and reading:
            self._hand_out(reading)
        if self.pending:
            raise NotPlain(self.pending[0].sink.call, "no optimizer steps by it in this function")
        if self.clips:
            raise NotPlain(self.clips[0][0].node, "it clips, and no optimizer steps by it")

    def _check_between(self, line: Line) -> None:
        """Raise if a call between a backward pass and its step may look at the gradients."""
        call = may_touch(line.source or line.node, self.at)
        if call is not None:
            name = code_of(call.func)
            raise NotPlain(line.node, f"`{name}` may look at gradients in front of the step")

    def _hand_out(self, reading: list[Line]) -> None:
        """Have the one step hand its gradients back to the lines behind it that read them.

        Raises:
            NotPlain: they are read where the step's are not those that torch has there.
        """
        group, lines = self.steps.groups[0], [line for line, _ in every(self.steps.block)]
        step, why = lines.index(group.steps[0]), "it reads gradients, which a step's function keeps"
        zeros = [n for n, one in enumerate(lines) if one.act is not None and one.act.kind == "zero"]
        for line in reading:
            place = lines.index(line)
            if len(self.steps.groups) > 1 or group.accumulates or group.apex or place < step:
                raise NotPlain(line.node, why)
            if _CHANGES.search(_words(line.node)) or any(step < n < place for n in zeros):
                raise NotPlain(line.node, why)
        call = maker_of(stepping(group.steps[0]), self.at)
        model = model_of(call) if call is not None else ""
        of_model = re.compile(rf"(?<![\w.]){re.escape(model)}\.(named_)?parameters\(\)")
        group.handed = True
        group.narrow = not model or not all(of_model.search(_words(one.node)) for one in reading)

    def _zero(self, line: Line, block: Block, act: Any) -> None:
        self.last = None

    def _backward(self, line: Line, block: Block, act: Any) -> None:
        place = block.lines.index(line)
        self.pending.append(forward_of(act.sink, block, place, self.at))
        self.last = None

    def _unscale(self, line: Line, block: Block, act: Any) -> None:
        self.unscaled.add(act.holder)

    def _clip(self, line: Line, block: Block, act: Any) -> None:
        if not self.pending:  # gradients of before, or none
            raise NotPlain(line.node, "it clips in front of the backward pass")
        self.clips.append((line, block))

    def _step(self, line: Line, block: Block, act: Any) -> None:
        if any(self._grows_later(call, line) for call in self.at.names.callers("add_param_group")):
            raise NotPlain(line.node, "its optimizer gets more parameters later")
        if not self.pending:
            if self.last is None or self.last.steps[0] not in block.lines or self.clips:
                raise NotPlain(line.node, "an optimizer steps without a loss of its own")
            if (self.last.scaler, self.last.scaled_if) != (act.scaler, act.scaled_if):
                raise NotPlain(line.node, "one loss moves optimizers with and without a scaler")
            if self.last.apex:
                raise NotPlain(line.node, "apex scales a loss that moves several optimizers")
            if self.last.clips or self.last.early_clips:
                raise NotPlain(line.node, "it clips for one of several optimizers")
            if self.last.guard is not line.guard:
                raise NotPlain(line.node, "one loss moves optimizers under two conditions")
            self.last.optimizers.append(act.holder)
            self.last.steps.append(line)
            return
        group = Group(self.pending, [act.holder], act.scaler, steps=[line], updates=False)
        group.scaled_if = act.scaled_if
        homes = {id(forward.block) for forward in self.pending}
        if len(homes) > 1:
            raise NotPlain(line.node, "its losses are made in different blocks")
        scalers = {forward.sink.scaler for forward in self.pending}
        if any("apex" in scaler for scaler in scalers):
            self._take_apex(group, line, act)
        elif scalers != {act.scaler}:
            raise NotPlain(line.node, "its losses are scaled by another scaler than the step's")
        self._take_guard(group, line, block)
        group.accumulates = len(self.pending) > 1 or self._is_apart(line, block)
        for clip, home in self.clips:
            self._take_clip(group, clip, home, block)
        self.steps.groups.append(group)
        if act.scaler:
            self.open.setdefault(act.scaler, []).append(group)
        self.last, self.pending, self.clips, self.unscaled = group, [], [], set()

    def _grows_later(self, call: cst.Call, step: Line) -> bool:
        """Return whether a call adds parameters anywhere but in front of the loop that steps."""
        if not isinstance(call.func, cst.Attribute):
            return False
        around = self.at.names.enclosing(call, *_LOOPS, cst.FunctionDef) or self.at.module
        if around is not self.steps.node:
            return True
        for place, one in enumerate(self.steps.block.lines):
            if any(call is part for part in below(one.source or one.node)):
                behind = self.steps.block.lines[place + 1 :]
                loops = [line for line in behind if isinstance(line.node, _LOOPS)]
                return all(step is not line for line, _ in every(Block(loops)))
        return True

    def _take_guard(self, group: Group, line: Line, block: Block) -> None:
        """Find the condition under which the losses are differentiated, and see that it stays."""
        guard = group.guard = line.guard
        test = code_of(guard.test) if guard is not None else ""
        for forward in group.forwards:
            backward = forward.block.lines[_place(forward.block, forward.sink.call)]
            if backward.guard is not guard:
                raise NotPlain(line.node, "its backward pass depends on a condition")
            for one in forward.lines:
                if one.guard is not None and one.guard is not guard:
                    raise NotPlain(one.node, "it is made under another condition than the step's")
                if one.graded and one.graded != test:
                    raise NotPlain(one.node, "its gradients are recorded under another condition")
            if guard is None:
                continue
            if forward.region is not None and any(one.guard for one in forward.lines):
                raise NotPlain(guard, "its loss is made under its condition, and in a region")
            first, last = forward.lines[0], block.lines.index(line)
            asked = read(guard.test)
            for one in block.lines[forward.block.lines.index(first) : last]:
                if set(assigned(one.node)) & asked or ("training" in test and _mode(one.node)):
                    raise NotPlain(one.node, "it changes what decides about the step")

    def _take_apex(self, group: Group, line: Line, act: Any) -> None:
        sinks = [forward.sink for forward in group.forwards]
        if len({sink.scaler for sink in sinks}) > 1 or act.scaler:
            raise NotPlain(line.node, "its losses are scaled by another scaler than the step's")
        if any(sink.holders not in (act.holder, f"[{act.holder}]") for sink in sinks):
            raise NotPlain(line.node, "apex scales for other optimizers than the one that steps")
        for call in self.at.names.calls:
            if self.at.names.called(call) != "apex.amp.initialize":
                continue
            around = self.at.names.enclosing(call, *_LOOPS, cst.FunctionDef, cst.ClassDef)
            if isinstance(around, _LOOPS):
                raise NotPlain(call, "apex is set up in a loop")
        group.apex = sinks[0].scaler

    def _take_clip(self, group: Group, line: Line, home: Block, block: Block) -> None:
        act = line.act
        assert act is not None  # noqa: S101  # a clip
        if home is not block:
            raise NotPlain(line.node, "it clips in another block than it steps in")
        covers = self._covers(act.of, group, line)
        if covers is False:
            raise NotPlain(line.node, "it clips other gradients than the optimizer's")
        if covers is None:
            group.perhaps_wider.append(act.of)
        if not group.scaler or group.optimizers[0] in self.unscaled:
            group.clips.append(act)
        elif act.bound:
            raise NotPlain(line.node, "the norm of scaled gradients is kept")
        else:
            group.early_clips.append(act)

    def _covers(self, of: str, group: Group, line: Line) -> bool | None:
        """Return whether gradients that are clipped are those that the step is made of.

        Networks are compared by name where the optimizer is made in the same scope, or both are
        attributes of one class; else by how many there are. None: they may be, and nothing in this
        file says it.
        """
        parts = of.split(" | ")
        if len(parts) > 1:
            found = {self._covers(part, group, line) for part in parts}
            return False if False in found else None if None in found else True
        if "master_params(" in of:
            return bool(group.apex) and of.endswith(f"master_params({group.optimizers[0]})")
        call = maker_of(stepping(group.steps[0]), self.at)
        clipped = _trained(self._clipped(of), self.at)
        if call is None:
            return None if not clipped or self._may_be_all(clipped, group) else False
        made = _trained(call.args[0].value, self.at) if call.args else set()
        if not made or not clipped:
            return None
        home = self.at.names.enclosing(call, cst.FunctionDef)
        is_same = home is self.at.names.enclosing(line.source, cst.FunctionDef)
        if is_same or all(name.startswith("self.") for name in made | clipped):
            return made == clipped and covers(self._clipped(of), call.args[0].value, self.at)
        if len(made) != len(clipped):
            return False
        if _last_words(made) != _last_words(clipped):
            return None
        return covers(self._clipped(of), call.args[0].value, self.at)

    def _may_be_all(self, clipped: set[str], group: Group) -> bool:
        """Return whether an optimizer of another file's maker may move what is clipped alone.

        Not where the maker is handed the parameters of another network here.
        """
        makers = self.at.names.origins(stepping(group.steps[0]))
        given = (arg.value for one in makers if isinstance(one, cst.Call) for arg in one.args)
        return all(_trained(value, self.at) <= clipped for value in given)

    def _clipped(self, of: str) -> Any:
        """Return what a clip is given, as it stands in the script."""
        clips = (call for call in self.at.names.calls if is_clip(self.at.names.called(call)))
        given = (arg.value for call in clips for arg in call.args)
        return next((one for one in given if code_of(one) == of), cst.parse_expression(of))

    def _is_apart(self, line: Line, block: Block) -> bool:
        """Return whether backward pass and step are in different blocks of one window."""
        home = self.pending[0].block
        if block is home:
            return False
        if block.outer is home and block.owner is not None:
            if not isinstance(block.owner.node, cst.If):
                raise NotPlain(block.owner.node, "the optimizer steps in a loop of its own")
            return True
        inner: Block | None = home
        while inner is not None and inner is not block:
            if inner.owner is not None and not isinstance(inner.owner.node, _LOOPS):
                raise NotPlain(inner.owner.node, "its backward pass depends on a condition")
            inner = inner.outer
        if inner is None:
            raise NotPlain(line.node, "the optimizer steps in a block beside its backward pass")
        return True

    def _update(self, line: Line, block: Block, act: Any) -> None:
        groups = self.open.pop(act.scaler, [])
        if not groups or any(group.steps[0] not in block.lines for group in groups):
            raise NotPlain(line.node, "the scale moves in another block than the optimizer")
        if len(groups) == 1 and not _read_between(groups[0].steps[-1], line, block, act.scaler):
            groups[0].updates = True
        else:
            if any(group.scaled_if for group in groups):
                raise NotPlain(line.node, "it moves a scale that one branch of two has")
            self.steps.joint[id(line)] = groups
        self.last = None


def _read_between(step: Line, update: Line, block: Block, scaler: str) -> bool:
    """Return whether a line asks a scaler behind its step, in front of its update."""
    first, last = (block.lines.index(one) for one in (step, update))
    asks = re.compile(rf"(?<![\w.]){re.escape(scaler)}(?!\w)")
    between = (one for one in block.lines[first + 1 : last] if one.act is None)
    return any(asks.search(_words(one.source or one.node)) for one in between)


def _last_words(names: set[str]) -> set[str]:
    return {name.removesuffix(".module").rpartition(".")[2] for name in names}


# --- lines that several steps are made of ------------------------------------------------------


_PARAMETERS = re.compile(r"([\w.\[\]]+)\.(?:named_)?parameters\(")
_BEFORE = "a value that is detached there is of before an optimizer's step"


def _hand_in(later: Group, steps: Steps, number: int, at: At) -> None:
    """Take the lines of steps before out of a loss that needs their values alone.

    A generator's pictures, say: its own step has moved it since. What a later loss differentiates
    is computed again; torch itself refuses that where an optimizer has moved the weights.
    """
    before = steps.groups[:number]
    earlier = {id(line) for group in before for forward in group.forwards for line in forward.lines}
    moved = {name for group in before for name in _moved(group, at)}
    for forward in later.forwards:
        try:
            lines = _with_own(forward, earlier, moved, at)
        except NotPlain:
            _leave_values(forward, steps, earlier, at)
            lines = _with_own(forward, earlier, moved, at)
        forward.lines[:] = lines


def _moved(group: Group, at: At) -> set[str]:
    """Return what a step moves, by name: all that its losses differentiate, if nothing says."""
    call = maker_of(stepping(group.steps[0]), at)
    model = model_of(call) if call is not None else ""
    return {model} if model and len(group.optimizers) == 1 else _differentiated(group, at)


def _with_own(forward: Forward, earlier: set[int], moved: set[str], at: At) -> list[Line]:
    """Return the lines of a loss without those that steps before hand to it.

    Raises:
        NotPlain: what one of them gives is needed both as it was and computed again, or is
            computed by what has moved since.
    """
    rest = [line for line in forward.lines if id(line) not in earlier]
    shared = [line for line in forward.lines if id(line) in earlier]
    made = {name for line in shared for name in assigned(line.node)}
    made -= plain_values([line.node for line in shared], at)
    nodes = [*(line.node for line in rest), forward.sink.loss]
    if not rest or not shared:
        return forward.lines
    if constant(nodes, made):
        return rest
    again = needed_again([line.node for line in shared], nodes, made, in_order=True)
    if again is None:
        raise NotPlain(forward.sink.call, _BEFORE)
    stale = sorted(name for node in again for name in weights_run(node, at) & moved)
    if stale:
        why = f"{stale[0]} runs before an optimizer's step that moves it"
        raise NotPlain(forward.sink.call, why)
    kept = {id(node) for node in again} | {id(line.node) for line in rest}
    return [line for line in forward.lines if id(line.node) in kept]


def _leave_values(forward: Forward, steps: Steps, earlier: set[int], at: At) -> None:
    """Leave numbers where they are made that networks give of before another's step.

    A student's loss of before and of behind its step, say, by which its teacher learns.
    """
    nodes = [line.node for line in forward.lines]
    alone = values_alone(nodes, forward.sink.loss, at)
    left = [forward.lines[place] for place in sorted(alone)]
    needed = set(read(forward.sink.loss))
    kept: list[Line] = []
    for place in range(len(nodes) - 1, -1, -1):
        if place not in alone and set(assigned(nodes[place])) & needed:
            kept.insert(0, forward.lines[place])
            needed |= read(nodes[place])
    forward.lines[:] = kept
    steps.valued |= {id(line) for line in left if id(line) not in earlier}


# --- gradients that are zeroed ------------------------------------------------------------------


def _trained(node: Any, at: At, depth: int = 4) -> set[str]:
    """Return what an expression, or what its names hold, is the parameters of, as code."""
    if node is None or depth == 0:
        return set()
    code = code_of(node)
    found = {name.removesuffix(".module") for name in _PARAMETERS.findall(code)}
    if found:
        return found
    names = [one for one in below(node) if isinstance(one, (cst.Name, cst.Attribute))]
    held = [one for name in names for one in at.names.origins(name) if one is not name]
    return {name for one in held for name in _trained(one, at, depth - 1)}


def _check_all_zeroed(group: Group, zeros: list[Line], at: At) -> None:
    """Refuse where networks are zeroed by their names, and not all that the optimizers move."""
    holders = {line.act.holder for line in zeros if line.act is not None}
    for step, optimizer in zip(group.steps, group.optimizers, strict=True):
        call = maker_of(stepping(step), at)
        if optimizer in holders or call is None or not call.args:
            continue
        made = _trained(call.args[0].value, at)
        if len(made) > 1 and len(holders) < len(made):
            raise NotPlain(step.node, "gradients of some of its networks alone are zeroed")


def _check_zeros(group: Group, steps: Steps, at: At) -> None:
    """Refuse what adds up gradients in a way that a step's function does not."""
    home = group.forwards[0].block
    where = next(block for line, block in every(steps.block) if line is group.steps[0])
    zeros = [
        (line, block)
        for line, block in every(steps.block)
        if line.act is not None and line.act.kind == "zero"
    ]
    if not group.accumulates or home is where:
        inside = [line for line, block in zeros if block is home]
        backward = _place(home, group.forwards[0].sink.call)
        step = home.lines.index(group.steps[-1])
        good = [p for p in map(home.lines.index, inside) if p < backward or p > step]
        if any(backward < home.lines.index(line) < step for line in inside):
            raise NotPlain(group.steps[0].node, "gradients are zeroed between loss and step")
        before = [home.lines.index(g.steps[-1]) for g in steps.groups if g.steps[-1] in home.lines]
        others = [place for place in before if place < backward]
        if len(before) > 1:
            start = max(others, default=-1)
            own = [home.lines.index(line) for line in _own(group, inside)]
            good = [p for p in good if start < p < backward] or own
            good = good or _left_alone(group, inside, steps, at)
        if not good:
            raise NotPlain(group.steps[0].node, "its gradients are not zeroed in its block")
        _check_all_zeroed(group, [home.lines[place] for place in good], at)
        return
    loop = _loop_around(home)
    inside = [(line, block) for line, block in zeros if _below(block, loop) or block is where]
    if not inside:
        raise NotPlain(group.steps[0].node, "its gradients are not zeroed where it steps")
    for line, block in inside:
        if block is not where:
            raise NotPlain(line.node, "gradients are zeroed in another block than the step's")
    for line, _ in zeros:
        if all(line is not one for one, _ in inside) and _is_of(line, group, steps):
            steps.cleared[id(line)] = group


def _is_of(line: Line, group: Group, steps: Steps) -> bool:
    """Return whether gradients that are zeroed are those that a group adds up.

    Raises:
        NotPlain: they are perhaps, or some of them are.
    """
    holder = line.act.holder if line.act is not None else ""
    if len(steps.groups) == len(group.optimizers) == 1:
        return True
    if any(holder in other.optimizers for other in steps.groups if other is not group):
        return False
    if group.optimizers == [holder]:
        return True
    raise NotPlain(line.node, "gradients of several optimizers are zeroed outside of their loop")


def _left_alone(group: Group, inside: list[Line], steps: Steps, at: At) -> list[int]:
    """Return places behind a step that zero what no other loss of the scope adds gradients to.

    They zero a network by its name, which the group's loss differentiates and no other does.
    """
    lines = group.forwards[0].block.lines
    step, found = lines.index(group.steps[-1]), []
    for line in inside:
        holder = line.act.holder if line.act is not None else ""
        users = [one for one in steps.groups if holder in _differentiated(one, at)]
        if lines.index(line) > step and [group] == users:
            found.append(lines.index(line))
    return found


def _differentiated(group: Group, at: At) -> set[str]:
    """Return the networks, by name, that the gradient of a group's losses goes through."""
    found: set[str] = set()
    for forward in group.forwards:
        nodes = [line.node for line in forward.lines]
        places = carrying(nodes, forward.sink.loss, at)
        found |= {name for place in places for name in weights_run(nodes[place], at)}
    return found


def _own(group: Group, inside: list[Line]) -> list[Line]:
    return [line for line in inside if line.act and line.act.holder in group.optimizers][1:]


def _place(block: Block, call: cst.Call) -> int:
    for place, line in enumerate(block.lines):
        if line.act is not None and line.act.sink is not None and line.act.sink.call is call:
            return place
    msg = "the backward pass is not in its block"
    raise ValueError(msg)


def _loop_around(block: Block) -> Block:
    """Return the block of the nearest loop around, or the outermost block."""
    while block.outer is not None:
        if block.owner is not None and isinstance(block.owner.node, _LOOPS):
            return block
        block = block.outer
    return block


def _below(block: Block | None, top: Block) -> bool:
    while block is not None:
        if block is top:
            return True
        block = block.outer
    return False


# --- what stands between ------------------------------------------------------------------------


_QUIET = re.compile(
    r"item|append|extend|update|print|float|int|str|len|detach|cpu|numpy|tolist|format|round|clone"
    r"|(add|log|set|record|reduce|all|write)(_\w+)?|info|debug|warning|mean|sum|max|min|size|time"
    r"|\w*(meter|accuracy|writer|synchronize)"
)
"""Methods and functions that raise where something is wrong with them, not with a loss."""


_ENDS = {"sys.exit", "exit", "quit", "os._exit", "os.abort"}
_DEPTH = 4


def _may_raise(node: Any, at: At, depth: int = _DEPTH) -> bool:
    """Return whether a statement stops the training, or calls what may look at a loss and do so.

    Functions of the file are looked into; of others their names tell.
    """
    if any(isinstance(one, (cst.Raise, cst.Assert)) for one in below(node)):
        return True
    return any(_may_stop(call, at, depth) for call in below(node) if isinstance(call, cst.Call))


def _may_stop(call: cst.Call, at: At, depth: int) -> bool:
    func = call.func
    name = dotted(func).rpartition(".")[2]
    own: list[Any] = list(at.names.functions.get(name, ()))
    holder = dotted(func).partition(".")[0]
    if own and (isinstance(func, cst.Name) or holder in {"self", "cls", *at.names.classes}):
        return depth > 0 and any(_may_raise(one.body, at, depth - 1) for one in own)
    called = at.names.called(call)
    if (called or dotted(func)) in _ENDS:
        return True
    if is_known(called) or (isinstance(func, cst.Attribute) and name in vocabulary()["tensor"]):
        return False
    return bool(name) and _QUIET.fullmatch(name.lower()) is None


def _late_of(group: Group, made: set[int], steps: Steps, at: At) -> list[Line]:
    """Return lines that have to come behind a step, or behind its gradients where it is split.

    It is split where a line between loss and step may raise: the step has not been taken then.
    """
    late = [one for f in group.forwards for one in _late(f, group, made, steps, at)]
    if not group.behind or not _may_be_split(group, at):
        return late
    group.split, group.behind = True, []
    (forward,) = group.forwards
    late = _late(forward, group, made, steps, at)
    group.behind = []
    return late


def _may_be_split(group: Group, at: At) -> bool:
    """Return whether a step may be two functions, with lines of the script between them."""
    plain = not (group.accumulates or group.apex or group.handed or at.options.jit)
    return plain and group.guard is None


def _late(forward: Forward, group: Group, every_loss: set[int], steps: Steps, at: At) -> list[Line]:
    """Return lines between a loss and its step that have to come behind the step.

    They read what the loss is made of, or change what it reads; all others stay in front of it.
    """
    block = forward.block
    first, last = (block.lines.index(forward.lines[place]) for place in (0, -1))
    reads = {name for line in forward.lines for name in read(line.node)}
    changed = {name for line in forward.lines for name in assigned(line.node)}
    changed -= {"_"} - reads
    networks = {n for one in forward.lines for n in _networks(one.source or one.node, at)}
    asked = needs(line.node for line in forward.lines)
    own = {n for one in forward.lines for n in parameters_read(one.source or one.node, at)}
    made: set[str] = set()
    late: list[Line] = []
    for place in range(first, _end(group, forward)):
        line = block.lines[place]
        sets = set(assigned(line.node))
        if any(line is one for one in forward.lines):
            if sets & {name for one in late for name in read(one.node)}:
                raise NotPlain(late[-1].node, "it reads a value that the loss changes later")
            made |= sets
        elif line.act is None and id(line) not in every_loss:
            moved = {name for one in late for name in (*assigned(one.node), *read(one.node))}
            given = id(line) in steps.valued and not read(line.node) & (made | moved)
            if given and sets & reads:
                continue  # what the loss is handed is made in front of its step
            if read(line.node) & (made | moved) or sets & (reads | changed | moved):
                if place < last and sets & (reads | changed):
                    raise NotPlain(line.node, "it changes what the loss is made of")
                if _networks(line.source or line.node, at) & networks:
                    raise NotPlain(line.node, "it runs a network between loss and step")
                if own & set(parameters_read(line.source or line.node, at)):
                    raise NotPlain(line.node, "it reads a weight between loss and step")
                _check_late(line, group)
                late.append(line)
                looks = read(line.node) & (made | moved)
                if looks and _may_raise(line.source or line.node, at):
                    group.behind.append(code_of(line.node).strip().partition("\n")[0])
            elif place < last and (_mode(line.node) or _disturbs(line, asked, at)):
                raise NotPlain(line.node, "a network changes its mode between parts of the loss")
            elif place < last and jumps(line.node) and _keeps(block, forward, place, at):
                raise NotPlain(line.node, "a jump stands behind what counts its own runs")
            elif place < last and jumps(line.node):
                before = [one for one in block.lines[first:place] if one in forward.lines]
                group.skips |= any(_networks(one.source or one.node, at) for one in before)
            elif place > last and jumps(line.node):
                raise NotPlain(line.node, "a jump stands between its loss and its step")
            elif place > last and _disturbs(line, asked, at):
                raise NotPlain(
                    line.node, "it changes what the loss is made by, in front of the step"
                )
    return late


def _keeps(block: Block, forward: Forward, end: int, at: At) -> bool:
    """Return whether lines of a loss in front of a place change what outlives them."""
    lines = [line for line in block.lines[:end] if any(line is one for one in forward.lines)]
    nodes = [line.source or line.node for line in lines]
    return any(lasts(node, at) or not keeps_nothing(node, at) for node in nodes)


def _disturbs(line: Line, asked: set[str], at: At) -> bool:
    """Return whether a line changes modes, weights or numbers that a loss is made by."""
    return disturbed([line.source or line.node], asked, at)


def _networks(node: Any, at: At) -> set[str]:
    """Return the networks that a statement runs, as code; losses of torch hold no weights."""
    funcs = [call.func for call in calls_in(node) if is_module(at, call.func)]
    losses = [func for func in funcs if _is_loss(at.names.call_names(func))]
    return {code_of(func) for func in funcs if all(func is not one for one in losses)}


def _is_loss(made: set[str]) -> bool:
    return bool(made) and all(name.endswith("Loss") for name in made)


def _end(group: Group, forward: Forward) -> int:
    """Return the place behind which nothing of a step is left in the block of a loss."""
    block = forward.block
    if not (group.accumulates or group.split) and group.steps[0] in block.lines:
        return block.lines.index(group.steps[0])
    return _place(block, forward.sink.call)


def _check_late(line: Line, group: Group) -> None:
    if line.inner or jumps(line.node):
        raise NotPlain(line.node, "a look at the loss decides whether the optimizer steps")
    roots = {text.partition("[")[0] for text in group.optimizers}
    text = _RATE.sub("", _words(line.node))  # a step leaves its rate as it is
    if read(line.node) & {root for root in roots if re.search(rf"\b{re.escape(root)}\b", text)}:
        raise NotPlain(line.node, "it reads the optimizer between loss and step")


_RATE = re.compile(r"""[\w.]+\.param_groups\[[-\w]+\]\[(['"])lr\1\](?!\s*[^\s\w)\],]*=[^=])""")
_MODE = re.compile(r"\.(train|eval|requires_grad_)\(")


def _mode(node: Any) -> bool:
    return bool(_MODE.search(cst.Module([]).code_for_node(node)))


# --- names --------------------------------------------------------------------------------------


def _name(groups: list[Group]) -> None:
    """Give each of several steps a suffix, from its optimizer's name."""
    if len(groups) < 2:
        return
    used: set[str] = set()
    for number, group in enumerate(groups, 1):
        text = group.optimizers[0].rpartition(".")[2]
        short = re.sub(r"(?i)optimi[sz]er|optim|opt", "", text).strip("_").lower()
        short = short if short.isidentifier() or short.isdigit() else str(number)
        while short in used:
            short = f"{short}_{number}"
        used.add(short)
        group.suffix = f"_{short}"

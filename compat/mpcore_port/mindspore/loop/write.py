"""From the description of training steps to MindSpore: forward functions, steps, their calls."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.children import Walker, calls_in
from mpcore_port.mindspore.loop.body import apply_body, values_of
from mpcore_port.mindspore.loop.description import Block, Forward, Group, Line, NotPlain
from mpcore_port.mindspore.loop.forwards import fixed_names, free_names, made_in
from mpcore_port.mindspore.loop.handed import without_text
from mpcore_port.mindspore.loop.lines import every
from mpcore_port.mindspore.rules.losses.names_in import _Read as Reading
from mpcore_port.mindspore.rules.losses.names_in import (
    assigned,
    assigned_first,
    bound_before,
    needs,
    read,
    set_parts,
    surely_made,
)
from mpcore_port.mindspore.rules.losses.networks_in import networks_given
from mpcore_port.mindspore.rules.names.native import becomes_partial
from mpcore_port.mindspore.rules.place import FULL_GRAPH, is_module
from mpcore_port.names import code_of, dotted
from mpcore_port.places import raw
from mpcore_port.values import vocabulary

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mpcore_port.mindspore.loop.prepared import Prepared
    from mpcore_port.mindspore.loop.recognise import Steps
    from mpcore_port.mindspore.loop.scalers import Scalers
    from mpcore_port.rule import At

__all__ = ["Written", "write_scope"]

_HALVES = ("float16", "bfloat16")
_BLANK = (cst.EmptyLine(indent=False),)
_LOOPS = (cst.For, cst.While)
_ASKED = re.compile(r"UnboundLocalError|NameError|\blocals\(")
_PARALLEL = "DistributedDataParallel"


@dataclass(eq=False)
class Written:
    """A scope with its steps written.

    Attributes:
        body: its statements.
        firsts: by group, the statement of the original that the report names, and new code.
        again: losses that compute once more what another one has.
        anew: whether ``--jit`` compiles it in each call of its function.
        started: names that start as None: a loss changes them, and one branch binds them.
        windows: steps whose gradients would outlive the function in torch.
    """

    body: list[Any]
    firsts: list[tuple[Group, Any, str]] = field(default_factory=list)
    again: bool = False
    started: Sequence[str] = ()
    windows: list[Group] = field(default_factory=list)
    anew: bool = False


def write_scope(
    steps: Steps,
    at: At,
    words: Callable[[str], str],
    fresh: Callable[[str], str],
    scalers: Scalers | None,
) -> Written:
    """Return the statements of a scope; ``words`` gives our modules' names, ``fresh`` new ones."""
    return _Writer(steps, at, words, fresh, scalers).write()


@dataclass(eq=False)
class _Plan:
    """Where a group's functions go, and what they are called."""

    group: Group
    anchor: Line | None
    names: dict[str, str]
    definitions: list[Any] = field(default_factory=list)
    calls: dict[int, Any] = field(default_factory=dict)  # by the forward: its call


class _Writer:
    def __init__(
        self,
        steps: Steps,
        at: At,
        words: Callable[[str], str],
        fresh: Callable[[str], str],
        scalers: Scalers | None,
    ) -> None:
        self.steps, self.at, self.words, self.fresh = steps, at, words, fresh
        self.scalers = scalers
        self.prepared = scalers.prepared if scalers is not None else None
        # The network may be wrapped in another file of the project.
        called = (str(at.names.called(call)) for call in at.names.calls)  # apex's are not torch's
        names = (*at.scan.torch_names, *at.project.torch_names, *called)
        self.parallel = any(name.endswith(_PARALLEL) for name in names) or (
            not at.options.plain and any(map(_is_wrapped, _lines_of(steps)))
        )
        for group in steps.groups:
            if group.apex:
                group.scaler, group.updates = fresh(f"scaler{group.suffix}"), True
                group.always = f"not {group.scaler}.dynamic"
        self.local = self._attributes()
        self.started: list[str] = []  # names that are None where the function begins
        self._guards: dict[int, Any] = {}  # by the id of a statement that is written: its ``if``
        self._handed_in: dict[str, str] = {}  # by what is handed in: the name of its scaler
        self._kept: list[Any] = []  # so that an id stands for one statement
        self.plans = [self._plan(group) for group in steps.groups]
        forwards = [f for group in steps.groups for f in group.forwards]
        self.made = {id(line) for f in forwards for line in f.lines}
        shared = [id(line) for f in forwards for line in f.lines]
        self.again = len(shared) != len(set(shared))

    def _attributes(self) -> dict[str, str]:
        """Return attributes that steps give values to, each with its name inside of functions."""
        groups = self.steps.groups
        given = [code_of(f.sink.loss) for g in groups for f in g.forwards if _is_kept(f)]
        given += [clip.bound for g in groups for clip in g.clips if "." in clip.bound]
        return {name: self.fresh(name.rpartition(".")[2]) for name in dict.fromkeys(given)}

    def _inside(self, text: str) -> str:
        """Return code with the names that it has inside of functions."""
        for name, local in self.local.items():
            text = re.sub(rf"(?<![\w.]){re.escape(name)}(?!\w)", local, text)
        return text

    def write(self) -> Written:
        for plan in self.plans:
            self._arguments(plan)
        for plan in self.plans:
            self._outs(plan)
        self._check_overwritten()
        for plan in self.plans:
            self._define(plan)
        body = self._render(self.steps.block)
        if self.started:
            line = cst.parse_statement(f"{' = '.join(self.started)} = None")
            in_function = isinstance(self.steps.node, cst.FunctionDef)
            place = len(body) - len(without_text(body)) if in_function else 0
            body.insert(place, line)
        found = Written(body, again=self.again, started=self.started)
        found.anew = bool(self.at.options.jit) and not isinstance(self.steps.node, cst.Module)
        found.windows = [plan.group for plan in self.plans if self._outlives(plan)]
        for plan in self.plans:
            node = plan.group.forwards[0].lines[0].node
            shown = "\n".join(code_of(line) for line in plan.definitions)
            found.firsts.append((plan.group, node, shown))
        return found

    def _check_overwritten(self) -> None:
        """Raise if statements that are computed again read what they have given out anew."""
        before: list[Forward] = []
        for forward in (f for plan in self.plans for f in plan.group.forwards):
            own = [line.node for line in forward.lines]
            for one in before:
                theirs = {id(line.node) for line in one.lines}
                again = [node for node in own if id(node) in theirs]
                made = {name for node in again for name in assigned_first(node)}
                for name in sorted(needs(again) & made & set(one.outs) & set(forward.args)):
                    why = f"{name} is overwritten among what is computed again"
                    raise NotPlain(again[0], why)
            before.append(forward)

    # --- where ------------------------------------------------------------------------------

    def _plan(self, group: Group) -> _Plan:
        words = ["forward_fn", "grad_fn", "train_step", "accumulated", "accumulate", "apply_grads"]
        if self.parallel:
            words.append("grad_reducer")
        words += ["scaled_fn", "loss"] if group.guard is not None else []
        words += ["gradients", "parameter", "grad"] if group.handed else []
        words += ["grads"] if group.split else []
        names = {word: self.fresh(f"{word}{group.suffix}") for word in words}
        return _Plan(group, self._anchor(group), names)

    def _anchor(self, group: Group) -> Line | None:
        """Return the loop that the functions stand in front of: the outermost that may be."""
        where = next(b for line, b in every(self.steps.block) if line is group.steps[0])
        home = group.forwards[0].block
        top = where if _is_inside(home, where) else home
        needed = self._needed(group)
        anchor = None
        block: Block | None = top
        while block is not None and block.owner is not None:
            if isinstance(block.owner.node, _LOOPS):
                if needed & set(assigned_first(block.owner.node)):
                    break
                anchor = block.owner
            block = block.outer
        return anchor

    def _needed(self, group: Group) -> set[str]:
        """Return names that must have their values where the functions are made."""
        texts = [*group.optimizers, "" if group.apex else group.scaler, group.scaled_if]
        for forward in group.forwards:
            if forward.region is not None:
                dtype = forward.region.dtype
                switch = forward.region.scaler or forward.region.enabled
                texts += [switch, "" if dtype in _HALVES else dtype]
        found = {name for text in texts if text for name in read(cst.parse_expression(text))}
        return found | {n for f in group.forwards for n in fixed_names(f.lines, self.at)}

    # --- arguments and results --------------------------------------------------------------

    def _arguments(self, plan: _Plan) -> None:
        changing = self._changing(plan)
        for forward in plan.group.forwards:
            fixed = fixed_names(forward.lines, self.at)
            free = [n for n in free_names(forward) if n in changing and n not in fixed]
            again = sorted(fixed & set(free_names(forward)) & set(made_in(forward.lines)))
            if again:
                raise NotPlain(forward.sink.call, f"its loss gives {again[0]} another value")
            # What one branch alone has bound is read where it is needed, as it was; so is what
            # stands behind the loss: the first turn has none.
            last = self.at.original(forward.lines[-1].node)
            bound = bound_before(last, self.steps.node, self.at)
            bound |= set(made_in(forward.lines))
            forward.args = [name for name in free if name in bound]
            self._start(forward)
            rest = [name for name in free if name not in bound]
            if rest and self.at.options.jit:  # a graph would keep what they held first
                raise NotPlain(forward.sink.call, f"{rest[0]} is bound in one branch alone")

    def _start(self, forward: Forward) -> None:
        """Have names start as None that a loss changes, and that nothing surely binds before."""
        own = set(made_in(forward.lines))
        first = self.at.original(forward.lines[0].node)
        before = bound_before(first, self.steps.node, self.at)
        for name in forward.args:
            if name not in own or name in before or name in self.started:
                continue
            asked = any(_ASKED.search(code_of(line.node)) for line in forward.lines)
            if asked or isinstance(self.steps.node, cst.Module):
                raise NotPlain(forward.sink.call, f"{name} is not surely bound where its loss is")
            self.started.append(name)

    def _carried(self, forward: Forward) -> set[str]:
        """Return names that a loss changes for the next time: no line of its loop binds them."""
        changed = set(made_in(forward.lines)) & set(forward.args)
        first = self.at.original(forward.lines[0].node)
        loop = self.at.names.enclosing(first, *_LOOPS, cst.FunctionDef)
        if isinstance(loop, _LOOPS):
            return changed - bound_before(first, loop, self.at)
        if isinstance(self.steps.node, cst.Module):
            return set()
        outer = self.at.names.scope_of(self.steps.node).outer
        return {name for name in changed if name in outer}

    def _changing(self, plan: _Plan) -> set[str]:
        if plan.anchor is not None:
            return set(assigned_first(plan.anchor.node))
        node = self.steps.node
        if isinstance(node, cst.Module):
            return set(assigned_first(node))
        params = (*node.params.posonly_params, *node.params.params, *node.params.kwonly_params)
        named = {param.name.value for param in params} - {"self"}
        held = {text.partition(".")[0] for text in (*plan.group.optimizers, plan.group.scaler)}
        used = {name for f in plan.group.forwards for line in f.lines for name in _bare(line.node)}
        # What the function gives another value is a name of its own: it has to be handed in.
        own = {name for forward in plan.group.forwards for name in made_in(forward.lines)}
        return (named & used | own | set(assigned_first(node))) - held

    def _outs(self, plan: _Plan) -> None:
        own = {id(line) for f in plan.group.forwards for line in f.lines}
        others = [f for p in self.plans for f in p.group.forwards]
        for forward in plan.group.forwards:
            skipped = self.made | own
            reading = self._read_outside(skipped)
            for other in others:  # by arguments, or from around
                if other is not forward:
                    reading |= {*other.args, *needs(line.node for line in other.lines)}
            loss = forward.sink.loss
            made = made_in(forward.lines)
            reading |= self._carried(forward)
            forward.outs = [name for name in made if name in reading]
            name = code_of(loss)
            if name in forward.outs or name in self.local:
                forward.loss = name
                forward.outs = [out for out in forward.outs if out != name]
            self._branches(forward)
            forward.twice = bool(forward.outs) and not self._tensors(forward)

    def _tensors(self, forward: Forward) -> set[str]:
        """Return what comes beside a loss and surely is a tensor: a network or torch gives it."""
        found: set[str] = set()
        for line in forward.lines:
            if any(map(self._gives_tensors, calls_in(line.source or line.node))):
                found |= set(made_in([line]))
        sure = found & set(forward.outs) - set(forward.unbound) - set(self.started)
        return {name for name in sure if not self._is_object(name)}

    def _is_object(self, name: str) -> bool:
        """Return whether a name has attributes that no tensor has: an object of fields."""
        text = raw(self.steps.node) or code_of(self.steps.node)
        asked = re.findall(rf"(?<![\w.]){re.escape(name)}\.(\w+)", text)
        return not set(asked) <= vocabulary()["tensor"] | vocabulary()["neutral"]

    def _gives_tensors(self, call: cst.Call) -> bool:
        named = str(self.at.names.called(call))
        runs = is_module(self.at, call.func) or networks_given(call, self.at)
        return named.startswith("torch.") or bool(runs)

    def _branches(self, forward: Forward) -> None:
        """Have what one branch alone binds handed in, or be None where it is not bound."""
        sure = {name for line in forward.lines for name in surely_made(line.node)}
        bound = bound_before(forward.sink.call, self.steps.node, self.at)
        for name in forward.outs:
            if name in sure or name in forward.args:
                continue
            if name in bound:
                forward.args.append(name)
            else:
                forward.unbound.append(name)

    def _read_outside(self, skipped: set[int]) -> set[str]:
        """Return what the scope reads outside of its losses and acts."""
        smalls = {
            id(part)
            for line, _ in every(self.steps.block)
            if id(line) in skipped or line.act is not None
            for part in _parts(line.node)
        }
        found = _Outside(smalls)
        node = self.steps.node
        for part in node.body if isinstance(node, cst.Module) else (node.body,):
            found.walk(part)
        return found.names

    # --- the functions ----------------------------------------------------------------------

    def _define(self, plan: _Plan) -> None:
        group = plan.group
        if self.prepared is not None:
            self._prepare(plan, self.prepared)
            return
        if group.accumulates and plan.anchor is None and len(group.forwards) == 1:
            raise NotPlain(group.steps[0].node, "gradients outlive the function that adds them up")
        if group.apex:
            made = group.apex.replace("port.apex.scaler", f"{self.words('port')}.apex.loss_scaler")
            plan.definitions += self._spaced(f"{group.scaler} = {made}")
        elif group.scaler and self.scalers is not None:
            plan.definitions += self._judging(group, self.scalers)
        for number, forward in enumerate(group.forwards):
            tail = f"_{number + 1}" if len(group.forwards) > 1 else ""
            names = dict(plan.names)
            for word in ("forward_fn", "grad_fn", "accumulate"):
                names[word] = self.fresh(f"{names[word]}{tail}") if tail else names[word]
            self._forward(plan, forward, names)
            if group.accumulates:
                plan.definitions += self._accumulate(plan, forward, names)
        plan.definitions += self._apply(plan)

    def _judging(self, group: Group, scalers: Scalers) -> list[Any]:
        """Say when a step is taken whatever its gradients are; return what chooses its scaler."""
        test, made = group.scaled_if, []
        if scalers.afar:
            alone = test in ("", f"{group.scaler} is not None")
            given = group.scaler if alone else f"{group.scaler} if {test} else None"
            if given not in self._handed_in:  # else it is the scale of another step, too
                name = self._handed_in[given] = self.fresh("loss_scaler")
                made = self._spaced(f"{name} = {self.words('port')}.loss_scaler({given})")
            group.scaler = self._handed_in[given]
            group.always = f"not {group.scaler}.dynamic"
            return made
        if test and not scalers.asks(test, group.scaler, group.steps[0].source):
            name = self.fresh(f"loss_scaler{group.suffix}")
            sides, asked = [group.scaler, scalers.none()], cst.parse_expression(test)
            if isinstance(asked, cst.UnaryOperation) and isinstance(asked.operator, cst.Not):
                sides, test = sides[::-1], _unbracketed(asked.expression)
            made = self._spaced(f"{name} = {sides[0]} if {test} else {sides[1]}")
            group.scaler = name
        if made or scalers.may_be_off():
            group.always = f"not {scalers.is_on(group.scaler)}"
        return made

    def _prepare(self, plan: _Plan, prepared: Prepared) -> None:
        """Write a step as a train cell of mpcore's policy."""
        group, forward = plan.group, plan.group.forwards[0]
        if prepared.made is None and self.scalers is not None:
            call = self.scalers.preparation(prepared)
            plan.definitions += self._spaced(f"{prepared.name} = {call}")
        values = [code_of(forward.sink.loss), *forward.outs]
        self._function_of(plan, forward, plan.names["forward_fn"], ", ".join(values))
        options = [f"clip_norm={clip.limit}" for clip in group.clips]
        options += ["has_aux=True"] if forward.outs else []
        options += (
            ["compiled=True"] if self.at.options.jit and not self._calls_partial(plan) else []
        )
        arguments = ", ".join([plan.names["forward_fn"], *options])
        step = plan.names["train_step"]
        plan.definitions += self._spaced(f"{step} = {prepared.name}.train_cell({arguments})")
        back = ", ".join([*([forward.loss] if forward.loss else []), "*_"])
        if forward.outs:
            end = ", ".join(forward.outs) + ("," if len(forward.outs) == 1 else "")
            back += f", ({end})"
        call = f"{step}({', '.join(forward.args)})"
        plan.calls[id(group)] = f"{back} = {call}" if back != "*_" else call

    def _forward(self, plan: _Plan, forward: Forward, names: dict[str, str]) -> None:
        group, name = plan.group, names["forward_fn"]
        bare = group.guard is not None and bool(group.scaler)  # evaluation has no scaler, perhaps
        values = self._evaluated(forward) if bare else values_of(forward, group, self.words("ms"))
        self._function_of(plan, forward, name, ", ".join(values))
        region = forward.region
        if region is not None:
            ms, dtype = self.words("ms"), region.dtype or "float16"
            dtype = f"{ms}.{dtype}" if dtype in _HALVES else dtype
            call = f'{name} = {ms}.amp.auto_mixed_precision({name}, "auto", {dtype})'
            test = self._switch(region)
            plan.definitions += self._spaced(f"if {test}:\n    {call}" if test else call)
        if bare:
            name = self._scaled(plan, forward, names)
        aux = ", has_aux=True" if len(values_of(forward, group)) > 1 else ""
        params = self._parameters(group)
        text = (
            f"{names['grad_fn']} = {self.words('ms')}.value_and_grad({name}, None, {params}{aux})"
        )
        made = self._spaced(text) if region is None or bare else self._parsed(text)
        if group.guard is not None and not self._decided_later(plan):  # no optimizer, perhaps
            made = [_only_if(group.guard, self._parsed(text)).with_changes(leading_lines=_BLANK)]
        plan.definitions += made

    def _evaluated(self, forward: Forward) -> list[str]:
        """Return what a forward function gives where its loss is not scaled."""
        return [code_of(forward.sink.loss), *forward.outs]

    def _scaled(self, plan: _Plan, forward: Forward, names: dict[str, str]) -> str:
        """Write the function that scales what the forward function gives; return its name."""
        loss, name, args = names["loss"], names["scaled_fn"], ", ".join(forward.args)
        whole = _target([loss, *forward.outs])
        sink = replace(forward.sink, loss=cst.Name(loss))
        given = replace(forward, sink=sink, loss=loss if forward.loss else "")
        back = values_of(given, plan.group, self.words("ms"))
        code = f"def {name}({args}):\n    {whole} = {names['forward_fn']}({args})\n"
        plan.definitions += self._spaced(code + f"    return {', '.join(back)}\n")
        return name

    def _decided_later(self, plan: _Plan) -> bool:
        """Return whether the condition of a step changes behind the place of its functions."""
        asked = read(plan.group.guard.test)
        where = plan.anchor.node if plan.anchor is not None else None
        return where is not None and bool(asked & {*assigned(where), *assigned_first(where)})

    def _function_of(self, plan: _Plan, forward: Forward, name: str, values: str) -> None:
        """Write the function that the statements of a loss become."""
        lines = [line.node.deep_clone() for line in forward.lines]
        if self.local:
            lines = [line.visit(_Renamed(self.local)) for line in lines]
        lines = [*(line for n in forward.unbound for line in self._parsed(f"{n} = None")), *lines]
        returned = cst.parse_expression(self._inside(values))
        lines.append(cst.SimpleStatementLine([cst.Return(returned)]))
        if hasattr(lines[0], "leading_lines"):
            lines[0] = lines[0].with_changes(leading_lines=_comments(lines[0]))
        plan.definitions.append(self._function(name, forward.args, lines))

    def _switch(self, region: Any) -> str:
        tests = [region.enabled] if region.enabled else []
        if region.scaler:
            tests = [f"isinstance({region.scaler}, {self.words('ms')}.amp.DynamicLossScaler)"]
        if region.dtype and region.dtype not in _HALVES:
            tests.append(f"{region.dtype} != {self.words('ms')}.float32")
        return " and ".join(f"({t})" if len(tests) > 1 and " " in t else t for t in tests)

    def _parameters(self, group: Group) -> str:
        if len(group.optimizers) == 1:
            return f"{group.optimizers[0]}.parameters"
        every_one = ", ".join(f"*{name}.parameters" for name in group.optimizers)
        return f"[{every_one}]"  # networks of one class have them by equal names: no tuple

    def _function(self, name: str, args: list[str], lines: list[Any]) -> Any:
        lines = [*self._copies(args, lines), *lines]
        params = cst.Parameters([cst.Param(cst.Name(arg)) for arg in args])
        return cst.FunctionDef(
            cst.Name(name), params, cst.IndentedBlock(lines), leading_lines=_BLANK
        )

    def _copies(self, args: list[str], lines: list[Any]) -> list[Any]:
        """Return lines that copy inputs whose parts are set: MindSpore sets none of an input."""
        parts = {name for line in lines for name in set_parts(line)}
        given = [arg for arg in args if arg in parts]
        if self.at.options.plain:
            return self._parsed("\n".join(f"{arg} = {arg}.clone()" for arg in given))
        return self._parsed("\n".join(f"{arg} = {self.words('port')}.own({arg})" for arg in given))

    def _jit(self, plan: _Plan) -> str:
        """Return the decorator; a function that is made anew for each step is not compiled."""
        # Of several networks, or optimizers, in one graph the Parameters would need names of
        # their own: two optimizers have a `learning_rate_group_0` each.
        alone = len(self.plans) == len(plan.group.optimizers) == 1
        compiled = self.at.options.jit and plan.anchor is not None and alone
        compiled = compiled and not plan.group.apex  # its scale is no Parameter
        compiled = compiled and not self._calls_partial(plan)  # in no full graph
        # The full graph: else what the compiler cannot read runs in Python, with no gradient.
        return f"@{self.words('ms')}{FULL_GRAPH}" if compiled else ""

    def _calls_partial(self, plan: _Plan) -> bool:
        """Return whether a loss calls what ``functools.partial`` has made, or will have."""
        names = self.at.names
        lines = (line for forward in plan.group.forwards for line in forward.lines)
        calls = (call for line in lines for call in calls_in(line.source or line.node))
        made = {origin for call in calls for origin in names.origins(call.func)}
        return any(
            names.called(one) == "functools.partial" or becomes_partial(one, names.called(one))
            for one in made
            if isinstance(one, cst.Call)
        )

    def _end(self, plan: _Plan, back: Sequence[str]) -> str:
        """Return the last line of a function, if it has one."""
        if back:
            return f"    return {self._inside(', '.join(back))}\n"
        return "    return True  # a graph gives something\n" if self._jit(plan) else ""

    def _accumulate(self, plan: _Plan, forward: Forward, names: dict[str, str]) -> list[Any]:
        total, ops = plan.names["accumulated"], self.words("ops")
        lines = []
        if forward is plan.group.forwards[0]:
            clones = [
                f'{name}.parameters.clone(prefix="{total}", init="zeros")'
                for name in plan.group.optimizers
            ]
            text = f"{total} = {clones[0]}"
            if len(clones) > 1:
                text = f"{total} = [{', '.join(f'*{clone}' for clone in clones)}]"
            lines += self._parsed(text)
        got, back = self._got(forward, plan.group), self._results(forward)
        args = ", ".join(forward.args)
        code = (
            f"{self._jit(plan)}def {names['accumulate']}({args}):\n"
            f"    {_target(got)}, grads = {names['grad_fn']}({args})\n"
            f"{self._each_unscaled(plan)}"
            f"    for total, grad in zip({total}, grads):\n"
            f"        {ops}.assign_add(total, grad)\n"
        )
        code += self._end(plan, back)
        call = f"{names['accumulate']}({args})"
        plan.calls[id(forward)] = f"{', '.join(back)} = {call}" if back else call
        return [*lines, *self._spaced(code)]

    def _each_unscaled(self, plan: _Plan) -> str:
        """Return lines that judge the gradients of each backward pass, as apex does."""
        group = plan.group
        if not group.apex:
            return ""
        code = f"    grads = {plan.names['grad_reducer']}(grads)\n" if self.parallel else ""
        code += f"    grads = {group.scaler}.unscale(grads)\n"
        return code + f"    {group.scaler}.adjust({self.words('ms')}.amp.all_finite(grads))\n"

    def _got(self, forward: Forward, group: Group) -> list[str]:
        return [self._inside(value) for value in values_of(forward, group)]

    def _results(self, forward: Forward) -> list[str]:
        return [name for name in (forward.loss, *forward.outs) if name]

    def _apply(self, plan: _Plan) -> list[Any]:
        group, names = plan.group, plan.names
        joint = any(group in groups for groups in self.steps.joint.values())
        apart = group.accumulates or group.split
        results = [] if apart else self._results(group.forwards[0])
        results += [clip.bound for clip in group.clips if clip.bound]
        code = self._jit(plan)
        if group.accumulates:
            args, name = "", names["apply_grads"]
            code += f"def {name}():\n    grads = tuple({names['accumulated']})\n"
        elif group.split:
            plan.calls[id(group.forwards[0])] = self._gradients(plan, group.forwards[0])
            if self._is_bare(group):
                plan.calls[id(group)] = f"{group.optimizers[0]}({names['grads']})"
                return []
            args, name = names["grads"], names["apply_grads"]
            code += f"def {name}(grads):\n"
        else:
            forward = group.forwards[0]
            args, name = ", ".join(forward.args), names["train_step"]
            got = _target(self._got(forward, group))
            code += f"def {name}({args}):\n    {got}, grads = {names['grad_fn']}({args})\n"
        if self.parallel and not (group.apex and group.accumulates):
            code += f"    grads = {names['grad_reducer']}(grads)\n"
        code += self._inside(apply_body(group, self.words))
        if group.accumulates:
            code += "".join(f"    {part}\n" for part in self._emptied(plan))
        verdict = f"finite{group.suffix}"
        more, seen = (["finite"], [verdict]) if joint else ([], [])
        if group.handed:
            more, seen = [*more, "grads"], [*seen, names["gradients"]]
        code += self._end(plan, [*results, *more])
        shown = [*results, *seen]
        call = f"{name}({args})"
        plan.calls[id(group)] = f"{', '.join(shown)} = {call}" if shown else call
        plan.calls[id(group)] += self._handed(plan)
        return [*self._reducer(plan), *self._spaced(code)]

    def _is_bare(self, group: Group) -> bool:
        """Return whether an optimizer's step is all that is done with gradients."""
        return not (group.scaler or group.clips or self.parallel) and len(group.optimizers) == 1

    def _gradients(self, plan: _Plan, forward: Forward) -> str:
        """Return the line that gets a loss and its gradients, where the step is apart."""
        values = values_of(forward, plan.group)
        known = {forward.loss, code_of(forward.sink.loss)}
        names = [one if one.isidentifier() or _is_field(one, known) else "_" for one in values]
        target = names[0] if len(names) == 1 else f"({', '.join(names)})"
        args = ", ".join(forward.args)
        return f"{target}, {plan.names['grads']} = {plan.names['grad_fn']}({args})"

    def _handed(self, plan: _Plan) -> str:
        """Return lines that give parameters their gradients, where they are read."""
        if not plan.group.handed:
            return ""
        given, names = self._parameters(plan.group), plan.names
        each = f"for {names['parameter']}, {names['grad']} in zip({given}, {names['gradients']}):"
        return f"\n{each}\n    {names['parameter']}.grad = {names['grad']}"

    def _emptied(self, plan: _Plan) -> list[str]:
        """Return the lines that zero what a window has added up."""
        ops = self.words("ops")
        return [
            f"for total in {plan.names['accumulated']}:",
            f"    {ops}.assign(total, {ops}.zeros_like(total))",
        ]

    def _reducer(self, plan: _Plan) -> list[Any]:
        """Return the line that makes what averages gradients over ranks, where there are some."""
        if not self.parallel:
            return []
        made = f"{self.words('port')}.grad_reducer({self._parameters(plan.group)})"
        return self._spaced(f"{plan.names['grad_reducer']} = {made}")

    def _spaced(self, code: str) -> list[Any]:
        made = self._parsed(code)
        made[0] = made[0].with_changes(leading_lines=_BLANK)
        return made

    def _parsed(self, code: str) -> list[Any]:
        return list(cst.parse_module(code).body)

    def _outlives(self, plan: _Plan) -> bool:
        """Return whether a window may begin in one call of the function and end in another."""
        group = plan.group
        apart = group.accumulates and group.steps[0] not in group.forwards[0].block.lines
        if not apart or isinstance(self.steps.node, cst.Module) or plan.anchor is None:
            return False
        top = self.steps.block.lines
        zeros = [line for line in top if line.act is not None and line.act.kind == "zero"]
        step_below = isinstance(group.forwards[0].block.owner, Line)
        return step_below and not zeros

    # --- the scope --------------------------------------------------------------------------

    def _render(self, block: Block) -> list[Any]:
        found: list[Any] = []
        waiting: list[Any] = []  # comments of lines that go
        for line in block.lines:
            made = self._line(line)
            if not made:
                waiting += _comments(line.node) if id(line) not in self.made else []
                continue
            if waiting and hasattr(made[0], "leading_lines"):
                lead = [*waiting, *made[0].leading_lines]
                made[0] = self._guard(made[0].with_changes(leading_lines=lead), made[0])
                waiting = []
            found += made
        return self._under(found)

    def _under(self, nodes: list[Any]) -> list[Any]:
        """Put statements of one condition, as they stand together, under it again."""
        found: list[Any] = []
        last: Any = None
        for node in nodes:
            guard = self._guards.get(id(node))
            if guard is None:
                found.append(node)
            elif guard is last:
                body = [*found[-1].body.body, node]
                found[-1] = found[-1].with_changes(body=cst.IndentedBlock(body))
            else:
                found.append(_only_if(guard, [node]))
            last = guard
        return found

    def _line(self, line: Line) -> list[Any]:
        before: list[Any] = []
        for plan in self.plans:
            here = plan.anchor is line or (plan.anchor is None and self._opens(plan) is line)
            if here:
                before += plan.definitions
        own = self._own(line)
        if before and own and not own[0].leading_lines:
            own[0] = self._guard(own[0].with_changes(leading_lines=_BLANK), own[0])
        return [*before, *own]

    def _guard(self, node: Any, like: Any) -> Any:
        """Have a statement stand under the condition that another one stands under."""
        if id(like) in self._guards:
            self._guards[id(node)] = self._guards[id(like)]
            self._kept.append(node)
        return node

    def _opens(self, plan: _Plan) -> Line:
        """Return the line in front of which functions stand that no loop is around."""
        group = plan.group
        if group.accumulates or group.split:
            first = group.forwards[0]
            return next(line for line in first.block.lines if _is_backward(line, first))
        return group.steps[0]

    def _own(self, line: Line) -> list[Any]:
        late = {id(one) for lines in self.steps.late.values() for one in lines}
        if id(line) in self.made or id(line) in late:
            return []
        if line.act is not None:
            return self._act(line)
        node = line.node
        if line.inner:
            changes: dict[str, Any] = {}
            for name, inner in line.inner.items():
                part = getattr(node, name)
                body = self._render(inner) or [cst.SimpleStatementLine([cst.Pass()])]
                if isinstance(part, cst.IndentedBlock):
                    changes[name] = part.with_changes(body=body)
                else:
                    changes[name] = part.with_changes(body=part.body.with_changes(body=body))
            node = node.with_changes(**changes)
        return [self._guarded(node, line)]

    def _guarded(self, node: Any, line: Line) -> Any:
        around = line.guard or (line.within if id(line) in self.steps.valued else None)
        if around is not None:
            self._guards[id(node)] = around
            self._kept.append(node)
        return node

    def _call(self, plan: _Plan, text: str, forward: Forward) -> list[Any]:
        """Return a step's call; where it has a condition, else its forward pass alone."""
        made = self._parsed(text)
        guard = plan.group.guard
        if guard is None:
            return made
        if any(line.guard is not None for line in forward.lines):
            rest = [line.node.deep_clone() for line in forward.lines if line.guard is None]
        else:
            bare = bool(plan.group.scaler)
            values = self._evaluated(forward) if bare else values_of(forward, plan.group)
            got = [forward.loss, *(self._inside(value) for value in values[1:])]
            call = f"{plan.names['forward_fn']}({', '.join(forward.args)})"
            back = [name if name.isidentifier() else "_" for name in got]
            given = f"{', '.join(back)} = {call}" if set(back) != {"_"} else call
            rest = self._parsed(given)
        both = _only_if(guard, made).with_changes(orelse=cst.Else(cst.IndentedBlock(rest)))
        return [both]

    def _act(self, line: Line) -> list[Any]:
        if id(line) in self.steps.cleared:
            group = self.steps.cleared[id(line)]
            plan = next(plan for plan in self.plans if plan.group is group)
            order = [one for one, _ in every(self.steps.block)]
            is_there = plan.anchor is not None and order.index(plan.anchor) < order.index(line)
            return self._parsed("\n".join(self._emptied(plan))) if is_there else []
        groups = self.steps.joint.get(id(line))
        if groups is not None and line.act is not None:
            ops, verdicts = self.words("ops"), [f"finite{group.suffix}" for group in groups]
            both = verdicts[0]
            for verdict in verdicts[1:]:
                both = f"{ops}.logical_and({both}, {verdict})"
            return [
                self._guarded(one, line)
                for one in self._parsed(f"{groups[0].scaler}.adjust({both})")
            ]
        for plan in self.plans:
            for forward in plan.group.forwards:
                apart = plan.group.accumulates or plan.group.split
                if _is_backward(line, forward) and apart:
                    made = self._parsed(plan.calls[id(forward)])
                    return [*made, *self._late(plan.group, forward)]
            if line is plan.group.steps[0]:
                first = plan.group.forwards[0]
                if plan.group.accumulates or plan.group.split:
                    return self._parsed(plan.calls[id(plan.group)])
                made = self._call(plan, plan.calls[id(plan.group)], first)
                return [*made, *self._late(plan.group, first)]
        return []

    def _late(self, group: Group, forward: Forward) -> list[Any]:
        late = [one for one in self.steps.late[id(group)] if one in forward.block.lines]
        return [self._guarded(one.node, one) for one in late]


def _only_if(guard: Any, body: list[Any]) -> Any:
    """Return ``if`` with other statements; its comments stand with those."""
    return guard.with_changes(body=cst.IndentedBlock(body), leading_lines=())


def _is_backward(line: Line, forward: Forward) -> bool:
    return (
        line.act is not None
        and line.act.sink is not None
        and line.act.sink.call is forward.sink.call
    )


def _is_inside(block: Block | None, top: Block) -> bool:
    while block is not None:
        if block is top:
            return True
        block = block.outer
    return False


def _target(values: list[str]) -> str:
    names = [value if value.isidentifier() else "_" for value in values]
    return names[0] if len(names) == 1 else f"({', '.join(names)})"


def _lines_of(steps: Steps) -> list[Any]:
    forwards = (forward for group in steps.groups for forward in group.forwards)
    return [line.node for forward in forwards for line in forward.lines]


def _is_wrapped(node: Any) -> bool:
    """Return whether a statement runs ``net.module``: whoever handed it in has wrapped it."""
    return any("module" in dotted(call.func).split(".")[1:] for call in calls_in(node))


def _unbracketed(node: cst.BaseExpression) -> str:
    return code_of(node.with_changes(lpar=(), rpar=()))


def _parts(node: Any) -> list[Any]:
    return list(node.body) if isinstance(node, cst.SimpleStatementLine) else [node]


def _is_field(text: str, known: set[str]) -> bool:
    """Return whether a loss is kept by an attribute, which may be given a value."""
    return text in known and re.fullmatch(r"\w+(\.\w+)+", text) is not None


def _comments(node: Any) -> list[Any]:
    return [line for line in getattr(node, "leading_lines", ()) if line.comment]


def _is_kept(forward: Forward) -> bool:
    """Return whether what a loss is made of gives it to an attribute."""
    name = code_of(forward.sink.loss)
    return "." in name and any(name in assigned(line.node) for line in forward.lines)


class _Renamed(cst.CSTTransformer):
    """Attributes become names."""

    def __init__(self, names: dict[str, str]) -> None:
        super().__init__()
        self.names = names

    def leave_Attribute(  # noqa: N802  # libcst's name for it
        self, original_node: cst.Attribute, updated_node: cst.Attribute
    ) -> cst.BaseExpression:
        """Return the name that an attribute has here."""
        name = self.names.get(dotted(original_node) or "")
        return updated_node if name is None else cst.Name(name)


class _Outside(Reading):
    """Names that are read outside of some statements."""

    def __init__(self, skipped: set[int]) -> None:
        super().__init__()
        self.skipped = skipped

    def on_visit(self, node: cst.CSTNode) -> bool:
        return False if id(node) in self.skipped else super().on_visit(node)


class _Bare(Walker):
    def __init__(self) -> None:
        self.names: set[str] = set()

    def on_visit(self, node: cst.CSTNode) -> bool:
        if isinstance(node, cst.Attribute):
            return not isinstance(node.value, cst.Name)
        if isinstance(node, cst.Name):
            self.names.add(node.value)
        func = node.func if isinstance(node, cst.Call) else None
        if isinstance(func, cst.Attribute) and isinstance(func.value, cst.Name):
            self.names.add(func.value.value)
        return True


def _bare(node: cst.CSTNode) -> set[str]:
    """Return names that are used themselves, not for an attribute of theirs alone."""
    found = _Bare()
    found.walk(node)
    return found.names

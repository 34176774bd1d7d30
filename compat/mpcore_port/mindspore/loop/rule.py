"""The rule that writes training loops as MindSpore's guide does, where it can."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.mindspore.loop.acts import Acts
from mpcore_port.mindspore.loop.decay import decays
from mpcore_port.mindspore.loop.description import NotPlain
from mpcore_port.mindspore.loop.lines import every
from mpcore_port.mindspore.loop.makers import maker_of, model_of, stepping
from mpcore_port.mindspore.loop.prepared import prepared_of
from mpcore_port.mindspore.loop.recognise import steps_of_scope
from mpcore_port.mindspore.loop.scalers import Scalers
from mpcore_port.mindspore.loop.write import write_scope
from mpcore_port.mindspore.rules.losses.accelerated import accelerates
from mpcore_port.mindspore.rules.losses.names_in import read
from mpcore_port.mindspore.rules.losses.own_passes import own_passes
from mpcore_port.mindspore.rules.losses.plan import plans_of, trains_nothing
from mpcore_port.mindspore.rules.place import PortRule, by_name, need
from mpcore_port.names import code_of

if TYPE_CHECKING:
    from mpcore_port.mindspore.loop.description import Group, Opened
    from mpcore_port.mindspore.loop.recognise import Steps
    from mpcore_port.mindspore.loop.write import Written
    from mpcore_port.rule import At

__all__ = ["LoopRule", "loops_of"]

_AGAIN = "computed again for this loss: buffers such as BatchNorm's move twice, dropout draws anew"

_SHARDED = ("FullyShardedDataParallel", "fully_shard")
_INSIDE = "a part of the step's function, where gradients are values"
_STANDS = "its statements stand where it was called: a step's function makes its loss"
_NO_CALLER = "a caller in another file finds no such function"
_REGION = "the step's function runs in its region, or under its condition"
_HANDED = "its scaler must be one of MindSpore's: ms.amp.DynamicLossScaler"
_ANEW = "compiled in each call of its function; one that is made for each step runs eagerly"
_UNBOUND = "{} is None where no branch binds it; torch's keeps its last value, if it had one"
_SKIPS = (
    "a turn that is left between the network and its loss runs no network now: buffers such as "
    "BatchNorm's do not move in it"
)
_NARROW = "a parameter that the optimizer does not move has no gradient behind the step"
_UNCLIPPED = "after a step that the scaler skips, gradients are read as they were before the clip"
_BEHIND = "`{}` runs behind the step: what it raises comes after the weights have moved"
_WIDER = (
    "it clips the gradients of what its optimizer moves: torch those of {}, and where that is more "
    "or less, the norm is another"
)
_WINDOW = "a last window that is not full is dropped at the end of the function; torch keeps it"


@dataclass(eq=False)
class Loops:
    """The steps of a module.

    Attributes:
        written: by the id of a scope's block, its steps and what stands there.
        claimed: ids of backward calls that are written so.
        inside: ids of the functions and losses of those calls.
        scalers: what becomes of the scalers; None if they stay torch's.
        why: where something is in the way, and what.
        gone: functions whose statements stand where they were called, by their ids.
    """

    written: dict[int, tuple[Steps, Written]] = field(default_factory=dict)
    claimed: set[int] = field(default_factory=set)
    inside: set[int] = field(default_factory=set)
    scalers: Scalers | None = None
    why: list[tuple[Any, str]] = field(default_factory=list)
    gone: dict[int, cst.FunctionDef] = field(default_factory=dict)


_RECORDED = "all that runs is recorded, for a loss of other functions"


def loops_of(at: At) -> Loops:
    """Return the steps of a module that can be written as MindSpore's; ask by ``at.once``."""
    return _Finding(at).run()


class _Finding:
    def __init__(self, at: At) -> None:
        self.at, self.found = at, Loops()
        self.sinks = {id(sink.call): sink for sink in at.once(plans_of).sinks}
        self.acts = Acts(at, self.sinks)
        self._taken: set[str] = set()

    def run(self) -> Loops:
        scopes: dict[int, Any] = {}
        for sink in self.sinks.values():
            scope = self._scope(sink.call)
            scopes.setdefault(id(scope), scope)
        done: list[Steps] = []
        for scope in scopes.values():
            steps = self._steps(scope)
            if steps is not None:
                done.append(steps)
        self._settle(done, len(scopes))
        if self._is_recorded():
            whole = [s.node for s in done if s.node is not None]
            self.found = Loops(why=[*self.found.why, *((one, _RECORDED) for one in whole)])
        handed = self.acts.handed.values()
        left = {id(one.function) for one in handed if id(one.sink.call) not in self.found.claimed}
        gone = (one.function for one in handed if id(one.function) not in left)
        self.found.gone = {id(function): function for function in gone}
        return self.found

    def _is_recorded(self) -> bool:
        """Return whether a loss goes back through what is recorded, which a step would end."""
        plans = self.at.once(plans_of)
        left = (one for one in plans.sinks if id(one.call) not in self.found.claimed)
        return bool(plans.handed) or any(id(one.call.func) in plans.recorded for one in left)

    def _scope(self, node: cst.CSTNode) -> Any:
        return self.at.names.enclosing(node, cst.FunctionDef) or self.at.module

    def _steps(self, scope: Any) -> Steps | None:
        try:
            wrapped = [n for n in self.at.scan.torch_names if n.endswith(_SHARDED)]
            for sink in self.sinks.values():
                if self._scope(sink.call) is scope:
                    if wrapped:
                        raise NotPlain(sink.call, f"{wrapped[0]} cuts its parameters up")
                    self._check(sink)
            self._check_passes(scope)
            steps = steps_of_scope(scope, self.acts, self.at)
            self._check_order(steps)
            return steps
        except NotPlain as exc:
            self.found.why.append((self.acts.standing.get(id(exc.node), exc.node), exc.why))
            return None

    def _check_order(self, steps: Steps) -> None:
        """Raise if a step's function would run a network that another step has moved before.

        In the script it runs in front of that step, by weights of before.
        """
        place = {id(line): number for number, (line, _) in enumerate(every(steps.block))}
        for mover in steps.groups:
            moved = mover.steps[0]
            maker = maker_of(stepping(moved), self.at)
            model = model_of(maker) if maker is not None else ""
            for group in steps.groups:
                if not model or place[id(group.steps[0])] <= place[id(moved)]:
                    continue
                for line in (line for forward in group.forwards for line in forward.lines):
                    if place[id(line)] < place[id(moved)] and model in read(line.node):
                        why = f"{model} runs before an optimizer's step that moves it"
                        raise NotPlain(line.node, why)

    def _check(self, sink: Any) -> None:
        func = sink.call.func
        if self.at.once(accelerates):
            raise NotPlain(sink.call, "accelerate or Fabric says how an optimizer steps")
        plans = self.at.once(plans_of)
        if id(sink.call) in plans.torn:
            raise NotPlain(sink.call, plans.torn[id(sink.call)])
        if id(sink.call) in self.acts.handed:
            return
        if not isinstance(func, cst.Attribute) or func.attr.value != "backward":
            raise NotPlain(sink.call, "its backward pass is in another function or class")

    def _check_passes(self, scope: Any) -> None:
        """Raise if a call among the steps runs a backward pass of its own: it may not be moved."""
        for call in self.at.names.calls:
            if id(call) not in self.sinks and self._scope(call) is scope:
                for function in own_passes(call, self.at):
                    why = f"`{function.name.value}` has a backward pass of its own"
                    raise NotPlain(call, why)

    def _settle(self, done: list[Steps], count: int) -> None:
        """Write the scopes; those with scalers all, or none of them."""
        scaled = [s for s in done if any(group.scaler for group in s.groups)]
        whole = len(done) == count
        try:
            apart = [sink for s in done for line, _ in every(s.block) for sink in line.also]
            texts = [g.scaler for s in scaled for g in s.groups if g.scaler]
            scalers = Scalers(self.at, texts, apart)
            if (scaled or scalers.made) and not whole:
                done = [steps for steps in done if steps not in scaled]
            else:
                if not self.at.options.plain and whole and not scalers.is_optional:
                    scalers.prepared = prepared_of(done, scalers, self.at)
                if scaled or scalers.prepared:
                    scalers.check()
                    self.found.scalers = scalers
        except NotPlain as exc:
            self.found.why.append((exc.node, exc.why))
            done = [steps for steps in done if steps not in scaled]
        for steps in done:
            try:
                written = write_scope(steps, self.at, self._word, self._fresh, self.found.scalers)
            except NotPlain as exc:
                self.found.why.append((exc.node, exc.why))
                if self.found.scalers is not None:
                    self.found.scalers = None
                    self.found.written.clear()
                    self.found.claimed.clear()
                    return
                continue
            self._keep(steps, written)

    def _keep(self, steps: Steps, written: Written) -> None:
        body = steps.node if isinstance(steps.node, cst.Module) else steps.node.body
        self.found.written[id(body)] = (steps, written)
        for sink in self.sinks.values():
            if self._scope(sink.call) is steps.node:
                self.found.claimed.add(id(sink.call))
                self.found.inside |= {id(sink.call.func), id(sink.loss)}

    def _word(self, alias: str) -> str:
        return need(self.at, alias, "torch")

    def _fresh(self, name: str) -> str:
        taken = self._taken | set(self.at.names.top.bindings)
        for scope in self.at.names._scopes.values():
            taken |= set(scope.bindings)
        number, fresh = 1, name
        while fresh in taken:
            number += 1
            fresh = f"{name}_{number}"
        self._taken.add(fresh)
        return fresh


class LoopRule(PortRule):
    """A training loop becomes forward functions and steps, as MindSpore's guide writes them."""

    name = "training loop"
    reason = "MindSpore differentiates functions: a step runs one, and applies its gradients"
    visits = (
        *(cst.IndentedBlock, cst.Module, cst.If, cst.Call, cst.Comparison, cst.Name, cst.Expr),
        *(cst.IfExp, cst.BooleanOperation, cst.UnaryOperation),
    )

    def idle(self, at: At) -> bool:
        """Whether nothing trains, or the script is a port."""
        return super().idle(at) or trains_nothing(at)

    def act(self, old: Any, new: Any, at: At) -> Any:
        """Rewrite the block of a scope, or what is said of a scaler."""
        loops = at.once(loops_of)
        if isinstance(old, (cst.IndentedBlock, cst.Module)):
            return self._block(old, new, at, loops)
        if loops.scalers is None:
            return None
        return loops.scalers.rewrite(self, old, new)

    def _block(self, old: Any, new: Any, at: At, loops: Loops) -> Any:
        if isinstance(old, cst.Module):
            for node, why in loops.why:
                line = code_of(node).partition("\n")[0]
                place = at.original(node)
                at.note(self, place, line, reason=f"the loop keeps torch's form: {why}")
        gone = [one for one in old.body if id(one) in loops.gone]
        for function in gone:
            at.note(self, function.name, "", "changed", _STANDS, _NO_CALLER)
        if id(old) not in loops.written:
            if not gone:
                return None
            rest = [now for one, now in zip(old.body, new.body, strict=True) if one not in gone]
            return new.with_changes(body=rest or [cst.SimpleStatementLine([cst.Pass()])])
        steps, written = loops.written[id(old)]
        self._tell(steps, at)
        for group, node, shown in written.firsts:
            effect = "; ".join([*_effects(group, written, loops), *decays(group, at)])
            at.note(
                self,
                at.original(node),
                shown,
                "changed" if effect else "exact",
                self.reason,
                effect,
            )
        fresh = {id(line): now for line, now in zip(old.body, new.body, strict=True)}
        inside = _Scaling(self, loops.scalers)
        body = [
            fresh[id(line)] if id(line) in fresh else line.visit(inside) for line in written.body
        ]
        return new.with_changes(body=body)

    def _tell(self, steps: Steps, at: At) -> None:
        """Note the statements that are parts of a step's function now."""
        for line, _ in every(steps.block):
            if line.act is not None and line.source is not None:
                at.note(self, line.source, "", reason=_INSIDE)
        for one in steps.opened:
            effect = _effect_of(one)
            at.note(self, one.node, "", "changed" if effect else "exact", _REGION, effect)


def _effect_of(opened: Opened) -> str:
    """Return what changes where a statement is gone; "" for nothing."""
    row = by_name("torch.autocast") if opened.casts else None
    return row.effect if row is not None else ""


def _effects(group: Group, written: Written, loops: Loops) -> list[str]:
    found = [_AGAIN] if written.again else []
    if not group.apex and group.scaler and loops.scalers is not None and loops.scalers.handed_in:
        found.append(_HANDED)
    found += [_ANEW] if written.anew else []
    found += [_NARROW] if group.narrow else []
    found += [_SKIPS] if group.skips else []
    behind = "; ".join(dict.fromkeys(group.behind))
    found += [_BEHIND.format(behind)] if behind else []
    wider = " | ".join(dict.fromkeys(group.perhaps_wider))
    found += [_WIDER.format(wider)] if wider else []
    found += [_UNCLIPPED] if group.handed and group.scaler and group.clips else []
    unbound = [name for forward in group.forwards for name in forward.unbound]
    unbound += [name for name in written.started if name not in unbound]
    found += [_UNBOUND.format(", ".join(unbound))] if unbound else []
    return [*found, _WINDOW] if group in written.windows else found


class _Scaling(cst.CSTTransformer):
    """Rewrites what is asked of scalers in statements that were put together anew."""

    def __init__(self, rule: LoopRule, scalers: Scalers | None) -> None:
        super().__init__()
        self.rule, self.scalers = rule, scalers

    def on_leave(self, original_node: Any, updated_node: Any) -> Any:
        if self.scalers is None:
            return updated_node
        made = self.scalers.rewrite(self.rule, original_node, updated_node)
        return updated_node if made is None else made

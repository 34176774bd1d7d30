"""The forward pass and its loss become a function; the rest of torch's loop stays.

MindSpore has no ``backward`` of a tensor: it differentiates functions. The statements that a
loss is made of are moved into one, and ``port.loss`` runs and differentiates it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.imports import end_of_imports
from mpcore_port.mindspore.loop.handed import without_text
from mpcore_port.mindspore.loop.rule import loops_of
from mpcore_port.mindspore.loop.scalers import made_in_branches
from mpcore_port.mindspore.rules.losses.accelerated import accelerated
from mpcore_port.mindspore.rules.losses.divided import division
from mpcore_port.mindspore.rules.losses.in_branches import made_in_branch
from mpcore_port.mindspore.rules.losses.inputs import (
    GRADIENT,
    GRADIENT_ORDER,
    gradient_call,
    has_unused,
)
from mpcore_port.mindspore.rules.losses.names_in import assigned
from mpcore_port.mindspore.rules.losses.penalties import LACKS
from mpcore_port.mindspore.rules.losses.plan import plans_of, trains_nothing
from mpcore_port.mindspore.rules.losses.released import asked_names
from mpcore_port.mindspore.rules.losses.shared_names import only
from mpcore_port.mindspore.rules.place import PortRule, need
from mpcore_port.names import code_of
from mpcore_port.scan import arguments

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mpcore_port.mindspore.rules.losses.planned import Plan
    from mpcore_port.rule import At

__all__ = ["TrainingRule"]

_AGAIN = "computed again for this loss: buffers such as BatchNorm's move twice, dropout draws anew"
_LATE = (
    "; {} is run by the weights that an optimizer gave it in between, torch's values are of before"
)
_TWICE = (
    "computed where it was, and in the loss once more: buffers such as BatchNorm's, and what "
    "networks keep themselves, move twice, dropout and noise draw anew"
)


def _lonely(at: At) -> dict[int, list[str]]:
    """Return by the id of a branch the scalers that it alone makes, of losses in torch's form."""
    plans, loops = at.once(plans_of), at.once(loops_of)
    if loops.scalers is not None:
        return {}
    held = (plan for block in plans.blocks.values() for plan in block)
    asked = {plan.sink.scaler for plan in held if id(plan.sink.call) not in loops.claimed}
    alone = {
        branch: [n for n in every if n in asked] for branch, every in made_in_branches(at).items()
    }
    return {branch: names for branch, names in alone.items() if names}


def _bound_in_all(branch: Any, names: list[str]) -> Any:
    """Return branches of which each binds some names, by None where it has bound them not."""
    if branch is None:
        lines = [cst.parse_statement(f"{name} = None") for name in names]
        return cst.Else(cst.IndentedBlock(lines))
    held = set(assigned(branch.body))
    lines = [cst.parse_statement(f"{name} = None") for name in names if name not in held]
    body = branch.body
    if lines and not isinstance(body, cst.IndentedBlock):
        body = cst.IndentedBlock([cst.SimpleStatementLine(body.body)])
    if lines:
        branch = branch.with_changes(body=body.with_changes(body=[*body.body, *lines]))
    if isinstance(branch, cst.Else):
        return branch
    return branch.with_changes(orelse=_bound_in_all(branch.orelse, names))


_HANDED = "`{}` is handed in"
_RECORDED = (
    "{}: port.record() has MindSpore record all that runs once this file is imported, and the "
    "backward pass goes through that"
)

_RECORDED_GRADIENT = (
    "{}: port.record() has MindSpore record all that runs once this file is imported, and the "
    "gradients go through that"
)
_APART = (
    "what this backward pass runs under enable_grad is recorded apart, and the gradients go "
    "through that: by Parameters, and by tensors that detach().requires_grad_() made"
)
_ASKED = "`{}` is None there until something binds it, and an error of Python is waited for"

_UNSURE = (
    "it runs inside of the loss's function, where another file's code has the network: what it "
    "does to weights and gradients was not looked at"
)
_BETWEEN = (
    "it stands between what a network gives and the loss that runs that once more, and nothing in "
    "this file says what it changes"
)
_GRADIENTS = "port.loss differentiates by these tensors; their gradients are handed out"


_WEIGHTED = (
    "the gradients are multiplied by one number, the same for all that the loss has; by others "
    "it raises here: multiply the loss by them, and sum up"
)
_PERHAPS_PARAMETERS = (
    "it is asked for by Parameters of these networks, or raises here: of tensors that are none "
    "nobody looked"
)
_UNUSED = "of a weight that takes no part in the loss it is zeros here, and None in torch"
_AGAIN_DIFFERENTIATED = (
    "create_graph: gradients of gradients; write what is made of them as a function, and take "
    "port.gradients, or amp.gradient(function, x) for penalties"
)
_WITH_GRADIENTS = "its gradients wait in what port.loss has returned: they are divided as well"
_SCALED = "behind the backward pass: in float16 a scale that torch's division makes small overflows"
_PERHAPS_AGAIN = "it raises here where `create_graph` is true: no gradients of gradients are kept"
_ORDER = ("gradient", "retain_graph", "create_graph")


def _by_weights(at: At) -> set[int]:
    """Return the calls of ``torch.autograd.grad`` that a loss of a plan is for, by identity."""
    plans = at.once(plans_of)
    planned = {id(one.sink.call) for block in plans.blocks.values() for one in block}
    return {
        id(sink.call)
        for sink in plans.sinks
        if sink.weights is not None and (id(sink.call) in planned or _shares(sink, plans))
    }


def _shares(sink: Any, plans: Any) -> bool:
    """Return whether a loss that another call takes as well has a plan: one is enough."""
    return id(sink.call.func) not in plans.refused and id(sink.call) not in plans.torn


def _weighted(at: At) -> dict[int, str]:
    """Return what backward passes are handed besides, by the id of a call or of its function."""
    found: dict[int, str] = {}
    for sink in at.once(plans_of).sinks:
        call = sink.call
        if not isinstance(call.func, cst.Attribute) or call.func.attr.value != "backward":
            continue
        if any(arg.value is sink.loss for arg in call.args) and not accelerated(call, at):
            continue  # an optimizer's own way back, which has the loss, not what it is weighed by
        order = ("loss", *_ORDER) if accelerated(call, at) else _ORDER
        given = {k: code_of(v) for k, v in arguments(call, order).items()}
        if given.get("create_graph") == "True":
            found[id(call.func)] = "create_graph"
        elif given.get("create_graph", "False") != "False":
            found[id(call)] = "perhaps"
        elif given.get("gradient", "None") != "None":
            found[id(call)] = "gradient"
    return found


def _recorded(at: At) -> dict[int, str]:
    """Return why losses go back through what is recorded, by the functions of their calls."""
    plans, inside = at.once(plans_of), at.once(loops_of).inside
    return {call: why for call, why in plans.recorded.items() if call not in inside}


def _grads(at: At) -> dict[int, bool]:
    """Return the functions of gradients that are recorded: whether they have gradients again."""
    recorded = at.once(_recorded)
    return {
        id(call.func): _has_graph(call)
        for call in at.names.calls
        if id(call.func) in recorded and at.names.called(call) == GRADIENT
    }


def _has_graph(call: cst.Call) -> bool:
    asked: Any = arguments(call, GRADIENT_ORDER).get("create_graph")
    return asked is not None and code_of(asked) != "False"


def _twice(at: At) -> bool:
    """Return whether a recorded gradient has gradients itself."""
    return any(at.once(_grads).values())


class TrainingRule(PortRule):
    """The statements that a loss is made of become a function that MindSpore differentiates."""

    name = "training step"
    reason = "MindSpore differentiates functions: port.loss runs this one and keeps its gradients"
    visits = (
        *(cst.IndentedBlock, cst.Module, cst.BaseExpression, cst.Call, cst.If),
        *(cst.Assign, cst.AugAssign),
    )

    def idle(self, at: At) -> bool:
        """Whether nothing trains, or the script is a port."""
        return super().idle(at) or trains_nothing(at)

    def act(self, old: Any, new: Any, at: At) -> Any:
        """Rewrite a block that holds a loss, or the loss of a backward pass."""
        plans, loops = at.once(plans_of), at.once(loops_of)
        if type(old) is cst.IndentedBlock or type(old) is cst.Module:
            left = [
                p for p in plans.blocks.get(id(old), []) if id(p.sink.call) not in loops.claimed
            ]
            made = self._block(old, new, at, left)
            if type(old) is cst.Module and (at.once(_recorded) or plans.handed):
                return self._recording(old, new if made is None else made, at)
            return self._started(old, new if made is None else made, at) or made
        if isinstance(old, cst.If):
            return self._both_branches(old, new, at)
        if isinstance(old, (cst.Assign, cst.AugAssign)):
            return self._divided(old, new, at)
        if id(old) in loops.inside:
            return None
        if id(old) in plans.handed:
            at.unproven(self, old, _RECORDED.format(_HANDED.format(plans.handed[id(old)])))
            return None
        if id(old) in plans.apart:
            made = cst.Attribute(cst.Name(need(at, "port", "torch")), cst.Name("grad"))
            at.unproven(self, old, _APART, made)
            return made
        if id(old) in at.once(_grads):
            return self._recorded_gradient(old, at)
        if id(old) in plans.recorded:
            at.unproven(self, old, _RECORDED.format(plans.recorded[id(old)]))
            return None
        if type(old) is cst.Call and id(old) in plans.inputs and gradient_call(old, at):
            return self._gradients(old, new, at)
        why = plans.refused.get(id(old))
        if why is not None:
            return at.refuse(self, old, why)
        if type(old) is cst.Call and id(old) in at.once(_by_weights):
            return self._by_weights(old, new, at)
        if type(old) is cst.Call and at.once(_weighted).get(id(old)) == "gradient":
            at.unproven(self, old, _WEIGHTED)
            return None
        if type(old) is cst.Call and at.once(_weighted).get(id(old)) == "perhaps":
            at.unproven(self, old, _PERHAPS_AGAIN)
            return None
        if at.once(_weighted).get(id(old)) == "create_graph":
            return at.refuse(self, old, _AGAIN_DIFFERENTIATED)
        name = plans.losses.get(id(old))
        return None if name is None else cst.Name(name)

    def _recording(self, old: cst.Module, new: cst.Module, at: At) -> cst.Module:
        """Switch the recording on where the imports of a module end."""
        made = self._started(old, new, at) or new
        place = end_of_imports(made.body)
        twice = "twice=True" if at.once(_twice) else ""
        line = cst.parse_statement(f"{need(at, 'port', 'torch')}.record({twice})")
        return made.with_changes(body=[*made.body[:place], line, *made.body[place:]])

    def _recorded_gradient(self, old: Any, at: At) -> Any:
        """Write the function of ``torch.autograd.grad`` as the runtime's, of what is recorded."""
        made = cst.Attribute(cst.Name(need(at, "port", "torch")), cst.Name("grad"))
        why = _RECORDED_GRADIENT.format(at.once(plans_of).recorded[id(old)])
        at.unproven(self, old, f"{why}; {LACKS}" if at.once(_grads)[id(old)] else why, made)
        return made

    def _gradients(self, old: cst.Call, new: cst.Call, at: At) -> Any:
        """Write ``torch.autograd.grad`` as the runtime's."""
        made = new.with_changes(func=cst.Attribute(cst.Name(need(at, "port")), cst.Name("grad")))
        at.note(self, old, made, reason=_GRADIENTS)
        return made

    def _by_weights(self, old: cst.Call, new: cst.Call, at: At) -> Any:
        """Write ``torch.autograd.grad`` by a network's parameters as the runtime's."""
        given = arguments(new, ("outputs", "inputs"))
        values = ", ".join(code_of(given[name]) for name in ("outputs", "inputs"))
        made = cst.parse_expression(f"{need(at, 'port')}.grad({values})")
        if has_unused(old):
            at.unproven(self, old, _UNUSED, made)
        elif ".parameters()" in code_of(given["inputs"]):
            at.note(self, old, made, reason=_GRADIENTS)
        else:
            at.unproven(self, old, _PERHAPS_PARAMETERS, made)
        return made

    def _divided(self, old: Any, new: Any, at: At) -> Any:
        """Have a statement that divides a loss divide the gradients that wait for its backward."""
        held = at.once(plans_of).divided.get(id(old))
        if held is None:
            return None
        name, _ = held
        now = division(new, name)
        if now is None:
            return None
        made = now.written(name, need(at, "port"))
        at.note(self, old, made, "changed", _WITH_GRADIENTS, _SCALED)
        return made.with_changes(semicolon=new.semicolon)

    def _both_branches(self, old: cst.If, new: cst.If, at: At) -> Any:
        """Bind scalers that one branch alone makes: ``port.loss`` asks for them in all."""
        above = at.names.parents.get(old)
        if isinstance(above, cst.If) and above.orelse is old:
            return None  # by the first of them
        lonely = at.once(_lonely)
        targets: list[str] = []
        one: Any = old
        while isinstance(one, cst.If):
            targets += [name for name in lonely.get(id(one), ()) if name not in targets]
            one = one.orelse
        return _bound_in_all(new, targets) if targets else None

    def _started(self, old: Any, new: Any, at: At) -> Any:
        """Bind the names that a loss's function changes for its next turn, where a block begins."""
        claimed = at.once(loops_of).claimed
        given = at.once(plans_of).started.get(id(old), ())
        names = [name for name, call in given if call not in claimed]
        if not names:
            return None
        body = without_text(new.body)
        first = old.body[len(new.body) - len(body)] if len(new.body) > len(body) else old.body[0]
        for name in sorted(set(names) & at.once(asked_names)):
            at.unproven(self, first, _ASKED.format(name))
        targets = [cst.AssignTarget(cst.Name(name)) for name in dict.fromkeys(names)]
        line = cst.SimpleStatementLine([cst.Assign(targets, cst.Name("None"))])
        return new.with_changes(body=[*new.body[: len(new.body) - len(body)], line, *body])

    def _block(self, old: Any, new: Any, at: At, plans: list[Plan]) -> Any:
        sunk = at.once(plans_of).sunk
        gone = {place for place, line in enumerate(old.body) if id(line) in sunk}
        if not plans:
            left = [line for place, line in enumerate(new.body) if place not in gone]
            return new.with_changes(body=left) if gone else None
        bodies: dict[int, list[Any]] = {place: [line] for place, line in enumerate(new.body)}
        for plan in plans:
            last = plan.places[-1]
            lines = self._lines(plan, old.body[plan.places[0]], new, at)
            for line in plan.unsure:
                at.unproven(self, line, _UNSURE)
            for line in plan.between:
                at.unproven(self, line, _BETWEEN)
            for place in plan.places:
                bodies[place] = []
            moved = [line for place in plan.moved for line in bodies[place]]
            for place in plan.moved:
                bodies[place] = []
            bodies[last] = [*lines, *moved]
            text = code_of(lines[-1])
            where = old.body[plan.places[0]]
            if plan.again or (plan.front and not plan.sunk):
                effect = _TWICE if plan.twice else _AGAIN
                if plan.late:
                    effect += _LATE.format(plan.late[0])
                at.note(self, where, text, "changed", self.reason, effect)
            else:
                at.note(self, where, text)
        body = [line for place in sorted(bodies) if place not in gone for line in bodies[place]]
        return new.with_changes(body=body)

    def _lines(self, plan: Plan, first: Any, new: Any, at: At) -> list[Any]:
        inner: list[Any] = [
            cst.parse_statement(f"{name} = {held}") for name, held in plan.restored.items()
        ]
        if plan.kept:
            names = [cst.NameItem(cst.Name(name)) for name in plan.kept]
            keyword = cst.Global if plan.word == "global" else cst.Nonlocal
            inner.insert(0, cst.SimpleStatementLine([keyword(names)]))
        for place in sorted({*plan.again, *plan.places}):
            line = new.body[place]
            if place in plan.again:
                line = only(line, plan.wanted)
            inner.append(line.visit(_Unannotated(plan.kept)) if plan.kept else line)
        begin = len(plan.restored) + bool(plan.kept)
        inner[begin:begin] = [line.deep_clone() for line in plan.front]
        begin += len(plan.front)
        lead = getattr(inner[begin], "leading_lines", ())
        if lead:
            inner[begin] = inner[begin].with_changes(leading_lines=())
        inner.append(cst.SimpleStatementLine([cst.Return(plan.result)]))
        lines: list[Any] = [
            cst.parse_statement(f"{held} = {name}") for name, held in plan.saved.items()
        ]
        if plan.missing:
            targets = [cst.AssignTarget(cst.Name(name)) for name in plan.missing]
            lines.append(cst.SimpleStatementLine([cst.Assign(targets, cst.Name("None"))]))
        function = cst.FunctionDef(
            cst.Name(plan.function),
            cst.Parameters([cst.Param(cst.Name(name)) for name in plan.inputs]),
            cst.IndentedBlock(inner),
            lines_after_decorators=(),
        )
        lines.append(function)
        port = need(at, "port", "torch")
        scaled = at.once(plans_of).scaling.get(id(plan.sink), plan.sink)
        scaler = re.sub(r"^port(?=\.apex\.)", port, made_in_branch(scaled, first, at))
        scaler = f", scaler={scaler}" if scaler else ""
        given = ", ".join([plan.function, *plan.parts])
        inputs = f", inputs=[{', '.join(plan.inputs)}]" if plan.inputs else ""
        call = f"{plan.bound} = {port}.loss({given}{scaler}{inputs})"
        if plan.condition is None:
            lines.append(cst.parse_statement(call))
        else:
            lines.append(cst.parse_statement(f"if {code_of(plan.condition)}:\n    {call}"))
        lines[0] = lines[0].with_changes(leading_lines=[*lead])
        return lines


class _Unannotated(cst.CSTTransformer):
    """Assignments without their annotations: a name that is nonlocal has none."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names

    def leave_AnnAssign(  # noqa: N802  # libcst's name
        self, original_node: cst.AnnAssign, updated_node: cst.AnnAssign
    ) -> Any:
        """Leave the annotation of one of the names out, and what is an annotation alone."""
        del original_node
        target, value = updated_node.target, updated_node.value
        if not isinstance(target, cst.Name) or target.value not in self.names:
            return updated_node
        if value is None:
            return cst.Pass(semicolon=updated_node.semicolon)
        return cst.Assign([cst.AssignTarget(target)], value, semicolon=updated_node.semicolon)

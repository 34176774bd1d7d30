"""apex, level O1, one model, one optimizer, one loss: torch's own AMP, written out.

Anything else about apex (other levels, levels from the command line, ``loss_id``, accumulation,
saved states) is left to ``mpcore_compat.apex``, which does it exactly.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.names import code_of, dotted, string_of
from mpcore_port.rule import Rule
from mpcore_port.torch_npu.plan import need_npu

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["ApexNative", "Plan", "native_plan"]

_EFFECT = (
    "autocast's lists in place of apex's; model calls outside this block, as in validation, run in "
    "float32; the scale has no cap at 2**24"
)
_LIBRARY = {"initialize", "scale_loss", "master_params"}


@dataclass(frozen=True)
class Plan:
    """The statements of one training loop under apex O1, as nodes of the original tree."""

    model: str
    optimizer: str
    loss: str
    init: Any
    block: Any
    region: tuple[Any, ...]
    scaled: Any
    step: Any
    clips: tuple[Any, ...] = field(default=())


def native_plan(at: At) -> Plan | None:
    """Return the plan if the file is that simple, else None; made once a file."""
    return None if at.options.portable or "apex" not in at.code else at.once(_plan)


def _plan(at: At) -> Plan | None:
    uses: dict[str, list[cst.Call]] = {}
    for node in at.names.parents:
        if not isinstance(node, (cst.Name, cst.Attribute)) or not at.names.is_reference(node):
            continue
        name = at.names.qualified(node) or ""
        if not name.startswith("apex.amp") or isinstance(
            at.names.parents[node], (cst.ImportAlias, cst.ImportFrom)
        ):
            continue
        call = at.names.parents[node]
        if not isinstance(call, cst.Call) or call.func is not node:
            return None
        uses.setdefault(name.rpartition(".")[2], []).append(call)
    if not set(uses) <= _LIBRARY or len(uses.get("initialize", [])) != 1:
        return None
    if len(uses.get("scale_loss", [])) != 1:
        return None
    names = _initialized(uses["initialize"][0], at)
    return _loop(names, uses, at) if names else None


def _initialized(call: cst.Call, at: At) -> tuple[str, str] | None:
    """Return the names of model and optimizer, if this is a plain O1."""
    parent = at.names.parents[call]
    if not isinstance(parent, cst.Assign) or len(parent.targets) != 1 or len(call.args) < 2:
        return None
    target = parent.targets[0].target
    given = [dotted(arg.value) for arg in call.args[:2]]
    if not isinstance(target, cst.Tuple) or any(a.keyword or a.star for a in call.args[:2]):
        return None
    if [code_of(e.value) for e in target.elements] != given or not all(given):
        return None
    for arg in call.args[2:]:
        key, text = arg.keyword.value if arg.keyword else "", string_of(arg.value)
        if (key, text) not in (
            ("opt_level", "O1"),
            ("loss_scale", "dynamic"),
        ) and key != "verbosity":
            return None
    return given[0], given[1]


def _loop(names: tuple[str, str], uses: dict[str, list[cst.Call]], at: At) -> Plan | None:
    (init,), (call,) = uses["initialize"], uses["scale_loss"]
    scaled = at.names.enclosing(call, cst.With)
    if scaled is None or at.names.scope(init) is not at.names.scope(call) or len(call.args) != 2:
        return None
    if at.names.scope(init).find("scaler"):
        return None  # the name is taken
    item = scaled.items[0]
    body = scaled.body.body if isinstance(scaled.body, cst.IndentedBlock) else ()
    alias = code_of(item.asname.name) if item.asname else ""
    if len(scaled.items) != 1 or len(body) != 1 or code_of(body[0]) != f"{alias}.backward()":
        return None
    loss, optimizer = (dotted(arg.value) for arg in call.args)
    block = at.names.parents[scaled]
    if optimizer != names[1] or not loss or not isinstance(block, (cst.IndentedBlock, cst.Module)):
        return None
    statements = list(block.body)
    place = statements.index(scaled)
    region = _region(statements[:place], names[0], loss, at)
    after = statements[place + 1 :]
    step = next((s for s in after if code_of(s) == f"{optimizer}.step()"), None)
    if not region or step is None:
        return None
    clips = tuple(s for s in after if any(_within(c, s, at) for c in uses.get("master_params", ())))
    if len(clips) != len(uses.get("master_params", ())):
        return None
    if any(statements.index(clip) > statements.index(step) for clip in clips):
        return None
    init_line: Any = at.names.statement(init)
    if not isinstance(init_line, cst.SimpleStatementLine) or len(init_line.body) != 1:
        return None
    return Plan(names[0], names[1], loss, init_line, block, region, scaled, step, clips)


def _within(node: cst.CSTNode, outer: cst.CSTNode, at: At) -> bool:
    return outer in at.names.ancestors(node)


def _region(before: list[Any], model: str, loss: str, at: At) -> tuple[Any, ...]:
    """Return the statements from the model's first call to the last that binds the loss."""
    calls = [call for call in at.names.calls if dotted(call.func) == model]
    firsts = [i for i, s in enumerate(before) if any(_within(c, s, at) for c in calls)]
    lasts = [i for i, s in enumerate(before) if _binds(s, loss)]
    if not firsts or not lasts or lasts[-1] < firsts[0]:
        return ()
    return tuple(before[firsts[0] : lasts[-1] + 1])


def _binds(statement: Any, name: str) -> bool:
    if not isinstance(statement, cst.SimpleStatementLine):
        return False
    for small in statement.body:
        if isinstance(small, cst.Assign) and any(code_of(t.target) == name for t in small.targets):
            return True
        if isinstance(small, cst.AugAssign) and code_of(small.target) == name:
            return True
    return False


class ApexNative(Rule):
    """A loop under apex O1 becomes autocast around the loss, and a scaler."""

    name = "apex O1"
    reason = "apex O1 is autocast in float16 and a dynamic scale: torch has both"
    visits = (cst.SimpleStatementLine, cst.With, cst.IndentedBlock, cst.Module, cst.Call)

    def idle(self, at: At) -> bool:
        """Whether the module says nothing of apex."""
        return "apex" not in at.code

    def leave(self, old: Any, new: Any, at: At) -> Any:
        """Rewrite one statement of the plan."""
        plan = native_plan(at)
        if plan is None:
            return None
        if isinstance(old, cst.Call):
            return self._masters(old, plan, at)
        if old is plan.init:
            return self._init(old, new, at)
        if old is plan.scaled:
            line = self._line(f"scaler.scale({plan.loss}).backward()", new)
            at.note(self, old, line, "changed", "", _EFFECT)
            return line
        if old is plan.step:
            lines = [
                self._line(f"scaler.step({plan.optimizer})", new),
                self._line("scaler.update()"),
            ]
            at.note(self, old.body[0], "\n".join(code_of(line) for line in lines))
            return cst.FlattenSentinel(lines)
        if old in plan.clips:
            line = self._line(f"scaler.unscale_({plan.optimizer})", new)
            at.note(
                self, old.body[0], f"{code_of(line)}\n{code_of(new.with_changes(leading_lines=()))}"
            )
            return cst.FlattenSentinel([line, new.with_changes(leading_lines=())])
        if old is plan.block:
            return self._block(old, new, plan, at)
        return None

    def _init(self, old: Any, new: Any, at: At) -> Any:
        torch = at.name_of("torch", "torch")
        line = self._line(f"scaler = {torch}.npu.amp.GradScaler()", new)
        at.note(self, old.body[0], line, "changed", "", _EFFECT)
        need_npu(at)
        return line

    def _masters(self, old: Any, plan: Plan, at: At) -> Any:
        if at.names.called(old) != "apex.amp.master_params":
            return None
        made = f'[p for group in {plan.optimizer}.param_groups for p in group["params"]]'
        at.note(self, old, made)
        return cst.parse_expression(made)

    def _line(self, text: str, like: Any = None) -> Any:
        line = cst.parse_statement(text)
        trailing = cst.TrailingWhitespace()
        if like is None:
            return line.with_changes(trailing_whitespace=trailing)
        if isinstance(like, cst.SimpleStatementLine):
            trailing = like.trailing_whitespace
        return line.with_changes(leading_lines=like.leading_lines, trailing_whitespace=trailing)

    def _block(self, old: Any, new: Any, plan: Plan, at: At) -> Any:
        """Put the region under autocast; what stands before it has kept its places."""
        first = list(old.body).index(plan.region[0])
        last = first + len(plan.region)
        region = list(new.body[first:last])
        torch = at.name_of("torch", "torch")
        context = cst.parse_expression(f'{torch}.autocast("npu", dtype={torch}.float16)')
        block = cst.With(
            [cst.WithItem(context)],
            cst.IndentedBlock([region[0].with_changes(leading_lines=()), *region[1:]]),
            leading_lines=region[0].leading_lines,
        )
        at.note(self, plan.region[0], f"with {code_of(context)}: ...", "changed", "", _EFFECT)
        return new.with_changes(body=[*new.body[:first], block, *new.body[last:]])

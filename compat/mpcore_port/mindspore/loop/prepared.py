"""Where one prepared network of mpcore can take the place of a scaler and its regions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.children import calls_in
from mpcore_port.mindspore.loop.makers import maker_of, model_of, stepping
from mpcore_port.mindspore.rules.losses.names_in import assigned, read
from mpcore_port.names import code_of, dotted
from mpcore_port.policy import number
from mpcore_port.scan import SCALERS, arguments

if TYPE_CHECKING:
    from mpcore_port.mindspore.loop.description import Block, Forward, Group
    from mpcore_port.mindspore.loop.recognise import Steps
    from mpcore_port.mindspore.loop.scalers import Scalers
    from mpcore_port.rule import At

__all__ = ["Prepared", "prepared_of"]

_CONSTANTS = ("init_scale", "growth_factor", "backoff_factor", "growth_interval")
_ASKED = {"scale", "unscale_", "step", "update", "get_scale"}


@dataclass(frozen=True)
class Prepared:
    """A network and its optimizer under one policy.

    Attributes:
        made: the call of GradScaler that it takes the place of, or None.
        model, optimizer: as code, where it is made.
        policy: as code: a policy's text, or a choice of two.
        name: what it is called in the step's scope.
        renamed: what the scaler was called, ``""`` if the name stays.
    """

    made: Any
    model: str
    optimizer: str
    policy: str
    name: str
    renamed: str = ""


def prepared_of(every_steps: list[Steps], scalers: Scalers, at: At) -> Prepared | None:
    """Return what ``mpcore.prepare`` stands for in a module; None if a step does not fit it.

    It fits one network that one optimizer moves, in one step, by one loss of each batch.
    """
    groups = [group for steps in every_steps for group in steps.groups]
    if len(groups) != 1 or not _fits(groups[0]):
        return None
    group, steps = groups[0], every_steps[0]
    if not group.scaler:
        return _without_scaler(group, steps, at)
    if len(scalers.made) != 1 or not _asked_little(scalers, at):
        return None
    policy = _policy(group, scalers.made[0], at)
    found = _at_maker(group, steps, scalers.made[0], at) if policy else None
    if found is None or _is_late(policy, scalers.made[0], at):
        return None
    old = group.scaler.rpartition(".")[2]
    new = _name(at) if _may_rename(old, at) else ""
    name = group.scaler.removesuffix(old) + (new or old)
    return Prepared(scalers.made[0], *found, policy, name, old if new else "")


def _fits(group: Group) -> bool:
    (forward, *more) = group.forwards
    if more or group.apex or group.accumulates or len(group.optimizers) > 1 or group.early_clips:
        return False
    if not _is_in_loop(forward):  # a cell is made once, in front of the loop
        return False
    if group.handed or group.split or group.guard is not None:
        # a cell keeps its gradients, and always steps
        return False
    if group.scaled_if and (forward.region is None or forward.region.enabled != group.scaled_if):
        return False
    if forward.region is None or len(group.clips) > 1 or (group.scaler and not group.updates):
        return False
    return all(c.way == "norm" and not c.bound and not c.condition for c in group.clips)


def _is_in_loop(forward: Forward) -> bool:
    block: Block | None = forward.block
    while block is not None:
        if block.owner is not None and isinstance(block.owner.node, (cst.For, cst.While)):
            return True
        block = block.outer
    return False


def _asked_little(scalers: Scalers, at: At) -> bool:
    asked = {
        call.func.attr.value
        for call in at.names.calls
        if isinstance(call.func, cst.Attribute) and scalers.is_one(call.func.value)
    }
    return asked <= _ASKED and not scalers.compared()


def _policy(group: Group, made: cst.Call, at: At) -> str:
    """Return the policy's text as code; ``""`` if none says it."""
    given = arguments(made, SCALERS[str(at.names.called(made))])
    if any(arg.star for arg in made.args):
        return ""
    if any(name in given and number(code_of(given[name])) is None for name in _CONSTANTS):
        return ""
    text = at.scan.policy
    if not text.startswith("autocast_float16"):
        return ""
    region = group.forwards[0].region
    switch = code_of(given["enabled"]) if "enabled" in given else ""
    switches = {switch, region.enabled if region else ""} - {"", "True"}
    if region is None or len(switches) > 1 or region.dtype not in ("", "float16"):
        return ""
    if not switches:
        return f'"{text}"'
    return f'"{text}" if {switches.pop()} else "float32"'


def _without_scaler(group: Group, steps: Steps, at: At) -> Prepared | None:
    region = group.forwards[0].region
    if region is None or region.dtype != "bfloat16" or region.enabled:
        return None
    call = maker_of(stepping(group.steps[0]), at)
    if call is None or at.names.enclosing(call, cst.FunctionDef) is not _scope(steps):
        return None
    model = model_of(call)
    if not model:
        return None
    return Prepared(None, model, group.optimizers[0], '"autocast_bfloat16"', _name(at))


def _scope(steps: Steps) -> Any:
    return None if isinstance(steps.node, cst.Module) else steps.node


def _at_maker(group: Group, steps: Steps, made: cst.Call, at: At) -> tuple[str, str] | None:
    """Return network and optimizer by what they are called where the scaler is made."""
    statement = at.names.statement(made)
    block = at.names.parents.get(statement)
    if not isinstance(block, (cst.IndentedBlock, cst.Module)) or not _is_assigned(made, at):
        return None
    place = next((i for i, line in enumerate(block.body) if line is statement), -1)
    before, after = block.body[:place], block.body[place + 1 :]
    pair = _by_maker(group, before, at) or _by_attributes(group, steps, made, before, at)
    if pair is None:
        return None
    later = {name for line in after for name in assigned(line)}
    return None if set(pair) & later else pair


def _is_late(policy: str, made: cst.Call, at: At) -> bool:
    """Return whether what decides about a policy is made behind the scaler's place."""
    asked = read(cst.parse_expression(policy))
    statement = at.names.statement(made)
    block = at.names.parents.get(statement)
    lines = list(block.body) if isinstance(block, (cst.IndentedBlock, cst.Module)) else []
    place = next((i for i, line in enumerate(lines) if line is statement), len(lines))
    return bool(asked & {name for line in lines[place:] for name in assigned(line)})


def _is_assigned(made: cst.Call, at: At) -> bool:
    parent = at.names.parents.get(made)
    return isinstance(parent, cst.Assign) and len(parent.targets) == 1


def _by_maker(group: Group, before: Any, at: At) -> tuple[str, str] | None:
    call = maker_of(stepping(group.steps[0]), at)
    if call is None or not _is_assigned(call, at):
        return None
    statement, model = at.names.statement(call), model_of(call)
    parent = at.names.parents.get(call)
    places = [i for i, line in enumerate(before) if line is statement]
    if not places or not model or not isinstance(parent, cst.Assign):
        return None
    if model in {name for line in before[places[0] + 1 :] for name in assigned(line)}:
        return None
    return model, code_of(parent.targets[0].target)


def _by_attributes(
    group: Group, steps: Steps, made: cst.Call, before: Any, at: At
) -> tuple[str, str] | None:
    """Return attributes of ``self`` that a class is given, and steps by."""
    optimizer = group.optimizers[0]
    owner = at.names.enclosing(made, cst.ClassDef)
    if not optimizer.startswith("self.") or owner is None:
        return None
    if at.names.enclosing(steps.node, cst.ClassDef) is not owner:
        return None
    there = {name for line in before for name in assigned(line)}
    called = [dotted(c.func) for line in group.forwards[0].lines for c in calls_in(line.node)]
    networks = {t for t in called if (t in there and "model" in t.lower()) or t == "self.net"}
    if optimizer not in there or len(networks) != 1 or not networks <= there:
        return None
    return networks.pop(), optimizer


# --- its name -----------------------------------------------------------------------------------


def _name(at: At) -> str:
    taken = set(at.names.top.bindings)
    for scope in at.names._scopes.values():
        taken |= set(scope.bindings)
    taken |= {text.rpartition(".")[2] for _, text in at.names._attributes}
    return next(name for name in ("amp", "mixed", "mixed_precision") if name not in taken)


def _may_rename(old: str, at: At) -> bool:
    """Return whether each use of a name in the module means the scaler."""
    for scope in [at.names.top, *at.names._scopes.values()]:
        for binding in scope.bindings.get(old, []):
            value = binding.value
            made = isinstance(value, cst.Call) and at.names.called(value) in SCALERS
            if not (made or binding.kind == "param"):
                return False
    return all(
        text == f"self.{old}" for _, text in at.names._attributes if text.endswith(f".{old}")
    )

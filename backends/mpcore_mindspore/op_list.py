"""MindSpore's level ``auto`` with lists of our own: for the portable list and for rules for ops.

A list names primitives. An op without one is what its parts are; a rule for it is refused.

Source: ``auto_mixed_precision`` of mindspore/train/amp.py, mindspore 2.10.0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import mindspore as ms
from mindspore import amp
from mindspore._c_expression.amp import AmpLevel, create_amp_strategy
from mindspore.train.amp import _set_amp_decorator

from mpcore.errors import BackendError
from mpcore.numerics import ops

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mindspore import nn

    from mpcore.policy.op_plan import OpPlan
    from mpcore.policy.plan import Plan

__all__ = ["OpLists", "keep_layers", "lists_of", "set_auto"]

OpLists = tuple[tuple[str, ...], tuple[str, ...]]
"""Names of the primitives that are lowered, and of those kept in float32."""

_SYSTEM = "mindspore_auto"


def lists_of(plan: Plan) -> OpLists | None:
    """Return the lists that ``plan`` needs; None for MindSpore's own.

    Raises:
        BackendError: a rule asks for what a list of primitives cannot say.
    """
    native = ops.lists(_SYSTEM)
    lower, full = dict.fromkeys(native["lower"]), dict.fromkeys(native["full"])
    changed = False
    for entry in plan.ops:
        if entry.compute == "op":
            continue
        names = [name for name in ops.names(entry.op, "mindspore") if name.startswith("P.")]
        if entry.by_rule:
            _check(entry, names, plan)
        for name in names:
            lower.pop(name, None)
            full.pop(name, None)
        target = {plan.policy.compute: lower, "float32": full}.get(entry.compute)
        if target is not None:
            target.update(dict.fromkeys(names))
        changed = True
    if not changed:
        return None
    return _bare(lower), _bare(full)


def _bare(names: dict[str, None]) -> tuple[str, ...]:
    return tuple(name.removeprefix("P.") for name in names)


def _check(entry: OpPlan, names: list[str], plan: Plan) -> None:
    reason = ""
    promoted = set(names) & set(ops.lists(_SYSTEM)["promote"])
    if not names:
        reason = "it is no primitive of MindSpore, and a list names primitives"
    elif entry.output != entry.compute:
        reason = "a list says what an op computes in, which is what it hands on"
    elif entry.compute not in ("float32", "follow", plan.policy.compute):
        reason = f"a list has one low dtype, here {plan.policy.compute}"
    elif promoted and entry.compute == "follow":
        reason = f"MindSpore always promotes {', '.join(sorted(promoted))}"
    if reason:
        msg = (
            f"{entry.rule!r} is not possible for op {entry.op!r} in mindspore with by='op': "
            f"{reason}; use by='layer' with a path or a layer"
        )
        raise BackendError(msg)


def set_auto(cell: nn.Cell, dtype: ms.Type, lists: OpLists | None) -> None:
    """Let ``cell`` run at level ``auto``, with other lists where there are some."""
    if lists is None:
        amp.auto_mixed_precision(cell, "auto", dtype)
        return
    entries: list[list[tuple[str, list[int]]]] = [[(name, []) for name in part] for part in lists]
    lower, full = entries
    cell.amp_strategy = create_amp_strategy(AmpLevel.AmpAuto, dtype, lower, full)
    _set_amp_decorator(cell, AmpLevel.AmpAuto, dtype, lower, full)
    cell._amp_level = "auto"


def keep_layers(cells: Mapping[str, tuple[nn.Cell, str]], plan: Plan) -> None:
    """Give layers that a rule for ops decided its dtype: a layer may be made of other ops."""
    for entry in plan.layers:
        if not entry.listed and entry.compute in ("float16", "bfloat16", "float32"):
            cells[entry.path][0].to_float(getattr(ms, entry.compute))

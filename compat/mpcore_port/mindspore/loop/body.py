"""What a step does with gradients: unscale, judge, clip, step, move the scale."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from mpcore_port.names import code_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from mpcore_port.mindspore.loop.description import Act, Forward, Group

__all__ = ["apply_body", "values_of"]


def values_of(forward: Forward, group: Group, ms: str = "ms") -> list[str]:
    """Return what the forward function gives: what is differentiated, then what is read of it."""
    loss = code_of(forward.sink.loss)
    if group.scaler:
        first = f"{group.scaler}.scale({_operand(forward.sink.loss)}.astype({ms}.float32))"
        named = [forward.loss] if forward.loss else [loss] if forward.twice else []
        return [first, *named, *forward.outs]
    return [loss, *([loss] if forward.twice else []), *forward.outs]


def _operand(node: cst.BaseExpression) -> str:
    simple = isinstance(node, (cst.Name, cst.Attribute, cst.Call, cst.Subscript)) or node.lpar
    return code_of(node) if simple else f"({code_of(node)})"


def apply_body(group: Group, words: Callable[[str], str]) -> str:
    """Return the lines of a step behind its gradients, indented once."""
    if not group.scaler:
        lines = [*_clips(group.clips, words), *_moves(group)]
        return "".join(f"    {line}\n" for line in lines)
    if group.apex and group.accumulates:  # each backward pass has unscaled, and moved the scale
        return "".join(f"    {line}\n" for line in _judged(group, words))
    lines = _clips(group.early_clips, words)
    lines.append(f"grads = {group.scaler}.unscale(grads)")
    if len(group.optimizers) == 1:
        lines += _judged(group, words)
    else:
        lines += _each_judged(group, words)
    if group.updates:
        lines.append(f"{group.scaler}.adjust(finite)")
    return "".join(f"    {line}\n" for line in lines)


def _judged(group: Group, words: Callable[[str], str]) -> list[str]:
    norms = [f"{clip.bound} = {_norm(words)}" for clip in group.clips if clip.bound]
    inner = [*_clips(group.clips, words, norms=False), *_moves(group)]
    return [
        f"finite = {words('ms')}.amp.all_finite(grads)",
        *norms,
        f"if {_taken('finite', group)}:",
        *(f"    {line}" for line in inner),
    ]


def _taken(finite: str, group: Group) -> str:
    """Return when a step is taken: torch's scaler looks at no gradients where it is off.

    A graph folds what is constant in front; behind a tensor it cannot.
    """
    return f"{group.always} or {finite}" if group.always else finite


def _each_judged(group: Group, words: Callable[[str], str]) -> list[str]:
    """Return lines in which each optimizer is skipped by its own gradients, as in torch."""
    ms, ops = words("ms"), words("ops")
    lines = [f"finite = {ms}.amp.all_finite(grads)", *_clips(group.clips, words)]
    for holder, part in _spans(group):
        finite = _taken(f"{ms}.amp.all_finite({part})", group)
        lines += [f"if {finite}:", f"    {holder}({part})"]
    del ops
    return lines


def _spans(group: Group) -> list[tuple[str, str]]:
    found, before = [], ""
    for place, holder in enumerate(group.optimizers):
        size = f"len({holder}.parameters)"
        end = f"{before} + {size}" if before else size
        last = place == len(group.optimizers) - 1
        found.append((holder, f"grads[{before}:{'' if last else end}]"))
        before = end
    return found


def _moves(group: Group) -> list[str]:
    if len(group.optimizers) == 1:
        return [f"{group.optimizers[0]}(grads)"]
    return [f"{holder}({part})" for holder, part in _spans(group)]


def _norm(words: Callable[[str], str]) -> str:
    return f"{words('ops')}.sqrt(sum([(grad * grad).sum() for grad in grads]))"


def _clips(clips: list[Act], words: Callable[[str], str], *, norms: bool = True) -> list[str]:
    lines: list[str] = []
    for clip in clips:
        ops = words("ops")
        if clip.bound and norms:
            lines.append(f"{clip.bound} = {_norm(words)}")
        if clip.way == "norm":
            line = f"grads = {ops}.clip_by_global_norm(grads, {clip.limit})"
        else:
            line = f"grads = [{ops}.clamp(grad, -{clip.limit}, {clip.limit}) for grad in grads]"
        lines += [f"if {clip.condition}:", f"    {line}"] if clip.condition else [line]
    return lines

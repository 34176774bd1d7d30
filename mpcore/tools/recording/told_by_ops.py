"""Causes that the ops inside of a layer tell: one that only one side runs, another constant."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import TYPE_CHECKING

from mpcore.tools.divergence.root_cause import RootCause

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mpcore.tools.divergence.evidence import Evidence
    from mpcore.tools.divergence.first import First
    from mpcore.tools.inspection import LayerCall

__all__ = ["from_ops"]

_LOW = {"float16", "bfloat16"}
_BENT = {
    *("relu", "relu6", "leakyrelu", "gelu", "silu", "sigmoid", "tanh", "elu", "selu", "celu"),
    *("hardtanh", "hardswish", "hardsigmoid", "hswish", "hsigmoid", "softplus", "mish", "glu"),
    *("threshold", "prelu", "logsigmoid", "softsign"),
}
"""Ops that are activations, as their names are without marks."""


@dataclass(frozen=True)
class _Part:
    """Where the ops of two sides part: what each runs there, and the layers around."""

    first: First
    there: Sequence[LayerCall]
    here: Sequence[LayerCall]
    before: str
    after: str

    @property
    def where(self) -> str:
        """In words: between which layers; ``""`` in a layer that holds none."""
        words = [f"after {self.before}" if self.before else "", self.after]
        words[1] = f"before {self.after}" if self.after else ""
        return "".join(f", {word}" for word in words if word)

    def cause(self, kind: str, sentence: str, fix: str, confidence: str = "likely") -> RootCause:
        first = self.first
        told = (first.layer, first.own_layer, "forward", (sentence,), fix, confidence)
        return RootCause(kind, *told)


def from_ops(a: Evidence, b: Evidence, first: First) -> Iterator[RootCause]:
    """Yield the first op inside of a layer that is there on one side, or has another constant."""
    sides = [
        _inside(side.inspection.calls, path)
        for side, path in ((a, first.layer), (b, first.own_layer or first.layer))
    ]
    if first.phase != "forward" or not all(any(_is_op(c) for c in side) for side in sides):
        return
    keys = [[_key(call) for call in side] for side in sides]
    for what, i, j, k, m in SequenceMatcher(None, keys[0], keys[1], autojunk=False).get_opcodes():
        if what == "equal":
            for at, (left, right) in enumerate(zip(sides[0][i:j], sides[1][k:m], strict=True)):
                part = _Part(first, [left], [right], *_around(sides[0], i + at, i + at + 1))
                cause = _of_pair(part) if _is_op(left) else None
                if cause is not None:
                    yield cause
                    return
            continue
        part = _Part(first, sides[0][i:j], sides[1][k:m], *_around(sides[0], i, j))
        yield _of_block(part)
        return


def _inside(calls: Sequence[LayerCall], path: str) -> list[LayerCall]:
    """Return the ops that the layer itself runs, and the layers in it that hold no others."""
    home = f"{path}." if path else ""
    return [
        call
        for call in calls
        if (call.path.startswith(f"{path}/") if _is_op(call) else call.path.startswith(home))
        and call.category != "container"
    ]


def _is_op(call: LayerCall) -> bool:
    return call.category == "op"


def _key(call: LayerCall) -> tuple[str, str]:
    return ("op", call.type) if _is_op(call) else ("layer", call.path)


def _around(side: Sequence[LayerCall], start: int, end: int) -> tuple[str, str]:
    """Return the layers before and behind a stretch of calls."""
    before = [call.path for call in side[:start] if not _is_op(call)]
    after = [call.path for call in side[end:] if not _is_op(call)]
    return (before or [""])[-1], (after or [""])[0]


def _of_pair(part: _Part) -> RootCause | None:
    """Return what two calls of one op are given otherwise: constants, or a format."""
    (left,), (right,) = part.there, part.here
    lows = [{x.dtype for x in (*c.inputs, *c.outputs)} & _LOW for c in (left, right)]
    if lows[0] != lows[1]:
        return _in_format(part, lows)
    numbers = [call.attributes.get("constants", []) for call in (left, right)]
    if numbers[0] == numbers[1]:
        return None
    there, here = (", ".join(f"{x:.6g}" for x in one) or "none" for one in numbers)
    kind = "eps" if "norm" in left.type else "other setting"
    sentence = f"inside, {left.type} gets {there} in the reference and {here} here{part.where}"
    return part.cause(kind, sentence, f"use {there} in {_home(part.first)}", "sure")


def _of_block(part: _Part) -> RootCause:
    """Return what the ops (or layers) that only one side has there say."""
    sides = part.there, part.here
    lows = [{x.dtype for c in side for x in c.outputs} & _LOW for side in sides]
    if lows[0] != lows[1]:
        return _in_format(part, lows)
    words = [
        f"{who} runs {_listed(calls)}"
        for who, calls in (("the reference", part.there), ("this side", part.here))
        if calls
    ]
    sentence = f"inside, {'; '.join(words)}{part.where}"
    bent = [[_plain(c.type) in _BENT for c in side] for side in sides]
    if all(len(side) == 1 and all(side) for side in bent):
        fix = f"use {part.there[0].type} there on both sides"
        return part.cause("activation variant", sentence, fix)
    fix = f"compare the functions that {_home(part.first)} calls{part.where}"
    return part.cause("other setting", sentence, fix)


def _in_format(part: _Part, lows: Sequence[set[str]]) -> RootCause:
    low = ", ".join(sorted(lows[0] ^ lows[1]))
    who = "this side" if lows[1] - lows[0] else "the reference"
    calls, others = (part.here, part.there) if lows[1] - lows[0] else (part.there, part.here)
    more = f", and the other side {_listed(others)}" if others and calls else ""
    sentence = f"inside, {who} runs {_listed(calls)} in {low}{more}{part.where}"
    return part.cause("missing cast", sentence, "compute it in one format on both sides")


def _listed(calls: Sequence[LayerCall]) -> str:
    names = [call.type if _is_op(call) else f"the layer {call.path}" for call in calls]
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return ", ".join(names[:4]) + more


def _plain(name: str) -> str:
    return name.lower().replace("_", "")


def _home(first: First) -> str:
    return first.own_layer or first.layer or "the model"

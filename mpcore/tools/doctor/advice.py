"""What each 16-bit dtype is worth in one framework, in one line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mpcore.capabilities.facts import LOW
from mpcore.capabilities.load import BUSY
from mpcore.capabilities.verdicts import PAYS, table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mpcore.capabilities.facts import Framework, Machine
    from mpcore.capabilities.verdicts import Verdict

__all__ = ["advice", "recommend"]


_PRODUCTS = ("matmul", "conv2d")
_SPOKEN = {"matmul": "matmul", "conv2d": "convolution", "mlp_step": "small training step"}


def advice(framework: Framework, machine: Machine) -> str:
    """Return in one line what each 16-bit dtype is worth here; empty without facts."""
    rows = table(framework, machine)
    parts = [_worth(dtype, rows) for dtype in LOW if any(dtype in row for row in rows.values())]
    where = "this CPU" if framework.device == "cpu" else f"this {framework.device} device"
    rough = " (rough: the machine was busy)" if framework.load >= BUSY and framework.timed else ""
    return f"on {where} {'; '.join(parts)}{rough}" if parts else ""


def recommend(framework: Framework, machine: Machine) -> str | None:
    """Return the named policy to begin with: the fastest dtype that pays and is not wrong.

    A dtype whose matmul or convolution is slower than float32 by ``PAYS`` does not count. None
    where speed was not measured, or only while others used the machine.
    """
    if framework.load >= BUSY or not framework.timed:
        return None
    rows = table(framework, machine)
    best = {dtype: _pays(dtype, rows) for dtype in LOW}
    dtype = max(best, key=lambda name: best[name])
    return f"mixed_{dtype}" if best[dtype] >= PAYS else "float32"


def _pays(dtype: str, rows: Mapping[str, Mapping[str, Verdict]]) -> float:
    """Return the largest speed of matmul and convolution, 0 if one of them speaks against it."""
    verdicts = [rows[f][dtype] for f in _PRODUCTS if dtype in rows.get(f, {})]
    if any(v.level not in ("native", "emulated") or not v.speed for v in verdicts):
        return 0.0
    speeds = [v.speed.median for v in verdicts if v.speed]
    return max(speeds) if speeds and min(speeds) > 1 / PAYS else 0.0


def _worth(dtype: str, rows: Mapping[str, Mapping[str, Verdict]]) -> str:
    own = {family: row[dtype] for family, row in rows.items() if dtype in row}
    levels = {own[f].level for f in _PRODUCTS if f in own} or {v.level for v in own.values()}
    if levels == {"simulated"}:
        return f"{dtype} is not there: mpcore simulates it, for its numbers, not for speed"
    if levels == {"absent"}:
        return f"{dtype} is not there"
    measured = {f: v.speed.median for f in _SPOKEN if (v := own.get(f)) and v.speed}
    listed = ", ".join(f"{_SPOKEN[f]} {value:.2g}x" for f, value in measured.items())
    wrong = [f for f, v in own.items() if v.level == "wrong"]
    tail = f", and {', '.join(wrong)} {'is' if len(wrong) == 1 else 'are'} wrong" if wrong else ""
    products = [value for f, value in measured.items() if f in _PRODUCTS]
    if not products:
        return f"{dtype} is {' or '.join(sorted(levels))}, speed not measured{tail}"
    if max(products) < PAYS:
        return f"{dtype} does not pay: {listed}{tail}"
    if min(products) <= 1 / PAYS:
        return f"{dtype} pays in part: {listed}{tail}"
    return f"{dtype} pays: {listed}{tail}"

"""A profile for people: one table, then what follows from it, in sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.table import Table

from mpcore.tools.experiment.progress import say
from mpcore.tools.profiling.duel import FASTER, SLOWER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

__all__ = ["advice", "show"]


def show(console: Console, result: dict[str, Any], rows: int) -> None:
    """Print one result of the command; each table with at most ``rows`` rows."""
    if result["error"]:
        say(console, f"\n{result['backend']} {result['policy']}: failed: {result['error']}")
        return
    for line in _head(result):
        say(console, line)
    console.print(_time_table(result, rows))
    _section(console, _cast_title(result), _cast_table(result["casts"]["rows"], rows))
    kept = [row for row in result["not_lowered"] if row["share"] >= 0.005]
    _section(console, "not lowered, and why", _kept_table(kept[:rows]) if kept else None)
    slower = [k for k in result["kernels"] if _is_low(k["dtype"]) and (_saving(k) or 0) > 0]
    _section(
        console,
        "slower in 16 bits here: kernels alone, on their real shapes",
        _kernel_table(sorted(slower, key=lambda k: -k["saves_ms_a_step"])[:rows])
        if slower
        else None,
    )
    tried = [one for one in result["versus"] if one["policy"] != "float32"]
    _section(console, "tried on whole steps", _versus_table(tried) if tried else None)
    say(console, "")
    for line in advice(result):
        say(console, line)


def _section(console: Console, title: str, table: Table | None) -> None:
    if table is not None:
        say(console, f"\n{title}")
        console.print(table)


def _head(result: dict[str, Any]) -> list[str]:
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    step, profiled = result["step_ms"], result["profiled_step_ms"]
    threads = result["threads"]
    return [
        f"\n{result['backend']} {result['policy']} on {result['device']}: "
        f"{step['median']:.3g} ms a step ({step['low']:.3g} to {step['high']:.3g})",
        f"{versions}; {threads} {'thread' if threads == 1 else 'threads'}, "
        f"batch {result['batch']}, {result['steps']} steps by {result['source']}",
        f"under the profiler {profiled:.3g} ms ({result['profiler_overhead']:+.0%}): "
        "shares and ms below are of that",
        "",
    ]


def _time_table(result: dict[str, Any], rows: int) -> Table:
    shown = _table("share", "ms", "calls", "op", "phase", "dtype", "layers")
    *ops, between = result["rows"]
    for row in ops[:rows]:
        _add_time(shown, row)
    others = ops[rows:]
    if others:
        rest = {"op": f"({len(others)} others)", "phase": "", "dtype": "", "layers": []}
        rest |= {key: sum(row[key] for row in others) for key in ("ms", "share", "calls")}
        _add_time(shown, rest)
    _add_time(shown, between)
    total = {key: sum(row[key] for row in result["rows"]) for key in ("ms", "share")}
    shown.add_section()
    shown.add_row(f"{total['share']:.1%}", f"{total['ms']:.3g}", "", "whole step", "", "", "")
    return shown


def _add_time(shown: Table, row: dict[str, Any]) -> None:
    calls = f"{row['calls']:.0f}" if row["calls"] else ""
    where = _where(row["layers"])
    shown.add_row(
        f"{row['share']:.1%}", f"{row['ms']:.3g}", calls, row["op"], row["phase"],
        _short(row["dtype"]), where,
    )  # fmt: skip


def _cast_title(result: dict[str, Any]) -> str:
    casts = result["casts"]
    calls = sum(row["calls"] for row in casts["rows"])
    return f"casts: {casts['ms']:.3g} ms, {casts['share']:.1%} of the step, {calls:.0f} a step"


def _cast_table(rows: Sequence[dict[str, Any]], most: int) -> Table | None:
    if not rows:
        return None
    shown = _table("share", "ms", "calls", "from > to", "layer", "asked for by")
    for row in rows[:most]:
        cause = row["cause"] or "the layer's dtype"
        shown.add_row(
            f"{row['share']:.1%}", f"{row['ms']:.3g}", f"{row['calls']:.0f}",
            _short(row["dtype"]), row["layer"] or "(not in a layer)", cause,
        )  # fmt: skip
    return shown


def _kept_table(rows: Sequence[dict[str, Any]]) -> Table:
    shown = _table("share", "ms", "16 bits save", "op", "layers", "why")
    for row in rows:
        saves = row["saves_ms"]
        told = "not timed" if saves is None else f"{saves:+.3g} ms"
        shown.add_row(
            f"{row['share']:.1%}", f"{row['ms']:.3g}", told, row["op"], _where(row["layers"]),
            row["why"],
        )  # fmt: skip
    return shown


def _kernel_table(rows: Sequence[dict[str, Any]]) -> Table:
    shown = _table("costs a step", "(spread)", "16 bits", "float32", "op", "shape", "layers")
    for row in rows:
        saves, calls = row["saves_us"], row["calls"]
        spread = [saves[side] * calls / 1e3 for side in ("low", "high")]
        shown.add_row(
            f"{row['saves_ms_a_step']:.3g} ms",
            f"{spread[0]:.2g} to {spread[1]:.2g}",
            _time(row["us"]["median"]),
            _time(row["other_us"]["median"]),
            f"{row['op']} {row['phase']}",
            _shape(row["kernel"]),
            _where(row["layers"]),
        )
    return shown


def _time(microseconds: float) -> str:
    if microseconds < 1000:
        return f"{microseconds:.3g} us"
    return f"{microseconds / 1000:.3g} ms"


def _versus_table(rows: Sequence[dict[str, Any]]) -> Table:
    shown = _table("saves", "of step", "spread (ms)", "sure", "rule")
    for row in sorted(rows, key=lambda row: -row["saves_ms"]["median"]):
        saves = row["saves_ms"]
        shown.add_row(
            f"{saves['median']:+.3g} ms", f"{row['saves_share']:+.1%}",
            f"{saves['low']:+.3g} to {saves['high']:+.3g}", "yes" if row["sure"] else "no",
            row["rule"] or row["policy"],
        )  # fmt: skip
    return shown


def advice(result: dict[str, Any]) -> list[str]:
    """Return what follows, in sentences with numbers.

    Args:
        result: what ``mpcore.tools.profiling.worker`` found.
    """
    lines = list(_against_float32(result))
    helped = [one for one in result["versus"] if _helps(one)]
    lines += [_told(one) for one in sorted(helped, key=lambda one: -one["saves_ms"]["median"])]
    rules = [one for one in result["versus"] if one["policy"] != "float32"]
    if rules and not helped:
        lines.append("no rule that was tried makes a step shorter beyond the noise")
    lines += [f"not possible here: {text}" for text in result["untried"]]
    if result["skipped_steps"]:
        lines.append(
            f"note: the loss scale skipped {result['skipped_steps']} of {result['steps']} recorded "
            "steps: they have no update"
        )
    if result["load"] > result["cores"]:
        lines.append(
            f"note: the machine was busy (load {result['load']:.1f} on {result['cores']} cores): "
            "times are longer than on an idle one, and spreads wider"
        )
    return [*lines, *(f"note: {note}" for note in result["notes"])]


def _told(one: dict[str, Any]) -> str:
    lowers = any(rule.startswith("lower ") for rule in one["rule"].split("; "))
    return (
        f"try --policy {one['policy']!r}: it saves {one['saves_ms']['median']:.3g} ms of "
        f"{one['step_ms']['median']:.3g} ({one['saves_share']:.0%}) - {one['why']}"
        + ("; check the accuracy: it lowers what is float32 now" if lowers else "")
    )


def _helps(one: dict[str, Any]) -> bool:
    return bool(one["policy"] != "float32" and one["decision"] == FASTER)


def _against_float32(result: dict[str, Any]) -> list[str]:
    """Return whether the policy is worth its while here."""
    if result["simulated"]:
        return [
            "16 bits are simulated here, by rounding around float32: these times say nothing "
            "about a device that has them"
        ]
    found = [one for one in result["versus"] if one["policy"] == "float32"]
    if not found:
        return []
    one = found[0]
    now, then = one["step_ms"]["median"], one["other_step_ms"]["median"]
    told = f"{result['policy']} takes {now:.3g} ms a step, float32 {then:.3g} ms"
    if not one["sure"]:
        return [f"{told}: too close to tell apart on this machine now"]
    if one["decision"] == SLOWER:
        return [f"{told}: {then / now:.2f} times faster"]
    casts = result["casts"]["ms"]
    won = [one["other_step_ms"]["median"] < then for one in result["versus"] if _helps(one)]
    way = "or the rules below, which win it back" if any(won) else "where speed is what counts"
    return [
        f"{told}: {now / then:.2f} times SLOWER here; casts take {casts:.3g} ms of it. "
        f"Use float32 on this machine, {way}"
    ]


# --- parts ------------------------------------------------------------------------------------

_SHORT = {"float32": "f32", "bfloat16": "bf16", "float16": "f16", "float64": "f64"}


def _short(dtype: str) -> str:
    return " > ".join(_SHORT.get(part, part) for part in dtype.split(" > "))


def _is_low(dtype: str) -> bool:
    return dtype in ("float16", "bfloat16")


def _saving(kernel: dict[str, Any]) -> float | None:
    saves = kernel["saves_us"]
    return None if saves is None or saves["low"] <= 0 else float(saves["median"])


def _shape(kernel: str) -> str:
    """Return the first shape in the name of a kernel."""
    return kernel.partition("(")[2].partition(";")[0].partition(",")[0].removesuffix(")")


def _where(layers: Sequence[str]) -> str:
    if not layers:
        return ""
    return layers[0] if len(layers) == 1 else f"{layers[0]} +{len(layers) - 1}"


def _table(*heads: str) -> Table:
    """Return a table that 80 columns can hold: text takes the lines that it needs."""
    words = ("layers", "why", "rule", "kernel", "layer", "op", "asked for by")
    shown = Table(box=None, padding=(0, 1, 0, 0), header_style="bold")
    for head in heads:
        left = head in words or head in ("phase", "dtype", "from > to", "sure")
        shown.add_column(
            head,
            justify="left" if left else "right",
            no_wrap=head not in words,
            overflow="fold",
        )
    return shown

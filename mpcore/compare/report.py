"""The report of a comparison: a table for the terminal, ``report.json`` and ``report.html``.

The result is one dict of plain data. ``runs`` and ``pairs`` are lists; non-finite numbers are
the text ``"inf"``, ``"-inf"`` or ``"nan"``; steps count from 0, like the places in the lists.

A report folder holds ``report.json``, ``report.html`` and one file of step records per run,
``<backend>-<policy>.jsonl``, and nothing else. An earlier report is recognised by a
``report.json`` that has ``experiment`` and ``runs``: its files, the records of exactly its runs
among them, may be replaced. Whatever else is in the folder belongs to the user and stops us.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from mpcore.compare import charts
from mpcore.compare.charts import format_loss, format_milliseconds, format_scale, number
from mpcore.errors import ExperimentError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["check_folder", "table", "write_report"]

_NONE = "-"
_TEMPORARY = ".mpcore-tmp"
# verdict: how the terminal shows it, and the class and sign of its badge in the page
_LOOKS = {
    "same": ("bold green", "good", "\N{CHECK MARK}"),
    "different": ("bold red", "bad", "\N{MULTIPLICATION X}"),
    "too noisy": ("yellow", "noisy", "~"),
    "not compared": ("dim", "none", "\N{EN DASH}"),
}


@dataclass(frozen=True)
class _Run:
    """One run as the reader sees it: text, ready for a cell."""

    backend: str
    policy: str
    device: str
    simulated: bool
    status: str
    error: str
    loss: str
    skipped: str
    scale: str
    safe_scale: str
    accuracy: str
    median: str
    p90: str
    memory: str
    speed: str


@dataclass(frozen=True)
class _Pair:
    """One comparison as the reader sees it."""

    a: str
    b: str
    policy: str
    lockstep: tuple[str, ...]
    lockstep_loss: float
    free: str
    band: str
    verdict: str
    reason: str

    @property
    def look(self) -> tuple[str, str, str]:
        """Style in the terminal, class in the page, sign."""
        found = (look for word, look in _LOOKS.items() if self.verdict.startswith(word))
        return next(found, _LOOKS["not compared"])


_Item = TypeVar("_Item", _Run, _Pair)


# --- terminal -------------------------------------------------------------------------------


def table(result: dict[str, Any]) -> Group:
    """Return the runs and the pairs as tables for a terminal of at least 80 columns.

    Args:
        result: as in this module's docstring; left untouched.
    """
    runs, pairs = _runs(result), _pairs(result)
    parts: list[Any] = [_run_table(runs), *_run_notes(runs)]
    if pairs:
        parts += [Text(), _pair_table(pairs), *_pair_notes(pairs)]
    return Group(*parts)


def _run_table(runs: Sequence[_Run]) -> Table:
    shown = _empty_table(
        ("backend", "policy", "device"),
        (
            "final\nloss",
            "skip",
            "final\nscale",
            "test\nacc.",
            "ms/step\n(p90)",
            "peak\nMB",
            "speed",
        ),
    )
    width = max((len(run.p90) for run in runs), default=0)
    for run in runs:
        policy = Text(run.policy)
        if run.simulated:
            policy.append("\nsimulated", "yellow")
        ended = run.status == "ok"
        time = f"{run.median} ({run.p90:>{width}})" if run.median != _NONE else _NONE
        shown.add_row(
            Text(run.backend),
            policy,
            Text(run.device),
            Text(run.loss if ended else run.status, "red" if _is_bad(run) else ""),
            *(Text(cell) for cell in (run.skipped, run.scale, run.accuracy, time)),
            *(Text(cell) for cell in (run.memory, run.speed)),
        )
    return shown


def _is_bad(run: _Run) -> bool:
    return run.status != "ok" or run.loss in ("nan", "inf", "-inf")


def _run_notes(runs: Sequence[_Run]) -> list[Text]:
    notes = [
        Text(f"{run.backend}, {run.policy}, {run.status}: {run.error}", "red")
        for run in runs
        if run.status != "ok"
    ]
    key = "speed: times as fast as the same backend in float32"
    if any(run.simulated for run in runs):
        key += "; simulated: rounded, not run, in the low dtype"
    return [*notes, Text(key, "dim")]


def _pair_table(pairs: Sequence[_Pair]) -> Table:
    shown = _empty_table(
        ("pair", "policy"),
        ("loss\nlock", "grad\nlock", "update\nlock", "loss\nfree", "noise\nband"),
    )
    shown.add_column("verdict", overflow="fold")
    for pair in pairs:
        cells = (*pair.lockstep, pair.free, pair.band)
        shown.add_row(
            Text(f"{pair.a} - {pair.b}"),
            Text(pair.policy),
            *(Text(cell) for cell in cells),
            Text(pair.verdict, pair.look[0]),
        )
    return shown


def _pair_notes(pairs: Sequence[_Pair]) -> list[Text]:
    notes = [
        Text(f"{pair.a} - {pair.b}, {pair.policy}, {pair.verdict}: {pair.reason}", pair.look[0])
        for pair in pairs
        if pair.reason
    ]
    key = (
        "lock: every step from the same weights; free: each run on its own;\n"
        "band: what one rounding error in the first weights does. All relative."
    )
    return [*notes, Text(key, "dim")]


def _empty_table(left: Iterable[str], right: Iterable[str]) -> Table:
    shown = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=0, header_style="bold")
    for name in left:
        shown.add_column(name, overflow="fold", vertical="top")
    for name in right:
        shown.add_column(name, justify="right", no_wrap=True)
    return shown


# --- folder ---------------------------------------------------------------------------------


def check_folder(folder: Path) -> None:
    """Refuse a folder in which a report would replace something that is not a report's.

    Missing, empty, or holding an earlier report and nothing else is fine; nothing is changed.

    Raises:
        ExperimentError: ``folder`` is a file or lies in one, cannot be read, or holds a file
            that no report wrote; the message names the first one.
    """
    _own_files(Path(folder))


def write_report(result: dict[str, Any], folder: Path) -> list[Path]:
    """Write the report and return its files: either all are new, or the old ones are whole.

    ``report.json`` is the result without the ``records`` of its runs; those become the
    ``.jsonl`` files. Every file is written beside its place and moved there when all are
    ready. Step records of an earlier report that has no successor are removed.

    Args:
        result: as in this module's docstring; left untouched.
        folder: created where missing; see ``check_folder``.

    Raises:
        ExperimentError: the folder is refused or cannot be written, or the result holds
            something that strict JSON does not have.
    """
    folder = Path(folder)
    earlier = _own_files(folder)
    contents = _contents(result)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _replace_all(folder, contents)
        for name in earlier - contents.keys():
            (folder / name).unlink(missing_ok=True)
    except OSError as exc:
        msg = f"the report could not be written to {str(folder)!r}: {exc}; choose another --output"
        raise ExperimentError(msg) from exc
    return [folder / name for name in contents]


def _own_files(folder: Path) -> set[str]:
    """Return what an earlier report left in ``folder``, or raise for anything else."""
    try:
        nearest = next(place for place in (folder, *folder.absolute().parents) if place.exists())
        if not nearest.is_dir():
            msg = f"`--output` must be a folder, got {str(folder)!r}: {nearest.name!r} is a file"
            raise ExperimentError(msg)
        entries = sorted(folder.iterdir()) if nearest == folder else []
        allowed = _earlier_names(folder / "report.json")
        foreign = [e.name for e in entries if e.is_dir() or not _is_own(e, allowed)]
    except OSError as exc:
        msg = f"`--output` {str(folder)!r} cannot be read: {exc}; choose another one"
        raise ExperimentError(msg) from exc
    if foreign:
        msg = (
            f"`--output` {str(folder)!r} holds {foreign[0]!r}, which no report wrote; "
            "choose another --output or remove it"
        )
        raise ExperimentError(msg)
    return {entry.name for entry in entries}


def _is_own(path: Path, allowed: set[str]) -> bool:
    return path.name in allowed or path.suffix == _TEMPORARY


def _earlier_names(path: Path) -> set[str]:
    """Return the names that the report in ``path`` may own; none if it is not a report."""
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
        recognised = isinstance(result["runs"], list) and "experiment" in result
        names = _record_names(result["runs"]) if recognised else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return set()
    return set() if names is None else {"report.json", "report.html", *names}


def _record_names(runs: Sequence[dict[str, Any]]) -> list[str]:
    """Return the file name of each run's records, safe everywhere and all different."""
    names: list[str] = []
    taken: Counter[str] = Counter()
    for run in runs:
        name = re.sub(r"[^\w.+-]+", "_", f"{run['backend']}-{run['policy']}")[:100]
        stem = name.lstrip(".") or "run"
        while taken[stem.lower()]:
            taken[stem.lower()] += 1
            stem = f"{name}-{taken[stem.lower()]}"
        taken[stem.lower()] += 1
        names.append(f"{stem}.jsonl")
    return names


def _contents(result: dict[str, Any]) -> dict[str, bytes]:
    """Return every file of the report by name; ``report.json``, which marks the folder, first."""
    runs = result["runs"]
    lean = {**result, "runs": [{k: v for k, v in run.items() if k != "records"} for run in runs]}
    text = {"report.json": _json(lean, indent=2) + "\n", "report.html": ""}
    for name, run in zip(_record_names(runs), runs, strict=True):
        if "records" in run:
            text[name] = "".join(f"{_json(record)}\n" for record in run["records"])
    text["report.html"] = _page(lean)
    # a lone surrogate (a strange file name) becomes \udcxx, which JSON reads back
    return {name: value.encode("utf-8", "backslashreplace") for name, value in text.items()}


def _json(value: Any, indent: int | None = None) -> str:
    try:
        return json.dumps(value, indent=indent, allow_nan=False, ensure_ascii=False)
    except (TypeError, ValueError) as exc:
        msg = f"`result` must be plain data, inf and nan as text, to be written as JSON: {exc}"
        raise ExperimentError(msg) from exc


def _replace_all(folder: Path, contents: dict[str, bytes]) -> None:
    """Put all files in place; after a failure what was there before is there again."""
    old = {name: _read(folder / name) for name in contents}
    waiting: dict[str, Path] = {}
    moved: list[str] = []
    try:
        for name, data in contents.items():
            waiting[name] = _write_beside(folder / name, data)
        for name in contents:
            os.replace(waiting[name], folder / name)
            moved.append(name)
    except BaseException:
        for path in waiting.values():
            path.unlink(missing_ok=True)
        for name in moved:
            _restore(folder / name, old[name])
        raise


def _write_beside(path: Path, data: bytes) -> Path:
    beside = path.with_name(f"{path.name}.{os.getpid()}{_TEMPORARY}")
    try:
        beside.write_bytes(data)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    return beside


def _read(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None


def _restore(path: Path, data: bytes | None) -> None:
    with suppress(OSError):  # the first failure is the one to report
        if data is None:
            path.unlink()
        else:
            os.replace(_write_beside(path, data), path)


# --- page -----------------------------------------------------------------------------------


def _page(result: dict[str, Any]) -> str:
    environment = Environment(
        loader=PackageLoader("mpcore.compare"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    drawn = charts.draw(result)
    runs, pairs = _runs(result), _pairs(result)
    return environment.get_template("report.html.j2").render(
        result=result,
        settings=result.get("settings") or {},
        runs=runs,
        pairs=pairs,
        headline=_headline(runs, pairs),
        findings=_findings(runs, pairs),
        galleries=[
            (title, [chart for chart in drawn if chart.group in groups])
            for title, groups in _GALLERIES
        ],
        svg=lambda chart: Markup(chart.svg),  # escaped where it was drawn
        places=charts.series(result),
        palette=charts.PALETTE,
        raised=charts.raised,
        maps=_maps(result),
        skipped=_skipped(result),
        versions=_versions(result),
    )


_GALLERIES = (
    ("Loss", ("loss",)),
    ("Where they part", ("difference",)),
    ("Loss scale, speed and memory", ("scale", "speed", "memory")),
    ("Gradient norm", ("norm",)),
)


def _headline(runs: Sequence[_Run], pairs: Sequence[_Pair]) -> tuple[str, str]:
    """Return the verdict in plain words, and the class that colours it."""
    states = Counter(run.status for run in runs)
    ended = states.pop("ok", 0)
    start = f"{ended} of {_count(len(runs), 'run')}" if states else f"All {_count(ended, 'run')}"
    words = [f"{start} finished", *(f"{count} {state}" for state, count in states.items())]
    verdicts = Counter(pair.look[1] for pair in pairs)
    worst = next((look for look in ("bad", "noisy", "good") if verdicts[look]), "none")
    if states and worst in ("good", "none"):
        worst = "noisy" if ended else "bad"
    return f"{', '.join(words)}. {_verdict_words(verdicts)}", worst


def _verdict_words(verdicts: Counter[str]) -> str:
    total = verdicts["good"] + verdicts["bad"] + verdicts["noisy"]
    if not total:
        return "No two runs were compared."
    if verdicts["good"] == total:
        return "The comparison agrees." if total == 1 else f"All {total} comparisons agree."
    parts = [f"{verdicts['good']} of {_count(total, 'comparison')} agree"]
    if verdicts["bad"]:
        parts.append(f"{verdicts['bad']} differ{'s' if verdicts['bad'] == 1 else ''}")
    if verdicts["noisy"]:
        parts.append(f"{verdicts['noisy']} too noisy to tell")
    return ", ".join(parts) + "."


def _findings(runs: Sequence[_Run], pairs: Sequence[_Pair]) -> list[tuple[str, str, str]]:
    """Return (what, sentences, class): first every policy, then what else one must know."""
    found = [
        (policy, _policy_words(group), _worst(group)) for policy, group in _grouped(pairs).items()
    ]
    simulated = _join([f"{run.backend} {run.policy}" for run in runs if run.simulated])
    facts = (
        ("Skipped steps", _skip_words(runs), "plain"),
        ("Speed against float32", _speed_words(runs), "plain"),
        ("Simulated", simulated and f"{simulated}: rounded numbers, so no speed.", "noisy"),
    )
    bad = [run for run in runs if run.status != "ok"]
    failures = [(f"{run.backend} {run.policy}", f"{run.status}: {run.error}", "bad") for run in bad]
    return [*found, *failures, *(fact for fact in facts if fact[1])]


def _policy_words(pairs: Sequence[_Pair]) -> str:
    same = [pair for pair in pairs if pair.verdict == "same"]
    words = []
    if len(same) == len(pairs):
        names = dict.fromkeys(name for pair in pairs for name in (pair.a, pair.b))
        words.append(f"{_join(list(names))} agree")
    else:
        words += [f"{pair.a} and {pair.b} agree" for pair in same]
    size = max((pair.lockstep_loss for pair in same if isfinite(pair.lockstep_loss)), default=None)
    if size is not None:
        words[-1] += f" (in lock-step, losses differ by at most {_difference(size)})"
    for pair in pairs:
        if pair.verdict != "same":
            reason = f" ({pair.reason})" if pair.reason else ""
            words.append(f"{pair.a} and {pair.b}: {pair.verdict}{reason}")
    return "; ".join(words) + "."


def _skip_words(runs: Sequence[_Run]) -> str:
    skipping = [run for run in runs if run.skipped not in (_NONE, "0")]
    if not skipping:
        return "none." if any(run.skipped != _NONE for run in runs) else ""
    words = [
        f"{run.skipped} by {run.backend} {run.policy} "
        f"(largest scale that worked: {charts.raised(run.safe_scale)})"
        for run in skipping
    ]
    return _join(words) + "."


def _speed_words(runs: Sequence[_Run]) -> str:
    timed = [run for run in runs if run.speed != _NONE and run.policy != "float32"]
    words = [
        f"{policy} {_join([f'{run.speed} in {run.backend}' for run in group])}"
        for policy, group in _grouped(timed).items()
    ]
    return "; ".join(words) + "." if words else ""


def _worst(pairs: Sequence[_Pair]) -> str:
    looks = {pair.look[1] for pair in pairs}
    return next(look for look in ("bad", "noisy", "good", "none") if look in looks)


def _maps(result: dict[str, Any]) -> list[dict[str, Any]]:
    """Return, per backend, the layers and what each does under each policy."""
    planned = [run for run in result["runs"] if (run.get("plan") or {}).get("layers")]
    maps = []
    for backend in dict.fromkeys(run["backend"] for run in planned):
        plans = {run["policy"]: run["plan"] for run in planned if run["backend"] == backend}
        tables = {p: {e["path"]: e for e in plan["layers"]} for p, plan in plans.items()}
        layers = {path: entry for entries in tables.values() for path, entry in entries.items()}
        rows = [
            (e, [entries.get(path) for entries in tables.values()]) for path, e in layers.items()
        ]
        unused = [(p, rule) for p, plan in plans.items() for rule in plan.get("unused_rules") or []]
        maps.append({"backend": backend, "policies": list(plans), "rows": rows, "unused": unused})
    return maps


def _skipped(result: dict[str, Any]) -> list[tuple[str, str, str, str]]:
    """Return (backend, policy, steps, reason); steps in a row with one reason are one entry."""
    found: list[tuple[str, str, str, str]] = []
    for run in result["runs"]:
        ranges: list[list[Any]] = []
        for skip in run.get("skipped") or []:
            if ranges and ranges[-1][1:] == [skip["step"] - 1, skip["reason"]]:
                ranges[-1][1] = skip["step"]
            else:
                ranges.append([skip["step"], skip["step"], skip["reason"]])
        for first, last, reason in ranges:
            steps = f"{first}" if first == last else f"{first} to {last}"
            found.append((run["backend"], run["policy"], steps, reason or "no reason recorded"))
    return found


def _versions(result: dict[str, Any]) -> dict[str, dict[str, str]]:
    """Return, per package, its version in each backend's process."""
    found: dict[str, dict[str, str]] = {}
    for run in result["runs"]:
        for package, version in (run.get("versions") or {}).items():
            found.setdefault(package, {})[run["backend"]] = version
    return found


# --- cells ----------------------------------------------------------------------------------


def _runs(result: dict[str, Any]) -> list[_Run]:
    baselines = {r["backend"]: _median(r) for r in result["runs"] if r["policy"] == "float32"}
    return [_run(run, baselines.get(run["backend"], 0.0)) for run in result["runs"]]


def _run(run: dict[str, Any], baseline: float) -> _Run:
    losses, scales = run.get("loss") or [], [number(scale) for scale in run.get("scale") or []]
    stepped = run.get("stepped") or []
    worked = [scale for scale, moved in zip(scales, stepped, strict=False) if moved]
    memory, accuracy = number(run.get("peak_memory_bytes")), number(run.get("test_accuracy"))
    p90 = number((run.get("step_seconds") or {}).get("p90"))
    # emulated arithmetic is slower than the real one would be: no speed to tell
    speed = baseline / _median(run) if baseline > 0 and not run.get("simulated") else float("nan")
    return _Run(
        backend=run["backend"],
        policy=run["policy"],
        device=run.get("device") or _NONE,
        simulated=bool(run.get("simulated")),
        status=run["status"],
        error=run.get("error") or "no reason recorded",
        loss=format_loss(number(losses[-1])) if losses else _NONE,
        skipped=str(sum(not moved for moved in stepped)) if stepped else _NONE,
        scale=format_scale(scales[-1]) if scales else _NONE,
        safe_scale=format_scale(max(worked)) if worked else "none",
        accuracy=f"{accuracy:.3f}" if isfinite(accuracy) else _NONE,
        median=format_milliseconds(_median(run)) if isfinite(_median(run)) else _NONE,
        p90=format_milliseconds(p90) if isfinite(p90) else _NONE,
        memory=f"{memory / 1e6:.0f}" if isfinite(memory) else _NONE,
        speed=f"{speed:.2f}x" if isfinite(speed) else _NONE,
    )


def _median(run: dict[str, Any]) -> float:
    median = number((run.get("step_seconds") or {}).get("median"))
    return median if median > 0 else float("nan")


def _pairs(result: dict[str, Any]) -> list[_Pair]:
    return [_pair(pair) for pair in result.get("pairs") or []]


def _pair(pair: dict[str, Any]) -> _Pair:
    lockstep, free = pair.get("lockstep") or {}, pair.get("free") or {}
    sizes = [number(lockstep.get(f"max_rel_{what}_diff")) for what in ("loss", "grad", "update")]
    verdict, _, reason = pair["verdict"].partition(": ")
    return _Pair(
        a=pair["a"],
        b=pair["b"],
        policy=pair["policy"],
        lockstep=tuple(_difference(size) if lockstep else _NONE for size in sizes),
        lockstep_loss=sizes[0],
        free=_percent(free.get("max_rel_loss_diff")),
        band=_percent(free.get("band")),
        verdict=verdict,
        reason=reason,
    )


def _difference(size: float) -> str:
    return "0" if size == 0 else f"{size:.1e}"


def _percent(size: Any) -> str:
    if size is None:
        return _NONE
    percent = number(size) * 100
    if not isfinite(percent) or percent == 0:
        return f"{percent:.0f}"
    for limit, form in ((0.01, ".0e"), (0.995, ".2f"), (99.5, ".1f"), (1e5, ".0f")):
        if percent < limit:
            return f"{percent:{form}}%"
    return f"{percent:.0e}%"


def _grouped(items: Sequence[_Item]) -> dict[str, list[_Item]]:
    """Return the items by policy, in the order in which policies first appear."""
    groups: dict[str, list[_Item]] = {}
    for item in items:
        groups.setdefault(item.policy, []).append(item)
    return groups


def _join(words: Sequence[str]) -> str:
    """Return ``"a, b and c"``."""
    return " and ".join(part for part in (", ".join(words[:-1]), *words[-1:]) if part)


def _count(number_of: int, noun: str) -> str:
    return f"{number_of} {noun}{'' if number_of == 1 else 's'}"

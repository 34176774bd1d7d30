"""Run the original and the port in processes of their own, and compare what they recorded."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpcore_port.verify.child import ALONE
from mpcore_port.verify.judge import (
    NUDGES,
    Comparison,
    Run,
    Verification,
    VerifyOptions,
    against_own,
    alike_not_run,
    by_own_drift,
    compare,
    drift,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["STUBS", "verify"]

STUBS = Path(__file__).parents[1] / "stubs" / "path"
_STOCK = VerifyOptions()
_NEAR = 0.05  # relative: what is farther apart is no rounding


def verify(
    original: Path,
    port: Path,
    target: str,
    options: VerifyOptions = _STOCK,
    tell: Callable[[str], None] = lambda _: None,
) -> Verification:
    """Run ``original`` and ``port`` in each mode and compare them.

    Both run on the CPU, each run in a process of its own, in an empty folder, with a time limit;
    ``original`` sees the CPU as ``"cuda"``. This runs the user's code.

    Args:
        original: the script that was ported.
        port: what it became.
        target: ``"torch_npu"``, ``"mindspore"``, or ``"portable"`` for a script that picks its
            device.
        options: how to run.
        tell: called with what runs now.
    """
    tell(f"running {original.name} and its port: {', '.join(options.modes)}")
    if target == "mindspore":
        first, second = _replayed(original, port, options)
        runs = zip(options.modes, first, second, strict=True)
        found = alike_not_run([compare(mode, a, b, options) for mode, a, b in runs])
    else:
        pairs = _in_turn(original, port, options)
        found = [
            _sensitive(original, compare(mode, a, b, how), how, tell)
            for mode, (how, a, b) in zip(options.modes, pairs, strict=True)
        ]
    if target == "mindspore" and "float32" in options.modes:
        exact = first[options.modes.index("float32")].losses
        found = [against_own(one, exact) for one in found]
        found = [by_own_drift(_moved(original, one, options, tell)) for one in found]
    return Verification(original.name, target, tuple(found))


def _sensitive(
    original: Path, one: Comparison, options: VerifyOptions, tell: Callable[[str], None]
) -> Comparison:
    """Measure how far rounding alone moves the original, where its port rounds otherwise."""
    if not (options.rounds and one.verdict == "different" and one.scales and one.alike):
        return one
    tell(f"{one.mode}: losses differ, and the port rounds otherwise: nudging the original")
    return replace(one, own=drift(one.original, _losses(original, one, options, NUDGES)))


def _losses(
    original: Path, one: Comparison, options: VerifyOptions, nudges: Sequence[int]
) -> list[tuple[float, ...]]:
    """Run the original again in one mode, nudged by each of some seeds; 0 is as it is."""
    options = replace(options, modes=(one.mode,), losses=len(one.original))
    with ThreadPoolExecutor(len(NUDGES)) as pool:
        runs = pool.map(lambda seed: _run(original, "cuda", options, seed)[0], nudges)
        return [run.losses for run in runs]


def _moved(
    original: Path, one: Comparison, options: VerifyOptions, tell: Callable[[str], None]
) -> Comparison:
    """Measure the same of an original whose losses differ a little from its port's to MindSpore.

    Each framework has kernels of its own, and training spreads their rounding.
    """
    near = one.largest is not None and one.largest <= _NEAR
    if one.verdict != "different" or not (near and one.scales and one.alike):
        return one
    tell(f"{one.mode}: losses differ: nudging the original")
    own, *nudged = _losses(original, one, options, (0, *NUDGES))
    return replace(one, own=drift(own, nudged))


def _in_turn(
    original: Path, port: Path, options: VerifyOptions
) -> list[tuple[VerifyOptions, Run, Run]]:
    """Run both beside each other; what is slow goes on mode by mode, with an early overflow."""
    found: list[tuple[VerifyOptions, Run, Run]] = []
    while len(found) < len(options.modes):
        left = replace(options, modes=options.modes[len(found) :])
        first, second = _both(original, port, left)
        found += [(left, a, b) for a, b in zip(first, second, strict=False)]
        options = replace(options, at=min(options.at, 1))
    return found


def _both(original: Path, port: Path, options: VerifyOptions) -> tuple[list[Run], list[Run]]:
    """Run both, and return the modes that each came to: one that was cut short is the last."""
    with ThreadPoolExecutor(2) as pool:
        running = pool.submit(_run, original, "cuda", options)
        second = _run(port, "npu", options)
        return running.result(), second


def _replayed(original: Path, port: Path, options: VerifyOptions) -> tuple[list[Run], list[Run]]:
    """Run both with the same weights and random numbers, one framework a process."""
    from mpcore_port.mindspore.replay import how_it_ended, run_modes

    runs: tuple[list[Run], list[Run]] = ([], [])
    with tempfile.TemporaryDirectory(prefix="mpcore-verify-") as name:
        folders = {mode: Path(name) / mode for mode in options.modes}
        for folder in folders.values():
            folder.mkdir()
        for role, script, kept in zip(("original", "port"), (original, port), runs, strict=True):
            if runs[0] and not runs[0][0].losses:  # nothing to compare with
                kept.extend(runs[0])
                continue
            run_modes(
                role,
                script,
                folders,
                losses=options.losses,
                at=options.at,
                args=options.args,
                time_limit=options.time_limit,
                enough=options.enough / 2,  # they run one behind the other
                compiled=options.compiled,
            )
            for folder in folders.values():
                end, words = how_it_ended(role, folder)
                words = _raised(words)
                found = _events(folder / f"{role}.jsonl", end, _last_line(words))
                found = replace(found, stopped=_stopped(script, words))
                kept.append(kept[0] if kept and not kept[0].losses else found)
    return runs


def _run(script: Path, device: str, options: VerifyOptions, nudge: int = 0) -> list[Run]:
    """Run one script in each mode, up to one that is cut short; what it writes is lost."""
    with tempfile.TemporaryDirectory(prefix="mpcore-verify-") as folder:
        job = {
            "script": str(script.resolve()),
            "args": list(options.args),
            "folder": folder,
            "device": device,
            "modes": options.modes,
            "losses": options.losses,
            "at": options.at,
            "threads": options.threads,
            "time_limit": options.time_limit,
            "enough": options.time_limit if nudge else options.enough,  # as many as it is beside
            "nudge": nudge,
        }
        path = os.pathsep.join(filter(None, [str(STUBS), os.environ.get("PYTHONPATH", "")]))
        child = subprocess.run(
            [sys.executable, "-m", "mpcore_port.verify.child", json.dumps(job)],
            cwd=folder,
            env={
                **os.environ,
                **ALONE,
                "MASTER_PORT": str(_free_port()),
                "PYTHONHASHSEED": "0",  # the order of a set is the same on both sides
                "PYTHONPATH": path,
                "OMP_NUM_THREADS": str(options.threads),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            errors="replace",
            check=False,
        )
        words = _last_line(child.stdout)
        found: list[Run] = []
        for mode in options.modes:
            found.append(_read(Path(folder) / mode, words))
            if found[-1].end in ("late", "short"):
                break
        return found


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


_IGNORED = "Exception ignored in"


def _raised(text: str) -> str:
    """Return the output up to what objects complain of that an error has left half made."""
    before = text.partition(_IGNORED)[0]
    return before if before.strip() else text


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""


def _stopped(script: Path, words: str) -> str:
    """Return the last line of a script that a traceback names."""
    lines = words.splitlines()
    places = [n for n, line in enumerate(lines) if f'File "{script.resolve()}", line' in line]
    return lines[places[-1] + 1].strip() if places and places[-1] + 1 < len(lines) else ""


def _read(folder: Path, words: str) -> Run:
    """Return what one mode recorded; ``words`` are those of a process that failed before it."""
    if not (folder / "end").exists():
        return Run((), (), 0, "failed", words)
    log = (folder / "log").read_text(encoding="utf-8", errors="replace")
    end = (folder / "end").read_text(encoding="utf-8")
    return _events(folder / "events.jsonl", end, _last_line(_raised(log)))


def _events(path: Path, end: str, words: str) -> Run:
    """Return what one run recorded in ``path``."""
    events: list[tuple[str, Any]] = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            kind, value = json.loads(line)
        except ValueError:  # the last line of a run that was ended
            break
        events.append((kind, value))
    kinds = [kind for kind, _ in events]
    places = [place for place, kind in enumerate(kinds) if kind == "loss"]
    return Run(
        tuple(value for kind, value in events if kind == "loss"),
        tuple(value for kind, value in events if kind == "scale"),
        kinds.count("step"),
        end,
        words,
        tuple((kinds[:place].count("step"), kinds[:place].count("scale")) for place in places),
    )

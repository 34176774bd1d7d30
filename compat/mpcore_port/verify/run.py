"""Run the original and the port in processes of their own, and compare what they recorded."""

from __future__ import annotations

import json
import math
import os
import socket
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["CLOSE", "MODES", "Comparison", "Verification", "VerifyOptions", "verify"]

MODES = ("float32", "mixed", "overflow")
"""What is compared: float32 training, the script's own precision, and a planted overflow."""

CLOSE = {"float32": 1e-5, "mixed": 1e-3, "overflow": 1e-3}
"""Largest relative difference of a loss that is called close: another kernel, the same sums."""

_STAND_IN = Path(__file__).parents[1] / "stand_in" / "path"


@dataclass(frozen=True)
class VerifyOptions:
    """How verification runs.

    Attributes:
        args: command line of the script.
        losses: losses that are recorded, >= 1.
        at: index of the loss whose gradients are made infinite in mode ``"overflow"``.
        time_limit: seconds for each run.
        threads: threads of each run; 1 makes runs comparable bit for bit.
        modes: which of ``MODES`` are run.
    """

    args: tuple[str, ...] = ()
    losses: int = 20
    at: int = 3
    time_limit: float = 300.0
    threads: int = 1
    modes: tuple[str, ...] = MODES


@dataclass(frozen=True)
class Run:
    """What one run recorded, and how it ended: ``"ok"``, ``"failed"`` or ``"late"``."""

    losses: tuple[float, ...]
    scales: tuple[float, ...]
    steps: int
    end: str
    words: str = ""


@dataclass(frozen=True)
class Comparison:
    """One mode, original against port.

    Attributes:
        mode: one of ``MODES``.
        verdict: ``"same"`` (losses, scales and counts of steps equal), ``"close"`` (losses
            within ``CLOSE``, scales and steps equal), ``"different"``, or ``"not compared"``.
        losses: how many losses each recorded.
        largest: largest relative difference of a loss; None where none was compared.
        scales: whether the trajectories of the scale are equal.
        first: index of the first loss or scale that differs; None if none does.
        words: what a reader should know.
    """

    mode: str
    verdict: str
    losses: tuple[int, int]
    largest: float | None
    scales: bool
    first: int | None
    words: str = ""
    original: tuple[float, ...] = field(default=(), repr=False)
    port: tuple[float, ...] = field(default=(), repr=False)
    original_scales: tuple[float, ...] = field(default=(), repr=False)
    port_scales: tuple[float, ...] = field(default=(), repr=False)


@dataclass(frozen=True)
class Verification:
    """What was verified, and how close it is.

    Attributes:
        script: the script, relative to what was ported.
        target: what it was ported to.
        comparisons: one a mode.
    """

    script: str
    target: str
    comparisons: tuple[Comparison, ...]

    @property
    def passed(self) -> bool:
        """Whether every mode was compared, and none is different."""
        return all(one.verdict in ("same", "close") for one in self.comparisons)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, ready for JSON."""
        return asdict(self)

    def lines(self) -> list[str]:
        """Return the comparisons as text, a line each."""
        return [f"{one.mode:<9} {one.verdict:<13} {one.words}" for one in self.comparisons]


def verify(
    original: Path,
    port: Path,
    target: str,
    options: VerifyOptions = VerifyOptions(),
    tell: Callable[[str], None] = lambda _: None,
) -> Verification:
    """Run ``original`` and ``port`` in each mode and compare them.

    Both run on the CPU, each run in a process of its own, in an empty folder, with a time limit;
    ``original`` sees the CPU as ``"cuda"``. This runs the user's code.

    Args:
        original: the script that was ported.
        port: what it became.
        target: ``"torch_npu"``, ``"mindspore"``, or ``"neutral"`` for a script that picks its
            device.
        options: how to run.
        tell: called with what runs now.
    """
    tell(f"running {original.name} and its port: {', '.join(options.modes)}")
    if target == "mindspore":
        first, second = _replayed(original, port, options)
    else:
        with ThreadPoolExecutor(2) as pool:
            running = pool.submit(_run, original, "cuda", options)
            second = _run(port, "npu", options)
            first = running.result()
    pairs = zip(options.modes, first, second, strict=True)
    found = [compare(mode, a, b, options) for mode, a, b in pairs]
    if target == "mindspore" and "float32" in options.modes:
        exact = first[options.modes.index("float32")].losses
        found = [_against_own(one, exact) for one in found]
    return Verification(original.name, target, tuple(found))


def _replayed(original: Path, port: Path, options: VerifyOptions) -> tuple[list[Run], list[Run]]:
    """Run both with the same weights and random numbers, one framework a process."""
    from mpcore_port.mindspore.replay import run_role

    runs: tuple[list[Run], list[Run]] = ([], [])
    for mode in options.modes:
        with tempfile.TemporaryDirectory(prefix="mpcore-verify-") as name:
            folder = Path(name)
            for role, script, kept in zip(
                ("original", "port"), (original, port), runs, strict=True
            ):
                end, words = run_role(
                    role,
                    script,
                    mode,
                    folder,
                    losses=options.losses,
                    at=options.at,
                    args=options.args,
                    time_limit=options.time_limit,
                )
                kept.append(_events(folder / f"{role}.jsonl", end, _last_line(words)))
    return runs


def _against_own(one: Comparison, exact: tuple[float, ...]) -> Comparison:
    """Judge lower precision by the original's own distance from its float32 losses.

    Two frameworks round 16-bit products in another order; twice that distance is close.
    """
    if one.mode == "float32" or one.verdict != "different" or not one.scales:
        return one
    if not one.losses[0] == one.losses[1] == len(exact):
        return one
    theirs, ours = (
        max(_relative(a, b) for a, b in zip(losses, exact, strict=True))
        for losses in (one.original, one.port)
    )
    if not ours <= 2 * theirs + CLOSE["float32"]:
        return one
    words = f"losses {ours:.1e} from the original's float32, its own {theirs:.1e}, scales equal"
    return replace(one, verdict="close", words=words)


def _run(script: Path, device: str, options: VerifyOptions) -> list[Run]:
    """Run one script in each mode; whatever it writes into its folder is lost."""
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
        }
        path = os.pathsep.join(filter(None, [str(_STAND_IN), os.environ.get("PYTHONPATH", "")]))
        alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
        child = subprocess.run(
            [sys.executable, "-m", "mpcore_port.verify.child", json.dumps(job)],
            cwd=folder,
            env={
                **os.environ,
                **alone,  # a script that torchrun starts is the one rank of its world
                "MASTER_PORT": str(_free_port()),
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
        return [_read(Path(folder) / mode, _last_line(child.stdout)) for mode in options.modes]


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""


def _read(folder: Path, words: str) -> Run:
    """Return what one mode recorded; ``words`` are those of a process that failed before it."""
    if not (folder / "end").exists():
        return Run((), (), 0, "failed", words)
    log = (folder / "log").read_text(encoding="utf-8", errors="replace")
    end = (folder / "end").read_text(encoding="utf-8")
    return _events(folder / "events.jsonl", end, _last_line(log))


def _events(path: Path, end: str, words: str) -> Run:
    """Return what one run recorded in ``path``."""
    events: list[tuple[str, Any]] = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            kind, value = json.loads(line)
        except ValueError:  # the last line of a run that was ended
            break
        events.append((kind, value))
    return Run(
        tuple(value for kind, value in events if kind == "loss"),
        tuple(value for kind, value in events if kind == "scale"),
        sum(kind == "step" for kind, _ in events),
        end,
        words,
    )


def compare(mode: str, original: Run, port: Run, options: VerifyOptions) -> Comparison:
    """Return how two runs compare.

    Args:
        mode: one of ``MODES``.
        original: what the original recorded.
        port: what the port recorded.
        options: how they ran.
    """
    close = CLOSE[mode]
    counts = (len(original.losses), len(port.losses))
    both = list(zip(original.losses, port.losses, strict=False))
    apart = [_relative(a, b) for a, b in both]
    scales = original.scales == port.scales
    pairs = zip(original.scales, port.scales, strict=False)
    differs = [i for i, d in enumerate(apart) if d > close] + [
        i for i, (a, b) in enumerate(pairs) if a != b
    ]
    largest = max(apart, default=None)
    base = Comparison(
        mode,
        "different",
        counts,
        largest,
        scales,
        min(differs, default=None),
        original=original.losses,
        port=port.losses,
        original_scales=original.scales,
        port_scales=port.scales,
    )
    for name, run in (("the original", original), ("the port", port)):
        if not run.losses:
            how = _how(run, options)
            words = f"{name} recorded no loss: {how}"
            return replace(base, verdict="not compared", words=words)
    alike = (original.steps, original.end, counts[0]) == (port.steps, port.end, counts[1])
    if largest == 0.0 and scales and alike:
        words = f"{counts[0]} losses equal bit for bit, {_scales(original)}, {original.steps} steps"
        return replace(base, verdict="same", words=words)
    if not differs and scales and alike:
        words = f"{counts[0]} losses within {largest:.1e} relative, {_scales(original)}"
        return replace(base, verdict="close", words=words)
    return replace(base, words=_difference(original, port, base, options))


def _relative(a: float, b: float) -> float:
    if a == b or (math.isnan(a) and math.isnan(b)):
        return 0.0
    if not (math.isfinite(a) and math.isfinite(b)):
        return math.inf
    return abs(a - b) / max(abs(a), abs(b))


def _scales(run: Run) -> str:
    if not run.scales:
        return "no loss scale"
    return f"scale {run.scales[0]:g} to {run.scales[-1]:g} over {len(run.scales)} updates, equal"


def _how(run: Run, options: VerifyOptions) -> str:
    if run.end == "late":
        return f"it was ended after {options.time_limit:g} s"
    return run.words or "it ended without a word"


def _difference(original: Run, port: Run, base: Comparison, options: VerifyOptions) -> str:
    parts = []
    for name, run in (("the original", original), ("the port", port)):
        if run.end != "ok":
            parts.append(f"{name} stopped after {len(run.losses)} losses: {_how(run, options)}")
    if base.first is not None:
        parts.append(f"first difference at {base.first}")
    if base.largest:
        parts.append(f"losses up to {base.largest:.1e} relative apart")
    if not base.scales:
        parts.append("scales differ")
    if original.steps != port.steps:
        parts.append(f"{original.steps} steps against {port.steps}")
    if len(original.losses) != len(port.losses):
        parts.append(f"{len(original.losses)} losses against {len(port.losses)}")
    return "; ".join(parts)

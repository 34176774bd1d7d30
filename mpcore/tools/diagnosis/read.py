"""What was written of a run: a comparison's report, a post-mortem, a monitor's records."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

from mpcore.errors import CheckpointError
from mpcore.tools.diagnosis.record import PostMortem, load_post_mortem

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["read_record"]

_LARGEST = 500_000_000  # bytes of a report or of records
_HOW = (
    "The records tell no more; mp.diagnose(amp, result) right after the skipped step, or mpcore "
    "diagnose EXPERIMENT.py, runs the batch again and names the layer and the fix."
)


def read_record(path: Path) -> dict[str, Any]:
    """Return what ``path`` tells: ``{"runs": [...]}``, each with its post-mortems, as plain data.

    Args:
        path: a comparison's folder or ``report.json``, a file of ``PostMortem.save``, or a
            monitor's JSON Lines.

    Raises:
        CheckpointError: it is missing, damaged or of another kind.
    """
    if path.is_dir():
        path = path / "report.json"
    if not path.is_file():
        msg = (
            f"`RUN` must be a folder with a report.json, a .json or .jsonl file, or an "
            f"EXPERIMENT.py, got {path}, which is not there"
        )
        raise CheckpointError(msg)
    if path.suffix == ".jsonl":
        return {"runs": [_monitored(path, _lines(path))]}
    data = _loaded(path)
    if isinstance(data, dict) and isinstance(data.get("runs"), list) and "experiment" in data:
        return {"runs": [_compared(path, run) for run in data["runs"]]}
    found = load_post_mortem(path)
    run = {"run": str(path), "postmortems": [found.to_dict()], "skipped": 1}
    return {"runs": [run | {"steps": None, "error": "", "note": ""}]}


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > _LARGEST:
            msg = f"{path} is larger than {_LARGEST} bytes"
            raise CheckpointError(msg)
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        msg = f"{path} cannot be read: {exc}"
        raise CheckpointError(msg) from exc


def _loaded(path: Path) -> Any:
    try:
        return json.loads(_text(path))
    except (ValueError, RecursionError) as exc:
        if isinstance(exc, CheckpointError):
            raise
        msg = f"{path} is no JSON: {exc}"
        raise CheckpointError(msg) from exc


def _compared(path: Path, run: Any) -> dict[str, Any]:
    """Return one run of a comparison."""
    if not isinstance(run, dict) or not isinstance(run.get("postmortems") or [], list):
        msg = f"{path} holds a run that is none: {run!r:.80}"
        raise CheckpointError(msg)
    found = [PostMortem.from_dict(data).to_dict() for data in run.get("postmortems") or []]
    skipped = run.get("skipped")
    count = len(skipped) if isinstance(skipped, list) else len(found)
    note = ""
    if count and not found:
        note = f"{count} steps were skipped, and the comparison kept no post-mortem of them"
    name = f"{run.get('backend', '')} {run.get('policy', '')}".strip()
    return {
        "run": name,
        "postmortems": found,
        "skipped": count,
        "steps": None,
        "error": "",
        "note": note,
    }


def _lines(path: Path) -> list[dict[str, Any]]:
    """Return the records of a monitor; a last line that was cut off is left out."""
    records = []
    lines = _text(path).splitlines()
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
            if not isinstance(record, dict) or "stepped" not in record:
                msg = "it has no `stepped`"
                raise ValueError(msg)
        except (ValueError, RecursionError) as exc:
            if number == len(lines) and number > 1:
                break  # the run may still be writing
            msg = f"{path}, line {number}, is no record of a monitor: {exc}"
            raise CheckpointError(msg) from exc
        records.append(record)
    return records


def _monitored(path: Path, records: list[dict[str, Any]]) -> dict[str, Any]:
    skips = [record for record in records if not record["stepped"]]
    run = {"run": str(path), "postmortems": [], "skipped": len(skips), "steps": len(records)}
    return run | {"error": "", "note": _told(skips, len(records)) if skips else ""}


def _told(skips: list[dict[str, Any]], steps: int) -> str:
    """Return what the records of skipped steps say."""
    forward = [record for record in skips if not _finite(record.get("loss"))]
    culprits = Counter(record.get("culprit") or "(unknown)" for record in skips)
    name, times = culprits.most_common(1)[0]
    first, last = skips[0], skips[-1]
    lines = [
        f"{len(skips)} of {steps} records are of skipped steps: the first is step "
        f"{first.get('step', '?')}, the last step {last.get('step', '?')}.",
        f"  forward    {len(forward)}: the loss itself is not finite, no loss scale fixes that",
        f"  backward   {len(skips) - len(forward)}: only gradients overflow",
        f"  culprit    {name}, the first parameter that overflowed in {times} of them",
        f"  scale      {first.get('scale')} at the first, {last.get('next_scale')} after the last",
        "",
        _HOW,
    ]
    return "\n".join(lines)


def _finite(value: Any) -> bool:
    return isinstance(value, int | float) and value == value and abs(value) != float("inf")

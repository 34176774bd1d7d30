"""Wall time of searches from the command line: whole ones, --fast, a short budget, Ctrl-C, again.

    python tests/benchmarks/tune_limits.py ROWS.jsonl SECONDS [EXAMPLE ...]

Each row: seconds of a search with its proof, and of --fast; seconds under --budget SECONDS; whether
Ctrl-C after as much left a policy; steps that a call repeats after a whole one. ``summary`` in the
place of SECONDS writes results/tune_limits.json from all rows.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from results_file import keep
from tune_rows import Row, go_on, rows_of

import mpcore as mp

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = (
    "experiments/gpt_attention.py", "experiments/two_inputs.py", "experiments/transformer_adamw.py",
    "experiments/vae.py", "char_transformer/experiment.py", "image_cnn/experiment.py",
)  # fmt: skip


def called(folder: Path, path: Path, *options: str, stop: float = 0.0) -> Row:
    """Return how a call ended; Ctrl-C after so many seconds."""
    command = [sys.executable, "-c", "import sys; from mpcore.cli import main; sys.exit(main())"]
    command += ["tune", str(path), "--threads", "1", "--json", "t.json", *options]
    start = time.perf_counter()

    def listen() -> None:  # a background process may ignore it
        signal.signal(signal.SIGINT, signal.default_int_handler)

    child = subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        preexec_fn=listen,
    )  # fmt: skip
    if stop:
        time.sleep(stop)
        child.send_signal(signal.SIGINT)
    printed = child.communicate()[0]
    row: Row = {"seconds": round(time.perf_counter() - start, 1), "code": child.returncode}
    tuned = folder / "tuned.toml"
    row["policy"] = str(mp.Policy.load(tuned)) if tuned.exists() else ""
    row["last"] = printed.strip().splitlines()[-1][:120] if printed.strip() else ""
    if (folder / "t.json").exists():
        told = json.loads((folder / "t.json").read_text(encoding="utf-8"))["found"]
        for found in told.values():  # none where the budget ended before anything was measured
            row |= {"steps": (found.get("cost") or [{}])[0].get("steps")}
            row |= {"level": found.get("level")}
        (folder / "t.json").unlink()
    return row


def do(case: Row) -> Row:
    path = ROOT / "examples" / case["example"]
    row: Row = {}
    with tempfile.TemporaryDirectory() as name:
        row["whole"] = called(Path(name), path)
        row["whole_again"] = called(Path(name), path, "--budget", "600")
    with tempfile.TemporaryDirectory() as name:
        row["fast"] = called(Path(name), path, "--fast")
        row["again"] = called(Path(name), path, "--fast", "--budget", "600")
        row["once_more"] = called(Path(name), path, "--fast", "--budget", "600")
    with tempfile.TemporaryDirectory() as name:
        row["budget"] = called(Path(name), path, "--budget", f"{case['limit']:g}")
    with tempfile.TemporaryDirectory() as name:
        row["stopped"] = called(Path(name), path, "--budget", "600", stop=case["limit"])
    return row


def summary(rows: list[Row]) -> None:
    keep(
        "tune_limits", examples=len(rows), load_of_runs=sorted(r["load"] for r in rows),
        whole_seconds=[[r["example"], r["whole"]["seconds"], r["whole"]["level"]] for r in rows],
        fast_seconds=[[r["example"], r["fast"]["seconds"]] for r in rows],
        within_budget=sum(r["budget"]["seconds"] <= 1.1 * r["limit"] for r in rows),
        stopped_with_policy=sum(bool(r["stopped"]["policy"]) for r in rows),
        repeated_steps=[r["once_more"]["steps"] for r in rows], rows=rows,
    )  # fmt: skip


def main() -> None:
    path, limit, names = Path(sys.argv[1]), sys.argv[2], sys.argv[3:] or list(EXAMPLES)
    if limit == "summary":
        summary(rows_of(path))
        return
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    go_on(path, [{"example": name, "limit": float(limit)} for name in names], do)


if __name__ == "__main__":
    main()

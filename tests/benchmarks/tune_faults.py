"""Why small steps differ from process to process: page faults of an LSTM at batch 4.

    python tests/benchmarks/tune_faults.py [PROCESSES]

Each process takes 20 steps in turns, twice, under float32 and mixed_bfloat16, and counts the page
faults: the allocator may hand memory back after each step. results/tune_faults.json.
"""

from __future__ import annotations

import json
import resource
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from results_file import keep
from tune_rows import fresh
from tune_zoo import file_of

POLICIES = ("float32", "mixed_bfloat16")
STEPS = 20


def one() -> None:
    """Print milliseconds and page faults of a step, by policy, each part in turn."""
    import torch

    from mpcore.tools.experiment.experiment import load_experiment
    from mpcore.tools.profiling.stepping import Run

    torch.set_num_threads(1)
    experiment = load_experiment(file_of("lstm", Path(tempfile.gettempdir()) / "mpcore-tune-zoo"))
    data, clock = experiment.data(), time.process_time
    runs = {
        text: Run(experiment, "torch", data, text, steps=5, batch=4, clock=clock)
        for text in POLICIES
    }
    for run in runs.values():
        run.warm_up()
    found: dict[str, list[list[float]]] = {text: [] for text in POLICIES}
    for _ in range(2):
        for text, run in runs.items():
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            seconds = [run.seconds() for _ in range(STEPS)]
            faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
            found[text].append([round(1e3 * median(seconds), 2), faults / STEPS])
    print(json.dumps(found))


def main() -> None:
    if sys.argv[1:] == ["one"]:
        one()
        return
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 8
    rows = [fresh(__file__, "one") for _ in range(count)]
    low, full = ([median(ms for ms, _ in row[text]) for row in rows] for text in POLICIES[::-1])
    keep(
        "tune_faults", processes=count, steps=STEPS, unit="ms and page faults a step",
        mixed_over_float32=sorted(round(a / b, 3) for a, b in zip(low, full, strict=True)),
        rows=rows,
    )  # fmt: skip


if __name__ == "__main__":
    main()

"""What tune's campaigns share: rows in a file, from which a second call goes on; new processes."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median, quantiles
from typing import Any

Row = dict[str, Any]


def rows_of(path: Path) -> list[Row]:
    """Return the rows of a file; a line that was cut off by a kill is left out."""
    found = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def go_on(
    path: Path, cases: Iterable[Row], do: Callable[[Row], Row], until: float = float("inf")
) -> list[Row]:
    """Do the cases that the file has no row of, and return all rows of these cases.

    None is begun after ``until``, in seconds of the epoch.
    """
    cases = list(cases)
    rows = rows_of(path)
    for case in cases:
        if any(case.items() <= row.items() for row in rows):
            continue
        if time.time() > until:
            print("the time is over", flush=True)
            break
        start, load = time.perf_counter(), round(os.getloadavg()[0], 1)
        row = case | do(case)
        row |= {"at": time.strftime("%H:%M:%S"), "load_before": load}
        row |= {"wall": round(time.perf_counter() - start, 1), "load": round(os.getloadavg()[0], 1)}
        rows.append(row)
        with path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(row) + "\n")
        print(json.dumps({k: v for k, v in row.items() if not isinstance(v, list)}), flush=True)
    return [row for row in rows if any(case.items() <= row.items() for case in cases)]


def rounds_of(
    file: Path, batch: int | None, count: int, seed: int, policies: Iterable[str]
) -> dict[str, list[float]]:
    """Return the seconds of so many rounds of policies, of a fresh process."""
    return dict(fresh(__file__, str(file), str(batch or 0), str(count), str(seed), *policies))


def fresh(script: str, *arguments: str) -> Any:
    """Return what a script prints last, as JSON, in a process of its own with one thread."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    told = subprocess.run(
        [sys.executable, script, *arguments], stdout=subprocess.PIPE, text=True, env=environment
    )
    if told.returncode:
        raise SystemExit(told.returncode)
    return json.loads(told.stdout.splitlines()[-1])


def spread(ratios: list[float]) -> Row:
    """Return the median and the quartiles."""
    low, _, high = quantiles(ratios, n=4)
    return {"ratio": round(median(ratios), 4), "low": round(low, 4), "high": round(high, 4)}


def main() -> None:
    """Take blocks of three steps of each policy in turns; the first step of a block is dropped.

    Live models, process CPU time, an order drawn anew for each round: as searches do, but with
    code of its own and a number of rounds that nothing stops early.
    """
    import torch

    from mpcore.tools.experiment.experiment import load_experiment
    from mpcore.tools.profiling.stepping import Run

    torch.set_num_threads(1)
    file, batch, count, seed = sys.argv[1], *map(int, sys.argv[2:5])
    experiment, rng = load_experiment(file), random.Random(seed)
    data, clock, policies = experiment.data(), time.process_time, sys.argv[5:]
    runs = {
        text: Run(experiment, "torch", data, text, steps=5, batch=batch or None, clock=clock)
        for text in policies
    }
    for run in runs.values():
        run.warm_up()
    took: dict[str, list[float]] = {text: [] for text in policies}
    for _ in range(count):
        for text in rng.sample(policies, len(policies)):
            took[text].append(sum([runs[text].seconds() for _ in range(3)][1:]))
    print(json.dumps({text: [round(1e3 * s, 4) for s in own] for text, own in took.items()}))


if __name__ == "__main__":
    main()

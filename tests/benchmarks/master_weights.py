"""What each scheme of master weights costs in a training step, relative to float32 copies.

    python tests/benchmarks/master_weights.py torch # or tensorflow, mindspore; one a process
    python tests/benchmarks/master_weights.py torch --millions 10 --rows 1,64

Each framework's part is ``master_weights_FRAMEWORK.py``: ``set_threads(count)``, ``versions()``,
``device()`` and ``build(policy, width, layers, rows)``, which returns a step of a multilayer
perceptron under AdamW (or Adam) as a callable. With one row of data the update is nearly all of
the step. The variants alternate step by step, so that noise of the machine hits all of them; the
time is CPU time of the whole process, and beside it that of the clock: a thread that waits for
another by spinning costs CPU time and delays nobody. Medians and their ratios to ``copy`` are
printed and written to tests/benchmarks/results/.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import time
from pathlib import Path

import numpy as np
from in_turn import rounds
from results_file import keep

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("GLOG_v", "3")
sys.path.insert(0, str(Path(__file__).parent))

WIDTH = 1024
SCHEMES = (
    "copy",
    "copy:away",
    "split",
    "split:truncate",
    "split:nearest",
    "kahan",
    "stochastic",
    "copy, optimizer_state=bfloat16",
    "stochastic, optimizer_state=bfloat16",
    "none",
)


def measure(variants: dict, steps: int, warmup: int) -> dict[str, list[tuple[float, float]]]:
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in variants}
    for index, order in rounds(variants, steps + warmup):
        for name in order:
            start = time.process_time(), time.perf_counter()
            variants[name]()
            if index >= warmup:
                cpu, clock = time.process_time() - start[0], time.perf_counter() - start[1]
                times[name].append((cpu, clock))
    return times


def rows_of(times: dict[str, list[tuple[float, float]]], rows: int) -> list[dict]:
    base = np.array(times["copy"])
    found = []
    for name, values in times.items():
        # The ratio of neighbours in time is steadier than that of the medians.
        ratios = np.array(values) / base
        row = {"rows": rows, "scheme": name}
        for column, kind in enumerate(("", "clock_")):
            low, median, high = np.quantile(np.array(values)[:, column], [0.1, 0.5, 0.9]) * 1e3
            least, ratio, most = np.quantile(ratios[:, column], [0.1, 0.5, 0.9])
            row |= {
                f"{kind}median_ms": round(median, 4),
                f"{kind}p10_ms": round(low, 4),
                f"{kind}p90_ms": round(high, 4),
                f"{kind}ratio_to_copy": round(ratio, 4),
                f"{kind}ratio_tenths": [round(least, 4), round(most, 4)],
            }
        found.append(row)
        print(
            f"  {name:<38}{row['median_ms']:9.3f} ms CPU {row['ratio_to_copy']:6.3f} x copy  "
            f"{row['clock_median_ms']:9.3f} ms {row['clock_ratio_to_copy']:6.3f} x copy "
            f"{row['clock_ratio_tenths']}"
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("framework", choices=["torch", "tensorflow", "mindspore"])
    parser.add_argument("--schemes", default=";".join(SCHEMES), help="separated by semicolons")
    parser.add_argument("--millions", type=float, default=10, help="parameters of the model")
    parser.add_argument("--rows", default="1,64", help="batch sizes")
    parser.add_argument("--steps", type=int, default=30, help="timed steps a variant")
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1, help="threads inside an operation")
    parser.add_argument("--no-write", action="store_true", help="print only")
    given = parser.parse_args()
    bench = importlib.import_module(f"master_weights_{given.framework}")
    bench.set_threads(given.threads)
    layers = max(1, round(given.millions * 1e6 / WIDTH**2))
    found = []
    for rows in map(int, given.rows.split(",")):
        variants = {
            scheme: bench.build(f"model_bfloat16, master={scheme}", WIDTH, layers, rows)
            for scheme in (part.strip() for part in given.schemes.split(";"))
        }
        print(f"\n{given.framework}: {layers} layers of {WIDTH}, {rows} rows, one step")
        found += rows_of(measure(variants, given.steps, given.warmup), rows)
        del variants
    if given.no_write:
        return
    keep(
        f"master_weights_{given.framework}",
        parameters=layers * WIDTH * (WIDTH + 1),
        threads=given.threads,
        versions=bench.versions(),
        steps=given.steps,
        device=bench.device(),
        rows=found,
    )


if __name__ == "__main__":
    main()

"""Cost of one training step: plain float32, native AMP, a hand-written minimum, and mpcore.

    python tests/benchmarks/step_overhead.py torch # or tensorflow, mindspore; one a process
    python tests/benchmarks/step_overhead.py torch --steps 200 --threads 1

The variants alternate in one process, three steps a turn of which the first is not timed, in an
order that is drawn anew each time; medians and their ratio to native AMP are printed and written to
tests/benchmarks/results/.
Besides the three models there are ``tiny`` (torch) and ``many``, 100 layers of 4 by 4 (torch,
tensorflow).
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from pathlib import Path

import numpy as np
from in_turn import alternate
from results_file import keep

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("GLOG_v", "3")
sys.path.insert(0, str(Path(__file__).parent))

MODELS = "mlp,cnn,transformer"


def batches(name: str) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    if name == "mlp":
        return rng.normal(size=(64, 256)).astype("f4"), rng.integers(0, 10, 64).astype("i4")
    if name in ("tiny", "many"):
        return rng.normal(size=(4, 4)).astype("f4"), rng.integers(0, 4, 4).astype("i4")
    if name == "cnn":
        return rng.normal(size=(16, 1, 28, 28)).astype("f4"), rng.integers(0, 10, 16).astype("i4")
    tokens = rng.integers(0, 65, (16, 33)).astype("i4")
    return tokens[:, :-1].copy(), tokens[:, 1:].copy()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("framework", choices=["torch", "tensorflow", "mindspore"])
    parser.add_argument("--models", default=MODELS)
    parser.add_argument("--steps", type=int, default=100, help="timed turns a variant")
    parser.add_argument("--warmup", type=int, default=10)
    parser.add_argument("--threads", type=int, default=1, help="threads inside an operation")
    parser.add_argument("--no-write", action="store_true", help="print only")
    given = parser.parse_args()
    bench = importlib.import_module(f"step_{given.framework}")
    bench.set_threads(given.threads)
    rows = []
    for model in given.models.split(","):
        x, y = batches(model)
        variants = bench.variants(model, x, y)
        times = alternate(variants, given.steps, given.warmup)
        native = np.median(times["native"])
        print(f"\n{given.framework} {model}: one step, {given.steps} turns a variant")
        for name, values in times.items():
            low, median, high = np.quantile(values, [0.1, 0.5, 0.9])
            # The ratio of neighbours in time is steadier than that of the medians.
            ratios = np.array(values) / np.array(times["native"])
            least, ratio, most = np.quantile(ratios, [0.1, 0.5, 0.9])
            rows.append(
                {
                    "model": model,
                    "variant": name,
                    "median_ms": round(median * 1e3, 4),
                    "p10_ms": round(low * 1e3, 4),
                    "p90_ms": round(high * 1e3, 4),
                    "ratio_to_native": round(ratio, 4),
                    "ratio_tenths": [round(least, 4), round(most, 4)],
                }
            )
            print(
                f"  {name:<22}{median * 1e3:9.3f} ms   [{low * 1e3:.3f}, {high * 1e3:.3f}]"
                f"   {ratio:6.3f} x native [{least:.2f}, {most:.2f}]"
                f"   {(median - native) * 1e6:+9.1f} us"
            )
    if not given.no_write:
        keep(
            f"step_overhead_{given.framework}"
            + (f"_{given.models.replace(',', '_')}" * (given.models != MODELS)),
            threads=given.threads,
            versions=bench.versions(),
            steps=given.steps,
            device="cpu",
            rows=rows,
        )


if __name__ == "__main__":
    main()

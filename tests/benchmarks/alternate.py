"""Cost of one training step in this tree beside another one: a commit before, say.

    python tests/benchmarks/alternate.py torch --against /path/to/other/.venv/bin/python

Both interpreters stay alive with the same variants built; a few steps are taken in one, then in the
other, so that noise of the machine hits both. Printed and written: the ratio of neighbours in time,
this tree to the other one, its median and its tenths. 1.00 is no change. On a machine that others
use, `--clock cpu` counts the processor time of the process and its threads instead.

The model `tiny` (torch) computes next to nothing: its step is what a step costs by itself. Of each
forty steps the fifth fastest counts, which neighbours on the machine hardly move.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from results_file import keep

HERE = Path(__file__).parent
STEPS = 4  # in a row, in one tree, before it is the other's turn


class Tree:
    """One interpreter with its variants built, waiting for orders."""

    def __init__(self, python: str, framework: str, model: str, clock: str) -> None:
        command = [python, str(HERE / "alternate.py"), framework, "--worker", model]
        command += ["--clock", clock]
        # the child must find its own mpcore, not the parent's
        variables = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=variables
        )
        self.variants: list[str] = self._read()

    def _read(self):
        line = self._process.stdout.readline()
        if not line:
            sys.exit(f"the other process ended with {self._process.wait()}")
        return json.loads(line)

    def run(self, variant: str) -> float:
        """Take a few steps of a variant; return the seconds of one."""
        print(variant, file=self._process.stdin, flush=True)
        return self._read()

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait()


CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


def worker(framework: str, model: str, clock: str) -> None:
    now = CLOCKS[clock]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what frameworks print is no answer
    from step_overhead import batches

    bench = importlib.import_module(f"step_{framework}")
    bench.set_threads(1)
    variants = {
        name: step
        for name, step in bench.variants(model, *batches(model)).items()
        if name.startswith("mpcore") or (model == "tiny" and name in ("float32", "native"))
    }
    for step in variants.values():
        for _ in range(10):
            step()
    print(json.dumps(list(variants)), file=answers, flush=True)
    for line in sys.stdin:
        step = variants[line.strip()]
        times = []
        for _ in range(STEPS * 10 if model == "tiny" else STEPS):
            start = now()
            step()
            times.append(now() - start)
        found = quantile(times, 0.1) if model == "tiny" else sum(times) / STEPS
        print(json.dumps(found), file=answers, flush=True)


def quantile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("framework", choices=["torch", "tensorflow", "mindspore"])
    parser.add_argument("--against", help="the other tree's interpreter")
    parser.add_argument("--models", default="mlp,cnn,transformer")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--no-write", action="store_true", help="print only")
    parser.add_argument("--worker", metavar="MODEL", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        worker(given.framework, given.worker, given.clock)
        return
    if not given.against:
        parser.error("--against must name the other tree's interpreter")
    rows = []
    for model in given.models.split(","):
        pythons = (sys.executable, given.against)
        trees = [Tree(python, given.framework, model, given.clock) for python in pythons]
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in trees[0].variants}
        for index in range(given.rounds):
            for name in times:
                order = trees if index % 2 else trees[::-1]  # nobody is always first
                found = {id(tree): tree.run(name) for tree in order}
                times[name].append((found[id(trees[0])], found[id(trees[1])]))
        for tree in trees:
            tree.close()
        print(
            f"\n{given.framework} {model}: this tree to the other, {given.rounds} rounds of {STEPS}"
        )
        for name, pairs in times.items():
            ratios = [own / other for own, other in pairs]
            median, low, high = (quantile(ratios, share) for share in (0.5, 0.1, 0.9))
            own = quantile([pair[0] for pair in pairs], 0.5) * 1e3
            rows.append(
                {
                    "model": model,
                    "variant": name,
                    "median_ms": round(own, 4),
                    "ratio": round(median, 4),
                    "p10": round(low, 4),
                    "p90": round(high, 4),
                }
            )
            print(f"  {name:<22}{own:9.3f} ms   {median:6.3f} x   [{low:.3f}, {high:.3f}]")
    if not given.no_write:
        name = f"alternate_{given.framework}" + ("_tiny" if given.models == "tiny" else "")
        about = {"threads": 1, "rounds": given.rounds, "steps_a_round": STEPS, "device": "cpu"}
        keep(name, **about, clock=given.clock, load=os.getloadavg()[0], rows=rows)


if __name__ == "__main__":
    main()

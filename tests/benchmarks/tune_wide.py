"""Is tune's answer within 2 % of the best of 200 policies, and do kernels foretell their order?

    python tests/benchmarks/tune_wide.py measure MODEL ANSWER ROWS.jsonl [POLICIES]
    python tests/benchmarks/tune_wide.py again MODEL ANSWER ROWS.jsonl AGAIN.jsonl
    python tests/benchmarks/tune_wide.py summary ROWS.jsonl AGAIN.jsonl

``measure`` takes whole steps of 200 policies of different plans, each in up to eight pairs with
ANSWER, what tune found: rules by op, by path and by type on top of two named policies, then pairs
of rules, those of the best single ones first. ``again`` takes those ten that looked fastest in 40
pairs of a fresh process each: the best of 200 is noise otherwise. ``summary`` writes
results/tune_wide.json.
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import combinations
from math import sqrt
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
from results_file import keep
from tune_rows import Row, go_on, rounds_of, rows_of, spread
from tune_zoo import file_of

from mpcore.backend.parts import PROFILER
from mpcore.backend.profiler import CAST
from mpcore.errors import MpcoreError
from mpcore.policy.policy import Policy
from mpcore.tools.experiment.experiment import load_experiment
from mpcore.tools.profiling.looking import look
from mpcore.tools.profiling.rules import kernel_saving
from mpcore.tools.profiling.stepping import Run
from mpcore.tools.profiling.timing import time_kernels_by
from mpcore.tools.profiling.values import pattern_by_path
from mpcore.tools.tune.candidates import plan_key

FOLDER = Path(tempfile.gettempdir()) / "mpcore-tune-zoo"
BASES = ("mixed_bfloat16", "autocast_bfloat16", "portable_bfloat16")
COUNT, PAIRS, TOP, AGAIN = 200, 8, 10, 40


class Wide:
    """The policies of one model, with what kernels alone foretell of each."""

    def __init__(self, model: str) -> None:
        import torch

        torch.set_num_threads(1)
        time_kernels_by(time.process_time)
        self.experiment = load_experiment(file_of(model, FOLDER))
        self.data = self.experiment.data()
        self.seen: set[object] = set()
        profiler = PROFILER.of("torch")
        self.looked = {}
        for base in BASES:
            run = self.run(base)
            run.warm_up()
            self.looked[base] = look(run, profiler, lambda **_: None, plain_too=False)
        self.layers = run.layers

    def run(self, policy: str) -> Run:
        return Run(self.experiment, "torch", self.data, policy, steps=5, clock=time.process_time)

    def is_new(self, policy: str) -> bool:
        try:
            key = plan_key(Policy.parse(policy), self.layers, "cpu")
        except MpcoreError:
            return False
        found = key not in self.seen
        self.seen.add(key)
        return found

    def singles(self, base: str) -> Iterator[tuple[str, float]]:
        """Yield rules on top of a base, and the seconds that kernels alone say they save."""
        seen = self.looked[base]
        timed = {kernel.name: kernel for kernel in seen.kernels}
        told = {one.rule: one.seconds for one in seen.worth if one.rule}
        steps = seen.recording.steps
        ops = [op for op in seen.recording.ops if op.phase in ("forward", "backward")]

        def saved(own: list[Any], lowers: bool) -> float:
            ran = "float32" if lowers else "bfloat16"
            alike = [op for op in own if op.op != CAST and op.dtype == ran]
            casts = sum(op.seconds for op in own if op.op == CAST) / steps if lowers else 0.0
            return sum(kernel_saving(op, timed) for op in alike) / steps + casts

        if Policy.parse(base).by == "op":
            for name in sorted({op.op for op in ops if op.op != CAST}):
                own = [op for op in ops if name in (op.op, op.cause)]
                for word in ("full", "lower"):
                    rule = f"{word} op={name}"
                    yield rule, told.get(rule, saved(own, word == "lower"))
        leaves = [e for e in self.layers if e.path and e.category not in ("container", "loss")]
        pattern = pattern_by_path(e.path for e in leaves)
        targets = {("path", pattern[e.path]): [] for e in leaves}
        targets |= {("layer", e.type): [] for e in leaves} | {("path", e.path): [] for e in leaves}
        for (target, name), paths in targets.items():
            paths += [
                e.path for e in leaves
                if (e.type == name if target == "layer" else name in (e.path, pattern[e.path]))
            ]  # fmt: skip
            own = [op for op in ops if op.layer in paths]
            for word in ("full", "full>lower", "lower"):
                rule = f"{word} {target}={name}"
                yield rule, told.get(rule, saved(own, word == "lower"))


def measured(wide: Wide, reference: Run, policy: str, rng: random.Random) -> Row:
    """Return pairs of whole steps over the reference's; two, if both are far behind.

    ``step`` are the seconds of the reference's.
    """
    own = wide.run(policy)
    own.warm_up()
    ratios: list[float] = []
    steps: list[float] = []
    while len(ratios) < PAIRS and not (len(ratios) == 2 and min(ratios) > 1.15):
        took = {}
        for side in rng.sample((0, 1), 2):
            run = (reference, own)[side]
            took[side] = sum([run.seconds() for _ in range(3)][1:])
        ratios.append(round(took[1] / took[0], 4))
        steps.append(took[0] / 2)
    return {"ratios": ratios, "step": median(steps)}


def measure(model: str, answer: str, path: Path, count: int) -> None:
    wide, rng = Wide(model), random.Random(0)
    known = {row["policy"]: row for row in rows_of(path) if row["model"] == model}
    reference = wide.run(answer)
    reference.warm_up()
    done: dict[str, float] = {}

    def take(policy: str, base: str, rule: str, saves: float | None) -> None:
        if len(done) >= count or not wide.is_new(policy):
            return
        row = known.get(policy)
        if row is None:
            try:
                found = measured(wide, reference, policy, rng)
            except (MpcoreError, RuntimeError, TypeError, ValueError):
                return  # dtypes meet that the framework does not add
            row = {"model": model, "answer": answer, "policy": policy, "base": base, "rule": rule,
                   "saves": saves, **found, "load": os.getloadavg()[0]}  # fmt: skip
            with path.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(row) + "\n")
        done[policy] = median(row["ratios"])

    take("float32", "", "", None)
    for base in BASES:
        take(base, base, "", 0.0)
    rules: dict[str, dict[str, float]] = {base: {} for base in BASES}
    for base in BASES:
        for rule, saves in wide.singles(base):
            rules[base][rule] = saves
            take(f"{base}; {rule}", base, rule, saves)
    pairs = []
    for base in BASES:
        own = sorted(rules[base], key=lambda r: done.get(f"{base}; {r}", 9.0))
        pairs += [(sum(own.index(r) for r in two), base, two) for two in combinations(own, 2)]
    for _, base, (one, other) in sorted(pairs):
        saves = rules[base][one] + rules[base][other]
        take(f"{base}; {one}; {other}", base, f"{one}; {other}", saves)
    print(model, len(done), "policies; the fastest:", sorted(done.items(), key=lambda d: d[1])[:5])


def again(model: str, answer: str, path: Path, out: Path) -> None:
    rows = [row for row in rows_of(path) if row["model"] == model and len(row["ratios"]) > 2]
    best = sorted(rows, key=lambda row: median(row["ratios"]))[:TOP]
    file = file_of(model, FOLDER)

    def do(case: Row) -> Row:
        found = rounds_of(file, None, AGAIN, 0, [answer, case["policy"]])
        ratios = [b / a for a, b in zip(found[answer], found[case["policy"]], strict=True)]
        return spread(ratios)

    cases = [{"model": model, "answer": answer, "policy": row["policy"]} for row in best]
    go_on(out, [case for case in cases if case["policy"] != answer], do)


def ranks(values: list[float]) -> Any:
    """Return ranks, ties at their mean."""
    array = np.asarray(values)
    order = np.argsort(np.argsort(array, kind="stable"), kind="stable").astype(float)
    for value in np.unique(array):
        order[array == value] = order[array == value].mean()
    return order


def spearman(a: list[float], b: list[float]) -> float:
    return float(np.corrcoef(ranks(a), ranks(b))[0, 1])


def foretold(rows: list[Row]) -> Row:
    """Return the rank correlation of what kernels foretell with what was measured, and its ceiling.

    The ceiling is the root of what two halves of the pairs agree to, as far as noise allows.
    """
    at = {row["policy"]: median(row["ratios"]) for row in rows}
    # the predicted saving is in seconds: over the answer's own step
    own = [row for row in rows if row["saves"] is not None and row["base"] in at]
    told = [at[row["base"]] - row["saves"] / row["step"] for row in own]
    seen = [median(row["ratios"]) for row in own]
    halves = [[fmean(row["ratios"][k::2]) for row in own] for k in (0, 1)]
    agree = spearman(*halves)
    reliability = max(0.0, 2 * agree / (1 + agree))
    found, ceiling = spearman(told, seen), sqrt(reliability)
    return {"policies": len(own), "spearman": round(found, 3), "ceiling": round(ceiling, 3),
            "of_ceiling": round(found / ceiling, 3) if ceiling else None}  # fmt: skip


def summary(rows: list[Row], checked: list[Row]) -> None:
    models = list(dict.fromkeys(row["model"] for row in rows))
    told = {}
    for model in models:
        own = [row for row in rows if row["model"] == model]
        top = [row for row in checked if row["model"] == model]
        best = min(top, key=lambda row: row["ratio"], default=None)
        told[model] = {
            "policies": len(own), "answer": own[0]["answer"], **foretold(own),
            "again": [[r["policy"], r["ratio"], r["low"], r["high"], r["load"]] for r in top],
            "best_over_answer": min(1.0, best["ratio"]) if best else None,
            "answer_within_2_percent": best is None or best["ratio"] >= 1 / 1.02,
        }  # fmt: skip
    loads = sorted(row["load"] for row in rows)
    keep("tune_wide", load_of_policies=[loads[0], median(loads), loads[-1]], models=told)


def main() -> None:
    what, *told = sys.argv[1:]
    if what == "summary":
        summary(rows_of(Path(told[0])), rows_of(Path(told[1])))
    elif what == "again":
        again(told[0], told[1], Path(told[2]), Path(told[3]))
    else:
        measure(told[0], told[1], Path(told[2]), int(told[3]) if len(told) > 3 else COUNT)


if __name__ == "__main__":
    main()

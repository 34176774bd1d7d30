"""Is tune's answer within 2 % of the best of 200 policies, and do kernels foretell their order?

    python tests/benchmarks/tune_wide.py measure MODEL ANSWER ROWS.jsonl [POLICIES [PROCESSES]]
    python tests/benchmarks/tune_wide.py again MODEL ANSWER ROWS.jsonl AGAIN.jsonl
    python tests/benchmarks/tune_wide.py foretell ROWS.jsonl FORETOLD.jsonl [MODEL ...]
    python tests/benchmarks/tune_wide.py summary ROWS.jsonl AGAIN.jsonl FORETOLD.jsonl [NAME]

``measure`` takes whole steps of 200 policies of different plans, each in three pairs with ANSWER,
what tune found, in each of four fresh PROCESSES: rules by op, by path and by type on top of three
named policies, then pairs of rules, those of the best single ones first. ``again`` takes those ten
that looked fastest in 40 pairs of five fresh processes each: the best of 200 is noise otherwise.
``foretell`` predicts each measured policy from its calls alone, as a search does, in a process of
its own. Halves of a row are of different processes: where a model's memory lies in one process
moves its time, and that is noise, not what there is to foretell. ``summary`` writes
results/NAME.json: tune_wide is of idle cores, tune_wide_busy of others, tune_wide_deep of 60
policies in up to twelve processes; FORETOLD may have several predictions of a model. MODEL is one
of tune_zoo; POLICIES below 200 are drawn at random.
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
from tune_rows import Row, fresh, go_on, rounds_of, rows_of, spread
from tune_zoo import file_of

from mpcore._lib.machine import cpu_here, keep_freed_memory
from mpcore.backend.parts import CALLS
from mpcore.errors import MpcoreError
from mpcore.policy.policy import Policy
from mpcore.tools.experiment.experiment import load_experiment
from mpcore.tools.experiment.setup import Setup
from mpcore.tools.profiling.prediction import Predictor
from mpcore.tools.profiling.stepping import Run
from mpcore.tools.profiling.timing import time_kernels_by
from mpcore.tools.tune.candidates import plan_key
from mpcore.tools.tune.moves import rules_of

FOLDER = Path(tempfile.gettempdir()) / "mpcore-tune-zoo"
BASES = ("mixed_bfloat16", "autocast_bfloat16", "portable_bfloat16")
COUNT, PAIRS, TOP, AGAIN = 200, 3, 10, 40
NAMED = 12
"""Pairs of a named policy in a process, of which a search has as many from its race."""
MEASURED = 4
"""Fresh processes that ``measure`` takes pairs in."""
DRAWS = 1000
PROCESSES = 5
"""Of fresh ones that ``again`` takes pairs in: where a model's memory lies in one process moves its
time by up to 8 % (the mixer in float32 beside itself in float32)."""


class Wide:
    """The policies of one model."""

    def __init__(self, model: str) -> None:
        import torch

        torch.set_num_threads(1)
        self.experiment = load_experiment(file_of(model, FOLDER))
        self.data = self.experiment.data()
        self.seen: set[object] = set()
        self.layers = self.run(BASES[0]).layers
        setup = Setup(self.experiment, "torch", self.data)
        own = setup.model()
        batch = next(iter(setup.batches(1)))
        self.calls = CALLS.of("torch")(own, setup.loss(own), batch)

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

    def singles(self, base: str) -> Iterator[str]:
        """Yield rules on top of a base: those of a search, and of single paths."""
        yield from rules_of(Policy.parse(base), self.layers, self.calls.calls)
        for path in sorted({call.layer for call in self.calls.calls if call.layer}):
            yield from (f"{word} path={path}" for word in ("full", "full>lower", "lower"))


def measured(wide: Wide, reference: Run, policy: str, rng: random.Random) -> Row:
    """Return pairs of whole steps over the reference's; two, if both of a rule's are far behind.

    ``step`` are the seconds of the reference's.
    """
    own = wide.run(policy)
    own.warm_up()
    ratios: list[float] = []
    steps: list[float] = []
    pairs = PAIRS if ";" in policy else NAMED
    while len(ratios) <= pairs and not (pairs == PAIRS and ratios[1:] and min(ratios) > 1.15):
        took = {}
        for side in rng.sample((0, 1), 2):
            run = (reference, own)[side]
            took[side] = sum([run.seconds() for _ in range(3)][1:])
        ratios.append(round(took[1] / took[0], 4))
        steps.append(took[0] / 2)
    del ratios[0]  # a fresh model is some per cent slower for a while
    return {"ratios": ratios, "step": median(steps)}


def measure(
    model: str, answer: str, path: Path, count: int = COUNT, processes: int = MEASURED
) -> None:
    for process in range(processes):
        fresh(__file__, "process", model, answer, str(path), str(count), str(process))


def process(model: str, answer: str, path: Path, count: int, number: int) -> None:
    """Measure all policies in this process: the first one finds them, the others take its."""
    wide, rng = Wide(model), random.Random(number)
    rows = [row for row in rows_of(path) if row["model"] == model]
    known = {row["policy"]: row for row in rows if row["process"] == number}
    reference = wide.run(answer)
    reference.warm_up()
    done: dict[str, float] = {}

    def take(policy: str, base: str, rule: str) -> None:
        row = known.get(policy)
        if row is None:
            try:
                found = measured(wide, reference, policy, rng)
            except (MpcoreError, RuntimeError, TypeError, ValueError):
                return  # dtypes meet that the framework does not add
            row = {"model": model, "answer": answer, "policy": policy, "base": base, "rule": rule,
                   "process": number, **found, "load": os.getloadavg()[0]}  # fmt: skip
            with path.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(row) + "\n")
        done[policy] = median(row["ratios"])

    if number:
        others = [row for row in rows if row["process"] == 0]
        for row in rng.sample(others, len(others)):
            take(row["policy"], row["base"], row["rule"])
    else:
        for policy, base, rule in policies(wide, count, done, rng):
            take(policy, base, rule)
    print(json.dumps(sorted(done.items(), key=lambda d: d[1])[:5]), flush=True)


def policies(
    wide: Wide, count: int, done: dict[str, float], rng: random.Random
) -> Iterator[tuple[str, str, str]]:
    """Yield policies of different plans until so many are done, with their base and rules."""

    def wanted(base: str, rule: str) -> Iterator[tuple[str, str, str]]:
        policy = f"{base}; {rule}" if rule else base
        if len(done) < count and wide.is_new(policy):
            yield policy, base, rule

    for base in ("float32", *BASES):
        yield from wanted(base, "")
    rules = {base: list(wide.singles(base)) for base in BASES}
    drawn = [(base, rule) for base in BASES for rule in rules[base]]
    if count < COUNT:
        drawn += [(b, "; ".join(rng.sample(own, 2))) for b, own in rules.items() for _ in own[::2]]
        random.Random(0).shuffle(drawn)
    for base, rule in drawn:
        yield from wanted(base, rule)
    pairs = []
    for base in BASES:
        own = sorted(rules[base], key=lambda r: done.get(f"{base}; {r}", 9.0))
        pairs += [(sum(own.index(r) for r in two), base, two) for two in combinations(own, 2)]
    for _, base, two in sorted(pairs):
        yield from wanted(base, "; ".join(two))


def joined(rows: list[Row]) -> list[Row]:
    """Return one row a policy that all processes measured: a median a process in ``medians``."""
    processes = len({row["process"] for row in rows})
    by: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda row: row["process"]):
        by.setdefault(row["policy"], []).append(row)
    return [
        own[0] | {"medians": [median(row["ratios"]) for row in own]}
        | {"step": median(row["step"] for row in own)}
        for own in by.values() if len(own) == processes
    ]  # fmt: skip


def again(model: str, answer: str, path: Path, out: Path) -> None:
    rows = joined([row for row in rows_of(path) if row["model"] == model])
    best = sorted(rows, key=lambda row: fmean(row["medians"]))[:TOP]
    file = file_of(model, FOLDER)

    def do(case: Row) -> Row:
        each = []
        for seed in range(PROCESSES):
            found = rounds_of(file, None, AGAIN // PROCESSES, seed, [answer, case["policy"]])
            each.append([b / a for a, b in zip(found[answer], found[case["policy"]], strict=True)])
        told = spread([ratio for one in each for ratio in one])
        return told | {"processes": [round(median(one), 3) for one in each]}

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


def foretell(models: list[str], path: Path, out: Path) -> None:
    """Write the seconds that calls alone take under each measured policy, a line a model."""
    for model in models or dict.fromkeys(row["model"] for row in rows_of(path)):
        if any(row["model"] == model for row in rows_of(out)):
            continue
        time_kernels_by(time.process_time)
        keep_freed_memory()  # as a search does
        wide, start = Wide(model), time.process_time()
        predictor = Predictor(wide.calls, wide.layers, "cpu")
        own = list(dict.fromkeys(r["policy"] for r in rows_of(path) if r["model"] == model))
        predictor.measure(own)
        row = {
            "model": model,
            "seconds": {policy: predictor(policy).seconds for policy in own},
            "cpu": round(time.process_time() - start, 1),
            "load": os.getloadavg()[0],
        }
        with out.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(row) + "\n")


def agreed(rows: list[Row], told: dict[str, float]) -> Row:
    """Return the rank correlation of what is foretold with what was measured, and its ceiling.

    The ceiling is the root of what two halves of the processes agree to, as far as noise allows.
    """
    seen = [fmean(row["medians"]) for row in rows]
    halves = [[fmean(row["medians"][k::2]) for row in rows] for k in (0, 1)]
    agree = spearman(*halves)
    reliability = max(0.0, 2 * agree / (1 + agree))
    found, ceiling = spearman([told[row["policy"]] for row in rows], seen), sqrt(reliability)
    return {"policies": len(rows), "spearman": round(found, 3), "ceiling": round(ceiling, 3),
            "of_ceiling": round(found / ceiling, 3) if ceiling else None}  # fmt: skip


def uncertain(rows: list[Row], told: dict[str, float]) -> list[float]:
    """Return the 5th and 95th hundredth of ``of_ceiling`` over policies drawn anew (bootstrap)."""
    rng = random.Random(0)
    drawn = ([rng.choice(rows) for _ in rows] for _ in range(DRAWS))
    found = sorted(agreed(own, told)["of_ceiling"] or 0.0 for own in drawn)
    return [found[DRAWS // 20], found[-DRAWS // 20]]


def learnt(rows: list[Row], told: dict[str, float]) -> dict[str, float]:
    """Return what is foretold with what lies between calls, learnt from the named policies' steps.

    As a search does: it has them from its race.
    """
    step = median(row["step"] for row in rows)
    at = {row["policy"]: step * fmean(row["medians"]) for row in rows if not row["rule"]}
    rest = {policy: seconds - told[policy] for policy, seconds in at.items()}
    return {row["policy"]: told[row["policy"]] + rest[row["base"] or row["policy"]] for row in rows}


def summary(rows: list[Row], checked: list[Row], foretold: list[Row], name: str) -> None:
    told: dict[str, Row] = {}
    for model in dict.fromkeys(row["model"] for row in rows):
        own = joined([row for row in rows if row["model"] == model])
        top = [row for row in checked if row["model"] == model]
        best = min(top, key=lambda row: row["ratio"], default=None)
        processes = len(own[0]["medians"])
        told[model] = {"policies": len(own), "processes": processes, "answer": own[0]["answer"]}
        predictions = [row for row in foretold if row["model"] == model]
        for row in predictions[:1]:
            told[model] |= agreed(own, learnt(own, row["seconds"]))
            told[model]["of_ceiling_90"] = uncertain(own, learnt(own, row["seconds"]))
            alone = agreed(own, row["seconds"])["of_ceiling"]
            told[model] |= {"of_ceiling_without_rest": alone, "cpu_seconds": row["cpu"]}
        if len(predictions) > 1:
            each = [agreed(own, learnt(own, row["seconds"])) for row in predictions]
            told[model]["of_ceiling_each"] = [one["of_ceiling"] for one in each]
        if best:
            told[model] |= {
                "again": [[r["policy"], r["ratio"], r["low"], r["high"], r["load"]] for r in top],
                "best_over_answer": min(1.0, best["ratio"]),
                "answer_within_2_percent": best["ratio"] >= 1 / 1.02,
            }
    loads = sorted(row["load"] for row in rows)
    spans = [loads[0], median(loads), loads[-1]]
    keep(name, cpu=cpu_here()[0], load_of_policies=spans, models=told)


def main() -> None:
    what, *told = sys.argv[1:]
    if what == "summary":
        summary(*(rows_of(Path(name)) for name in told[:3]), *(told[3:] or ["tune_wide"]))
    elif what == "foretell":
        foretell(told[2:], Path(told[0]), Path(told[1]))
    elif what == "again":
        again(told[0], told[1], Path(told[2]), Path(told[3]))
    elif what == "process":
        process(told[0], told[1], Path(told[2]), int(told[3]), int(told[4]))
    else:
        measure(told[0], told[1], Path(told[2]), *map(int, told[3:]))


if __name__ == "__main__":
    main()

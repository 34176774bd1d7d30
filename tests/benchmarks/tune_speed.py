"""Does tune find what is fast, and never what is slower: searches of ten models, measured again.

    python tests/benchmarks/tune_speed.py gpt|nothing|never|full ROWS.jsonl [RUNS [BUDGET]]

``gpt``: the GPT of the documentation, again and again. ``nothing``: models on which nothing gains.
``never``: ten models in three batches; the answer against each named policy, 60 pairs of a fresh
process. ``full``: searches with the proof. Each row goes to ROWS.jsonl, from which a second call
goes on; ``summary`` in the place of a part writes results/tune_speed.json from all rows. BUDGET is
the seconds of one search, for a busy machine; a row says what it was.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from results_file import keep
from tune_rows import Row, fresh, go_on, pairs_of, rows_of, spread
from tune_zoo import MODELS, NAMES, QUIET, file_of

import mpcore as mp

NAMED = ("float32", "mixed_bfloat16", "autocast_bfloat16")
RULED = ";"  # a policy with a rule of its own has one
FOLDER = Path(tempfile.gettempdir()) / "mpcore-tune-zoo"


def search(case: Row, budget: float | None) -> Row:
    """Search as the command does: in a process of its own, and the last duel in another."""
    fast = case["part"] != "full"
    file = file_of(case["model"], FOLDER)
    found = mp.tune(file, fast=fast, budget=budget, batch=case.get("batch"), threads=1)
    evidence = found.evidence
    cost = evidence["cost"][-1]
    measured = {e["policy"] for e in evidence["looked"]}
    measured |= {e["challenger"] for e in evidence["duel"]}
    return {
        "budget": budget, "policy": str(found.policy), "level": found.level,
        "of_float32": found.ratio, "best_named": evidence["best_named"], "steps": cost["steps"],
        "seconds": round(cost["seconds"], 1), "policies": len(measured),
        "stopped": [e["why"] for e in evidence.get("stopped", [])],
        "why": [e["why"] for e in evidence.get("unproven", [])],
    }  # fmt: skip


def again(case: Row, row: Row, others: tuple[str, ...], pairs: int) -> Row:
    """Return the answer's time over that of the fastest of others, of fresh processes."""
    file, seed = file_of(case["model"], FOLDER), case["run"]
    found = {
        other: spread(pairs_of(file, case.get("batch"), pairs, seed, other, row["policy"]))
        for other in others
        if other != row["policy"]
    }
    # the fastest of the others is the one that the answer looks worst against
    worst = max((one["ratio"] for one in found.values()), default=1.0)
    return {"again": found, "worst": max(worst, 1.0) if len(found) < len(others) else worst}


def do(case: Row, budget: float | None) -> Row:
    """Return the row of one case."""
    row = fresh(__file__, "one", json.dumps([case, budget]))
    if case["part"] == "gpt":
        row |= again(case, row, NAMED[1:], 20)
    elif case["part"] == "never":
        row |= again(case, row, NAMED, 60)
    return row


def cases(part: str, runs: int) -> Iterator[Row]:
    """Yield what a part does."""
    if part == "never":
        for times in (1, 0.25, 2):
            for name in NAMES:
                usual = 8 if name == "gpt" else MODELS[name][2]
                batch = max(1, int(usual * times))
                yield {"part": part, "model": name, "batch": batch, "run": 0}
        return
    models = {"gpt": ("gpt",), "nothing": QUIET, "full": NAMES}[part]
    for run in range(runs):
        for name in models:
            yield {"part": part, "model": name, "run": run}


def summary(rows: list[Row]) -> None:
    """Write what all rows come to."""
    by: dict[str, list[Row]] = {}
    for row in rows:
        by.setdefault(row["part"], []).append(row)
    gpt, nothing = by.get("gpt", []), by.get("nothing", [])
    never, full = by.get("never", []), by.get("full", [])
    loads = [row["load"] for row in rows]
    keep(
        "tune_speed", load_of_runs=[min(loads), max(loads)], threads=1, clock="process CPU time",
        gpt={"runs": len(gpt), "at_most_0.80": sum(r["worst"] <= 0.8 for r in gpt),
             "ratios": sorted(r["worst"] for r in gpt)},
        nothing={"runs": len(nothing), "named": sum(RULED not in r["policy"] for r in nothing),
                 "others": [[r["model"], r["policy"], r["load"]] for r in nothing
                            if RULED in r["policy"]]},
        never={"cases": len(never), "at_most_1.02": sum(r["worst"] <= 1.02 for r in never),
               "rows": [[r["model"], r["batch"], r["policy"], r["worst"], r["again"]]
                        for r in never]},
        full={"runs": len(full), "proven": sum(r["level"] == "proven" for r in full),
              "seconds": sorted(r["wall"] for r in full),
              "rows": [[r["model"], r["policy"], r["level"], r["wall"], r["steps"],
                        r["policies"], r["stopped"], r["why"]] for r in full]},
        fast_seconds=sorted(r["seconds"] for r in (*gpt, *nothing, *never)),
        most_steps=max(r["steps"] for r in rows), most_policies=max(r["policies"] for r in rows),
    )  # fmt: skip


def main() -> None:
    if sys.argv[1] == "one":
        print(json.dumps(search(*json.loads(sys.argv[2]))))
        return
    part, path = sys.argv[1], Path(sys.argv[2])
    if part == "summary":
        summary(rows_of(path))
        return
    runs = int(sys.argv[3]) if len(sys.argv) > 3 else 1
    budget = float(sys.argv[4]) if len(sys.argv) > 4 else None
    go_on(path, cases(part, runs), partial(do, budget=budget))


if __name__ == "__main__":
    main()

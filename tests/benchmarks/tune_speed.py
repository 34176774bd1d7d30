"""Does tune find what is fast, and never what is slower: searches of ten models, measured again.

    python tests/benchmarks/tune_speed.py gpt|nothing|never|full|all ROWS.jsonl [--runs N]
        [--budget SECONDS] [--until HH:MM]
    python tests/benchmarks/tune_speed.py summary ROWS.jsonl [NAME]

``gpt``: the GPT of the documentation, again and again. ``nothing``: models on which nothing gains.
``never``: ten models in three batches; the answer against each named policy in 60 rounds, 20 in
each of three fresh processes. ``full``: searches with the proof. ``all``: the first three, most
telling first: 20 times the GPT and 40 searches of nothing (12 of them are cases of ``never``), none
begun after ``--until``. Each row goes to ROWS.jsonl, from which a second call goes on, and says its
load; ``summary`` writes results/NAME.json: tune_speed is of idle cores, tune_speed_busy of others.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import median

from results_file import keep
from tune_rows import Row, fresh, go_on, rounds_of, rows_of, spread
from tune_zoo import MODELS, NAMES, QUIET, file_of

import mpcore as mp

NAMED = ("float32", "mixed_bfloat16", "autocast_bfloat16", "portable_bfloat16")
RULED = ";"  # a policy with a rule of its own has one
FOLDER = Path(tempfile.gettempdir()) / "mpcore-tune-zoo"


def search(case: Row, budget: float | None) -> Row:
    """Search as the command does: in a process of its own, and the confirmation in others."""
    fast = case["part"] != "full"
    file = file_of(case["model"], FOLDER)
    found = mp.tune(file, fast=fast, budget=budget, batch=case.get("batch"), threads=1)
    evidence = found.evidence
    cost = evidence["cost"][-1]
    measured = {e[side] for e in evidence["duel"] for side in ("champion", "challenger")}
    return {
        "budget": budget, "policy": str(found.policy), "level": found.level,
        "of_float32": found.ratio, "best_named": evidence["best_named"], "steps": cost["steps"],
        "seconds": round(cost["seconds"], 1), "policies": len(measured),
        "stopped": [e["why"] for e in evidence.get("stopped", [])],
        "why": [e["why"] for e in evidence.get("unproven", [])],
    }  # fmt: skip


def again(case: Row, row: Row, processes: int, rounds: int) -> Row:
    """Return the answer's time over that of each named policy, of fresh processes."""
    file, own = file_of(case["model"], FOLDER), row["policy"]
    others = [name for name in NAMED if name != own]
    met: dict[str, list[list[float]]] = {other: [] for other in others}
    for number in range(processes):
        seed = 10 * case["run"] + number
        found = rounds_of(file, case.get("batch"), rounds, seed, [own, *others])
        for other in others:
            ratios = [a / b for a, b in zip(found[own], found[other], strict=True)]
            met[other].append(ratios)
    told = {
        other: spread([ratio for one in each for ratio in one])
        | {"processes": [round(median(one), 3) for one in each]}
        for other, each in met.items()
    }
    # the fastest of the others is the one that the answer looks worst against
    worst = max(one["ratio"] for one in told.values())
    return {"again": told, "worst": worst if own not in NAMED else max(worst, 1.0)}


def do(case: Row, budget: float | None) -> Row:
    """Return the row of one case."""
    row = fresh(__file__, "one", json.dumps([case, budget]))
    if case["part"] == "never":
        row |= again(case, row, 3, 20)
    elif case["part"] == "gpt" or (case["part"] == "nothing" and RULED in row["policy"]):
        row |= again(case, row, 2, 6)
    return row


def cases(part: str, runs: int) -> Iterator[Row]:
    """Yield what a part does."""
    if part == "all":
        gpt, never = list(cases("gpt", 20)), list(cases("never", 1))
        nothing = list(cases("nothing", 7))  # and the twelve cases of those models in ``never``
        for some in (gpt[:8], never[:10], nothing[:12], never[10:20], gpt[8:14], nothing[12:20],
                     never[20:], gpt[14:], nothing[20:]):  # fmt: skip
            yield from some
        return
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


def summary(rows: list[Row], name: str) -> None:
    """Write what all rows come to."""
    by: dict[str, list[Row]] = {}
    for row in rows:
        by.setdefault(row["part"], []).append(row)
    gpt, never, full = (by.get(part, []) for part in ("gpt", "never", "full"))
    nothing = by.get("nothing", []) + [row for row in never if row["model"] in QUIET]
    loads = sorted(row["load_before"] for row in rows)
    searches = [r for r in rows if r["part"] != "full"]
    seconds = [r["seconds"] for r in searches]
    ruled = [r for r in nothing if RULED in r["policy"]]
    keep(
        name, cpu=cpu(), threads=1, clock="process CPU time", began=rows[0]["at"],
        load={"least": loads[0], "median": median(loads), "most": loads[-1]},
        gpt={"runs": len(gpt), "with_a_rule": sum(RULED in r["policy"] for r in gpt),
             "at_most_0.80": sum(r["worst"] <= 0.8 for r in gpt),
             "over_best_named": sorted(r["worst"] for r in gpt),
             "over": {o: sorted(r["again"][o]["ratio"] for r in gpt if o in r["again"])
                      for o in NAMED},
             "policies": sorted({r["policy"] for r in gpt})},
        nothing={"runs": len(nothing), "named": len(nothing) - len(ruled),
                 "others": [[r["model"], r["policy"], r["worst"], r["load"]] for r in ruled]},
        never={"cases": len(never), "at_most_1.02": sum(r["worst"] <= 1.02 for r in never),
               "rows": [[r["model"], r["batch"], r["policy"], r["worst"], r["load"],
                         {o: [a["ratio"], *a["processes"]] for o, a in r["again"].items()}]
                        for r in never]},
        full={"runs": len(full), "proven": sum(r["level"] == "proven" for r in full),
              "seconds": sorted(r["wall"] for r in full),
              "rows": [[r["model"], r["policy"], r["level"], r["wall"], r["steps"],
                        r["policies"], r["stopped"], r["why"]] for r in full]},
        fast={"searches": len(searches), "seconds": [min(seconds), median(seconds), max(seconds)],
              "steps": [min(r["steps"] for r in searches), median(r["steps"] for r in searches),
                        max(r["steps"] for r in searches)],
              "over_250_steps": [[r["model"], r.get("batch"), r["steps"]] for r in searches
                                 if r["steps"] > 250],
              "most_policies": max(r["policies"] for r in searches),
              "stopped": sum(bool(r["stopped"]) for r in searches)},
    )  # fmt: skip


def cpu() -> str:
    """Return the processor's name, where the system tells it."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    wanted = ("model name", "cpu family", "model")
    told = [line.partition(":") for line in lines if line.partition("\t")[0].strip() in wanted]
    return "; ".join(dict.fromkeys(f"{a.strip()} {b.strip()}" for a, _, b in told)) or (
        platform.processor()
    )


def main() -> None:
    if sys.argv[1] == "one":
        print(json.dumps(search(*json.loads(sys.argv[2]))))
        return
    parser = argparse.ArgumentParser()
    parser.add_argument("part")
    parser.add_argument("path", type=Path)
    parser.add_argument("name", nargs="?", default="tune_speed")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--budget", type=float)
    parser.add_argument("--until", default="")
    told = parser.parse_args()
    if told.part == "summary":
        summary(rows_of(told.path), told.name)
        return
    until = float("inf")
    if told.until:
        today = time.strftime("%Y-%m-%d ")
        until = time.mktime(time.strptime(today + told.until, "%Y-%m-%d %H:%M"))
    go_on(told.path, cases(told.part, told.runs), partial(do, budget=told.budget), until)


if __name__ == "__main__":
    main()

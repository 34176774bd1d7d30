"""Planted faults by the hundred: how many are located, how many named, how many told wrongly.

    python tests/divergence/campaign.py FAULTS [--first N] [--models tuned|held|newer|all]
        [--only faults,more_faults,unseen_faults,newer_faults]

Prints a line a fault as it is judged, and the sums at the end. Nightly; by day the tests of this
folder draw a few.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from pathlib import Path

if __name__ == "__main__":
    here = Path(__file__).parents[1]
    sys.path[:0] = [str(here / name) for name in ("divergence", "zoo", "backends")]

import faults  # noqa: F401  # registers them
import more_faults  # noqa: F401
import newer
import newer_faults  # noqa: F401
import planting
import torch
import unseen
import unseen_faults  # noqa: F401

MODELS = {
    "tuned": unseen.TUNED,
    "held": unseen.HELD_OUT,
    "newer": newer.NAMES,
    "all": (*unseen.TUNED, *unseen.HELD_OUT, *newer.NAMES, "gan"),
}


def judged(one: planting.Planted) -> dict[str, object]:
    """Return what was planted, what was found, and whether that is right."""
    verdict, expected = one.verdict()
    layers, kinds = (
        (word,) if isinstance(word, str) else word for word in (expected.layer, expected.kind)
    )
    cause = next(iter(verdict.root_causes), None)
    found = cause.kind if cause else "nothing"
    where = verdict.first.layer if verdict.first else "nowhere"
    return {
        "number": one.number,
        "fault": one.fault,
        "model": one.name,
        "policy": str(one.policy),
        "layers": layers,
        "kinds": kinds,
        "where": where,
        "found": found,
        "fix": cause.fix if cause else "",
        "located": where in layers,
        "named": found in kinds,
        "wrong": found not in (*kinds, "unknown", "nothing"),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("faults", type=int)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--models", choices=MODELS, default="all")
    parser.add_argument("--only", default="", help="modules of faults, with commas")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    names = [
        name
        for name, function in planting.FAULTS.items()
        if not asked.only or function.__module__ in asked.only.split(",")
    ]
    numbers = range(asked.first, asked.first + asked.faults)
    sums = dict.fromkeys(("located", "named", "wrong"), 0)
    count = 0
    for number in numbers:
        for one in planting.planted(range(number, number + 1), MODELS[asked.models], names):
            start = time.perf_counter()
            try:
                told = judged(one)
            except Exception as exc:  # one that cannot be run is a line too, and counts against us
                told = {"number": number, "fault": one.fault, "model": one.name, "error": repr(exc)}
            told["seconds"] = round(time.perf_counter() - start, 1)
            count += 1
            for name in sums:
                sums[name] += bool(told.get(name))
            print(json.dumps(told), flush=True)
    print(json.dumps({"faults": count, **sums}), flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # of the frameworks, about what is planted
    main()

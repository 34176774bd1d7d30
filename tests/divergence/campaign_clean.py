"""Faithful pairs by the dozen: every fault that is found in them is a false alarm.

    python tests/divergence/campaign_clean.py torch PAIRS [--first N]
    python tests/divergence/campaign_clean.py tensorflow|mindspore

Torch against itself with other kernels, drawn; a port of every model under every policy against
torch. Prints a line a pair, and the sums at the end. Nightly.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import tempfile
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    here = Path(__file__).parents[1]
    sys.path[:0] = [str(here / name) for name in ("divergence", "zoo", "backends")]

import unseen

POLICIES = ("float32", "mixed_bfloat16", "mixed_float16")


def of_torch(numbers: range) -> Iterator[tuple[dict[str, Any], Any]]:
    import clean
    import torch

    torch.set_num_threads(1)
    for pair in clean.pairs(numbers):
        names = ("number", "change", "model", "policy", "adam")
        yield dict(zip(names, pair, strict=True)), lambda pair=pair: clean.judged(*pair)


def of_ports(framework: str) -> Iterator[tuple[dict[str, Any], Any]]:
    import porting

    plants = importlib.import_module(f"port_faults_{framework}")
    known = importlib.import_module(f"unseen_{framework}").ENTRIES
    models = [name for name in (*unseen.TUNED, *unseen.HELD_OUT) if name in known]
    with tempfile.TemporaryDirectory() as folder:
        for policy, model in product(POLICIES, models):

            def verdict(policy: str = policy, model: str = model) -> Any:
                place = Path(folder) / policy
                reference = porting.references(place, [model], policy)[model]
                own = porting.port(framework, model)
                return porting.judged(reference, own, plants.optimizer(own), policy)

            yield {"model": model, "policy": policy}, verdict


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("framework", choices=("torch", "tensorflow", "mindspore"))
    parser.add_argument("pairs", type=int, nargs="?", default=60)
    parser.add_argument("--first", type=int, default=0)
    asked = parser.parse_args()
    count = alarms = noisy = refused = 0
    numbers = range(asked.first, asked.first + asked.pairs)
    drawn = of_torch(numbers) if asked.framework == "torch" else of_ports(asked.framework)
    for told, judge in drawn:
        try:
            verdict = judge()
            told |= {"verdict": verdict.verdict, "causes": [c.fix for c in verdict.root_causes]}
            alarms += verdict.verdict.startswith("different") or bool(verdict.root_causes)
            noisy += verdict.verdict.startswith("too noisy")
            count += 1
        except Exception as exc:  # a policy that a framework refuses for a layer
            told["error"] = repr(exc)[:200]
            refused += 1
        print(json.dumps(told), flush=True)
    print(
        json.dumps({"pairs": count, "alarms": alarms, "noisy": noisy, "not run": refused}),
        flush=True,
    )


if __name__ == "__main__":
    main()

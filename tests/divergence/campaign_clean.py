"""Faithful pairs by the dozen: every fault that is found in them is a false alarm.

    python tests/divergence/campaign_clean.py torch PAIRS [--first N]
    python tests/divergence/campaign_clean.py tensorflow|mindspore PAIRS [--first N]

Torch against itself with other kernels, drawn; ports against torch, drawn: every model under every
policy with one batch, then with another one. Prints a line a pair, and the sums at the end.
Nightly.
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


def of_ports(framework: str, numbers: range) -> Iterator[tuple[dict[str, Any], Any]]:
    import fresh
    import porting

    plants = importlib.import_module(f"port_faults_{framework}")
    if framework == "mindspore":
        importlib.import_module(framework).runtime.launch_blocking()  # ten times faster here
    known = importlib.import_module(f"fresh_{framework}").ENTRIES
    models = [name for name in (*fresh.HELD_OUT, *unseen.TUNED) if name in known and name != "gan"]
    pairs = list(product(POLICIES, models))
    with tempfile.TemporaryDirectory() as folder:
        references: dict[tuple[int, str], Any] = {}
        for number in numbers:
            turn, (policy, model) = number // len(pairs), pairs[number % len(pairs)]
            seed = porting.SEED + turn

            def verdict(policy: str = policy, model: str = model, seed: int = seed) -> Any:
                if (seed, policy) not in references:
                    place = Path(folder) / f"{seed}-{policy}"
                    references[seed, policy] = porting.references(place, models, policy, seed)
                own = porting.port(framework, model, seed)
                optimizer = plants.optimizer(own)
                return porting.judged(references[seed, policy][model], own, optimizer, policy)

            yield {"number": number, "model": model, "policy": policy}, verdict


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("framework", choices=("torch", "tensorflow", "mindspore"))
    parser.add_argument("pairs", type=int, nargs="?", default=60)
    parser.add_argument("--first", type=int, default=0)
    asked = parser.parse_args()
    count = alarms = noisy = refused = 0
    numbers = range(asked.first, asked.first + asked.pairs)
    drawn = of_torch(numbers) if asked.framework == "torch" else of_ports(asked.framework, numbers)
    for told, judge in drawn:
        try:
            verdict = judge()
            kinds = {cause.kind for cause in verdict.root_causes}
            told |= {"verdict": verdict.verdict, "causes": [c.fix for c in verdict.root_causes]}
            told["known"] = kinds == {"known difference"}  # a defect that is there, told as such
            parted = verdict.verdict.startswith("different") or bool(verdict.root_causes)
            alarms += parted and not told["known"]
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

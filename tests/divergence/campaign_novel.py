"""Mistakes written into models, one by one, judged against torch's evidence of another process.

    python tests/divergence/campaign_novel.py torch|tensorflow|mindspore [--seed N] [--only NAME]
        [--set novel|recent] [--clean]

Every mistake is made in its first model (those of the update in one drawn from the seed) under
float32, mixed_bfloat16, or what the seed draws; ``--clean`` plants nothing: what is found then is
a false alarm. Prints a line a fault, and the sums at the end. Nightly.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import sys
import tempfile
import time
import zlib
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    here = Path(__file__).parents[1]
    sys.path[:0] = [str(here / name) for name in ("divergence", "zoo", "backends")]

import numpy as np
import porting

POLICIES = ("float32", "mixed_bfloat16")
SHOWN_IN_FLOAT32 = ("loss summed in bfloat16",)


def cases(plants: Any, seed: int) -> list[tuple[str, str, str]]:
    """Return (fault, model, policy) of every mistake."""
    found = []
    for name, (models, _, _) in plants.FAULTS.items():
        rng = np.random.default_rng(zlib.crc32(f"{name} {seed}".encode()))
        policy = "float32" if name in SHOWN_IN_FLOAT32 else str(rng.choice(POLICIES))
        found.append((name, str(rng.choice(models)), policy))
    return found


def told(
    plants: Any, framework: str, case: tuple[str, str, str], references: Any, seed: int
) -> dict:
    """Return what was planted, what was found, and whether that is right."""
    name, model, policy = case
    entries = importlib.import_module(f"{plants.__name__}_{framework}")
    clean = name not in plants.FAULTS
    with contextlib.nullcontext() if clean else plants.planting(name):
        own = porting.port(framework, model, seed)
        if name == "kernel turned":
            entries.turn_kernel(own.model)
        verdict = porting.judged(references[policy][model], own, entries.optimizer(own), policy)
    cause = next(iter(verdict.root_causes), None)
    where = verdict.first.layer if verdict.first else "nowhere"
    kind = cause.kind if cause else "nothing"
    line = {"fault": name, "model": model, "policy": policy, "where": where, "found": kind}
    line |= {"verdict": verdict.verdict, "fix": cause.fix if cause else ""}
    if clean:
        return line | {"causes": [c.fix for c in verdict.root_causes]}
    line.pop("verdict")
    _, places, kinds = plants.FAULTS[name]
    line |= {"layers": places, "kinds": kinds, "located": where in places}
    return line | {"named": kind in kinds, "wrong": kind not in (*kinds, "unknown", "nothing")}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("framework", choices=("torch", "tensorflow", "mindspore"))
    parser.add_argument("--seed", type=int, default=porting.SEED)
    parser.add_argument("--only", default="")
    parser.add_argument("--set", choices=("novel", "recent"), default="novel")
    parser.add_argument("--clean", action="store_true")
    asked = parser.parse_args()
    if asked.framework == "mindspore":
        importlib.import_module(asked.framework).runtime.launch_blocking()  # ten times faster here
    plants = importlib.import_module(asked.set)
    wanted = [c for c in cases(plants, asked.seed) if asked.only in c[0]]
    if asked.clean:
        wanted = [("", m, p) for p in (*POLICIES, "mixed_float16") for m in plants.NAMES]
    sums, count = dict.fromkeys(("located", "named", "wrong"), 0), 0
    with tempfile.TemporaryDirectory() as folder:
        references = {
            policy: porting.references(
                Path(folder) / policy, list(plants.NAMES), policy, asked.seed
            )
            for policy in dict.fromkeys(policy for _, _, policy in wanted)
        }
        for case in wanted:
            start = time.perf_counter()
            try:
                line = told(plants, asked.framework, case, references, asked.seed)
            except Exception as exc:  # a line too, and it counts against us
                line = dict(zip(("fault", "model", "policy"), case, strict=True))
                line["error"] = repr(exc)[:300]
            count += 1
            for key in sums:
                sums[key] += bool(line.get(key))
            line["seconds"] = round(time.perf_counter() - start, 1)
            print(json.dumps(line), flush=True)
    print(json.dumps({"faults": count, **sums}), flush=True)


if __name__ == "__main__":
    main()

"""Planted mistakes of ports to Keras or MindSpore by the dozen, judged against torch's evidence.

    python tests/divergence/campaign_ports.py tensorflow|mindspore FAULTS [--first N]
        [--models tuned|held|newer|fresh|all] [--newer | --fresh]

Prints a line a fault, and the sums at the end. Nightly; by day ``test_tensorflow.py`` and
``test_mindspore.py`` plant some by hand.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import tempfile
import zlib
from pathlib import Path

if __name__ == "__main__":
    here = Path(__file__).parents[1]
    sys.path[:0] = [str(here / name) for name in ("divergence", "zoo", "backends")]

import fresh
import newer
import numpy as np
import porting
import unseen

POLICIES = ("float32", "float32", "mixed_bfloat16")
SHOWN_IN_FLOAT32 = ("low", "rounded_weights")  # mixed_bfloat16 rounds the same numbers anyway
NONE = {
    "tensorflow": ("cnn", "gan", "gpt"),
    "mindspore": ("cnn", "gan", "gpt", "convgru", "volume"),
}
"""Models that draw random numbers, have two optimizers, tied weights, or are not there."""


def drawn(number: int, models: list[str], families: dict) -> tuple | None:
    """Return (name, policy, family, planted port, optimizer, place, kinds); None for none."""
    rng = np.random.default_rng(zlib.crc32(f"port {number}".encode()))
    name = list(families)[number % len(families)]
    policies = ("float32",) if name in SHOWN_IN_FLOAT32 else POLICIES
    for _ in range(40):
        model, policy = str(rng.choice(models)), str(rng.choice(policies))
        own = porting.port(FRAMEWORK, model)
        found = families[name](own, rng)
        if found is not None:
            constants, place, kinds = found
            return model, policy, name, own, constants, place, kinds
    return None


FRAMEWORK = ""


def main() -> None:
    global FRAMEWORK  # of the whole process
    parser = argparse.ArgumentParser()
    parser.add_argument("framework", choices=NONE)
    parser.add_argument("faults", type=int)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument(
        "--models", choices=("tuned", "held", "newer", "fresh", "all"), default="all"
    )
    parser.add_argument("--newer", action="store_true", help="the newer families")
    parser.add_argument("--fresh", action="store_true", help="the freshest families")
    asked = parser.parse_args()
    FRAMEWORK = asked.framework
    if FRAMEWORK == "mindspore":
        importlib.import_module(FRAMEWORK).runtime.launch_blocking()  # ten times faster here
    wanted = {"tuned": unseen.TUNED, "held": unseen.HELD_OUT, "newer": newer.NAMES}
    wanted["fresh"] = fresh.NAMES
    chosen = wanted.get(asked.models, (*unseen.TUNED, *fresh.HELD_OUT))
    models = [name for name in chosen if name not in NONE[FRAMEWORK]]
    file = "fresh_faults" if asked.fresh else "port_faults"
    plants = importlib.import_module(f"{file}_{FRAMEWORK}")
    families = plants.NEWER if asked.newer else plants.FAMILIES
    sums = dict.fromkeys(("located", "named", "wrong"), 0)
    count = 0
    with tempfile.TemporaryDirectory() as folder:
        references = {
            policy: porting.references(Path(folder) / policy, models, policy)
            for policy in dict.fromkeys(POLICIES)
        }
        for number in range(asked.first, asked.first + asked.faults):
            found = drawn(number, models, families)
            if found is None:
                continue
            model, policy, name, own, constants, place, kinds = found
            told = {"number": number, "fault": name, "model": model, "policy": policy}
            try:
                optimizer = plants.optimizer(own, **constants)
                verdict = porting.judged(references[policy][model], own, optimizer, policy)
                cause = next(iter(verdict.root_causes), None)
                where = verdict.first.layer if verdict.first else "nowhere"
                kind = cause.kind if cause else "nothing"
                told |= {"layers": place, "kinds": kinds, "where": where, "found": kind}
                told |= {"fix": cause.fix if cause else ""}
                told |= {"located": where in place, "named": kind in kinds}
                told["wrong"] = kind not in (*kinds, "unknown", "nothing")
            except Exception as exc:  # a line too, and it counts against us
                told["error"] = repr(exc)[:300]
            count += 1
            for key in sums:
                sums[key] += bool(told.get(key))
            print(json.dumps(told), flush=True)
    print(json.dumps({"faults": count, **sums}), flush=True)


if __name__ == "__main__":
    main()

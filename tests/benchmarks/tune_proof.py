"""What trains and what does not: latent overflows and shifted logits, each through a whole search.

    python tests/benchmarks/tune_proof.py latent|offset|plain ROWS.jsonl RUNS

``latent``: an exp without a maximum that is inside of float16's range at first and overflows while
it trains; the search must find it by training and prove a policy with 16 bits left in it.
``offset``: logits 200 to 500 away, wrong when evaluated in bfloat16 while the weights train well;
the proof must say "evaluate in float32". ``plain``: the same nets without, of which it must not.
``summary`` in the place of a part writes results/tune_proof.json from all rows.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from results_file import keep
from torch import nn
from tune_rows import Row, go_on, rows_of

import mpcore as mp
from mpcore.tools.experiment.experiment import Experiment
from mpcore.tools.tune.bench import Bench
from mpcore.tools.tune.prover import Prover
from mpcore.tools.tune.task import Task

WIDTH, CLASSES, STEPS = 24, 8, 120
FIRST = {"latent": 300, "offset": 400, "plain": 400}
"""Seeds: the rules were made on offsets of 300 to 309, and are scored on others."""


class Soft(nn.Module):
    """A softmax without a maximum: its sums leave float16's range when its inputs have grown."""

    def __init__(self, times: float) -> None:
        super().__init__()
        self.times = times

    def forward(self, x):
        e = torch.exp(self.times * x)
        return e / e.sum(-1, keepdim=True)


class Offset(nn.Module):
    """Adds a constant to all logits, which a softmax does not see but 16 bits do."""

    def __init__(self, size: float) -> None:
        super().__init__()
        self.size = size

    def forward(self, x):
        return x + self.size


def net(part: str, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    inner = [nn.Linear(WIDTH, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, WIDTH)]
    tail: list[nn.Module] = [Soft(2.0), nn.Linear(WIDTH, CLASSES)]
    if part != "latent":
        size = 200.0 + 100 * (seed % 4) if part == "offset" else 0.0
        tail = [nn.Linear(WIDTH, CLASSES), Offset(size)]
    return nn.Sequential(*inner, *tail)


def experiment(part: str, seed: int) -> Experiment:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(384, WIDTH)).astype(np.float32)
    y = (x[:, :CLASSES] + 0.3 * rng.normal(size=(384, CLASSES))).argmax(1).astype(np.int32)
    data = mp.Data(x[:256], y[:256], x[256:], y[256:])
    rate = 2e-2 if part == "latent" else 3e-3
    return Experiment(
        f"{part} {seed}", Path("(none)"), lambda: data, "cross_entropy",
        mp.OptimizerSpec("adamw", learning_rate=rate), {"torch": partial(net, part, seed)},
        batch=16, steps=STEPS,
    )  # fmt: skip


def do(case: Row) -> Row:
    """Prove the named policy, and what cures it, without the duels before."""
    torch.set_num_threads(1)
    dtype = "float16" if case["part"] == "latent" else "bfloat16"
    told: list[dict[str, Any]] = []
    one = experiment(case["part"], case["seed"])
    bench = Bench(one, Task("torch", budget=1e6), lambda **e: told.append(e), lambda _: ())
    answer = Prover(bench).proven([f"mixed_{dtype}", "float32"])
    proofs = [e for e in bench.log.entries if e["kind"] == "proof"]
    return {
        "answer": answer, "policies": [p["policy"] for p in proofs],
        "passed": [p["passed"] for p in proofs], "skipped": [p["skipped"] for p in proofs],
        "flagged": any(p["evaluate_in_float32"] for p in proofs),
        "losses": [[p["loss"], p["in_float32"], *p["float32"]] for p in proofs],
        "band": proofs[-1]["band"] if proofs else None,
        "rules": [p["rule"] for p in proofs],
    }  # fmt: skip


def cases(part: str, runs: int) -> Iterator[Row]:
    for seed in range(runs):
        yield {"part": part, "seed": FIRST[part] + seed}


def summary(rows: list[Row]) -> None:
    latent = [r for r in rows if r["part"] == "latent"]
    offset = {part: [r for r in rows if r["part"] == part] for part in ("offset", "plain")}
    shown = [r for r in latent if r["skipped"] and r["skipped"][0]]
    keep(
        "tune_proof", steps=STEPS,
        latent={
            "nets": len(latent), "that_overflowed": len(shown),
            "found_and_proven": sum(r["answer"] not in ("", "float32") for r in shown),
            "rows": [[r["seed"], r["answer"], r["skipped"], r["rules"]] for r in latent],
        },
        **{part: {
            "nets": len(found), "flagged": sum(r["flagged"] for r in found),
            "passed": sum(r["passed"][-1] for r in found),
            "rows": [[r["seed"], r["answer"], r["flagged"], r["passed"], r["losses"], r["band"]]
                     for r in found],
        } for part, found in offset.items()},
    )  # fmt: skip


def main() -> None:
    part, path = sys.argv[1], Path(sys.argv[2])
    if part == "summary":
        summary(rows_of(path))
        return
    go_on(path, cases(part, int(sys.argv[3])), do)


if __name__ == "__main__":
    main()

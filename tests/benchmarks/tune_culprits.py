"""Planted culprits: how many nets tune's delta debugging gets exactly right, and in how many steps.

    python tests/benchmarks/tune_culprits.py NETS CLEAN FIRST_SEED [ROWS.jsonl [float16]]

Each net is a residual one of 60 or more layers, in bfloat16 by real kernels, or in float16, with 0
to 5 layers that lose their digits in 16 bits or leave float16's range. One line of JSON a net, also
into ROWS.jsonl, from which a second call goes on; results/tune_culprits.json, or
tune_culprits_float16.json, at the end. Clean nets, of other seeds, come first.
"""

from __future__ import annotations

import json
import os
import random
import sys
from pathlib import Path

import numpy as np
import torch
from results_file import keep
from torch import nn

from mpcore import Data, OptimizerSpec
from mpcore.tools.experiment.experiment import Experiment
from mpcore.tools.tune.accuracy import Accuracy
from mpcore.tools.tune.bench import Bench
from mpcore.tools.tune.task import Task

WIDTH = 24


class Cancels(nn.Module):
    """Adds a large constant and takes it off again."""

    def __init__(self, size: float) -> None:
        super().__init__()
        self.size = size

    def forward(self, x):
        return (x + self.size) - self.size


class HandMadeNorm(nn.Module):
    """Takes a variance as the difference of two large numbers."""

    def __init__(self, size: float) -> None:
        super().__init__()
        self.size = size

    def forward(self, x):
        y = x + self.size
        var = (y * y).mean(-1, keepdim=True) - y.mean(-1, keepdim=True) ** 2
        return (y - y.mean(-1, keepdim=True)) / (var.abs() + 0.1).sqrt()


class Drifts(nn.Module):
    """A running average of many small steps."""

    def __init__(self, size: float) -> None:
        super().__init__()
        self.share = 0.002 / size

    def forward(self, x):
        held = torch.ones_like(x)
        for _ in range(64):
            held = held + self.share * (x - held)
        left = (1 - self.share) ** 64
        return (held - left) / (1 - left)


class Squares(nn.Module):
    """Divides by a root mean square that leaves float16's range on its way."""

    def __init__(self, size: float) -> None:
        super().__init__()
        self.size = size

    def forward(self, x):
        y = x * self.size
        return y / ((y * y).mean(-1, keepdim=True) + 1.0).sqrt()


KINDS = {"cancels": (Cancels, 300.0), "norm": (HandMadeNorm, 60.0), "drifts": (Drifts, 1.0)}
KINDS_FLOAT16 = {"cancels": (Cancels, 3000.0), "squares": (Squares, 600.0)}


class Residual(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.up, self.inner, self.down = nn.Linear(WIDTH, WIDTH), inner, nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return x + 0.2 * self.down(self.inner(self.up(x)))


def net(seed: int, *, clean: bool, dtype: str = "bfloat16") -> tuple[nn.Module, list[str]]:
    rng = random.Random(seed)
    torch.manual_seed(seed)
    blocks = 20 + seed % 3
    planted = [] if clean else sorted(rng.sample(range(blocks), rng.randint(0, 5)))
    parts = []
    for place in range(blocks):
        inner: nn.Module = nn.Tanh()
        if place in planted:
            kinds = KINDS if dtype == "bfloat16" else KINDS_FLOAT16
            make, size = kinds[rng.choice(sorted(kinds))]
            inner = make(size * rng.uniform(0.8, 2.0))
        parts.append(Residual(inner))
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), *parts, nn.Linear(WIDTH, 8))
    return model, [f"{place + 1}.inner" for place in planted]


def found_in(seed: int, dtype: str, *, clean: bool) -> dict[str, object]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(96, WIDTH)).astype(np.float32)
    y = np.abs(x[:, :8]).argmax(1).astype(np.int32)
    _, planted = net(seed, clean=clean, dtype=dtype)
    experiment = Experiment(
        f"net {seed}", Path("(none)"), lambda: Data(x, y, x[:0], y[:0]), "cross_entropy",
        OptimizerSpec("adamw", learning_rate=1e-3),
        {"torch": lambda: net(seed, clean=clean, dtype=dtype)[0]}, batch=16,
    )  # fmt: skip
    bench = Bench(experiment, Task("torch", budget=1e6), lambda **_: None, lambda _: ())
    accuracy = Accuracy(bench)
    kept = accuracy._culprits(dtype)
    entry = next(e for e in bench.log.entries if e["kind"] == "culprits")
    return {
        "seed": seed, "clean": clean, "planted": planted, "found": kept, "exact": kept == planted,
        "steps": entry["evaluations"], "of": entry["of"],
    }  # fmt: skip


def main() -> None:
    nets, clean, first = map(int, sys.argv[1:4])
    torch.set_num_threads(1)
    path = Path(sys.argv[4]) if len(sys.argv) > 4 else None
    dtype = sys.argv[5] if len(sys.argv) > 5 else "bfloat16"
    text = path.read_text(encoding="utf-8") if path is not None and path.exists() else ""
    rows: list[dict] = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    known = {row["seed"] for row in rows}
    for number in range(nets + clean):
        seed = first + (number + nets) % (nets + clean)
        if seed in known:
            continue
        rows.append(found_in(seed, dtype, clean=seed >= first + nets))
        line = json.dumps(rows[-1])
        print(line, flush=True)
        if path is not None:
            with path.open("a", encoding="utf-8") as stream:
                stream.write(line + "\n")
    own, plain = [r for r in rows if not r["clean"]], [r for r in rows if r["clean"]]
    print(
        f"{sum(r['exact'] for r in own)} of {len(own)} nets exact, "
        f"{sum(r['exact'] for r in plain)} of {len(plain)} clean ones without a culprit, "
        f"at most {max(r['steps'] for r in rows)} steps; load {os.getloadavg()[0]:.1f}"
    )
    name = "tune_culprits" if dtype == "bfloat16" else f"tune_culprits_{dtype}"
    keep(
        name, seeds=[first, first + nets + clean], nets=len(own), clean=len(plain),
        exact=sum(r["exact"] for r in own), clean_without=sum(r["exact"] for r in plain),
        most_steps=max(r["steps"] for r in rows), layers=[min(r["of"] for r in rows),
        max(r["of"] for r in rows)], wrong=[r for r in rows if not r["exact"]],
    )  # fmt: skip


if __name__ == "__main__":
    main()

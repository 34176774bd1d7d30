"""What an op list of our own costs in torch, over the device's own list, on one CPU thread.

A step is forward, backward and fused AdamW of a small model in bfloat16 autocast. Compared are
autocast alone, the same with casts written by hand where the portable list keeps float32 (the
least that such a list can cost), functions of torch replaced for the region, an empty
``TorchFunctionMode`` (the floor of any mode), and mpcore's lists. CPU time of the process, the
variants in turn, median and minimum.

    python tests/benchmarks/op_list_overhead.py [--rounds 60]
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import time

import torch
import torch.nn.functional as F  # noqa: N812
from results_file import keep
from torch import nn
from torch.overrides import TorchFunctionMode

import mpcore as mp

WIDTH, HEADS, LENGTH, WORDS = 128, 4, 32, 64


class Block(nn.Module):
    """A transformer block; ``by_hand`` writes the portable list's casts into it."""

    def __init__(self, *, by_hand: bool) -> None:
        super().__init__()
        self.by_hand = by_hand
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        batch, length, _ = x.shape
        qkv = self.qkv(self.norm1(self._full(x))).view(batch, length, 3, HEADS, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        weights = F.softmax(self._full(q @ k.transpose(-1, -2) * k.shape[-1] ** -0.5), -1)
        x = x + self.proj((weights @ v).transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.down(F.gelu(self.up(self.norm2(self._full(x)))))

    def _full(self, x):
        return x.float() if self.by_hand else x


def transformer(*, by_hand: bool) -> nn.Module:
    blocks = [Block(by_hand=by_hand) for _ in range(2)]
    return nn.Sequential(nn.Embedding(WORDS, WIDTH), *blocks, nn.Linear(WIDTH, WORDS))


def mlp(*, by_hand: bool) -> nn.Module:
    del by_hand  # every op of it is treated alike by both lists
    layers = [nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(256, WORDS))


class Empty(TorchFunctionMode):
    """A mode that catches nothing."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def replaced():
    """Functions of torch, replaced for the region in the whole process."""
    before = F.softmax, F.layer_norm
    F.softmax = lambda x, *args, **kwargs: before[0](x.float(), *args, **kwargs)
    F.layer_norm = lambda x, *args, **kwargs: before[1](x.float(), *args, **kwargs)
    try:
        yield
    finally:
        F.softmax, F.layer_norm = before


@contextlib.contextmanager
def autocast(inner=contextlib.nullcontext):
    with torch.autocast("cpu", torch.bfloat16), inner():
        yield


def variants(make, batch):
    """Return, by name, a function that takes one step."""
    found = {}
    for name, region, by_hand in (
        ("native autocast", autocast, False),
        ("by hand", autocast, True),
        ("replaced functions", lambda: autocast(replaced), False),
        ("empty mode", lambda: autocast(Empty), False),
        ("full op=softmax", "autocast_bfloat16; full op=softmax", False),
        ("op_list=portable", "autocast_bfloat16, op_list=portable", False),
    ):
        torch.manual_seed(0)
        model = make(by_hand=by_hand)
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        if isinstance(region, str):
            region = prepared(model, region)
        found[name] = stepper(model, optimizer, region, batch)
    return found


def prepared(model, text):
    twin = torch.optim.AdamW(model.parameters(), fused=True)
    return mp.prepare(model, twin, mp.Policy.parse(text)).autocast


def stepper(model, optimizer, region, batch):
    x, y = batch

    def step():
        with region():
            loss = F.cross_entropy(model(x).flatten(0, -2), y.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def measure(steps, rounds):
    times = {name: [] for name in steps}
    for step in steps.values():
        for _ in range(3):
            step()
    for _ in range(rounds):
        for name, step in steps.items():
            begin = time.process_time()
            step()
            times[name].append((time.process_time() - begin) * 1e3)
    base = times["native autocast"]
    return {
        name: {
            "median_ms": round(statistics.median(taken), 3),
            "min_ms": round(min(taken), 3),
            "over_native": round(statistics.median(taken) / statistics.median(base), 3),
            "over_native_min": round(min(taken) / min(base), 3),
        }
        for name, taken in times.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=60)
    options = parser.parse_args()
    torch.set_num_threads(1)
    tokens = torch.arange(16 * LENGTH).reshape(16, LENGTH) % WORDS
    values = torch.linspace(-1, 1, 64 * 256).reshape(64, 256)
    cases = {
        "transformer, batch 1": (transformer, (tokens[:1], tokens[:1])),
        "transformer, batch 16": (transformer, (tokens, tokens)),
        "mlp 3x256, batch 64": (mlp, (values, torch.arange(64) % WORDS)),
    }
    result = {
        "torch": torch.__version__,
        "threads": 1,
        "cases": {
            name: measure(variants(make, batch), options.rounds)
            for name, (make, batch) in cases.items()
        },
    }
    keep("op_list", **result)
    for name, rows in result["cases"].items():
        print(name)
        for variant, row in rows.items():
            print(f"  {variant:20} {row['median_ms']:8.3f} ms  x{row['over_native']:.3f}")


if __name__ == "__main__":
    main()

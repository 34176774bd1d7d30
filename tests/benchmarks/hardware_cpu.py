"""Kernels alone, bfloat16 against float32, for the CPU of mpcore/capabilities/hardware.toml.

    OMP_NUM_THREADS=1 python tests/benchmarks/hardware_cpu.py

torch, one thread, process CPU time, forward and backward, pairs in an order drawn anew. Prints the
quartiles of the ratio of each operation and keeps them in results/hardware_cpu.json.
"""

from __future__ import annotations

import copy
import random
import statistics
import time
from typing import Any

import torch
from results_file import keep
from torch import nn
from torch.nn import functional

PAIRS, SECONDS = 25, 0.01


class Call(nn.Module):
    """A function as a module."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def attention(x):
    return functional.scaled_dot_product_attention(x, x, x, is_causal=True)


CASES = {
    "matmul": (lambda: nn.Linear(512, 512), (512, 512)),
    "conv2d": (lambda: nn.Conv2d(32, 32, 3, padding=1), (8, 32, 32, 32)),
    "lstm": (lambda: nn.LSTM(128, 128, 2, batch_first=True), (16, 64, 128)),
    "attention": (lambda: Call(attention), (8, 4, 64, 32)),
    "norm": (lambda: nn.LayerNorm(128), (512, 128)),
    "softmax": (lambda: Call(lambda x: x.softmax(-1)), (512, 256)),
    "elementwise": (lambda: Call(functional.gelu), (512, 512)),
}


def run(module: nn.Module, x: torch.Tensor) -> None:
    given = x.detach().requires_grad_()
    out = module(given)
    out = out[0] if isinstance(out, tuple) else out
    out.backward(torch.ones_like(out))


def seconds(module: nn.Module, x: torch.Tensor, times: int) -> float:
    start = time.process_time()
    for _ in range(times):
        run(module, x)
    return time.process_time() - start


def quartiles(make: Any, shape: tuple[int, ...]) -> list[float]:
    module, x = make(), torch.randn(shape)
    sides = {"float32": (module, x), "bfloat16": (copy.deepcopy(module).bfloat16(), x.bfloat16())}
    for side in sides.values():
        run(*side)
    times = max(1, int(SECONDS / max(seconds(module, x, 1), 1e-6)))
    ratios = []
    for _ in range(PAIRS):
        took = {name: seconds(*sides[name], times) for name in random.sample(list(sides), 2)}
        ratios.append(took["bfloat16"] / took["float32"])
    return [round(value, 3) for value in statistics.quantiles(ratios, n=4)]


def main() -> None:
    torch.manual_seed(0)
    random.seed(0)
    torch.set_num_threads(1)
    found = {name: quartiles(*case) for name, case in CASES.items()}
    for name, values in found.items():
        print(f"{name:12} {values[1]:.2f} ({values[0]:.2f} to {values[2]:.2f})")
    keep("hardware_cpu", torch=torch.__version__, bfloat16_over_float32=found)


if __name__ == "__main__":
    main()

"""The update alone in torch, against torch's own step and the cast of its result to bfloat16.

    python tests/benchmarks/updates_torch.py                    # AdamW, 10 M values, one thread
    python tests/benchmarks/updates_torch.py --optimizer sgd --tensors 1000 --millions 10

``foreach + cast`` is 1.00; ``fused + cast`` is the least that torch has, and rounds in other ways.
Ours are every scheme of master weights, in one pass of a kernel (``update="compiled"``) and by
the optimizer's own operations (``"eager"``), both with the bits of ``foreach``. All alternate step
by step in one process; the time is CPU time. The ratio is the median of ratios of neighbours in
time, with the tenths of them. Written to tests/benchmarks/results/updates_torch_OPTIMIZER.json.
"""

from __future__ import annotations

import argparse
import sys
import time
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from in_turn import rounds
from results_file import keep
from torch import nn

import mpcore as mp

if TYPE_CHECKING:
    from collections.abc import Callable

SCHEMES = ("copy", "split", "kahan", "stochastic", "split, optimizer_state=bfloat16")
OPTIMIZERS = {
    "adamw": partial(torch.optim.AdamW, lr=1e-4),
    "adam": partial(torch.optim.Adam, lr=1e-4),
    "sgd": partial(torch.optim.SGD, lr=1e-4, momentum=0.9),
}
BASE = "foreach + cast"


class Weights(nn.Module):
    def __init__(self, tensors: int, values: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        made = [torch.randn(values, generator=generator) for _ in range(tensors)]
        self.all = nn.ParameterList(nn.Parameter(values) for values in made)


def native(make: Callable, grads: list[torch.Tensor], **how: bool) -> Callable[[], None]:
    model = Weights(len(grads), grads[0].numel())
    params = list(model.parameters())
    low = [param.detach().bfloat16() for param in params]
    optimizer = make(params, **how)
    for param, grad in zip(params, grads, strict=True):
        param.grad = grad

    def step() -> None:
        optimizer.step()
        torch._foreach_copy_(low, [param.detach() for param in params])

    return step


def ours(make: Callable, grads: list[torch.Tensor], master: str, update: str) -> Callable[[], None]:
    model = Weights(len(grads), grads[0].numel())
    optimizer = make(model.parameters())
    policy = f"model_bfloat16, master={master}"
    amp = mp.prepare(model, optimizer, policy, update=update, count_lost_updates="off")
    masters = amp.transaction.master_weights

    def step() -> None:
        for param, grad in zip(optimizer.param_groups[0]["params"], grads, strict=True):
            param.grad = grad
        amp.guard.open += 1
        masters.step(optimizer)
        amp.guard.open -= 1
        masters.optimizer_steps += 1

    step()
    step()
    wanted = "compiled: " if update == "compiled" else "eager: "
    said = amp.updates["optimizer"]
    if not said.startswith(wanted) or "others" in said:
        sys.exit(f"{policy}: {said}")
    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default="adamw")
    parser.add_argument("--millions", type=float, default=10.0)
    parser.add_argument("--tensors", type=int, default=10)
    parser.add_argument("--steps", type=int, default=25, help="timed steps of each")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--no-write", action="store_true", help="print only")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    values = round(given.millions * 1e6 / given.tensors)
    generator = torch.Generator().manual_seed(1)
    grads = [torch.randn(values, generator=generator) * 1e-3 for _ in range(given.tensors)]
    make = OPTIMIZERS[given.optimizer]
    variants = {
        BASE: native(make, grads, foreach=True),
        "one by one + cast": native(make, grads, foreach=False),
        "fused + cast": native(make, grads, fused=True),
    }
    for master in SCHEMES:
        variants[f"{master}, compiled"] = ours(make, grads, master, "compiled")
    for master in SCHEMES[:2]:
        variants[f"{master}, eager"] = ours(make, grads, master, "eager")
    times: dict[str, list[float]] = {name: [] for name in variants}
    for index, order in rounds(variants, given.steps + 3):
        for name in order:
            start = time.process_time()
            variants[name]()
            if index >= 3:
                times[name].append(time.process_time() - start)
    base, rows = np.array(times[BASE]), []
    for name, found in times.items():
        low, ratio, high = np.quantile(np.array(found) / base, [0.1, 0.5, 0.9])
        median = float(np.median(found) * 1e3)
        rows.append(
            {
                "update": name,
                "median_ms": round(median, 3),
                "ratio": round(float(ratio), 3),
                "tenths": [round(float(low), 3), round(float(high), 3)],
            }
        )
        print(f"{name:<46}{median:9.2f} ms   {ratio:6.3f}   [{low:.3f}, {high:.3f}]")
    if not given.no_write:
        keep(
            f"updates_torch_{given.optimizer}" + (f"_{given.tensors}" * (given.tensors != 10)),
            script="tests/benchmarks/updates_torch.py",
            versions={"torch": torch.__version__, "mpcore": mp.__version__},
            cpu=torch.backends.cpu.get_cpu_capability(),
            values=values * given.tensors,
            tensors=given.tensors,
            threads=given.threads,
            steps=given.steps,
            ratios_to=BASE,
            rows=rows,
        )


if __name__ == "__main__":
    main()

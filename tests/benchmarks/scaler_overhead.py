"""What loss scaling costs over a bare fused optimizer step, in torch.

    python tests/benchmarks/scaler_overhead.py                 # on a GPU too, if there is one
    python tests/benchmarks/scaler_overhead.py --steps 300 --no-write

Three questions, each measured with the variants alternating in one process (see in_turn.py):

- step: microseconds over a bare fused AdamW step, on the MLP, for native GradScaler, its
  imitation in mpcore_compat, a hand-written minimum, and mpcore;
- growth: the same with 10, 100 and 1,000 gradient tensors;
- buffers: the share of a CNN step that guarding its BatchNorm statistics takes.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch
from in_turn import alternate
from results_file import keep
from torch import nn
from torch.nn import functional

import mpcore as mp
from mpcore_compat.torch_amp import GradScaler

RULE = "float32, loss_scale=dynamic"


def mlp() -> nn.Module:
    layers = [nn.Sequential(nn.Linear(256, 256), nn.ReLU()) for _ in range(3)]
    return nn.Sequential(*layers, nn.Linear(256, 10))


def cnn() -> nn.Module:
    blocks = [
        nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU(), nn.MaxPool2d(2))
        for a, b in ((3, 32), (32, 64), (64, 64))
    ]
    return nn.Sequential(*blocks, nn.Flatten(), nn.Linear(1024, 10))


class Many(nn.Module):
    """So many parameters of 64 values each, whose sum is the loss."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.params = nn.ParameterList(torch.randn(64) for _ in range(count))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([param.sum()[None] for param in self.params]).sum() * x.mean()


def bare(model, optimizer, loss_of):
    def step():
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()

    return step


def scaled(scaler):
    def variant(model, optimizer, loss_of):
        own = scaler(next(model.parameters()).device.type)

        def step():
            optimizer.zero_grad()
            own.scale(loss_of(model)).backward()
            own.step(optimizer)
            own.update()

        return step

    return variant


def minimum(model, optimizer, loss_of):
    """One fused kernel and one look at its answer: what no scaler can do without."""
    params = list(model.parameters())
    device = params[0].device
    scale = 2.0**16
    found, inverse = torch.zeros((), device=device), torch.tensor(1 / scale, device=device)

    def step():
        for param in params:
            param.grad = None
        (loss_of(model) * scale).backward()
        found.zero_()
        grads = [param.grad for param in params]
        torch._amp_foreach_non_finite_check_and_unscale_(grads, found, inverse)
        if not found.item():
            optimizer.step()

    return step


def ours(model, optimizer, loss_of):
    amp = mp.prepare(model, optimizer, RULE)
    return lambda: amp.step(lambda: loss_of(model))


def ours_in_a_loop(model, optimizer, loss_of):
    amp = mp.prepare(model, optimizer, RULE)

    def step():
        with amp.autocast():
            loss = loss_of(model)
        amp.backward(loss)
        amp.apply()

    return step


VARIANTS = {
    "bare": bare,
    "native GradScaler": scaled(torch.amp.GradScaler),
    "mpcore_compat GradScaler": scaled(GradScaler),
    "minimum": minimum,
    "mpcore, amp.step": ours,
    "mpcore, its loop": ours_in_a_loop,
}


def timed(steps: dict, count: int, warmup: int, device: str) -> dict[str, np.ndarray]:
    # On a CPU the time that this thread was given, which neighbours on the machine do not change.
    cuda = {"clock": time.perf_counter, "wait": torch.cuda.synchronize}
    options = cuda if device == "cuda" else {"clock": time.thread_time}
    found = alternate(steps, count, warmup, **options)
    return {name: np.array(values) for name, values in found.items()}


def compare(build, loss_of, device: str, count: int, warmup: int) -> list[dict]:
    steps = {}
    for name, variant in VARIANTS.items():
        torch.manual_seed(0)
        model = build().to(device)
        optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)
        steps[name] = variant(model, optimizer, loss_of)
    times = timed(steps, count, warmup, device)
    rows = []
    for name, values in times.items():
        # Differences of neighbours in time are steadier than those of the medians.
        low, median, high = np.quantile((values - times["bare"]) * 1e6, [0.25, 0.5, 0.75])
        rows.append(
            {
                "variant": name,
                "median_ms": round(float(np.median(values)) * 1e3, 4),
                "over_bare_us": round(float(median), 1),
                "quartiles_us": [round(float(low), 1), round(float(high), 1)],
            }
        )
    return rows


def show(title: str, rows: list[dict]) -> None:
    print(f"\n{title}")
    for row in rows:
        low, high = row["quartiles_us"]
        print(
            f"  {row['variant']:<26}{row['median_ms']:9.3f} ms   "
            f"{row['over_bare_us']:+8.1f} us over bare  [{low:+.1f}, {high:+.1f}]"
        )


def buffers_guard(device: str, count: int, warmup: int) -> dict:
    """Time of the copy that a step makes of the buffers, and of the step it belongs to."""
    from mpcore_torch.buffers import BufferGuard

    torch.manual_seed(0)
    model = cnn().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)
    x = torch.randn(32, 3, 32, 32, device=device)
    y = torch.randint(0, 10, (32,), device=device)
    step = bare(model, optimizer, lambda model: functional.cross_entropy(model(x), y))
    guard = BufferGuard(model, ())
    times = timed({"step": step, "guard": guard.save}, count, warmup, device)
    cost, whole = (float(np.median(times[name])) for name in ("guard", "step"))
    return {
        "buffers": sum(1 for _ in model.buffers()),
        "guard_us": round(cost * 1e6, 1),
        "step_ms": round(whole * 1e3, 3),
        "share": round(cost / whole, 5),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200, help="timed turns a variant")
    parser.add_argument("--warmup", type=int, default=20)
    parser.add_argument("--threads", type=int, default=1, help="threads inside an operation")
    parser.add_argument("--tensors", default="10,100,1000")
    parser.add_argument("--no-write", action="store_true", help="print only")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x = torch.randn(64, 256, device=device)
    y = torch.randint(0, 10, (64,), device=device)
    result = {
        "threads": given.threads,
        "device": device,
        "clock": "wall" if device == "cuda" else "CPU time of the thread",
        "versions": {"torch": torch.__version__, "mpcore": mp.__version__},
        "steps": given.steps,
    }
    result["mlp"] = compare(
        mlp, lambda m: functional.cross_entropy(m(x), y), device, given.steps, given.warmup
    )
    show(f"MLP 3 x 256, batch 64, {device}", result["mlp"])
    result["growth"] = {}
    for count in map(int, given.tensors.split(",")):
        steps = max(10, min(given.steps, 30_000 // count))
        rows = compare(
            lambda count=count: Many(count), lambda m: m(x), device, steps, min(5, given.warmup)
        )
        result["growth"][str(count)] = rows
        show(f"{count} gradient tensors of 64 values, {steps} steps", rows)
    result["buffers"] = found = buffers_guard(device, given.steps // 3, 5)
    print(
        f"\nguard of {found['buffers']} buffers: {found['guard_us']} us of a CNN step of "
        f"{found['step_ms']} ms: {found['share']:.2%}"
    )
    if device != "cuda":
        print("\nhost synchronisations and the 100M-parameter transformer need a GPU: not run")
    if not given.no_write:
        keep("scaler_overhead_torch", **result)


if __name__ == "__main__":
    main()

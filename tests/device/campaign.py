"""Time, memory and accuracy on an accelerator, beside torch's own; a page of it.

    python tests/device/campaign.py            the accelerator that is here
    python tests/device/campaign.py --dry      a few steps on the CPU: shows that it runs, no more

Writes tests/device/results/DEVICE/{cnn,overhead,masters,kernels}.json and docs/device.md. A dry run
writes nothing. About twenty minutes on one GPU.
"""

from __future__ import annotations

import argparse
import gc
import json
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

import mpcore as mp

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
RESULTS, PAGE = HERE / "results", ROOT / "docs/device.md"
DATA = ROOT / "examples/image_cnn/data/fashion_mnist.npz"

FLOAT16 = "mixed_float16, loss_scale=dynamic(init_scale=32768, growth_interval=2000)"
POLICIES = {
    "float32": "float32, float32=strict",
    "tf32": "float32, float32=fast",
    "float16": FLOAT16,
    "bfloat16": "mixed_bfloat16",
}
MASTERS = ("copy", "split", "kahan", "stochastic:1", "none")


class Size:
    """How much is run: all of it, or in a dry run a little."""

    def __init__(self, *, dry: bool) -> None:
        self.seeds = range(1 if dry else 5)
        self.steps, self.batch = (2, 8) if dry else (1_000, 256)
        self.timed = 2 if dry else 50
        self.tensors = (1, 10) if dry else (1, 10, 100, 1_000)
        self.width = 64 if dry else 10_000  # width * width parameters: 100M
        self.tokens = 16 if dry else 1_024


def wait(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize()


def timed(device: torch.device, count: int, **bodies: Callable[[], Any]) -> dict[str, Any]:
    """Return the milliseconds of each body, in turns: median and the middle half."""
    found: dict[str, list[float]] = {name: [] for name in bodies}
    for body in bodies.values():
        for _ in range(3):
            body()
    for _ in range(count):
        for name, body in bodies.items():
            wait(device)
            start = time.perf_counter()
            body()
            wait(device)
            found[name].append((time.perf_counter() - start) * 1e3)
    return {
        name: {
            "ms": statistics.median(times),
            "quartiles": list(np.percentile(times, [25, 75]).round(4)),
        }
        for name, times in found.items()
    }


def held(device: torch.device) -> int | None:
    """Return the bytes that torch holds once nothing unreachable is left; None where nobody counts.

    A prepared model and its hooks refer to each other: only a collection frees it.
    """
    if device.type != "cuda":
        return None
    gc.collect()
    return torch.cuda.memory_allocated()


def peak(device: torch.device, body: Callable[[], Any], before: int | None = 0) -> float | None:
    """Return the most MiB beyond ``before`` that torch held while ``body`` ran."""
    if device.type != "cuda" or before is None:
        return None
    torch.cuda.reset_peak_memory_stats()
    body()
    wait(device)
    return (torch.cuda.max_memory_allocated() - before) / 2**20


# The case of the design: a small CNN


def cnn() -> nn.Module:
    def block(inputs: int, outputs: int) -> list[nn.Module]:
        conv = nn.Conv2d(inputs, outputs, 3, padding=1)
        return [conv, nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2)]

    head = [nn.Flatten(), nn.Linear(128 * 9, 256), nn.ReLU(), nn.Linear(256, 10)]
    return nn.Sequential(*block(1, 64), *block(64, 128), *block(128, 128), *head)


def images(device: torch.device) -> dict[str, torch.Tensor]:
    with np.load(DATA) as arrays:
        found = {name: torch.from_numpy(arrays[name]) for name in arrays if name[1] == "_"}
    for part in ("train", "test"):
        x = found[f"x_{part}"].reshape(-1, 1, 28, 28).float()
        found[f"x_{part}"] = ((x / 255 - 0.5) / 0.25).to(device)
        found[f"y_{part}"] = found[f"y_{part}"].long().to(device)
    return found


def train_cnn(policy: str, seed: int, size: Size, device: torch.device) -> dict[str, Any]:
    torch.manual_seed(seed)
    before = held(device)
    model, data = cnn().to(device), images(device)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    amp = mp.prepare(model, optimizer, policy)
    chosen = torch.Generator().manual_seed(seed)
    count, times, skipped = len(data["x_train"]), [], 0

    def loss_fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(model(x).float(), y)

    def steps() -> None:
        nonlocal skipped
        for _ in range(size.steps):
            rows = torch.randint(count, (size.batch,), generator=chosen).to(device)
            x, y = data["x_train"][rows], data["y_train"][rows]
            wait(device)
            start = time.perf_counter()
            skipped += not amp.step(loss_fn, x, y).stepped
            wait(device)
            times.append((time.perf_counter() - start) * 1e3)

    most = peak(device, steps, before)
    if most is None:
        steps()
    model.eval()
    with torch.no_grad(), amp.autocast():
        right = sum(
            int((model(x).argmax(1) == y).sum())
            for x, y in zip(data["x_test"].split(500), data["y_test"].split(500), strict=True)
        )
    amp.release()
    return {
        "ms": statistics.median(times[len(times) // 10 :]),
        "peak_mib": most,
        "accuracy": right / len(data["y_test"]),
        "skipped": skipped,
    }


def run_cnn(size: Size, device: torch.device) -> dict[str, Any]:
    found = {}
    for name, policy in POLICIES.items():
        runs = [train_cnn(policy, seed, size, device) for seed in size.seeds]
        found[name] = {
            "ms": statistics.median(run["ms"] for run in runs),
            "peak_mib": runs[0]["peak_mib"],
            "accuracy": [run["accuracy"] for run in runs],
            "skipped": [run["skipped"] for run in runs],
        }
    return found


# The step beside torch's own


def layers(count: int, width: int, device: torch.device) -> nn.Module:
    torch.manual_seed(0)
    made = [nn.Linear(width, width, bias=False) for _ in range(count)]
    return nn.Sequential(*made).to(device)


def native(model: nn.Module, device: torch.device, low: torch.dtype) -> Callable[[], None]:
    optimizer, x = _adamw(model), _batch(model, device)
    scaler = torch.amp.GradScaler(device.type, enabled=low == torch.float16)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(device.type, low):
            loss = model(x).float().square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return step


def ours(model: nn.Module, device: torch.device, policy: str) -> Callable[[], Any]:
    x = _batch(model, device)
    amp = mp.prepare(model, _adamw(model), policy)

    def loss_fn(x: torch.Tensor) -> torch.Tensor:
        return model(x).float().square().mean()

    return lambda: amp.step(loss_fn, x)


def _adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), 1e-5)


def _batch(model: nn.Module, device: torch.device) -> torch.Tensor:
    return torch.randn(16, next(model.parameters()).shape[1], device=device)


def run_overhead(size: Size, device: torch.device) -> dict[str, Any]:
    found = {}
    shapes = [(count, 64) for count in size.tensors] + [(1, size.width)]
    for count, width in shapes:
        bodies = {
            "native float16": native(layers(count, width, device), device, torch.float16),
            "autocast_float16": ours(layers(count, width, device), device, "autocast_float16"),
            "mixed_float16": ours(layers(count, width, device), device, "mixed_float16"),
            "native bfloat16": native(layers(count, width, device), device, torch.bfloat16),
            "autocast_bfloat16": ours(layers(count, width, device), device, "autocast_bfloat16"),
            "mixed_bfloat16": ours(layers(count, width, device), device, "mixed_bfloat16"),
        }
        found[f"{count} of {width}x{width}"] = timed(device, size.timed, **bodies)
    return found


def run_masters(size: Size, device: torch.device) -> dict[str, Any]:
    """Time and bytes of a whole step over one layer: nearly all of it is the update."""
    found = {}
    for scheme in MASTERS:
        policy, before = f"model_bfloat16, master={scheme}", held(device)
        step = ours(layers(1, size.width, device), device, policy)
        step()
        most = peak(device, step, before)
        times = timed(device, size.timed, step=step)["step"]
        bytes_each = None if most is None else most * 2**20 / size.width**2
        found[scheme] = times | {"peak_bytes_a_parameter": bytes_each}
    return found


# Kernels by dtype


def kernels(tokens: int, device: torch.device, dtype: torch.dtype) -> Iterator[tuple[str, Any]]:
    x = torch.randn(8, 16, tokens, 64, device=device, dtype=dtype)
    rows = torch.randn(8 * tokens, 1024, device=device, dtype=dtype)
    weight = torch.randn(1024, device=device, dtype=dtype)
    square = torch.randn(4 * tokens, 4 * tokens, device=device, dtype=dtype)
    yield "attention", lambda: functional.scaled_dot_product_attention(x, x, x, is_causal=True)
    yield "layer_norm", lambda: functional.layer_norm(rows, (1024,), weight)
    yield "softmax", lambda: rows.softmax(-1)
    yield "matmul", lambda: square @ square


def run_kernels(size: Size, device: torch.device) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        for name, body in kernels(size.tokens, device, dtype):
            times = timed(device, size.timed, body=body)["body"]
            found.setdefault(name, {})[str(dtype).removeprefix("torch.")] = times
    return found


PARTS = {
    "cnn": run_cnn,
    "overhead": run_overhead,
    "masters": run_masters,
    "kernels": run_kernels,
}


def folder_of(device: str) -> Path:
    """Return where the results of a device lie, by its name."""
    return RESULTS / re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-")


def page(found: dict[str, dict[str, Any]], about: dict[str, Any]) -> str:
    """Return docs/device.md of the parts that were run."""
    lines = [
        "# On an accelerator",
        "",
        f"{about['device']}, torch {about['torch']}, {about['date']}.",
        "Written by `make device`; the JSON lies in `tests/device/results/`.",
    ]
    notes = folder_of(about["device"]) / "notes.md"  # of what a run showed, by hand
    for part in (HERE / "page.md", *([notes] if notes.is_file() else [])):
        lines += ["", part.read_text(encoding="utf-8").rstrip()]
    lines.append("")
    plain = found["cnn"]["float32"]
    lines += ["## A CNN on Fashion-MNIST", "", "| | ms a step | peak MiB | accuracy | skipped |"]
    lines += ["|---|---|---|---|---|"]
    for name, row in found["cnn"].items():
        accuracy = f"{min(row['accuracy']):.4f} to {max(row['accuracy']):.4f}"
        time_share = f"{row['ms']:.3f} ({row['ms'] / plain['ms']:.2f})"
        most = "not known" if row["peak_mib"] is None else f"{row['peak_mib']:.0f}"
        lines.append(f"| {name} | {time_share} | {most} | {accuracy} | {sum(row['skipped'])} |")
    lines += ["", "## The step beside torch's own, ms", "", "| | native | by op | by layer |"]
    lines += ["|---|---|---|---|"]
    for name, row in found["overhead"].items():
        for low in ("float16", "bfloat16"):
            three = (f"native {low}", f"autocast_{low}", f"mixed_{low}")
            cells = " | ".join(f"{row[key]['ms']:.3f}" for key in three)
            lines.append(f"| {name}, {low} | {cells} |")
    lines += [
        "",
        "## Masters",
        "",
        "| | ms a step | bytes a parameter at the peak |",
        "|---|---|---|",
    ]
    for name, row in found["masters"].items():
        most = row["peak_bytes_a_parameter"]
        lines.append(
            f"| {name} | {row['ms']:.3f} | {'not known' if most is None else f'{most:.1f}'} |"
        )
    lines += ["", "## Kernels, ms", "", "| | float32 | float16 | bfloat16 |", "|---|---|---|---|"]
    for name, row in found["kernels"].items():
        cells = " | ".join(f"{row[key]['ms']:.4f}" for key in ("float32", "float16", "bfloat16"))
        lines.append(f"| {name} | {cells} |")
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dry", action="store_true")
    given = parser.parse_args()
    there = torch.accelerator.current_accelerator(check_available=True)
    if there is None and not given.dry:
        sys.exit("no accelerator here, nothing was run; --dry shows on the CPU that it would")
    device = torch.device("cpu") if given.dry or there is None else there
    name = torch.cuda.get_device_name() if device.type == "cuda" else device.type
    about = {
        "device": name,
        "torch": torch.__version__,
        "mpcore": mp.__version__,
        "date": datetime.now(tz=UTC).date().isoformat(),
    }
    size, found = Size(dry=given.dry), {}
    for part, function in PARTS.items():
        print(f"{part} on {name} ...", flush=True)
        found[part] = function(size, device)
        if not given.dry:
            folder = folder_of(name)
            folder.mkdir(parents=True, exist_ok=True)
            text = json.dumps(about | {"found": found[part]}, indent=1) + "\n"
            (folder / f"{part}.json").write_text(text, encoding="utf-8")
    text = page(found, about)
    if given.dry:
        print(f"{text}\na dry run on the CPU: no figure of it means anything, nothing was written")
    else:
        PAGE.write_text(text, encoding="utf-8")
        print(f"written: {PAGE}")


if __name__ == "__main__":
    main()

"""What transformers, timm and einops give, for ``test_others.py``; into ``traces/others.json``.

In an environment with torch, ``transformers==4.44.2``, ``timm==1.0.9`` (its sources are enough) and
``einops==0.8.2``:

    python tests/port/record_others.py FOLDER_OF_TIMM
"""

from __future__ import annotations

import importlib.util
import json
import sys
import warnings
from pathlib import Path
from typing import Any

SCHEDULES = [
    ("get_constant_schedule", {}),
    ("get_constant_schedule_with_warmup", {"num_warmup_steps": 3}),
    ("get_linear_schedule_with_warmup", {"num_warmup_steps": 3, "num_training_steps": 9}),
    ("get_linear_schedule_with_warmup", {"num_warmup_steps": 0, "num_training_steps": 5}),
    ("get_cosine_schedule_with_warmup", {"num_warmup_steps": 2, "num_training_steps": 10}),
    (
        "get_cosine_schedule_with_warmup",
        {"num_warmup_steps": 2, "num_training_steps": 10, "num_cycles": 1.5},
    ),
    (
        "get_cosine_with_hard_restarts_schedule_with_warmup",
        {"num_warmup_steps": 1, "num_training_steps": 8, "num_cycles": 3},
    ),
]
ADAMW = [{}, {"lr": 0.1, "weight_decay": 0.1}, {"correct_bias": False, "betas": [0.8, 0.9]}]
ADAMW += [{"eps": 0.01}]
PATTERNS: list[tuple[str, list[int], str, dict[str, int]]] = [
    ("rearrange", [2, 3, 4], "b h w -> b (h w)", {}),
    ("rearrange", [2, 12, 2], "b (h w) c -> b c h w", {"h": 3}),
    ("rearrange", [2, 3, 4, 6], "b c (h p) (w q) -> (b h w) (p q c)", {"p": 2, "q": 3}),
    ("rearrange", [2, 3, 4], "b ... -> ... b", {}),
    ("rearrange", [2, 3, 4], "b ... -> b (...)", {}),
    ("rearrange", [2, 3], "a b -> 1 a 1 b", {}),
    ("rearrange", [1, 3], "1 b -> b", {}),
    ("rearrange", [2, 3], "a b -> b () a", {}),
    ("reduce", [2, 4, 6], "b (h p) w -> b h", {"p": 2}),
    ("reduce", [2, 3], "a b -> ", {}),
    ("reduce", [2, 3, 4], "b ... c -> c b", {}),
    ("reduce", [2, 3, 4], "b c ... -> b 1 ...", {}),
    ("repeat", [2, 3], "a b -> a b c", {"c": 2}),
    ("repeat", [2, 3], "a b -> (r b) a", {"r": 3}),
    ("repeat", [2, 3], "a b -> a 2 b 1", {}),
    ("repeat", [3], "... -> b ...", {"b": 2}),
]
SCORES = [[0.5, -1.0, 2.0, 0.1], [1.5, 0.3, -0.7, 0.9], [-0.2, 0.4, 0.6, 3.0]]
LABELS = [2, 3, 1]
SHARES = [[0.7, 0.1, 0.1, 0.1], [0.0, 1.0, 0.0, 0.0], [0.25, 0.25, 0.25, 0.25]]


def schedules(module: Any, torch: Any) -> list[Any]:
    """Return the rates of 12 steps."""
    found = []
    for name, given in SCHEDULES:
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.5)
        schedule = getattr(module, name)(optimizer, **given)
        rates = []
        for _ in range(12):
            optimizer.step()
            schedule.step()
            rates.append(schedule.get_last_lr()[0])
        found.append([name, given, rates])
    return found


def adamw(module: Any, torch: Any) -> list[Any]:
    """Return a weight over five steps by the gradient ``2 w - 1``."""
    found = []
    for given in ADAMW:
        weight = torch.nn.Parameter(torch.tensor([1.0, -2.0, 0.25]))
        optimizer = module.AdamW([weight], **given)
        values = []
        for _ in range(5):
            weight.grad = 2 * weight.detach() - 1
            optimizer.step()
            values.append(weight.tolist())
        found.append([given, values])
    return found


def losses(folder: Path, torch: Any) -> list[Any]:
    """Return losses and gradients."""
    module = _alone(folder / "loss" / "cross_entropy.py")
    found = []
    for name, given, target in [
        ("LabelSmoothingCrossEntropy", {}, LABELS),
        ("LabelSmoothingCrossEntropy", {"smoothing": 0.3}, LABELS),
        ("SoftTargetCrossEntropy", {}, SHARES),
    ]:
        scores = torch.tensor(SCORES, requires_grad=True)
        loss = getattr(module, name)(**given)(scores, torch.tensor(target))
        loss.backward()
        found.append([name, given, target, loss.item(), scores.grad.tolist()])
    return found


def accuracies(folder: Path, torch: Any) -> list[Any]:
    """Return the accuracy for several ``topk``."""
    module = _alone(folder / "utils" / "metrics.py")
    scores, labels = torch.tensor(SCORES), torch.tensor(LABELS)
    every = [(1,), (1, 3), (2,), (1, 9)]
    return [[k, [x.item() for x in module.accuracy(scores, labels, topk=k)]] for k in every]


def patterns() -> list[Any]:
    """Return what einops makes of counted arrays."""
    import einops
    import numpy as np

    found = []
    for name, shape, pattern, sizes in PATTERNS:
        for how in ("mean", "sum", "max", "min", "prod") if name == "reduce" else ("",):
            value = np.arange(1, 1 + int(np.prod(shape)), dtype=np.float32).reshape(shape) / 8
            more = [how] if how else []
            made = np.asarray(getattr(einops, name)(value, pattern, *more, **sizes))
            row = [list(made.shape), made.ravel().tolist()]
            found.append([name, shape, pattern, more, sizes, *row])
    return found


def _alone(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main(folder: Path) -> None:
    """Write the file."""
    import torch
    from transformers import optimization

    warnings.simplefilter("ignore")
    data = {
        "schedules": schedules(optimization, torch),
        "adamw": adamw(optimization, torch),
        "losses": losses(folder, torch),
        "accuracy": accuracies(folder, torch),
        "patterns": patterns(),
    }
    to = Path(__file__).parent / "traces" / "others.json"
    to.write_text(json.dumps(data) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

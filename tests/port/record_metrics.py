"""What torchmetrics gives, for ``test_metrics.py``; into ``traces/metrics.json``.

In an environment with torch and ``torchmetrics==1.9.0``:

    python tests/port/record_metrics.py
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

CASES: list[tuple[dict[str, Any], str]] = [
    ({"task": "multiclass", "num_classes": 5}, "scores"),
    ({"task": "multiclass", "num_classes": 5}, "classes"),
    ({"task": "multiclass", "num_classes": 5, "top_k": 2}, "scores"),
    ({"task": "multiclass", "num_classes": 5, "average": "macro"}, "scores"),
    ({"task": "multiclass", "num_classes": 5, "average": "macro", "top_k": 3}, "scores"),
    ({"task": "multiclass", "num_classes": 5, "average": "weighted"}, "classes"),
    ({"task": "multiclass", "num_classes": 5, "average": "none"}, "scores"),
    ({"task": "multiclass", "num_classes": 5, "ignore_index": 2}, "scores"),
    ({"task": "multiclass", "num_classes": 5, "ignore_index": -100, "average": "macro"}, "holes"),
    ({"task": "multiclass", "num_classes": 5}, "maps"),
    ({"task": "binary"}, "logits"),
    ({"task": "binary", "threshold": 0.7}, "shares"),
    ({"task": "binary", "ignore_index": 0}, "labels"),
    ({"task": "multilabel", "num_labels": 3}, "table"),
    ({"task": "multilabel", "num_labels": 3, "average": "macro"}, "table"),
    ({"task": "multilabel", "num_labels": 3, "average": "weighted"}, "table"),
    ({"task": "multilabel", "num_labels": 3, "average": None}, "table"),
]
MEANS: list[tuple[dict[str, Any], list[Any]]] = [
    ({}, [[1.0], [[2.0, 4.5]], [3.0, 0.5]]),
    ({"nan_strategy": "ignore"}, [[1.0], [[float("nan"), 4.5], [2.0, 3.0]]]),
    ({"nan_strategy": 2.0}, [[1.0], [[float("nan"), 4.5], [2.0, 3.0]]]),
    ({"nan_strategy": "disable"}, [[1.0], [[8.0, 4.5], [2.0, 3.0]]]),
]
SUMS: list[tuple[dict[str, Any], list[Any]]] = [
    ({}, [1.0, [2.0, 4.5], [[3.0], [0.5]]]),
    ({"sync_on_compute": False, "nan_strategy": "ignore"}, [1.0, [float("nan"), 4.5]]),
    ({"nan_strategy": 2.0}, [1.0, [float("nan"), 4.5]]),
    ({"nan_strategy": "disable"}, [1.0, [8.0, 4.5]]),
]


def batches(kind: str) -> list[list[Any]]:
    """Return three batches of predictions and targets, as lists."""
    import numpy as np

    draw = np.random.default_rng(len(kind))
    made = []
    for size in (6, 6, 3):
        wanted = draw.integers(0, 4, size)  # the last class is never wanted
        if kind == "scores":
            found = draw.normal(size=(size, 5))
        elif kind == "classes":
            found = draw.integers(0, 4, size)
        elif kind == "holes":
            found, wanted = draw.normal(size=(size, 5)), np.where(wanted == 1, -100, wanted)
        elif kind == "maps":
            found, wanted = draw.normal(size=(size, 5, 2)), draw.integers(0, 5, (size, 2))
        elif kind == "table":
            found, wanted = draw.normal(size=(size, 3)), draw.integers(0, 2, (size, 3))
        else:
            wanted = draw.integers(0, 2, size)
            found = {"logits": draw.normal(size=size), "shares": draw.random(size)}.get(kind)
            found = draw.integers(0, 2, size) if found is None else found
        made.append([found.tolist(), wanted.tolist()])
    return made


def main() -> None:
    """Write the file."""
    import torch
    import torchmetrics

    warnings.simplefilter("ignore")
    rows = []
    for given, kind in CASES:
        metric, alone = torchmetrics.Accuracy(**given), []
        for found, wanted in batches(kind):
            alone.append(metric(torch.tensor(found), torch.tensor(wanted)).tolist())
        rows.append([given, kind, alone, metric.compute().tolist()])
    means = []
    for given, values in MEANS:
        mean = torchmetrics.MeanMetric(**given)
        for value in values:
            mean.update(*[torch.tensor(one) for one in value])
        means.append([given, values, mean.compute().item()])
    sums = []
    for given, values in SUMS:
        total = torchmetrics.SumMetric(**given)
        alone = [total(torch.tensor(value)).item() for value in values]
        sums.append([given, values, alone, total.compute().item()])
    to = Path(__file__).parent / "traces" / "metrics.json"
    to.write_text(
        json.dumps({"accuracy": rows, "mean": means, "sum": sums}) + "\n", encoding="utf-8"
    )


if __name__ == "__main__":
    main()

"""The golden files, and how they were made: ``python tests/zoo/golden.py``, from torch.

``layers.json`` holds the layer map of every architecture under mixed_float16: path, category,
and the dtypes of parameters, compute and output. It was read line by line, not only recorded.

``outputs.npz`` holds, from the neutral weights, in float32: ``<name>.output`` of the first batch
in evaluation mode, and ``<name>.losses`` of three steps of training on three batches.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import zoo

import mpcore as mp

LAYERS = Path(__file__).parent / "layers.json"
OUTPUTS = Path(__file__).parent / "outputs.npz"
STEPS = 3


def built(driver, name, entry, *, load=True):
    """Return the model with its neutral weights."""
    first = zoo.BATCHES[name](zoo.generator(name))[0]
    model = driver.build(entry.build, first, "channels_first" if first.ndim == 4 else "")
    if load:
        driver.load_weights(model, zoo.neutral_weights(name, driver.weights(model)))
    return model


def layer_map(model) -> list[list[str]]:
    plan = mp.explain(model, "mixed_float16")
    return [[row.path, row.category, row.param, row.compute, row.output] for row in plan.layers]


def output(driver, name, entry) -> np.ndarray:
    return entry.forward(built(driver, name, entry), *entry.batch(zoo.generator(name)))


def losses(driver, name, entry, policy="float32") -> np.ndarray:
    model = built(driver, name, entry)
    amp = mp.prepare(model, entry.optimizer(model), policy)
    loss, rng = entry.loss(model), zoo.generator(name)
    batches = [entry.tensors(entry.batch(rng)) for _ in range(STEPS)]
    return np.float32([amp.step(loss, *batch).loss for batch in batches])


def write() -> None:
    from zoo_torch import ZOO

    driver = mp.load_backend("torch").compare_driver()
    maps = {name: layer_map(entry.build()) for name, entry in ZOO.items()}
    rows = {
        name: "[\n    " + ",\n    ".join(map(json.dumps, rows)) + "\n  ]"
        for name, rows in maps.items()
    }
    text = ",\n".join(f'  "{name}": {lines}' for name, lines in rows.items())
    LAYERS.write_text(f"{{\n{text}\n}}\n", encoding="ascii")
    arrays = {f"{name}.output": output(driver, name, entry) for name, entry in ZOO.items()}
    for name, entry in ZOO.items():
        if name not in zoo.STOCHASTIC:
            arrays[f"{name}.losses"] = losses(driver, name, entry)
    np.savez_compressed(OUTPUTS, **arrays)


if __name__ == "__main__":
    write()

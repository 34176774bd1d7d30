"""The golden files, and how they were made: ``python tests/zoo/golden.py``, from torch.

``layers.json`` holds the layer map of every architecture under mixed_float16: path, category,
and the dtypes of parameters, compute and output. It was read line by line, not only recorded.

``outputs.npz`` holds, from the neutral weights, in float32: ``<name>.output`` of the first batch
in evaluation mode, and ``<name>.losses`` of three steps of training on three batches.

``gradients.npz`` holds ``<name>|<layer>|<array>``: the neutral gradients of the first batch,
without dropout, computed in float64 by torch and rounded to float32.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import zoo

import mpcore as mp

LAYERS = Path(__file__).parent / "layers.json"
OUTPUTS = Path(__file__).parent / "outputs.npz"
GRADIENTS = Path(__file__).parent / "gradients.npz"
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


def gradients(driver, name, entry) -> dict[str, np.ndarray]:
    """Return the neutral gradients of the first batch, by ``<layer>|<array>``."""
    model = built(driver, name, entry)
    if name in zoo.STOCHASTIC:
        entry.still(model)
    amp = mp.prepare(model, entry.optimizer(model), "float32")
    batch = entry.tensors(entry.batch(zoo.generator(name)))
    result = amp.step(entry.loss(model), *batch, keep_grads=True)
    return named(driver.gradients(model, result.grads))


def named(layers) -> dict[str, np.ndarray]:
    return {f"{w.path}|{key}": array for w in layers for key, array in w.arrays.items()}


def exact_gradients(driver, name, entry) -> dict[str, np.ndarray]:
    """Return what ``gradients`` does, of a torch model in float64 and by torch alone."""
    import torch

    model = built(driver, name, entry).double()
    if name in zoo.STOCHASTIC:
        entry.still(model)
    batch = [
        x.double() if x.is_floating_point() else x
        for x in entry.tensors(entry.batch(zoo.generator(name)))
    ]
    losses = entry.loss(model)
    parts = losses if isinstance(losses, dict) else {"": losses}
    found = {}
    for part, loss in parts.items():
        params = {
            f"{part}.{n}".lstrip("."): p for n, p in model.get_submodule(part).named_parameters()
        }
        grads = torch.autograd.grad(loss(*batch), list(params.values()))
        found |= dict(zip(params, grads, strict=True))
    return named(driver.gradients(model, found))


def assert_near(ours, exact, rtol) -> None:
    """Compare gradients by array, each against its own norm.

    One that is smaller than a hundredth of the average is measured against that: what is zero but
    for rounding, such as a bias in front of a normalisation, has no direction.
    """
    assert ours.keys() == exact.keys()
    norms = {key: np.linalg.norm(array) for key, array in exact.items()}
    floor = 1e-2 * np.sqrt(np.mean(np.square(list(norms.values()))))
    off = {key: np.linalg.norm(ours[key] - exact[key]) / max(norms[key], floor) for key in exact}
    assert {key: value for key, value in off.items() if not value <= rtol} == {}


def write() -> None:
    from zoo_torch import ZOO

    driver = mp.load_backend("torch").driver()
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
    exact = {
        f"{name}|{key}": array
        for name, entry in ZOO.items()
        for key, array in exact_gradients(driver, name, entry).items()
    }
    np.savez_compressed(GRADIENTS, **exact)


if __name__ == "__main__":
    write()

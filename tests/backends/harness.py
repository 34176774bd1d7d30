"""What the suites for every backend share."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np

import mpcore as mp

HERE = Path(__file__).parent
POLICIES = ["float32", "mixed_float16", "mixed_bfloat16", "model_float16", "model_bfloat16"]
RNG = np.random.default_rng(7)
X = RNG.normal(size=(32, 8)).astype("f4")
Y = RNG.integers(0, 4, 32).astype("i4")


def load_kit(name: str):
    spec = importlib.util.spec_from_file_location(f"kit_{name}", HERE / f"kit_{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.kit


class Trained:
    """A prepared model and what a test does with it."""

    def __init__(
        self, kit, policy, mode="eager", optimizer="sgd", weights=None, options=None, **call
    ):
        self.kit = kit
        self.model = kit.model()
        if weights is not None:
            put_weights(kit, self.model, weights)
        if optimizer == "two":
            self.optimizer = {
                "a": kit.sgd_over(self.model, ("fc1", "bn"), 0.1),
                "b": kit.sgd_over(self.model, ("fc2",), 0.1),
            }
        elif optimizer == "adam":
            self.optimizer = kit.adam(self.model, 0.01)
        else:
            self.optimizer = kit.sgd(self.model, 0.1, 0.9)
        self.amp = mp.prepare(self.model, self.optimizer, policy, **(options or {}))
        self.mode, self.call = mode, call
        self.use(kit.loss_fn(self.model))

    def use(self, loss_fn, **call):
        """Step by another loss function, or with other arguments of ``amp.step``."""
        self.loss_fn = loss_fn
        self._step = self.kit.stepper(self.amp, loss_fn, self.mode, **(self.call | call))

    def step(self, boost=1.0, x=X, y=Y):
        return self._step(*self.kit.batch(x, y, boost))

    def snapshot(self):
        return self.kit.snapshot(self.model, self.optimizer, self.amp)


def put_weights(kit, model, weights):
    if kit.name == "numpy":
        for layer in weights:
            for name, value in layer.arrays.items():
                place = model.params if f"{layer.path}.{name}" in model.params else model.buffers
                place[f"{layer.path}.{name}"][...] = value
        return
    driver = mp.load_backend(kit.name).driver()
    driver.load_weights(model, weights)


def oracle_weights():
    from mpcore.checkpoint.layer_weights import LayerWeights

    model = load_kit("numpy").model()
    layers: dict[str, LayerWeights] = {}
    for name, value in {**model.params, **model.buffers}.items():
        path, _, short = name.rpartition(".")
        layer = layers.setdefault(path, LayerWeights(path, model.layers[path], {}))
        layer.arrays[short] = value
    return list(layers.values())


def assert_same(before, after):
    assert before.keys() == after.keys()
    for name in before:
        np.testing.assert_array_equal(before[name], after[name], err_msg=name)

"""Bytes that are really there, against the prediction; run once per framework with --backend."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from harness import Trained, X, Y

import mpcore as mp
from mpcore.backend.driver import OptimizerSpec
from mpcore.tools.experiment.experiment import load_experiment
from mpcore.tools.memory.estimate import KINDS, estimate_memory
from mpcore.tools.memory.slots import SLOTS, optimizer_slots

EXPERIMENT = Path(__file__).parents[2] / "examples" / "char_transformer" / "experiment.py"
POLICIES = (
    "float32",
    "model_bfloat16, master=none",
    "model_bfloat16, master=copy",
    "model_bfloat16, master=split:nearest",
    "model_bfloat16, master=kahan",
    "model_bfloat16, master=stochastic, optimizer_state=bfloat16",
)


@pytest.fixture(scope="module")
def experiment():
    loaded = load_experiment(EXPERIMENT)
    return loaded, loaded.data()


def one_block(name: str) -> object:
    """Build the transformer of the example with one block: a second has the same arrays again."""
    transformer = import_module(f"model_{name}").Transformer
    return transformer(vocabulary=65, length=32, width=64, heads=4, blocks=1)


def trained(kit, policy: str, experiment) -> tuple[object, mp.Amp]:
    """Return the prediction, and what was prepared, after two steps with Adam."""
    if kit.name == "numpy":  # it has no automatic differentiation to run an experiment with
        model = kit.model()
        predicted = estimate_memory(model, kit.adam(model, 0.01), policy)
        run = Trained(kit, mp.Policy.parse(policy), optimizer="adam")
        assert [run.step().stepped for _ in range(2)] == [True, True]
        return predicted, run.amp
    loaded, data = experiment
    driver = mp.load_backend(kit.name).driver()
    model = driver.build(partial(one_block, kit.name), data.x_train[:2], data.layout)
    optimizer = driver.optimizer(OptimizerSpec("adam", 1e-3), model)
    predicted = estimate_memory(model, optimizer, policy)
    amp = mp.prepare(model, optimizer, policy)
    loss_fn = driver.loss(loaded.loss, model)
    for x, y in data.batches(2, 4, 0):
        assert amp.step(loss_fn, *driver.batch(x, y, data.layout)).stepped
    return predicted, amp


@pytest.mark.parametrize("policy", POLICIES)
def test_arrays_take_what_is_predicted_within_1_percent(kit, policy: str, experiment) -> None:
    predicted, amp = trained(kit, policy, experiment)
    found = amp.array_bytes()
    assert found.keys() == set(KINDS)
    for kind, count in predicted.kinds.items():
        assert found[kind] == pytest.approx(count, rel=0.01, abs=32), kind
    assert sum(found.values()) == pytest.approx(predicted.total, rel=0.01)


def freeze(kit, model) -> None:
    """Freeze the first dense layer."""
    if kit.name == "torch":
        model.fc1.requires_grad_(False)
    elif kit.name == "tensorflow":
        next(layer for layer in model.layers if layer.name == "fc1").trainable = False
    else:
        for param in model.fc1.get_parameters():
            param.requires_grad = False


def test_frozen_parameters_have_no_gradients_and_no_state(kit) -> None:
    if kit.name == "numpy":
        pytest.skip("models of the numpy reference train all their parameters")
    model, whole = kit.model(), kit.model()
    everything = estimate_memory(whole, kit.adam(whole, 0.01), "float32")
    layers = {layer.path: layer.size for layer in mp.load_backend(kit.name).layers(model)}
    freeze(kit, model)
    predicted = estimate_memory(model, kit.adam(model, 0.01), "float32")
    assert predicted.parameters == everything.parameters
    assert predicted.gradients == everything.gradients - 4 * layers["fc1"]
    assert predicted.state == pytest.approx(everything.state - 8 * layers["fc1"], abs=16)
    amp = mp.prepare(model, kit.adam(model, 0.01), "float32")
    loss_fn = kit.loss_fn(model)
    assert amp.step(loss_fn, *kit.batch(X, Y, 1.0)).stepped
    assert amp.array_bytes()["gradients"] == predicted.gradients


# --- the table of optimizers, counted again: (class, options) of every framework

SHAPE = (5, 3)
OPTIMIZERS: dict[str, list[tuple[str, dict[str, object]]]] = {
    "numpy": [("SGD", {"learning_rate": 0.1}), ("Adam", {"learning_rate": 0.1})],
    "torch": [
        ("SGD", {}), ("SGD", {"momentum": 0.9}), ("Adam", {}), ("Adam", {"amsgrad": True}),
        ("AdamW", {}), ("AdamW", {"amsgrad": True}), ("Adamax", {}), ("NAdam", {}), ("RAdam", {}),
        ("Adagrad", {}), ("Adadelta", {}), ("RMSprop", {}), ("Rprop", {}), ("ASGD", {}),
        ("RMSprop", {"momentum": 0.1, "centered": True}),
    ],
    "tensorflow": [
        ("SGD", {}), ("SGD", {"momentum": 0.9}), ("SGD", {"use_ema": True}), ("Adam", {}),
        ("Adam", {"amsgrad": True}), ("AdamW", {}), ("Adamax", {}), ("Nadam", {}), ("Adagrad", {}),
        ("Adadelta", {}), ("RMSprop", {}), ("RMSprop", {"momentum": 0.1, "centered": True}),
        ("Ftrl", {}), ("Lion", {}), ("Lamb", {}),
    ],
    "mindspore": [
        ("SGD", {}), ("SGD", {"momentum": 0.9}), ("Adam", {}), ("Adam", {"use_amsgrad": True}),
        ("Momentum", {"learning_rate": 0.1, "momentum": 0.9}), ("AdamWeightDecay", {}),
        ("LazyAdam", {}), ("AdaMax", {}), ("Adagrad", {}), ("RMSProp", {}),
        ("RMSProp", {"centered": True}), ("Lamb", {"learning_rate": 0.1}), ("FTRL", {}),
        ("ProximalAdagrad", {}), ("Adadelta", {}), ("ASGD", {}), ("Rprop", {}),
    ],
}  # fmt: skip


def numpy_state(name, options):
    import mpcore_numpy

    params = {"w": np.ones(SHAPE, "f4")}
    optimizer = getattr(mpcore_numpy, name)(params, **options)
    return optimizer, [slot["w"].shape for slot in optimizer.slots.values()]


def torch_state(name, options):
    import torch

    param = torch.nn.Parameter(torch.ones(SHAPE))
    param.grad = torch.ones(SHAPE)
    optimizer = getattr(torch.optim, name)([param], lr=0.1, **options)
    optimizer.step()
    return optimizer, [tuple(slot.shape) for slot in optimizer.state[param].values()
                       if torch.is_tensor(slot)]  # fmt: skip


def tensorflow_state(name, options):
    import keras

    optimizer = getattr(keras.optimizers, name)(**options)
    optimizer.build([keras.Variable(np.ones(SHAPE, "f4"))])
    return optimizer, [tuple(slot.shape) for slot in optimizer.variables]


def mindspore_state(name, options):
    import mindspore as ms

    param = ms.Parameter(ms.Tensor(np.ones(SHAPE, "f4")), name="w")
    optimizer = getattr(ms.nn, name)([param], **options)
    return optimizer, [tuple(s.shape) for s in optimizer.get_parameters() if s.name != "w"]


def test_optimizers_keep_what_the_table_says(kit) -> None:
    state = globals()[f"{kit.name}_state"]
    for name, options in OPTIMIZERS[kit.name]:
        optimizer, shapes = state(name, options)
        assert optimizer_slots(optimizer).arrays == shapes.count(SHAPE), (name, options)
        assert name.lower() in SLOTS

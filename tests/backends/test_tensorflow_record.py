"""Compiled steps of Keras are recorded as a twin: compiled too, and the same numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mpcore as mp
from mpcore.tools.recording.compare_runs import compare_runs

pytestmark = pytest.mark.backend("tensorflow")
STEPS = 4


def network() -> Any:
    import keras

    keras.utils.set_random_seed(0)
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((6, 6, 2)),
            layers.Conv2D(4, 3, use_bias=False),  # one would have no gradient but rounding
            layers.BatchNormalization(),
            layers.Activation("tanh"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(3),
        ]
    )


def batch() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    return rng.normal(size=(8, 6, 6, 2)).astype("float32"), rng.integers(0, 3, 8)


def stepping(model: Any, ran: list[str], moves: int = 1, *, fault: bool = False) -> Any:
    import keras
    import tensorflow as tf

    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    optimizer.build(model.trainable_variables)

    def step(x: Any, y: Any) -> Any:
        ran.append("eager" if tf.executing_eagerly() else "traced")
        for _ in range(moves):
            with tf.GradientTape() as tape:
                value = loss(y, model(x, training=True))
            grads = tape.gradient(value, model.trainable_variables)
            if fault:
                grads = [g * 0.5 for g in grads]
            optimizer.apply(grads, model.trainable_variables)
        return value

    return step


def recorded(folder: Any, *, compiled: bool, more: int = 0, **planted: Any) -> tuple[list, list]:
    import tensorflow as tf

    model, ran = network(), []
    step = stepping(model, ran, **planted)
    step = tf.function(step) if compiled else step
    losses = []
    with mp.record(model, folder, steps=STEPS):
        for _ in range(STEPS + more):
            losses.append(float(step(*batch())))
    return losses, ran


def between(a: Any, b: Any) -> Any:
    (found,) = compare_runs(a, b).values()
    return found


def test_a_compiled_step_stays_compiled_and_tells_what_an_eager_one_tells(tmp_path) -> None:
    eager, _ = recorded(tmp_path / "eager", compiled=False)
    losses, ran = recorded(tmp_path / "compiled", compiled=True, more=2)
    assert losses[:STEPS] == pytest.approx(eager, rel=1e-5)
    assert ran[:2] == ["eager", "traced"]  # the first is looked at op by op; then the twin
    assert set(ran[2:]) <= {"traced"}
    found = between(tmp_path / "eager", tmp_path / "compiled")
    assert found.same, found.verdict
    assert len(found.steps) == STEPS


def test_a_fault_in_a_compiled_step_is_found(tmp_path) -> None:
    recorded(tmp_path / "a", compiled=True)
    recorded(tmp_path / "b", compiled=True, fault=True)
    found = between(tmp_path / "a", tmp_path / "b")
    assert not found.same
    assert found.found.first.phase in ("update", "backward"), found.verdict


def test_a_function_of_two_moves_runs_eagerly(tmp_path) -> None:
    losses, ran = recorded(tmp_path / "two", compiled=True, moves=2)
    other, _ = recorded(tmp_path / "eager", compiled=False, moves=2)
    assert losses == pytest.approx(other, rel=1e-5)
    assert "eager" in ran[1:]
    assert between(tmp_path / "two", tmp_path / "eager").same


@pytest.mark.filterwarnings("ignore:Even though the:UserWarning")  # the first step runs eagerly
@pytest.mark.parametrize("jit", [False, True], ids=["graph", "XLA"])
def test_fit_is_recorded_compiled(tmp_path, jit) -> None:
    import keras

    for name in ("a", "b"):
        model = network()
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.1), loss, jit_compile=jit, metrics=["accuracy"])
        recording = mp.record(model, tmp_path / name, steps=STEPS)
        model.fit(*(np.tile(x, (3,) + (1,) * (x.ndim - 1)) for x in batch()), batch_size=4,
                  shuffle=False, verbose=0)  # fmt: skip
        assert recording.steps == STEPS
    found = between(tmp_path / "a", tmp_path / "b")
    assert found.same, found.verdict

"""What Keras' own tools do to a prepared model; see ``fuzz`` and ``things_tensorflow``."""

from __future__ import annotations

import tempfile
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from fuzz import main
from keras import layers
from things_tensorflow import WORLD, apart, compiled, dense, loss_of, one_pass, thing

__all__ = ["WORLD", "thing"]


def step_by(run, loss_fn):
    """Take the step with another loss function, which should be the same."""
    clip, micro = run.case.clip, run.case.micro
    run.amp.step(loss_fn, *run.batch, clip_norm=clip, micro_batches=micro)


# --- The model


@thing()
def built_again(run):
    run.model.build((None, 8))


@thing()
def summed_up(run):
    run.model.summary(print_fn=lambda line: None)
    run.model.count_params()
    run.model.get_config()


@thing()
def kernel_exchanged(run):
    layer = dense(run.model)
    layer.kernel = keras.Variable(layer.kernel.numpy().astype("float32"))


@thing()
def weights_of_a_layer_set_back(run):
    layer = dense(run.model)
    layer.set_weights(layer.get_weights())


@thing()
def nothing_added_to_a_kernel(run):
    kernel = dense(run.model).kernel
    kernel.assign_add(tf.zeros_like(kernel.value))


# Read from a by="model" model they are 16-bit values: docs/guarantees.md.
@thing(fits=lambda case: not case.policy.startswith("model"))
def swapped_for_an_average_and_back(run):
    kept = [variable.numpy() for variable in run.model.weights]
    for variable in run.model.trainable_variables:
        variable.assign(tf.zeros_like(variable.value))
    run.model(run.batch[0], training=False)
    for variable, value in zip(run.model.weights, kept, strict=True):
        variable.assign(value)


@thing(trains=True)
def clone_trained_natively(run):
    scope = {type(layer).__name__: type(layer) for layer in run.model.layers}
    with keras.utils.custom_object_scope(scope):
        other = keras.models.clone_model(run.model)
    other.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    other.fit(run.batch[0], run.batch[1], batch_size=8, verbose=0)
    run.step()  # the original must not have noticed
    run.index -= 1


@thing(trains=True)
def called_inside_another_model(run):
    inputs = layers.Input((8,))
    step_by(run, loss_of(keras.Model(inputs, run.model(inputs))))


@thing(trains=True)
def compiled_to_a_function(run):
    function = tf.function(run.model, autograph=False)

    class Called:
        def __call__(self, x, training):
            return function(x, training=training)

    step_by(run, loss_of(Called()))


@thing(trains=True)
def another_dtype_policy_in_the_middle(run):
    keras.config.set_dtype_policy("mixed_float16")
    try:
        run.step()
    finally:
        keras.config.set_dtype_policy("float32")
    run.index -= 1


@thing()
def frozen_for_a_forward(run):
    run.model.trainable = False
    run.model(run.batch[0], training=False)
    run.model.trainable = True


@thing()
def exported_to_a_config(run):
    run.model.to_json()


@thing()
def weight_frozen(run):
    new = apart(run)
    kernel = dense(new.model).kernel
    kernel.trainable = False
    before = new.amp.weights()["fc2.kernel"]
    new.step()
    assert np.array_equal(before, new.amp.weights()["fc2.kernel"]), "it is frozen, it moved"


@thing()
def seed_set(run):
    keras.utils.set_random_seed(7)


# --- The optimizer


@thing()
def slots_assigned(run):
    for variable in run.optimizer.variables:
        variable.assign(variable.value)


@thing()
def slots_set_back(run):
    if run.optimizer.built:
        store = {}
        run.optimizer.save_own_variables(store)
        run.optimizer.load_own_variables({key: np.asarray(value) for key, value in store.items()})


@thing()
def optimizer_built_natively(run):
    run.optimizer.build(run.model.trainable_variables)


@thing(trains=True, fits=one_pass)
def compiled_twice(run):
    x, y, boost = run.batch
    compiled(run)
    compiled(run).train_on_batch(x, y, sample_weight=boost)


@thing(trains=True, fits=one_pass)
def compiled_with_its_name(run):
    x, y, boost = run.batch
    run.model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    run.model.train_on_batch(x, y, sample_weight=boost)


# --- The step


@thing(trains=True)
def step_inside_a_function(run):
    clip, micro = run.case.clip, run.case.micro

    @tf.function(autograph=False)
    def train(*batch):
        return run.amp.step(run.loss_fn, *batch, clip_norm=clip, micro_batches=micro).loss

    train(*run.batch)


@thing(trains=True)
def step_inside_a_tape(run):
    with tf.GradientTape():
        run.step()
    run.index -= 1


@thing(trains=True)
def step_under_a_strategy(run):
    with tf.distribute.OneDeviceStrategy("/cpu:0").scope():
        run.step()
    run.index -= 1


@thing(trains=True)
def batch_of_arrays(run):
    clip, micro = run.case.clip, run.case.micro
    batch = [part.numpy() for part in run.batch]
    run.amp.step(run.loss_fn, *batch, clip_norm=clip, micro_batches=micro)


# --- What people do in the middle of a run


class _Evaluates(keras.callbacks.Callback):
    def __init__(self, x, y):
        super().__init__()
        self.x, self.y = x, y

    def on_train_batch_end(self, batch, logs=None):
        self.model.evaluate(self.x, self.y, batch_size=8, verbose=0)


@thing(trains=True, fits=one_pass)
def evaluated_in_a_callback_of_fit(run):
    x, y, boost = run.batch
    compiled(run).fit(
        x,
        y,
        sample_weight=boost,
        batch_size=8,
        shuffle=False,
        verbose=0,
        callbacks=[_Evaluates(x, y)],
    )


@thing(trains=True, fits=one_pass)
def checkpoints_written_by_fit(run):
    x, y, boost = run.batch
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, "best.weights.h5"))
        keep = keras.callbacks.ModelCheckpoint(path, save_weights_only=True, save_freq=1)
        compiled(run).fit(
            x, y, sample_weight=boost, batch_size=8, shuffle=False, verbose=0, callbacks=[keep]
        )
        if run.index not in run.case.bad:
            run.model.load_weights(path)


def _clone(run):
    scope = {type(layer).__name__: type(layer) for layer in run.model.layers}
    with keras.utils.custom_object_scope(scope):
        return keras.models.clone_model(run.model)


@thing(trains=True)
def optimizer_shared_with_a_clone(run):
    other = _clone(run)
    other.compile(run.amp.optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    other.fit(run.batch[0], run.batch[1], batch_size=8, verbose=0)
    msg = "a clone was trained by the optimizer of another model, without a word"
    raise AssertionError(msg)


@thing(trains=True)
def bare_optimizer_shared_with_a_clone(run):
    other = _clone(run)
    other.compile(run.optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    other.fit(run.batch[0], run.batch[1], batch_size=8, verbose=0)
    run.step()  # whatever the clone has done: the model must not have noticed
    run.index -= 1


@thing()
def tested_and_predicted_on_a_batch(run):
    model = compiled(run)
    model.test_on_batch(run.batch[0], run.batch[1])
    model.predict_on_batch(run.batch[0])
    model.reset_metrics()


@thing(trains=True, fits=one_pass)
def train_function_made_anew(run):
    x, y, boost = run.batch
    model = compiled(run)
    model.make_train_function(force=True)
    model.fit(x, y, sample_weight=boost, batch_size=8, shuffle=False, verbose=0)


@thing()
def weights_of_a_clone_taken(run):
    other = _clone(run)
    other.set_weights(run.model.get_weights())
    run.model.set_weights(other.get_weights())


@thing()
def counter_set_to_what_it_is(run):
    run.optimizer.iterations.assign(run.optimizer.iterations)
    run.optimizer.learning_rate = float(np.asarray(run.optimizer.learning_rate))


@thing()
def exported_for_serving(run):
    with tempfile.TemporaryDirectory() as folder:
        run.model.export(str(Path(folder, "served")), verbose=False)


@thing()
def turned_to_frozen_and_back(run):
    run.model.trainable = False
    run.model.trainable = True


if __name__ == "__main__":
    main(WORLD, thing)

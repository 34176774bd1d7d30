"""What Keras' own tools do to a prepared model; see ``fuzz`` and ``things_tensorflow``."""

from __future__ import annotations

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


if __name__ == "__main__":
    main(WORLD, thing)

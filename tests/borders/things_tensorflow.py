"""What people do to a prepared Keras model; see ``fuzz``."""

from __future__ import annotations

import copy
import os
import pickle
import signal
import tempfile
import threading
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from fuzz import COMMON, Case, Run, Things, fresh, main, same_but_for_rounding
from keras import layers

import mpcore as mp

thing = Things(COMMON)
raw = tf.autograph.experimental.do_not_convert


class Centred(layers.Layer):
    """Keeps a running mean in a trainable weight that its forward pass assigns."""

    def build(self, shape):
        self.kept = self.add_weight(shape=(shape[-1],), initializer="zeros", name="kept")

    def call(self, x, training=False):
        if training:
            mean = keras.ops.mean(keras.ops.cast(x, "float32"), 0)
            self.kept.assign(0.9 * keras.ops.cast(self.kept, "float32") + 0.1 * mean)
        return x - keras.ops.cast(self.kept, x.dtype)


def _mlp():
    return keras.Sequential(
        [
            layers.Input((8,)),
            layers.Dense(16, name="fc1"),
            layers.BatchNormalization(name="bn"),
            layers.ReLU(),
            layers.Dense(4, name="fc2"),
        ]
    )


def _spectral():
    return keras.Sequential(
        [
            layers.Input((8,)),
            layers.SpectralNormalization(layers.Dense(16, name="sn_fc"), name="sn"),
            layers.LayerNormalization(name="ln"),
            layers.ReLU(),
            layers.Dense(4, name="fc2"),
        ]
    )


def _centred():
    return keras.Sequential(
        [
            layers.Input((8,)),
            layers.Dense(16, name="fc1"),
            Centred(name="own"),
            layers.Dense(4, name="fc2"),
        ]
    )


class TensorflowWorld:
    models = ("mlp", "spectral", "centred")
    policies = ("mixed_float16", "mixed_bfloat16", "model_bfloat16", "model_bfloat16, master=split")
    optimizers = ("sgd", "adam")
    bad = (frozenset({2}), frozenset({1, 4}))
    steps = 5

    def build(self, case: Case) -> Run:
        keras.utils.set_random_seed(0)
        model = {"mlp": _mlp, "spectral": _spectral, "centred": _centred}[case.model]()
        optimizer = {
            "sgd": lambda: keras.optimizers.SGD(0.05, momentum=0.9),
            "adam": lambda: keras.optimizers.Adam(1e-2),
        }[case.optimizer]()
        amp = mp.prepare(model, optimizer, case.policy)
        return Run(case, amp, model, optimizer, loss_of(model), batches(), self)

    def digest(self, run: Run) -> dict[str, bytes]:
        found = {f"weight {k}": v.tobytes() for k, v in run.amp.weights().items()}
        for number, variable in enumerate(run.model.weights):
            found[f"variable {number} {variable.name}"] = _bytes(variable)
        for number, variable in enumerate(run.optimizer.variables):
            if "learning_rate" not in variable.path:
                found[f"slot {number} {variable.name.rpartition('_')[2]}"] = _bytes(variable)
        found["scale"] = repr(tuple(float(x) for x in run.amp.state)).encode()
        return found

    def keep_buffers(self, run: Run):
        kept = [(v, v.numpy()) for v in run.model.non_trainable_variables]
        weights = run.amp.weights()  # forwards assign what is trainable too

        def put_back():
            for variable, before in kept:
                variable.assign(before)
            if run.case.model != "mlp":
                run.amp.load_weights(weights)

        return put_back


def _bytes(variable):
    value = np.asarray(variable.value)
    return str(value.dtype).encode() + value.tobytes()


def loss_of(model):
    cross_entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @raw
    def loss_fn(x, y, boost):
        logits = tf.cast(model(x, training=True), tf.float32)
        return cross_entropy(y, logits) * tf.reduce_max(boost)

    return loss_fn


def batches():
    rng = np.random.default_rng(1)
    return [
        (
            tf.constant(rng.normal(size=(8, 8)).astype("float32")),
            tf.constant(rng.integers(0, 4, size=8)),
            tf.ones(8),
        )
        for _ in range(8)
    ]


_build = TensorflowWorld.build


def _with_bad(self, case):
    run = _build(self, case)
    run.batches = [
        (x, y, boost * float("inf")) if number in case.bad else (x, y, boost)
        for number, (x, y, boost) in enumerate(run.batches)
    ]
    return run


TensorflowWorld.build = _with_bad


def gradients(run):
    with tf.GradientTape() as tape:
        loss = run.loss_fn(*run.batch)
    return tape.gradient(loss, run.model.trainable_variables)


# --- Another loop trains it


@thing(trains=True)
def own_loop(run):
    run.optimizer.apply_gradients(zip(gradients(run), run.model.trainable_variables, strict=True))


@thing(trains=True)
def own_loop_apply(run):
    run.optimizer.apply(gradients(run), run.model.trainable_variables)


@thing(trains=True)
def own_loop_compiled(run):
    @tf.function(autograph=False)
    def train():
        run.optimizer.apply(gradients(run), run.model.trainable_variables)

    train()


@thing(trains=True)
def compiled_with_the_bare_optimizer(run):
    run.model.compile(run.optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    run.model.fit(run.batch[0], run.batch[1], batch_size=8, epochs=1, verbose=0)


@thing(trains=True)
def train_on_batch_bare(run):
    run.model.compile(run.optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    run.model.train_on_batch(run.batch[0], run.batch[1])


@thing(trains=True)
def compiled_with_a_new_optimizer(run):
    run.model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    run.model.fit(run.batch[0], run.batch[1], batch_size=8, epochs=1, verbose=0)


@thing(trains=True)
def second_optimizer(run):
    keras.optimizers.SGD(0.05).apply(gradients(run), run.model.trainable_variables)


@thing(trains=True)
def native_loss_scaler(run):
    scaled = keras.optimizers.LossScaleOptimizer(run.optimizer)
    with tf.GradientTape() as tape:
        loss = scaled.scale_loss(run.loss_fn(*run.batch))
    found = tape.gradient(loss, run.model.trainable_variables)
    scaled.apply(found, run.model.trainable_variables)


@thing(trains=True)
def loss_scaler_over_ours(run):
    scaled = keras.optimizers.LossScaleOptimizer(run.amp.optimizer)
    with tf.GradientTape() as tape:
        loss = scaled.scale_loss(run.loss_fn(*run.batch))
    found = tape.gradient(loss, run.model.trainable_variables)
    scaled.apply(found, run.model.trainable_variables)


def one_pass(case):
    return case.micro == 1 and case.clip is None


def _unscaled(run, *batch):
    with tf.GradientTape() as tape:
        loss = run.loss_fn(*batch)
    found = tape.gradient(loss, run.model.trainable_variables)
    run.amp.optimizer.apply(found, run.model.trainable_variables)


@thing(trains=True, fits=one_pass)
def ours_without_scaling(run):
    """Gradients of the loss itself: where there is a scale, ours would divide by it."""
    tf.function(partial(_unscaled, run), autograph=False)(*run.batch)


@contextmanager
def _as_traced():
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    try:
        yield
    finally:
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})


# TensorFlow rewrites a graph: a bias joins its product before that is rounded to 16 bits, so that
# in plain Keras too a graph's gradients are not eager mode's. As traced they are, and so are ours.
@thing(fits=one_pass)
def ours_without_scaling_eagerly(run):
    with _as_traced():
        here, there = fresh(run), fresh(run)
        for _ in range(2):  # at first biases are 0, which nothing rounds
            here.step()
            _unscaled(there, *there.batch)
            there.index += 1
    parted = [
        name for name, value in WORLD.digest(here).items() if WORLD.digest(there)[name] != value
    ]
    assert not parted, f"eager steps part in {parted[:4]}"


@thing(trains=True, fits=one_pass)
def amp_loop(run):
    @tf.function(autograph=False)  # eager mode rounds otherwise, see above
    def train(*batch):
        with tf.GradientTape() as tape:
            loss = run.amp.optimizer.scale_loss(run.loss_fn(*batch))
        found = tape.gradient(loss, run.model.trainable_variables)
        run.amp.optimizer.apply(found, run.model.trainable_variables)

    train(*run.batch)


@thing()
def loss_of_another_model(run):
    run.amp.step(loss_of(_mlp()), *run.batch)


@thing()
def loss_detached(run):
    run.amp.step(lambda *batch: tf.stop_gradient(run.loss_fn(*batch)), *run.batch)


# --- The plan is changed


@thing()
def layer_policy(run):
    dense(run.model).dtype_policy = "float64"


def dense(model):
    return model.layers[-1]


@thing()
def call_replaced(run):
    layer = dense(run.model)
    layer.call = lambda x, **_: tf.matmul(tf.cast(x, tf.float32), tf.cast(layer.kernel, tf.float32))


@thing()
def global_policy(run):
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_float16")
    run.keep["before"] = before
    keras.config.set_dtype_policy(before)


@thing()
def layer_popped(run):
    run.model.pop()


@thing()
def quantized(run):
    run.model.quantize("int8")


@thing()
def frozen_layer(run):
    run.model.layers[0].trainable = False
    run.model.layers[0].trainable = True


@thing()
def predicted(run):
    run.model.predict(run.batch[0], verbose=0)


@thing()
def evaluated(run):
    run.model(run.batch[0], training=False)


# --- Copied and saved


def same_output(run, other):
    left, right = run.model(run.batch[0], training=False), other(run.batch[0], training=False)
    if left.dtype != right.dtype or not np.array_equal(left, right):
        msg = "the copy computes something else, without a word"
        raise AssertionError(msg)


OWN = {"Centred": Centred}


def is_plain(run, other):
    """A copy that Keras writes as a config is an unprepared model, with these weights."""
    assert {layer.dtype_policy.name for layer in other.layers} == {"float32"}
    assert {variable.value.dtype.name for variable in other.variables} <= {"float32", "int64"}


@thing()
def cloned(run):
    is_plain(run, keras.models.clone_model(run.model))


@thing()
def saved_whole(run):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.keras")
        run.model.save(path)
        other = keras.models.load_model(path, custom_objects=OWN)
    mp.prepare(other, keras.optimizers.SGD(0.1), run.case.policy)
    same_output(run, other)


@thing()
def pickled(run):
    with keras.utils.custom_object_scope(OWN):
        same_output(run, pickle.loads(pickle.dumps(run.model)))


@thing()
def copied_deep(run):
    with keras.utils.custom_object_scope(OWN):
        same_output(run, copy.deepcopy(run.model))


@thing()
def weights_saved_and_loaded(run):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "w.weights.h5")
        run.model.save_weights(path)
        run.model.load_weights(path)


@thing()
def weights_set_back(run):
    run.model.set_weights(run.model.get_weights())


def put(new, run):
    if not new.optimizer.built:
        new.optimizer.build(new.model.trainable_variables)
    for mine, theirs in zip(new.optimizer.variables, run.optimizer.variables, strict=True):
        mine.assign(theirs)


@thing()
def resumed_from_dicts(run):
    new = fresh(run)
    new.model.set_weights(run.model.get_weights())
    put(new, run)
    new.amp.load_state_dict(copy.deepcopy(run.amp.state_dict()))
    return new


@thing()
def resumed_from_files(run):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "run.amp")
        run.amp.save(path, weights=True)
        new = fresh(run)
        put(new, run)
        new.amp.load(path)
    return new


@thing(warns=True)
def resumed_from_weights_files(run):
    new = fresh(run)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "w.weights.h5")
        run.model.save_weights(path)
        new.model.load_weights(path)
    put(new, run)
    new.amp.state = run.amp.state
    return new


# --- Changed by hand, in the middle of a run


def apart(run):
    """Return another run at a good batch: what it does is not neutral."""
    new = fresh(run)
    new.index = next(n for n in range(8) if n not in run.case.bad)
    return new


def moves(new):
    """Take a step; return whether it has moved what is last."""
    before = new.amp.weights()["fc2.kernel"]
    new.step()
    new.index -= 1
    return not np.array_equal(before, new.amp.weights()["fc2.kernel"])


@thing()
def rate_by_hand(run):
    new = apart(run)
    new.optimizer.learning_rate = 0.0
    assert not moves(new), "the rate is 0, it moved"
    new.optimizer.learning_rate = 0.1
    assert moves(new), "the rate is 0.1, it stayed"


@thing()
def rate_of_ours_by_hand(run):
    new = apart(run)
    new.amp.optimizer.learning_rate = 0.0
    assert not moves(new), "the rate is 0, it moved"
    new.amp.optimizer.learning_rate.assign(0.1)
    assert moves(new), "the rate is 0.1, it stayed"


@thing()
def layer_frozen(run):
    new = apart(run)
    if run.case.optimizer == "adam":  # what has momentum goes on
        assert moves(new) or moves(new)  # the first scale may be too high
    dense(new.model).trainable = False
    assert not moves(new), "the layer is frozen, it moved"


@thing()
def zeros_by_set_weights(run):
    new = apart(run)
    new.step()
    new.model.set_weights([np.zeros_like(w) for w in new.model.get_weights()])
    assert not any(w.any() for w in new.amp.weights().values()), "it goes on from other values"


@thing()
def zeros_by_assign(run):
    new = apart(run)
    new.step()
    kernel = dense(new.model).kernel
    kernel.assign(tf.zeros_like(kernel.value))
    assert not new.amp.weights()["fc2.kernel"].any(), "it goes on from other values"


@thing()
def zeros_by_load_weights(run):
    new, plain = apart(run), {"mlp": _mlp, "spectral": _spectral, "centred": _centred}
    new.step()
    other = plain[run.case.model]()
    other.set_weights([np.zeros_like(w) for w in other.get_weights()])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "w.weights.h5")
        other.save_weights(path)
        new.model.load_weights(path)
    assert not any(w.any() for w in new.amp.weights().values()), "it goes on from other values"


@thing()
def checkpoint_of_tensorflow(run):
    with tempfile.TemporaryDirectory() as folder:
        point = tf.train.Checkpoint(model=run.model)
        point.read(point.write(str(Path(folder, "point")))).assert_consumed()


def compiled(run, **given):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    run.model.compile(optimizer=run.amp.optimizer, loss=loss, **given)
    return run.model


@thing(trains=True, fits=one_pass)
def fit_for_a_batch(run):
    x, y, boost = run.batch
    compiled(run).fit(x, y, sample_weight=boost, batch_size=8, shuffle=False, verbose=0)


@thing(trains=True, fits=one_pass)
def train_on_batch(run):
    x, y, boost = run.batch
    compiled(run).train_on_batch(x, y, sample_weight=boost)


def _fit_own_step(run, scaled):
    class Own(keras.Model):
        def train_step(self, data):
            with tf.GradientTape() as tape:
                loss = scaled(run.loss_fn(*run.batch))
            found = tape.gradient(loss, run.model.trainable_variables)
            self.optimizer.apply(found, run.model.trainable_variables)
            return {"loss": loss}

    own = Own(run.model.inputs, run.model.outputs)
    own.compile(optimizer=run.amp.optimizer)
    own.fit(run.batch[0], run.batch[1], batch_size=8, epochs=1, verbose=0)


@thing(trains=True, fits=one_pass)
def own_train_step(run):
    _fit_own_step(run, run.amp.optimizer.scale_loss)


@thing(trains=True, fits=one_pass)
def own_train_step_without_scaling(run):
    _fit_own_step(run, lambda loss: loss)


@thing(trains=True, fits=one_pass)
def amp_loop_of_any_length(run):
    shapes = [tf.TensorSpec([None, *t.shape[1:]], t.dtype) for t in run.batch]

    @tf.function(autograph=False, input_signature=shapes)
    def train(*batch):
        with tf.GradientTape() as tape:
            loss = run.amp.optimizer.scale_loss(run.loss_fn(*batch))
        found = tape.gradient(loss, run.model.trainable_variables)
        run.amp.optimizer.apply(found, run.model.trainable_variables)

    train(*run.batch)


@thing()
def shared_layer_prepared_again(run):
    other = keras.Sequential([layers.Input((8,)), run.model.layers[0], layers.Dense(2)])
    mp.prepare(other, keras.optimizers.SGD(0.1), run.case.policy)


@thing()
def shared_layer_trained_in_another_model(run):
    other = keras.Sequential([layers.Input((8,)), run.model.layers[0], layers.Dense(4)])
    other.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    other.fit(run.batch[0], run.batch[1], verbose=0)


@thing()
def looked_into(run):
    part = keras.Model(run.model.inputs, run.model.layers[-2].output)
    part.predict(run.batch[0], verbose=0)


@thing()
def session_cleared(run):
    keras.backend.clear_session()


@thing()
def optimizer_built_again(run):
    run.amp.optimizer.build(run.model.trainable_variables)


@contextmanager
def _eager_functions():
    tf.config.run_functions_eagerly(True)
    try:
        yield
    finally:
        tf.config.run_functions_eagerly(False)


# A graph adds up otherwise than eager mode does, natively too.
@thing()
def functions_run_eagerly(run):
    same_but_for_rounding(run, _eager_functions())


@thing(trains=True)
def apply_gradients_of_its_optimizer(run):
    with tf.GradientTape() as tape:
        loss = run.loss_fn(*run.batch)
    weights = run.model.trainable_variables
    run.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))


@thing(trains=True)
def a_trainer_around_it(run):
    class Trainer(keras.Model):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def call(self, x, training=False):
            return self.inner(x, training=training)

    outer = Trainer(run.model)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    outer.compile(optimizer=keras.optimizers.SGD(0.1), loss=loss)
    outer.fit(run.batch[0], run.batch[1], batch_size=8, verbose=0)


@thing(trains=True)
def default_float_type(run):
    keras.backend.set_floatx("float16")
    try:
        run.step()
    finally:
        keras.backend.set_floatx("float32")
    run.index -= 1


@thing(trains=True)
def saved_whole_and_gone_on(run):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    run.model.compile(optimizer=run.amp.optimizer, loss=loss)
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, "net.keras"))
        run.model.save(path)
        model = keras.saving.load_model(path, custom_objects={"Centred": Centred})
    amp = mp.prepare(model, model.optimizer, run.case.policy)
    amp.load_state_dict(run.amp.state_dict())
    clip, micro = run.case.clip, run.case.micro
    amp.step(loss_of(model), *run.batch, clip_norm=clip, micro_batches=micro)
    run.step()
    run.index -= 1
    for name, value in run.amp.weights().items():
        assert np.array_equal(value, amp.weights()[name]), f"{name} parts from the file's"


# --- Interrupted


@thing()
def signal_while_it_steps(run):
    timer = threading.Timer(0.004, os.kill, (os.getpid(), signal.SIGINT))
    try:
        timer.start()
        run.step()
        timer.join()
    finally:
        timer.join()
        run.index = run.case.at


@thing(forwards=True)  # it has run when the graph fails: docs/guarantees.md
def error_in_the_graph(run):
    x, y, boost = run.batch
    run.amp.step(run.loss_fn, x, y + 100, boost)


# --- Mistakes


@thing()
def wrong_shape(run):
    x, y, boost = run.batch
    run.amp.step(run.loss_fn, x[:, :3], y, boost)


@thing()
def loss_of_each_row(run):
    run.amp.step(raw(lambda x, y, b: tf.cast(run.model(x), tf.float32)[:, 0]), *run.batch)


WORLD = TensorflowWorld()

if __name__ == "__main__":
    main(WORLD, thing)

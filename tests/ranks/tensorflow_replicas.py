"""Two replicas on two logical CPU devices; prints what each scenario saw, as JSON.

Logical devices must be said before TensorFlow starts, so this runs in a process of its own.
"""

from __future__ import annotations

import json
import sys

import keras
import numpy as np
import tensorflow as tf
from keras import layers

import mpcore as mp

ROWS = 16
CROSS_ENTROPY = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
RNG = np.random.default_rng(0)
X = RNG.normal(size=(ROWS, 8)).astype("f4")
Y = RNG.integers(0, 4, ROWS).astype("i4")
SCALED = "float32, loss_scale=dynamic(init_scale=1024, growth_interval=4)"


def two_replicas():
    cpu = tf.config.list_physical_devices("CPU")[0]
    devices = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(cpu, devices)
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def net(norm="plain"):
    keras.utils.set_random_seed(0)
    norms = {
        "plain": [layers.BatchNormalization(name="bn")],
        "synchronized": [layers.BatchNormalization(name="bn", synchronized=True)],
        "none": [],
    }
    hidden = [layers.Dense(16, name="fc1"), *norms[norm], layers.ReLU()]
    return keras.Sequential([layers.Input((8,)), *hidden, layers.Dense(4, name="fc2")])


def optimizer(name):
    if name == "adam":
        return keras.optimizers.Adam(0.01)
    if name == "adamw":
        return keras.optimizers.AdamW(0.01, weight_decay=0.1)
    return keras.optimizers.SGD(0.1, momentum=0.9)


class Run:
    """A prepared model under a strategy, stepped by ``amp.step`` or by ``fit``."""

    def __init__(self, strategy, policy, way="step", norm="plain", kind="sgd", **options):
        with strategy.scope():
            self.model, inner = net(norm), optimizer(kind)
        self.amp = mp.prepare(self.model, inner, policy, **options)
        self.way = way
        if way != "step":
            self.model.compile(
                optimizer=self.amp.optimizer, loss=CROSS_ENTROPY, run_eagerly=way == "eager fit"
            )

        def loss_fn(x, y):
            return CROSS_ENTROPY(y, self.model(x, training=True))

        self.loss_fn = loss_fn

    def step(self, x, y=Y, **call):
        if self.way == "step":
            return self.amp.step(self.loss_fn, x, y, **call)
        self.model.fit(x, y, batch_size=len(x), shuffle=False, verbose=0)
        return None

    def values(self):
        """Return every copy of every variable."""
        wrapper = self.amp.optimizer
        held = [
            *self.model.variables,
            *wrapper.inner_optimizer.variables,
            *wrapper.masters.values(),
        ]
        return [np.asarray(part.numpy(), "f4") for v in held for part in components(v)]


def components(variable):
    stored = variable.value
    return getattr(stored, "values", None) or [stored]


def same(before, after):
    return len(before) == len(after) and all(map(np.array_equal, before, after))


def poisoned(replica, x=X):
    x = x.copy()
    x[replica * ROWS // 2, 0] = np.inf
    return x


def one_bad(strategy, way, policy, kind):
    """One replica overflows, later the other: all skip, the scale halves once, training goes on."""
    run = Run(strategy, policy, way, kind=kind)  # once: to compile its step takes seconds
    run.step(X)
    for replica in (0, 1):
        before, scale = run.values(), run.amp.scale
        skipped, count = run.amp.state.skipped_steps, run.amp.optimizer.iterations.numpy()
        run.step(poisoned(replica))
        kept, halved = same(before, run.values()), run.amp.scale == scale / 2
        skipped = run.amp.state.skipped_steps - skipped
        run.step(X)
        after = run.values()
        weights = run.model.get_layer("fc1").kernel.value.values
        yield (
            replica,
            {
                "kept": kept,
                "halved": halved,
                "skipped": skipped,
                "moved": not same(before, after),
                "finite": all(np.isfinite(value).all() for value in after),
                "replicas agree": np.array_equal(*(np.asarray(w.numpy(), "f4") for w in weights)),
                "iterations": int(run.amp.optimizer.iterations.numpy() - count),
            },
        )


def native_one_bad(strategy, replica):
    with strategy.scope():
        model = net()
        scaler = keras.optimizers.LossScaleOptimizer(optimizer("sgd"))
        model.compile(optimizer=scaler, loss=CROSS_ENTROPY)
    model.fit(X, Y, batch_size=ROWS, verbose=0)
    scale = float(scaler.dynamic_scale.numpy())
    model.fit(poisoned(replica), Y, batch_size=ROWS, shuffle=False, verbose=0)
    return {
        "halved": float(scaler.dynamic_scale.numpy()) == scale / 2,
        "finite weights": bool(np.isfinite(model.get_layer("fc1").kernel.numpy()).all()),
        "finite statistics": all(
            bool(np.isfinite(part.numpy()).all())
            for part in components(model.get_layer("bn").moving_mean)
        ),
    }


def like_one_replica(strategy, way, norm, kind):
    """20 steps, 5 of them bad on one replica, beside a run on one replica."""
    single = tf.distribute.get_strategy()
    runs = [Run(s, SCALED, way, norm, kind) for s in (strategy, single)]
    losses = []
    for index in range(20):
        x, y = np.roll(X, index, axis=0), np.roll(Y, index)
        if index % 4 == 2:
            x = poisoned(index % 8 // 4, x)
        losses.append([run.step(x, y) for run in runs])
    weights = [[v.numpy() for v in run.model.trainable_variables] for run in runs]
    apart = max(float(np.abs(a - b).max()) for a, b in zip(*weights, strict=True))
    out = {"apart": apart, "states": [run.amp.state for run in runs]}
    if way == "step":
        good = [pair for pair in losses if pair[0].stepped]
        out["stepped"] = [[r.stepped for r in pair] for pair in losses]
        out["losses apart"] = max(abs(a.loss - b.loss) for a, b in good)
        out["norms apart"] = max(abs(a.grad_norm - b.grad_norm) for a, b in good)
    return out


def schemes_alike(strategy):
    """Two schemes that keep every bit of float32 end alike, one computed in each replica."""
    weights = []
    for scheme in ("copy", "split:nearest"):
        policy = f"model_bfloat16, master={scheme}, loss_scale=dynamic(init_scale=1024)"
        run = Run(strategy, policy, norm="none", kind="adamw")
        steps = [run.step(poisoned(1) if index == 2 else X).stepped for index in range(5)]
        weights.append([array for _, array in sorted(run.amp.weights().items())])
    return {"stepped": steps, "same": same(*weights)}


def strategy_of_one(single):
    """A MirroredStrategy on one device, in `fit`, beside no strategy at all."""
    runs = [Run(s, SCALED, "fit", "none", "adam") for s in (single, tf.distribute.get_strategy())]
    for x in (X, poisoned(1), X):
        for run in runs:
            run.step(x)
    values = [[v.numpy() for v in run.model.trainable_variables] for run in runs]
    return {"same": same(*values), "states": [run.amp.state for run in runs]}


def distributed_batch(strategy):
    """A batch that is in parts already gives what cutting a whole one gives."""
    runs = [Run(strategy, SCALED, norm="none") for _ in range(2)]
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(ROWS)
    ((x, y),) = strategy.experimental_distribute_dataset(data)
    losses = [[runs[0].step(X).loss, runs[1].step(x, y).loss]]
    losses.append([runs[0].step(X).loss, runs[1].step(x, y, micro_batches=2).loss])
    pairs = zip(*(run.values() for run in runs), strict=True)
    return {"losses": losses, "apart": max(float(np.abs(a - b).max()) for a, b in pairs)}


def dropped(strategy):
    """The second of four micro-batches is bad on the second replica."""
    bad = Run(strategy, SCALED, norm="none", on_bad_micro_batch="drop")
    good = Run(strategy, SCALED, norm="none", on_bad_micro_batch="drop")
    x = X.copy()
    x[6, 0] = np.inf  # rows 4 to 7 are the second micro-batch, 6 and 7 those of replica 1
    rows = np.r_[0:4, 8:16]
    result = bad.step(x, micro_batches=4)
    expected = good.step(X[rows], Y[rows], micro_batches=3)
    return {
        "stepped": result.stepped,
        "dropped": result.dropped,
        "same": same(bad.values(), good.values()),
        "losses": [result.loss, expected.loss],
    }


def several(strategy):
    """Two optimizers, a guarded variable and a counter, made in and out of the strategy."""
    with strategy.scope():
        model = net()
        parts = {"a": ("fc1", "bn"), "b": ("fc2",)}
        optimizers = {name: optimizer("sgd") for name in parts}
        for name, names in parts.items():
            found = [v for n in names for v in model.get_layer(n).trainable_variables]
            optimizers[name].build(found)
        memory = tf.Variable(tf.zeros(3), aggregation=tf.VariableAggregation.MEAN)
    count = tf.Variable(0)

    def loss_fn(x, y):
        memory.assign_add(tf.ones(3))
        return CROSS_ENTROPY(y, model(x, training=True))

    def add():
        count.assign_add(1)

    amp = mp.prepare(model, optimizers, SCALED, restore_on_skip=[memory], after_step=[add])
    stepped = [amp.step(loss_fn, x, Y).stepped for x in (X, poisoned(1), poisoned(0), X)]
    one_each = {"a": loss_fn, "b": loss_fn}
    stepped.append(amp.step(one_each, X, Y).stepped)
    return {
        "stepped": stepped,
        "count": int(count.numpy()),
        "memory": memory.numpy().tolist(),
        "scale": amp.scale,
    }


def refusals(strategy):
    found = {}
    with strategy.scope():
        model = net()
    inside = Run(strategy, SCALED)
    attempts = {
        "outside": lambda: mp.prepare(model, optimizer("sgd"), SCALED),
        "rows": lambda: Run(strategy, SCALED).step(X[:15], Y[:15]),
        "replica": lambda: strategy.run(lambda: inside.step(X)),
    }
    for name, attempt in attempts.items():
        try:
            attempt()
        except mp.MpcoreError as exc:
            found[name] = str(exc)
    return found


def overflows(strategy, ways):
    """Return what each replica's overflow did, by way."""
    split = "model_bfloat16, master=split, loss_scale=dynamic(init_scale=1024)"
    kinds = {
        **dict.fromkeys(("step", "fit", "eager fit"), ("mixed_float16", "sgd")),
        "masters": ("model_float16", "adam"),
        "split": (split, "adamw"),
    }
    loops = {"masters": "step", "split": "fit"}
    return {
        f"one bad, {way}, {replica}": found
        for way in ways
        for replica, found in one_bad(strategy, loops.get(way, way), *kinds[way])
    }


def main(*ways):
    """Print what the overflows of some ways did; with no way, of all, and all other scenarios."""
    strategy = two_replicas()
    seen = overflows(strategy, ways or ("step", "fit", "eager fit", "masters", "split"))
    if ways:
        print(json.dumps(seen))
        return
    seen["schemes alike"] = schemes_alike(strategy)
    seen["strategy of one"] = strategy_of_one(tf.distribute.MirroredStrategy(["CPU:0"]))
    for replica in (0, 1):
        seen[f"native, {replica}"] = native_one_bad(strategy, replica)
    for way in ("step", "fit"):
        for norm, kind in (("none", "adam"), ("synchronized", "sgd")):
            seen[f"like one, {way}, {norm}"] = like_one_replica(strategy, way, norm, kind)
    seen["distributed batch"] = distributed_batch(strategy)
    seen["dropped"] = dropped(strategy)
    seen["several"] = several(strategy)
    seen["refusals"] = refusals(strategy)
    print(json.dumps(seen))


if __name__ == "__main__":
    main(*sys.argv[1:])

"""The graph of a Keras model from end to end: see it, keep an op full, train, fold, write, load.

Its files go to the folder given, or here: python examples/graph/story_keras.py /tmp/story
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import mpcore as mp

POLICY = "mixed_bfloat16, by=graph; full op=softmax; full path=head"
ELSEWHERE = """
import sys
import numpy as np
import tensorflow as tf

net = tf.saved_model.load(sys.argv[1])
out = net.serve(tf.constant(np.load(sys.argv[2])))
assert "mpcore" not in sys.modules
np.save(sys.argv[3], out.numpy())
"""


class Net(keras.Model):
    """A convolution with its normalisation, then attention over the pixels."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.conv = keras.layers.Conv2D(width, 3, strides=2, name="conv")
        self.bn = keras.layers.BatchNormalization(name="bn")
        self.q, self.k, self.v = (keras.layers.Dense(width, name=name) for name in "qkv")
        self.head = keras.layers.Dense(10, name="head")
        self.width = width

    def call(self, x: Any, training: bool = False) -> Any:
        h = tf.nn.relu(self.bn(self.conv(x), training=training))
        h = tf.reshape(h, (-1, 49, self.width))
        scores = tf.matmul(self.q(h), self.k(h), transpose_b=True) * self.width**-0.5
        return self.head(tf.reduce_mean(tf.matmul(tf.nn.softmax(scores), self.v(h)), 1))


def main(folder: Path) -> dict[str, Any]:
    """Go through the story; return what was found."""
    folder.mkdir(parents=True, exist_ok=True)
    keras.utils.set_random_seed(0)
    random = np.random.default_rng(0)
    x = random.standard_normal((32, 16, 16, 3)).astype("float32")
    y = random.integers(0, 10, 32)
    model = Net()
    model(x[:8])  # builds it

    # See: every call, every cast and why, as text and as a picture.
    found = mp.explain(model, POLICY, x[:8])
    (folder / "graph.html").write_text(found.html(), encoding="utf-8")
    print(found)

    # Train by the graph with one op and one layer full: what ran says so.
    amp = mp.prepare(model, keras.optimizers.AdamW(1e-2), POLICY, example=x[:8])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=amp.optimizer, loss=loss)
    history = model.fit(x, y, batch_size=8, epochs=3, shuffle=False, verbose=0)
    ran = mp.observe(amp, x[:8])
    amp.release()

    # Fold the normalisation; write the file, and load it where there is no mpcore.
    expected = model(x[:8]).numpy()
    fast = mp.graph.fold_batch_norm(model, x[:8])
    off = float(np.abs(fast(x[:8]).numpy() - expected).max())
    made = mp.export(fast, folder / "net", POLICY, x[:8])
    print(made)
    np.save(folder / "x.npy", x[:8])
    names = [str(folder / name) for name in ("net", "x.npy", "out.npy")]
    subprocess.run([sys.executable, "-c", ELSEWHERE, *names], check=True)
    out = np.load(folder / "out.npy")
    return {
        "losses": history.history["loss"],
        "planned": found.plans[0],
        "ran": [(row.seen.op, row.seen.kernels) for row in ran.ops],
        "folded": off,
        "casts": len(made.plan.casts),
        "elsewhere": float(np.abs(out - expected).max() / np.abs(expected).max()),
        "difference": made.difference,
    }


if __name__ == "__main__":
    told = main(Path(*sys.argv[1:2]))
    told.pop("planned")
    print(told)

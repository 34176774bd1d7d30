"""The graph of a network of MindSpore from end to end: see, train, fold, write, load.

An op and a layer stay full.

Its files go to the folder given, or here: python examples/graph/story_mindspore.py /tmp/story
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

import mpcore as mp

POLICY = "autocast_float16, by=graph; full op=softmax; full path=head"
ELSEWHERE = """
import sys
import mindspore as ms
import numpy as np

ms.set_context(mode=ms.GRAPH_MODE)
net = ms.nn.GraphCell(ms.load(sys.argv[1]))
out = net(ms.Tensor(np.load(sys.argv[2])))
assert "mpcore" not in sys.modules
np.save(sys.argv[3], out.asnumpy())
"""


class Net(nn.Cell):
    """A convolution with its normalisation, then attention over the pixels."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, width, 3, stride=2, pad_mode="valid", has_bias=True)
        self.bn = nn.BatchNorm2d(width)
        self.q, self.k, self.v = (nn.Dense(width, width) for _ in range(3))
        self.head = nn.Dense(width, 10)
        self.width = width

    def construct(self, x: Any) -> Any:
        h = ops.relu(self.bn(self.conv(x))).reshape(x.shape[0], self.width, -1).swapaxes(1, 2)
        scores = ops.matmul(self.q(h), self.k(h).swapaxes(1, 2)) * self.width**-0.5
        return self.head(ops.matmul(ops.softmax(scores, -1), self.v(h)).mean(1))


def main(folder: Path) -> dict[str, Any]:
    """Go through the story; return what was found."""
    folder.mkdir(parents=True, exist_ok=True)
    ms.set_seed(0)
    ms.set_context(mode=ms.PYNATIVE_MODE)
    random = np.random.default_rng(0)
    x = Tensor(random.standard_normal((8, 3, 16, 16)).astype("float32"))
    y = Tensor(random.integers(0, 10, 8).astype("int32"))
    net = Net()

    # See: every call, every cast and why, as text and as a picture.
    found = mp.explain(net, POLICY, x)
    (folder / "graph.html").write_text(found.html(), encoding="utf-8")
    print(found)

    # Train by the graph with one op and one layer full.
    optimizer = nn.Adam(net.trainable_params(), 1e-2)
    amp = mp.prepare(net, optimizer, POLICY, example=x)
    losses = [
        float(amp.step(lambda x, y: ops.cross_entropy(net(x), y), x, y).loss) for _ in range(5)
    ]
    ran = mp.observe(amp, x)
    amp.release()

    # Fold the normalisation; write the file, and load it where there is no mpcore.
    net.set_train(False)
    fast = mp.graph.fold_batch_norm(net, x)
    expected = net(x).asnumpy()
    off = float(np.abs(fast(x).asnumpy() - expected).max())
    made = mp.export(fast, folder / "net.mindir", POLICY.replace("head", "head/*"), x)
    print(made)
    np.save(folder / "x.npy", x.asnumpy())
    names = [str(folder / name) for name in ("net.mindir", "x.npy", "out.npy")]
    subprocess.run([sys.executable, "-c", ELSEWHERE, *names], check=True)
    out = np.load(folder / "out.npy")
    return {
        "losses": losses,
        "planned": found.plans[0],
        "ran": [(row.seen.name, row.seen.kernels) for row in ran.ops],
        "folded": off,
        "casts": len(made.plan.casts),
        "elsewhere": float(np.abs(out - expected).max() / np.abs(expected).max()),
        "difference": made.difference,
    }


if __name__ == "__main__":
    told = main(Path(*sys.argv[1:2]))
    told.pop("planned")
    print(told)

"""One framework: loads a policy file, trains the net body, norm, head, and tells plan and losses.

python portable_worker.py FRAMEWORK POLICY.toml
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

import mpcore as mp

STEPS, RATE = 6, 0.1
RNG = np.random.default_rng(0)
X = RNG.normal(size=(32, 8)).astype(np.float32)
Y = RNG.integers(0, 4, 32).astype(np.int32)


def in_torch() -> tuple[Any, Any, Callable[[], Callable[..., Any]], tuple[Any, ...]]:
    import torch
    from torch import nn

    model = nn.Sequential()
    for name, layer in (
        ("body", nn.Linear(8, 8)),
        ("norm", nn.LayerNorm(8)),
        ("head", nn.Linear(8, 4)),
    ):
        model.add_module(name, layer)
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    batch = torch.from_numpy(X), torch.from_numpy(Y).long()
    return model, optimizer, lambda: lambda x, y: nn.functional.cross_entropy(model(x), y), batch


def in_tensorflow() -> tuple[Any, Any, Callable[[], Callable[..., Any]], tuple[Any, ...]]:
    import keras

    inputs = keras.Input((8,))
    h = keras.layers.Dense(8, name="body")(inputs)
    h = keras.layers.LayerNormalization(name="norm")(h)
    model = keras.Model(inputs, keras.layers.Dense(4, name="head")(h))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return model, keras.optimizers.SGD(RATE), lambda: lambda x, y: loss(y, model(x)), (X, Y)


def in_mindspore() -> tuple[Any, Any, Callable[[], Callable[..., Any]], tuple[Any, ...]]:
    from collections import OrderedDict

    import mindspore as ms
    from mindspore import nn, ops

    parts = OrderedDict(body=nn.Dense(8, 8), norm=nn.LayerNorm((8,)), head=nn.Dense(8, 4))
    net = nn.SequentialCell(parts)
    optimizer = nn.SGD(net.trainable_params(), RATE)

    def loss_fn(x: Any, y: Any) -> Any:
        return ops.cross_entropy(net(x).astype(ms.float32), y)

    return net, optimizer, lambda: loss_fn, (ms.Tensor(X), ms.Tensor(Y))


def in_numpy() -> tuple[Any, Any, Callable[[], Callable[..., Any]], tuple[Any, ...]]:
    from mpcore_numpy import SGD, Model

    params = {"body.weight": RNG.normal(size=(8, 8)).astype(np.float32) / 3}
    params |= {"norm.weight": np.ones(8, np.float32)}
    params |= {"head.weight": RNG.normal(size=(8, 4)).astype(np.float32) / 3}
    model = Model({"body": "linear", "norm": "norm", "head": "linear"}, params)

    def loss_fn(params: Any, buffers: Any, cast: Any, scale: float, x: Any, y: Any) -> Any:
        """The norm is a gain alone: a reference without automatic differentiation."""
        h = cast("body", cast("body", x) @ params["body.weight"])
        scaled = cast("norm", h * params["norm.weight"])
        logits = cast("head", scaled @ params["head.weight"])
        share = np.exp(logits - logits.max(1, keepdims=True))
        share /= share.sum(1, keepdims=True)
        rows = np.arange(len(y))
        grad = share.copy()
        grad[rows, y] -= 1
        grad *= scale / len(y)
        back = cast("head", grad) @ params["head.weight"].T
        grads = {
            "head.weight": scaled.T @ cast("head", grad),
            "norm.weight": (back * h).sum(0),
            "body.weight": x.T @ cast("body", back * params["norm.weight"]),
        }
        return -np.log(share[rows, y]).mean(), grads

    return model, SGD(params, RATE), lambda: loss_fn, (X, Y)


def main() -> None:
    name, path = sys.argv[1:]
    model, optimizer, loss, batch = globals()[f"in_{name}"]()
    amp = mp.prepare(model, optimizer, mp.Policy.load(path))
    loss_fn = loss()
    results = [amp.step(loss_fn, *batch) for _ in range(STEPS)]
    told = {"plan": amp.plan.to_dict(), "policy": str(amp.policy)}
    told["losses"] = [float(result.loss) for result in results]
    told["stepped"] = [bool(result.stepped) for result in results]
    print(json.dumps(told))


if __name__ == "__main__":
    main()

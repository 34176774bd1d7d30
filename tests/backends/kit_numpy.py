"""The conformance kit of the numpy reference: the MLP with its gradients written out."""

from __future__ import annotations

import numpy as np

import mpcore as mp
from mpcore_numpy import SGD, Adam, Model, emulated_ascend


def _initial() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "fc1.weight": rng.normal(0, 0.3, (16, 8)).astype("f4"),
        "fc1.bias": rng.normal(0, 0.1, 16).astype("f4"),
        "bn.weight": np.ones(16, "f4"),
        "bn.bias": np.zeros(16, "f4"),
        "fc2.weight": rng.normal(0, 0.3, (4, 16)).astype("f4"),
        "fc2.bias": rng.normal(0, 0.1, 4).astype("f4"),
    }


def _forward_backward(params, buffers, cast, scale, x, y, boost):
    one = np.float32(1)
    # forward: linear, batch norm over the batch, ReLU, linear, mean cross entropy
    x = cast("fc1", x)
    a = cast("fc1", x @ params["fc1.weight"].T + params["fc1.bias"])
    n = len(a)
    mean, var = a.mean(0), a.var(0)
    buffers["bn.running_mean"][...] = (
        np.float32(0.9) * buffers["bn.running_mean"] + np.float32(0.1) * mean
    )
    buffers["bn.running_var"][...] = np.float32(0.9) * buffers["bn.running_var"] + np.float32(
        0.1
    ) * var * np.float32(n / (n - 1))
    inv = one / np.sqrt(var + np.float32(1e-5))
    z = (a - mean) * inv
    h = np.maximum(params["bn.weight"] * z + params["bn.bias"], 0)
    h_low = cast("fc2", h)
    logits = cast("fc2", h_low @ params["fc2.weight"].T + params["fc2.bias"])
    shifted = logits - logits.max(1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    loss = -log_p[np.arange(n), y].mean() * boost
    # backward of loss * scale
    g = np.exp(log_p)
    g[np.arange(n), y] -= one
    g = cast("fc2", g * (scale * boost / np.float32(n)))
    grads = {"fc2.weight": cast("fc2", g.T @ h_low), "fc2.bias": cast("fc2", g.sum(0))}
    gh = cast("fc2", g @ params["fc2.weight"]) * (h > 0)
    grads["bn.weight"], grads["bn.bias"] = (gh * z).sum(0), gh.sum(0)
    gz = gh * params["bn.weight"]
    ga = cast("fc1", inv * (gz - gz.mean(0) - z * (gz * z).mean(0)))
    grads["fc1.weight"], grads["fc1.bias"] = cast("fc1", ga.T @ x), cast("fc1", ga.sum(0))
    return loss, {name: grads[name] for name in params}


class _Kit:
    name = "numpy"
    modes = ("eager",)
    saturating_steps = 10_000

    def model(self):
        layers = {"fc1": "linear", "bn": "norm", "act": "activation", "fc2": "linear"}
        buffers = {
            "bn.running_mean": np.zeros(16, "f4"),
            "bn.running_var": np.ones(16, "f4"),
        }
        return Model(layers, _initial(), buffers)

    def sgd(self, model, learning_rate, momentum):
        return SGD(model.params, learning_rate, momentum)

    def adam(self, model, learning_rate):
        return Adam(model.params, learning_rate)

    def loss_fn(self, model):
        return _forward_backward

    def batch(self, x, y, boost):
        return x, y, np.float32(boost)

    def stepper(self, amp, loss_fn, mode, **call):
        return lambda *batch: amp.step(loss_fn, *batch, keep_grads=True, **call)

    def sgd_over(self, model, layers, learning_rate):
        names = [name for name in model.params if name.partition(".")[0] in layers]
        return SGD(model.params, learning_rate, 0.9, names)

    def losses(self, model):
        def steady(params, buffers, cast, scale, x, y, boost):
            return _forward_backward(params, buffers, cast, scale, x, y, np.float32(1))

        return {"a": steady, "b": _forward_backward}

    def counter(self):
        count = np.zeros(())

        def add():
            count[...] += 1

        return add, lambda: int(count)

    def memory(self, model):
        memory = np.zeros(16, "f4")

        def loss_fn(*args):
            memory[...] += 1
            return _forward_backward(*args)

        return memory, loss_fn, memory.copy

    def emulated_ascend(self):
        return emulated_ascend()

    def snapshot(self, model, optimizer, amp):
        taken = {**model.params, **model.buffers}
        for key, entry in amp.optimizers.items():
            for slot, values in entry.slots.items():
                taken |= {f"{key}:{slot}:{name}": value for name, value in values.items()}
            taken[f"{key}:steps"] = np.array(entry.steps)
        return {name: value.copy() for name, value in taken.items()}

    def layer_dtypes(self, model, amp, x):
        seen: dict[str, str] = {}
        tx = amp._tx

        def cast(path, value):
            seen[path] = tx._compute[path]
            return tx.cast(path, value)

        _forward_backward(
            tx.stored(), dict(model.buffers), cast, np.float32(1), x, np.zeros(len(x), int), 1
        )
        return seen

    def transition(self, rule, state, finite, mode):
        tensors = (np.float32(state[0]), *(np.int32(count) for count in state[1:]))
        scale, *counts = mp.transition(rule, tensors, np.bool_(finite), np.where, np.float32)
        return float(scale), *(int(count) for count in counts)


kit = _Kit()

"""Digests of everything that training leaves, by framework and policy: did a change move a bit?

    python tests/benchmarks/state_digests.py torch         # or tensorflow, mindspore, numpy
    python tests/benchmarks/state_digests.py torch --steps 50 --output digests.json
    python tests/benchmarks/state_digests.py --against ../base/.venv/bin/python
    python tests/benchmarks/state_digests.py mindspore --against ../base/.venv/bin/python

The first form trains a small model under each policy and digests it after some of the steps. With
``--against`` each framework is trained twice, in processes of their own: by this interpreter and
by one in which another commit of mpcore is installed. The exit code is 1 if a row differs or fails.
Rows with ``clip_norm`` are a table of their own and do not decide: a formula for clipping may be
changed on purpose while all else has to stay.

The script has to run on commits before and after a renaming. So it calls ``mp.prepare``,
``amp.step``, ``amp.state`` and ``amp.weights`` alone, takes fields by position, and asks the
framework itself for the rest.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

FRAMEWORKS = ("torch", "tensorflow", "mindspore", "numpy")
DIGESTED = (1, 10, 50, 100, 200)
PARTS = ("weights", "model", "optimizer", "scaler", "losses")
ROWS = 16  # of a batch
CLIP = 1.2  # gradient norms lie between 0.3 and 3.5: some are clipped, some are not

# Sums over several threads come in any order.
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "1",
    "TF_DETERMINISTIC_OPS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "GLOG_v": "3",
}

# An element of the batch that overflows everywhere (inf), or in float16 alone. 20 and 120 are
# steps of two micro-batches, one of which stays sound; 20 and 21 are skips in a row.
PLANTED = {20: np.inf, 21: np.inf, 120: 3e5, 141: 3e5, 170: np.inf}

# The first scale is too large, and it grows until it is again: gradients overflow by themselves,
# while the forward pass is finite.
RESTLESS = (
    "mixed_float16, loss_scale=dynamic(init_scale=16777216, growth_interval=12, hysteresis=2)"
)
COMMON = (
    ("float32", "adam"),
    ("mixed_bfloat16", "adam"),
    ("mixed_float16", "sgd"),
    (RESTLESS, "adam"),
    ("model_float16", "sgd"),
    ("model_bfloat16, master=split", "adam"),
    ("model_bfloat16, master=kahan", "sgd"),
    ("model_bfloat16, master=stochastic:3, optimizer_state=bfloat16", "adam"),
)
BY_OP = {
    "torch": (("autocast_bfloat16", "adam"), ("portable_float16", "sgd")),
    "mindspore": (("autocast_float16", "adam"),),
}
CLIPPED = (
    ("float32", "sgd"),
    ("mixed_float16", "adam"),
    ("model_bfloat16, master=split", "adam"),
)
SHORT = 50  # steps where MindSpore puts bfloat16 bits together: many small kernels, minutes of them


def batches(steps):
    """Return the images and labels of each step; a linear teacher names the labels."""
    rng = np.random.default_rng(7)
    teacher = rng.normal(size=(72, 4))
    made = []
    for step in range(1, steps + 1):
        x = rng.normal(size=(ROWS, 2, 6, 6)).astype("f4")
        y = (x.reshape(ROWS, -1) @ teacher).argmax(1).astype("i4")
        if step in PLANTED:
            x[-1, 0, 0, 0] = PLANTED[step]  # in the last micro-batch
        made.append((x, y))
    return made


# --- the frameworks: each returns (model, optimizer, loss_fn) of a new model, what makes its
# tensors of a batch, and what lists its own arrays of a model and of an optimizer -----------------


def torch_side():
    import torch
    from torch import nn
    from torch.nn import functional

    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)

    def build(kind):
        torch.manual_seed(0)
        model = nn.Sequential(
            OrderedDict(
                conv=nn.Conv2d(2, 6, 3), bn=nn.BatchNorm2d(6), act1=nn.ReLU(), flat=nn.Flatten(),
                fc1=nn.Linear(96, 16), norm=nn.LayerNorm(16), act2=nn.ReLU(),
                fc2=nn.Linear(16, 4),
            )
        )  # fmt: skip
        if kind == "adam":
            optimizer = torch.optim.Adam(model.parameters(), 3e-3)
        else:
            optimizer = torch.optim.SGD(model.parameters(), 0.02, momentum=0.9)
        return model, optimizer, lambda x, y: functional.cross_entropy(model(x), y)

    def tensors(x, y):
        return torch.from_numpy(x), torch.from_numpy(y).long()

    def array(value):
        value = value.detach()
        return (value.float() if value.dtype == torch.bfloat16 else value).numpy()

    def of_model(model):
        return [(str(v.dtype), array(v)) for v in model.state_dict().values()]

    def of_optimizer(optimizer):
        params = [param for group in optimizer.param_groups for param in group["params"]]
        slots = [sorted(optimizer.state.get(param, {}).items()) for param in params]
        held = [torch.as_tensor(v) for slot in slots for _, v in slot if v is not None]
        return [(str(v.dtype), array(v)) for v in held]

    return build, tensors, of_model, of_optimizer


def tensorflow_side():
    import keras
    import tensorflow as tf
    from keras import layers

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    tf.config.experimental.enable_op_determinism()

    def build(kind):
        keras.utils.set_random_seed(0)
        model = keras.Sequential(
            [
                layers.Input((6, 6, 2)),
                layers.Conv2D(6, 3, name="conv"),
                layers.BatchNormalization(momentum=0.9, name="bn"),
                layers.ReLU(name="act1"), layers.Flatten(name="flat"),
                layers.Dense(16, name="fc1"), layers.LayerNormalization(name="norm"),
                layers.ReLU(name="act2"), layers.Dense(4, name="fc2"),
            ]
        )  # fmt: skip
        if kind == "adam":
            optimizer = keras.optimizers.Adam(3e-3)
        else:
            optimizer = keras.optimizers.SGD(0.02, momentum=0.9)
        cross_entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        return model, optimizer, lambda x, y: cross_entropy(y, model(x, training=True))

    def tensors(x, y):
        return tf.constant(x.transpose(0, 2, 3, 1)), tf.constant(y)

    def listed(variables):
        values = [tf.convert_to_tensor(variable.value) for variable in variables]
        return [
            (v.dtype.name, (tf.cast(v, tf.float32) if v.dtype == tf.bfloat16 else v).numpy())
            for v in values
        ]

    return (
        build,
        tensors,
        lambda model: listed(model.variables),
        lambda optimizer: listed(optimizer.variables),
    )


def mindspore_side():
    import mindspore as ms
    from mindspore import Tensor, nn, ops

    ms.runtime.launch_blocking()  # ten times faster on few cores
    ms.device_context.cpu.op_tuning.threads_num(1)
    ms.runtime.dispatch_threads_num(1)

    def build(kind):
        ms.set_seed(0)
        model = nn.SequentialCell(
            OrderedDict(
                conv=nn.Conv2d(2, 6, 3, pad_mode="valid", has_bias=True),
                bn=nn.BatchNorm2d(6), act1=nn.ReLU(), flat=nn.Flatten(),
                fc1=nn.Dense(96, 16), norm=nn.LayerNorm((16,)), act2=nn.ReLU(),
                fc2=nn.Dense(16, 4),
            )
        ).set_train()  # fmt: skip
        if kind == "adam":
            optimizer = nn.Adam(model.trainable_params(), 3e-3)
        else:
            optimizer = nn.Momentum(model.trainable_params(), 0.02, 0.9)
        return model, optimizer, lambda x, y: ops.cross_entropy(model(x), y)

    def tensors(x, y):
        return Tensor(x), Tensor(y)

    def listed(cell):
        params = [(p.dtype, p.value()) for p in cell.get_parameters()]
        return [
            (str(dtype), (v.astype(ms.float32) if dtype == ms.bfloat16 else v).asnumpy())
            for dtype, v in params
        ]

    return build, tensors, listed, listed


def numpy_side():
    from mpcore_numpy import SGD, Adam, Model

    def build(kind):
        rng = np.random.default_rng(0)
        params = {
            "fc1.weight": rng.normal(0, 0.2, (16, 72)).astype("f4"),
            "fc1.bias": rng.normal(0, 0.1, 16).astype("f4"),
            "bn.weight": np.ones(16, "f4"),
            "bn.bias": np.zeros(16, "f4"),
            "fc2.weight": rng.normal(0, 0.3, (4, 16)).astype("f4"),
            "fc2.bias": rng.normal(0, 0.1, 4).astype("f4"),
        }
        buffers = {"bn.running_mean": np.zeros(16, "f4"), "bn.running_var": np.ones(16, "f4")}
        layers = {"fc1": "linear", "bn": "norm", "act": "activation", "fc2": "linear"}
        model = Model(layers, params, buffers)
        moves = Adam(params, 3e-3) if kind == "adam" else SGD(params, 0.02, 0.9)
        return model, moves, written_out

    def of_model(model):
        return [(str(v.dtype), v) for v in (*model.params.values(), *model.buffers.values())]

    def of_optimizer(optimizer):
        slots = [v for slot in optimizer.slots.values() for v in slot.values()]
        return [(str(v.dtype), v) for v in (*slots, np.array(optimizer.steps))]

    return build, lambda x, y: (x.reshape(len(x), -1), y), of_model, of_optimizer


def written_out(params, buffers, cast, scale, x, y):
    """Return loss and gradients of linear, batch norm, ReLU, linear, mean cross entropy."""
    one, keep, take = np.float32(1), np.float32(0.9), np.float32(0.1)
    x = cast("fc1", x)
    a = cast("fc1", x @ params["fc1.weight"].T + params["fc1.bias"])
    mean, var = a.mean(0), a.var(0)
    for name, value in (("bn.running_mean", mean), ("bn.running_var", var)):
        buffers[name][...] = keep * buffers[name] + take * value
    inverse = one / np.sqrt(var + np.float32(1e-5))
    z = (a - mean) * inverse
    h = np.maximum(params["bn.weight"] * z + params["bn.bias"], 0)
    low = cast("fc2", h)
    logits = cast("fc2", low @ params["fc2.weight"].T + params["fc2.bias"])
    shifted = logits - logits.max(1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    loss = -log_p[np.arange(len(x)), y].mean()
    g = np.exp(log_p)
    g[np.arange(len(x)), y] -= one
    g = cast("fc2", g * (scale / np.float32(len(x))))
    grads = {"fc2.weight": cast("fc2", g.T @ low), "fc2.bias": cast("fc2", g.sum(0))}
    gh = cast("fc2", g @ params["fc2.weight"]) * (h > 0)
    grads["bn.weight"], grads["bn.bias"] = (gh * z).sum(0), gh.sum(0)
    gz = gh * params["bn.weight"]
    ga = cast("fc1", inverse * (gz - gz.mean(0) - z * (gz * z).mean(0)))
    grads["fc1.weight"], grads["fc1.bias"] = cast("fc1", ga.T @ x), cast("fc1", ga.sum(0))
    return loss, {name: grads[name] for name in params}


SIDES = {
    "torch": torch_side,
    "tensorflow": tensorflow_side,
    "mindspore": mindspore_side,
    "numpy": numpy_side,
}


# --- one framework, one commit --------------------------------------------------------------------


def digest(arrays):
    """Return the SHA-256 of (what it was kept as, array) pairs: dtypes, shapes and bytes."""
    found = hashlib.sha256()
    for kept_as, array in arrays:
        array = np.ascontiguousarray(array)
        found.update(f"{kept_as} {array.dtype.str} {array.shape} ".encode())
        found.update(array.tobytes())
    return found.hexdigest()


def train(side, policy, kind, made, clip):
    """Return the digests of one run by step: of each part, so that a difference has a name."""
    import mpcore as mp

    build, tensors, of_model, of_optimizer = side
    model, optimizer, loss_fn = build(kind)
    amp = mp.prepare(model, optimizer, policy)
    clipping = {"clip_norm": CLIP} if clip else {}
    losses, found = [], {}
    for step, (x, y) in enumerate(made, start=1):
        call = dict(clipping, micro_batches=2) if step % 4 == 0 else clipping
        losses.append(amp.step(loss_fn, *tensors(x, y), **call).loss)
        if step in DIGESTED or step == len(made):
            weights = amp.weights()
            found[step] = {
                "weights": digest((str(v.dtype), v) for _, v in sorted(weights.items())),
                "model": digest(of_model(model)),
                "optimizer": digest(of_optimizer(optimizer)),
                "scaler": " ".join(f"{float(value)!r}" for value in amp.state),
                "losses": digest([("float32", np.array(losses, "f4"))]),
                "loss": repr(losses[-1]),  # for the eye
            }
    return found


def run(framework, steps):
    """Return the digests of all policies of one framework, and what they were made with."""
    made, side = batches(steps), SIDES[framework]()
    import mpcore

    result = {
        "framework": framework,
        "version": sys.modules[framework].__version__,
        "tree": str(Path(mpcore.__file__).parents[1]),
        "plain": {},
        "clip": {},
    }
    for group, chosen in (("plain", (*COMMON, *BY_OP.get(framework, ()))), ("clip", CLIPPED)):
        for policy, kind in chosen:
            try:
                slow = framework == "mindspore" and policy.startswith("model_bfloat16")
                part = made[:SHORT] if slow else made
                found = train(side, policy, kind, part, group == "clip")
            except Exception as error:
                found = {"failed": f"{type(error).__name__}: {error}"}
            name = "mixed_float16, restless scale" if policy == RESTLESS else policy
            result[group][f"{name} [{kind}]"] = found
    return result


def show(result):
    print(f"{result['framework']} {result['version']}")
    for group in ("plain", "clip"):
        for row, found in result[group].items():
            print(f"\n{row}{' (clip)' if group == 'clip' else ''}")
            if "failed" in found:
                print(f"  {found['failed']}")
                continue
            for step, parts in found.items():
                whole = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
                print(f"  {step:>4}  {whole}  loss {parts['loss']:<22} scaler {parts['scaler']}")


# --- two commits ----------------------------------------------------------------------------------


def started(python, framework, steps):
    """Return the result of one framework under one interpreter, and the seconds that it took."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "digests.json"
        # What probes find is kept apart, or one commit could read what the other wrote.
        environment = {**os.environ, **ENVIRONMENT, "PYTHONHASHSEED": "0", "MPCORE_CACHE": folder}
        environment.pop("PYTHONPATH", None)  # each interpreter has its own mpcore
        command = [python, "-P", __file__, framework, "--steps", str(steps), "--output", output]
        begun = time.perf_counter()
        ended = subprocess.run(command, env=environment, capture_output=True, text=True)
        seconds = time.perf_counter() - begun
        if ended.returncode:
            last = (ended.stderr.strip().splitlines() or ["it printed nothing"])[-1]
            return {"failed": f"code {ended.returncode}: {last}"}, seconds
        return json.loads(output.read_text(encoding="utf-8")), seconds


def verdict(ours, theirs):
    """Return "equal", or the first of the digested steps by which something differs, and what."""
    for found, where in ((ours, "here"), (theirs, "there")):
        if "failed" in found:
            return f"failed {where}: {found['failed']}"
    for step in ours:
        differing = [part for part in PARTS if ours[step][part] != theirs[step][part]]
        if differing:
            return f"differs by step {step}: {', '.join(differing)}"
    return "equal"


def against(python, frameworks, steps, jobs):
    """Train everything under both interpreters, print the tables, and return the exit code."""
    both = [(which, framework) for framework in frameworks for which in (sys.executable, python)]
    with ThreadPoolExecutor(jobs) as pool:
        done = list(pool.map(lambda job: started(*job, steps), both))
    bad, pairs = False, {}
    for framework, mine, other in zip(frameworks, done[::2], done[1::2], strict=True):
        (ours, seconds), (theirs, others) = mine, other
        print(f"{framework:<11} {seconds:5.1f} s here, {others:5.1f} s there")
        if "failed" in ours or "failed" in theirs:
            print(f"  {verdict(ours, theirs)}")
            bad = True
            continue
        pairs[framework] = ours, theirs
        if ours["version"] != theirs["version"]:
            print(f"  {ours['version']} here, {theirs['version']} there: digests may well differ")
        if ours["tree"] == theirs["tree"]:
            print("  both interpreters import the same mpcore: this shows determinism, no more")
    for group, title in (("plain", "without clipping"), ("clip", f"with clip_norm={CLIP}")):
        print(f"\n{title}")
        for framework, (ours, theirs) in pairs.items():
            for row, found in ours[group].items():
                said = verdict(found, theirs[group][row])
                bad |= said != "equal" and (group == "plain" or said.startswith("failed"))
                print(f"  {framework:<11} {row:<69} {said}")
    return int(bad)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("framework", nargs="?", choices=FRAMEWORKS)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--output", type=Path, help="JSON file for the digests, without --against")
    parser.add_argument("--against", metavar="PYTHON", help="interpreter that has another mpcore")
    parser.add_argument("--jobs", type=int, default=1, help="processes at once, with --against")
    given = parser.parse_args()
    if given.against:
        frameworks = [given.framework] if given.framework else FRAMEWORKS
        sys.exit(against(given.against, frameworks, given.steps, given.jobs))
    if given.framework is None:
        parser.error("a framework is needed, or --against")
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)  # the frameworks are imported after this
    result = run(given.framework, given.steps)
    show(result)
    if given.output:
        given.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

"""Ten architectures in every framework: what their layers make of a batch is the same."""

from __future__ import annotations

import json
from dataclasses import replace

import golden
import golden_inspection as gold
import numpy as np
import pytest
import zoo
from harness import assert_same

import mpcore as mp
from mpcore.tools.inspection import Request, difference, inspect, summarize

# Calls that stand for others: torch's (path, number of the call) to the framework's own; None
# where there is none to compare.
OTHERS = {
    # Keras ties by calling the embedding in reverse, and hands on the last state alone.
    ("tensorflow", "gpt"): {("head", 0): ("tokens", 1)},
    ("tensorflow", "lstm"): {("rnn", 0): None},
    ("tensorflow", "gru"): {("rnn", 0): None},
}
# Settings that rightly differ: by backend, architecture and path, (torch's, the framework's).
OTHER_SETTINGS = {
    ("tensorflow", "resnet", f"{block}.conv1"): {"padding": (1, 0)}  # its model pads by hand
    for block in ("block1", "block2")
}
# What is run instead, where the framework rightly refuses the layer.
INSTEAD = {("mindspore", "lstm"): "full layer=recurrent"}
# What is stepped by day, where it takes seconds to compile a step: one with dropout, one with
# several optimizers, in MindSpore a recurrent one and one with attention as well.
STEPPED = {"tensorflow": ("cnn", "gan"), "mindspore": ("cnn", "gan", "gru", "gpt")}
FORWARD, BACKWARD = 1e-5, 1e-4


def numbered(paths):
    """Return the place of each call by its path and number."""
    found: dict[tuple[str, int], int] = {}
    for index, path in enumerate(paths):
        number = sum(1 for other, _ in found if other == path)
        found[str(path), number] = index
    return found


@pytest.mark.parametrize("name", zoo.NAMES)
def test_layers_agree_with_torch(framework, name):
    found = gold.inspected(framework.driver, name, framework.zoo[name])
    paths, norms, buckets = gold.rows(found)
    own, others = numbered(paths), OTHERS.get((framework.name, name), {})
    with np.load(gold.FILE) as arrays:
        theirs, lengths, sums = (arrays[f"{name}.{k}"] for k in ("paths", "norms", "buckets"))
    distances = {}
    for key, index in numbered(theirs).items():
        mine = others.get(key, key)
        if mine is None:
            continue
        place = own.pop(mine)
        assert np.array_equal(np.isnan(norms[place]), np.isnan(lengths[index])), key
        apart = np.linalg.norm(buckets[place] - sums[index], axis=-1)
        distances[key] = apart / np.where(lengths[index] > 0, lengths[index], 1)
    assert not {key for key in own if key not in others}
    settings = json.loads(gold.SETTINGS.read_text(encoding="ascii"))[name]
    for call in found.calls:
        differing = {
            key: (value, call.attributes[key])
            for key, value in settings.get(call.path, {}).items()
            if key in call.attributes and call.attributes[key] != value
        }
        assert differing == OTHER_SETTINGS.get((framework.name, name, call.path), {}), call.path
    if name in zoo.STOCHASTIC:  # no two frameworks drop the same features
        after = list(distances).index(("dropout", 0))
        distances = dict(list(distances.items())[1:after])
    far = {k: d for k, d in distances.items() if d[0] > FORWARD}
    assert not far
    far = {k: d for k, d in distances.items() if d[1] > BACKWARD}
    assert name in zoo.STOCHASTIC or not far


@pytest.mark.parametrize("name", zoo.NAMES)
def test_nothing_changes_and_gradients_are_the_steps(framework, name, request):
    rule = INSTEAD.get((framework.name, name))
    policy = mp.Policy.named("mixed_float16").with_loss_scale(mp.LossScale(init_scale=2.0**7))
    policy = policy if rule is None else replace(policy, rules=(mp.Rule.parse(rule),))
    run = Run(framework, name, policy)
    before, state = run.snapshot(), run.amp.state
    found = run.inspect(gold.REQUEST)
    closer = run.inspect(Request(keep=frozenset("*"), ops=frozenset("*")))
    assert_same(before, run.snapshot())
    assert run.amp.state == state
    assert closer.loss == pytest.approx(found.loss, rel=1e-6)
    layers = [call for call in closer.calls if call.category != "op"]
    assert [call.path for call in layers] == [call.path for call in found.calls]
    assert len(layers) < len(closer.calls)
    by_day = STEPPED.get(framework.name, zoo.NAMES)
    if name not in by_day and not request.config.getoption("--nightly"):
        return

    result, twin = run.step(), Run(framework, name, policy)
    assert twin.step().loss == pytest.approx(result.loss, rel=1e-6)
    for key, value in twin.snapshot().items():
        np.testing.assert_allclose(run.snapshot()[key], value, rtol=1e-4, atol=1e-6)
    if (framework.name, name) == ("mindspore", "cnn"):
        return  # nobody can read the state of its dropout: an inspection has masks of its own
    # A rounding of float16: where a CPU computes in it, a graph's kernels are not those of one op.
    assert result.loss == pytest.approx(found.loss, rel=2.0**-11)
    true = {path: summarize(128 * as_array(grad)) for path, grad in result.grads.items()}
    floor = 0.01 * max(one.norm for one in true.values())  # a bias before a norm has none
    for path, grad in true.items():
        distance = difference(grad, closer.grads[path]).relative * grad.norm
        assert distance <= 0.02 * max(grad.norm, floor), path


def test_constants_of_ops_are_told(framework):
    request = Request(ops=frozenset({"block1"}), backward=False)
    found = gold.inspected(framework.driver, "gpt", framework.zoo["gpt"], request=request)
    ops = [call for call in found.calls if call.category == "op"]
    assert -1e4 in [x for call in ops for x in call.attributes.get("constants", ())]
    (masked,) = [call for call in ops if -1e4 in call.attributes.get("constants", ())]
    assert masked.outputs[0].peak == 1e4


def as_array(grad):
    return np.asarray(grad.asnumpy() if hasattr(grad, "asnumpy") else grad.numpy())


class Run:
    """A prepared model and its first batch."""

    def __init__(self, framework, name, policy):
        self.entry, self.kit = framework.zoo[name], framework.kit
        self.model = golden.built(framework.driver, name, self.entry)
        self.amp = mp.prepare(self.model, self.entry.optimizer(self.model), policy)
        self.loss = self.entry.loss(self.model)
        framework.driver.seed(3)
        self.batch = self.entry.tensors(self.entry.batch(zoo.generator(name)))

    def inspect(self, request):
        return inspect(self.model, self.amp, self.loss, *self.batch, request=request)

    def step(self):
        return self.amp.step(self.loss, *self.batch, keep_grads=True)

    def snapshot(self):
        return self.kit.snapshot(self.model, self.amp.optimizers, self.amp)

"""Evidence without a framework: files, alignment, fitted optimizers, bands."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import mpcore as mp
from mpcore.checkpoint.layer_weights import LayerWeights
from mpcore.tools.divergence import Evidence, find, load, save, which_is_wrong
from mpcore.tools.divergence.align import align
from mpcore.tools.divergence.distance import between
from mpcore.tools.divergence.hypotheses.fit import Steps, fit
from mpcore.tools.inspection import Inspection, LayerCall, summarize

RNG = np.random.default_rng(0)
X = RNG.normal(size=(8, 4)).astype(np.float32)
WEIGHT = RNG.normal(size=(4, 4)).astype(np.float32)


def call(path, x, y, kind="Linear", category="linear"):
    made = [summarize(value, keep=True) for value in (x, y)]
    return LayerCall(path, kind, category, (made[0],), (made[1],))


def looked(weight, times=1.0):
    y = X @ weight.T
    calls = (call("fc", X, y), call("act", y, np.maximum(y, 0) * times, "ReLU", "activation"))
    return Inspection(float(np.square(y).mean()), 1.0, calls, (summarize(X, keep=True),))


def side(weight=WEIGHT, times=1.0):
    layers = [LayerWeights("fc", "linear", {"weight": weight})]
    moved = looked(weight * np.float32(1 + 2**-23), times)
    return Evidence("numpy", "float32", looked(weight, times), moved=(moved,), weights=(layers,))


def test_saved_evidence_gives_the_same_verdict(tmp_path):
    pair = [side(), side(WEIGHT.T.copy(), 1.5)]
    pair = [
        replace(e, trajectory=((2.0, True), (4.0, False)), optimizer="sgd", steps=({"scale": 1.0},))
        for e in pair
    ]
    again = [load(save(e, tmp_path / str(n)).parent) for n, e in enumerate(pair)]
    assert find(*again).to_dict() == find(*pair).to_dict()
    assert again[0].trajectory == pair[0].trajectory
    assert (again[0].optimizer, again[0].steps) == ("sgd", ({"scale": 1.0},))


def test_faults_one_behind_the_other_are_both_named():
    verdict = find(side(), side(WEIGHT.T.copy(), 1.5))
    assert (verdict.first.phase, verdict.first.layer) == ("forward", "fc")
    assert verdict.root_causes[0].kind == "layout"
    assert verdict.root_causes[0].confidence == "sure"
    row = verdict.to_dict()["rows"][0]
    assert row["path"] == "fc"
    assert row["output"]["beyond"] is True
    assert find(side(), side()).agrees


def test_a_side_may_have_gradients_and_no_step():
    grads = [LayerWeights("fc", "linear", {"weight": X[:4]})]
    other = [LayerWeights("fc", "linear", {"weight": 2 * X[:4]})]
    exact, same, doubled = (replace(side(), grads=(g,)) for g in (grads, grads, other))
    assert find(exact, same).agrees
    verdict = find(exact, doubled)
    assert (verdict.first.phase, verdict.first.layer) == ("backward", "fc")
    assert which_is_wrong(exact, same, doubled) == "b"


def test_the_wrong_one_of_two_is_told():
    assert which_is_wrong(side(), side(), side(times=1.1)) == "b"
    assert which_is_wrong(side(), side(times=1.1), side(times=1.2)) == "both"
    assert which_is_wrong(side(), side(), side()) == "neither"


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda path: path.unlink(), "must hold evidence.safetensors"),
        (lambda path: path.write_bytes(path.read_bytes()[:-9]), "cut off, or of another kind"),
        (
            lambda path: path.write_bytes(
                path.read_bytes().replace(b'\\"version\\": 1', b'\\"version\\": 9')
            ),
            "of version 1, got 'mpcore-evidence' of version 9",
        ),
        (
            lambda path: path.write_bytes(
                path.read_bytes().replace(b'\\"calls\\"', b'\\"colls\\"')
            ),
            "is damaged",
        ),
    ],
    ids=["none", "cut", "version", "damaged"],
)
def test_files_that_are_no_evidence_are_refused(tmp_path, spoil, message):
    spoil(save(side(), tmp_path))
    with pytest.raises(mp.CheckpointError, match=message):
        load(tmp_path)


def test_a_layer_that_one_side_lacks_is_a_row_of_its_own():
    y = X @ WEIGHT.T
    plain = [call("fc", X, y), call("head", y, y)]
    longer = [call("first", X, y), call("drop", y, y, "Dropout", "dropout"), call("last", y, y)]
    found = align(plain, longer)
    paths = [(p.reference and p.reference.path, p.own and p.own.path) for p in found]
    assert paths == [("fc", "first"), (None, "drop"), ("head", "last")]


@pytest.mark.parametrize(
    ("momentum", "decay"), [(0.0, 0.0), (0.9, 0.0), (0.5, 0.1)], ids=["plain", "heavy", "decay"]
)
def test_constants_of_sgd_are_found(momentum, decay):
    grads, weights = RNG.normal(size=(3, 200)), [RNG.normal(size=200)]
    buffer = np.zeros(200)
    for grad in grads:
        buffer = momentum * buffer + grad + decay * weights[-1]
        weights.append(weights[-1] - 0.05 * buffer)
    found = fit(Steps(np.stack(weights), grads))
    assert found.name == "sgd"
    for name, value in (("learning rate", 0.05), ("momentum", momentum), ("weight decay", decay)):
        assert found.constants[name] == pytest.approx(value, abs=2e-3)


def test_constants_of_adam_are_found():
    grads, weights = 1e-3 * RNG.normal(size=(3, 200)), [RNG.normal(size=200)]
    m = v = np.zeros(200)
    for number, grad in enumerate(grads, start=1):
        m, v = 0.8 * m + 0.2 * grad, 0.95 * v + 0.05 * grad**2
        hats = m / (1 - 0.8**number), v / (1 - 0.95**number)
        weights.append(weights[-1] - 0.01 * hats[0] / (np.sqrt(hats[1]) + 1e-4))
    found = fit(Steps(np.stack(weights), grads))
    assert found.name == "adam"
    expected = {"learning rate": 0.01, "beta1": 0.8, "beta2": 0.95, "eps": 1e-4}
    for name, value in expected.items():
        assert found.constants[name] == pytest.approx(value, rel=0.05)


@pytest.mark.parametrize("keep", [True, False])
def test_time_before_examples_is_the_same_numbers(keep):
    x = RNG.normal(size=(5, 3, 4)).astype(np.float32)
    turned = np.ascontiguousarray(x.swapaxes(0, 1))
    for factor, away in ((1.0, 0.0), (1.25, 0.25)):
        one, other = summarize(x, keep=keep), summarize(turned * np.float32(factor), keep=keep)
        found, _ = between([one], [other], (1.0, 1.0))
        assert found.relative == pytest.approx(away, abs=1e-6)

"""Mistakes of ports to MindSpore, found against torch's evidence from another process."""

from __future__ import annotations

import porting
import pytest
from mindspore import Tensor, nn, ops
from porting import judged, port

NAMES = ["mlp", "cnn", "separable", "lstm", "encoder"]


@pytest.fixture(scope="module")
def references(tmp_path_factory):
    return porting.references(tmp_path_factory.mktemp("torch"), NAMES)


def momentum(own, **changes):
    constants = {**own.optimizer, **changes}
    return nn.Momentum(
        own.model.trainable_params(), constants.pop("rate"), constants.pop("momentum"), **constants
    )


def home(own, path):
    found = own.model
    for part in path.split(".")[:-1]:
        found = getattr(found, part)
    return found, path.rpartition(".")[2]


def layer(own, path):
    found, last = home(own, path)
    return getattr(found, last)


def swap(path, make):
    """Put another layer in its place, with its weights."""

    def plant(own):
        found, last = home(own, path)
        old = getattr(found, last)
        new = make(old)
        for param, kept in zip(new.get_parameters(), old.get_parameters(), strict=True):
            param.set_data(kept.value())
            param.name = kept.name
        new.set_train(old.training)
        if isinstance(found, nn.SequentialCell):
            found[list(found._cells).index(last)] = new
        else:
            setattr(found, last, new)

    return plant


def weights(path, change):
    def plant(own):
        weight = layer(own, path).weight
        weight.set_data(Tensor(change(weight.asnumpy()).copy()))

    return plant


def loss_of(**options):
    def plant(own):
        own.loss = lambda x, y: ops.cross_entropy(own.model(x), y, **options)

    return plant


def shifted(own):
    own.batch = (own.batch[0], (own.batch[1] + 1) % 5)


def turned(own):
    own.batch = tuple(Tensor(x.asnumpy()[::-1].copy()) for x in own.batch)


def norm(channels, **settings):
    return lambda old: nn.BatchNorm2d(channels, **{"eps": 1e-5, "momentum": 0.9, **settings})


PLANTED = {
    # architecture, what is done, changed constants of the optimizer, place, kind
    "eps": ("separable", swap("stem.norm", norm(4, eps=1e-3)), {}, "stem.norm", "eps"),
    "momentum the other way round": (
        "separable",
        swap("depthwise.norm", norm(4, momentum=0.1)),
        {},
        "depthwise.norm",
        "momentum",
    ),
    "momentum": (
        "separable",
        swap("pointwise.norm", norm(8, momentum=0.99)),
        {},
        "pointwise.norm",
        "momentum",
    ),
    "MindSpore's eps of a layer norm": (
        "encoder",
        swap("layer1.norm2", lambda old: nn.LayerNorm((16,), epsilon=1e-3)),
        {},
        "layer1.norm2",
        "eps",
    ),
    "MindSpore's GELU": (
        "encoder",
        swap("layer1.gelu", lambda old: nn.GELU(approximate=True)),
        {},
        "layer1.gelu",
        "activation variant",
    ),
    "SELU": ("mlp", swap("relu2", lambda old: nn.SeLU()), {}, "relu2", "activation variant"),
    "ReLU for ReLU6": (
        "mlp",
        swap("relu1", lambda old: nn.LeakyReLU(0.2)),
        {},
        "relu1",
        "activation variant",
    ),
    "mirrored": ("cnn", weights("conv1", lambda w: w[..., ::-1, ::-1]), {}, "conv1", "layout"),
    "not transposed": ("mlp", weights("fc2", lambda w: w.T), {}, "fc2", "layout"),
    "own initialisation": (
        "cnn",
        weights("head", lambda w: 0.5 * w + 0.1),
        {},
        "head",
        "initialisation",
    ),
    "keep_prob for rate": (
        "cnn",
        swap("dropout", lambda old: nn.Dropout(p=0.9)),
        {},
        "dropout",
        "random state",
    ),
    "sum": ("mlp", loss_of(reduction="sum"), {}, "(loss)", "loss reduction"),
    "classes from 1": ("mlp", shifted, {}, "batch[1]", "label"),
    "other order": ("lstm", turned, {}, "batch[0]", "data order"),
    "rate": ("mlp", None, {"rate": 0.01}, "(optimizer)", "optimizer constants"),
    "less momentum": ("mlp", None, {"momentum": 0.5}, "(optimizer)", "optimizer constants"),
}


@pytest.mark.parametrize("name", PLANTED)
def test_mistakes_of_a_port_are_found(name, references):
    model, plant, changes, where, kind = PLANTED[name]
    own = port("mindspore", model)
    if plant is not None:
        plant(own)
    verdict = judged(references[model], own, momentum(own, **changes))
    assert verdict.first is not None
    assert verdict.first.layer == where, verdict.root_causes
    assert verdict.root_causes[0].kind == kind, verdict.root_causes


@pytest.mark.parametrize("name", NAMES)
def test_a_faithful_port_is_the_same(name, references):
    own = port("mindspore", name)
    verdict = judged(references[name], own, momentum(own))
    assert verdict.agrees, (verdict.verdict, verdict.root_causes)


@pytest.mark.parametrize("policy", porting.MIXED)
def test_a_faithful_port_stays_inside_the_bands_of_a_mixed_policy(policy, tmp_path):
    for name, reference in porting.references(tmp_path, porting.MIXED[policy], policy).items():
        own = port("mindspore", name)
        verdict = judged(reference, own, momentum(own), policy)
        assert verdict.agrees, (name, verdict.verdict, verdict.root_causes)


@pytest.mark.parametrize("name", ["inside", "inside_time"])
def test_an_activation_inside_of_a_layer_is_no_difference(name, tmp_path):
    reference = porting.references(tmp_path, [name])[name]
    own = port("mindspore", name)
    assert judged(reference, own, momentum(own)).agrees
    own = port("mindspore", name)
    own.model.fc1.activation = nn.ELU()
    verdict = judged(reference, own, momentum(own))
    assert verdict.first.layer == "fc1", verdict.root_causes

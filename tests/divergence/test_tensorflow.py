"""Mistakes of ports to Keras, found against torch's evidence from another process."""

from __future__ import annotations

import keras
import porting
import pytest
from porting import judged, port

NAMES = ["mlp", "cnn", "separable", "resnet", "lstm", "encoder", "volume", "graph"]
INSIDE = ["inside", "inside_time"]  # Dense(activation=...)


@pytest.fixture(scope="module")
def references(tmp_path_factory):
    return porting.references(tmp_path_factory.mktemp("torch"), [*NAMES, "views", *INSIDE])


def sgd(own, **changes):
    constants = {**own.optimizer, **changes}
    optimizer = keras.optimizers.SGD(constants.pop("rate"), **constants)
    optimizer.build(own.model.trainable_variables)
    return optimizer


def layer(own, path):
    found = own.model
    for part in path.split("."):
        found = found.get_layer(part) if hasattr(found, "get_layer") else getattr(found, part)
    return found


def put(path, **settings):
    def plant(own):
        for name, value in settings.items():
            setattr(layer(own, path), name, value)

    return plant


def weights(path, change):
    def plant(own):
        kernel = layer(own, path).kernel
        kernel.assign(change(kernel.numpy()))

    return plant


def loss_of(**options):
    def plant(own):
        entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True, **options)
        own.loss = lambda x, y: entropy(y, own.model(x, training=True))

    return plant


def shifted(own):
    own.batch = (own.batch[0], (own.batch[1] + 1) % 5)


def turned(own):
    own.batch = (own.batch[0][::-1], own.batch[1][::-1], *own.batch[2:])


PLANTED = {
    # architecture, what is done, changed constants of the optimizer, place, kind
    "Keras' eps": ("separable", put("stem.norm", epsilon=1e-3), {}, "stem.norm", "eps"),
    "Keras' momentum": (
        "separable",
        put("depthwise.norm", momentum=0.99),
        {},
        "depthwise.norm",
        "momentum",
    ),
    "momentum the other way round": (
        "separable",
        put("pointwise.norm", momentum=0.1),
        {},
        "pointwise.norm",
        "momentum",
    ),
    "eps of a layer norm": (
        "encoder",
        put("layer2.norm1", epsilon=1e-3),
        {},
        "layer2.norm1",
        "eps",
    ),
    "relu without a ceiling": (
        "separable",
        put("pointwise.relu", max_value=0.3),
        {},
        "pointwise.relu",
        "activation variant",
    ),
    "tanh GELU": (
        "encoder",
        put("layer1.gelu", activation=lambda x: keras.activations.gelu(x, approximate=True)),
        {},
        "layer1.gelu",
        "activation variant",
    ),
    "SELU": ("mlp", put("relu2", call=keras.activations.selu), {}, "relu2", "activation variant"),
    "not transposed": ("mlp", weights("fc2", lambda w: w.T), {}, "fc2", "layout"),
    "kernel mirrored": (
        "cnn",
        weights("conv2", lambda w: w[::-1, ::-1]),
        {},
        "conv2",
        "layout",
    ),
    "own initialisation": (
        "cnn",
        weights("head", lambda w: 0.5 * w + 0.1),
        {},
        "head",
        "initialisation",
    ),
    "sum": ("mlp", loss_of(reduction="sum"), {}, "(loss)", "loss reduction"),
    "classes from 1": ("mlp", shifted, {}, "batch[1]", "label"),
    "other order": ("lstm", turned, {}, "batch[0]", "data order"),
    "other order, several inputs": ("graph", turned, {}, "batch[0]", "data order"),
    "rate behind a pooling of zeros": (
        "volume",
        None,
        {"rate": 0.01},
        "(optimizer)",
        "optimizer constants",
    ),
    "rate": ("mlp", None, {"rate": 0.01}, "(optimizer)", "optimizer constants"),
    "Nesterov": ("mlp", None, {"nesterov": True}, "(optimizer)", "optimizer constants"),
}


@pytest.mark.parametrize("name", PLANTED)
def test_mistakes_of_a_port_are_found(name, references):
    model, plant, changes, where, kind = PLANTED[name]
    own = port("tensorflow", model)
    if plant is not None:
        plant(own)
    verdict = judged(references[model], own, sgd(own, **changes))
    assert verdict.first is not None
    assert verdict.first.layer == where, verdict.root_causes
    assert verdict.root_causes[0].kind == kind, verdict.root_causes


@pytest.mark.parametrize("name", NAMES)
def test_a_faithful_port_is_the_same(name, references):
    own = port("tensorflow", name)
    verdict = judged(references[name], own, sgd(own))
    assert verdict.agrees, (verdict.verdict, verdict.root_causes)


@pytest.mark.parametrize("policy", porting.MIXED)
def test_a_faithful_port_stays_inside_the_bands_of_a_mixed_policy(policy, tmp_path):
    for name, reference in porting.references(tmp_path, porting.MIXED[policy], policy).items():
        own = port("tensorflow", name)
        verdict = judged(reference, own, sgd(own), policy)
        assert verdict.agrees, (name, verdict.verdict, verdict.root_causes)


def test_a_bias_gradient_summed_in_bfloat16_is_the_known_difference(tmp_path):
    """Of a depthwise convolution too."""
    reference = porting.references(tmp_path, ["squeeze"], "mixed_bfloat16")["squeeze"]
    own = port("tensorflow", "squeeze")
    verdict = judged(reference, own, sgd(own), "mixed_bfloat16")
    (cause,) = verdict.root_causes
    assert (cause.kind, cause.layer) == ("known difference", "depth"), cause
    assert "depth.bias" in " ".join(cause.evidence)


def test_a_biased_variance_is_the_known_difference_however_often_a_step_updates_it(references):
    """A tower that sees two views in one step, eight examples each."""
    own = port("tensorflow", "views")
    verdict = judged(references["views"], own, sgd(own))
    (cause,) = verdict.root_causes
    assert (cause.kind, cause.layer) == ("known difference", "norm"), cause
    assert "divided by 8 and by 7" in cause.evidence[1]


@pytest.mark.parametrize(
    ("plant", "changes", "where", "kind"),
    [
        (None, {"rate": 0.02}, "(optimizer)", "optimizer constants"),
        (put("norm", momentum=0.8), {}, "norm", "momentum"),
    ],
)
def test_it_hides_nothing(plant, changes, where, kind, references):
    own = port("tensorflow", "views")
    if plant is not None:
        plant(own)
    verdict = judged(references["views"], own, sgd(own, **changes))
    assert verdict.first.layer == where, verdict.root_causes
    assert verdict.root_causes[0].kind == kind, verdict.root_causes


@pytest.mark.parametrize("name", INSIDE)
def test_an_activation_inside_of_a_layer_is_no_difference(name, references):
    own = port("tensorflow", name)
    verdict = judged(references[name], own, sgd(own))
    assert verdict.agrees, (verdict.verdict, verdict.root_causes)


@pytest.mark.parametrize(
    ("name", "plant", "changes", "where", "kind"),
    [
        ("inside", put("fc1", activation=keras.activations.elu), {}, "fc1", "activation variant"),
        ("inside", put("fc2", activation=keras.activations.relu), {}, "fc2", "activation variant"),
        ("inside_time", put("fc1", activation=keras.activations.elu), {}, "fc1", ""),
        ("inside_time", weights("fc2", lambda w: 1.1 * w), {}, "fc2", "initialisation"),
        ("inside", None, {"rate": 0.02}, "(optimizer)", "optimizer constants"),
    ],
)
def test_what_is_wrong_beside_it_is_found(name, plant, changes, where, kind, references):
    own = port("tensorflow", name)
    if plant is not None:
        plant(own)
    verdict = judged(references[name], own, sgd(own, **changes))
    assert verdict.first.layer == where, verdict.root_causes
    assert kind in ("", verdict.root_causes[0].kind), verdict.root_causes

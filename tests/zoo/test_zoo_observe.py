"""Ten architectures in every framework: what really ran is what was planned."""

from __future__ import annotations

from dataclasses import replace

import pytest
import zoo

import mpcore as mp

# By framework: policies, and for which architectures; None for all of them.
POLICIES = {
    "torch": {
        "mixed_float16": None,
        "mixed_bfloat16": None,
        "model_bfloat16": None,
        "autocast_float16": None,
        "autocast_bfloat16": None,
        "autocast_bfloat16, op_list=portable": None,
    },
    "tensorflow": {"mixed_float16": None, "mixed_bfloat16": ("gru",)},
    "mindspore": {"mixed_float16": None, "mixed_bfloat16": ("lstm",)},
}
# What is run instead, where the framework rightly refuses the layer.
INSTEAD = {
    ("mindspore", "lstm", "mixed_float16"): "full layer=recurrent",
    ("torch", "lstm", "autocast_float16"): "full layer=LSTM",
}


def cases():
    for framework, policies in POLICIES.items():
        for policy, names in policies.items():
            for name in names or zoo.NAMES:
                mark = pytest.mark.backend(framework)
                yield pytest.param(framework, name, policy, marks=mark, id=f"{policy}-{name}")


@pytest.mark.parametrize(("backend", "name", "policy"), list(cases()))
def test_observed_is_planned(framework, backend, name, policy):
    """Every layer, not 99 of 100: what Keras widens inside is named in docs/observe.md."""
    entry = framework.zoo[name]
    model = entry.build()
    if backend == "torch" and name == "lstm" and policy.startswith("autocast_bfloat16"):
        from processors_torch import with_lstm  # which imports torch

        policy = with_lstm(policy)
    wanted = mp.Policy.parse(policy)
    rule = INSTEAD.get((backend, name, policy))
    if rule is not None:
        wanted = replace(wanted, rules=(mp.Rule.parse(rule),))
    amp = mp.prepare(model, entry.optimizer(model), wanted)
    batch = entry.tensors(entry.batch(zoo.generator(name)))
    found = mp.observe(amp, *batch, loss_fn=entry.loss(model))
    assert found.differing == ()
    assert [row for row in found.ops if row.faults] == []
    layers = [row for row in found.layers if row.seen is not None and row.path]
    assert sum(row.judged for row in layers) >= len(layers) / 2
    lowered = {d for row in layers for call in row.seen.calls for d in call.kernels}
    assert wanted.compute in lowered

"""Ten architectures in torch by="graph": no call is lost, and training has the bits of autocast."""

from __future__ import annotations

import pytest
import zoo

import mpcore as mp

pytestmark = pytest.mark.backend("torch")
FAST = ("gpt",)


@pytest.mark.parametrize(
    "name",
    [*FAST, *(pytest.param(n, marks=pytest.mark.slow) for n in zoo.NAMES if n not in FAST)],
)
def test_training_by_graph_has_the_bits_of_autocast(framework, name):
    import torch
    from processors_torch import with_lstm

    found = []
    for how in ("op", "graph"):
        entry = framework.zoo[name]
        model = entry.build()
        x = entry.tensors(entry.batch(zoo.generator(name)))[0]
        options = {"example": x} if how == "graph" else {}
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
        policy = f"autocast_bfloat16, by={how}"
        policy = with_lstm(policy) if name == "lstm" else policy
        amp = mp.prepare(model, optimizer, policy, **options)
        seen = []
        for step in range(3):
            torch.manual_seed(step)
            result = amp.step(lambda model=model, x=x: model(x).float().square().mean())
            seen.append(torch.tensor(float(result.loss)))
            if not step:
                seen += [p.grad.clone() for p in model.parameters() if p.grad is not None]
        found.append([*seen, *(t.detach().clone() for t in model.state_dict().values())])
    assert sum(len(plan.graph.nodes) for plan in amp.graphs) > 0
    assert any("bfloat16" in plan.compute.values() for plan in amp.graphs)
    assert all(map(torch.equal, *found))

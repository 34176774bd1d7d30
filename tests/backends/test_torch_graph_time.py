"""The time of each call and cast of a torch model's graph, and plans that are searched with it."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.backend("torch")
torch = pytest.importorskip("torch")

from graph_models_torch import MODELS  # noqa: E402

import mpcore as mp  # noqa: E402

POLICY = "autocast_bfloat16, by=graph; full op=softmax"


@pytest.mark.parametrize("name", ["gpt", "convnet"])
def test_every_call_and_cast_is_timed_and_nothing_is_changed(name: str) -> None:
    torch.manual_seed(0)
    model, (x, _), _ = MODELS[name]()
    before, random = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    (timed,) = mp.graph.time_graph(model, POLICY, x)
    assert len(timed.casts) == len(timed.plan.casts)
    calls = {call.name: call for call in timed.calls}
    products = [n.name for n in timed.plan.graph.nodes if n.op in ("linear", "conv2d", "matmul")]
    assert set(products) <= set(calls)
    for each in products:
        assert calls[each].forward > 0
        assert calls[each].backward > 0
        assert calls[each].compute == "bfloat16"
        assert calls[each].other is not None
        assert 0 < (calls[each].error or 0) < 0.05
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert all(param.grad is None for param in model.parameters())
    assert torch.equal(random, torch.get_rng_state())
    assert "forward" not in vars(model)


def test_each_graph_of_a_model_is_timed_by_itself() -> None:
    torch.manual_seed(0)
    model, (x, _), _ = MODELS["branchy"]()
    timed = mp.graph.time_graph(model, POLICY, x)
    assert len(timed) > 1
    with pytest.raises(mp.GraphError, match=r"must be one graph to be searched, it is \d"):
        mp.graph.search(model, POLICY, x)


def test_a_plan_that_was_found_is_a_policy() -> None:
    torch.manual_seed(0)
    model, (x, y), loss_fn = MODELS["gpt"]()
    (timed,) = mp.graph.time_graph(model, POLICY, x)
    found = mp.graph.search(model, POLICY, x, timed=timed)
    assert [c.error for c in found] == sorted((c.error for c in found), reverse=True)
    assert all(c.plan.compute["blocks.0/softmax"] == "float32" for c in found)
    one = found[0]
    policy = mp.Policy.parse(f"{POLICY}; {one.rules()}" if one.words else POLICY)
    amp = mp.prepare(model, torch.optim.SGD(model.parameters(), 0.1), policy, example=x)
    ran = amp.graphs[0].compute
    wanted = {"lower": "bfloat16", "full": "float32"}
    assert {n: ran[n] for n in one.words} == {n: wanted[w.compute] for n, w in one.words.items()}
    assert amp.step(lambda x, y: loss_fn(model(x), y), x, y).stepped


def test_the_command_tells_calls_and_casts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from mpcore.cli import main

    file = tmp_path / "calls.json"
    experiment = Path(__file__).parents[2] / "examples/image_cnn/experiment.py"
    words = f"mpcore profile {experiment} --backend torch --policy autocast_bfloat16 --graph"
    monkeypatch.setattr("sys.argv", [*words.split(), "--rows", "3", "--output", str(file)])
    with pytest.raises(SystemExit) as done:
        main()
    assert done.value.code == 0
    assert "cast of" in capsys.readouterr().out
    (run,) = json.loads(file.read_text(encoding="utf-8"))["calls"]
    assert {call["op"] for call in run["graphs"][0]["calls"]} >= {"conv2d", "linear"}

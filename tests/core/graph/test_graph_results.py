"""The figures of graphs that are committed say what the page of acceptance says."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
MODELS = 15


def _found(name: str) -> Any:
    file = BENCHMARKS / "results" / f"graph_torch_{name}.json"
    return json.loads(file.read_text(encoding="utf-8"))["found"]


def _apart(rows: list[dict[str, Any]]) -> dict[str, int]:
    spec = importlib.util.spec_from_file_location("apart", BENCHMARKS / "apart.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: dict[str, int] = module.apart(rows)
    return found


def _row(predicted: float, low: float, high: float) -> dict[str, Any]:
    return {"predicted_ms": predicted, "ratio_quartiles": [low, (low + high) / 2, high]}


def test_pairs_are_judged_where_their_quartiles_are_apart() -> None:
    near = [_row(1, 0.9, 1.1), _row(2, 1.0, 1.2)]
    right = [_row(1, 0.9, 1.0), _row(2, 1.1, 1.2)]
    wrong = [_row(2, 0.9, 1.0), _row(1, 1.1, 1.2)]
    assert _apart(near) == {"pairs": 0, "as_predicted": 0}
    assert _apart(right) == _apart(right[::-1]) == {"pairs": 1, "as_predicted": 1}
    assert _apart(wrong) == {"pairs": 1, "as_predicted": 0}
    assert _apart([*right, _row(0, 1.3, 1.4)]) == {"pairs": 3, "as_predicted": 1}


@pytest.mark.parametrize("name", ["gpt", "resnet18"])
def test_a_search_found_plans_whose_order_held(name: str) -> None:
    found = _found("search")[name]
    assert found["plans"] >= 5
    assert found["search_s"] <= 30
    assert found["apart"] == _apart(found["measured"])
    assert found["apart"]["as_predicted"] == found["apart"]["pairs"] > 0
    predicted = [row["predicted_ms"] for row in found["measured"]]
    assert predicted == sorted(predicted)


def test_the_cheapest_plan_was_never_above_another() -> None:
    found = _found("casts")
    assert len(found) == MODELS
    for row in found.values():
        cheapest = row["cheapest"]
        others = [v for k, v in row.items() if isinstance(v, dict) and k != "cheapest"]
        assert len(others) >= 4
        assert all(cheapest["elements"] <= other["elements"] for other in others)
        assert all(cheapest["kept"] <= other["kept"] for other in others)


def test_every_model_of_the_zoo_was_written_to_onnx() -> None:
    found = _found("onnx")
    assert len(found) == 10
    for row in found.values():
        written = row["cheapest"]
        assert written["difference"] <= 2e-3
        listed = row["list"]
        assert isinstance(listed, str) or written["casts"] <= listed["casts"]
        assert any("onnx.checker: valid" in check for check in written["checks"])
        assert any("onnxruntime on the CPU" in check for check in written["checks"])

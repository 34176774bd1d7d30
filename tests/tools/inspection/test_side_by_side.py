"""Plans side by side."""

from __future__ import annotations

import json

import pytest

from mpcore import Layer, ParamInfo, Policy, resolve_plan
from mpcore.tools.inspection.side_by_side import Side, op_system, side_by_side

W = (ParamInfo("weight", (8, 8), "float32"),)
TREE = [
    Layer("", "container", "Net"),
    Layer("fc", "linear", "Linear", W, op="linear"),
    Layer("a.norm", "norm", "LayerNorm", W, op="layer_norm"),
    Layer("b.norm", "norm", "LayerNorm", W, op="layer_norm"),
    Layer("soft", "softmax", "Softmax", op="softmax"),
    Layer("own", "other", "Mine", W),
]


def side(title: str, policy: str, device: str = "cpu", layers=TREE) -> Side:
    plan = resolve_plan(Policy.parse(policy), layers, device)
    return Side(title, plan, op_system("torch", device))


def cells(*sides: Side) -> dict[str, list[str]]:
    return {path: [str(c) for c in row] for path, _, row in side_by_side(*sides).rows}


def test_softmax_is_low_on_cpu_and_float32_on_cuda() -> None:
    """The CPU's op list is not CUDA's."""
    found = side_by_side(*(side(d, "autocast_float16", d) for d in ("cpu", "cuda:0", "npu")))
    rows = {path: row for path, _, row in found.rows}
    assert [str(cell) for cell in rows["soft"]] == ["follow", "float32", "float32"]
    assert [cell.why for cell in rows["soft"][:2]] == [
        "torch_cpu, which does not list softmax",
        "torch_cuda, which lists softmax",
    ]
    assert [str(cell) for cell in rows["fc"]] == ["float16"] * 3
    assert [path for path, _, _ in found.differing] == ["a.norm", "b.norm", "soft"]


def test_two_policies() -> None:
    found = cells(side("apex", "apex:O2"), side("ms", "mindspore:O2"))
    assert found["a.norm"] == ["float16", "float32>float16"]
    assert found["soft"] == ["follow", "float16"]


def test_what_is_stored_differs_too() -> None:
    text = str(side_by_side(side("low", "model_float16"), side("mixed", "mixed_float16")))
    assert "float16, stored float16" in text
    assert "float16, stored float32" in text


def test_layers_that_differ_alike_are_told_once() -> None:
    text = str(side_by_side(side("one", "mixed_float16"), side("two", "float32")))
    assert text.count("LayerNorm: a.norm, b.norm") == 1
    assert "    one: float32>float16, by norm: full" in text
    # the model hands on float32 on both sides, and a layer of no kind runs in float32
    assert "3 of 6 layers differ (*):" in text


def test_layer_that_one_side_lacks() -> None:
    found = side_by_side(side("one", "float32"), side("two", "float32", layers=TREE[:-1]))
    assert [path for path, _, _ in found.differing] == ["own"]
    assert "no such layer" in str(found)


def test_equal_sides_do_not_differ() -> None:
    found = side_by_side(side("one", "mixed_float16"), side("two", "mixed_float16"))
    assert found.differing == ()
    assert str(found).endswith("0 of 6 layers differ (*)")


def test_it_is_data() -> None:
    found = side_by_side(side("one", "mixed_float16"), side("two", "float32"))
    data = json.loads(json.dumps(found.to_dict()))
    assert [s["title"] for s in data["sides"]] == ["one", "two"]
    fc = data["layers"][1]
    assert (fc["differs"], fc["sides"][0]["compute"]) == (True, "float16")


@pytest.mark.parametrize(
    ("backend", "device", "system"),
    [
        ("torch", "cpu", "torch_cpu"),
        ("torch", "npu:3", "torch_npu"),
        ("torch", "tpu", ""),
        ("mindspore", "CPU", "mindspore_auto"),
        ("tensorflow", "cpu", ""),
    ],
)
def test_op_list_of_a_device(backend: str, device: str, system: str) -> None:
    assert op_system(backend, device) == system


def test_layer_that_is_no_op_is_not_looked_up() -> None:
    assert cells(side("one", "autocast_float16"))["own"] == ["op"]

"""The report of a comparison, layer by layer: root causes, heat maps, overflows, many names."""

from __future__ import annotations

import importlib.util
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from mpcore.tools.report import charts
from mpcore.tools.report.cells import LIMITS, QUANTITIES, layer_rows
from mpcore.tools.report.depth import cards, depth_views
from mpcore.tools.report.layers import LayerDistance
from mpcore.tools.report.overflow import overflow_views, step_ranges
from mpcore.tools.report.result import Result, Run
from mpcore.tools.report.svg import HEAT, PALETTE, series

HOSTILE = "<script>alert('x')</script>\"'&$x_{$"
Pages = dict[str, tuple[Any, str]]
CARDS = {"light": "#ffffff", "dark": "#1d2126"}


def _load(name: str) -> Any:
    path = Path(__file__).with_name(f"{name}.py")
    spec = importlib.util.spec_from_file_location(f"mpcore_report_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


make, sample, reading = _load("deep_sample"), _load("sample"), _load("reading")


def result(kind: str) -> dict[str, Any]:
    found: dict[str, Any] = getattr(make, kind)(sample.sample())
    return found


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Pages:
    """Return, by kind, what a reader finds in the page, and its source."""
    found = {}
    for kind in ("deep", "across", "crowd"):
        folder = tmp_path_factory.mktemp(kind)
        seen = reading.page(result(kind), folder)
        found[kind] = (seen, (folder / "report.html").read_text(encoding="utf-8"))
    return found


# --- the page ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["deep", "across", "crowd"])
def test_page_is_whole_and_says_what_diverges(pages: Pages, kind: str) -> None:
    found, text = pages[kind]
    ids = found.values("id")
    assert len(ids) == len(set(ids))
    named = found.values("href") + [f"#{value}" for value in found.values("aria-labelledby")]
    named += re.findall(r"url\((#[^)]*)\)", text)
    assert {value[1:] for value in named} <= set(ids)
    assert not {"link", "img"} & set(found.tags)
    assert found.tags.count("script") == 1
    assert "http" not in text
    assert not re.search(r"\b(None|nan|NaN|undefined)\b", found.text)
    assert "Where they diverge first, and why" in found.text
    assert "eps at features.1 ( batch_normalization in" in found.text
    assert "diverge first in the forward pass at features.1 (batch_normalization)" in found.text
    assert "3.1e-2 apart, noise explains 4.0e-6 (7800x that)" in found.text
    assert "Fix Give tensorflow's layer epsilon=1e-5" in found.text
    assert "Against torch:float64, beyond rounding: tensorflow" in found.text


def test_result_without_depth_has_none_of_it(tmp_path: Path) -> None:
    text = reading.page(sample.sample(), tmp_path).text
    for words in (
        "Layer by layer",
        "What overflowed",
        "Why they differ",
        "Configurations",
        "Bytes",
        "Seen",
    ):
        assert words not in text


def test_verdict_answers_the_questions_of_one_look(pages: Pages) -> None:
    text = pages["deep"][0].text
    for words in (
        "Why they differ eps at features.1, in the forward pass (2 pairs).",
        "Skipped steps 3 by torch mixed_float16",
        "First overflow features.4 (Conv2d) in convolution_backward, backward "
        "(torch mixed_float16, tensorflow mixed_float16).",
        "Largest safe scale 2¹³ (torch mixed_float16, tensorflow mixed_float16).",
        "mixed_float16 3 in float32 and 2 in float16.",
        "Not as planned: torch float32 4 of 5 as planned",
        "Speed against float32 mixed_bfloat16 1.41x in torch",
        "float32 16 predicted, 16.5 in torch, 17 in tensorflow, 16.9 in mindspore;",
        "No divergence, layer by layer: torch and tensorflow (float32)",
        "seen float16 > float32",
        "computed in float16, planned float32",
        "mode eager",
    ):
        assert words in text


def test_every_cell_of_a_heat_map_is_told_in_words_too(
    pages: Pages,
) -> None:
    data, found = result("deep"), pages["deep"][0]
    depths = [pair["depth"] for pair in data["pairs"] if pair.get("depth")]
    rows = [row for depth in depths for row in depth["rows"] + depth["ops"]]
    cells = [row[key] for row in rows for key, *_ in QUANTITIES if row[key]]
    tips = found.values("data-tip")
    assert len(tips) == len(cells)
    beyond = sum(cell["beyond"] for cell in cells)
    assert 0 < beyond < len(cells)
    assert sum("beyond noise" in tip for tip in tips) == beyond
    assert found.text.count("beyond noise:") == beyond
    assert sum(" beyond" in value for value in found.values("class")) == beyond
    assert found.text.count("cosine") > 0
    assert tips[0].startswith("output: ")


def test_colours_follow_the_difference_on_a_log_scale() -> None:
    sizes = [0.0, 5e-7, 5e-6, 5e-5, 5e-4, 5e-3, 5e-2, 5e-1, "inf"]
    data = result("across")
    row = data["pairs"][0]["depth"]["rows"][0]
    data["pairs"][0]["depth"]["rows"] = [
        {**row, "output": {**row["output"], "relative": size}} for size in sizes
    ]
    levels = [layer.cells[0].level for layer in depth_views(Result.from_dict(data))[0].layers]
    assert levels == [0, 1, 2, 3, 4, 5, 6, 7, 7]
    assert len(HEAT) == len(LIMITS) + 1


def test_layer_that_is_called_twice_diverges_in_its_first_call() -> None:
    rows = [LayerDistance("a", "a")] * 2 + [LayerDistance("b")]
    assert [row.first for row in layer_rows(rows, "a", {})] == [True, False, False]
    assert [row.note for row in layer_rows(rows, "a", {"a": "eps"})] == [
        "first: eps",
        "eps",
        "no partner",
    ]


def test_pairs_with_one_cause_share_a_card() -> None:
    found = cards(depth_views(Result.from_dict(result("deep"))))
    assert [(card.cause.kind, len(card.pairs)) for card in found] == [("eps", 2)]
    assert [cause.where for cause in found[0].others] == ["in the loss"]
    notes = [layer.note for layer in found[0].depth.layers]
    assert [note for note in notes if note] == ["first: eps"]


def test_divergence_without_a_cause_and_a_failed_look_say_so(tmp_path: Path) -> None:
    data = result("across")
    data["pairs"][0]["depth"]["root_causes"] = []
    data["pairs"][1]["depth"] = {
        "rows": [],
        "first": None,
        "root_causes": [],
        "verdict": "not looked at: torch mixed_float16: out of memory",
        "how": "",
    }
    text = reading.page(data, tmp_path).text
    assert "no root cause found at features.1" in text
    assert "not looked at torch mixed_float16: out of memory" in text
    assert "root cause: not found" in reading.shown(data, 80)


def test_settings_that_change_no_number_have_no_sizes() -> None:
    data = result("across")
    first = {"phase": "update", "layer": "(optimizer)", "own_layer": "(optimizer)"}
    data["pairs"][0]["depth"]["first"] = {**first, "relative": 0.0, "tolerance": 0.0}
    assert depth_views(Result.from_dict(data))[0].divergence == "in the optimizer's update"


def test_hostile_words_stay_text(tmp_path: Path) -> None:
    data = result("deep")
    for pair in data["pairs"]:
        depth = pair.get("depth")
        if not depth:
            continue
        depth |= {
            "how": HOSTILE,
            "verdict": f"different: {HOSTILE}",
            "exact": {"wrong": "", "why": HOSTILE},
        }
        depth["root_causes"] = [
            {**cause, **dict.fromkeys(("kind", "layer", "own_layer", "fix"), HOSTILE)}
            for cause in depth["root_causes"]
        ]
        for row in depth["rows"]:
            row |= {"path": HOSTILE, "own_path": HOSTILE, "type": HOSTILE}
    for run in data["runs"]:
        run["configuration"] = {"backend": HOSTILE}
        for found in run.get("postmortems") or []:
            found |= dict.fromkeys(("layer", "op", "rule", "policy", "advice", "sentence"), HOSTILE)
    found = reading.page(data, tmp_path)
    assert found.tags.count("script") == 1  # ours
    assert found.text.count("<script>alert('x')</script>") > 50
    assert "<script>" in reading.shown(data, 120)


# --- overflows --------------------------------------------------------------------------------


def _overflow(**change: Any) -> Any:
    run = {"backend": "torch", "policy": "mixed_float16", "status": "ok"}
    dead = {**make.post_mortem(2, 65536.0), **change}
    return overflow_views(
        Result.from_dict({"experiment": "x", "runs": [{**run, "postmortems": [dead]}]})
    )[0]


@pytest.mark.parametrize(
    ("change", "name", "text"),
    [
        ({}, "runs", (("torch", "mixed_float16", "2"),)),
        ({}, "over", "6.0x the limit"),
        ({"peak": "inf"}, "over", "out of float32 too"),
        ({"peak": "inf"}, "length", 1.0),
        ({"peak": 65504.0}, "length", 1 / 3),
        ({"safe_scale": None}, "safe", "none"),
        (
            {"safe_scale": None, "phase": "forward"},
            "safe",
            "does not matter: nothing was scaled yet",
        ),
        ({}, "safe", "2^13"),
        ({"layer": "", "type": "", "op": None}, "layer", "(model)"),
        ({"layer": "", "type": "", "op": None, "phase": "loss"}, "layer", "(loss)"),
        ({"rule": None, "policy": None, "fixes": False}, "rule", ""),
    ],
)
def test_post_mortem_reads_well(change: dict[str, Any], name: str, text: Any) -> None:
    assert getattr(_overflow(**change), name) == text


def test_post_mortems_that_agree_are_one() -> None:
    found = overflow_views(Result.from_dict(result("deep")))
    assert [one.runs for one in found] == [
        (("torch", "mixed_float16", "0 to 1, 12"), ("tensorflow", "mixed_float16", "0, 12"))
    ]
    assert found[0].peak == "1.7e+06"  # the largest
    assert found[0].constants[1] == ("head mask: -1e+09, the format ends at 65504; use -65504")
    assert found[0].tried[1] == "full features: still overflows in head"
    assert step_ranges([]) == ""


# --- many configurations, two policies ---------------------------------------------------------


def test_many_configurations_have_a_matrix_and_places_of_their_own(pages: Pages) -> None:
    data, found = result("crowd"), pages["crowd"][0]
    assert "the same training in 12 set-ups" in found.text
    assert "55 of 66 pairs agree" in found.text
    assert "7 more in the table" in found.text
    cells = [v for v in found.values("title") if ": same" in v or ": different" in v]
    assert len(cells) == 12 * 11
    assert sum(": different" in value for value in cells) == 2 * 11
    places = series(Result.from_dict(data))
    assert sorted(places.values()) == list(range(12))
    assert (places["torch"], places["tensorflow"], places["mindspore"]) == (0, 1, 2)
    assert "All 66 pairs" not in pages["deep"][0].text


def test_configuration_has_the_place_of_its_framework_where_that_is_free() -> None:
    names = ("mindspore:compiled", "torch@/opt/python", "torch")
    runs = tuple(Run(backend=name, policy="float32", status="ok") for name in names)
    assert series(Result("x", runs)) == {
        "mindspore:compiled": 2,
        "torch@/opt/python": 1,
        "torch": 0,
    }


def test_pairs_across_policies_have_names_and_curves(pages: Pages) -> None:
    data, text = result("across"), pages["across"][0].text
    assert "float32 - mixed_float16 torch float32 and torch mixed_float16: different" in text
    drawn = [chart for chart in charts.draw(Result.from_dict(data)) if chart.group == "difference"]
    assert [chart.title for chart in drawn] == ["Difference from torch float32"]
    for name in ("mixed_bfloat16", "mixed_float16"):
        assert f">{name}</text>" in drawn[0].svg


def test_bytes_of_a_parameter_are_drawn_beside_the_prediction() -> None:
    drawn = {chart.group: chart for chart in charts.draw(Result.from_dict(result("deep")))}
    assert "torch float32: 16.5 B, plan 16." in drawn["bytes"].svg
    assert "mindspore mixed_float16: failed." in drawn["bytes"].svg


# --- the terminal -----------------------------------------------------------------------------


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("kind", ["deep", "across", "crowd"])
def test_terminal_names_the_cause_and_fits(kind: str, width: int) -> None:
    text = reading.shown(result(kind), width)
    assert max(map(len, text.splitlines())) <= width
    words = re.sub(r"\s+", " ", text)
    assert "in the forward pass at features.1 (batch_normalization): 3.1e-2 apart" in words
    assert "root cause: eps (sure). Give tensorflow's layer epsilon=1e-5" in words
    assert re.search(r"cosine +largest +by 0.1 % +ULP", text)
    assert re.search(r"features\.1 output +[\d.]+e-0\d +4\.0e-06 0\.\d{6}", text)


def test_terminal_names_overflows() -> None:
    words = re.sub(r"\s+", " ", reading.shown(result("deep"), 80))
    assert "overflow: torch mixed_float16 step 0 to 1, 12, and 1 more run: backward" in words
    assert "26x the limit; largest safe scale 2^13; fixed by 'full features.4'" in words


# --- colours ----------------------------------------------------------------------------------


def _luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return sum(w * p for w, p in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def _contrast(a: str, b: str) -> float:
    low, high = sorted((_luminance(a), _luminance(b)))
    return (high + 0.05) / (low + 0.05)


def test_text_is_readable_on_every_colour_and_heat_only_grows() -> None:
    """Contrast as in WCAG 2.2, success criterion 1.4.3."""
    for light, ink, dark, dark_ink in HEAT:
        assert _contrast(light, ink) >= 4.5
        assert _contrast(dark, dark_ink) >= 4.5
    for place, card in ((0, CARDS["light"]), (1, CARDS["dark"])):
        assert min(_contrast(colours[place], card) for colours in PALETTE) >= 4.5
    assert all(_luminance(a[0]) > _luminance(b[0]) for a, b in pairwise(HEAT))
    assert all(_luminance(a[2]) < _luminance(b[2]) for a, b in pairwise(HEAT))

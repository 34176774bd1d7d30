"""``mpcore report``: two results side by side, what it says, what it refuses."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import pytest
from commands import assert_refused, mpcore

from mpcore.errors import ExperimentError
from mpcore.tools.report.changes import changes
from mpcore.tools.report.command import report
from mpcore.tools.report.report import json_text
from mpcore.tools.report.result import Conditions, Number, Pair, Result, Run

BIAS = "bias gradient in bfloat16, wrong in tensorflow"
GRADIENT = Number("gradient", 3e-5, 1e-4, tensor="conv.weight", step=3)
CURVE = Number("curve", 1e-4, 1e-3, step=12)
SAME = Pair("torch", "tensorflow", "float32", "same", numbers=(GRADIENT, CURVE))
LOW = replace(SAME, policy="mixed_bfloat16")


def result(*pairs: Pair, steps: int = 30, status: str = "ok", tensorflow: str = "2.21.0") -> Result:
    runs = (
        Run(backend="torch", policy="float32", status="ok"),
        Run(
            backend="tensorflow", policy="float32", status=status,
            versions={"tensorflow": tensorflow},
        ),
    )  # fmt: skip
    return Result("net", runs, settings=Conditions(steps, 16, 0, 10, 3), pairs=pairs)


def written(path: Path, found: Result) -> Path:
    path.write_text(json_text(found), encoding="utf-8")
    return path


# --- what changed ---------------------------------------------------------------------------


def test_nothing_changes_between_a_result_and_itself() -> None:
    found = changes(result(SAME, LOW), result(SAME, LOW))
    assert found.verdicts == ()
    assert found.circumstances == ()
    assert [(pair.numbers, pair.gained, pair.lost) for pair in found.pairs] == [((), (), ())] * 2


def test_a_verdict_is_its_first_words_and_changed_ones_come_first() -> None:
    apart = replace(LOW, verdict="different: beyond noise by 2.5x at step 12")
    kink = replace(SAME, verdict="same: but at step 3 of 10 a gradient lies 1.0e-02 apart")
    found = changes(result(SAME, LOW), result(kink, apart))
    assert [(pair.policy, pair.changed) for pair in found.pairs] == [
        ("mixed_bfloat16", True),
        ("float32", False),
    ]
    assert found.verdicts[0].a == "same"
    assert found.verdicts[0].b == apart.verdict


def test_a_pair_of_one_result_alone_is_a_change_and_the_order_of_its_sides_is_none() -> None:
    turned = replace(SAME, a="tensorflow", b="torch")
    found = changes(result(SAME), result(turned, LOW))
    (alone,) = found.verdicts
    assert (alone.policy, alone.a, alone.b, alone.numbers) == ("mixed_bfloat16", None, "same", ())
    across = replace(SAME, a_policy="float32", b_policy="mixed_bfloat16", b="torch")
    assert changes(result(across), result(across)).pairs[0].policy == "float32 - mixed_bfloat16"


@pytest.mark.parametrize(
    ("after", "moved"),
    [
        (replace(GRADIENT, size=1.2e-4), False),  # 0.9 of the tolerance farther
        (replace(GRADIENT, size=1.4e-4), True),
        (replace(GRADIENT, size=1.4e-4, tolerance=1e-3), False),  # the larger tolerance counts
        (replace(GRADIENT, size=4e-5, tolerance=3.5e-5, beyond=True), True),  # across the line
        (replace(GRADIENT, size=inf), True),
        (replace(GRADIENT, size=inf, tolerance=inf), False),  # noise alone decides
        (replace(GRADIENT, tolerance=0.0), False),
        (None, True),
    ],
)
def test_a_number_moves_by_more_than_noise_or_across_it(after: Number | None, moved: bool) -> None:
    numbers = (CURVE,) if after is None else (after, CURVE)
    for first, second in ((SAME.numbers, numbers), (numbers, SAME.numbers)):
        pairs = [result(replace(SAME, numbers=each)) for each in (first, second)]
        (pair,) = changes(*pairs).pairs
        assert [number.name for number in pair.numbers] == ["gradient"] * moved
        assert not pair.changed


def test_what_stayed_infinite_or_was_not_judged_at_all_did_not_move() -> None:
    lost = replace(SAME, numbers=(replace(GRADIENT, size=inf, beyond=True),))
    assert changes(result(lost), result(lost)).pairs[0].numbers == ()
    failed = replace(SAME, verdict="not compared: tensorflow float32 failed", numbers=())
    (pair,) = changes(result(SAME), result(failed)).pairs
    assert (pair.changed, pair.numbers) == (True, ())


def test_known_differences_are_gained_and_lost_one_by_one() -> None:
    one = replace(GRADIENT, size=0.3, beyond=True, known=BIAS)
    both = replace(one, known=f"{BIAS}, biased moving variance")
    pairs = [replace(SAME, numbers=(number,)) for number in (one, both)]
    (pair,) = changes(result(pairs[0]), result(pairs[1])).pairs
    assert (pair.gained, pair.lost) == (("biased moving variance",), ())
    (pair,) = changes(result(pairs[1]), result(SAME)).pairs
    assert (pair.gained, pair.lost) == ((), (BIAS, "biased moving variance"))


def test_what_the_results_were_made_under_is_told_where_it_differs() -> None:
    after = replace(result(SAME, steps=50, status="failed", tensorflow="2.22.0"), interrupted=True)
    found = changes(result(SAME), after).circumstances
    assert [(one.name, one.a, one.b) for one in found] == [
        ("steps", "30", "50"),
        ("interrupted", "no", "yes"),
        ("tensorflow in tensorflow", "2.21.0", "2.22.0"),
        ("run of tensorflow float32", "ok", "failed"),
    ]


def test_results_without_pairs_or_with_one_twice_are_refused() -> None:
    with pytest.raises(ExperimentError, match="neither holds one"):
        changes(result(), result())
    with pytest.raises(ExperimentError, match=r"torch and tensorflow \(float32\) twice"):
        changes(result(SAME, SAME), result(SAME))
    assert changes(result(SAME), result()).verdicts[0].b is None


# --- the command ----------------------------------------------------------------------------


def test_the_terminal_tells_verdicts_first_then_numbers_and_known_differences(
    tmp_path: Path,
) -> None:
    known = replace(GRADIENT, size=0.4, tolerance=4e-3, beyond=True, tensor="b.bias", known=BIAS)
    apart = replace(SAME, verdict=f"known difference: {BIAS}; by 4e-1", numbers=(known, CURVE))
    (tmp_path / "before").mkdir()
    written(tmp_path / "before" / "report.json", result(SAME, LOW))
    written(tmp_path / "after.json", result(apart, LOW, tensorflow="2.22.0"))
    done = mpcore(tmp_path, "report", "before", "after.json", COLUMNS="200")
    assert (done.returncode, done.stderr) == (1, "")
    said = [
        "1 of 2 verdicts changed; 1 number moved beyond tolerance.",
        "known difference",
        "A 3.0e-5 (noise 1.0e-4), B 0.4 (noise 4.0e-3): beyond noise now, by 100x",
        "worst in conv.weight | b.bias",
        f"gained   {BIAS}",
        "2.21.0   2.22.0",
    ]
    places = [done.stdout.index(words) for words in said]
    assert places == sorted(places)
    done = mpcore(tmp_path, "report", "before", "before", COLUMNS="200")
    assert (done.returncode, done.stdout, done.stderr) == (0, "None of 2 verdicts changed.\n", "")


def test_json_is_strict_and_alone_on_standard_output_and_the_page_is_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hostile = "<script>alert(1)</script>"
    lost = replace(SAME, verdict=f"different: {hostile}", numbers=(replace(CURVE, size=inf),))
    a, b = written(tmp_path / "a.json", result(SAME)), written(tmp_path / "b.json", result(lost))
    page = tmp_path / "changes.html"
    for _ in range(2):  # an earlier page is replaced
        assert report(a, b, form="json", output=page) == 1
    text = capsys.readouterr().out.split('{\n  "format"')[1]
    found = json.loads('{\n  "format"' + text, parse_constant=pytest.fail)
    assert (found["format"], found["changed"], found["a"]) == ("mpcore-report", True, str(a))
    numbers = found["pairs"][0]["numbers"]
    sizes = [number["b"] and number["b"]["size"] for number in numbers]
    assert sizes == ["inf", None] or sizes == [None, "inf"]
    html = page.read_text(encoding="utf-8")
    shown = _reading().Page(html)
    assert "1 of 1 verdict changed" in shown.text
    assert hostile in shown.text  # as text
    assert "script" not in shown.tags
    assert not [value for name, value in shown.attributes if name in ("src", "href")]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "b.json", "changes.html"]


def test_what_is_no_result_is_one_line_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    good = written(tmp_path / "good.json", result(SAME))
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.json").write_text("no JSON", encoding="utf-8")
    (tmp_path / "list.json").write_text("[1]", encoding="utf-8")
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "deep.json").write_text("[" * 200_000, encoding="utf-8")
    runs = {"format": "mpcore-runs", "version": 1, "ranks": {}}
    (tmp_path / "runs.json").write_text(json.dumps(runs), encoding="utf-8")
    for name, words in {
        "nowhere": "'nowhere'",
        "empty": "folder 'empty' without a report.json",
        "text.json": "must be JSON, 'text.json' is not",
        "list.json": "'list.json': this is no report of a comparison",
        "bytes.json": "must be JSON, 'bytes.json' is not",
        "deep.json": "must be JSON, 'deep.json' is not",
        "runs.json": "'runs.json': this is no report of a comparison",
    }.items():
        for places in ((good, name), (name, good)):
            with pytest.raises(ExperimentError, match=words.replace(".", r"\.")):
                report(*map(Path, places), output=Path("page.html"))
    assert not (tmp_path / "page.html").exists()
    assert_refused(mpcore(tmp_path, "report", good, "text.json"), "'text.json'")


@pytest.mark.parametrize(
    ("output", "words"),
    [("page.txt", "ends in .html"), ("no/page.html", "can be written"), ("own.html", "else")],
)
def test_a_page_replaces_nothing_but_an_earlier_page(
    tmp_path: Path, output: str, words: str
) -> None:
    good = written(tmp_path / "good.json", result(SAME))
    (tmp_path / "own.html").write_text("<!doctype html>mine", encoding="utf-8")
    with pytest.raises(ExperimentError, match=words):
        report(good, good, output=tmp_path / output)
    assert (tmp_path / "own.html").read_text(encoding="utf-8") == "<!doctype html>mine"


def _reading() -> Any:
    path = Path(__file__).with_name("reading.py")
    spec = importlib.util.spec_from_file_location("mpcore_changes_reading", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

"""The report: what is written, what is refused, and what a reader finds in it."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from mpcore.errors import ExperimentError
from mpcore.tools.report import charts, report
from mpcore.tools.report.drawing import spread
from mpcore.tools.report.numbers import format_percent
from mpcore.tools.report.report import check_folder
from mpcore.tools.report.result import Result, Run
from mpcore.tools.report.svg import PALETTE, series


def _load(name: str) -> Any:
    path = Path(__file__).with_name(f"{name}.py")
    spec = importlib.util.spec_from_file_location(f"mpcore_report_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


make, reading = _load("sample"), _load("reading")
page, shown = reading.page, reading.shown
FORBIDDEN = {"torch", "tensorflow", "keras", "mindspore"}
HOSTILE = "<script>alert('x')</script>\"'&$x_{$"


def write_report(result: dict[str, Any], folder: Path) -> list[Path]:
    return report.write_report(Result.from_dict(result), folder)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


# --- report.json and the records --------------------------------------------------------------


def test_json_is_the_result_without_records(tmp_path: Path) -> None:
    result = make.sample()
    result["runs"][0]["loss"][0] = float("nan")
    files = write_report(result, tmp_path)
    text = (tmp_path / "report.json").read_text(encoding="utf-8")
    read = json.loads(text, parse_constant=pytest.fail)
    assert read["runs"][0]["loss"][0] == "nan"
    for run in result["runs"]:
        run.pop("records", None)
    assert repr(Result.from_dict(read)) == repr(Result.from_dict(result))
    for written, given in zip(read["runs"][1:], result["runs"][1:], strict=True):
        assert written.items() >= {k: v for k, v in given.items() if k != "plan"}.items()
    assert sorted(files) == sorted(tmp_path.iterdir())
    assert text.startswith('{\n  "experiment"')


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: r.pop("experiment"), "Result lacks `experiment`"),
        (lambda r: r.update(loose=1), "Result has `loose`, which is no field"),
        (
            lambda r: r["runs"][2].update(loss="much"),
            r"Result\.runs\[2\]\.loss must be of type list",
        ),
        (
            lambda r: r["pairs"][0]["free"].update(tolerance="a"),
            r"free\.tolerance must be of type float",
        ),
        (
            lambda r: r["settings"].update(seed=True),
            r"settings\.seed must be of type int, got True",
        ),
    ],
)
def test_what_is_no_result_is_refused_by_its_place(change: Any, message: str) -> None:
    result = make.sample()
    change(result)
    with pytest.raises(ExperimentError, match=message):
        Result.from_dict(result)


def test_records_are_one_line_a_step(tmp_path: Path) -> None:
    result = make.sample()
    write_report(result, tmp_path)
    lines = (tmp_path / "torch-mixed_float16.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == result["runs"][2]["records"]
    assert not (tmp_path / "mindspore-mixed_float16.jsonl").exists()


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda r: r["runs"][0]["records"][0].update(loss=float("inf")), id="records"),
        pytest.param(lambda r: r["runs"][0]["records"][0].update(loss=Path()), id="object"),
    ],
)
def test_what_strict_json_lacks_is_refused_and_nothing_written(tmp_path: Path, spoil: Any) -> None:
    result = make.sample()
    spoil(result)
    with pytest.raises(ExperimentError, match="`records` must be plain data"):
        write_report(result, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_record_names_are_safe_and_all_different(tmp_path: Path) -> None:
    result = make.single_backend()
    policies = ("../../up", "apex:O2", "apex/O2", "APEX:O2", "apex_O2-2")
    run = result["runs"][0]
    result["runs"] = [{**run, "policy": policy} for policy in policies]
    names = [path.name for path in write_report(result, tmp_path / "in")]
    assert len({name.lower() for name in names}) == 2 + len(policies)
    assert sorted(names) == sorted(contents(tmp_path / "in"))
    assert list(tmp_path.iterdir()) == [tmp_path / "in"]
    check_folder(tmp_path / "in")


def test_any_text_survives(tmp_path: Path) -> None:
    result = make.single_backend()
    result["experiment"], result["file"] = "混合精度 µ", "odd\udc80name.py"
    write_report(result, tmp_path)
    assert "混合精度 µ" in (tmp_path / "report.json").read_text(encoding="utf-8")
    assert json.loads((tmp_path / "report.json").read_bytes())["file"] == result["file"]
    assert "混合精度 µ" in (tmp_path / "report.html").read_text(encoding="utf-8")


# --- the folder -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["notes.txt", ".hidden", "report.json", "torch-float32.jsonl"])
def test_foreign_file_stops_the_report_and_is_kept(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    for act in (lambda: check_folder(tmp_path), lambda: write_report(make.sample(), tmp_path)):
        with pytest.raises(ExperimentError, match=re.escape(repr(name)) + ".*another --output"):
            act()
    assert contents(tmp_path) == {name: b"mine"}


def test_foreign_file_beside_an_earlier_report_stops_the_next(tmp_path: Path) -> None:
    write_report(make.sample(), tmp_path)
    (tmp_path / "my-notes.jsonl").write_text("mine")
    before = contents(tmp_path)
    with pytest.raises(ExperimentError, match=r"my-notes\.jsonl"):
        write_report(make.single_backend(), tmp_path)
    assert contents(tmp_path) == before


def test_folder_inside_stops_the_report(tmp_path: Path) -> None:
    (tmp_path / "report.html").mkdir()
    with pytest.raises(ExperimentError, match=r"report\.html"):
        check_folder(tmp_path)


def test_json_of_something_else_is_not_an_earlier_report(tmp_path: Path) -> None:
    for text in ('{"experiment": "x"}', '["experiment", "runs"]', '{"runs": []}', "{", "\udc80"):
        (tmp_path / "report.json").write_bytes(text.encode("utf-8", "surrogateescape"))
        with pytest.raises(ExperimentError, match=r"report\.json"):
            check_folder(tmp_path)


def test_earlier_report_is_replaced_and_stale_records_removed(tmp_path: Path) -> None:
    write_report(make.sample(), tmp_path)
    check_folder(tmp_path)
    (tmp_path / ".mpcore-4711.tmp").write_text("left by a killed process")
    files = write_report(make.single_backend(), tmp_path)
    assert sorted(files) == sorted(tmp_path.iterdir())
    assert not any(name.startswith(("mindspore", "tensorflow")) for name in contents(tmp_path))


@pytest.mark.parametrize("inside", ["", "deeper/still"])
def test_file_in_place_of_the_folder_is_refused(tmp_path: Path, inside: str) -> None:
    (tmp_path / "out").write_text("mine")
    for act in (check_folder, lambda folder: write_report(make.sample(), folder)):
        with pytest.raises(ExperimentError, match=r"must be a folder, got .*'out' is a file"):
            act(tmp_path / "out" / inside)
    assert contents(tmp_path) == {"out": b"mine"}


def test_missing_folder_is_made_and_only_by_writing(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    check_folder(folder)
    assert not folder.exists()
    write_report(make.single_backend(), folder)
    assert (folder / "report.html").is_file()


def test_relative_folder_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_report(make.single_backend(), Path("out"))
    check_folder(Path("out"))
    check_folder(Path("out") / "new")
    assert (tmp_path / "out" / "report.json").is_file()


# --- all or nothing ---------------------------------------------------------------------------


@pytest.mark.parametrize("fails_at", [1, 2, 5])
def test_failing_rename_leaves_the_old_report_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails_at: int
) -> None:
    write_report(make.single_backend(), tmp_path)
    before, calls, real = contents(tmp_path), [0], os.replace

    def replace(source: Any, target: Any) -> None:
        calls[0] += 1
        if calls[0] == fails_at:
            raise OSError(28, "No space left on device")
        real(source, target)

    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(ExperimentError, match=r"could not be written.*No space left"):
        write_report(make.sample(), tmp_path)
    assert contents(tmp_path) == before


def test_failing_first_report_leaves_an_empty_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(13, "Permission denied")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(ExperimentError, match="choose another --output"):
        write_report(make.sample(), tmp_path)
    assert contents(tmp_path) == {}


def test_failing_page_leaves_the_old_report_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: Any) -> str:
        raise RuntimeError

    write_report(make.single_backend(), tmp_path)
    before = contents(tmp_path)
    monkeypatch.setattr(report, "page", broken)
    with pytest.raises(RuntimeError):
        write_report(make.sample(), tmp_path)
    assert contents(tmp_path) == before


def test_two_writes_are_equal_byte_for_byte(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_report(make.sample(), tmp_path / name)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


@pytest.mark.slow
def test_another_process_writes_the_same_page(tmp_path: Path) -> None:
    write_report(make.sample(), tmp_path / "a")
    code = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); "
        "import sample, pathlib, mpcore.tools.report.report as r; "
        "from mpcore.tools.report.result import Result; "
        "found = Result.from_dict(sample.sample()); "
        f"r.write_report(found, pathlib.Path({str(tmp_path / 'b')!r})); "
        f"print(*set(sys.modules) & {FORBIDDEN!r}, 'matplotlib.pyplot' in sys.modules)"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "123"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert done.stdout.split() == ["False"]
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


# --- the page ---------------------------------------------------------------------------------


def test_page_needs_nothing_from_elsewhere(tmp_path: Path) -> None:
    found = page(make.sample(), tmp_path)
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert not {"link", "iframe", "img", "object"} & set(found.tags)
    assert found.tags.count("script") == 1  # of its own, without a source
    assert found.values("src") == []
    assert all(value.startswith("#") for value in found.values("href"))
    assert all(value.startswith("#") for value in re.findall(r"url\(\s*['\"]?([^)]*)", text))
    assert "http" not in text
    assert "@import" not in text
    assert str(tmp_path) not in text


def test_ids_are_unique_and_references_resolve(tmp_path: Path) -> None:
    found = page(make.sample(), tmp_path)
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    ids = found.values("id")
    assert len(ids) == len(set(ids))
    named = found.values("href") + [f"#{value}" for value in found.values("aria-labelledby")]
    named += re.findall(r"url\((#[^)]*)\)", text)
    assert {value[1:] for value in named} <= set(ids)


def test_page_says_what_happened(tmp_path: Path) -> None:
    text = page(make.sample(), tmp_path).text
    for words in (
        "8 of 9 runs finished, 1 failed.",
        "5 of 7 comparisons agree, 1 differs, 1 too noisy to tell.",
        "torch, tensorflow and mindspore agree (in lock-step, losses differ by at most 1.2e-07).",
        "different torch skipped 3 steps, tensorflow 2; first at step 1",
        "failed TypeError: Conv2D refuses float16 on CPU",
        "non-finite gradients, first in features.4.weight, at scale 65536",
        "mixed_bfloat16 simulated",
        "rule: full *head",
        "stored float32, hands on bfloat16, default for norm",
        "largest scale that worked: 2¹⁴",
        "mixed_bfloat16 1.41x in torch",
        "2.13.0",
    ):
        assert words in text


def test_all_good_is_one_sentence(tmp_path: Path) -> None:
    result = make.sample()
    result["runs"] = [run for run in result["runs"] if run["policy"] == "float32"]
    result["pairs"] = [pair for pair in result["pairs"] if pair["policy"] == "float32"]
    text = page(result, tmp_path).text
    assert "All 3 runs finished. All 3 comparisons agree." in text
    assert "Skipped steps none." in text


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    result = make.sample()
    for run in result["runs"]:
        run["policy"] = f"{run['policy']}{HOSTILE}"
        run["backend"] = f"{run['backend'][:1]}{HOSTILE}"
        run["error"] = HOSTILE
        for layer in (run["plan"] or {"layers": []})["layers"]:
            layer |= dict.fromkeys(("path", "type", "param", "compute", "rule"), HOSTILE)
        for skip in run["skipped"]:
            skip["reason"] = HOSTILE
    for pair in result["pairs"]:
        pair |= {"a": HOSTILE, "b": HOSTILE, "verdict": f"different: {HOSTILE}"}
    result |= {"experiment": HOSTILE, "file": HOSTILE, "created": HOSTILE}
    result["settings"] |= {"optimizer": HOSTILE}
    found = page(result, tmp_path)
    assert found.tags.count("script") == 1  # ours
    assert found.text.count("<script>alert('x')</script>") > 20
    assert "<script>" in shown(result, 120)


def test_every_chart_has_its_text_and_colours() -> None:
    drawn = charts.draw(Result.from_dict(make.sample()))
    groups = [chart.group for chart in drawn]
    assert groups == (
        ["loss"] * 3 + ["difference"] * 3 + ["scale", "speed", "memory"] + ["norm"] * 3
    )
    for chart in drawn:
        assert '<title id="mp-' in chart.svg
        assert 'role="img"' in chart.svg
        assert not re.search(r"#0[0-9]0[0-9]0[0-9]", chart.svg)  # no placeholder is left
        assert "<text" in chart.svg
        assert ">tensorflow</text>" in chart.svg
    assert "from 2^16 to 2^13, 3 skipped steps" in drawn[6].svg
    assert "24.2 ms simulated" in drawn[7].svg
    assert ">failed</text>" in drawn[7].svg


def test_backend_keeps_its_colour_whoever_else_runs() -> None:
    def places(*names: str) -> dict[str, int]:
        runs = [Run(backend=name, policy="float32", status="ok") for name in names]
        return series(Result("x", tuple(runs)))

    assert places("mindspore", "torch") == {"mindspore": 2, "torch": 0}
    assert places("jax", "torch") == {"jax": 1, "torch": 0}
    many = places("torch", *"abcdefgh")
    assert set(many.values()) <= set(range(len(PALETTE)))
    assert [many[name] for name in "abc"] == [1, 2, 3]


def test_charts_leave_the_settings_of_matplotlib_alone() -> None:
    import matplotlib as mpl

    mpl.rcParams["font.size"] = 31
    try:
        first = charts.draw(Result.from_dict(make.sample()))
        assert mpl.rcParams["font.size"] == 31
    finally:
        mpl.rcdefaults()
    assert charts.draw(Result.from_dict(make.sample())) == first


def test_names_at_the_ends_of_curves_never_overlap() -> None:
    for heights in ([0.0, 0.0, 0.0], [1.0, 1.0, 1.0], [0.5, 0.51, 0.9], [0.97, 0.99, 1.0, 0.0]):
        found = sorted(spread({str(i): h for i, h in enumerate(heights)}, 0.1).values())
        assert all(b - a >= 0.0999 for a, b in pairwise(found))
        assert found[0] >= 0
        assert found[-1] <= 1


# --- partial results --------------------------------------------------------------------------


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("kind", ["failed_only", "single_backend"])
def test_partial_results_have_a_report(tmp_path: Path, kind: str, width: int) -> None:
    result = getattr(make, kind)()
    text = page(result, tmp_path).text
    assert "No two runs were compared." in text
    assert max(map(len, shown(result, width).splitlines())) <= width
    if kind == "failed_only":
        assert "0 of 2 runs finished, 1 failed, 1 not run." in text
        assert "mindspore is not installed" in text
        assert "mindspore is not installed" in shown(result, width)


def test_least_of_a_result_has_a_report(tmp_path: Path) -> None:
    run = {"backend": "torch", "policy": "float32", "status": "not run"}
    for runs in ([], [run]):
        result = {"experiment": "x", "runs": runs, "pairs": []}
        assert "finished" in page(result, tmp_path).text
        assert "backend" in shown(result, 80)


@pytest.mark.parametrize("width", [80, 120])
def test_interrupted_comparison_says_so_first(tmp_path: Path, width: int) -> None:
    result = make.single_backend()
    result["runs"][1] |= {"status": "interrupted", "error": "stopped on the way"}
    result["runs"][2] |= {"status": "not run", "error": "stopped before its turn"}
    sentence = "The comparison was interrupted: this is what was done until then."
    assert sentence not in page({**result, "interrupted": False}, tmp_path).text
    assert sentence not in shown({**result, "interrupted": False}, width)
    result["interrupted"] = True
    text = page(result, tmp_path).text
    assert f"{sentence} 1 of 3 runs finished, 1 interrupted, 1 not run." in text
    assert sentence in shown(result, width).splitlines()


def test_diverged_runs_have_a_report(tmp_path: Path) -> None:
    result = make.sample()
    for run in result["runs"]:
        for key in ("loss", "grad_norm", "scale"):
            run[key] = ["inf", "nan", 1e38, "-inf", 1e-40, 0.0, "nan"]
    result["tolerances"] = {"float32": ["inf", 0.1, "nan"]}
    result["pairs"][0]["lockstep"] |= dict.fromkeys(
        ("max_rel_loss_diff", "max_rel_grad_diff", "max_rel_update_diff"), "inf"
    )
    result["pairs"][0]["free"] = {"max_rel_loss_diff": "nan", "tolerance": "inf"}
    assert "nan" in page(result, tmp_path).text
    assert "nan" in shown(result, 80)


# --- the terminal -----------------------------------------------------------------------------


@pytest.mark.parametrize("width", [80, 120])
def test_table_fits_and_names_every_verdict(width: int) -> None:
    text = shown(make.sample(), width)
    lines = text.splitlines()
    assert max(len(line) for line in lines) <= width
    for words in ("same", "different", "not compared", "simulated", "failed", "1.2e-07", "0.46%"):
        assert words in text
    assert "too noisy" in text
    assert "torch skipped 3 steps" in text
    row = next(line for line in lines if line.startswith("torch      mixed_float16"))
    assert row.split()[2:] == ["cpu", "0.4392", "3", "2^13", "0.800", *row.split()[7:]]
    assert "…" not in text


def test_numbers_line_up() -> None:
    rows = [line for line in shown(make.sample(), 80).splitlines() if " cpu " in line][:8]
    assert len(rows) == 8
    assert len({row.index("(") for row in rows}) == 1
    assert {len(row.rstrip()) for row in rows} == {len(rows[0].rstrip())}


@pytest.mark.parametrize(
    ("size", "text"),
    [(None, "-"), (0.0, "0"), (4e-6, "0.0004%"), (0.0046, "0.46%"), (0.0999, "10.0%"), (2, "200%")],
)
def test_percent_is_short(size: float | None, text: str) -> None:
    assert format_percent(size) == text


# --- speed on a busy machine ------------------------------------------------------------------


@pytest.mark.parametrize("busy", ["float32", "mixed_float16"])
def test_speed_measured_beside_others_is_called_rough(busy: str, tmp_path: Path) -> None:
    """Of a policy's own run, or of the float32 run that it is set against."""
    result = make.sample()
    rough = re.compile(r"~ ?\d+\.\d\dx")
    assert not rough.search(page(result, tmp_path / "quiet").text + shown(result, 100))
    own = [run for run in result["runs"] if run["backend"] == "torch"]
    timed = next(run for run in own if run["policy"] == busy)["step_seconds"]
    timed["others"] = 0.34
    speeds = re.compile(r"\d+\.\d\dx\b")
    before = []
    for text in (page(result, tmp_path / "busy").text, shown(result, 100)):
        assert rough.search(text)
        assert "others used up to 34%" in " ".join(text.split())
        before.append(len(speeds.findall(text)))
    timed["others"] = 0.84
    texts = (page(result, tmp_path / "crowded").text, shown(result, 100))
    for text, count in zip(texts, before, strict=True):
        assert not rough.search(text)
        assert len(speeds.findall(text)) < count
        assert "No speed is told where others used 40% of the machine" in " ".join(text.split())
        assert "(up to 84%)" in " ".join(text.split())

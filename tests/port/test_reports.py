"""Sections of the reports: defaults that were written out, keys of checkpoints, steps."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from mpcore_port.command import port
from mpcore_port.engine import port_tree
from mpcore_port.report import diff, html, sarif, text, to_json
from mpcore_port.source import walk
from mpcore_port.targets import Options, load_target

LAYERS = """\
import torch
import torch.nn as nn

net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3, bias=False), nn.GELU())
again = nn.Conv2d(8, 9, 1)
torch.save({"net": net.state_dict(), "epoch": 1}, "a.pt")
"""
FUSED = "from apex.optimizers import FusedAdam\n\noptimizer = FusedAdam(params, lr=0.1)\n"


@pytest.mark.parametrize(
    ("code", "target", "rows"),
    [
        (
            LAYERS,
            "mindspore",
            {
                ("nn.Conv2d", "has_bias=True pad_mode='pad'", "4 5"),
                ("nn.Conv2d", "pad_mode='pad'", "4"),  # bias=False was the script's own
                ("nn.GELU", "approximate=False", "4"),
            },
        ),
        (FUSED, "torch_npu", {("torch.optim.AdamW", "weight_decay=0.0", "3")}),
        (LAYERS, "torch_npu", set()),
    ],
)
def test_defaults_that_differ_have_a_section(
    tmp_path: Path, code: str, target: str, rows: set[tuple[str, str, str]]
) -> None:
    (tmp_path / "a.py").write_text(code)
    port(tmp_path / "a.py", to=target, output=tmp_path / "b.py", report="text,json,html")
    found = json.loads((tmp_path / "b.mpcore-port.json").read_text())["pinned_defaults"]
    assert {(r["call"], " ".join(r["arguments"]), " ".join(r["lines"])) for r in found} >= rows
    assert bool(found) == bool(rows)
    said = (tmp_path / "b.mpcore-port.txt").read_text()
    page = (tmp_path / "b.mpcore-port.html").read_text()
    assert ("defaults written out because" in said) == bool(rows)
    assert ("<h2>Defaults written out" in page) == bool(rows)
    for call, arguments, lines in rows:
        head = f"  a.py:{lines.replace(' ', ', ')}: {call}: {arguments.replace(' ', ', ')}: "
        assert head in said


def test_keys_of_checkpoints_are_shown_before_and_after(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(LAYERS)
    port(tmp_path / "a.py", to="mindspore", output=tmp_path / "b.py", report="text,json,html")
    (row,) = json.loads((tmp_path / "b.mpcore-port.json").read_text())["checkpoint_keys"]
    assert (row["key"], row["value"], row["way"]) == ("net", "net.state_dict()", "save")
    assert row["port"] in (tmp_path / "b.py").read_text()
    assert row["port"] != row["value"]
    assert (
        f"  net = net.state_dict() -> {row['port']}\n"
        in (tmp_path / "b.mpcore-port.txt").read_text()
    )
    assert f"<code>{row['port']}</code>" in (tmp_path / "b.mpcore-port.html").read_text()


STEP = {
    "loop": [3, 9],
    "function": "train",
    "kept_lines": 12,
    "inputs": "float32[8,4]",
    "inputs_are": "given",
    "args": ["--data", "mpcore"],
    "replaced": [{"line": 2, "what": "nothing in place of import wandb <b>"}],
    "assumed": ["nothing calls train"],
    "losses": [{"api": "torch.nn.MSELoss", "line": 4}],
    "optimizers": [],
    "scalers": [],
    "port_lines": 12,
    "elsewhere": ["x = 1"],
    "refused": "",
    "lines": ["step      the loop of lines 3 to 9"],
}
ONE = {"mode": "float32", "verdict": "different", "words": "first difference at 3"}


@pytest.mark.parametrize("step", [None, STEP, {"refused": "no backward pass", "lines": ["no"]}])
def test_page_says_what_was_run(tmp_path: Path, step: dict[str, object] | None) -> None:
    (tmp_path / "a.py").write_text(LAYERS)
    result = port_tree(walk(tmp_path / "a.py"), load_target("torch_npu"), Options())
    run = {"script": "a.py", "comparisons": [ONE], "whole": "no data", "step": step}
    run["why_not"] = "float32: it differs"
    found = {"passed": False, "lines": ["a.py:", "not run whole: no data"], "runs": [run]}
    result = replace(result, verification=found)
    page = html(result)
    assert "Verification failed." in page
    assert "Not run whole: no data" in page
    assert "first difference at 3" in page
    assert ("import wandb &lt;b&gt;" in page) == (step is STEP)
    assert ("not there: <code>x = 1</code>" in page) == (step is STEP)
    assert ("not taken out: no backward pass" in page) == (step is not None and step is not STEP)
    assert "verified: not run whole: no data" in text(result)
    assert "a.py: runs; not verified: float32: it differs\n" in text(result)
    assert json.loads(to_json(result))["verification"] == found


def test_inf_and_nan_are_words_in_json(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("import torch\n")
    result = port_tree(walk(tmp_path / "a.py"), load_target("torch_npu"), Options())
    losses = (1.0, float("inf"), float("nan"))
    found = {"passed": False, "lines": [], "runs": [], "why_not": "x", "losses": losses}
    answer = json.loads(to_json(replace(result, verification=found)))
    assert answer["verification"]["losses"] == [1.0, "inf", "nan"]


FOLDED = (
    "import torch\nimport transformers\n\n\ndef f(a, b):\n    a.cuda()\n    b.cuda()\n"
    "    torch.compile(f)\n    return torch.cuda.power_draw()\n"
)


def test_text_folds_equal_lines_and_lists_exact_ones_where_asked(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(FOLDED)
    result = port_tree(walk(tmp_path / "a.py"), load_target("torch_npu"), Options())
    said = text(result)
    assert said.splitlines()[1] == "needs at run time: torch_npu"
    assert "a.py: runs unless line 9 is reached; not verified: --no-verify" in said
    assert "3 lines unproven" in said
    assert sum("nothing in this file says what it is called on" in s for s in said.split("\n")) == 1
    assert "device strings" not in said
    exact = tmp_path / "b.py"
    exact.write_text("import torch\nx = torch.ones(1).cuda()\ny = torch.ones(1).cuda()\n")
    result = port_tree(walk(exact), load_target("torch_npu"), Options())
    assert "exact: torch.ones(1).cuda()" not in text(result)
    assert "exact: torch.ones(1).cuda(): the method's name" in text(result, verbose=True)


def test_diff_and_sarif_show_what_changes_and_what_nobody_checked(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(FOLDED)
    result = port_tree(walk(tmp_path / "a.py"), load_target("torch_npu"), Options())
    shown = diff(result).splitlines()
    assert shown[:2] == ["--- a/a.py", "+++ b/a.py"]
    assert {"-    a.cuda()", "+    a.npu()", "+import torch_npu"} <= set(shown)
    (run,) = json.loads(sarif(result))["runs"]
    places = {
        (r["ruleId"], r["locations"][0]["physicalLocation"]["region"]["startLine"])
        for r in run["results"]
    }
    assert places == {("unproven", 2), ("unproven", 6), ("unproven", 7), ("refused", 9)}


def test_a_rule_that_fails_everywhere_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mpcore_port.torch_npu.devices import DeviceMethod

    def crash(*_: object) -> None:
        raise KeyError("no such thing")  # noqa: EM101  # what a rule might raise

    monkeypatch.setattr(DeviceMethod, "leave", crash)
    (tmp_path / "a.py").write_text("import torch\n" + "x = y.cuda()\n" * 5)
    port(tmp_path / "a.py", to="torch_npu", output=tmp_path / "b.py", report="text")
    said = (tmp_path / "b.mpcore-port.txt").read_text().splitlines()
    lines = [line.strip() for line in said if "failed (" in line]
    assert len(lines) == 1
    assert lines[0].startswith("a.py:2, a.py:3, a.py:4 and ")
    assert lines[0].endswith("; the code stays as it is")

"""Notebooks: ported cell by cell, magics kept, outputs cleared, lines named by cell."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mpcore_port.command import check, port, scan
from mpcore_port.engine import port_tree
from mpcore_port.errors import PortError
from mpcore_port.source import walk
from mpcore_port.targets import Options, load_target
from mpcore_port.verify.judge import VerifyOptions
from mpcore_port.verify.project import verify_port

pytestmark = pytest.mark.usefixtures("warm_workers")

SETUP = """\
%matplotlib inline
!pip install torch \\
    --index-url https://download.example/cuda
import torch
from torch.cuda.amp import GradScaler, autocast
"""
MODEL = """\
files = !ls
model = torch.nn.Linear(4, 1).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = GradScaler()
model?"""
TRAIN = """\
%%time
for step in range(12):
    x = torch.randn(8, 4, device="cuda")
    with autocast():
        loss = (model(x)
        % 3).float().pow(2).mean()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    if step == 3:
        !echo {step}
"""
TEXT = 'note = """\n%not magic\n!nor this\n"""\nx = "%d" % 3  # why?\n'
BASH = "%%bash\nls /usr/local\n"


def cell(kind: str, source: str, *, lines: bool = True) -> dict[str, Any]:
    made: dict[str, Any] = {"cell_type": kind, "metadata": {"tags": ["é"]}, "id": source[:3]}
    made["source"] = source.splitlines(keepends=True) if lines else source
    if kind == "code":
        made |= {"outputs": [{"output_type": "stream", "name": "stdout", "text": ["secret"]}]}
        made["execution_count"] = 7
    return made


def notebook(*cells: dict[str, Any], **more: Any) -> str:
    metadata = {"language_info": {"name": "python"}, "widgets": {"state": 1}}
    document = {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5, **more}
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


WHOLE = notebook(
    cell("markdown", "# On cuda\n"),
    cell("code", SETUP),
    cell("code", MODEL, lines=False),
    cell("code", BASH),
    cell("raw", "as it is"),
    cell("code", TEXT),
    cell("code", TRAIN),
    cell("code", ""),
)


def sources(path: Path) -> list[str]:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return ["".join(one["source"]) for one in cells]


def test_cells_are_ported_and_everything_else_is_kept(tmp_path: Path) -> None:
    (tmp_path / "a.ipynb").write_text(WHOLE, encoding="utf-8")
    port(tmp_path / "a.ipynb", to="torch_npu", output=tmp_path / "b.ipynb", report="json,html,text")
    old, new = json.loads(WHOLE), json.loads((tmp_path / "b.ipynb").read_text(encoding="utf-8"))
    assert (new["metadata"], new["nbformat_minor"]) == (old["metadata"], 5)
    assert "secret" not in (tmp_path / "b.ipynb").read_text(encoding="utf-8")
    for before, after in zip(old["cells"], new["cells"], strict=True):
        assert list(before) == list(after)
        assert (before["metadata"], before["id"]) == (after["metadata"], after["id"])
        assert type(before["source"]) is type(after["source"])
        if "outputs" in after:
            assert (after["outputs"], after["execution_count"]) == ([], None)
    setup = SETUP.replace("import torch\n", "import torch\nimport torch_npu\n")
    assert sources(tmp_path / "b.ipynb") == [
        "# On cuda\n",
        setup.replace("torch.cuda.amp", "torch_npu.npu.amp"),
        MODEL.replace("cuda", "npu"),
        BASH,
        "as it is",
        TEXT,
        TRAIN.replace("cuda", "npu"),
        "",
    ]
    said = (tmp_path / "b.mpcore-port.txt").read_text(encoding="utf-8")
    assert "cell 7 line 9: lint finding clip-scaled" in said
    assert "a.ipynb: not converted: cell 2 line 3: kept as it is; it says 'cuda'" in said
    report = json.loads((tmp_path / "b.mpcore-port.json").read_text(encoding="utf-8"))
    (file,) = report["files"]
    placed = [(s["cell"], s["line"], s["new_cell"], s["new_line"]) for s in file["edits"]]
    assert placed == [(2, 5, 2, 6), (3, 2, 3, 2), (7, 3, 7, 3)]
    assert (file["findings"][0]["cell"], file["findings"][0]["line"]) == (7, 9)
    assert (report["scan"]["scalers"][0]["cell"], report["scan"]["scalers"][0]["line"]) == (3, 4)
    page = (tmp_path / "b.mpcore-port.html").read_text(encoding="utf-8")
    assert "files = !ls" in page
    assert "_mpcore_kept_" not in page + said


@pytest.mark.parametrize("target", ["torch_npu", "mindspore"])
def test_a_port_of_a_port_is_the_same_file(tmp_path: Path, target: str) -> None:
    (tmp_path / "a.ipynb").write_text(WHOLE, encoding="utf-8")
    port(tmp_path / "a.ipynb", to=target, output=tmp_path / "b.ipynb", report="")
    port(tmp_path / "b.ipynb", to=target, output=tmp_path / "c.ipynb", report="")
    assert (tmp_path / "b.ipynb").read_bytes() == (tmp_path / "c.ipynb").read_bytes()
    found = "\n".join(sources(tmp_path / "b.ipynb"))
    assert "files = !ls\n" in found
    assert "        !echo {step}\n" in found
    assert ("import mindspore as ms" in found) == (target == "mindspore")


def test_check_and_scan_name_cells(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.ipynb").write_text(WHOLE.replace("example/cuda", "example"), encoding="utf-8")
    said = {}
    for form in ("text", "github", "json", "sarif"):
        assert check(tmp_path / "a.ipynb", form=form) == 1
        said[form] = capsys.readouterr().out
    assert said["text"].startswith("a.ipynb:cell 7 line 9: clip-scaled: gradients")
    assert said["github"].startswith("::warning file=a.ipynb,title=mpcore clip-scaled::cell 7 line")
    (finding,) = json.loads(said["json"])["findings"]
    assert (finding["cell"], finding["line"]) == (7, 9)
    (result,) = json.loads(said["sarif"])["runs"][0]["results"]
    assert result["message"]["text"].startswith("cell 7 line 9: ")
    assert "region" not in result["locations"][0]["physicalLocation"]
    assert scan(tmp_path / "a.ipynb") == 0
    facts = json.loads(capsys.readouterr().out)["files"]["a.ipynb"]
    assert [(fact["cell"], fact["line"]) for fact in facts["scalers"]] == [(3, 4)]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ("{}", "no `nbformat`"),
        ("{", "no notebook: broken JSON: Expecting property name"),
        ("[" * 100_000, "nested too deeply"),
        ('"' + "\\ud800" + '"', "no `nbformat`"),
        (notebook(cell("code", "x = 1"), nbformat=3), "of format 3, only 4 is ported"),
        (notebook(cell("code", "x = 1"), cells={}), "`cells` must be a list"),
        (notebook({"cell_type": "code"}), "cell 1 has no `source` of text"),
        (notebook({"source": "x"}), "cell 1 has no `cell_type`"),
        (notebook(metadata={"language_info": {"name": "R"}}), "a notebook of r, only those of"),
        (notebook(cell("markdown", ""), cell("code", "if x:\n")), "cell 2 line 1: broken Python"),
        (notebook(cell("code", "x = 1\nprint 'a'\n")), "cell 1 line 2: Python 2"),
        (notebook(cell("code", "# %% [cell 1]\n")), "cell 1 holds a mark of the porter's own"),
        (notebook(cell("code", "x = 1\n\x0cy = 2\n")), "cell 1 line 2: the form feed cannot be"),
        (notebook(cell("code", "\ud800")).encode("utf-8", "surrogatepass"), "is not UTF-8"),
        (WHOLE.replace('"é"', '"\\ud800"', 1), "could not be written again"),
    ],
)
def test_broken_notebook_is_refused_with_its_cell(
    tmp_path: Path, data: str | bytes, words: str
) -> None:
    (tmp_path / "a.ipynb").write_bytes(data if isinstance(data, bytes) else data.encode())
    with pytest.raises(PortError) as error:
        port(tmp_path / "a.ipynb", to="torch_npu", output=tmp_path / "b.ipynb")
    assert words in str(error.value)
    assert [path.name for path in tmp_path.iterdir()] == ["a.ipynb"]


def test_notebook_becomes_a_notebook(tmp_path: Path) -> None:
    (tmp_path / "a.ipynb").write_text(WHOLE, encoding="utf-8")
    with pytest.raises(PortError, match=r"`-o` must end in \.ipynb as 'a\.ipynb' does"):
        port(tmp_path / "a.ipynb", to="torch_npu", output=tmp_path / "b.py")


@pytest.mark.slow
def test_notebook_is_verified_as_the_script_of_its_cells(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "a.ipynb").write_text(WHOLE, encoding="utf-8")
    tree, target = walk(tmp_path / "a.ipynb"), load_target("torch_npu")
    options = VerifyOptions(losses=4, at=1, modes=("mixed",))
    result = port_tree(tree, target, Options())
    found = verify_port(result, tree, target, options, "", lambda _: None).verification
    assert found is not None
    assert found["passed"] is True, found["lines"]
    assert "4 losses equal bit for bit" in found["lines"][1]
    assert [path.name for path in tmp_path.iterdir()] == ["a.ipynb"]


def test_cells_that_a_rule_mixes_up_are_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mpcore_port import engine

    def swap(*args: Any, **options: Any) -> Any:
        made = real(*args, **options)[0]
        made.text = made.text.replace("# %% [cell 2]", "# %% [cell 9]")
        return made, [], [], type("At", (), {"unmapped": []})

    real = engine.apply_pass
    monkeypatch.setattr(engine, "apply_pass", swap)
    (tmp_path / "a.ipynb").write_text(WHOLE, encoding="utf-8")
    assert port(tmp_path / "a.ipynb", to="torch_npu", output=tmp_path / "b.ipynb", report="text")
    assert sources(tmp_path / "b.ipynb") == sources(tmp_path / "a.ipynb")
    said = (tmp_path / "b.mpcore-port.txt").read_text()
    assert "the cells of the port cannot be told apart" in said

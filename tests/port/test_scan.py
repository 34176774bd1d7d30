"""What names mean, what a scan finds, and the reports."""

from __future__ import annotations

import json
from pathlib import Path

import libcst as cst
import pytest

from mpcore import Policy
from mpcore_port.command import port
from mpcore_port.command import scan as scan_command
from mpcore_port.reading import read
from mpcore_port.scan import joined, scan
from mpcore_port.torch_names import EXPORTS

SCRIPTS = Path(__file__).parent / "scripts"


def _scan(text: str):  # type: ignore[no-untyped-def]
    return scan(read(text), "a.py")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("import torch as ch\nch.cuda.amp.GradScaler", "torch.cuda.amp.GradScaler"),
        ("from torch.cuda import amp\namp.autocast", "torch.cuda.amp.autocast"),
        ("import torch.cuda.amp as tamp\ntamp.autocast", "torch.cuda.amp.autocast"),
        ("import torch.cuda.amp\ntorch.nn.Linear", "torch.nn.Linear"),
        ("from torch.cuda.amp import *\nGradScaler", "torch.cuda.amp.GradScaler"),
        ("import torch\nnn = torch.nn\nL = nn.Linear\nL", "torch.nn.Linear"),
        ("from .torch import nn\nnn", ".torch.nn"),
        ("from . import utils as u\nu.f", ".utils.f"),
        ("import torch\ntorch = 1\ntorch.nn", None),
        ("import torch\nif f:\n    torch = 1\ntorch.nn", "torch.nn"),
        ("x = x\nx", None),
        ("def torch(): pass\ntorch.nn", None),
        ("f().nn", None),
    ],
)
def test_qualified_name(text: str, name: str | None) -> None:
    tree = read(text + "\n")
    last = tree.module.body[-1]
    assert isinstance(last, cst.SimpleStatementLine)
    expr = last.body[0]
    assert isinstance(expr, cst.Expr)
    assert tree.names.qualified(expr.value) == name


def test_scopes_are_pythons_own() -> None:
    tree = read(
        "import torch\n"
        "class A:\n    torch = 1\n    def f(self):\n        return torch.nn\n"
        "def g(torch):\n    return torch.nn\n"
        "def h():\n    global late\n    import math as late\n"
        "late.pi\n[torch for torch in []]\n"
    )
    found = [
        tree.names.qualified(node) for node in tree.names.parents if isinstance(node, cst.Attribute)
    ]
    assert found == ["torch.nn", None, "math.pi"]


@pytest.mark.parametrize(
    "text",
    [
        "s = GradScaler()\ns.update()\n",
        "s = GradScaler() if amp else None\ns.update()\n",
        "def f(s):\n    s.update()\nf(GradScaler())\n",
        "def f(x, *, s=None):\n    s.update()\nf(1, s=GradScaler())\n",
        "def make():\n    return GradScaler()\ns = make()\ns.update()\n",
        "def make():\n    return 1, GradScaler()\nx, s = make()\ns.update()\n",
        "x, s = 1, GradScaler()\ns.update()\n",
        "class T:\n    def __init__(self):\n        self.s = GradScaler()\n"
        "    def go(self):\n        self.s.update()\n",
        "class T:\n    def __init__(self, s):\n        self.s = s\n"
        "    def go(self):\n        self.s.update()\nT(GradScaler())\n",
        "args.s = GradScaler()\nargs.s.update()\n",
        "if (s := GradScaler()):\n    s.update()\n",
    ],
)
def test_scaler_is_followed_to_where_it_is_used(text: str) -> None:
    found = _scan("from torch.cuda.amp import GradScaler\n" + text)
    assert len(found.scalers) == len(found.updates) == 1


def test_scan_of_a_gpt_trainer_is_complete() -> None:
    found = scan(read((SCRIPTS / "gpt_accumulate.py").read_text()), "gpt.py")
    (scaler,) = found.scalers
    assert (scaler.name, scaler.constants) == ("scaler", {"enabled": '(dtype == "float16")'})
    (region,) = found.autocasts
    assert (region.form, region.dtype) == ("value", "ptdtype")
    assert region.alternative == "contextlib.nullcontext"
    assert [o.api for o in found.optimizers] == ["torch.optim.AdamW"]
    assert [(c.limit, c.unscaled) for c in found.clips] == [("grad_clip", True)]
    assert [b.scaled for b in found.backwards] == ["scaler"]
    assert [loss.api for loss in found.losses] == ["torch.nn.functional.cross_entropy"]
    assert {d.role for d in found.devices} >= {"comparison"}
    assert found.torch_names["torch.nn.Linear"] == 5


def test_scan_finds_wrappers_functions_keys_and_accumulation() -> None:
    wrapper = scan(read((SCRIPTS / "resnet_wrapper.py").read_text()), "a.py")
    assert [w.name for w in wrapper.wrappers] == ["NativeScaler"]
    custom = scan(read((SCRIPTS / "custom_function.py").read_text()), "a.py")
    assert [f.name for f in custom.functions] == ["Swish"]
    resume = scan(read((SCRIPTS / "resume_scaler.py").read_text()), "a.py")
    assert {c.key for c in resume.checkpoints if c.way == "save"} >= {"model", "scaler"}
    steps = _scan(
        "for i, x in enumerate(data):\n    loss.backward()\n"
        "    if (i + 1) % every == 0:\n        opt.step()\n"
    )
    assert [(a.test, a.divisor) for a in steps.accumulations] == [("(i + 1) % every == 0", "every")]


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("x = 1", ""),
        (
            "with torch.cuda.amp.autocast(): pass\ns = torch.cuda.amp.GradScaler()",
            "autocast_float16",
        ),
        ("with torch.autocast('cuda', torch.bfloat16): pass", "autocast_bfloat16"),
        ("with torch.cuda.amp.autocast(): pass", "autocast_float16, loss_scale=none"),
        (
            "with torch.cuda.amp.autocast(): pass\ns = torch.cuda.amp.GradScaler(2.0**10, 2.0)",
            "autocast_float16, loss_scale=dynamic(init_scale=1024)",
        ),
        ("from apex import amp\namp.initialize(m, o, opt_level='O2')", "apex:O2"),
    ],
)
def test_policy_is_the_one_that_the_script_stands_for(text: str, policy: str) -> None:
    found = _scan(f"import torch\n{text}\n").policy
    assert found == policy
    if policy:
        Policy.parse(found)


def test_scan_is_plain_data_and_scans_add_up() -> None:
    scans = [scan(read(path.read_text()), path.name) for path in sorted(SCRIPTS.glob("*.py"))]
    whole = joined(scans)
    assert len(whole.scalers) == sum(len(one.scalers) for one in scans)
    assert json.loads(json.dumps(whole.to_dict(), allow_nan=False)) == whole.to_dict()


def test_scan_command_prints_json_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.py").write_text("import torch\ns = torch.cuda.amp.GradScaler()\n")
    assert scan_command(tmp_path) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["files"]["a.py"]["scalers"][0]["line"] == 2
    assert [path.name for path in tmp_path.iterdir()] == ["a.py"]


def test_reports_agree_and_the_page_shows_both_sides(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "a.py"
    source.write_text(
        "import torch\n\nx = torch.ones(1).cuda()\ntorch.cuda.power_draw()  # <script>\n"
    )
    assert port(source, to="torch_npu", output=tmp_path / "b.py", report="json,html,text") == 1
    said = capsys.readouterr().out
    assert said == (tmp_path / "b.mpcore-port.txt").read_text()
    assert "a.py: does not run" in said
    answer = json.loads((tmp_path / "b.mpcore-port.json").read_text())
    (file,) = answer["files"]
    new = (tmp_path / "b.py").read_text().splitlines()
    for edit in file["edits"]:
        assert edit["new"].splitlines()[0] in new[edit["new_line"] - 1], edit
        assert f"{edit['line']} -> {edit['new_line']}:" in said or edit["kind"] == "exact"
    assert answer["scan"]["unmapped"] == [] or file["status"] == "does not run"
    page = (tmp_path / "b.mpcore-port.html").read_text()
    assert "torch.ones(1).npu()" in page
    assert "torch.ones(1).cuda()" in page
    assert "# &lt;script&gt;" in page
    assert "http" not in page.replace("http-equiv", "")


def test_names_of_torch_are_those_of_the_installed_one() -> None:
    torch = pytest.importorskip("torch")
    for module, names in EXPORTS.items():
        found = torch
        for part in module.split(".")[1:]:
            found = getattr(found, part)
        assert {"GradScaler", "autocast"} & names or not module.endswith("amp")
        assert not [name for name in names if not hasattr(found, name)]

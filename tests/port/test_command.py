"""``mpcore port`` as it is typed: exit codes, one clear line for a mistake, verification."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from mpcore.errors import BackendMissingError
from mpcore_port.command import port

pytestmark = pytest.mark.usefixtures("warm_workers")

REAL = sys.executable
MPCORE = Path(sys.executable).parent / "mpcore"


def _run(*words: object, cwd: Path, real: bool = False) -> subprocess.CompletedProcess[str]:
    python = () if real else (sys.executable,)
    command = [str(word) for word in (*python, MPCORE, "port", *words)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


def test_exit_codes_are_0_for_exact_1_for_more_and_2_for_a_mistake(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("import torch\n\nx = torch.ones(1).cuda()\n")
    (tmp_path / "b.py").write_text("import torch\n\ntorch.compile(print)\n")
    done = _run("a.py", "--to", "torch_npu", "-o", "out.py", cwd=tmp_path, real=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "a.py: runs; " in done.stdout
    assert (tmp_path / "out.py").read_text().endswith("x = torch.ones(1).npu()\n")
    assert _run("b.py", "--to", "torch_npu", "-o", "c.py", cwd=tmp_path).returncode == 1
    wrong = _run("a.py", "--to", "torch_npu", "-o", "out.py", cwd=tmp_path)
    assert wrong.returncode == 2
    assert wrong.stderr == (
        "error: `-o` 'out.py' is there already; choose another, or replace it with --force\n"
    )


@pytest.mark.parametrize(
    ("command", "parts"),
    [
        ([], ("Exit codes", "PATH --to TARGET -o OUT", "convert", "scan", "check")),
        (["convert"], ("Exit codes", "--to", "--portable", "--api", "--force", "--verify")),
        (["scan"], ("Exit codes", "--output")),
        (["check"], ("Exit codes", "--format", "--output")),
    ],
)
def test_help_documents_exit_codes_and_every_option(
    tmp_path: Path, command: list[str], parts: tuple[str, ...]
) -> None:
    text = " ".join(_run(*command, "--help", cwd=tmp_path).stdout.split())
    assert [part for part in parts if part not in text] == []


def test_plain_form_and_convert_are_one_command(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("import torch\n\nx = torch.ones(1).cuda()\n")
    plain = _run("a.py", "--to", "torch_npu", "-o", "b.py", cwd=tmp_path)
    first = _run("--to", "torch_npu", "-o", "c.py", "a.py", cwd=tmp_path)
    named = _run("convert", "a.py", "--to", "torch_npu", "-o", "d.py", cwd=tmp_path)
    assert [plain.returncode, first.returncode, named.returncode] == [0, 0, 0]
    assert plain.stdout == first.stdout == named.stdout
    assert len({(tmp_path / name).read_text() for name in ("b.py", "c.py", "d.py")}) == 1


def test_scan_and_check_answer_on_standard_output(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("import torch\ns = torch.amp.GradScaler()\n")
    scanned = _run("scan", "a.py", cwd=tmp_path)
    assert json.loads(scanned.stdout)["files"]["a.py"]["scalers"][0]["line"] == 2
    checked = _run("check", "a.py", "--format", "github", cwd=tmp_path)
    assert checked.stdout.startswith("::warning file=a.py,line=2")
    assert (scanned.returncode, checked.returncode) == (0, 1)


def test_missing_libcst_names_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.py").write_text("x = 1\n")
    monkeypatch.setitem(sys.modules, "libcst", None)
    with pytest.raises(BackendMissingError, match=r'pip install "mpcore\[port\]"'):
        port(tmp_path / "a.py", to="torch_npu", output=tmp_path / "b.py")


def test_loading_the_command_imports_neither_libcst_nor_a_framework() -> None:
    unwanted = "{'libcst', 'torch', 'matplotlib', 'safetensors', 'mpcore.tools'}"
    code = f"import sys, mpcore_port.command; print(*{unwanted} & set(sys.modules))"
    done = subprocess.run([REAL, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
    other = code.replace("mpcore_port.command", "mpcore_port.engine")
    done = subprocess.run([REAL, "-c", other], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["libcst"]


@pytest.mark.slow
def test_verify_puts_what_it_found_into_the_report(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(
        "import torch\n\nmodel = torch.nn.Linear(4, 1).cuda()\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "scaler = torch.cuda.amp.GradScaler()\n"
        "for step in range(6):\n"
        "    with torch.cuda.amp.autocast():\n"
        "        loss = model(torch.randn(8, 4).cuda()).float().pow(2).mean()\n"
        "    optimizer.zero_grad()\n    scaler.scale(loss).backward()\n"
        "    scaler.step(optimizer)\n    scaler.update()\n"
    )
    pytest.importorskip("torch")
    done = _run("a.py", "--to", "torch_npu", "-o", "b.py", "--verify", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "verified: mixed     same" in done.stdout
    found = json.loads((tmp_path / "b.mpcore-port.json").read_text())["verification"]
    assert found["passed"] is True
    assert [one["mode"] for one in found["runs"][0]["comparisons"]] == [
        "float32",
        "mixed",
        "overflow",
    ]

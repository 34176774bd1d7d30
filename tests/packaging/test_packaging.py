"""sdist, a wheel from it, a clean environment, and the core tests there."""

from __future__ import annotations

import re
import runpy
import shutil
import subprocess
import sys
import zipfile
from email import message_from_string
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = (
    "mpcore",
    "mpcore_numpy",
    "mpcore_torch",
    "mpcore_tensorflow",
    "mpcore_mindspore",
    "mpcore_jax",
    "mpcore_compat",
    "mpcore_port",
    "mpcore_port_runtime",
)


def _run(*command: object, cwd: Path) -> str:
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    # "build" makes the wheel from the sdist, so a file missing there is missing here.
    _run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, ROOT, cwd=out)
    (found,) = out.glob("*.whl")
    return found


def test_wheel_holds_every_package_and_nothing_generic(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    tops = {name.split("/")[0] for name in names if ".dist-info" not in name}
    assert tops == set(PACKAGES)
    for package in PACKAGES:
        assert f"{package}/py.typed" in names
    assert "mpcore/tools/report/templates/report.html.j2" in names
    assert "mpcore/numerics/op_table.json" in names
    for source in ("mpcore_torch/update_kernels.c", "mpcore_mindspore/master_kernels.c"):
        assert source in names
    assert "mpcore/numerics/master_bits.h" in names  # which both include
    for data in ("policy/presets.toml", "policy/words.toml", "scaling/presets.toml"):
        assert f"mpcore/{data}" in names
    assert "mpcore_port/torch_names.txt" in names
    assert "mpcore_port/stubs/path/torch_npu/__init__.py" in names
    assert any(name.startswith("mpcore_port/mindspore/facts/") for name in names)


def test_indexes_take_what_is_built_and_it_is_the_same_each_time(
    wheel: Path, tmp_path: Path
) -> None:
    (sdist,) = wheel.parent.glob("*.tar.gz")
    _run(sys.executable, "-m", "twine", "check", "--strict", wheel, sdist, cwd=tmp_path)
    _run(sys.executable, "-m", "check_wheel_contents", wheel, cwd=ROOT)
    _run(
        sys.executable,
        *("-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path, ROOT),
        cwd=tmp_path,
    )
    (again,) = tmp_path.glob("*.whl")
    assert again.read_bytes() == wheel.read_bytes()


def test_the_page_of_an_index_has_no_link_that_leads_nowhere(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        page = message_from_string(archive.read(name).decode())
    text = page.get_payload()
    assert "mp.prepare(model, optimizer, policy)" in text
    assert not re.findall(r"\]\((?!https://)", text)
    absolute = runpy.run_path(str(ROOT / "hatch_build.py"))["absolute"]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = absolute(readme, "https://example.org/mpcore", "0.2.0")
    targets = re.findall(r"\]\(https://example.org/mpcore/(?:blob|raw)/v0.2.0/([^)#]+)", shown)
    assert len(targets) > 5
    assert all((ROOT / target).is_file() for target in targets)
    assert not re.findall(r"\]\((?!https://)", shown)


@pytest.mark.day
def test_clean_environment_runs_the_core_tests(wheel: Path, tmp_path: Path) -> None:
    _run(sys.executable, "-m", "venv", tmp_path / "env", cwd=tmp_path)
    python = tmp_path / "env" / "bin" / "python"
    pip = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    limits = ("-c", ROOT / "constraints.txt")
    _run(*pip, *limits, wheel, cwd=tmp_path)
    # Alone with numpy first: the core and the reference, nothing else.
    found = _run(python, "-m", "pip", "list", "--format=freeze", cwd=tmp_path)
    assert not {"torch", "tensorflow", "mindspore", "typer"} & {
        line.split("==")[0] for line in found.splitlines()
    }
    code = (
        "import mpcore, mpcore.tools.compare, mpcore_numpy, mpcore_compat; print(mpcore.__file__)"
    )
    assert str(ROOT) not in _run(python, "-c", code, cwd=tmp_path)
    _run(python, "-P", ROOT / "tests/matrix/readme.py", "numpy", cwd=tmp_path)
    command = tmp_path / "env" / "bin" / "mpcore"
    assert "Train one model" in _run(command, "--help", cwd=tmp_path)
    missing = subprocess.run(
        [command, "compare", "experiment.py"], capture_output=True, text=True, check=False
    )
    assert missing.returncode == 2
    assert 'pip install "mpcore[compare]"' in missing.stderr
    tools = ("pytest", "hypothesis", "ml_dtypes")
    _run(*pip, *limits, f"{wheel}[compare,monitor]", *tools, cwd=tmp_path)
    for part in ("core", "golden"):
        shutil.copytree(ROOT / "tests" / part, tmp_path / "tests" / part)
    (tmp_path / "tests" / "borders").mkdir()
    for file in ("conftest.py", "seconds.json", "borders/planted.py"):
        shutil.copy(ROOT / "tests" / file, tmp_path / "tests" / file)
    shutil.copytree(ROOT / "docs", tmp_path / "docs")  # tests compare its tables with the data
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    # Four of them read the repository itself, which is not here.
    readers = (
        "test_floors",
        "test_typing",
        "graph/test_graph_acceptance",
        "graph/test_graph_results",
    )
    of_sources = [f"--ignore=tests/core/{name}.py" for name in readers]
    # What hypothesis draws, `make unit` draws four times as often.
    fewer = ("env", "HYPOTHESIS_PROFILE=dev")
    out = _run(*fewer, python, "-m", "pytest", "-q", "tests/core", *of_sources, cwd=tmp_path)
    assert " passed" in out

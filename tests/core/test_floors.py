"""The contracts of the house hold, and would notice a plank that is nailed upward."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = [
    ROOT / "mpcore",
    *sorted(path.parent for path in ROOT.glob("backends/*/__init__.py")),
    *sorted(path.parent for path in ROOT.glob("compat/*/__init__.py")),
]
LARGEST = 1 / 6  # of the core's lines that one room may have


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the packages and their contracts, to be damaged."""
    copy = tmp_path_factory.mktemp("house")
    for package in PACKAGES:
        skip = shutil.ignore_patterns("__pycache__", "*.json", "*.toml", "*.txt")
        shutil.copytree(package, copy / package.name, ignore=skip)
    shutil.copy(ROOT / "pyproject.toml", copy)
    return copy


def _lint(house: Path) -> subprocess.CompletedProcess[str]:
    command = Path(sys.executable).with_name("lint-imports")
    path = os.environ | {"PYTHONPATH": str(house)}
    return subprocess.run(
        [command, "--no-cache"], cwd=house, env=path, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("file", "line", "contract"),
    [
        pytest.param("", "", "", id="as-it-is"),
        pytest.param(
            "mpcore/numerics/dtypes.py", "from mpcore.amp import amp", "The core's floors", id="up"
        ),
        pytest.param(
            "mpcore/policy/layer.py",
            "def late():\n    from mpcore.policy import plan",
            "No circle",
            id="circle-inside-a-function",
        ),
        pytest.param(
            "mpcore_compat/torch_amp/scaler.py",
            "import mpcore_torch.gradients",
            "a backend's stated module",
            id="shim-into-insides",
        ),
        pytest.param(
            "mpcore/step/result.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import mpcore.tools.report",
            "The core's floors",
            id="up-for-types-alone",
        ),
        pytest.param(
            "mpcore/scaling/loss_scale.py", "import torch", "knows no framework", id="torch"
        ),
        pytest.param(
            "mpcore_numpy/model.py", "import mpcore_torch.amp", "Backends know", id="backends"
        ),
        pytest.param(
            "mpcore_port_runtime/data.py", "import mpcore_port.rule", "runtime of ports", id="port"
        ),
    ],
)
def test_a_planted_arrow_breaks_its_contract(
    house: Path, file: str, line: str, contract: str
) -> None:
    if not file:
        assert _lint(house).returncode == 0
        return
    whole = (house / file).read_text(encoding="utf-8")
    (house / file).write_text(f"{whole}\n\n{line}\n", encoding="utf-8")
    try:
        ended = _lint(house)
    finally:
        (house / file).write_text(whole, encoding="utf-8")
    broken = [text for text in ended.stdout.splitlines() if " BROKEN" in text]
    assert ended.returncode == 1
    assert any(contract in text for text in broken), ended.stdout


def test_no_room_is_a_house_of_its_own() -> None:
    lines: dict[str, int] = {}
    for path in (ROOT / "mpcore").rglob("*.py"):
        parts = path.relative_to(ROOT / "mpcore").parts
        room = "/".join(parts[: 2 if parts[0] == "tools" else 1])
        lines[room] = lines.get(room, 0) + len(path.read_text(encoding="utf-8").splitlines())
    whole = sum(lines.values())
    assert {room: n for room, n in lines.items() if n > LARGEST * whole} == {}

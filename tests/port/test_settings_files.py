"""Settings beside scripts that name the device."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpcore_port import report
from mpcore_port.engine import port_tree
from mpcore_port.settings_files import on_npu
from mpcore_port.source import walk
from mpcore_port.targets import Options, load_target
from mpcore_port.write import write_port

SCRIPT = """import torch
import yaml

with open("c.yaml") as file:
    settings = yaml.safe_load(file)
if settings["accelerator"] == "cuda":
    device = torch.device("cuda", 0)
elif settings["accelerator"] == "cpu":
    device = torch.device("cpu")
else:
    raise ValueError(settings["accelerator"])
x = torch.ones(2, device=device).to(settings["device"])
"""
SETTINGS = """# trained on cuda
accelerator: cuda
device: "cuda:0"  # the first
devices: cuda or cpu
nested:
  - gpu_device: 'cuda'
    cuda: yes
"""


def put(folder: Path) -> tuple[Path, Path]:
    there = folder / "there"
    there.mkdir()
    (there / "train.py").write_text(SCRIPT)
    (there / "c.yaml").write_text(SETTINGS)
    return there, folder / "out"


def written(there: Path, out: Path, target: str, options: Options) -> str:
    """Port a folder, and return what is said of it."""
    tree = walk(there)
    result = port_tree(tree, load_target(target), options)
    write_port(result, tree, out, {})
    return report.text(result)


def test_a_folder_goes_to_an_npu_with_its_settings(tmp_path: Path) -> None:
    there, out = put(tmp_path)
    (there / "plain.json").write_text('{"device": "cuda", "lr": 0.1}\n')
    (there / "other.json").write_text('{\n "device": "cuda",\n "lr": 0.1\n}\n')
    told = written(there, out, "torch_npu", Options())
    made = SETTINGS.replace("accelerator: cuda", "accelerator: npu")
    made = made.replace('"cuda:0"', '"npu:0"').replace("'cuda'", "'npu'")
    assert (out / "c.yaml").read_text() == made
    assert '"device": "npu",' in (out / "other.json").read_text()
    assert "c.yaml:2: changed: lines 2, 3, 6 of the copy: npu, where it says cuda; line 1" in told
    assert "plain.json:1: not converted: copied as it is; it says 'cuda'" in told
    assert (there / "c.yaml").read_text() == SETTINGS


@pytest.mark.parametrize(
    ("target", "options"), [("torch_npu", Options(portable=True)), ("mindspore", Options())]
)
def test_other_ports_leave_settings_as_they_are(
    target: str, options: Options, tmp_path: Path
) -> None:
    there, out = put(tmp_path)
    written(there, out, target, options)
    assert (out / "c.yaml").read_text() == SETTINGS


@pytest.mark.parametrize(
    "line",
    ["device: cuda if there is one", "cuda: 1", "name: cuda", "devices: [cuda]", "device: cudnn"],
)
def test_what_is_no_device_alone_stays(line: str) -> None:
    assert on_npu(line + "\n") == (line + "\n", [])

"""A package that a script is part of is its own, whatever the list of packages says."""

from __future__ import annotations

import pytest

from mpcore_port.engine import port_tree
from mpcore_port.source import walk
from mpcore_port.targets import Options

from .ports import TARGET

SCRIPT = """
import torch
from PACKAGE.common.logger import MetricLogger

def train(model, batch):
    log = MetricLogger(delimiter="  ")
    loss = model(batch)
    loss.backward()
    return log
"""


@pytest.mark.parametrize(
    ("package", "folder", "runs"),
    [
        ("lavis", "lavis/tasks", True),
        ("detectron2", "detectron2/engine", True),
        ("timm", "work/timm", False),  # a folder that is called after what it uses
        ("lavis", "work/tasks", False),
    ],
)
def test_a_lone_file_of_a_package(package, folder, runs, tmp_path):
    path = tmp_path / folder / "train.py"
    path.parent.mkdir(parents=True)
    path.write_text(SCRIPT.replace("PACKAGE", package), encoding="utf-8")
    (file,) = port_tree(walk(path), TARGET, Options()).files
    assert (f"\nfrom {package}.common.logger import MetricLogger" in file.text) is runs
    assert file.status.startswith("runs unless line") is not runs

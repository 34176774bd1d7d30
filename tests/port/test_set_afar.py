"""Tensors that are set on objects of another file's classes: there they may be buffers."""

from __future__ import annotations

import sys

import pytest

from mpcore_port.engine import port_tree
from mpcore_port.source import walk
from mpcore_port.targets import Options

from .ports import TARGET, compare, ported

AVERAGES = """import torch
from torch import nn
class Averages(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.tensor(0))
        self.register_buffer("mean", torch.zeros(3), persistent=False)
        self.rate = torch.ones(2)
"""
SCRIPT = """import torch
from averages_afar import Averages
one = Averages()
one.count = torch.tensor(5)
one.mean = torch.arange(3.0)
one.rate = torch.full((2,), 0.5)
made = [one.count, one.mean, one.rate, len(one.state_dict()), one.state_dict()["count"]]
"""


@pytest.fixture
def beside_each_other(tmp_path, monkeypatch):
    """A folder of the two files; the port's is looked at by who runs it."""
    (tmp_path / "averages_afar.py").write_text(AVERAGES, encoding="utf-8")
    (tmp_path / "main.py").write_text(SCRIPT, encoding="utf-8")
    yield tmp_path, monkeypatch
    sys.modules.pop("averages_afar", None)


def test_buffers_of_another_file_are_set(beside_each_other):
    """MindSpore raised: a Cell's buffer takes no other tensor by its name."""
    folder, monkeypatch = beside_each_other
    texts = {
        one.source.path.rpartition("/")[2]: one.text
        for one in port_tree(walk(folder), TARGET, Options()).files
    }
    other = folder / "ported"
    other.mkdir()
    (other / "averages_afar.py").write_text(texts["averages_afar.py"], encoding="utf-8")
    assert 'port.hold(one, "count"' in texts["main.py"]
    monkeypatch.syspath_prepend(other)
    script = AVERAGES + SCRIPT.replace("from averages_afar import Averages\n", "")
    compare(script, texts["main.py"], folder)


@pytest.mark.parametrize("line", ["one.rate = 0.5", "one.rate = other.rate"])
def test_numbers_are_set_as_they_are(line):
    text = ported(SCRIPT.replace("one.rate = torch.full((2,), 0.5)", line)).text
    assert line in text

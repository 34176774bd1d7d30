"""Tensors that are set on objects of another file's classes: there they may be buffers."""

from __future__ import annotations

import sys

import pytest

from .ports import compare, ported, ported_folder

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


def test_buffers_of_another_file_are_set(tmp_path, monkeypatch):
    """MindSpore raised: a Cell's buffer takes no other tensor by its name."""
    (tmp_path / "averages_afar.py").write_text(AVERAGES, encoding="utf-8")
    (tmp_path / "main.py").write_text(SCRIPT, encoding="utf-8")
    texts = ported_folder(tmp_path)
    assert 'port.hold(one, "count"' in texts["main.py"]
    other = tmp_path / "ported"
    other.mkdir()
    (other / "averages_afar.py").write_text(texts["averages_afar.py"], encoding="utf-8")
    monkeypatch.syspath_prepend(other)
    script = AVERAGES + SCRIPT.replace("from averages_afar import Averages\n", "")
    try:
        compare(script, texts["main.py"], tmp_path)
    finally:
        sys.modules.pop("averages_afar", None)


@pytest.mark.parametrize("line", ["one.rate = 0.5", "one.rate = other.rate"])
def test_numbers_are_set_as_they_are(line):
    text = ported(SCRIPT.replace("one.rate = torch.full((2,), 0.5)", line)).text
    assert line in text

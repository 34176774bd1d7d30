"""Losses that other functions ask for more than a number: they are no functions in a port."""

from __future__ import annotations

import pytest

from mpcore_port.engine import port_tree
from mpcore_port.source import walk
from mpcore_port.targets import Options

from .ports import TARGET, beside, loaded, ported

HEAD = """import torch
from torch import nn
x, y = torch.tensor([[1.0, -1.0]] * 2), torch.tensor([1, 0])
"""
MADE = "loss = nn.CrossEntropyLoss(reduction='none' if len(x) > 1 else 'mean')\n"


@pytest.mark.parametrize(
    "lines",
    [
        "def run(crit):\n    return crit(x, y) if crit.reduction == 'none' else 0\n"
        "made = [run(loss)]\n",
        "def run(crit):\n    return [crit.weight is None, crit.ignore_index]\nmade = run(loss)\n",
        "def run(one):\n    return isinstance(one, nn.CrossEntropyLoss)\nmade = [run(loss)]\n",
        "def run(criterion):\n    criterion.train()\n    return criterion(x, y)\n"
        "made = [run(loss)]\n",
        "def run(loss_fn):\n    return getattr(loss_fn, 'reduction', '')\n"
        "made = [run(loss) == 'none']\n",
    ],
)
def test_a_loss_answers_by_any_name(lines, tmp_path):
    beside(HEAD + MADE + lines, tmp_path)


def test_one_that_is_only_called_is_a_function():
    assert "ops.cross_entropy" in ported(f"{HEAD}{MADE}made = [loss(x, y)]\n").text


def test_whole_numbers_are_counted(tmp_path):
    beside(
        f"""{HEAD}
seen = torch.tensor([0, 1, 3, 3, 255, 2])
made = [torch.histc(seen.float(), bins=4, min=0, max=3), seen.float().histc(4, 0, 3)]
""",
        tmp_path,
    )
    found = ported(f"{HEAD}made = [torch.histc(y, bins=2, min=0, max=1)]\n")
    counts = loaded(found.text, tmp_path)["made"][0]
    assert counts.asnumpy().tolist() == [1, 1]
    assert str(counts.dtype) == "Int64"


def test_a_loss_that_another_file_takes_is_no_function(tmp_path):
    (tmp_path / "run.py").write_text(
        f"import engine\n{HEAD}{MADE}made = [engine.told(loss)]\n", encoding="utf-8"
    )
    (tmp_path / "engine.py").write_text(
        "def told(one):\n    return one.reduction\n", encoding="utf-8"
    )
    result = port_tree(walk(tmp_path), TARGET, Options())
    texts = [file.text for file in result.files if file.source.path == "run.py"]
    assert "port.CrossEntropyLoss(" in texts[0]

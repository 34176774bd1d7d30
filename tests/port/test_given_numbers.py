"""Numbers of numpy that functions of torch are handed; what MindSpore does not say of a tensor."""

from __future__ import annotations

import pytest

from mpcore_port_runtime.refusal import refused

from .ports import beside, ported

HEAD = """import torch
import numpy as np
from torch import nn
import torch.nn.functional as F
made = []
n, one = np.int64(2), np.int64(1)
x = torch.arange(6.0).view(2, 3)
picture = torch.arange(64.0).view(1, 1, 8, 8)
"""
CALLS = {
    "pad": "F.pad(x, (n, n)), F.pad(x, [0, n, n - 1, 0])",
    "adaptive": "F.adaptive_avg_pool2d(picture, (n, n)), nn.AdaptiveAvgPool2d((n, n))(picture)",
    "pools": "F.avg_pool2d(picture, n), F.max_pool2d(picture, n), nn.AvgPool2d(n)(picture)",
    "arange": "torch.arange(n), torch.arange(n, n * 3), torch.arange(0, n * 4, n)",
    "drawn": "torch.rand(n, 3) * 0, torch.randn((n, 3)) * 0, torch.randint(0, 1, (n,))",
    "made": "torch.zeros(n), torch.zeros((n, 3)), torch.full((n,), 2.0), torch.eye(n)",
    "shapes": "x.view(3, n), x.reshape((n, -1)), torch.ones(1, 3).expand(n, 3), x.repeat(n, 1)",
    "axes": "x.sum(one), x.mean(dim=one), x.transpose(one, 0), x.chunk(n, one)[0]",
    "joined": "torch.cat([x, x], dim=one), torch.stack([x, x], one), torch.tril(x, n - 2)",
    "picked": "x.view(-1).topk(n)[0], x.narrow(0, one, one), F.one_hot(torch.tensor([0]), n)",
    "a product": "torch.zeros(np.prod((2, 3))), F.pad(x, (np.argmax([1, 2]), 0))",
}


@pytest.mark.parametrize("case", CALLS)
def test_numbers_of_numpy_are_handed_as_pythons(case, tmp_path):
    beside(f"{HEAD}made = [{CALLS[case]}]\n", tmp_path)


def test_a_tensor_of_a_number_keeps_its_type_and_others_stay():
    script = f"{HEAD}k = 2\nmade = [torch.tensor(n), F.pad(x, (k, k)), np.zeros(n)]\n"
    assert "number(" not in ported(script).text


ASKED = ["net.weight.is_leaf", "net(x).grad_fn", "x.retains_grad"]


@pytest.mark.parametrize("asked", ASKED)
def test_what_a_tensor_does_not_say_is_refused(asked):
    found = ported(f"{HEAD}net = nn.Linear(3, 2)\nprint({asked})\n")
    assert [edit.line for edit in found.edits if edit.kind == "refused"] == [10]


def test_a_tree_has_leaves():
    tree = (
        "class Node:\n    def __init__(self):\n        self.is_leaf = True\nprint(Node().is_leaf)\n"
    )
    assert "refused" not in ported(HEAD + tree).text


def test_buffers_of_a_norm_say_what_is_not_among_them():
    found = ported(f"{HEAD}net = nn.BatchNorm1d(2)\nprint(len(list(net.buffers())))\n")
    assert [edit for edit in found.edits if "num_batches_tracked" in edit.effect]


def test_the_name_of_what_is_refused_is_refused_with_its_reason(tmp_path):
    text = ported("import torch\nload = torch.hub.load\nprint(load.__name__)\n").text
    with pytest.raises(NotImplementedError, match="no weights are fetched"):
        exec(text, {"__name__": "port"})


@pytest.mark.parametrize("name", ["__name__", "__qualname__"])
def test_the_runtimes_refusals_say_why_they_have_no_name(name):
    with pytest.raises(NotImplementedError, match="no equal"):
        getattr(refused("no equal"), name)

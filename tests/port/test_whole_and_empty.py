"""Real functions of whole numbers, what functions give as no network, masks that take nothing."""

from __future__ import annotations

import mindspore as ms
import pytest

import mpcore_port_runtime as port

from .ports import beside, ported

HEAD = """import torch
import torch.nn.functional as F
from torch import nn
x = torch.tensor([[0.5, -1.5, 2.5], [1.0, 3.5, -2.0]])
y = torch.tensor([2, 0])
made = []
"""
WHOLE = {
    "a range": "made += [torch.exp(torch.arange(3)), torch.arange(4).cos()]\n",
    "of a device": "made.append(torch.log(torch.arange(1, 4).to(x.device)))\n",
    "counted": "n = (x > 0).sum(1)\nmade += [torch.log(n), torch.log2(n + 1), n.sum().log()]\n",
    "places": "made.append(torch.sigmoid(-x.argmax(1)))\n",
    "numbers": "made.append(torch.log(torch.tensor([1, 2, 3])).mean())\n",
}
FUNCTIONS = {
    "one of many": "F.one_hot(y, num_classes=3).float()",
    "in half": "F.one_hot(y, num_classes=3).half() * 0.5",
    "of a loss": "F.mse_loss(x, x * 0.5).double()",
    "sequences": "nn.utils.rnn.pad_sequence([y, y[:1]], batch_first=True).float()",
    "held": "torch.stack([F.pad(t, (0, 1)).double() for t in (x, y.float().expand(3, 2).t())])",
}


@pytest.mark.parametrize("case", WHOLE)
def test_whole_numbers_are_floats_where_torch_takes_them_so(case: str, tmp_path: object) -> None:
    beside(HEAD + WHOLE[case], tmp_path)  # type: ignore[arg-type]


def test_what_are_floats_stays() -> None:
    found = ported(HEAD + "made += [torch.exp(x), torch.exp(torch.arange(3) / 2), x.log()]\n")
    assert ".float()" not in found.text


@pytest.mark.parametrize("case", FUNCTIONS)
def test_a_function_of_torch_gives_no_network(case: str, tmp_path: object) -> None:
    script = (
        HEAD
        + f"t = {FUNCTIONS[case]}\nmade += [t, t.dtype == torch.int64, t.dtype == torch.float16]\n"
    )
    beside(script, tmp_path)  # type: ignore[arg-type]


def test_a_layer_still_is_one() -> None:
    found = ported(HEAD + "net = nn.Linear(3, 2)\nnet = net.float()\nmade.append(net(x))\n")
    assert ".float()" not in found.text


def test_lists_of_several_dtypes_are_joined_as_the_widest(tmp_path: object) -> None:
    script = HEAD + "t = torch.cat([torch.zeros(2), torch.arange(2)])\nmade.append(t)\n"
    found = beside(script, tmp_path)  # type: ignore[arg-type]
    assert "port.joined(" in found.text
    plain = ported(HEAD + "t = torch.cat([torch.ones(2), x[0]])\nmade.append(t)\n")
    assert not [edit for edit in plain.edits if edit.kind == "unproven"]


MASKED = """
def positive(loss, mask):
    return loss[mask].sum(), loss[loss > 0].mean(), loss[~mask].sum()
made += [*positive(x, x > 9), *positive(x, x < 9), *positive(x.numpy(), x.numpy() < 9)]
"""


def test_what_a_given_mask_takes_out_is_summed(tmp_path: object) -> None:
    beside(HEAD + MASKED, tmp_path)  # type: ignore[arg-type]


def test_a_dictionary_is_asked_as_it_was() -> None:
    found = ported(HEAD + "def f(d, name):\n    return d[name].sum()\nmade.append(f({1: x}, 1))\n")
    assert "port.total" not in found.text


ASKED = """
made += [isinstance(y, torch.LongTensor), isinstance(x, torch.LongTensor)]
made += [isinstance(x, (torch.FloatTensor, torch.cuda.FloatTensor))]
made += [isinstance(2.0, torch.FloatTensor), torch.LongTensor([1, 2]), x.type(torch.LongTensor)]
made += [x.new_empty(2, 3).fill_(1)]
"""


def test_types_of_tensors_know_their_own(tmp_path: object) -> None:
    beside(HEAD + ASKED, tmp_path)  # type: ignore[arg-type]
    assert port.HalfTensor(2, 3).dtype == ms.float16


def test_what_tensors_of_mindspore_have_not_is_named() -> None:
    script = "t = x.cholesky_inverse()\ndef f(w):\n    return w.is_leaf\nmade.append(f(t))\n"
    found = ported(HEAD + script)
    assert {edit.line for edit in found.edits if edit.kind in ("unproven", "refused")} >= {7, 9}


EMPTY_LABELS = """import torch
def collate(labels):
    for i, one in enumerate(labels):
        one[:, 0] = i
        one[:, 1:] = one[:, 1:] * 2
    return torch.cat(labels, 0)
made = [collate([torch.zeros(0, 3), torch.ones(2, 3), torch.zeros(0, 3)])]
"""


def test_nothing_is_set_in_rows_that_are_not_there(tmp_path: object) -> None:
    beside(EMPTY_LABELS, tmp_path)  # type: ignore[arg-type]

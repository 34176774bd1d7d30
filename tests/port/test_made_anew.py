"""Tensors that are changed in place where they were just made: later holders see what is then."""

from __future__ import annotations

import pytest

from .ports import beside

HEAD = "import torch\nmade = []\n"
ANEW = """
def noise(x, kind):
    kept = []
    for turn in range(3):
        d = torch.zeros_like(x)
        if kind == "flat":
            d.fill_(0.5 + turn).sub_(x).div_(2)
        else:
            d.add_(x)
            flat = d.view(d.size(0), -1)
            d = d / flat.norm(p=2, dim=1).view(d.size(0), 1, 1)
        kept.append(d)
        d.requires_grad = True
        part = d[0]
        kept.append(part * 2)
    return kept
x = torch.linspace(-1.0, 2.0, 12).view(2, 2, 3)
for kind in ("flat", "other"):
    made += [one.detach() for one in noise(x, kind)]
"""


def test_what_was_made_before_in_the_same_turn_is_made_anew(tmp_path):
    found = beside(HEAD + ANEW, tmp_path)
    assert {edit.kind for edit in found.edits} <= {"exact", "changed"}


CALLED = """
held, given = [torch.zeros(4)], torch.ones(4)
for _ in range(3):
    got = f(held, given)
made += [*held, given, *([] if got is None else [got])]
"""
HELD = {
    "view between": (
        "    d = torch.zeros(4)\n    flat = d.view(2, 2)\n    d.add_(1)\n    return flat\n"
    ),
    "kept in front": "    d = torch.zeros(4)\n    k.append(d)\n    d.add_(1)\n",
    "another turn": (
        "    d = torch.zeros(4)\n    for _ in range(2):\n        d.add_(1)\n        k.append(d)\n"
    ),
    "in one branch": (
        "    d = k[0]\n    if len(k) > 1:\n        d = torch.zeros(4)\n"
        "    d.add_(1)\n    k.append(d)\n"
    ),
    "handed in": "    d.add_(1)\n    k.append(d)\n",
}


@pytest.mark.parametrize("body", HELD.values(), ids=HELD)
def test_what_another_name_may_hold_is_changed_where_it_lies(body, tmp_path):
    beside(f"{HEAD}def f(k, d=None):\n{body}{CALLED}", tmp_path)

"""Objects of a script that are called as modules of the port are: ``optim``, ``ops``, ``port``."""

from __future__ import annotations

from .ports import beside


def test_an_optimizer_called_optim_is_asked_inside_code_of_ours(tmp_path):
    found = beside(
        """import torch
def told(optim, ops, places):
    words = "lr {:0.3f} of {}".format(optim.param_groups[-1]["lr"], ops.name)
    return words, torch.arange(4.0)[ops.first :], torch.zeros(ops.first, 2)
class Ops:
    name, first = "two", 1
weight = torch.nn.Parameter(torch.ones(2))
all_of = [told]
words, one, two = all_of[0](torch.optim.SGD([weight], lr=0.125), Ops, [0])
made = [len(words), float(words[3:8]), one, two]
""",
        tmp_path,
    )
    assert "optim_.param_groups" not in found.text

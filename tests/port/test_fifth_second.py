"""What belongs to another object, switches in branches, f-strings, steps of own optimizers."""

from __future__ import annotations

from pathlib import Path

from .ports import FILLED, NET, beside, ported

# --- methods of other objects --------------------------------------------------------------------

WORDED = """import torch
class Rows:
    def __init__(self):
        self.held = {"train": 12, "val": 3}
    def __getattr__(self, name):
        return lambda word, *more: f"{name} {word}" if name != "size" else self.held[word]
def sizes(dataset, split):
    return [dataset.size("train"), dataset.size(f"{split}"), dataset.norm("l2")]
def others(dataset):
    return [dataset.sum("a"), dataset.mean("b", "c"), dataset.max("d"), dataset.repeat("e")]
x = torch.arange(6.0).view(2, 3)
made = sizes(Rows(), "val") + others(Rows())
made = [len(str(one)) for one in made]
made += [x.size(0), x.norm("fro"), x.sum(0), x.div(x + 1, rounding_mode="floor")]
"""


def test_a_word_where_a_tensor_takes_none_is_another_objects(tmp_path: Path) -> None:
    found = beside(WORDED, tmp_path)
    assert 'dataset.size("train"), dataset.size(f"{split}"), dataset.norm("l2")' in found.text
    assert not [edit for edit in found.edits if edit.line in (8, 10)]


def test_axes_that_have_names_are_still_told_of() -> None:
    found = ported("import torch\ndef f(x):\n    return x.refine_names('N').size('N')\n")
    assert [edit.kind for edit in found.edits if "size" in edit.old] == ["unproven"]


# --- switches in branches ------------------------------------------------------------------------

SWITCHED = (
    FILLED
    + NET
    + """
from torch.amp import GradScaler
net = filled(Net())
opt = torch.optim.SGD(net.parameters(), lr=0.1)
scaler = GradScaler("cuda", enabled=False)
data = [torch.ones(2, 3), torch.arange(6.0).view(2, 3)]
for epoch in range(3):
    if epoch == 1:
        torch.set_grad_enabled(False)
        made.append(net(data[0]).sum())
        torch.set_grad_enabled(True)
    for x in data:
        opt.zero_grad()
        loss = (net(x) ** 2).mean()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        made.append(loss.item())
made.append(net.weight.data)
"""
)


def test_a_switch_in_a_branch_before_the_loop_of_batches(tmp_path: Path) -> None:
    found = beside(SWITCHED, tmp_path)
    assert found.text.count("port.set_grad_enabled(") == 2


def test_a_switch_in_a_branch_of_the_step_is_refused() -> None:
    added = "        if epoch == 2:\n            torch.set_grad_enabled(True)\n        loss ="
    among = SWITCHED.replace("        loss =", added)
    refused = [edit.line for edit in ported(among).edits if edit.kind == "refused"]
    assert refused == [among.splitlines().index("        if epoch == 2:") + 2]

"""The words that methods of torch's Module take: ``load_state_dict(state_dict=ckpt)``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.port.ports import FILLED, beside, ported

if TYPE_CHECKING:
    from pathlib import Path

NETS = """
class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(2, 2)
        self.norm = nn.BatchNorm1d(2, affine=False)
    def forward(self, x):
        return self.first(x)
    def load_state_dict(self, state_dict, strict=True, assign=False):
        return super().load_state_dict(state_dict=state_dict, strict=strict, assign=assign)
    def state_dict(self, *args, destination=None, prefix="", keep_vars=False):
        return super().state_dict(
            *args, destination=destination, prefix=prefix, keep_vars=keep_vars
        )
    def named_parameters(self, prefix="", recurse=True, remove_duplicate=True):
        yield from super().named_parameters(
            prefix=prefix, recurse=recurse, remove_duplicate=remove_duplicate
        )
    def named_modules(self, memo=None, prefix="", remove_duplicate=True):
        yield from super().named_modules(memo, prefix, remove_duplicate)
def plain(by):
    net = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    net.weight = nn.Parameter(torch.ones(1) * by)
    return filled(net)
"""


def test_words_reach_a_class_s_own_and_what_is_above_it(tmp_path: Path) -> None:
    """A class that hands on all that torch's method takes gives what torch's gives."""
    script = """
net, other = filled(Own()), Own()
print(other.load_state_dict(state_dict=net.state_dict(), strict=False))
names = [n for n, _ in net.named_parameters("m")]
made += [other.first.weight, names == ["m.first.weight", "m.first.bias"]]
made.append([n for n, _ in net.named_modules()] == ["", "first", "norm"])
keys = [k for k in net.state_dict(prefix="p.") if not k.endswith("tracked")]
made.append(keys == ["p.first.weight", "p.first.bias", "p.norm.running_mean", "p.norm.running_var"])
"""
    beside(FILLED + NETS + script, tmp_path)


def test_words_reach_networks_and_optimizers(tmp_path: Path) -> None:
    """State dicts are given by a word, under a prefix, into a dictionary, and as they are kept."""
    script = """
net, other = plain(2), plain(3)
other.load_state_dict(state_dict=net.state_dict(), strict=True)
made.append(other.weight.item())
held = {"step": 1}
net.state_dict(destination=held, prefix="m.")
made.append(sorted(held) == ["m.0.bias", "m.0.weight", "m.weight", "step"])
made.append([n for n, _ in net.named_modules(prefix="m")] == ["m", "m.0", "m.1"])
net.state_dict(keep_vars=True)["weight"].data.fill_(7.0)
made.append(net.weight.item())
other.load_state_dict(net.state_dict(), assign=True)
made.append(other.weight.item())
opt = torch.optim.SGD(net.parameters(), 0.1)
opt.load_state_dict(state_dict=opt.state_dict())
made.append(opt.param_groups[0]["lr"])
"""
    found = beside(FILLED + NETS + script, tmp_path)
    said = [edit.line for edit in found.edits if edit.kind == "unproven"]
    assert FILLED.count("\n") + NETS.count("\n") + script.split("assign")[0].count("\n") + 1 in said


def test_objects_of_other_files_keep_words_of_their_own(tmp_path: Path) -> None:
    """A trainer's ``load_state_dict`` takes what its class says."""
    script = """
class Trainer:
    def load_state_dict(self, state, strict=True, skip=False):
        return [state, strict, skip]
    def named_parameters(self, only=""):
        return [("a" + only, 1)]
def of(trainer):
    return trainer.load_state_dict({"a": 1}, strict=False, skip=True)
def names(trainer):
    return [n for n, _ in trainer.named_parameters(only="b")]
made += [of(Trainer()) == [{"a": 1}, False, True], names(Trainer()) == ["ab"]]
"""
    beside(FILLED + script, tmp_path)


@pytest.mark.parametrize(
    "call", ["net.named_parameters(remove_duplicate=False)", "net.load_state_dict(s, assign=True)"]
)
def test_what_a_cell_may_not_do_is_said(call: str) -> None:
    """Tied weights come once each; a Parameter keeps its type."""
    found = ported(f"import torch\ndef f(net, s):\n    {call}\n")
    said = [edit.reason for edit in found.edits if edit.kind == "unproven" and edit.line == 3]
    assert any("remove_duplicate is false" in reason for reason in said)


PARTS = (
    FILLED
    + """
net = nn.Sequential(
    nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0), nn.BatchNorm3d(2), nn.Linear(2, 2)
)
whole = {name for name, _ in net.named_parameters()}
parts = set()
for path, part in net.named_modules():
    for name, _ in part.named_parameters(recurse=False):
        parts.add(f"{path}.{name}")
made = [len(whole), len(whole & parts), len(list(net.modules()))]
made += [len([name for name, _ in net[0].named_children() if name.startswith("linear")])]
made += [len([name for name, _ in net.named_buffers() if not name.endswith("tracked")])]
"""
)


def test_parts_have_torchs_paths(tmp_path: Path) -> None:
    beside(PARTS, tmp_path)


AROUND = (
    FILLED
    + """
class Around:
    def __init__(self, optimizer):
        self.optimizer = optimizer
        self.param_groups = optimizer.param_groups
    def zero_grad(self):
        self.optimizer.zero_grad()
    def step(self):
        self.optimizer.step()
net = filled(nn.Linear(3, 2))
opt = Around(torch.optim.SGD(net.parameters(), lr=0.1))
for turn in range(3):
    for group in opt.param_groups:
        group["lr"] = 0.1 / (turn + 1)
    opt.zero_grad()
    loss = net(torch.ones(2, 3)).pow(2).mean()
    loss.backward()
    opt.step()
made = [loss, net.weight]
"""
)


def test_a_class_around_an_optimizer_holds_its_groups(tmp_path: Path) -> None:
    beside(AROUND, tmp_path)

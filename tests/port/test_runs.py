"""What a network runs, asked for and set without a call: ``net.forward = net.fused``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.port.ports import FILLED, beside, ported

if TYPE_CHECKING:
    from pathlib import Path

PAIR = """
import inspect, types
class Pair(nn.Module):
    def __init__(self, fused=False):
        super().__init__()
        self.first = nn.Linear(2, 3)
        self.norm = nn.BatchNorm1d(3)
        if fused:
            self.forward = self.forward_fused
    def forward(self, x):
        return self.norm(self.first(x))
    def forward_fused(self, x, by=1):
        return self.first(x) * by
x = torch.arange(8.0).reshape(4, 2)
"""


def test_what_is_set_in_init_and_by_another_runs(tmp_path: Path) -> None:
    """A Cell runs construct: a forward that was set never ran."""
    script = """
def fuse(model):
    for m in model.modules():
        if hasattr(m, "norm"):
            m.forward = m.forward_fused
            delattr(m, "norm")
    return model
made += [filled(Pair(True))(x), filled(Pair(True))(x, by=2), filled(Pair())(x)]
whole = nn.Sequential(filled(Pair()), nn.ReLU())
made += [whole(x), fuse(whole)(x)]
"""
    beside(FILLED + PAIR + script, tmp_path)


def test_what_is_asked_for_is_what_runs(tmp_path: Path) -> None:
    """Methods bound anew, classes, signatures; a bare name of it is no error."""
    script = """
def tripled(self, x):
    return self.first(x) * 3
def wrapped(model):
    before = model.forward
    model.forward = lambda x: before(x) + 1
    return model
def wanted(model):
    return list(inspect.signature(model.forward).parameters)
net = filled(Pair())
Pair.forward
net.forward
run = net.forward
made += [run(x), wrapped(net)(x), len(wanted(filled(Pair(True))))]
net.forward = types.MethodType(tripled, net)
made.append(net(x))
before = Pair.forward
Pair.forward = tripled
made.append(filled(Pair())(x))
Pair.forward = before
made.append(filled(Pair())(x))
"""
    beside(FILLED + PAIR + script, tmp_path)


def test_objects_that_are_no_networks_keep_it(tmp_path: Path) -> None:
    """Settings and functions of autograd have a forward, too."""
    script = """
class Settings:
    forward = False
class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2
    @staticmethod
    def backward(ctx, grad):
        return grad * 2
def of(one):
    one.forward = True
    return one.forward
settings = Settings()
settings.forward = True
made += [of(Settings()), settings.forward, Twice.apply(x), callable(Twice.forward)]
"""
    beside(FILLED + PAIR + script, tmp_path)


def test_names_in_a_class(tmp_path: Path) -> None:
    """A class may give its forward another name, or another method the name."""
    script = """
class Named(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(2, 3)
    def run(self, x):
        return self.first(x) + 5
    forward = run
class Kept(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(2, 3)
    def forward(self, x):
        return self.first(x)
    features = forward
made += [filled(Named())(x), filled(Kept()).features(x)]
"""
    beside(FILLED + PAIR + script, tmp_path)


def test_a_word_says_forward(tmp_path: Path) -> None:
    """``setattr(net, "forward", other)`` never ran, and ``hasattr`` said that there is none."""
    script = """
def tripled(self, x):
    return self.first(x) * 3
def patched(m):
    setattr(m, "forward", types.MethodType(tripled, m))
    return m
net = filled(Pair())
made += [patched(net)(x), getattr(net, "forward")(x), hasattr(net, "forward")]
made += [getattr(x, "forward", 5), hasattr(x, "forward"), callable(getattr(Pair, "forward", None))]
"""
    beside(FILLED + PAIR + script, tmp_path)


@pytest.mark.parametrize("line", ["a.forward, b.forward = b.forward, a.forward"])
def test_what_is_set_with_others_is_said(line: str) -> None:
    """No line sets two at once silently."""
    found = ported(f"import torch\ndef f(a, b):\n    {line}\n")
    assert [edit.line for edit in found.edits if edit.kind == "unproven"] == [3, 3]

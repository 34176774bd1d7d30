"""In-place changes of what frozen weights make, and regions in which all is made on a device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import ops

import mpcore_port_runtime as port

from .ports import FILLED, beside, ported

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SUMS = """class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(2, 1)
        self.w = nn.Parameter(torch.ones(3))
    def forward(self, x):
        parts = [(self.w * self.w).sum(), (self.w * self.w).sum() * 2]
        for i, part in enumerate(parts):
            if i == 0:
                total = parts[i]
            else:
                total += part
        total *= 10
        return self.a(x).mean() + total
net = filled(Net())
net.w.requires_grad = {wants}
opt = torch.optim.SGD(net.parameters(), lr=0.01)
for s in (1.0, 2.0, 3.0):
    loss = net(torch.linspace(-1.0, s, 6).view(3, 2))
    opt.zero_grad()
    loss.backward()
    opt.step()
    made.append(loss.item())
made += [p.detach() for p in net.parameters()]
"""


@pytest.mark.parametrize("wants", [False, True])
def test_sums_of_weights_that_are_frozen(wants: bool, tmp_path: Path) -> None:
    beside(FILLED + SUMS.format(wants=wants), tmp_path)


def _frozen(*sizes: int) -> Any:
    ones = ms.Tensor(np.ones(sizes, np.float32))
    return ms.Parameter(ones, name="w", requires_grad=False) * 1


_CHANGES: dict[str, Callable[[], Any]] = {
    "a number": lambda: _changed(_frozen(3).sum()),
    "a row": lambda: _changed(_frozen(1)),
    "seen by a view": lambda: _other(lambda t: t.reshape(1, 1)),
    "seen by a part": lambda: _other(lambda t: t[0]),
    "seen behind a view": lambda: _behind(lambda t: t.reshape(1, 1)),
    "seen behind a part": lambda: _behind(lambda t: t[0]),
}


def _changed(held: Any) -> Any:
    total = port.changed("+=", held, 2)
    return port.changed("*=", total, ms.Tensor(10.0))


def _other(view: Callable[[Any], Any]) -> Any:
    held = _frozen(1)
    other = view(held)
    _changed(held)
    return other


def _behind(view: Callable[[Any], Any]) -> Any:
    held = _frozen(1)
    _changed(view(held))
    return held


@pytest.mark.parametrize("case", _CHANGES)
def test_changes_where_mindspore_differentiates(case: str) -> None:
    weight = ms.Parameter(ms.Tensor(np.full(2, 3, np.float32)), name="other")

    def loss() -> Any:
        return _CHANGES[case]().sum() + ops.square(weight).sum()

    value, grads = ms.value_and_grad(loss, None, weights=[weight])()
    assert value.item() == loss().item()
    assert value.item() == (50 if case == "a number" else 30) + 18
    np.testing.assert_allclose(grads[0].asnumpy(), 6)


DEVICES = {
    "a name": (
        'with torch.device("cuda" if torch.cuda.is_available() else "cpu"):\n    net = make()\n'
    ),
    "words": 'with torch.device(type="cpu", index=0) as where:\n    net = make()\n',
    "among others": (
        'device = torch.device("cuda" if torch.cuda.is_available() else "cpu")\n'
        "with device, torch.no_grad():\n    net = make()\n"
    ),
    "handed on": (
        "def build(device):\n    with device:\n        return make()\n"
        'net = build(torch.device("cpu"))\n'
    ),
    "the default": 'torch.set_default_device("cpu")\nnet = make()\n',
    "meta": 'with torch.device("meta"):\n    net = make()\nnet = net.to_empty(device="cpu")\n',
}
STEPS = """net = filled(net)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for s in (1.0, 2.0, 3.0):
    loss = net(torch.linspace(-1.0, s, 6).view(3, 2)).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    made.append(loss.item())
made += [p.detach() for p in net.parameters()]
"""


@pytest.mark.parametrize("case", DEVICES)
def test_regions_of_a_device(case: str, tmp_path: Path) -> None:
    head = FILLED + "def make():\n    return nn.Linear(2, 3)\n"
    found = beside(head + DEVICES[case] + STEPS, tmp_path)
    said = [edit.effect for edit in found.edits if edit.rule == "meta"]
    assert bool(said) == (case == "meta")
    assert all("made with values" in one for one in said)


@pytest.mark.parametrize(
    "line",
    [
        'nn.Linear(2, 3, device="meta")',
        'nn.Linear(2, 3).to("meta")',
        'torch.ones(2, device="meta")',
    ],
)
def test_the_report_says_what_meta_means(line: str) -> None:
    found = ported(f"import torch\nfrom torch import nn\nnet = {line}\n")
    assert [edit.line for edit in found.edits if edit.rule == "meta"] == [3]
    assert not [edit for edit in found.edits if edit.kind == "refused"]


def test_devices_raise_what_is_raised_in_them() -> None:
    with pytest.raises(ValueError, match="here"), port.device("cuda"):
        int("here")
    assert port.device("meta") != port.device("cuda")
    assert str(port.device("meta")) == "meta"

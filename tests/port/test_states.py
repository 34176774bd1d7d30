"""States whose tensors are changed in place, and other things that twelve unseen scripts did."""

from __future__ import annotations

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor

import mpcore_port_runtime as port

from .ports import beside, loaded, ported

NETS = """import torch
from copy import deepcopy
from torch import nn
def filled(start):
    net = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    for p in net.parameters():
        p.data.copy_(torch.linspace(start, 1.0, p.numel()).view(p.shape))
    return net
net, ema = filled(-1.0), filled(0.5).eval()
d = 0.75
"""
AVERAGES = """
with torch.no_grad():
    msd = net.state_dict()
    for k, v in ema.state_dict().items():
        if v.dtype.is_floating_point:
            v *= d
            v += (1.0 - d) * msd[k].detach()
"""
COPIED = """
msd = net.state_dict()
for k, v in ema.state_dict().items():
    v.copy_(v * d + (1 - d) * msd[k])
"""
PAIRS = """
for p, q in zip(net.state_dict().values(), ema.state_dict().values()):
    q.data.mul_(d).add_(p, alpha=1 - d)
"""
ENTRIES = """
def load(model, values):
    states = model.state_dict()
    for key in states:
        if states[key].shape == values[key].shape:
            states[key].copy_(values[key])
            states[key] *= 2
load(ema, net.state_dict())
"""
END = "made = [*ema.parameters(), ema[1].running_mean, *net.parameters()]\n"


@pytest.mark.parametrize("change", [AVERAGES, COPIED, PAIRS, ENTRIES])
def test_what_is_changed_in_a_state_is_the_networks(change, tmp_path):
    script = NETS + change.replace("num_batches_tracked", "") + END
    if change != AVERAGES:  # torch's counts of batches are whole numbers
        script = script.replace("nn.BatchNorm1d(2)", "nn.LayerNorm(2)")
        script = script.replace("ema[1].running_mean", "ema[1].weight")
    assert "port.live_state_dict(" in beside(script, tmp_path).text


@pytest.mark.parametrize(
    "code",
    [
        "for k, v in net.state_dict().items():\n        print(k, v * 2)",
        "s = net.state_dict()\n    s['a'] = s['a'] * 2\n    net.load_state_dict(s)",
        "best = net.state_dict()\n    return best",
    ],
)
def test_a_state_that_is_read_stays_a_copy(code):
    assert "live" not in ported(f"import torch\ndef f(net):\n    {code}\n").text


def test_a_part_of_an_entry_is_refused():
    script = "import torch\ndef f(net, v):\n    s = net.state_dict()\n    s['a'][:2].copy_(v)\n"
    assert [edit.line for edit in ported(script).edits if edit.kind == "refused"] == [4]


def test_a_part_that_nobody_knows_is_unproven():
    script = "import torch\ndef f(rows, i, v):\n    rows[i].copy_(v)\n    i.copy_(v)\n"
    said = {edit.line for edit in ported(script).edits if edit.kind == "unproven"}
    assert said == {3, 4}


@pytest.mark.parametrize(
    ("behind", "lines"),
    [("print(losses['all'])", [4]), ("print(loss)", []), ("losses = {}", [])],
)
def test_a_dictionarys_tensor_that_is_changed_by_another_name_is_named(behind, lines):
    script = (
        f"import torch\ndef f(losses):\n    loss = losses['all']\n    loss /= 2\n    {behind}\n"
    )
    said = [edit.line for edit in ported(script).edits if edit.rule == "shared"]
    assert said == lines


@pytest.mark.parametrize(
    ("given", "behind", "lines"),
    [
        ("loss, logs", "print(logs)", [4]),
        ("loss, logs", "print(loss)", []),
        ("loss, _", "print(loss)", []),
    ],
)
def test_what_is_given_with_a_tensor_that_is_changed_is_named(given, behind, lines):
    code = f"{given} = step(x)\n    loss /= 2\n    loss.backward()\n    {behind}\n"
    script = f"import torch\ndef f(step, x):\n    {code}"
    said = [edit.line for edit in ported(script).edits if edit.rule == "shared"]
    assert said == lines


REPEATED = """import torch
sizes = torch.tensor([2, 3])
made = [torch.cat([torch.tensor([k] * n) for k, n in enumerate(sizes)]).float()]
whole = sizes.max()
made.append(torch.tensor((1.0, 2.0) * whole))
"""


def test_lists_are_repeated_as_often_as_a_tensor_says(tmp_path):
    assert "[k] * int(n)" in beside(REPEATED, tmp_path).text


def test_numbers_and_products_of_tensors_stay():
    script = (
        "import torch\ndef f(n, x):\n    a = [[0] * i for i in range(n)]\n"
        "    return a, [None] * n, 2 * torch.ones(3), x * n, 'a' * len(x)\n"
    )
    assert "int(" not in ported(script).text


SHOWN = """import torch
x = 3.0
made = [float('%.1f' % (x / 2 if torch.cuda.is_available() else 1.5))]
made.append(2 * (x - 1 if not torch.cuda.is_available() else x - 1))
"""


def test_a_branch_that_is_left_keeps_its_brackets(tmp_path):
    assert "% (x / 2)" in beside(SHOWN, tmp_path).text


PARAMETERS = """import torch
from torch import nn
def kind(x):
    return 1.0 if isinstance(x, nn.Parameter) else 0.0
made = [kind(nn.Parameter(torch.ones(2))), kind(torch.ones(2)), kind(nn.Linear(2, 2).weight)]
"""


def test_a_parameter_is_known_by_its_kind(tmp_path):
    assert "isinstance(x, ms.Parameter)" in beside(PARAMETERS, tmp_path).text


def test_nothing_is_of_the_class_of_compiled_networks(tmp_path):
    script = (
        "import torch\nfrom torch import nn\nfrom torch._dynamo import OptimizedModule\n"
        "net = torch.compile(nn.Linear(2, 2))\nmade = [isinstance(net, OptimizedModule)]\n"
    )
    assert loaded(ported(script).text, tmp_path)["made"] == [False]


SCALER = """import torch
class Trainer:
    def __init__(self, device, old):
        self.net = torch.nn.Linear(3, 1)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)
        self.scaler = (torch.amp.GradScaler("cuda") if not old else torch.cuda.amp.GradScaler()) if device.type == "cuda" else None
    def step(self, x):
        self.optimizer.zero_grad()
        loss = self.net(x).mean()
        if self.scaler is not None:
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            loss.backward()
            self.optimizer.step()
"""  # noqa: E501  # one line of a script


def test_no_scaler_of_a_choice_in_a_choice_scales_by_one():
    text = ported(SCALER).text
    assert "else ms.amp.StaticLossScaler(1.0)" in text
    assert "else None" not in text


def test_a_step_with_arguments_of_its_own_says_so():
    script = "import torch\ndef f(optimizer, s):\n    optimizer.step('generator', scaler=s)\n"
    edits = ported(script).edits
    assert not [edit for edit in edits if edit.kind == "refused"]
    said = [edit.reason for edit in edits if edit.kind == "unproven" and edit.rule == "method"]
    assert len(said) == 1
    assert "another file" in said[0]


def test_objects_of_one_process_are_gathered():
    held = [None]
    port.all_gather_object(held, "a")
    assert held == ["a"]


def test_a_live_state_holds_the_parameters_themselves():
    net = ms.nn.Dense(2, 1)
    port.put(port.live_state_dict(net)["weight"], Tensor([[2.0, 3.0]]))
    np.testing.assert_array_equal(net.weight.asnumpy(), [[2.0, 3.0]])


@pytest.mark.parametrize(
    ("call", "lines"),
    [("", [3]), ("def g(net, x, opt, s):\n    loss = net(x).mean()\n    f(loss, s)\n", [])],
)
def test_a_loss_that_nobody_is_seen_to_hand_in_is_unproven(call, lines):
    script = f"import torch\ndef f(loss, scaler):\n    scaler.scale(loss).backward()\n{call}"
    said = [edit.line for edit in ported(script).edits if "handed in" in edit.reason]
    assert said == lines


def test_what_another_optimizers_step_returns_is_returned():
    class Wrapped:
        def step(self):
            return "rates"

    assert port.step(Wrapped()) == "rates"
    assert port.GradScaler(enabled=False).step(Wrapped()) == "rates"


LIVE = """import copy
import torch
from torch import nn
made = []
net = nn.Linear(2, 1)
for p in net.parameters():
    p.data.fill_(0.5)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
def step():
    loss = net(torch.ones(3, 2)).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss.item()
"""
KEPT = {
    "behind a loop": (
        "for i in range(3):\n    made.append(step())\n    if i == 0:\n        best = {}\n"
    ),
    "behind a step": "best = {}\nmade.append(step())\n",
    "in a dictionary": (
        "for i in range(2):\n    step()\n    if not i:\n        best = dict(net={})\n"
        "best = best['net']\n"
    ),
}


@pytest.mark.parametrize("kept", ["net.state_dict()", "copy.deepcopy(net.state_dict())"])
@pytest.mark.parametrize("case", KEPT)
def test_a_state_that_is_kept_learns_on_unless_it_is_copied(case, kept, tmp_path):
    script = LIVE + KEPT[case].replace("{}", kept).replace(
        f"dict(net={kept})", f"{{'net': {kept}}}"
    )
    end = "net.load_state_dict(best)\nmade += [p.detach() for p in net.parameters()]\n"
    found = beside(script + end, tmp_path)
    assert ("live_state_dict" in found.text) == (not kept.startswith("copy"))

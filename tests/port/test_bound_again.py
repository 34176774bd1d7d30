"""Names that are imported and bound again: what is meant where they stand."""

from __future__ import annotations

import pytest

from .ports import beside, ported

HEAD = """import torch
from torch.utils import data
from torch import optim
made = []
net = torch.nn.Linear(3, 1)
for p in net.parameters():
    p.data.copy_(torch.linspace(-1.0, 1.0, p.numel()).view(p.shape))
rows = [torch.linspace(-1.0, s, 3) for s in (1.0, 2.0, 3.0, 4.0)]
def load():
    return data.DataLoader(rows, batch_size=2)
opt = optim.SGD(net.parameters(), lr=0.1)
"""
STEP = """
    loss = net(data).pow(2).sum()
    opt.zero_grad()
    loss.backward()
    opt.step()
    made.append(loss.detach())
"""
LOOPS = {
    "of a loop": "for data in load():" + STEP,
    "of a counted loop": "for ii, data in enumerate(load()):" + STEP,
    "of a loop over itself": "for data in data.DataLoader(rows, batch_size=2):" + STEP,
    "of an element": "for batch in load():\n    _, data = 0, batch" + STEP,
    "plain": "for batch in load():\n    data = batch" + STEP,
    "behind the loop": "for data in load():\n    pass\nif True:" + STEP,
    "a function of its own": (
        "for batch in load():\n    def data(x):\n        return x * 2.0\n    batch = data(batch)"
        + STEP.replace("net(data)", "net(batch)")
    ),
}


@pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)
def test_a_name_of_the_loop_is_no_module(loop, tmp_path):
    found = beside(HEAD + loop, tmp_path)
    assert "refused" not in {edit.kind for edit in found.edits}


SECOND = {
    "a module": "import torchvision.datasets as datasets\nimport pose.datasets as datasets\n",
    "a name": "from torchvision import datasets\nfrom pose import datasets\n",
    "behind a use": (
        "import torchvision.datasets as datasets\nkept = datasets.MNIST\n"
        "import pose.datasets as datasets\n"
    ),
}
USES = """
def make(name):
    return datasets.__dict__[name](True)
every = sorted(datasets.__dict__)
"""


@pytest.mark.parametrize("head", SECOND.values(), ids=SECOND)
def test_of_two_imports_the_second_is_meant(head):
    text = ported(head + USES).text
    assert text.count("datasets.__dict__") == 2
    assert "port.pictures.__dict__" not in text
    assert ("port.pictures.MNIST" in text) == ("MNIST" in head)


BOTH = {
    "where the first one fails": (
        "try:\n    from apex.optimizers import FusedAdam as Adam\n"
        "except ImportError:\n    from torch.optim import Adam\n"
    ),
    "in a branch": "from torch.optim import Adam\nif flag:\n    from own import Adam\n",
}


@pytest.mark.parametrize("head", BOTH.values(), ids=BOTH)
def test_two_imports_of_which_one_runs_are_both_meant(head):
    text = ported(f"import torch\nflag = 0\n{head}opt = Adam(net.parameters(), lr=0.1)\n").text
    assert "import torch\n" not in text
    assert "optim.AdamW(" in text or "port.Adam(" in text


def test_a_function_may_be_called_before_the_loop_and_after_it():
    text = ported(HEAD + LOOPS["of a loop"]).text
    assert "return port.DataLoader(rows, batch_size=2)" in text


LATER = {
    "a list, then numpy's": "    labels = []\n    labels = np.array([1.0, 2.0])\n",
    "numpy's of another loop": "    for _ in range(2):\n        labels = np.array([1.0, 2.0])\n",
}


@pytest.mark.parametrize("end", LATER.values(), ids=LATER)
def test_what_a_name_holds_further_down_is_not_meant_here(end, tmp_path):
    script = (
        "import numpy as np\nimport torch\n"
        "def fit(gen, on):\n    total = torch.zeros(1)\n    for batch in gen:\n"
        "        images, labels = batch\n        if on:\n"
        "            labels = labels.cuda(0)\n"
        "        total = total + labels.unsqueeze(1).float().norm(dim=0) * images.mean()\n"
        f"{end}    return total, labels.max()\n"
        "made = [*fit([(torch.ones(2, 3), torch.tensor([1, 2]))], False)]\n"
    )
    assert ".cuda(" not in beside(script, tmp_path).text

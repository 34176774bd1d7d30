"""Tensors that are changed in place, while other names, lists, views and callers hold them."""

from __future__ import annotations

import pytest

from .ports import beside, ported

HEAD = "import torch\nfrom torch import nn\nmade = []\n"

HOLDERS = {
    "rows of a loop": ("m = torch.zeros(2, 3)\nfor row in m:\n    row += 1\nmade.append(m)\n"),
    "chunks": ("m = torch.zeros(2, 3)\na, b = m.chunk(2)\na += 1\nmade.append(m)\n"),
    "a transposed": ("m = torch.zeros(2, 3)\nt = m.t()\nt += 1\nmade.append(m)\n"),
    "a name": ("total = torch.zeros(1)\nkeep = total\ntotal += 1\nmade.append(keep)\n"),
    "a list": (
        "total = torch.zeros(1)\n"
        "hist = []\n"
        "for i in range(3):\n"
        "    hist.append(total)\n"
        "    total += i\n"
        "made += hist\n"
    ),
    "an entry": (
        'd = {"a": torch.zeros(2)}\nd["t"] = d["a"]\nd["t"] += 1\nmade += [d["a"], d["t"]]\n'
    ),
    "the first of a loop": (
        "def f(ts):\n"
        "    acc = None\n"
        "    for t in ts:\n"
        "        if acc is None:\n"
        "            acc = t\n"
        "        else:\n"
        "            acc += t\n"
        "    return acc\n"
        "ts = [torch.ones(2), torch.ones(2)*2]\n"
        "made += [f(ts)]\n"
        "made += ts\n"
    ),
    "the first of a list": (
        "ts = [torch.ones(2), torch.ones(2)*2]\n"
        "acc = ts[0]\n"
        "for t in ts[1:]:\n"
        "    acc += t\n"
        "made += [acc] + ts\n"
    ),
    "an attribute and its history": (
        "class Meter:\n"
        "    def __init__(self):\n"
        "        self.sum = torch.zeros(2)\n"
        "        self.history = []\n"
        "    def update(self, v):\n"
        "        self.sum += v\n"
        "        self.history.append(self.sum)\n"
        "m = Meter()\n"
        "for i in range(3):\n"
        "    m.update(torch.ones(2) * i)\n"
        "made += m.history\n"
    ),
    "an argument": ("def bump(t):\n    t += 1\nv = torch.zeros(2)\nbump(v)\nmade.append(v)\n"),
    "a method": ("total = torch.ones(2)\nkeep = total\ntotal.mul_(3)\nmade.append(keep)\n"),
    "a detached": ("h = torch.ones(2)\nk = h.detach()\nh += 1\nmade.append(k)\n"),
    "a view": ("h = torch.ones(2, 3)\nk = h.view(-1)\nh += 1\nmade.append(k)\n"),
    "a slice": ("h = torch.ones(4, 3)\nk = h[1:3]\nh *= 2\nmade.append(k)\n"),
    "contiguous": ("h = torch.ones(3)\nk = h.contiguous()\nh += 1\nmade.append(k)\n"),
    "expanded": ("h = torch.zeros(1, 3)\nk = h.expand(2, 3)\nh += 1\nmade.append(k)\n"),
    "an object": (
        "class S: pass\ns = S()\nv = torch.zeros(2)\ns.v = v\nv += 1\nmade.append(s.v)\n"
    ),
    "a tuple": ("best = torch.zeros(2)\nout = (best, 1)\nbest += 1\nmade.append(out[0])\n"),
    "a list of one thing": ("rows = [torch.zeros(2)] * 2\nrows[0] += 1\nmade += rows\n"),
    "values": (
        'd = {"a": torch.ones(1), "b": torch.ones(1)}\n'
        "for v in d.values():\n"
        "    v /= 2\n"
        "made += list(d.values())\n"
    ),
    "items": (
        'd = {"a": torch.ones(1), "b": torch.ones(1)}\n'
        "for k, v in d.items():\n"
        "    v /= 2\n"
        "made += list(d.values())\n"
    ),
    "what a function gives back": (
        "def get(d):\n"
        '    return d["a"]\n'
        'd = {"a": torch.ones(1)}\n'
        "v = get(d)\n"
        "v += 1\n"
        'made += [d["a"]]\n'
    ),
    "rows of an object": (
        "class Cache:\n"
        "    def __init__(self):\n"
        "        self.buf = torch.zeros(4, 2)\n"
        "    def rows(self):\n"
        "        return self.buf[:2]\n"
        "c = Cache()\n"
        "r = c.rows()\n"
        "r += 1\n"
        "made += [c.buf]\n"
    ),
    "an array": ("h = torch.ones(3)\nn = h.numpy()\nh += 1\nmade.append(n)\n"),
    "a list, by a method": (
        "total = torch.zeros(2)\n"
        "hist = []\n"
        "for i in range(3):\n"
        "    hist.append(total)\n"
        "    total.add_(i)\n"
        "made += hist\n"
    ),
    "an argument, by a method": (
        "def bump(t):\n    t.add_(1)\nv = torch.zeros(2)\nbump(v)\nmade.append(v)\n"
    ),
    "a row that is copied into": (
        "x = torch.zeros(2, 3)\nr = x[0]\nr.copy_(torch.ones(3))\nmade += [x]\n"
    ),
    "a narrowed": ("x = torch.zeros(4)\nx.narrow(0, 1, 2).fill_(3)\nmade += [x]\n"),
    "a diagonal": ("x = torch.zeros(3, 3)\nx.diagonal().fill_(2)\nmade += [x]\n"),
    "a copied dictionary": (
        "import copy\n"
        'd = {"x": torch.arange(4.0)}\n'
        "e = copy.copy(d)\n"
        'e["x"] += 1\n'
        'made += [d["x"], e["x"]]\n'
    ),
    "a dictionary made of another": (
        'd = {"x": torch.arange(4.0)}\ne = dict(d)\ne["x"] += 1\nmade += [d["x"], e["x"]]\n'
    ),
    "a list's slice": ("d = [torch.zeros(2)]\ne = d[:]\ne[0] += 1\nmade += [d[0], e[0]]\n"),
    "a comprehension": (
        "d = [torch.zeros(2), torch.zeros(2)]\n"
        "e = [x for x in d]\n"
        "e[0] += 1\n"
        "made += [d[0], e[0]]\n"
    ),
    "a global": (
        "count = torch.zeros(1)\n"
        "def up():\n"
        "    global count\n"
        "    count += 1\n"
        "    return count\n"
        "a = up()\n"
        "b = up()\n"
        "made += [a, b]\n"
    ),
    "a name of around": (
        "def run():\n"
        "    total = torch.zeros(1)\n"
        "    def add(x):\n"
        "        nonlocal total\n"
        "        total += x\n"
        "        return total\n"
        "    a = add(1)\n"
        "    b = add(2)\n"
        "    return a, b\n"
        "made += list(run())\n"
    ),
    "an attribute that is given out": (
        "class M:\n"
        "    def __init__(self):\n"
        "        self.total = torch.zeros(2)\n"
        "    def up(self, x):\n"
        "        self.total += x\n"
        "        return self.total\n"
        "m = M()\n"
        "a = m.up(1)\n"
        "b = m.up(2)\n"
        "made += [a, b]\n"
    ),
    "what is yielded": (
        "def gen():\n"
        "    t = torch.zeros(1)\n"
        "    for i in range(3):\n"
        "        t += 1\n"
        "        yield t\n"
        "made += list(gen())\n"
    ),
    "parts of a tuple": (
        "h = (torch.zeros(2), torch.zeros(2))\na, b = h\na += 1\nmade += list(h)\n"
    ),
}
PLACES = {
    "mask_copy": ("a = torch.arange(6.0)\nv = a[a > 2]\nv[0] = 100\nmade += [a, v]\n"),
    "list_copy": ("a = torch.arange(6.0)\nv = a[[0, 1]]\nv[0] = 100\nmade += [a, v]\n"),
    "index_copy": (
        "a = torch.arange(6.0)\ni = torch.tensor([0, 1])\nv = a[i]\nv[0] = 100\nmade += [a, v]\n"
    ),
    "perm_copy": (
        "x = torch.arange(6.0).view(3, 2)\n"
        "order = torch.tensor([2, 0, 1])\n"
        "y = x[order]\n"
        "y[0, 0] = 50\n"
        "y[1] += 3\n"
        "made += [x, y]\n"
    ),
    "mask set whole": ("x = torch.arange(6.0)\nv = x.view(2, 3)\nx[x > 3] = 0\nmade += [x, v]\n"),
    "mask set whole then row": (
        "x = torch.arange(6.0).view(2, 3)\nv = x[1]\nx[x > 3] = 0\nmade += [x, v]\n"
    ),
    "mask set t": ("x = torch.arange(6.0).view(2, 3)\nv = x.t()\nv[v > 3] = 0\nmade += [x, v]\n"),
    "chunk mask": ("x = torch.arange(6.0)\na, b = x.chunk(2)\na[a > 1] = 0\nmade += [x]\n"),
    "unbind mask": (
        "x = torch.arange(6.0).view(2, 3)\nfor r in x.unbind(0):\n    r[r > 1] = 0\nmade += [x]\n"
    ),
    "alias after list": (
        'x = torch.arange(6.0)\nd = {"x": x.view(-1)}\nx[[1, 2]] = 50\nmade += [d["x"]]\n'
    ),
    "zero_": ("x = torch.arange(4.0)\nv = x.view(2, 2)\nv.zero_()\nmade += [x]\n"),
}

HOLDERS |= {
    "what a method gives out": (
        "class Meter:\n    def __init__(self):\n        self.total = torch.zeros(2)\n"
        "    def add(self, x):\n        self.total += x\n"
        "    def value(self):\n        return self.total\n"
        "meter = Meter()\nfor i in range(3):\n    meter.add(torch.ones(2) * i)\n"
        "    made.append(meter.value())\n"
    ),
    "an attribute that is read outside": (
        "class Meter:\n    def __init__(self):\n        self.total = torch.zeros(2)\n"
        "    def add(self, x):\n        self.total += x\n"
        "meter = Meter()\nfor i in range(3):\n    meter.add(torch.ones(2) * i)\n"
        "    made.append(meter.total)\n"
    ),
    "sums of detached losses": (
        "net = nn.Linear(2, 1)\nfor p in net.parameters():\n    p.data.fill_(0.5)\n"
        "opt = torch.optim.SGD(net.parameters(), lr=0.1)\ntotal, parts = torch.zeros(1), []\n"
        "for i in range(3):\n    opt.zero_grad()\n    loss = net(torch.ones(3, 2)).pow(2).mean()\n"
        "    loss.backward()\n    opt.step()\n    total += loss.detach()\n    parts.append(total)\n"
        "made += parts\n"
    ),
}
PLACES |= {
    "a copy that a function gives": (
        "class Buffer:\n    def __init__(self):\n        self.rows = torch.zeros(4, 2)\n"
        "    def sample(self, places):\n        return self.rows[places]\n"
        "buffer = Buffer()\npart = buffer.sample(torch.tensor([0, 2]))\npart[0] = 7\n"
        "made = [buffer.rows, part]\n"
    ),
}


@pytest.mark.parametrize("case", HOLDERS)
def test_all_that_hold_a_tensor_see_it_change(case: str, tmp_path: object) -> None:
    beside(HEAD + HOLDERS[case], tmp_path)  # type: ignore[arg-type]


@pytest.mark.parametrize("case", PLACES)
def test_places_are_set_in_views_and_not_in_copies(case: str, tmp_path: object) -> None:
    beside(HEAD + PLACES[case], tmp_path)  # type: ignore[arg-type]


QUIET = """net = nn.Linear(2, 1)
x = torch.ones(3, 2)
with torch.no_grad():
    for p in net.parameters():
        p.fill_(0.25)
class Meter:
    def __init__(self):
        self.sum = self.avg = self.count = 0
    def update(self, value, n=1):
        self.sum += value * n
        self.count += n
        self.avg = self.sum / self.count
def run():
    meter, total, best, steps, kept = Meter(), 0.0, 0.0, 0, []
    sums = torch.zeros(1)
    for epoch in range(3):
        out = net(x)
        steps += 1
        total += out.mean().item()
        kept.append(total)
        best = max(best, total)
        sums += out.detach().mean()
        meter.update(out.mean().item(), 3)
        fresh = out.detach() * 2
        fresh -= 1
        kept.append(fresh.sum().item())
    acc = sums
    acc = acc * 2
    acc += 1
    return [total, best, steps, meter.avg, sums, acc, *kept]
made = run()
"""


def test_numbers_and_fresh_tensors_stay_as_they_are(tmp_path: object) -> None:
    found = beside(HEAD + QUIET, tmp_path)  # type: ignore[arg-type]
    assert "port.changed" not in found.text
    assert "port.written" not in found.text
    assert not [edit for edit in found.edits if edit.kind in ("refused", "unproven")]


UNSURE = {
    "an array of numpy": (
        "import numpy as np\nn = np.zeros(3)\nx = torch.from_numpy(n)\nx += 1\nmade = [n]\n"
    ),
    "a place of an array": (
        "import numpy as np\nn = np.zeros(3)\nx = torch.from_numpy(n)\nn[1] = 1\nmade = [x]\n"
    ),
    "a layer in place": (
        "act = nn.ELU(inplace=True)\nx = torch.arange(4.0) - 2\nmade = [x + act(x)]\n"
    ),
    "a block that begins so": (
        "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.block = nn.Sequential(nn.ReLU(True), nn.Linear(2, 2))\n"
        "    def forward(self, x):\n        return x + self.block(x)\n"
    ),
}


@pytest.mark.parametrize("case", UNSURE)
def test_what_cannot_be_written_in_place_is_named(case: str) -> None:
    found = ported(HEAD + UNSURE[case])
    lines = [edit for edit in found.edits if edit.kind == "unproven"]
    assert [edit for edit in lines if edit.reason.startswith("in torch")]


ALONE = """class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.relu = nn.ReLU(inplace=True)
    def forward(self, x):
        identity = x
        out = self.relu(x * 2)
        out = out + 1
        out += identity
        return self.relu(out)
made = [Net()(torch.arange(4.0) - 2)]
"""


def test_a_layer_in_place_on_what_nothing_else_reads(tmp_path: object) -> None:
    found = beside(HEAD + ALONE, tmp_path)  # type: ignore[arg-type]
    assert not [edit for edit in found.edits if edit.kind == "unproven"]

"""Datasets, samplers and loaders that a script makes, and starts of weights, beside torch."""

from __future__ import annotations

import mindspore as ms
import pytest

import mpcore_port_runtime as port
from mpcore_port.engine import port_text
from mpcore_port.targets import Options

from .ports import FILLED, TARGET, beside, ported

HEAD = """import random
from functools import partial
import numpy as np
import torch
from torch.utils.data import BatchSampler, ChainDataset, ConcatDataset, DataLoader, Dataset
from torch.utils.data import IterableDataset, RandomSampler, Sampler, SequentialSampler, Subset
from torch.utils.data import SubsetRandomSampler, TensorDataset, WeightedRandomSampler
from torch.utils.data import get_worker_info, random_split
made = []
class Rows(Dataset):
    def __init__(self, n, off=0):
        self.n, self.off = n, off
    def __len__(self):
        return self.n
    def __getitem__(self, i):
        return torch.full((2,), float(i + self.off)), i
def collate(batch):
    xs, ys = zip(*batch)
    return torch.stack(xs), torch.tensor(ys)
def start(worker):
    seed = torch.initial_seed() % 2**32
    np.random.seed(seed)
    random.seed(seed)
class Even(Sampler):
    def __init__(self, data):
        self.data = data
    def __iter__(self):
        return iter(range(0, len(self.data), 2))
    def __len__(self):
        return len(self.data) // 2
class Groups(Sampler):
    def __init__(self, n, size):
        self.n, self.size = n, size
    def __iter__(self):
        for k in range(0, self.n, self.size):
            yield list(range(k, min(k + self.size, self.n)))
    def __len__(self):
        return (self.n + self.size - 1) // self.size
class Stream(IterableDataset):
    def __init__(self, n):
        self.n = n
    def __iter__(self):
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for i in range(first, self.n, step):
            yield {"x": torch.tensor([i, i + 1]), "n": i}
def pad(batch, value):
    n = max(len(one) for one in batch)
    rows = [torch.cat([one, torch.full((n - len(one),), value)]) for one in batch]
    return torch.stack(rows)
"""
USES = (
    "rows = DataLoader(Rows(5), 2, collate_fn=collate, worker_init_fn=start, drop_last=True)\n"
    "for x, y in rows:\n    made += [x, y]",
    "g = torch.Generator().manual_seed(3)\na, b = random_split(Rows(10), [7, 3], generator=g)\n"
    "made += [len(a), len(b), sorted([i for _, i in a] + [i for _, i in b])]",
    "made += [len(one) for one in random_split(Rows(10), [0.7, 0.3])]",
    "d = ConcatDataset([Rows(3), Rows(4, 10)])\n"
    "made += [len(d), d[4][0], d[-1][0], d[-6][0], d.cumulative_sizes, len(d + Rows(2))]",
    "s = Subset(Rows(6), [1, 5])\nmade += [s[1][0], len(s)]\n"
    "for x, y in DataLoader(s, batch_size=2):\n    made += [x, y]",
    "for x, y in DataLoader(Rows(7), batch_sampler=Groups(7, 3)):\n    made += [x, y]",
    "for x, y in DataLoader(Rows(7), sampler=Even(Rows(7)), batch_size=2):\n    made += [x, y]",
    "order = BatchSampler(SequentialSampler(Rows(7)), 3, False)\n"
    "for x, y in DataLoader(Rows(7), batch_sampler=order):\n    made += [x, y]",
    "made += [list(WeightedRandomSampler([0.0, 1.0, 0.0], 4)), sorted(RandomSampler(Rows(4)))]\n"
    "made.append(sorted(SubsetRandomSampler([3, 1, 2])))",
    "for b in DataLoader(Stream(5), batch_size=2):\n    made += [b['x'], b['n']]",
    "both = ChainDataset([Stream(2), Stream(3)])\n"
    "for b in DataLoader(both, batch_size=2):\n    made.append(b['n'])",
    "data = [torch.arange(2.0), torch.arange(3.0)]\n"
    "for x in DataLoader(data, batch_size=2, collate_fn=partial(pad, value=-1.0)):\n"
    "    made.append(x)\nfor x in DataLoader(data, batch_size=None):\n    made.append(x)",
    "g = torch.Generator()\ng.manual_seed(0)\n"
    "loader = DataLoader(Rows(4), batch_size=2, shuffle=True, generator=g)\n"
    "made += [len(loader), sorted(sum([y.tolist() for _, y in loader], []))]",
)


@pytest.mark.parametrize("code", USES)
def test_batches_are_torchs(tmp_path, code):
    found = beside(f"{HEAD}{code}\n", tmp_path)
    assert not any(edit.kind == "refused" for edit in found.edits)


def test_places_outside_of_joined_datasets_are_said():
    joined = port.ConcatDataset([range(2), range(3)])
    with pytest.raises(ValueError, match="absolute value"):
        joined[-6]
    with pytest.raises(IndexError):
        joined[5]


def test_workers_of_mindspore_are_not_numbered():
    done = port_text(f"{HEAD}Stream(3)\n", TARGET, Options(data="generator"))
    assert any("not numbered" in edit.reason for edit in done.edits)


STARTS = (
    FILLED
    + """net = filled(nn.Sequential(nn.Conv2d(4, 6, 3), nn.Conv2d(4, 6, (1, 5), groups=2)))
line = filled(nn.Linear(3, 5))
deep = filled(nn.Conv3d(2, 3, 3))
nn.init.dirac_(net[0].weight)
nn.init.dirac_(net[1].weight, groups=2)
nn.init.dirac_(deep.weight.data)
nn.init.eye_(line.weight)
made += [net[0].weight, net[1].weight, deep.weight, line.weight]
nn.init.ones_(net[0].weight)
nn.init.dirac_(net[0].weight[:4])
made.append(net[0].weight)
for start in (nn.init.eye_,):
    start(line.weight)
"""
)


def test_weights_that_let_pass_are_torchs(tmp_path):
    found = beside(STARTS, tmp_path)
    assert not any(edit.kind == "refused" for edit in found.edits)


def test_convolutions_alone_start_so():
    with pytest.raises(ValueError, match="dim"):
        port.inits.dirac_(ms.Parameter(ms.ops.ones((2, 2)), name="w"))


@pytest.mark.parametrize("call", ["optimizer.step(0.5, 0.1)", "optimizer.step(-1)"])
def test_a_step_of_numbers_is_no_closure(call):
    found = ported(f"import torch\ndef go(optimizer):\n    {call}\n")
    assert any("arguments of its own" in edit.reason for edit in found.edits)

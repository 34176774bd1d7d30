"""What scripts of vision do with tensors around their losses, beside torch."""

from __future__ import annotations

import pytest

from .ports import beside, ported

HEAD = """import math
import numpy as np
import torch
from torch import nn, optim
import torch.nn.functional as F
made = []
def filled(net):
    for p in net.parameters():
        p.data.copy_(torch.linspace(-1.0, 1.0, p.numel()).view(p.shape))
    return net
def spelled(text):
    return [ord(letter) for letter in text]
labels = torch.tensor([0, 1, 2, 2, 1, 0])
batches = [torch.linspace(-1.0, s, 24).view(6, 4) for s in (1.0, 2.0, 3.0)]
"""
TRAIN = """
model = filled(nn.Linear(4, 3))
optimizer = optim.SGD(model.parameters(), lr=0.05)
for i, x in enumerate(batches):
    {}
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    made.append(loss.detach())
"""
LOSSES = {
    "a mask of Python's bool": """out = model(x)
    mask = torch.ones((6, 6), dtype=bool)
    mask = mask.fill_diagonal_(0)
    sim = out @ out.t()
    first = torch.cat((torch.diag(sim, 3), torch.diag(sim, -3)), dim=0)
    loss = sim[mask].reshape(6, -1).pow(2).mean() + first.sum() * 0.1 + x.to(int).sum() * 0""",
    "the diagonal of a product": """out = model(x)
    c = out.t() @ out
    c.div_(6)
    on = torch.diagonal(c).add_(-1).pow_(2).sum()
    off = c.flatten()[:-1].view(2, 4)[:, 1:].flatten().pow(2).sum()
    loss = on + 0.1 * off""",
    "a mask that takes nothing": """target = labels - (3 if i == 1 else 0)
    valid = target >= 0
    out = model(x)
    each = F.cross_entropy(out, target.clamp(min=0), reduction="none")
    kept = each[valid]
    loss = kept.sum() + torch.sum(out[target > 5].pow(2)) + ((out[valid] - 1) ** 2).sum()
    made.append(valid[target > 5].float().mean())
    made.append(each.masked_select(target > 7).sum().detach())""",
    "parts of a batch that are set": """if i % 2:
        a, b = np.clip(1, 0, 4), np.clip(9, 0, 4)
        x[:, a:b] = x[torch.tensor([5, 4, 3, 2, 1, 0]), a:b]
        x[0, 0] += 2.0
        lam = np.sqrt(0.25)
        loss = lam * F.cross_entropy(model(x), labels) + F.mse_loss(model(x), x[:, :3]) * (1 - lam)
    else:
        loss = F.cross_entropy(model(x), labels) * 2
    made.append(x[0, 1] * 1)""",
    "numbers of numpy as places": """order = np.array([3, 1, 2])
    k = np.argmax([1, 5, 2])
    out = model(x)
    loss = sum(out[j].sum() for j in order) + out[k].pow(2).sum() * np.exp(-1.0)
    for j in order:
        made.append(x[j] * 1)""",
    "what is shown": """out = model(x)
    loss = F.cross_entropy(out, labels)
    class Meter:
        pass
    meter, top = Meter(), Meter()
    right = out.argmax(1) == labels
    meter.val, meter.avg = loss.item(), right.float().mean() * 100
    top.seen = [right.sum()]
    share = right.float().mean()
    made += spelled("{0} {m.val:.3f} ({m.avg:.2f}) {t.seen[0]:d}".format(i, m=meter, t=top))
    made += spelled("{:.4f}|{:5.1f}".format(share, 100.0 * right.sum() / 6))""",
    "several lines in brackets": """hidden = (
        model(x)
        .view(2, 3, 3)
        .permute(0, 2, 1)
        .contiguous()
    )
    loss = hidden.pow(2).mean()""",
}


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_a_loss_is_made_as_in_torch(name, tmp_path):
    beside(HEAD + TRAIN.format(LOSSES[name]), tmp_path)


SCRIPTS = {
    "a matrix of confusion": """
class Confusion:
    def __init__(self, n):
        self.n, self.mat = n, None
    def update(self, a, b):
        n = self.n
        if self.mat is None:
            self.mat = torch.zeros((n, n), dtype=torch.int64)
        with torch.no_grad():
            k = (a >= 0) & (a < n)
            places = n * a[k].to(torch.int64) + b[k]
            self.mat += torch.bincount(places, minlength=n**2).reshape(n, n)
    def reset(self):
        self.mat.zero_()
    def compute(self):
        h = self.mat.float()
        return torch.diag(h).sum() / h.sum(), torch.diag(h) / (h.sum(1) + h.sum(0) - torch.diag(h))
seen = Confusion(3)
for k in range(3):
    seen.update(labels + (k == 1), (labels + k) % 3)
    made += list(seen.compute())
seen.reset()
seen.update(labels, labels)
made += list(seen.compute())
made += [labels.bincount(), torch.median(batches[0]), batches[1].median(), batches[1].median(1)[0]]
""",
    "best boxes": """
overlaps = torch.tensor([[0.1, 0.7, 0.3, 0.2], [0.6, 0.4, 0.05, 0.15]])
best, best_idx = overlaps.max(1, keepdim=True)
truth, truth_idx = overlaps.max(0, keepdim=True)
truth.squeeze_(0)
truth_idx.squeeze_(0)
best_idx.squeeze_(1)
truth.index_fill_(0, best_idx, 2)
for j in range(best_idx.size(0)):
    truth_idx[best_idx[j]] = j
kinds = labels[truth_idx] + 1
kinds[truth < 0.25] = 0
made += [truth, truth_idx, kinds]
""",
    "a mask beside other places": """
Float = torch.cuda.FloatTensor if torch.cuda.is_available() else torch.FloatTensor
grid = Float(batches[0].shape).fill_(1)
cube = torch.ones(2, 3, 4, 4)
b, gj = torch.tensor([0, 1]), torch.tensor([1, 2])
ious = torch.tensor([[0.6, 0.1, 0.7], [0.1, 0.2, 0.3]])
for i, one in enumerate(ious):
    cube[b[i], one > 0.5, gj[i], gj[i]] = 0
made += [grid.sum(), cube]
""",
    "norms without weights or statistics": """
a = nn.BatchNorm1d(4, affine=False)
b = nn.BatchNorm2d(3, track_running_stats=False)
c = nn.BatchNorm2d(3, affine=False, momentum=0.3)
y = torch.sin(torch.linspace(-9, 9, 150).view(2, 3, 5, 5))
for _ in range(3):
    made += [a(batches[0]), b(y), c(y)]
for norm in (a, b, c):
    norm.eval()
made += [a(batches[1]), b(y), c(y), a.running_mean, c.running_var]
made += [len(list(norm.parameters())) for norm in (a, b, c)] + spelled(sorted(a.state_dict())[-1])
made += [isinstance(c, nn.BatchNorm2d)]
""",
    "weights that are lent": """
class Average:
    def __init__(self, model, decay):
        self.model, self.decay, self.shadow, self.backup = model, decay, {}, {}
        for name, param in model.named_parameters():
            self.shadow[name] = param.data.clone()
    def update(self):
        for name, param in self.model.named_parameters():
            mixed = (1.0 - self.decay) * param.data + self.decay * self.shadow[name]
            self.shadow[name] = mixed.clone()
    def lend(self):
        for name, param in self.model.named_parameters():
            self.backup[name] = param.data
            param.data = self.shadow[name]
    def restore(self):
        for name, param in self.model.named_parameters():
            param.data = self.backup[name]
        self.backup = {}
model = filled(nn.Linear(4, 3))
optimizer = optim.SGD(model.parameters(), lr=0.5)
average = Average(model, 0.5)
for x in batches:
    loss = F.cross_entropy(model(x), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    average.update()
    average.lend()
    made.append(model(x).detach())
    average.restore()
    made.append(model(x).detach())
old = [p.data for p in model.parameters()]
for p in model.parameters():
    p.data = p.data * 0
made += old
""",
    "buffers that are assigned": """
class Center(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.register_buffer("center", torch.zeros(1, size))
        self.register_buffer("queue", torch.sin(torch.linspace(-9.0, 9.0, 24).view(3, 8)))
        self.queue = F.normalize(self.queue, dim=0)
        self.register_buffer("place", torch.zeros(1, dtype=torch.long))
        self.register_buffer("seen", torch.tensor(0))
    def forward(self, student, teacher):
        aim = F.softmax((teacher - self.center) / 0.5, dim=-1).detach()
        loss = torch.sum(-aim * F.log_softmax(student, dim=-1), dim=-1).mean()
        loss = loss + (student @ self.queue.clone().detach()).pow(2).mean()
        self.update(teacher)
        return loss
    @torch.no_grad()
    def update(self, teacher):
        self.center = self.center * 0.9 + teacher.mean(dim=0, keepdim=True) * 0.1
        self.seen += 1
        place = int(self.place)
        self.queue[:, place : place + 2] = teacher[:2].T
        self.place[0] = (place + 2) % 8
student, teacher, center = filled(nn.Linear(4, 3)), filled(nn.Linear(4, 3)), Center(3)
optimizer = optim.SGD(student.parameters(), lr=0.1)
for x in batches:
    loss = center(student(x), teacher(x * 0.5))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    made += [loss.detach(), center.center.clone(), center.queue.clone(), center.seen.item()]
made += [len(center.state_dict()), center.state_dict()["center"], center.place]
""",
    "layers of a row that are attributes": """
class Block(nn.Sequential):
    def __init__(self, i, o):
        super(Block, self).__init__()
        self.fc = nn.Linear(i, o)
        self.act = nn.ReLU()
        self.size = o
class Two(nn.Sequential):
    def __init__(self, i, o):
        super().__init__(*[nn.Linear(i, o), nn.ReLU()])
net = filled(nn.Sequential(Block(4, 4), Two(4, 4)))
made += [net(batches[0]), net[0](batches[1]), net[1][0](batches[1]), len(net[0]), net[0].size]
made += [isinstance(net[0], nn.Sequential)]
""",
    "decorators of torch.jit": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 3)
    @torch.jit.ignore
    def names(self):
        return {"fc"}
    @torch.jit.unused
    def twice(self, x):
        return x * 2
    @torch.jit.export
    def forward(self, x):
        return self.twice(self.fc(x))
net = filled(Net())
made += [net(batches[0]), len(net.names())]
""",
    "distances": """
a, b = batches[0][:3], batches[1][3:]
far = a.pow(2).sum(1, keepdim=True).expand(3, 3) + b.pow(2).sum(1, keepdim=True).expand(3, 3).t()
far.addmm_(a, b.t(), beta=1, alpha=-2)
made.append(far.clamp(min=1e-12).sqrt())
""",
    "layers that are added by a name": """
class Block(nn.Sequential):
    def __init__(self, size):
        super().__init__()
        self.add_module("fc", nn.Linear(4, size))
        self.add_module("act", nn.ReLU())
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential()
        for k in range(2):
            self.body.add_module("block%d" % k, Block(4))
        self.add_module("head", nn.Linear(4, 2))
    def forward(self, x):
        return self.head(self.body(x))
net = filled(Net())
made += [net(batches[0]), len(list(net.parameters()))] + spelled(sorted(net.state_dict())[0])
made += [one for name, _ in net.named_parameters() for one in spelled(name)]
""",
}


@pytest.mark.parametrize("name", sorted(SCRIPTS))
def test_a_script_gives_torchs_values(name, tmp_path):
    beside(HEAD + SCRIPTS[name], tmp_path)


def test_weights_that_are_kept_are_copied_where_data_is_assigned_alone():
    kept = "for p in model.parameters():\n    old = p.data\n"
    model = "model = nn.Linear(4, 3)\n"
    assert "p.data.copy()" not in ported(HEAD + model + kept).text
    found = ported(HEAD + model + kept + "    p.data = old * 2\n")
    assert "old = p.data.copy()" in found.text
    assert any("a copy" in edit.effect for edit in found.edits)


def test_a_view_that_is_changed_on_its_own_line_changes_the_whole(tmp_path):
    beside(HEAD + "c = torch.zeros(3, 4)\ntorch.diagonal(c).add_(1.0)\nmade.append(c)\n", tmp_path)


RESUMED = """import torch
from torch import nn
from lib import Memory
model = nn.Linear(4, 3)
memory = Memory(4).cuda()
best = 0.0
def keep(state):
    torch.save(state, "state.pth")
if best > 1:
    checkpoint = torch.load("state.pth")
    best = checkpoint["best"]
    memory = checkpoint["memory"]
keep({"best": best, "memory": memory})
"""


def test_an_object_that_was_saved_whole_takes_its_weights():
    text = ported(RESUMED).text
    assert 'memory = port.put_back(memory, checkpoint["memory"])' in text
    assert 'best = checkpoint["best"]' in text

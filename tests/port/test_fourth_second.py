"""Kinds that a fourth lot of scripts brought: what their ports got wrong at first sight."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mpcore_port.targets import load_target

from .ports import FILLED, beside, ported, verified

if TYPE_CHECKING:
    from pathlib import Path

# --- a network's output that a first loss reads detached, in one statement with other values ------

PAIRS = (
    FILLED
    + """
import torch.nn.functional as F
def update(models, loss, optimizer):
    loss.backward()
    for model in models:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
def train(batches, use_more, steps):
    maker = filled(nn.Linear(4, 4))
    critic, more = filled(nn.Linear(4, 1)), filled(nn.Linear(4, 1))
    first = torch.optim.SGD(maker.parameters(), lr=0.1)
    second = torch.optim.SGD([*critic.parameters(), *more.parameters()], lr=0.1)
    logs = []
    for step in range(steps):
        for batch in batches:
            out = maker(*(batch[1:]))
            real, fake = batch[0].unsqueeze(1), out[:2]
            loss_more = torch.zeros(1)
            if use_more:
                right, wrong = more(real.squeeze(1)), more(fake.detach())
                loss_more = F.mse_loss(right, torch.ones_like(right)) + (wrong ** 2).mean()
            right, wrong = critic(real.squeeze(1)), critic(fake.detach())
            loss_critic = F.mse_loss(right, torch.ones_like(right)) + (wrong ** 2).mean()
            total = loss_critic + loss_more
            update([critic, more] if use_more else [critic], total, second)
            loss_near = F.l1_loss(real.squeeze(1)[:2], fake) * 4
            loss_fool = torch.zeros(1)
            if use_more:
                wrong = more(fake)
                loss_fool = ((1 - wrong) ** 2).mean()
            wrong = critic(fake)
            loss_fool = loss_fool + ((1 - wrong) ** 2).mean()
            loss_rest = (out[2:] ** 2).mean()
            update([maker], loss_near + loss_fool + loss_rest, first)
            logs += [x.sum().item() for x in (total, loss_more, loss_critic, loss_near, loss_fool)]
    return logs + [*maker.parameters(), *critic.parameters(), *more.parameters()]
x = torch.linspace(-1.0, 1.0, 24).view(6, 4)
for use_more in (True, False):
    made += train([(x, x.flip(0)), (x.flip(0), x)], use_more, 3)
"""
)


def test_values_of_one_statement_are_told_apart(tmp_path: Path) -> None:
    beside(PAIRS, tmp_path)


# --- a scaler that one branch of several makes ----------------------------------------------------

IN_ONE_OF_SEVERAL = (
    FILLED
    + """
from torch.amp import GradScaler, autocast
class Trainer:
    def __init__(self, kind):
        self.kind = kind
        self.net = filled(nn.Linear(4, 2))
        self.best = torch.optim.SGD(self.net.parameters(), lr=0.1)
        if kind == "plain":
            self.rate = 1
        elif kind == "scaled":
            self.scaler = GradScaler("cpu", enabled=False)
        elif kind == "other":
            self.rate = 2
    def train(self, batches):
        for batch in batches:
            self.best.zero_grad()
            if self.kind == "scaled":
                with autocast("cpu", enabled=False):
                    out = self.net(batch)
            else:
                out = self.net(batch)
            loss = (out ** 2).mean()
            if self.kind == "scaled":
                self.scaler.scale(loss).backward()
                self.scaler.step(self.best)
                self.scaler.update()
            else:
                loss.backward()
                self.best.step()
            made.append(loss.item())
x = torch.linspace(-1.0, 1.0, 12).view(3, 4)
for kind in ("plain", "scaled", "other", "none"):
    trainer = Trainer(kind)
    trainer.train([x, x.flip(0)])
    made.append(trainer.net.weight)
"""
)


def test_scalers_that_one_of_several_branches_makes(tmp_path: Path) -> None:
    beside(IN_ONE_OF_SEVERAL, tmp_path)


# --- numbers that are tensors ---------------------------------------------------------------------

SINGLES = """import torch
class Meter:
    avg = torch.tensor([2.5])
def right(output, target, topk=(1,)):
    _, found = output.topk(max(topk), 1, True, True)
    same = found.t().eq(target.view(1, -1).expand_as(found.t()))
    return [same[:k].reshape(-1).float().sum(0, keepdim=True) for k in topk]
output = torch.sin(torch.arange(24.0)).view(4, 6)
one, five = right(output, torch.tensor([1, 2, 0, 5]), topk=(1, 5))
count, meter = output.size(0), Meter()
made = [
    torch.tensor([count, 0.25, one, five]).float(),
    torch.tensor([one, five]),
    torch.tensor([[1.0, one], [2.0, five]]),
    torch.tensor((meter.avg, 3)),
    torch.tensor([count, 4]),
]
"""


def test_tensors_of_one_number_among_numbers(tmp_path: Path) -> None:
    beside(SINGLES, tmp_path)


def test_sums_over_processes_by_their_old_name() -> None:
    script = "import torch.distributed as dist\ndist.all_reduce(x, op=dist.reduce_op.SUM)\n"
    assert "port.all_reduce(x, op='sum')" in ported(script).text


VERSIONS = """import logging
import torch
def show():
    versions = [torch.__version__, torch.version.cuda, torch.backends.cudnn.version()]
    logging.info("torch={}, cuda={}, cudnn={}".format(*versions))
    return 1
made = [show()]
"""


def test_versions_of_a_list_that_is_only_shown(tmp_path: Path) -> None:
    assert not [edit for edit in beside(VERSIONS, tmp_path).edits if edit.kind == "refused"]


# --- settings that name CUDA ----------------------------------------------------------------------

OF_SETTINGS = """import torch
import yaml
def main():
    with open("net.yaml") as file:
        cfg = yaml.safe_load(file)
    device = torch.device(cfg["DEVICE"])
    net = torch.nn.Linear(4, 2).to(device)
    best = torch.optim.SGD(net.parameters(), lr=cfg["TRAIN"]["LR"])
    scaler = torch.cuda.amp.GradScaler()
    for x, y in torch.utils.data.DataLoader(torch.load("data.pt"), batch_size=3):
        best.zero_grad()
        with torch.cuda.amp.autocast():
            loss = torch.nn.functional.cross_entropy(net(x.to(device)), y.to(device))
        scaler.scale(loss).backward()
        scaler.step(best)
        scaler.update()
main()
"""


def test_steps_of_settings_that_name_cuda(tmp_path: Path) -> None:
    (tmp_path / "net.yaml").write_text("DEVICE: cuda   # or cpu\nTRAIN:\n  LR: 0.1\n")
    assert verified(OF_SETTINGS, tmp_path, ("float32",), "torch_npu").passed
    told = [e for e in ported(OF_SETTINGS, load_target("torch_npu")).edits if e.kind == "unproven"]
    assert ["npu where they say cuda" in edit.reason for edit in told] == [True]


# --- statistics of a norm that are registered in another size -------------------------------------

SPLIT_NORM = """import torch
from torch import nn
import torch.nn.functional as F
class SplitNorm(nn.BatchNorm2d):
    def __init__(self, channels, parts, **given):
        super().__init__(channels, **given)
        self.parts = parts
        self.weight.requires_grad = False
        self.register_buffer("running_mean", torch.zeros(channels * parts))
        self.register_buffer("running_var", torch.ones(channels * parts))
    def train(self, mode=True):
        if self.training and not mode:
            wide = self.running_mean.view(self.parts, self.num_features)
            self.running_mean = torch.mean(wide, dim=0).repeat(self.parts)
            wide = self.running_var.view(self.parts, self.num_features)
            self.running_var = torch.mean(wide, dim=0).repeat(self.parts)
        return super().train(mode)
    def forward(self, x):
        n, c, h, w = x.shape
        if self.training or not self.track_running_stats:
            return F.batch_norm(
                x.view(-1, c * self.parts, h, w), self.running_mean, self.running_var,
                self.weight.repeat(self.parts), self.bias.repeat(self.parts), True,
                self.momentum, self.eps,
            ).view(n, c, h, w)
        return F.batch_norm(
            x, self.running_mean[:c], self.running_var[:c], self.weight, self.bias, False,
            self.momentum, self.eps,
        )
net = nn.Sequential(SplitNorm(2, 4, momentum=0.3), nn.Conv2d(2, 1, 3))
for p in net.parameters():
    p.data.copy_(torch.linspace(0.5, 1.0, p.numel()).view(p.shape))
best = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.1)
x = torch.sin(torch.arange(8 * 2 * 4 * 4.0)).view(8, 2, 4, 4)
made = []
for turn in range(3):
    net.train()
    best.zero_grad()
    loss = (net(x + turn) ** 2).mean()
    loss.backward()
    best.step()
    made += [loss.item(), net[0].running_mean.clone(), net[0].running_var.clone()]
    net.eval()
    made += [net(x).detach(), net[0].running_mean.clone(), net[0].running_var.clone()]
made += [net[0].bias, net[1].weight]
made += [sum(p.numel() for p in net.parameters())]
"""


def test_statistics_that_are_registered_anew(tmp_path: Path) -> None:
    beside(SPLIT_NORM, tmp_path)


# --- in place on every second column --------------------------------------------------------------

BOXES = """import torch
def boxes_of(rows, w, h):
    boxes = torch.as_tensor([row["box"] for row in rows], dtype=torch.float32).reshape(-1, 4)
    boxes[:, 2:] += boxes[:, :2]
    boxes[:, 0::2].clamp_(min=0, max=w)
    boxes[:, 1::2].clamp_(min=0, max=h)
    boxes[:, 1::2].mul_(2).add_(1)
    return boxes
made = [boxes_of([{"box": [-1.0, 2.0, 30.0, 4.0]}, {"box": [5.0, -2.0, 3.0, 44.0]}], 20, 30)]
"""


def test_every_second_column_is_changed_in_place(tmp_path: Path) -> None:
    beside(BOXES, tmp_path)


def test_where_a_warning_points_is_left_out(tmp_path: Path) -> None:
    script = """import torch
x = torch.sin(torch.arange(6.0)).view(2, 3)
made = [torch.nn.functional.log_softmax(x, dim=1, _stacklevel=5)]
made += [torch.nn.functional.softmax(x, dim=1, _stacklevel=2)]
"""
    beside(script, tmp_path)


# --- copies of parameters that an optimizer moves in their place ----------------------------------

MASTERS = (
    FILLED
    + """
from torch.autograd import Variable
def copies(net):
    params = [param for param in net.parameters() if param.requires_grad]
    master_params = [param.clone().float().detach() for param in params]
    for param in master_params:
        param.requires_grad = True
    return params, master_params
def gradients(params, master_params):
    for model, master in zip(params, master_params):
        if model.grad is not None:
            if master.grad is None:
                master.grad = Variable(master.data.new(*master.data.size()))
            master.grad.data.copy_(model.grad.data)
        else:
            master.grad = None
def back(params, master_params):
    for model, master in zip(params, master_params):
        model.data.copy_(master.data)
net = filled(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)))
params, master_params = copies(net)
groups = [{"params": master_params[:1], "weight_decay": 0}, {"params": master_params[1:]}]
best = torch.optim.SGD(groups, 0.05, momentum=0.9, weight_decay=0.01)
x = torch.sin(torch.arange(20.0)).view(5, 4)
for turn in range(4):
    loss = (net(x + turn) ** 2).mean()
    loss = loss * 8
    net.zero_grad()
    loss.backward()
    gradients(params, master_params)
    for param in master_params:
        param.grad.data = param.grad.data / 8
    best.step()
    back(params, master_params)
    loss = loss / 8
    made.append(loss.item())
made += [*net.parameters(), *master_params]
"""
)


def test_copies_that_an_optimizer_moves(tmp_path: Path) -> None:
    beside(MASTERS, tmp_path)


def test_warnings_of_torchvision_that_are_switched_off_go() -> None:
    script = "import torchvision\ntorchvision.disable_beta_transforms_warning()\nmade = []\n"
    found = ported(script)
    assert not [edit for edit in found.edits if edit.kind == "refused"]
    assert "\ntorchvision.disable" not in found.text

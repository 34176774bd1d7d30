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

"""What five public scripts at first sight showed: smallest scripts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mpcore_port.engine import port_text
from mpcore_port.targets import Options

from .ports import TARGET, beside, ported

if TYPE_CHECKING:
    from pathlib import Path

LOSS = """import torch
from lossmod import MaskedLoss
from nets import Net
loss_fn = MaskedLoss(0.5)
made = [loss_fn.training]
"""


def test_a_loss_of_another_file_starts_in_training() -> None:
    assert "loss_fn = port.in_training(MaskedLoss(0.5))" in ported(LOSS).text


ACTOR = """import torch
class Trainer:
    def __init__(self, actor):
        self.actor = actor
    def epoch(self, loader):
        self.actor.train(loader.training)
        self.actor.eval()
"""


def test_train_of_an_object_may_be_a_method_of_its_own() -> None:
    text = ported(ACTOR).text
    assert "port.train(self.actor, loader.training)" in text
    assert "port.evaluate(self.actor)" in text


SEEDS = """import torch
seeds = torch.arange(3)
wide = torch.tensor([-(2**62), 2**62])
torch.manual_seed(seeds[1])
torch.manual_seed(wide[0])
torch.manual_seed(int(wide[1]))
torch.manual_seed(-3)
torch.manual_seed(7)
own = torch.Generator().manual_seed(int(wide[0]))
made = [own.initial_seed() == 2**64 - 2**62]
"""


def test_a_seed_may_be_an_entry_of_a_tensor_and_any_whole_number(tmp_path: Path) -> None:
    text = beside(SEEDS, tmp_path).text
    assert "port.manual_seed(seeds[1])" in text
    assert "port.manual_seed(int(wide[1]))" in text
    assert "ms.set_seed(7)" in text


GUARDED = """import torch
from torch import nn
class Trainer:
    def __init__(self, net, loader):
        self.net, self.loader = net, loader
        self.opt = torch.optim.SGD(net.parameters(), lr=0.1)
        self.seen = []
    def check(self, loss):
        if loss > 1e6:
            raise FloatingPointError
    def run(self):
        for x in self.loader:
            loss = self.net(x).pow(2).mean()
            self.opt.zero_grad()
            loss.backward()
            CHECK
            self.opt.step()
"""


def test_what_may_raise_stands_between_a_loss_and_its_step_or_is_said() -> None:
    guarded = GUARDED.replace("CHECK", "self.check(loss.item())")
    found = ported(guarded)
    assert not [one for one in found.edits if "behind the step" in one.effect]
    checked, stepped = map(found.text.index, ("self.check(loss", "self.opt(grads)"))
    assert checked < stepped
    compiled = port_text(guarded, TARGET, Options(jit=True))
    (told,) = [one.effect for one in compiled.edits if "behind the step" in one.effect]
    assert "self.check(loss.item())" in told
    logged = ported(GUARDED.replace("CHECK", "self.seen.append(loss.item())"))
    assert "train_step" in logged.text


TWO_WAYS = """import torch
from torch import nn
def fit(net, loader, use_amp):
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = torch.cuda.amp.GradScaler() if use_amp else None
    for x in loader:
        opt.zero_grad()
        if not use_amp:
            loss = net(x).pow(2).mean()
            loss.backward()
            opt.step()
        else:
            with torch.cuda.amp.autocast():
                loss = net(x).pow(2).mean()
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
"""


def test_a_branch_without_a_scaler_takes_every_step() -> None:
    found = ported(TWO_WAYS)
    assert "if not isinstance(scaler, ms.amp.DynamicLossScaler) or finite:" in found.text
    assert not [one for one in found.edits if "non-finite" in one.effect]


CLIPPED = """import torch
from torch import nn
def fit(net, loader, limit):
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for x in loader:
        opt.zero_grad()
        loss = net(x).pow(2).mean()
        loss.backward()
        if limit:
            nn.utils.clip_grad_norm_(net.parameters(), limit)
        opt.step()
"""


def test_a_branch_that_clips_alone_rounds_nothing() -> None:
    assert not [one for one in ported(CLIPPED).edits if "16 bits" in one.effect]


STORED = """import torch.distributed as dist
def join():
    if not dist.is_initialized():
        dist.init_process_group(world_size=1, rank=0, store=dist.HashStore())
join()
made = []
"""


def test_a_store_of_processes_goes_with_the_call_that_asks_it(tmp_path: Path) -> None:
    assert "port.init_process_group()" in beside(STORED, tmp_path).text


WIDE = """import torch
torch.manual_seed(0)
drawn = torch.randint(-2**63, 2**63 - 1, (64,))
one = torch.randint(0, 2**40, ())
made = [int((drawn < 0).any()), int((drawn > 2**40).any()), len(one.shape)]
made += [bool(0 <= int(one) < 2**40), torch.randint(3, (2,)).shape[0]]
"""


def test_whole_numbers_are_drawn_from_wide_ranges(tmp_path: Path) -> None:
    beside(WIDE, tmp_path)


FUSED = """import torch
import torch.nn as nn
from functools import partial
try:
    from apex.normalization import FusedLayerNorm as LayerNorm
except ImportError:
    LayerNorm = nn.LayerNorm
Norm = partial(LayerNorm, eps=1e-6)
class Block(nn.Module):
    def __init__(self, dim, norm_layer=LayerNorm):
        super().__init__()
        self.first, self.last = Norm(dim), norm_layer(dim)
    def forward(self, x):
        return self.last(self.first(x))
made = [Block(3)(torch.arange(6.0).reshape(2, 3).sin()), Block(3).first.eps]
"""


def test_apexs_layer_norm_that_is_handed_on_takes_torchs_arguments(tmp_path: Path) -> None:
    beside(FUSED, tmp_path)

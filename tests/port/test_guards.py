"""Lines between a loss and its step that may stop the training: the step is not taken then."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mpcore_port.engine import port_text
from mpcore_port.targets import Options

from .ports import FILLED, NET, TARGET, compare, ported

if TYPE_CHECKING:
    from pathlib import Path

SCRIPT = """import math
import sys
{outside}
class Trainer:
    def __init__(self):
        self.net = filled(Net())
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.1, momentum=0.9)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    def write(self, seen):
        Trainer.check(seen["loss"])
    @staticmethod
    def check(loss):
        if not math.isfinite(loss.item()):
            raise FloatingPointError("the loss is not finite")
    def show(self, seen):
        print(seen["loss"].item())
    def epoch(self, batches):
        for x in batches:
            self.opt.zero_grad()
            loss = self.net(x).exp().mean()
{early}
            {backward}
            seen = {{"loss": loss}}
{guard}
            {step}
            made.append(loss.item())
trainer = Trainer()
try:
    trainer.epoch([torch.ones(2, 3), torch.full((2, 3), 2.0), torch.full((2, 3), 900.0)])
except (ArithmeticError, AssertionError, SystemExit) as error:
    made.append(float(len(type(error).__name__)))
for p in trainer.net.parameters():
    made.append(p.detach().numpy())
"""
PLAIN = {"backward": "loss.backward()", "step": "self.opt.step()"}
CLIPPED = {
    "backward": "loss.backward()",
    "step": "torch.nn.utils.clip_grad_norm_(self.net.parameters(), 1.0); self.opt.step()",
}
SCALED = {
    "backward": "self.scaler.scale(loss).backward()",
    "step": "self.scaler.unscale_(self.opt)\n"
    "            norm = torch.nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)\n"
    "            self.scaler.step(self.opt)\n            self.scaler.update()\n"
    "            made.append(float(norm))",
}
GUARDS = {
    "of the class": "self.write(seen)",
    "raised": "if loss.item() > 1e9: raise ArithmeticError",
    "asserted": 'assert math.isfinite(loss.item()), "loss"',
    "left": "if not math.isfinite(loss.item()):\n                sys.exit(1)",
    "of another file": "must_be_finite(seen['loss'].item())",
}
OUTSIDE = """def made_elsewhere():
    def must_be_finite(value):
        if not math.isfinite(value):
            raise ArithmeticError(value)
    return must_be_finite
must_be_finite = made_elsewhere()
"""


def _script(guard: str, parts: dict[str, str], early: str = "") -> str:
    lines = (f"            {text}" if text else "" for text in (guard, early))
    guard, early = lines
    text = SCRIPT.format(outside=OUTSIDE, guard=guard, early=early, **parts)
    return FILLED + NET + text


def _beside(script: str, folder: Path) -> str:
    found = port_text(script, TARGET, Options(plain=True))
    assert not [edit for edit in found.edits if "torch's form" in edit.reason]
    compare(script, found.text, folder)
    return found.text


@pytest.mark.parametrize("parts", [PLAIN, CLIPPED, SCALED], ids=["plain", "clipped", "scaled"])
@pytest.mark.parametrize("guard", GUARDS.values(), ids=list(GUARDS))
def test_what_stops_the_training_stops_it_in_front_of_the_step(guard, parts, tmp_path):
    text = _beside(_script(guard, parts), tmp_path)
    assert "train_step" not in text


def test_a_guard_in_front_of_the_backward_pass_stops_the_step(tmp_path):
    _beside(_script("", PLAIN, GUARDS["asserted"]), tmp_path)


def test_an_optimizer_alone_steps_without_a_function_around_it(tmp_path):
    text = _beside(_script(GUARDS["raised"], PLAIN), tmp_path)
    assert "loss, grads = grad_fn(x)" in text
    assert "            self.opt(grads)\n            made.append" in text


def test_what_stops_nothing_leaves_the_step_whole(tmp_path):
    text = _beside(_script("self.show(seen)", PLAIN), tmp_path)
    assert "train_step" in text


SEVERAL = (
    FILLED
    + """import math
class Both:
    def __init__(self):
        self.g, self.d = filled(nn.Linear(2, 3)), filled(nn.Linear(3, 1))
        self.og = torch.optim.Adam(self.g.parameters(), lr=0.01)
        self.od = torch.optim.SGD(self.d.parameters(), lr=0.1)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
        self.hist = []
    def check(self, loss, name):
        if not torch.isfinite(loss):
            raise RuntimeError(name)
        self.hist.append(loss.item())
    def run(self, zs):
        for z in zs:
            fake = self.g(z)
            self.od.zero_grad()
            d_loss = self.d(fake.detach()).mean() - self.d(torch.ones(2, 3)).mean()
            self.scaler.scale(d_loss).backward()
            self.check(d_loss, "d")
            self.scaler.step(self.od)
            self.og.zero_grad()
            self.g_loss = -self.d(self.g(z)).mean()
            self.scaler.scale(self.g_loss).backward()
            self.check(self.g_loss, "g")
            self.scaler.step(self.og)
            self.scaler.update()
both = Both()
try:
    both.run([torch.ones(2, 2), torch.full((2, 2), 0.5), torch.full((2, 2), float("nan"))])
except RuntimeError as e:
    made.append(len(str(e)))
made += both.hist
made += [both.g.weight, both.d.weight, both.scaler.get_scale()]
class One:
    def __init__(self):
        self.n = filled(nn.Linear(2, 1))
        self.o = torch.optim.SGD(self.n.parameters(), lr=0.1, momentum=0.9)
    def step(self, x):
        self.loss = self.n(x).pow(2).mean()
        self.o.zero_grad()
        self.loss.backward()
        assert math.isfinite(self.loss.item())
        norm = nn.utils.clip_grad_norm_(self.n.parameters(), 0.5)
        self.o.step()
        return norm
one = One()
for k in range(3):
    made.append(one.step(torch.ones(2, 2) * k))
    made.append(one.loss)
made.append(one.n.weight)
"""
)


def test_steps_of_several_optimizers_and_losses_of_a_field_are_taken_apart(tmp_path):
    found = ported(SEVERAL)
    compare(SEVERAL, found.text, tmp_path)
    assert "apply_grads_od(grads_od)" in found.text
    assert "self.loss, grads = grad_fn(x)" in found.text


HOOKED = """import torch
from elsewhere import Base
class Trainer(Base):
    def epoch(self, batches):
        for x in batches:
            self.opt.zero_grad()
            loss = self.net(x).mean()
            loss.backward()
            self.{hook}()
            self.opt.step()
"""


@pytest.mark.parametrize(("hook", "keeps"), [("after_backward", True), ("log_metrics", False)])
def test_a_hook_of_a_base_that_nobody_looked_at_sees_gradients(hook, keeps):
    found = ported(HOOKED.format(hook=hook))
    said = [edit for edit in found.edits if "may look at gradients" in edit.reason]
    assert bool(said) is keeps

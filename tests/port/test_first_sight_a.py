"""Losses whose networks go by no network's name, and data of another shape, beside torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .ports import FILLED, beside, ported

if TYPE_CHECKING:
    from pathlib import Path

HEAD = """from types import SimpleNamespace
batches = [torch.linspace(-1.0, s, 6).view(2, 3) for s in (0.5, 0.0, 0.5, 1.0)]
held = SimpleNamespace(
    Encoder=filled(nn.Linear(3, 4)),
    MaskNet=filled(nn.Linear(4, 4)),
    Decoder=filled(nn.Linear(4, 3)),
)
nets = (held.Encoder, held.MaskNet, held.Decoder)
params = [p for net in nets for p in net.parameters()]
class Trainer:
    def __init__(self):
        self.hparams = held
        self.optimizer = torch.optim.SGD(params, lr=0.05)
"""
TAIL = """
trainer = Trainer()
for x in batches:
    made.append(trainer.fit_batch(x, x.flip(0)))
made += [p.detach() for p in params]
"""
LOSS = """    def fit_batch(self, mix, target):
        w = self.hparams.Encoder(mix)
        m = {mask}
        loss = (self.hparams.Decoder(w * m.tanh()) - target).pow(2).mean()
"""
STEP = """        if loss < 1e6:
            loss.backward()
            {step}
        self.optimizer.zero_grad()
        return loss.item()
"""
RUN = "self.hparams.MaskNet(w)"
HERE = "self.optimizer.step()"
NETWORKS = {
    "an attribute": LOSS.format(mask=RUN) + STEP.format(step=HERE),
    "a name of it": "    def fit_batch(self, mix, target):\n"
    "        w = self.hparams.Encoder(mix)\n"
    "        mask = self.hparams.MaskNet\n"
    "        m = mask(w)\n"
    "        loss = (self.hparams.Decoder(w * m.tanh()) - target).pow(2).mean()\n"
    + STEP.format(step=HERE),
    "in another method": LOSS.format(mask="self.masked(w)")
    + STEP.format(step=HERE)
    + f"    def masked(self, w):\n        return {RUN}\n",
    "stepped by another method": LOSS.format(mask=RUN)
    + STEP.format(step="self.move()")
    + "    def move(self):\n        self.optimizer.step()\n",
}


@pytest.mark.parametrize("case", NETWORKS)
def test_every_network_trains(case: str, tmp_path: Path) -> None:
    found = beside(FILLED + HEAD + NETWORKS[case] + TAIL, tmp_path)
    assert ".MaskNet," not in found.text.partition("port.loss(")[2]


def test_a_network_in_front_of_those_that_names_tell_trains_too(tmp_path: Path) -> None:
    body = (LOSS.format(mask="w") + STEP.format(step=HERE)).replace(
        "w = self.hparams.Encoder(mix)", "w = self.hparams.MaskNet(self.hparams.Front(mix))"
    )
    head = HEAD.replace("Encoder=", "Front=").replace("held.Encoder", "held.Front")
    found = beside(FILLED + head + body + TAIL, tmp_path)
    assert "port.record()" in found.text


def test_what_a_loss_lists_is_not_counted_twice(tmp_path: Path) -> None:
    body = LOSS.format(mask=RUN) + STEP.format(step=HERE)
    found = beside(FILLED + HEAD + body + TAIL, tmp_path)
    given = "forward, self.hparams.Encoder, self.hparams.Decoder, self.optimizer)"
    assert f"port.loss({given}" in found.text


WRAPPER = """class Noam:
    def __init__(self, optimizer):
        self.inner = optimizer
    def step(self):
        self.inner.step()
    def zero_grad(self):
        self.inner.zero_grad()
"""
BASE = """class Brain:
    def masked(self, w):
        return self.hparams.MaskNet(w)
"""


@pytest.mark.parametrize("wrapped", [False, True])
def test_methods_of_a_base_in_another_file(
    wrapped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = LOSS.format(mask="self.masked(w)") + STEP.format(step=HERE)
    base = "from brain_of_first_sight import Brain\nclass Trainer(Brain):"
    head = HEAD.replace("class Trainer:", base)
    if wrapped:
        made = "torch.optim.SGD(params, lr=0.05)"
        head = head.replace(made, f"Noam({made})")
        head = head.replace("class Trainer", WRAPPER + "class Trainer")
    (tmp_path / "brain_of_first_sight.py").write_text(BASE, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    beside(FILLED + head + body + TAIL, tmp_path)


def test_methods_of_tensors_ask_for_no_optimizer() -> None:
    found = ported(
        "import torch\n"
        "def train(model, opt, batches, device):\n"
        "    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "    for x, y in batches:\n"
        "        loss = (model(x.to(device).view(-1, 3)) - y.float()).abs().mean()\n"
        "        loss.backward()\n"
        "        optimizer.step()\n"
    )
    assert "port.loss(forward, model)" in found.text


DATA = {
    "empty, one number": "t = torch.zeros(0)\nt.data = torch.tensor(2.0)\n",
    "one number, empty": "t = torch.tensor(2.0)\nt.data = torch.zeros(0)\n",
    "several, one number": "t = torch.ones(2, 3)\nt.data = torch.tensor(0.0)\n",
    "another shape": "t = torch.ones(2, 3)\nt.data = torch.arange(8.0).view(4, 2)\n",
    "one that broadcasts": "t = torch.ones(2, 3)\nt.data = torch.ones(1, 3) * 2\n",
    "the same shape": "t = torch.ones(2, 3)\nt.data = torch.arange(6.0).view(2, 3)\n",
}


@pytest.mark.parametrize("case", DATA)
def test_data_of_another_shape(case: str, tmp_path: Path) -> None:
    tail = "made += [tuple(t.shape), t.numel(), t, t + 1.0]\n"
    beside(FILLED + DATA[case] + tail, tmp_path)


def test_a_loss_whose_data_is_one_number(tmp_path: Path) -> None:
    beside(
        FILLED + "net = filled(nn.Linear(3, 2))\n"
        "opt = torch.optim.SGD(net.parameters(), lr=0.1)\n"
        "for x in (torch.ones(2, 3), torch.ones(2, 3) * 2):\n"
        "    loss = (net(x) ** 2).mean(0)\n"
        "    if loss.sum() < 10.0:\n"
        "        loss.sum().backward()\n"
        "        opt.step()\n"
        "    else:\n"
        "        loss.data = torch.tensor(0.0)\n"
        "    opt.zero_grad()\n"
        "    made += [tuple(loss.shape), loss.detach()]\n",
        tmp_path,
    )


@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
def test_a_parameter_of_another_shape_trains(optimizer: str, tmp_path: Path) -> None:
    beside(
        FILLED + "net = filled(nn.Linear(3, 4))\n"
        "net(torch.ones(2, 3)).pow(2).mean().backward()\n"
        "net.zero_grad(set_to_none=True)\n"
        "net.weight.data = net.weight.data[:2]\n"
        "net.bias.data = net.bias.data[:2]\n"
        f"opt = torch.optim.{optimizer}(net.parameters(), lr=0.1)\n"
        "for x in (torch.ones(2, 3), torch.ones(2, 3) * 2):\n"
        "    loss = net(x).pow(2).mean()\n"
        "    opt.zero_grad()\n"
        "    loss.backward()\n"
        "    opt.step()\n"
        "    made.append(loss.item())\n"
        "made += [tuple(net.weight.shape), net.weight.requires_grad]\n"
        "made += [tuple(net.weight.grad.shape), tuple(net.state_dict()['bias'].shape)]\n"
        "made += [p.detach() for p in net.parameters()]\n",
        tmp_path,
    )

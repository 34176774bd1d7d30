"""Training steps of kinds that scripts are written in, taken out of them and run."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from mpcore_port.engine import port_tree
from mpcore_port.source import walk
from mpcore_port.targets import Options, load_target
from mpcore_port.verify import step as steps
from mpcore_port.verify.extract import extract
from mpcore_port.verify.judge import VerifyOptions
from mpcore_port.verify.project import verify_port
from mpcore_port.verify.step import Place

from .probing import probed
from .test_steps_like_scripts import verified

if TYPE_CHECKING:
    from pathlib import Path

    from mpcore_port.verify.judge import Verification

STEP = "    optimizer.zero_grad()\n    loss.backward()\n    optimizer.step()\n"
LOADER = "torch.utils.data.DataLoader(None)"
NET = "import torch\nfrom zoo import Net\nnet = Net(10)\n"
SGD = "optimizer = torch.optim.SGD(net.parameters(), lr=0.01)\n"
ENTROPY = "    loss = torch.nn.functional.cross_entropy(net(x), y)\n"
RANK = (
    f"import os\n{NET}{SGD}local_rank = int(os.environ['LOCAL_RANK'])\n"
    f"for x, y in {LOADER}:\n    x, y = x.cuda(local_rank), y.cuda(local_rank)\n{ENTROPY}{STEP}"
)
AROUND = (
    "import torch\nfrom zoo import Net\nfrom optimizers import WarmOptimizer\nnet = Net(10)\n"
    "optimizer = WarmOptimizer(model=net, lr0=0.1)\noptimizer.optim.param_groups\n"
    f"for x, y in {LOADER}:\n{ENTROPY}{STEP}"
)
GAN = f"""import torch
from models import Synthesizer, Judge
from mel import spec_to_mel
from losses import judge_loss, feature_loss
net, judge = Synthesizer(3), Judge()
by_net = torch.optim.SGD(net.parameters(), 0.01)
by_judge = torch.optim.SGD(judge.parameters(), 0.01)
for x, spec in {LOADER}:
    y_hat, l_length, (z, z_p, m_p) = net(x, spec)
    mel = spec_to_mel(spec)
    real, fake = judge(mel, y_hat.detach())
    loss_judge, losses_real, losses_fake = judge_loss(real, fake)
    by_judge.zero_grad()
    loss_judge.backward()
    by_judge.step()
    real, fake = judge(mel, y_hat)
    loss = feature_loss(real, fake) + l_length.sum() + (z - z_p).abs().mean()
    shown = {{"loss/" + str(i): v for i, v in enumerate(losses_real)}}
    by_net.zero_grad()
    loss.backward()
    by_net.step()
"""
KINDS = {
    "what several ranks ask": (
        f"import torch.distributed as dist\n{NET}{SGD}"
        f"for x, y in {LOADER}:\n{ENTROPY}    loss = loss / dist.get_world_size()\n{STEP}"
    ),
    "a list, or a dict": (
        f"{NET}{SGD}for batch in {LOADER}:\n    if isinstance(batch, list):\n        x, y = batch\n"
        f"    else:\n        x, y = batch['image'], batch['label']\n{ENTROPY}{STEP}"
    ),
    "words, and a pair of rates": (
        "import os, torch, utils\nfrom zoo import Net\nhps = utils.get_hparams()\nnet = Net(10)\n"
        "os.environ['CUDA_VISIBLE_DEVICES'] = hps.train.gpus\nname = 'runs/' + hps.name + '/x'\n"
        "optimizer = torch.optim.Adam(net.parameters(), hps.train.lr, betas=hps.train.betas)\n"
        f"for x, y in {LOADER}:\n{ENTROPY}{STEP}"
    ),
    "a device of settings": (
        f"import espcn_config\nfrom utils import select_device\n{NET}{SGD}"
        "other = select_device('0')\nnet = net.to(device=espcn_config.device)\n"
        f"for x, y in {LOADER}:\n    x = x.to(espcn_config.device, non_blocking=True)\n"
        f"    y = y.to(other)\n{ENTROPY}{STEP}"
    ),
    "parts that networks may have": (
        f"{NET}groups = [[], []]\nfor v in net.modules():\n"
        "    if hasattr(v, 'implicit'):\n        groups[0].append(v.implicit)\n"
        "    if isinstance(v, Net if isinstance(Net, type) else torch.nn.Module):\n"
        "        groups[1] += list(v.parameters())\n"
        f"optimizer = torch.optim.SGD(groups[1], lr=0.01)\nfor x, y in {LOADER}:\n{ENTROPY}{STEP}"
    ),
    "an optimizer in an object around it": AROUND,
    "several networks, functions of the data, losses by name": GAN,
    "losses of a dict, reduced, and a scaler by keyword": (
        "import torch\nfrom misc import reduce_dict, Logger\n"
        "def train_one_epoch(model, criterion, loader, optimizer, **kwargs):\n"
        "  scaler = kwargs.get('scaler', None)\n  logger = Logger()\n  for x, y in loader:\n"
        "    with torch.autocast('cuda'):\n        out = model(x)\n"
        "    loss_dict = criterion(out, y)\n    loss = sum(loss_dict.values())\n"
        "    optimizer.zero_grad()\n    scaler.scale(loss).backward()\n"
        "    scaler.step(optimizer)\n    scaler.update()\n"
        "    reduced = reduce_dict(loss_dict)\n"
        "    logger.update(loss=sum(reduced.values()), **reduced)\n"
    ),
    "a class around a scaler": (
        "import torch\nclass Native:\n    def __init__(self):\n"
        "        self._scaler = torch.cuda.amp.GradScaler()\n"
        "    def __call__(self, loss, optimizer, clip_grad=None, parameters=None):\n"
        "        self._scaler.scale(loss).backward()\n"
        "        torch.nn.utils.clip_grad_norm_(parameters, 1.0)\n"
        "        self._scaler.step(optimizer)\n        self._scaler.update()\n"
    ),
    "switches, and one of several parts": (
        "import torch\nfrom hparams import create_hparams\nfrom zoo import Net\n"
        "hparams = create_hparams()\ntorch.backends.cudnn.enabled = hparams.cudnn_enabled\n"
        f"net = Net(10)\n{SGD}for x in {LOADER}:\n    x = x[0] if len(x) > 1 else x\n"
        f"    loss = net(x.cuda()).square().mean()\n{STEP}"
    ),
    "a configuration of hydra's": (
        "import hydra, torch\nfrom zoo import Net\n@hydra.main(config_path='conf')\n"
        "def main(cfg):\n    folder = cfg.run.dir / 'models'\n    net = Net(cfg.width)\n"
        "    optimizer = torch.optim.SGD(net.parameters(), lr=cfg.optim.lr)\n"
        f"    for x, y in {LOADER}:\n"
        "        loss = torch.nn.functional.cross_entropy(net(x), y)\n"
        "        optimizer.zero_grad()\n        loss.backward()\n        optimizer.step()\n"
        "if __name__ == '__main__':\n    main()\n"
    ),
    "a loss that compares three": (
        "import torch\ndef train_one_epoch(model, criterion, loader, optimizer):\n"
        "    for samples, targets in loader:\n"
        "        loss = criterion(samples, model(samples), targets)\n"
        "        optimizer.zero_grad()\n        loss.backward()\n        optimizer.step()\n"
    ),
    "a model that trains itself": (
        "import torch\nclass Model(torch.nn.Module):\n    def __init__(self):\n"
        "        super().__init__()\n        self.first = torch.nn.Linear(16, 3)\n"
        "    def forward(self, x, y):\n        out = self.first(x)\n"
        "        return out, torch.nn.functional.cross_entropy(out, y)\n"
        "    def model_fn(self, data):\n        x, y = data['x'], data['y']\n"
        "        return self(x, y)\n"
        "    def train_one_step(self, data):\n        out, loss = self.model_fn(data)\n"
        "        loss.backward()\n        self.optimizer.step()\n        return out, loss\n"
        "    def fit(self, loader):\n"
        "        self.optimizer = torch.optim.SGD(self.parameters(), lr=0.1)\n"
        "        for data in loader:\n            out, loss = self.train_one_step(data)\n"
    ),
}


@pytest.mark.parametrize("text", KINDS.values(), ids=KINDS)
def test_inputs_are_found(text: str, tmp_path: Path) -> None:
    found = probed(extract(text, tmp_path), tmp_path, 60.0)
    assert found["inputs"], found["words"]


@pytest.mark.slow
@pytest.mark.parametrize("text", [RANK, AROUND, GAN], ids=["rank", "around", "gan"])
def test_ports_to_mindspore_are_verified(text: str, tmp_path: Path) -> None:
    done = verified(text, tmp_path)
    assert done.passed, done.lines()


def test_losses_that_are_handed_over_have_weights(tmp_path: Path) -> None:
    text = KINDS["a class around a scaler"]
    (tmp_path / "train.py").write_text(text, encoding="utf-8")
    target = load_target("torch_npu")
    result = port_tree(walk(tmp_path / "train.py"), target, Options())
    asked = VerifyOptions(losses=4)
    place = Place(tmp_path, tmp_path)
    done: Verification = steps.verify_step(
        result.files[0], result, target, place, asked, "", "", lambda _: None
    )
    assert done.passed, done.lines()
    losses = done.comparisons[0].original
    assert len(set(losses)) == len(losses)  # its weights move


def test_stand_ins_tell_functions_from_networks() -> None:
    """In a process of its own: stand-ins are of one framework, and torch's methods change."""
    code = (
        "import torch\n"
        "from mpcore_port.verify.absent import install\n"
        "install()\n"
        "import audio, zoo\n"
        "x = torch.ones(2, 4)\n"
        "assert not audio.to_mel(x).requires_grad\n"
        "assert zoo.Net(3)(x).requires_grad and zoo.net(x).requires_grad\n"
        "net = zoo.build('name')\n"
        "assert len(list(net.parameters())) == 4 and net(x).requires_grad\n"
        "assert not any(hasattr(part, 'implicit') for part in zoo.Net(3).to('cpu').modules())\n"
        "a, (b, c, (d, e)), f_losses = zoo.Net(3)(x)\n"
        "assert c.shape == e.shape == a.shape\n"
        "_, losses_of = zoo.Net(3)(x)\n"
        "assert isinstance(losses_of, list) and losses_of[0].dim() == 0\n"
        "assert 'runs/' + zoo.name == 'runs/mpcore_name' and zoo.name + '/x' == 'mpcore_name/x'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_fewer_names_from_outside_stand_in_a_script(tmp_path: Path) -> None:
    text = (
        f"{NET}{SGD}def train():\n  seen = 0.0\n  for x, y in {LOADER}:\n"
        "    out, features = net(x)\n"
        "    loss = torch.nn.functional.cross_entropy(out, y)\n"
        "    optimizer.zero_grad()\n    loss.backward()\n    optimizer.step()\n"
        "    seen += out.mean().item()\n  print(features.shape)\ntrain()\n"
    )
    done = verified(text, tmp_path)
    assert done.passed, done.lines()


ENGINE = """import math, torch
def train_one_epoch(model, loader, optimizer, loss_scaler, max_norm=0, update_freq=None,
                    start_steps=None, use_amp=False):
    for i, (x, y) in enumerate(loader):
        it = start_steps + i // update_freq
        with torch.cuda.amp.autocast(enabled=use_amp):
            loss = torch.nn.functional.cross_entropy(model(x), y)
        value = loss.item()
        if not math.isfinite(value):
            raise SystemExit
        loss /= 2
        norm = loss_scaler(loss, optimizer, clip_grad=max_norm, parameters=model.parameters(),
                           update_grad=(i + 1) % 2 == 0)
        scale = loss_scaler.state_dict()["scale"]
        if (i + 1) % 2 == 0:
            optimizer.zero_grad()
"""


@pytest.mark.parametrize("target", ["torch_npu", "mindspore"])
def test_a_class_around_a_scaler_that_is_called_goes_back(target: str, tmp_path: Path) -> None:
    (tmp_path / "engine.py").write_text(ENGINE, encoding="utf-8")
    tree, to = walk(tmp_path / "engine.py"), load_target(target)
    result, asked = port_tree(tree, to, Options()), VerifyOptions(losses=6)
    done = verify_port(result, tree, to, asked, "", lambda _: None, steps_only=True)
    assert done.verification is not None
    assert done.verification["passed"], done.verification["lines"]

"""A step is written as its script is: rules see the same names in both, and the ports are equal.

What is not there is given beside it: modules, names of star imports, what a base class assigns.
"""

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
from mpcore_port.verify.judge import Verification, VerifyOptions
from mpcore_port.verify.standing import _begun
from mpcore_port.verify.step import Place

from .probing import probed

if TYPE_CHECKING:
    from pathlib import Path

OLD = """import torch
import numpy as np
from zoo.nets import Classifier
from meters import *

model = Classifier(10).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
if resume:
    model.load_state_dict(torch.load(resume)["model"])
stream = iter(torch.utils.data.DataLoader(images_of(root), batch_size=8))
model.train()
for step in range(40):
    x, y = next(stream)
    out = model(x.cuda())
    loss = torch.nn.functional.cross_entropy(out, y.cuda())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    meter = AverageMeter()
    meter.update(loss.data[0], x.size(0))
"""
LOOP = (
    "        loss = torch.nn.functional.cross_entropy(self.net(x), y)\n"
    "        self.optimizer.zero_grad()\n"
    "        loss.backward()\n"
    "        self.optimizer.step()\n"
)


def verified(text: str, folder: Path, **options: object) -> Verification:
    """Verify the step of a script beside that of its port to MindSpore."""
    (folder / "train.py").write_text(text, encoding="utf-8")
    target = load_target("mindspore")
    result = port_tree(walk(folder / "train.py"), target, Options())
    asked = VerifyOptions(losses=6, modes=("float32",), **options)  # type: ignore[arg-type]
    place = Place(folder, folder)
    return steps.verify_step(
        result.files[0], result, target, place, asked, "", "", lambda _: None
    )  # fmt: skip


def test_imports_and_next_stay_as_they_are(tmp_path: Path) -> None:
    step = extract(OLD, tmp_path)
    assert "from zoo.nets import Classifier" in step.body
    assert "from meters import *" in step.body
    assert "'AverageMeter': _mpcore_missing(\"meters.AverageMeter\")" in step.given
    assert "x, y = next(stream)" in step.body  # its loader gives synthetic batches
    assert "iter(_mpcore_loader())" in step.body
    unknown = OLD.replace("torch.utils.data.DataLoader", "their_loader")
    assert "x, y = next(_mpcore_stream)" in extract(unknown, tmp_path).body


def test_what_a_star_import_gives_is_what_the_step_reads(tmp_path: Path) -> None:
    given = "{'meters': {'Rate': 0.5, 'use_amp': True}}"
    code = (
        "from mpcore_port.verify.absent import install\n"
        f"install({given}, ('gone.inner',))\n"
        "from meters import *\nfrom gone.inner import anything\nimport gone.inner.more\n"
        "print(Rate, use_amp, anything)\n"
    )
    (tmp_path / "gone").mkdir()
    (tmp_path / "gone" / "inner.py").write_text("raise RuntimeError", "utf-8")
    (tmp_path / "run.py").write_text(code, "utf-8")
    done = subprocess.run(
        [sys.executable, "run.py"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.split(" <")[0] == "0.5 True"


def test_a_module_that_fails_is_gone_where_one_line_imports_it(tmp_path: Path) -> None:
    (tmp_path / "zoo").mkdir()
    (tmp_path / "zoo" / "nets.py").write_text("raise OSError", "utf-8")
    step = extract(OLD, tmp_path, (3,))
    assert step.gone == ("zoo.nets",)
    assert "from zoo.nets import Classifier" in step.body
    twice = extract(OLD.replace("import numpy as np", "from zoo.nets import Other"), tmp_path, (3,))
    assert twice.gone == ()
    assert 'Classifier = _mpcore_missing("zoo.nets.Classifier")' in twice.body


@pytest.mark.slow
def test_an_old_script_with_modules_that_are_not_there_is_verified(tmp_path: Path) -> None:
    done = verified(OLD, tmp_path)
    assert done.passed, done.lines()
    assert done.step is not None
    assert any("torch before 0.4" in one for one in done.step["assumed"])


OWN = """import torch
from zoo import Net

class Plain(torch.optim.Optimizer):
    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.add_(p.grad, alpha=-group["lr"])

net = Net(10)
optimizer = Plain(net.parameters(), lr=0.01)
for x, y in torch.utils.data.DataLoader(None):
    loss = torch.nn.functional.cross_entropy(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.slow
def test_a_step_by_an_optimizer_of_the_scripts_own_is_verified(tmp_path: Path) -> None:
    done = verified(OWN, tmp_path)
    assert done.passed, done.lines()
    assert done.comparisons[0].steps == 6


def test_torch_of_before_is_lent_to_no_port_of_torch(tmp_path: Path) -> None:
    step = extract(OLD, tmp_path)
    assert "_mpcore_old(False)" in step.script(tmp_path, "")
    aged = extract(OLD, tmp_path, old_torch=True)
    assert "_mpcore_old(True)" in aged.script(tmp_path, "")
    assert "invalid index of a 0-dim" in str(probed(step, tmp_path, 60.0)["words"])
    assert probed(aged, tmp_path, 60.0)["inputs"]


BASES = {
    "set_input": (
        "import torch\nfrom .base_model import BaseModel\nfrom . import networks\n"
        "class Pix(BaseModel):\n"
        "    def __init__(self, opt):\n        BaseModel.__init__(self, opt)\n"
        "        self.net = networks.define_G(opt.ngf)\n"
        "        if self.isTrain:\n"
        "            self.optimizer = torch.optim.Adam(self.net.parameters(), lr=opt.lr)\n"
        "    def set_input(self, input):\n"
        "        swap = self.opt.direction == 'AtoB'\n"
        "        self.x = input['A' if swap else 'B'].to(self.device)\n"
        "        self.y = input['B' if swap else 'A'].to(self.device)\n"
        "    def optimize_parameters(self):\n"
        "        loss = (self.net(self.x) - self.y).abs().mean()\n"
        "        self.optimizer.zero_grad()\n        loss.backward()\n"
        "        self.optimizer.step()\n"
    ),
    "loaders": (
        "import torch\nclass Trainer:\n    def __init__(self, args, loader, my_model):\n"
        "        self.args, self.net = args, my_model\n"
        "        self.train_data = loader.loader_train\n"
        "        self.optimizer = torch.optim.Adam(my_model.parameters(), lr=args.lr)\n"
        "    def train(self):\n      for x, y in self.train_data:\n" + LOOP
    ),
    "a path, and a loader of another module": (
        "import torch\nfrom pathlib import Path\nfrom data import make_loader\n"
        "class Trainer:\n  def train(self, models_dir: Path, run_id: str, model):\n"
        "      (models_dir / run_id / 'x').with_suffix('.pt')\n"
        "      self.net, self.loader = model, None\n"
        "      self.loader = make_loader(models_dir)\n"
        "      self.optimizer = torch.optim.Adam(model.parameters(), lr=0.1)\n"
        "      first = next(iter(self.loader))\n"
        "      for x, y in self.loader:\n" + LOOP
    ),
    "sizes": (
        "import torch\nclass Agent:\n    def __init__(self, args, net):\n"
        "        self.args, self.net, self.atoms = args, net, args.atoms\n"
        "        self.support = torch.linspace(args.V_min, args.V_max, self.atoms)\n"
        "        self.head = torch.nn.Linear(args.width_of_it, args.atoms)\n"
        "        self.optimizer = torch.optim.Adam(net.parameters(), lr=args.lr)\n"
        "    def train(self, train_loader):\n      for x, y in train_loader:\n" + LOOP
    ),
    "rates of a configuration": (
        "import torch\nfrom config import Config\nfrom zoo import Net\nopt = Config()\n"
        "net = Net(3)\n"
        "groups = [{'params': net.parameters(), 'lr': opt.lr}]\n"
        "optimizer = torch.optim.SGD(groups, lr=opt.lr, weight_decay=opt.weight_decay)\n"
        "for x, y in torch.utils.data.DataLoader(None):\n"
        "    loss = torch.nn.functional.cross_entropy(net(x), y)\n    optimizer.zero_grad()\n"
        "    loss.backward()\n    optimizer.step()\n"
    ),
    "a data set of another file": (
        "import torch\nfrom dataset import Balanced\nfrom zoo import Net\nnet = Net(3)\n"
        "optimizer = torch.optim.SGD(net.parameters(), lr=0.1)\ntrain_dataset = Balanced('x')\n"
        "step = 0\nwhile True:\n    images, labels = train_dataset.get_batch()\n"
        "    loss = torch.nn.functional.cross_entropy(net(images), labels)\n"
        "    optimizer.zero_grad()\n    loss.backward()\n    optimizer.step()\n"
        "    step += 1\n    if step == 40:\n        break\n"
    ),
    "a loss that gets the network": (
        "import torch\nfrom losses.dsm import estimation\nfrom models import ScoreNet\n"
        "score = ScoreNet(3)\noptimizer = torch.optim.Adam(score.parameters(), lr=0.1)\n"
        "for x, y in torch.utils.data.DataLoader(None):\n"
        "    loss = estimation(score, x, y, None)\n    optimizer.zero_grad()\n"
        "    loss.backward()\n    optimizer.step()\n"
    ),
}


@pytest.mark.parametrize("text", BASES.values(), ids=BASES)
def test_what_a_script_does_not_hold_is_told_from_its_use(text: str, tmp_path: Path) -> None:
    found = probed(extract(text, tmp_path), tmp_path, 60.0)
    assert found["inputs"], found["words"]


def test_checkpoints_that_are_not_there_are_met_when_they_are_loaded(tmp_path: Path) -> None:
    assert 'model.load_state_dict(torch.load(resume)["model"])' in extract(OLD, tmp_path).body
    computed = OLD.replace("torch.load(resume)", "torch.load(paths.best(resume))")
    assert "torch.load(" not in extract(computed, tmp_path).body


def test_numbers_that_could_not_be_computed_are_numbers(tmp_path: Path) -> None:
    text = OLD.replace("Classifier(10)", "Classifier(size)").replace(
        "model = ", "size = int(shapes_of(root))\nmodel = "
    )
    assert "size = _mpcore_short(16)" in extract(text, tmp_path, (6,)).body


def test_what_a_network_gives_is_not_what_a_batch_holds(tmp_path: Path) -> None:
    text = "import torch\nfrom nets import VAE\nnet = VAE()\nfor x in loader:\n"
    step = extract(f"{text}    out, mu = net(x)\n    out.mean().backward()\n", tmp_path)
    assert step.layout is not None
    assert step.layout.names == ("x",)
    step = extract(f"{text}    a, b = moved(x)\n    net(a, b).mean().backward()\n", tmp_path)
    assert step.layout is not None
    assert step.layout.names == ("a", "b")


def test_epochs_that_an_object_keeps_are_counted(tmp_path: Path) -> None:
    text = (
        "class T:\n  def __init__(self, args, model):\n    self.epoch = args.epoch\n"
        "    self.net, self.objective = model, args.objective\n"
        "  def train(self, loader):\n    for e in range(self.epoch):\n      for x in loader:\n"
        "        self.net(x).mean().backward()\n"
    )
    body = extract(f"import torch\n{text}", tmp_path).body
    assert "_mpcore_settings(\"args\", {'epoch': 1})" in body


def test_what_a_base_gives_is_no_assignment(tmp_path: Path) -> None:
    body = extract(BASES["set_input"], tmp_path).body
    assert "_mpcore_give(self, isTrain=" in body
    assert "for input in _mpcore_loader(): _mpcore_owner.set_input(input); " in body


def test_stand_ins_are_numbers_and_places_for_tensors_of_mindspore() -> None:
    """In a process of its own: stand-ins are of one framework."""
    pytest.importorskip("mindspore")
    code = (
        "import mindspore as ms, mpcore_port_runtime as port\n"
        "from mpcore_port.mindspore.stand_in import stand_in_for_cells\n"
        "from mpcore_port.verify.synthetic import missing\n"
        "stand_in_for_cells(port)\n"
        "x = ms.Tensor([[1.0, 2.0, 3.0]])\n"
        "lr, start = missing('args.lr'), missing('args.start_epoch')\n"
        "assert float((x * lr)[0, 1]) == float((lr * x)[0, 1]) == float(ms.Tensor(0.02))\n"
        "assert x[:, start:].shape == (1, 3) and (x / lr > lr).all()\n"
        "x[:, start] = lr\n"
        "assert float(x[0, 0]) == float(ms.Tensor(0.01))\n"
        "nets = [port.DataParallel(missing(name)()) for name in ('resnet18', 'zoo.Head')]\n"
        "groups = [{'params': port.parameters(net), 'lr': lr} for net in nets]\n"
        "optimizer = port.SGD(groups, lr=lr, weight_decay=missing('opt.weight_decay'))\n"
        "assert [len(group['params']) for group in optimizer.param_groups] == [4, 4]\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("line", "begun"),
    [
        ("out = None", {"out"}),
        ("out = kinds = None", {"out", "kinds"}),
        ("out = kinds", set()),
        ("self.out = None", set()),
        ("None", set()),
    ],
)
def test_names_that_a_port_begins_with_none_for_its_functions(line: str, begun: set[str]) -> None:
    assert _begun(line) == begun

"""Losses whose parts other functions and files make go through what is recorded, beside torch."""

from __future__ import annotations

import runpy
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest
from mindspore import Tensor

from mpcore.errors import BackendError
from mpcore_port_runtime import training

from .ports import FILLED, beside, ported

if TYPE_CHECKING:
    from pathlib import Path

STEPS = """import torch
class Steps:
    def __init__(self, optimizer, params, clip, scaled, turns=2):
        self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0) if scaled else None
        self.optimizer, self.params, self.clip, self.by = optimizer, params, clip, 1 / turns
    def back(self, last, loss):
        loss = loss.mul(self.by)
        if self.scaler is not None:
            self.scaler.scale(loss).backward(retain_graph=False, create_graph=False)
        else:
            loss.backward(retain_graph=False, create_graph=False)
        if not last:
            return None
        if self.scaler is not None:
            self.scaler.unscale_(self.optimizer)
        norm = torch.nn.utils.clip_grad_norm_(self.params, self.clip)
        if self.scaler is not None:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return norm
class Hook:
    def after_iter(self, runner):
        runner.outputs["loss"] /= 2
        runner.optimizer.zero_grad()
        runner.outputs["loss"].backward()
        runner.optimizer.step()
def update(out, y, criterion, optimizer):
    loss = criterion(out, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
NET = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 2, 3, padding=1, bias=False), nn.BatchNorm2d(2)
        self.top, self.unused = nn.Linear(18, 3), nn.Linear(2, 2)
    def forward(self, x):
        x = torch.relu(self.norm(self.conv(x)))
        return self.top(x.flatten(1))
net = filled(Net())
teacher = filled(nn.Linear(9, 3))
optimizer = torch.optim.AdamW(net.parameters(), lr=0.01, weight_decay=0.1)
batches = [(torch.linspace(-by, 1.0, 36).view(4, 1, 3, 3), torch.tensor([0, 2, 1, 0]))
           for by in (1.0, 2.0, 3.0, 4.0)]
"""
LEFT = """
made += [p.detach() for p in net.parameters()] + [net.norm.running_mean]
"""
LOOPS = {
    "scaled": """
steps = Steps(optimizer, list(net.parameters()), 0.5, True)
for i, (x, y) in enumerate(batches):
    loss = F.cross_entropy(net(x), y)
    norm = steps.back(i % 2 == 1, loss=loss)
    made += [loss.item(), 0.0 if norm is None else norm.item()]
""",
    "not scaled": """
steps = Steps(optimizer, list(net.parameters()), 0.5, False)
class Trainer:
    def __init__(self, net):
        self.net = net
    def losses(self, x, y):
        out = self.net(x)
        return {"loss": F.cross_entropy(out, y), "size": out.abs().mean()}
    @torch.no_grad()
    def evaluate(self, x):
        self.net.eval()
        out = self.net(x).softmax(1)
        self.net.train()
        return out
trainer = Trainer(net)
for i, (x, y) in enumerate(batches):
    losses = trainer.losses(x, y)
    steps.back(i % 2 == 1, losses["loss"] + 0.1 * losses["size"])
    made.append(trainer.evaluate(x))
""",
    "a hook": """
class Runner:
    pass
runner = Runner()
runner.optimizer, hook = optimizer, Hook()
for x, y in batches:
    runner.outputs = {"loss": F.cross_entropy(net(x), y), "n": 4}
    hook.after_iter(runner)
    made.append(runner.outputs["loss"].detach())
""",
    "targets of a teacher": """
criterion = nn.MSELoss()
def aims(x):
    with torch.no_grad():
        found = teacher(x.flatten(1))
        found = found + net(x)
    print(found.mean().item())
    return found
for x, y in batches:
    update(net(x), aims(x), criterion, optimizer)
made += [p.detach() for p in teacher.parameters()]
""",
    "beside a loss of its own": """
criterion = nn.CrossEntropyLoss()
inner = torch.optim.SGD(teacher.parameters(), lr=0.1)
for x, y in batches:
    update(net(x), y, criterion, optimizer)
    with torch.no_grad():
        aim = net(x)
    inner.zero_grad()
    loss = (teacher(x.flatten(1)) - aim).square().mean()
    loss.backward()
    inner.step()
    print(loss.item())
    made.append(loss.detach())
made += [p.detach() for p in teacher.parameters()]
""",
}


def run_in(folder: Path, beside: tuple[str, ...] = ("steps",)) -> list[np.ndarray]:
    """Return what ``main`` of a folder leaves behind, as arrays; its neighbours are forgotten."""
    sys.path.insert(0, str(folder))
    try:
        made = runpy.run_path(str(folder / "main.py"), run_name="main")["made"]
    finally:
        sys.path.remove(str(folder))
        for name in beside:
            sys.modules.pop(name, None)
    made = [one.detach() if hasattr(one, "detach") else one for one in made]
    return [
        np.asarray(getattr(one, "asnumpy", one.__float__)())
        if isinstance(one, Tensor)
        else np.asarray(one)
        for one in made
    ]


@pytest.mark.parametrize("name", LOOPS)
def test_a_loss_that_another_file_takes_back_is_torchs(name: str, tmp_path: Path) -> None:
    main = FILLED.replace("import torch\n", "import torch\nimport torch.nn.functional as F\n")
    main = main.replace("made = []", "from steps import Hook, Steps, update\nmade = []")
    main += NET + LOOPS[name] + LEFT
    texts = {"steps.py": STEPS, "main.py": main}
    made = []
    for side in ("torch", "port"):
        (tmp_path / side).mkdir()
        for file, text in texts.items():
            whole = ported(text).text if side == "port" else text
            (tmp_path / side / file).write_text(whole, encoding="utf-8")
        made.append(run_in(tmp_path / side))
    for own, other in zip(*reversed(made), strict=True):
        np.testing.assert_allclose(own, other, rtol=2e-5, atol=2e-6)


LEAVES = {
    "a cache of gradients": """
def cached(reps):
    reps = [r.detach().requires_grad_() for r in reps]
    loss = torch.cat(reps).square().mean() + reps[0].sum()
    loss.backward()
    return [r.grad for r in reps], loss.detach()
def again(rows, grads):
    for x, grad in zip(rows, grads):
        out = net(x)
        back(out, grad)
def back(out, grad):
    surrogate = (out.flatten() * grad.flatten()).sum()
    surrogate.backward()
for turn in range(3):
    optimizer.zero_grad()
    with torch.no_grad():
        reps = [net(x) for x in rows]
    grads, loss = cached(reps)
    again(rows, grads)
    optimizer.step()
    made += [*grads, loss]
""",
    "kept for another": """
def first(out):
    loss = out.square().mean()
    loss.backward(retain_graph=True)
    return loss
def second(out):
    loss = out.abs().sum()
    loss.backward()
    return loss
for x in rows:
    optimizer.zero_grad()
    out = net(x)
    made += [first(out).detach(), second(out[0]).detach()]
    optimizer.step()
""",
    "rows of a loss": """
def back(rows_of_loss):
    rows_of_loss.backward(torch.tensor([0.5, 2.0]))
for x in rows:
    optimizer.zero_grad()
    back(net(x).square().mean(1))
    optimizer.step()
""",
    "a scaler that is handed on": """
scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=1)
def back(out, weight):
    loss = (out * weight).square().mean()
    scaler.scale(loss).backward()
for x in rows:
    optimizer.zero_grad()
    back(net(x), 0.5)
    scaler.step(optimizer)
    scaler.update()
    made.append(scaler.get_scale())
""",
    "an average of weights": """
average = filled(nn.Linear(3, 2))
def back(out):
    loss = out.square().mean()
    loss.backward()
for x in rows:
    optimizer.zero_grad()
    back(net(x))
    optimizer.step()
    for a, p in zip(average.parameters(), net.parameters()):
        a.data.mul_(0.9).add_(p.data, alpha=0.1)
made += [p.detach() for p in average.parameters()]
""",
    "a network that is frozen in between": """
other = filled(nn.Linear(2, 2))
def back(out):
    loss = other(out).square().mean()
    loss.backward()
optimizer = torch.optim.SGD([*net.parameters(), *other.parameters()], lr=0.1, momentum=0.9)
for turn, x in enumerate(rows + rows):
    for p in other.parameters():
        p.requires_grad = turn % 2 == 0
    optimizer.zero_grad()
    back(net(x))
    optimizer.step()
made += [p.detach() for p in other.parameters()]
""",
}
ROWS = """
net = filled(nn.Linear(3, 2))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
rows = [torch.linspace(-by, 1.0, 6).view(2, 3) for by in (1.0, 2.0)]
"""


@pytest.mark.parametrize("name", LEAVES)
def test_a_loss_of_what_is_handed_in_is_torchs(name: str, tmp_path: Path) -> None:
    left = "\nmade += [p.detach() for p in net.parameters()]\n"
    found = beside(FILLED + ROWS + LEAVES[name] + left, tmp_path)
    assert "port.record()" in found.text
    assert not [edit for edit in found.edits if edit.kind == "refused"]


def test_a_tensor_of_no_parameter_has_no_backward_pass() -> None:
    training.record()
    with pytest.raises(BackendError, match="hangs on a Parameter"):
        Tensor([1.0]).sum().backward()


def test_a_graph_goes_with_its_backward_pass(tmp_path: Path) -> None:
    script = FILLED + ROWS + LEAVES["kept for another"].replace("retain_graph=True", "")
    with pytest.raises(RuntimeError, match="retain_graph"):
        beside(script, tmp_path)


def test_gradients_of_gradients_are_refused_where_all_is_recorded() -> None:
    training.record()
    value = Tensor([2.0])
    value.requires_grad = True
    with pytest.raises(NotImplementedError, match="create_graph"):
        (value * value).sum().backward(create_graph=True)


@pytest.mark.parametrize(
    "head",
    [
        "import torch\n",
        "import sys\nsys.path.append('.')\nimport torch\n",
        "import os\nos.environ['A'] = '1'\nimport torch\nfrom math import pi\n",
        "try:\n    import torch\nexcept ImportError:\n    raise\n",
        '"""What it does."""\nfrom __future__ import annotations\nA = 1\nimport torch\n',
    ],
)
def test_recording_begins_behind_the_import_of_what_records(head: str, tmp_path: Path) -> None:
    text = ported(head + "def back(loss):\n    loss.backward()\n    return torch.ones(1)\n").text
    assert "port.record()" in text
    (tmp_path / "port.py").write_text(text, encoding="utf-8")
    runpy.run_path(str(tmp_path / "port.py"))

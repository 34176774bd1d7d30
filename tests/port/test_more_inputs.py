"""Batches that are searched by how far a step came; losses and environments that stand in."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpcore_port.verify.extract import extract
from mpcore_port.verify.judge import VerifyOptions
from mpcore_port.verify.left_out import givers_of_losses
from mpcore_port.verify.module import Module
from mpcore_port.verify.required import required_arguments
from mpcore_port.verify.roles import flag_of
from mpcore_port.verify.run import verify
from mpcore_port.verify.synthetic import missing

from .probing import probed

SEVERAL = """import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(50, 16)
        self.look = nn.Conv2d(1, 4, 3, padding=1)
        self.out = nn.Linear(16 + 4 * 28 * 28, 7)
    def forward(self, img, ids, scale):
        seen = self.look(img).flatten(1)
        rows, columns = scale.shape
        return self.out(torch.cat([self.words(ids).mean(1), seen], 1)) * scale
net = Net().cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for img, ids, scale, labels in torch.utils.data.DataLoader(data):
    loss = nn.functional.cross_entropy(net(img, ids, scale), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
GYM = """import gym
import torch
env = gym.make("CartPole-v1")
net = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for episode in range(9):
    state, _ = env.reset()
    done = False
    while not done:
        scores = net(torch.from_numpy(state))
        state, reward, done, cut, info = env.step(scores.argmax().item())
        loss = (scores.max() - reward) ** 2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


def _probed(text: str, folder: Path) -> dict[str, object]:
    return probed(extract(text, folder), folder, 30.0)


def test_each_tensor_of_a_batch_gets_its_own_kind_and_shape(tmp_path: Path) -> None:
    found = str(_probed(SEVERAL, tmp_path)["inputs"])
    pictures, words, scale, labels = found.split(", ")
    assert (pictures, labels) == ("float32[8,1,28,28]", "int64[8]<7"), found
    assert words.startswith("int64[8,")
    assert "[8,7]" in scale


def test_an_environment_that_is_not_installed_stands_in(tmp_path: Path) -> None:
    found = _probed(GYM, tmp_path)
    assert found["inputs"], found["words"]
    assert found["stand_ins"] == ["gym.make"]


LOSSES = """import torch
from theirs import compute_loss
net = make_net()
for x, y in torch.utils.data.DataLoader(data):
    x = x.cuda()
    out = net(x)
    loss_box, loss_class = compute_loss(out, y)
    loss = loss_box + loss_class
    loss.backward()
"""


def test_what_gives_the_loss_is_told_from_what_gives_the_batch() -> None:
    assert givers_of_losses(Module(LOSSES), (4, 9)) == [7]


def test_a_loss_that_stands_in_keeps_what_it_is_given(tmp_path: Path) -> None:
    body = extract(LOSSES, tmp_path, {7}).body
    assert "loss_box, loss_class = _mpcore_missing('compute_loss')(out, y)" in body


def _form(loop: str, folder: Path) -> tuple[tuple[str, ...], str]:
    text = f"import torch\n{loop}    model(x, y).backward()\n    optimizer.step()\n"
    step = extract(text, folder)
    assert step.layout is not None
    return step.layout.names, step.codes[0].replace("torch.from_numpy(_mpcore_parts", "(p")


def test_batches_are_lists_dicts_and_objects_where_the_loop_says_so(tmp_path: Path) -> None:
    joined = "for x, y in loader:\n    x = torch.cat(x, dim=0)\n"
    assert _form(joined, tmp_path) == (("x[0]", "x[1]", "y"), "([(p[0]), (p[1])], (p[2]),)")
    boxes = "for x, y in loader:\n    y = [{k: v.cuda() for k, v in t.items()} for t in y]\n"
    names, code = _form(boxes, tmp_path)
    assert names == ("x", "y", "y")
    assert "{'boxes': b.abs(), 'labels': n}" in code
    fields = "for b in loader:\n    x = b.src\n    y = b.trg\n"
    names, code = _form(fields, tmp_path)
    assert (names, code) == (("src", "trg"), "_mpcore_record(src=(p[0]), trg=(p[1]))")


GRAPH = """import torch
from theirs import Net, load
edges, features, labels = load("cora")
net = Net(features.shape[1])
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for epoch in range(99):
    loss = (net(features, edges) - labels).sum()
    loss.backward()
    optimizer.step()
"""


def test_data_that_is_read_once_before_the_loop_is_a_batch(tmp_path: Path) -> None:
    assert extract(GRAPH, tmp_path).layout is None
    step = extract(GRAPH, tmp_path, {3})
    assert step.layout is not None
    assert step.layout.names == ("edges", "features", "labels")


def test_a_function_that_another_returns_is_followed(tmp_path: Path) -> None:
    text = """import torch
def make(net, optimizer):
    def step(x):
        net(x).backward()
        optimizer.step()
    return step
step = make(net, optimizer)
for x in loader:
    step(x)
"""
    assert extract(text, tmp_path).loop == (8, 9)


def test_batches_have_the_size_that_the_script_counts_on(tmp_path: Path) -> None:
    text = "parser.add_argument('-b', '--batch-size', default=512, type=int)\n"
    assert required_arguments(Module(text), tmp_path) == ("--batch-size", "8")
    text = "batch_size = 512\nfor x in loader:\n    x.view(batch_size, -1).backward()\n"
    step = extract(text, tmp_path)
    assert "batch_size = _mpcore_short(8)" in step.body
    assert (1, "8 in place of 512") in step.replaced


STANDING = """import torch
from mpcore_port.verify.synthetic import missing
net = torch.nn.Linear(4, 2).cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
scaler = torch.cuda.amp.GradScaler()
compute_loss = missing("compute_loss")
env = missing("gym").make("CartPole-v1")
state, _ = env.reset()
for i in range(9):
    with torch.cuda.amp.autocast():
        scores = net(torch.from_numpy(state).cuda())
        loss = compute_loss(scores, env)
    state, reward, done, cut, info = env.step(scores.argmax().item())
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""


@pytest.mark.parametrize(
    ("change", "passed"),
    [
        (("", ""), True),
        (("    scaler.step(optimizer)", "    pass"), False),
        (("    scaler.update()", "    pass"), False),
        (("compute_loss(scores, env)", "compute_loss(scores * 1.5, env)"), False),
        (("    scaler.step(optimizer)", "    optimizer.step()"), False),
    ],
    ids=["none", "no step", "no update", "another loss", "a step past the scaler"],
)
@pytest.mark.day
def test_a_planted_fault_is_different_beside_stand_ins(
    change: tuple[str, str], passed: bool, tmp_path: Path
) -> None:
    port = "import torch_npu\n" + STANDING.replace("torch.cuda.amp", "torch.npu.amp")
    pair = [tmp_path / "train.py", tmp_path / "ported.py"]
    texts = (STANDING, port.replace(".cuda()", ".npu()").replace(*change))
    for path, text in zip(pair, texts, strict=True):
        path.write_text(text, "utf-8")
    options = VerifyOptions(losses=6, at=2, modes=("overflow",))
    assert verify(*pair, "torch_npu", options).passed is passed


KEPT = """import torch
class SimCLR:
    def __init__(self, model, args):
        self.args = args
        self.model = model.to(args.device)
    def train(self, loader, optimizer):
        for x, _ in loader:
            with torch.cuda.amp.autocast(enabled=self.args.fp16_precision):
                out = self.model(x).view(self.args.n_views, self.args.batch_size, -1)
            optimizer.zero_grad()
            out.sum().backward()
            optimizer.step()
"""


def test_settings_that_an_object_keeps_are_numbers_by_their_names(tmp_path: Path) -> None:
    body = extract(KEPT, tmp_path).body
    made = next(line for line in body.splitlines() if "_mpcore_settings(" in line)
    assert "'batch_size': 8" in made
    assert "'n_views': 2" in made
    assert flag_of("fp16_precision")


def test_a_package_that_is_not_there_has_a_version() -> None:
    assert int(missing("torchvision").__version__.split(".")[1]) > 7

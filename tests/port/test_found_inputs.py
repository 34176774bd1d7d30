"""Inputs of steps: what errors of layers ask for, words that options are compared with, texts."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path

import pytest

from mpcore_port.verify.extract import extract
from mpcore_port.verify.inputs import Input
from mpcore_port.verify.module import Module
from mpcore_port.verify.repairs import changes
from mpcore_port.verify.required import required_arguments
from mpcore_port.verify.search import Search, targets
from mpcore_port.verify.step import _Probe

from .probing import job_of, probed


@pytest.mark.parametrize(
    ("error", "shape"),
    [
        (
            "Given groups=1, weight of size [64, 3, 4], expected input[8, 1, 4096] to have "
            "3 channels, but got 1 channels instead",
            (8, 3, 4096),
        ),
        ("shape '[-1, 28, 28]' is invalid for input of size 4096", (8, 28, 28)),
        ("mat1 and mat2 shapes cannot be multiplied (8x4096 and 784x512)", (8, 784)),
        ("mat1 and mat2 shapes cannot be multiplied (8x4096 and 784x512)", (8, 1, 28, 28)),
    ],
)
def test_errors_of_layers_say_what_they_want(error: str, shape: tuple[int, ...]) -> None:
    given = (Input("float32", (8, 1, 4096)),)
    found = changes(f"RuntimeError: {error} (line 3)", given, [0], {})
    assert (Input("float32", shape),) in list(itertools.islice(found, 40))


def test_scores_of_words_are_compared_with_words() -> None:
    seen = {"out": [8, 16, 96]}
    assert targets(seen, Input("int64", (8, 16), 96))[0] == Input("int64", (8, 16), 96)
    assert targets(seen, Input("float32", (8, 16)))[0] == Input("int64", (8, 96), 16)


OPTIONS = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--dataset", required=True)
parser.add_argument("--kind")
parser.add_argument("--path")
parser.add_argument("--note")
parser.add_argument("--size", type=int)
parser.add_argument("--known", default="a")
args = parser.parse_args()
if args.dataset in ["imagenet", "folder"]:
    channels = 3
if args.kind == "coco":
    if args.path is None:
        raise ValueError("Must provide --path")
else:
    raise ValueError("no such kind")
if args.note == "x" or args.known == "b":
    print(args.note)
"""


def test_options_get_the_words_that_the_script_compares_them_with(tmp_path: Path) -> None:
    found = required_arguments(Module(OPTIONS), tmp_path)
    assert found == ("--dataset", "imagenet", "--kind", "coco", "--path", "mpcore")


def _probed(text: str, folder: Path) -> dict[str, object]:
    step = extract(text, folder)
    assert step.layout is not None
    return probed(step, folder, 20.0)


AUTOENCODER = """import torch
from torch import nn
import torch.nn.functional as F
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(12, 36)
        self.back = nn.Linear(36, 12)
    def forward(self, x):
        return torch.sigmoid(self.out(self.back(x.view(-1, 36))))
net = Net().to(torch.accelerator.current_accelerator())
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for x, _ in torch.utils.data.DataLoader(data):
    optimizer.zero_grad()
    out = net(x)
    loss = F.binary_cross_entropy(out, x.view(-1, 36), reduction="sum")
    loss.backward()
    optimizer.step()
"""


def test_an_autoencoder_gets_pictures_between_0_and_1(tmp_path: Path) -> None:
    found = _probed(AUTOENCODER, tmp_path)
    assert str(found["inputs"]).startswith("float32[8,36]<2, float32[8,36]<2")


ATTRIBUTES = """import torch
from torch import nn
net = nn.Sequential(nn.Embedding(20, 8), nn.Linear(8, 20)).cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for batch in torch.utils.data.DataLoader(data):
    optimizer.zero_grad()
    out = net(batch.src.cuda())
    nn.functional.cross_entropy(out.view(-1, 20), batch.trg.cuda().view(-1)).backward()
    optimizer.step()
"""


def test_a_batch_with_attributes_is_found(tmp_path: Path) -> None:
    assert str(_probed(ATTRIBUTES, tmp_path)["inputs"]).startswith("int64[8,16]<20, int64[8,16]<")


RANKS = """import torch
import torch.distributed as dist
dist.init_process_group("nccl")
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(6, 3).cuda())
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for x, y in torch.utils.data.DataLoader(data):
    loss = torch.nn.functional.cross_entropy(net(x.cuda()), y.cuda())
    optimizer.zero_grad()
    loss.backward()
    dist.all_reduce(loss.data)
    optimizer.step()
"""


def test_a_step_of_one_rank_waits_for_nobody(tmp_path: Path) -> None:
    """Each try is a fork, and threads of a real group are not there in it."""
    assert str(_probed(RANKS, tmp_path)["inputs"]).startswith("float32[8,")


DEVICE = """import torch
from torch.nn.parallel import DistributedDataParallel as DDP
from mpcore_port.stubs.devices import install, is_on_device
install("{kind}")
held = torch.accelerator
assert held.is_available() and held.device_count() == 1
place = held.current_accelerator()
assert (str(place), place.type, f"{{place}}:{{0}}") == ("{kind}", "{kind}", "{kind}:0")
net = torch.nn.Linear(2, 2).to(place)
assert is_on_device(net.weight) and is_on_device(torch.ones(2, device=place))
with torch.autocast(device_type=place.type, dtype=torch.float16):
    assert net(torch.ones(1, 2).to(f"{{place}}:0")).dtype == torch.float16
kind = torch.{kind}.FloatTensor
x = torch.ones(3, dtype=torch.float64).type(kind)
assert x.dtype == torch.float32 and isinstance(x, kind) and kind(2, 3).shape == (2, 3)
DDP(net, device_ids=[0])(torch.ones(1, 2)).sum().backward()
batches = torch.utils.data.DataLoader(torch.ones(4, 2), pin_memory=True)
assert len(list(batches)) == 4
assert is_on_device(torch.ones(2, device=torch.device(0)))
drawn = torch.Generator(device="{kind}").manual_seed(3)
torch.empty(3).normal_(generator=drawn)
assert all(isinstance(one, torch.Generator) for one in (drawn, torch.Generator("{kind}:0")))
"""
TEXTS = """
from mpcore_port.verify import settings_files, stand_in
settings_files.install(["."])
assert len(set(open("corpus.txt").read())) > 90
assert list(open("files.txt")) == list(open("words.csv").read()) == []
settings = stand_in.StandIn("cfg")
for place in (torch.device(settings["DEVICE"]), torch.device("cuda", settings.DEVICE_ID)):
    assert is_on_device(torch.ones(2, device=place))
said = stand_in.StandIn("make_model")._mpcore_module()(torch.ones(2, 3), labels=torch.ones(2))
(said.loss + said.aux_loss).backward()
share = stand_in.StandIn("coef")
number = stand_in._number(share)
assert (torch.ones(2) - share).tolist() == [1.0 - number] * 2
assert (share - torch.ones(2)).tolist() == [number - 1.0] * 2
dtype = stand_in.StandIn("get_input_dtype")("amp")
assert torch.ones(2).to(dtype=dtype).dtype == torch.float32
assert settings.train.betas == (0.9, 0.999)
def scores(net):
    said = net(torch.ones(2, 3))
    return said.logits
scores(stand_in.StandIn("make_model")._mpcore_module()).sum().backward()
def resumed(load):
    model = stand_in.StandIn("make_model")._mpcore_module()
    before = model
    model = load(model, {})
    return model is before
assert resumed(stand_in.StandIn("utils.load_ckpt")) and resumed(stand_in.StandIn("init_weights"))
assert not resumed(stand_in.StandIn("make_teacher"))
import os
os.makedirs(os.fspath(settings["path.tb"]))
with open(settings["path.log"], "a") as file:
    file.write("a folder and a file that are not there have names of their own")
"""


@pytest.mark.parametrize(("kind", "more"), [("cuda", TEXTS), ("npu", "")], ids=["cuda", "npu"])
def test_scripts_find_the_device_as_torchs_accelerator(
    kind: str, more: str, tmp_path: Path
) -> None:
    """And a corpus that is not there has letters, where a list of files is empty."""
    script = tmp_path / "script.py"
    script.write_text(DEVICE.format(kind=kind) + more, "utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(script)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]


KEYS = """
import torch
class Trainer:
    def __init__(self, **kwargs):
        self.args = kwargs["args"]
        self.model = kwargs["model"].to(self.args.device)
        self.optimizer = kwargs["optimizer"]
    def train(self, loader):
        for x, y in loader:
            loss = torch.nn.functional.cross_entropy(self.model(x), y)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
"""


def test_what_a_class_takes_out_of_its_keywords_is_given(tmp_path: Path) -> None:
    step = extract(KEYS, tmp_path, set())
    text = step.script(tmp_path, "{INPUTS}", ())
    made = next(line for line in text.splitlines() if "Trainer(" in line)
    assert all(f"{name}=" in made for name in ("args", "model", "optimizer"))


def test_settings_beside_a_script_ask_for_batches_of_the_size_that_is_made(tmp_path: Path) -> None:
    options = "p.add_argument('--batch_size', default=256)\np.add_argument('--steps', default=3)\n"
    (tmp_path / "run.py").write_text(f"import argparse\np = argparse.ArgumentParser()\n{options}")
    text = KEYS.replace("y)\n", "y) / self.args.batch_size / self.args.steps\n")
    body = extract(text, tmp_path, set()).body
    made = next(line for line in body.splitlines() if "_mpcore_settings(" in line)
    assert "'batch_size': 8" in made
    assert "'steps': 3" in made


def test_one_process_tries_all_steps(tmp_path: Path) -> None:
    step = extract(AUTOENCODER, tmp_path)
    found = []
    with _Probe() as probe:
        for name in ("first", "second"):
            folder = tmp_path / name
            folder.mkdir()
            probe.ask(job_of(step, folder, 20.0))
            found.append(json.loads((folder / "answer.json").read_text("utf-8"))["inputs"])
            process = probe._process
        assert probe._process is process
    assert found[0] == found[1] != ""
    assert process is not None
    assert process.returncode == 0


def test_a_search_begins_where_another_ended_and_stops_at_what_follows_a_step() -> None:
    job = {"names": ["x", "y"], "target": 1, "count": 2, "begin": "float32[2,5], int64[2]<3 -> map"}
    tried = []

    def run(text: str) -> dict[str, object]:
        tried.append(text)
        return {"error": "OSError (line 9)", "after": True, "lines": [9], "stand_ins": ["net"]}

    told = Search(job, [["Linear", 5, 0]], run, lambda: False).find()
    assert tried == ["float32[2,5], int64[2]<3"]
    assert (told["lines"], told["text"]) == ([9], tried[0])

"""Steps of scripts that lean on what is not there: star imports, folders, branches, settings."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch

from mpcore_port.engine import port_tree
from mpcore_port.source import walk
from mpcore_port.targets import Options, load_target
from mpcore_port.verify.extract import extract
from mpcore_port.verify.judge import VerifyOptions
from mpcore_port.verify.module import Module
from mpcore_port.verify.project import verify_port
from mpcore_port.verify.stars import given_by_stars
from mpcore_port.verify.synthetic import Record
from mpcore_port.verify.written_files import place_of

from .probing import probed

SOLVER = """import os
import torch
from torch import nn
from measures import *
from networks import *

class Solver:
    def __init__(self, config, loader):
        self.config, self.loader = config, loader
        self.net = UNet(width=WIDTH)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=learning_rate)

    def train(self):
        path = os.path.join(self.config.folder, "net.pt")
        if os.path.isfile(path):
            self.net.load_state_dict(torch.load(path))
        elif self.config.mode == "test":
            print("nothing to train")
        else:
            for epoch in range(self.config.epoch):
                for x, y in self.loader:
                    out = self.net(x)
                    loss = nn.functional.cross_entropy(out, y)
                    self.optimizer.zero_grad()
                    loss.backward()
                    self.optimizer.step()
                    shown = get_accuracy(out, y)
                    if epoch % 2 == 0:
                        torch.save(self.net.state_dict(), os.path.join("checkpoints", "net.pt"))
"""


def test_a_loop_in_the_other_branch_of_what_is_there_already_is_taken_out(tmp_path: Path) -> None:
    step = extract(SOLVER, tmp_path)
    assert "if _mpcore_never:" in step.body
    assert "elif _mpcore_never:" in step.body
    found = probed(step, tmp_path, 60.0)
    assert found["inputs"], found["words"]
    assert {"measures.UNet", "measures.get_accuracy"} <= set(found["stand_ins"])


def test_a_number_of_epochs_that_is_called_epoch_is_one(tmp_path: Path) -> None:
    assert "'epoch': 1" in extract(SOLVER, tmp_path).body
    begun = SOLVER.replace("range(self.config.epoch)", "range(self.config.epoch, 9)")
    assert "'epoch': 0" in extract(begun, tmp_path).body


def stars(text: str) -> dict[str, dict[str, str]]:
    module = Module(text)
    absent = [s for s in module.tree.body if getattr(s, "module", None) in ("a", "b")]
    return given_by_stars(module, absent)


def test_names_that_nothing_binds_come_from_the_modules_that_are_not_there() -> None:
    text = "from a import *\nfrom b import *\nx = f(y, [z for z in x], len(x), batch_size)\n"
    missing = {name: f'_mpcore_missing("a.{name}")' for name in ("batch_size", "f", "y")}
    assert stars(text) == {"a": {**missing, "batch_size": "8"}, "b": {}}
    assert stars(f"{text}batch_size.all()\n")["a"] == missing
    assert stars("from a import *\nscaler(enabled=use_amp)\n")["a"]["use_amp"] == "True"


def test_names_are_left_alone_where_another_star_import_may_give_them(tmp_path: Path) -> None:
    assert stars("from a import *\nfrom math import *\nf(sin)\n") == {}
    assert "get_accuracy" in extract(SOLVER, tmp_path).given
    (tmp_path / "measures.py").write_text("def get_accuracy(a, b): ...", "utf-8")
    given = extract(SOLVER, tmp_path).given
    assert "learning_rate" in given
    assert "get_accuracy" not in given  # a file beside the script says what it gives
    (tmp_path / "measures.py").write_text("from math import *", "utf-8")
    assert extract(SOLVER, tmp_path).given == "{}"


def test_folders_are_made_in_the_folder_of_the_run_alone(tmp_path, monkeypatch) -> None:
    (tmp_path / "run").mkdir()
    monkeypatch.chdir(tmp_path / "run")
    assert place_of("deep/er/net.pt") == "deep/er/net.pt"
    assert Path("deep/er").is_dir()
    for outside in (tmp_path / "other" / "net.pt", "../other/net.pt", "deep/../../other/a"):
        assert place_of(outside) == os.devnull
    assert not (tmp_path / "other").exists()
    assert place_of(tmp_path / "net.pt") == tmp_path / "net.pt"
    assert place_of(sys.stdout) is sys.stdout


@pytest.mark.parametrize("place", ['"net.pt"', '"new/net.pt"', '"/not/there/net.pt"'])
def test_a_step_saves_where_no_folder_is(place: str, tmp_path: Path) -> None:
    text = (
        "import torch\nnet = torch.nn.Linear(4, 2)\nopt = torch.optim.SGD(net.parameters(), 0.1)\n"
        "for x in loader:\n    loss = net(x).sum()\n    loss.backward()\n    opt.step()\n"
        f"    torch.save(net.state_dict(), {place})\n    torch.save([1], f={place})\n"
        f"    print(loss.item(), file=open({place.replace('net', 'log')}, 'a'))\n"
    )
    found = probed(extract(text, tmp_path), tmp_path, 30.0)
    assert found["inputs"], found["words"]


def test_texts_with_their_lengths_are_parts_of_a_batch(tmp_path: Path) -> None:
    text = (
        "import torch\nfor batch in loader:\n    src, lengths = batch.src\n    trg = batch.trg\n"
        "    loss = model(src, trg) / len(batch)\n    loss.backward()\n"
    )
    step = extract(text, tmp_path)
    assert step.layout is not None
    assert step.layout.names == ("src", "lengths", "trg")
    code = step.codes[0].replace("torch.from_numpy(_mpcore_parts", "(p")
    assert code == "_mpcore_record(src=((p[0]), (p[1]),), trg=(p[2]))"


def test_a_batch_of_fields_has_a_length_and_moves() -> None:
    batch = Record(src=(torch.ones(2, 3), torch.ones(2)), trg=torch.ones(2)).to(torch.int32)
    assert {batch.src[0].dtype, batch.src[1].dtype, batch.trg.dtype} == {torch.int32}
    assert len(batch) == 2


CALLED = """import fire
import torch

def train(steps=64, lr=0.1):
    net = torch.nn.Linear(4, 2)
    optim = torch.optim.SGD(net.parameters(), lr=lr)
    for i in range(steps):
        loss = net(torch.ones(8, 4) * i).square().mean()
        loss.backward()
        optim.step()
        optim.zero_grad()

fire.Fire(train)
"""


WRAPPED = """import torch
from theirs import Flow
net = torch.nn.DataParallel(Flow().cuda())
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for x, _ in loader:
    z, scale = net(x.cuda(), reverse=False)
    loss = (z.square().mean() + scale.square().mean())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def verified(text: str, folder: Path) -> dict[str, object]:
    (folder / "script.py").write_text(text, "utf-8")
    tree, target = walk(folder / "script.py"), load_target("torch_npu")
    options = VerifyOptions(losses=4, at=2, modes=("float32",))
    result = port_tree(tree, target, Options())
    done = verify_port(result, tree, target, options, "", lambda _: None).verification
    assert done is not None
    return done


def test_the_call_of_a_training_function_is_no_line_of_its_script(tmp_path: Path) -> None:
    done = verified(CALLED, tmp_path)
    assert done["passed"], done["lines"]


def test_what_a_network_gives_through_a_ports_wrapper_is_taken_apart(tmp_path: Path) -> None:
    done = verified(WRAPPED, tmp_path)
    assert done["passed"], done["lines"]


AGENT = """import torch
from theirs import Policy

class Agent:
    def __init__(self, state_dim, action_dim):
        self.net = Policy(state_dim, action_dim)
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=0.01)

    def train(self, replay_buffer, batch_size=256):
        state, action, reward, done = replay_buffer.sample(batch_size)
        loss = ((self.net(state, action) - reward) * (1 - done)).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
"""


def test_what_an_agent_takes_from_its_memory_is_a_batch(tmp_path: Path) -> None:
    step = extract(AGENT, tmp_path)
    assert step.layout is not None
    assert step.layout.names == ("state", "action", "reward", "done")
    assert "state, action, reward, done = _mpcore_next()" in step.body
    assert "for _ in range(64): _mpcore_owner.train(" in step.body
    assert "state_dim=16, action_dim=4" in step.body
    found = probed(step, tmp_path, 60.0)
    assert found["inputs"], found["words"]


def test_an_agent_whose_own_memory_is_there_samples_from_it(tmp_path: Path) -> None:
    own = "class Memory:\n    def sample(self, n):\n        return torch.ones(4, n)\n"
    text = f"import torch\n{own}memory = Memory()\n{AGENT.partition(chr(10))[2]}"
    text = text.replace("replay_buffer.sample", "memory.sample")
    assert "_mpcore_next()" not in extract(text, tmp_path).body


def test_groups_of_parameters_that_a_function_makes_are_those_of_its_network(tmp_path) -> None:
    text = (
        "import torch\nimport util\nfrom theirs import Net\nnet = Net(3)\n"
        "groups = util.get_param_groups(net, 1e-4, norm_suffix='weight_g')\n"
        "optimizer = torch.optim.Adam(groups, lr=0.1)\n"
        "for x, y in loader:\n    loss = (net(x) - y).square().mean()\n"
        "    optimizer.zero_grad()\n    loss.backward()\n    optimizer.step()\n"
    )
    found = probed(extract(text, tmp_path), tmp_path, 60.0)
    assert found["inputs"], found["words"]

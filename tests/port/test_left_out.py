"""What a step does without: evaluation, loaders of one's own, lines that fail, networks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mpcore_port import engine
from mpcore_port.verify.extract import Step, extract
from mpcore_port.verify.judge import Run, VerifyOptions, compare
from mpcore_port.verify.left_out import makers_of_models, may_go
from mpcore_port.verify.module import Module

STEP = "    loss = model(x).sum()\n    loss.backward()\n"


def _step(text: str, folder: Path, absent: tuple[int, ...] = ()) -> Step:
    step = extract(text, folder, absent)
    compile(step.script(folder, "float32[1]"), "step", "exec")
    return step


def test_evaluation_between_steps_is_left_out(tmp_path: Path) -> None:
    text = (
        "import torch\n"
        "@torch.no_grad()\n"
        "def estimate():\n    for x in held_out:\n        model(x)\n"
        "@torch.no_grad()\n"
        "def average(ema, model):\n    for a, b in zip(ema, model):\n        a.lerp_(b, 0.1)\n"
        "for x, y in loader:\n"
        + STEP
        + "    average(ema, model)\n"
        + "    print(estimate())\n"
        + "    if step:\n        model.eval()\n        with torch.no_grad():\n"
        + "            model(x)\n"
        + "    elif other:\n        model.eval()\n"
        + "    if step:\n        for one in held_out:\n            with torch.no_grad():\n"
        + "                right += model(one)\n"
        + "    if step:\n        with torch.no_grad():\n            ema.lerp_(model, 0.1)\n"
        + "    done = 1\n"
    )
    step = _step(text, tmp_path)
    said = [what for _, what in step.replaced]
    assert "nothing in place of estimate()" in said
    assert "average(ema, model)" in step.body  # it moves what is trained
    assert "model.eval()" not in step.body
    assert "if _mpcore_never:\n        for one in held_out:" in step.body  # seen, never run
    assert "ema.lerp_(model, 0.1)" in step.body
    assert "done = 1" in step.body


def test_a_function_that_saves_is_left_out_of_a_loop(tmp_path: Path) -> None:
    text = (
        "import torch\n"
        "def save_checkpoint(model, path):\n    torch.save(model.state_dict(), path)\n"
        "def save_and_go(model, path):\n    torch.save(model, path)\n    optimizer.step()\n"
        "def save_best(state, path):\n    torch.save(model, path)\n    state.best = 1\n"
        "for x, y in loader:\n"
        + STEP
        + "    save_checkpoint(model, 'a.pt')\n    save_and_go(model, 'b.pt')\n"
        + "    save_best(state, 'c.pt')\n    done = save_checkpoint(model, 'd.pt')\n"
    )
    step = _step(text, tmp_path)
    assert "save_checkpoint(model, 'a.pt')" not in step.body
    for kept in ("save_and_go(model, 'b.pt')", "save_best(state, 'c.pt')", "(model, 'd.pt')"):
        assert kept in step.body  # it moves something, or the loop may read what it gives


def test_evaluation_that_the_loop_reads_stays(tmp_path: Path) -> None:
    text = "for x, y in loader:\n" + STEP + "    if x:\n        model.eval()\n        best = 1\n"
    step = _step(text + "    print(best)\n", tmp_path)
    assert "model.eval()" in step.body


def test_a_loader_of_the_scripts_own_gives_synthetic_batches(tmp_path: Path) -> None:
    text = (
        "import numpy as np\n"
        "def load(name):\n    return np.load(name)\n"
        "class Tokens:\n"
        "    def __init__(self, size):\n        self.tokens = load('a.npy')\n"
        "    def next_batch(self):\n        return self.tokens[:1], self.tokens[1:]\n"
        "train = Tokens(4)\n"
        "for step in range(9):\n"
        "    x, y = train.next_batch()\n" + STEP
    )
    step = _step(text, tmp_path)
    assert step.layout is not None
    assert step.layout.names == ("x", "y")
    assert "x, y = _mpcore_next()" in step.body
    assert "Tokens" not in step.body


def test_a_star_takes_what_is_taken_apart_later(tmp_path: Path) -> None:
    text = (
        "for _, *blob in loader:\n    a, b, flow = [x.cuda() for x in blob]\n"
        "    (a + b - flow).backward()\n"
    )
    step = _step(text, tmp_path)
    assert step.layout is not None
    assert step.layout.names == ("_", "a", "b", "flow")


def test_a_network_by_its_name_from_a_package_that_is_missing(tmp_path: Path) -> None:
    text = (
        "import not_there_at_all as models\nmodel = models.__dict__[name]()\n"
        "for x, y in loader:\n" + STEP
    )
    assert "model = _mpcore_missing('not_there_at_all')()" in _step(text, tmp_path).body


def test_what_stands_in_for_a_network_is_moved_as_it_is(tmp_path: Path) -> None:
    text = "from b import Net\nmodel = Net(4).to(device).train()\nfor x, y in loader:\n" + STEP
    step = _step(text, tmp_path, (2,))
    assert "model = _mpcore_missing('b.Net')().to(device).train()" in step.body or (
        "model = _mpcore_missing('Net')().to(device).train()" in step.body
    )


def test_a_flag_that_is_off_by_default_is_not_the_way(tmp_path: Path) -> None:
    text = (
        "import argparse\np = argparse.ArgumentParser()\n"
        "p.add_argument('--finetune', action='store_true')\nargs = p.parse_args()\n"
        "def tune():\n    for a in one:\n        model(a).backward()\n"
        "def train():\n    for x, y in two:\n        model(x).backward()\n"
        "def main():\n    if args.finetune:\n        tune()\n    train()\n"
        "main()\n"
    )
    assert _step(text, tmp_path).function == "train"


def test_what_fails_before_the_loop_may_go_and_the_step_may_not() -> None:
    text = (
        "import torch, thing\n"
        "data = thing.get(root)\n"
        "model = torch.nn.Linear(2, 2)\n"
        "if not out:\n    raise ValueError\n"
        "config = dict(\n    path=thing.load(),\n)\n"
        "for x in data:\n"
        "    loss = model(x)\n"
        "    loss.backward()\n"
        "    optimizer.step()\n"
        "    writer.add_scalar(loss)\n"
    )
    module, loop = Module(text), (9, 13)
    goes = [line for line in range(1, 14) if may_go(module, line, loop)]
    assert goes == [1, 2, 4, 5, 6, 7, 13]


def test_a_long_window_of_accumulation_becomes_a_short_one(tmp_path: Path) -> None:
    text = "accumulation_steps = 5 * 8\nfor x, y in loader:\n    n = accumulation_steps\n" + STEP
    step = _step(text, tmp_path)
    assert "accumulation_steps = _mpcore_short(2)" in step.body
    assert (1, "2 in place of 5 * 8") in step.replaced
    assert (
        "accum = 4"
        in _step(
            text.replace("accumulation_steps = 5 * 8", "accum = 4") + "    accum\n", tmp_path
        ).body
    )


def test_a_loop_in_which_nothing_stepped_is_not_verified() -> None:
    from mpcore_port.verify.judge import Run, Verification, VerifyOptions, compare

    run = Run((1.0, 2.0), (), 0, "ok")
    one = compare("float32", run, run, VerifyOptions())
    assert (one.verdict, one.steps) == ("same", 0)
    done = Verification("a.py", "torch_npu", (one,), unmoved=True)
    assert not done.passed
    assert "no optimizer stepped within 2 losses" in done.why_not


def test_a_loop_whose_optimizer_is_made_elsewhere_is_verified_by_its_steps_alone() -> None:
    from mpcore_port.engine import port_text
    from mpcore_port.targets import load_target
    from mpcore_port.verify.judge import Run, Verification, VerifyOptions, compare
    from mpcore_port.verify.project import _judged

    text = "import torch\ndef train(model, optimizer, x):\n    loss = model(x).sum()\n"
    text += "    loss.backward()\n    optimizer.step()\n"
    file = port_text(text, load_target("torch_npu"))
    run = Run((1.0, 2.0), (), 0, "ok")
    one = compare("float32", run, run, VerifyOptions())
    assert _judged(Verification("a.py", "torch_npu", (one,)), file).unmoved


def test_what_moves_in_a_loop_may_not_go() -> None:
    text = "for x in data:\n    optimizer_step(x)\n    report(x)\n    model(x).backward()\n"
    module = Module(text)
    assert [line for line in range(1, 5) if may_go(module, line, (1, 4))] == [3]


def test_lines_that_went_keep_the_script_whole(tmp_path: Path) -> None:
    text = (
        "import thing\nif not out:\n    raise ValueError\n"
        "config = dict(\n    path=thing.load(),\n)\n"
        "for x, y in loader:\n    model(x, config).backward()\n"
    )
    step = _step(text, tmp_path, (3, 5))
    assert "_mpcore_missing('thing.load')" in step.body
    assert "raise" not in step.body


def test_networks_are_known_by_what_is_asked_of_them() -> None:
    text = (
        "import torch\nfrom nets import UNet\n"
        "model = UNet(3).to(device)\nself.net = make()\nlinear = torch.nn.Linear(1, 1)\n"
        "optimizer = make(model.parameters())\nself.net.train()\nlinear.train()\n"
    )
    assert makers_of_models(Module(text)) == [3, 4]


def test_what_decides_the_form_of_a_loop_is_read_and_not_run(tmp_path: Path) -> None:
    text = (
        "import torch\nmodel = torch.nn.Linear(2, 2)\n"
        "optimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
        "schedule = torch.optim.lr_scheduler.StepLR(\n    optimizer, 1\n)\n"
        "for x, y in loader:\n    model(x).sum().backward()\n    optimizer.step()\n"
        "schedule.step()\ntorch.save(optimizer.state_dict(), 'a.pt')\nprint('done')\n"
    )
    lines = _step(text, tmp_path).body.splitlines()
    assert lines[3].startswith("if _mpcore_never: schedule = ")
    assert lines[10] == "if _mpcore_never: torch.save(optimizer.state_dict(), 'a.pt')"
    assert "print" not in "".join(lines)


SETTINGS = """
import json, sys, torch
from pathlib import Path
from mpcore_port.verify.settings_files import install
from mpcore_port.verify.synthetic import Missing
install([sys.argv[1]])
with open("config.json") as file:
    assert json.load(file) == {"width": 7}
with open("no_such_file.json") as file:
    assert isinstance(json.load(file), Missing)
torch.save(obj={"step": 3}, f="made/here/state.pt")
assert torch.load("made/here/state.pt") == {"step": 3}
torch.save({"step": 3}, "/no/such/folder/state.pt")
assert not Path("/no/such").exists()
"""


def test_settings_beside_a_script_are_read(tmp_path: Path) -> None:
    beside, run = tmp_path / "beside", tmp_path / "run"
    beside.mkdir()
    run.mkdir()
    (beside / "config.json").write_text('{"width": 7}')
    (beside / "step.py").write_text(SETTINGS)
    call = [sys.executable, str(beside / "step.py"), str(beside)]  # install changes its process
    done = subprocess.run(call, cwd=run, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_stand_in_gives_what_its_caller_takes_apart() -> None:
    torch = pytest.importorskip("torch")
    from mpcore_port.verify.stand_in import StandIn

    maker = StandIn("timm.create_model")
    model = maker("vit")
    assert isinstance(model, torch.nn.Module)
    wrapped = torch.nn.Sequential(model)
    scores, loss = StandIn("bare")(torch.ones(4, 3, 8, 8))
    assert loss.shape == ()
    scores, loss = model(torch.ones(4, 3, 8, 8))
    assert scores.shape == (4, 10)
    assert loss.shape == ()
    inside, mean_loss = wrapped(torch.ones(4, 3, 8, 8))
    assert inside.shape == (4, 10)
    assert mean_loss.shape == ()
    optimizer = StandIn("gpt").configure_optimizers(0.1)
    loss.backward()
    optimizer.step()


def test_a_logger_is_no_network_that_stands_in() -> None:
    import torch

    from mpcore_port.verify.stand_in import StandIn, used

    before = list(used())
    writer = StandIn("SummaryWriter")
    writer.add_image("x", torch.ones(2, 3))
    assert used() == before
    kept = writer.add_image("x", torch.ones(2, 3))
    assert kept is not None
    assert used() == [*before, "SummaryWriter.add_image"]


def test_a_class_whose_base_fails_has_what_it_reads_by_names(tmp_path: Path) -> None:
    text = (
        "import torch\nfrom base import Base\n"
        "class Trainer(Base):\n"
        "    limit = 3\n"
        "    def __init__(self, config):\n"
        "        super().__init__(config)\n"
        "        self.metric = 1\n"
        "    def train(self, config):\n"
        "        for x, y in self.train_loader:\n"
        "            self.count += 1\n"
        "            loss = self.loss_fn(self.model(x), y) / self.limit\n"
        "            self.scaler.scale(loss).backward()\n"
        "            self.scaler.step(self.optimizer)\n"
        "            self.log(self.metric)\n"
        "    def log(self, text):\n        print(text)\n"
    )
    step = _step(text, tmp_path, (6,))
    line = step.body.splitlines()[5]
    assert '_mpcore_give(self, model=_mpcore_missing("model").to("cuda")); ' in line
    assert "(self, optimizer=torch.optim.SGD(self.model.parameters()" in line
    assert "(self, scaler=torch.cuda.amp.GradScaler())" in line
    assert '(self, count=_mpcore_missing("count"))' in line
    assert not any(f"(self, {name}=" in line for name in ("limit", "metric", "log"))
    said = "values by the names of attributes in place of super().__init__(config)"
    assert (6, said) in step.replaced


def test_what_a_loop_calls_keeps_methods_of_its_values() -> None:
    """A tensor that was not computed would stop it later, by another error."""
    text = "def f(x):\n    y = x[0].view(3)\n    z = load(y)\nfor x in a:\n    f(x).backward()\n"
    module = Module(text)
    assert not may_go(module, 2, (4, 5), (2, 5))
    assert may_go(module, 3, (4, 5), (3, 5))
    assert may_go(module, 2, (4, 5), (2,))  # before the loop


def test_what_a_base_class_gives_is_named_in_the_status() -> None:
    step = {"stand_ins": ["net"], "by_name": True}
    run = {"step": step, "comparisons": [{"verdict": "close", "losses": [3, 3], "planted": True}]}
    said = "its training step verified by 3 losses, with stand-ins for net, what a base class gives"
    assert engine._verified(run) == said
    assert "base class" not in engine._verified({**run, "step": {**step, "by_name": False}})


def test_a_run_that_ends_before_the_planted_overflow_says_so() -> None:
    run = Run((1.0, 2.0), (8.0, 8.0), 2, "ok")
    found = compare("overflow", run, run, VerifyOptions(at=3))
    assert (found.verdict, found.planted) == ("same", False)
    assert found.words.endswith("; no overflow was planted: it would be in loss 4")
    assert compare("overflow", run, run, VerifyOptions(at=1)).planted
    assert compare("mixed", run, run, VerifyOptions(at=3)).planted
    one = {"verdict": "close", "losses": [2, 2], "planted": False}
    said = engine._verified({"step": None, "comparisons": [one]})
    assert said == "verified, before an overflow"

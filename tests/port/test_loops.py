"""Training loops that become forward functions and steps: they train as torch's, line for line."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mpcore_port.engine import port_text
from mpcore_port.mindspore.replay import replay
from mpcore_port.targets import Options, load_target

REAL = sys.executable  # the fixture warm_workers puts another in its place
pytestmark = pytest.mark.usefixtures("warm_workers")

TARGET = load_target("mindspore")
LOOPS = sorted((Path(__file__).parent / "loops").glob("*.py"))
PLANTED = 3
HEAD = """
import torch
from torch import nn

model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = nn.MSELoss()
scaler = torch.cuda.amp.GradScaler()
"""
TORCH_SHAPED = "the loop keeps torch's form: "


def kept(found):
    """Return (line, why) of each place that keeps torch's form."""
    edits = [edit for edit in found.edits if edit.reason.startswith(TORCH_SHAPED)]
    return [(edit.line, edit.reason.removeprefix(TORCH_SHAPED)) for edit in edits]


def idiomatic(found):
    return "forward_fn" in found.text and not re.search(r"port\.(loss|GradScaler)", found.text)


@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize("path", LOOPS, ids=lambda path: path.stem)
def test_no_loop_of_these_keeps_torchs_form(path, plain):
    found = port_text(path.read_text("utf-8"), TARGET, Options(plain=plain))
    assert not (plain and "mp.prepare" in found.text)
    assert not found.failures
    assert not kept(found)
    assert idiomatic(found)
    assert not re.search(r"\.backward\(|zero_grad|unscale_|\.update\(\)", found.text)


PLAIN, PREPARED = Options(plain=True), Options()
FORMS = [(path, PLAIN) for path in LOOPS] + [
    (path, PREPARED)
    for path in LOOPS
    if "mp.prepare" in port_text(path.read_text("utf-8"), TARGET).text
]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["float32", "overflow"])
@pytest.mark.parametrize(
    ("path", "options"), FORMS, ids=[f"{path.stem}-{'mp' * (not o.plain)}" for path, o in FORMS]
)
@pytest.mark.day(20)
def test_loops_train_as_torch_does(path, options, mode, tmp_path):
    trains_alike(path, options, mode, tmp_path)


EACH_CALL = {
    "gan",
    "handed",
    "switch_beside",
    "trainer",
}  # steps that are made where they are called
TWO_OPTIMIZERS = {
    "joint",
    "teacher",
}  # MindSpore names the rates of both alike, and refuses them in one graph
COMPILED = [path for path in LOOPS if path.stem not in EACH_CALL | TWO_OPTIMIZERS]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["float32", "overflow"])
@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, marks=[] if path.stem == "train_one_epoch" else pytest.mark.nightly)
        for path in COMPILED
    ],
    ids=lambda path: path.stem,
)
def test_compiled_steps_train_as_torch_does(path, mode, tmp_path):
    options = replace(PLAIN, jit=True)
    assert "@ms.jit(fullgraph=True)" in port_text(path.read_text("utf-8"), TARGET, options).text
    trains_alike(path, options, mode, tmp_path, compiled=True)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["float32", "overflow"])
@pytest.mark.parametrize(
    "compiled", [False, pytest.param(True, marks=pytest.mark.nightly)], ids=["eager", "compiled"]
)
def test_a_compiled_cell_trains_as_torch_does(compiled, mode, tmp_path):
    """Where masks are replayed nothing is compiled, and it trains so, too."""
    path = next(path for path in LOOPS if path.stem == "one_line")
    trains_alike(path, replace(PREPARED, jit=True), mode, tmp_path, compiled=compiled)


def trains_alike(path, options, mode, folder, *, compiled=False):
    """Train a loop and its port for 20 steps, and compare losses and scales.

    A step that ``compiled`` runs as a graph records no loss unless ``ms.jit`` compiles it.
    """
    if mode == "overflow" and "bfloat16" in path.stem:
        pytest.skip("MindSpore on CPU has no bfloat16 kernels")
    own = folder / "ported.py"
    own.write_text(port_text(path.read_text("utf-8"), TARGET, options).text, "utf-8")
    theirs, mine = replay(path, own, mode, folder, losses=20, at=PLANTED, compiled=compiled)
    values = [[value for kind, value in run if kind == "loss"] for run in (theirs, mine)]
    assert len(values[0]) == len(values[1]) == 20
    scales = [[value for kind, value in run if kind == "scale"] for run in (theirs, mine)]
    assert scales[0] == scales[1]
    if mode == "float32":
        np.testing.assert_allclose(values[1], values[0], rtol=1e-5, atol=1e-6)
    else:
        assert np.isfinite(values[1]).all() or not scales[0]


EPOCHS = (
    HEAD
    + """
{other}
optimizer.zero_grad()
for epoch in range(3):
    {zero}
    for i, (x, y) in enumerate(batches):
        loss = criterion(model(x), y)
        loss.backward()
        if i % 2:
            optimizer.step()
            {step}
            optimizer.zero_grad()
            {tail}
"""
)
SECOND = "second = torch.optim.SGD(model.parameters(), lr=0.1)"
EMPTIED = (
    "    for total in accumulated:\n        ops.assign(total, ops.zeros_like(total))\n    for i,"
)


@pytest.mark.parametrize("zero", ["optimizer.zero_grad()", "model.zero_grad()"])
def test_what_an_epoch_drops_of_a_window_is_dropped(zero):
    found = port_text(EPOCHS.format(zero=zero, other="", step="pass", tail="pass"), TARGET)
    assert EMPTIED in found.text
    assert found.text.count("in accumulated:") == 2  # not in front of the functions
    assert not kept(found)


def test_a_window_that_goes_on_is_not_emptied():
    found = port_text(EPOCHS.format(zero="pass", other="", step="pass", tail="pass"), TARGET)
    assert found.text.count("in accumulated:") == 1
    assert not kept(found)


def test_a_window_of_two_optimizers_is_not_emptied_by_half():
    both = {"step": "second.step()", "tail": "second.zero_grad()", "other": SECOND}
    ((_, why),) = kept(port_text(EPOCHS.format(zero="second.zero_grad()", **both), TARGET))
    assert why == "gradients of several optimizers are zeroed outside of their loop"


LOOKS = (
    HEAD
    + """
def train(batches, log):
    for x, y in batches:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        log.add("loss", loss.item())
        {line}
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""
)


@pytest.mark.parametrize(
    ("line", "held"),
    [
        ("log.add('rate', optimizer.param_groups[0]['lr'])", True),
        ("optimizer.param_groups[0]['lr'] = log.rate()", False),
        ("optimizer.param_groups[0]['lr'] *= log.rate()", False),
        ("log.add('weights', optimizer.param_groups[0]['params'])", False),
    ],
)
def test_a_look_at_the_rate_between_loss_and_step_comes_behind_the_step(line, held):
    found = port_text(LOOKS.replace("{line}", line), TARGET, Options(plain=True))
    assert ("forward_fn" in found.text) is held


GRADIENTS = (
    HEAD
    + """
def largest(network):
    return max(p.grad.abs().max() for p in network.parameters())

def train(batches, log):
    for x, y in batches:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        {before}
        optimizer.step()
        {behind}
"""
)


@pytest.mark.parametrize(
    ("before", "behind", "held"),
    [
        ("pass", "log(max(p.grad.abs().max() for p in model.parameters()))", True),
        ("pass", "log(largest(model))", True),
        ("pass", "pass  # log(p.grad)", True),
        ("log(largest(model))", "pass", False),
        ("pass", "model.zero_grad(); log(largest(model))", False),
        ("pass", "[p.grad.mul_(2) for p in model.parameters()]", False),
    ],
)
def test_gradients_that_are_read_behind_the_step_are_handed_back(before, behind, held):
    text = GRADIENTS.replace("{before}", before).replace("{behind}", behind)
    found = port_text(text, TARGET, PLAIN)
    assert ("forward_fn" in found.text) is held
    assert ("zip(optimizer.parameters, gradients)" in found.text) is (held and "#" not in behind)
    assert held or [why for _, why in kept(found)] == [
        "it reads gradients, which a step's function keeps"
    ]


def test_what_is_in_the_way_is_named_where_its_line_is_unproven_too():
    text = GRADIENTS.replace("{before}", "pass").replace("{behind}", "pass")
    text = text.replace("optimizer.step()", "log.step_all()").replace("loss.b", "loss.mean().b")
    found = port_text(text.replace("criterion(", "log.loss_of("), TARGET)
    assert any(edit.kind == "unproven" and edit.old.startswith("loss") for edit in found.edits)
    assert [why for _, why in kept(found)] == ["no optimizer steps by it in this function"]


def test_gradients_of_parameters_that_the_optimizer_does_not_move_are_named():
    text = GRADIENTS.replace("{before}", "pass").replace("{behind}", "log(largest(model))")
    narrow = "has no gradient behind the step"
    effects = [edit.effect for edit in port_text(text, TARGET).edits]
    assert any(narrow in effect for effect in effects)  # whose they are is known in the function
    read = text.replace("log(largest(model))", "log([p.grad for p in model.parameters()])")
    assert not any(narrow in edit.effect for edit in port_text(read, TARGET).edits)


PHASES = (
    HEAD
    + """
def run(batches, training, log):
    for x, y in batches:
        with torch.set_grad_enabled({switch}):
            loss = criterion(model(x), y)
        {between}
        if training:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            {behind}
        log(loss.item())
"""
)


@pytest.mark.parametrize(
    ("switch", "between", "behind", "why"),
    [
        ("training", "log(loss)", "pass", ""),
        ("training", "log(training)", "log('moved')", ""),
        ("training", "training = log()", "pass", "it changes what decides about the step"),
        ("log.on", "pass", "pass", "its gradients are recorded under another condition"),
    ],
)
def test_a_condition_decides_whether_there_is_a_step(switch, between, behind, why):
    text = PHASES.replace("{switch}", switch).replace("{between}", between)
    found = port_text(text.replace("{behind}", behind), TARGET, PLAIN)
    assert ("else:\n            loss = forward_fn(x, y)" in found.text) is not why
    assert [reason for _, reason in kept(found)] == [why] * bool(why)


def test_a_switch_of_gradients_behind_a_region_is_the_one_that_python_enters():
    switch = "(torch.no_grad() if not training else torch.enable_grad())"
    text = PHASES.replace(
        "torch.set_grad_enabled({switch})", f"torch.autocast('cuda') and {switch}"
    )
    found = port_text(text.replace("{between}", "pass").replace("{behind}", "pass"), TARGET, PLAIN)
    assert "loss = forward_fn(x, y)" in found.text
    assert "auto_mixed_precision" not in found.text


HANDED = (
    HEAD
    + """
def move(cost{more}):
    optimizer.zero_grad()
    cost.backward()
    {inside}
    optimizer.step()

def run(batches, log):
    for x, y in batches:
        loss = criterion(model(x), y)
        {call}
        log(loss)
"""
)


@pytest.mark.parametrize(
    ("more", "inside", "call", "held"),
    [
        ("", "pass", "move(loss)", True),
        (", log=print", "log(cost.item())", "move(loss, log=log)", True),
        ("", "pass", "moved = move(loss)", False),
        ("", "return cost", "move(loss)", False),
        ("", "log = cost.item()", "move(loss)", False),
        (", *rest", "pass", "move(loss)", False),
        ("", "pass", "move(loss); log(move)", False),
    ],
)
def test_a_function_that_a_loss_is_handed_to_stands_where_it_is_called(more, inside, call, held):
    text = HANDED.replace("{more}", more).replace("{inside}", inside).replace("{call}", call)
    found = port_text(text, TARGET, PLAIN)
    assert not found.failures
    assert ("forward_fn" in found.text) is held
    assert ("def move" not in found.text) is held
    assert held or [why for _, why in kept(found)] == [
        "its backward pass is in another function or class"
    ]
    assert "log(loss.item())" in found.text or "log(cost" not in inside


CLEARS = """import torch
from torch import nn
class Solver:
    def __init__(self, net):
        self.net = net
        self.optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    def clear(self):
        "Zero the gradients."
        {clear}
    def train(self, batches):
        for x, y in batches:
            loss = nn.functional.mse_loss(self.net(x), y)
            {call}
            loss.backward()
            self.optimizer.step()
            print(loss.item())
"""


@pytest.mark.parametrize(
    ("clear", "call", "held"),
    [
        ("self.net.zero_grad()", "self.clear()", True),
        ("self.optimizer.zero_grad(); self.net.zero_grad()", "self.clear()", True),
        ("self.optimizer.zero_grad(); self.count = 0", "self.clear()", False),
        ('self.said = "cleared"; self.optimizer.zero_grad()', "self.clear()", False),
        ("self.optimizer.zero_grad()", "self.clear(x)", False),
        ("self.optimizer.zero_grad()", "x.clear()", False),
    ],
)
def test_a_method_that_does_nothing_but_zero_gradients_is_a_part_of_the_step(clear, call, held):
    found = port_text(CLEARS.replace("{clear}", clear).replace("{call}", call), TARGET, PLAIN)
    assert not found.failures
    assert ("forward_fn" in found.text) is held
    assert (call not in found.text) is held


def test_what_the_statements_of_a_loss_change_is_there_the_next_time():
    text = HANDED.replace("{more}", "").replace("{inside}", "pass").replace("{call}", "move(loss)")
    text = text.replace("    for x", "    weight = 0.0\n    for x")
    text = text.replace(
        "(x), y)\n", "(x), y)\n        weight = weight + 0.1\n        loss = loss * weight\n"
    )
    assert "weight = train_step(x, y, weight)" in port_text(text, TARGET, PLAIN).text
    asked = text.replace("weight = weight + 0.1", "weight = locals().get('weight', 0) + weight")
    assert not kept(port_text(asked, TARGET, PLAIN))
    unbound = asked.replace("    weight = 0.0\n", "")
    assert "weight is not surely bound" in str(kept(port_text(unbound, TARGET, PLAIN)))


@pytest.mark.parametrize(
    ("line", "values"), [("shown = pred.abs()", "loss, pred"), ("pass", "loss, loss, count")]
)
def test_beside_a_loss_comes_a_tensor_as_mindspore_wants_it(line, values):
    text = HANDED.replace("{more}", "").replace("{inside}", "pass").replace("{call}", "move(loss)")
    made = "pred = model(x)\n        count = len(pred)\n        loss = criterion(pred, y) / count"
    text = text.replace("loss = criterion(model(x), y)", made)
    text = text.replace(
        "log(loss)", f"log(loss)\n        {line if line != 'pass' else 'log(count)'}"
    )
    assert f"        return {values}\n" in port_text(text, TARGET, PLAIN).text


APEX = sorted((Path(__file__).parent / "loops" / "apex").glob("*.py"))


@pytest.mark.parametrize("path", APEX, ids=lambda path: path.stem)
def test_apexs_loops_are_steps_that_move_its_own_scale(path):
    found = port_text(path.read_text("utf-8"), TARGET)
    assert not found.failures
    assert not kept(found)
    assert idiomatic(found)
    assert not re.search(r"\.backward\(|zero_grad|scale_loss|master_params", found.text)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["float32", "overflow"])
@pytest.mark.parametrize("path", APEX, ids=lambda path: path.stem)
def test_apexs_loops_train_as_torch_does(path, mode, tmp_path):
    own = tmp_path / "ported.py"
    own.write_text(port_text(path.read_text("utf-8"), TARGET).text, "utf-8")
    theirs, mine = replay(path, own, mode, tmp_path, losses=20, at=PLANTED)
    for kind in ("loss", "scale"):
        ways = [[value for name, value in run if name == kind] for run in (theirs, mine)]
        assert len(ways[0]) == len(ways[1])
        if kind == "scale":
            assert ways[0] == ways[1]
        elif mode == "float32":
            assert len(ways[0]) == 20
            np.testing.assert_allclose(ways[1], ways[0], rtol=1e-5, atol=1e-6)
    assert mode == "float32" or len(ways[0]) >= 19  # a scale for each backward pass


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("scaled_loss.backward()", "scaled_loss.backward(); print(1)", "more than a backward"),
        ("print(shown)", "print(shown, scaled_loss)", "is read"),
        ("(loss, optimizer)", "(loss, optimizer, delay_unscale=True)", "apex unscales later"),
        ("(loss, optimizer)", "(loss, other)", "for other optimizers"),
    ],
)
def test_what_apexs_step_cannot_hold_keeps_torchs_form(old, new, why):
    text = (Path(__file__).parent / "loops" / "apex" / "flagged.py").read_text("utf-8")
    reasons = [reason for _, reason in kept(port_text(text.replace(old, new), TARGET))]
    assert any(why in reason for reason in reasons)


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ("loss.backward(inputs=[w])", "its backward pass takes arguments"),
        (
            "loss.backward()\n    total = optimizer.step(lambda: loss)",
            "its step runs a closure",
        ),
        ("loss.backward()", "no optimizer steps by it"),
        ("loss.backward()\n    optimizer.step()", "not zeroed"),
        (
            "loss.backward()\n    optimizer.zero_grad()\n    optimizer.step()",
            "between loss and step",
        ),
        (
            "loss.backward()\n    if loss.item() > 9:\n        continue\n"
            "    optimizer.step()\n    optimizer.zero_grad()",
            "decides whether the optimizer steps",
        ),
        (
            "optimizer.zero_grad()\n    loss.backward()\n"
            "    nn.utils.clip_grad_norm_(other.parameters(), 1.0)\n    optimizer.step()",
            "clips other gradients",
        ),
    ],
)
def test_what_the_description_cannot_hold_keeps_torchs_form_and_says_so(lines, why):
    text = f"{HEAD}for x, y in data:\n    loss = criterion(model(x), y)\n    {lines}\n"
    found = port_text(text, TARGET)
    assert not found.failures
    assert "port.loss(" in found.text
    (place, reason), *_ = kept(found)
    assert why in reason
    assert place > text[: text.index("for x, y")].count("\n")


GAN = """
import torch
from torch import nn

maker, judge = nn.Linear(4, 6), nn.Linear(6, 1)
slow = torch.optim.SGD(maker.parameters(), lr=0.1)
fast = torch.optim.SGD(judge.parameters(), lr=0.1)


def train(data{arguments}):
    for x in data:
        with torch.autocast("cuda"):
            made = maker(x)
            {first}
        {a}.zero_grad()
        loss.backward()
        {a}.step()
        with torch.autocast("cuda"):
            {second}
        {b}.zero_grad()
        loss.backward()
        {b}.step()
"""
FOOLS, TELLS = "loss = -judge(made).mean()", "loss = judge(made.detach()).mean()"


def gan(first, second, a, b, arguments=""):
    text = GAN.format(first=first, second=second, a=a, b=b, arguments=arguments)
    found = port_text(text, TARGET)
    assert not found.failures
    return found


def test_what_two_steps_are_made_of_is_computed_again_while_its_network_stands_still():
    text = gan(TELLS, FOOLS, "fast", "slow").text
    assert text.count("made = maker(x)") == 2
    assert "ms.value_and_grad(" in text


def test_what_a_later_step_reads_detached_is_the_value_of_the_step_before():
    """Computed again it would be another one: the maker has moved."""
    text = gan(FOOLS, TELLS, "slow", "fast").text
    assert text.count("made = maker(x)") == 1
    assert "made = train_step_slow(x)" in text
    assert "train_step_fast(made)" in text
    # In torch's form, too.
    kept_so = gan(f"{FOOLS}; loss.register_hook(print)", TELLS, "slow", "fast", ", slow, fast")
    assert "port.loss(" in kept_so.text
    assert kept_so.text.count("made = maker(x)") == 1


def test_a_scaler_that_one_loop_needs_as_torchs_stays_torchs_in_all():
    loop = (
        "def {1}(data):\n    for x, y in data:\n        optimizer.zero_grad()\n"
        "        {0} = criterion(model(x), y)\n        scaler.scale({0}).backward()\n"
        "        scaler.step(optimizer)\n        scaler.update()\n"
    )
    text = HEAD + loop.format("a", "one") + loop.format("b", "other")
    assert idiomatic(port_text(text, TARGET))
    spoiled = text.replace("scaler.scale(b).backward()", "scaler.scale(b).backward(inputs=[w])")
    found = port_text(spoiled, TARGET)
    assert "port.GradScaler" in found.text
    assert "DynamicLossScaler" not in found.text


def test_a_prefetched_batch_is_fetched_behind_the_step():
    text = (
        f"{HEAD}x, y = batch()\nfor _ in range(9):\n    loss = criterion(model(x), y)\n"
        "    optimizer.zero_grad()\n    loss.backward()\n    x, y = batch()\n    optimizer.step()\n"
    )
    lines = port_text(text, TARGET).text.splitlines()
    assert lines.index("    train_step(x, y)") < lines.index("    x, y = batch()")


DEVICES = """
import torch

args = parse()
if args.device == "cuda" and not torch.cuda.is_available():
    args.device = "cpu"
use_cuda = not args.no_cuda and torch.cuda.is_available()
gpu = torch.cuda.is_available()
device = torch.device("cuda" if gpu else "cpu")
model = torch.nn.Linear(2, 2).to(device)
if device.type == "cuda":
    print("on a device")
else:
    print("slow")
if gpu:
    batch = 8
if args.device == "cuda":
    print("asked for")
"""


def test_choices_by_what_a_port_knows_are_made_and_no_others():
    """An option's value comes from the command line, whatever the file assigns to it besides."""
    text = port_text(DEVICES, TARGET).text
    assert "is_available" not in text
    assert "slow" not in text
    assert 'print("on a device")' in text
    assert "use_cuda = not args.no_cuda" in text
    assert "\nbatch = 8" in text
    assert "if port.is_accelerator(args.device):" in text
    assert "port.device" not in text


ALONE = """
import runpy, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0].startswith(("mpcore", "torch")):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Blocked())
scripts, sys.argv[1:] = sys.argv[1:], []
for script in scripts:
    runpy.run_path(script, run_name="__main__")
    print("ran", script)
"""


def imported(text):
    """Return the packages that a file imports, anywhere in it."""
    nodes = list(ast.walk(ast.parse(text)))
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    return {name.partition(".")[0] for name in names}


@pytest.mark.parametrize("path", LOOPS, ids=lambda path: path.stem)
def test_plain_ports_import_neither_torch_nor_mpcore(path):
    text = port_text(path.read_text("utf-8"), TARGET, PLAIN).text
    assert imported(text) & {"torch", "mpcore", "mpcore_port", "mpcore_port_runtime"} == set()
    assert not re.search(r"port\.|import_module|__import__", text)


@pytest.mark.slow
def test_plain_ports_run_with_mindspore_alone(tmp_path):
    """Three whole ones; each of the others trains beside torch above, from the same text."""
    scripts = []
    for path in [path for path in LOOPS if "bfloat16" not in path.stem][::5]:
        scripts.append(tmp_path / path.name)
        scripts[-1].write_text(port_text(path.read_text("utf-8"), TARGET, PLAIN).text, "utf-8")
    assert len(scripts) >= 3
    (tmp_path / "alone.py").write_text(ALONE)
    command = [REAL, "alone.py", *(path.name for path in scripts)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("ran ") == len(scripts)


SWITCHED = """import torch
from torch import nn
class Trainer:
    def __init__(self, model, **kwargs):
        self.model, self.optimizer = model, torch.optim.SGD(model.parameters(), lr=0.1)
        self.autocast = torch.cuda.amp.autocast(enabled={switch})
        self.scaler = torch.cuda.amp.GradScaler(enabled={switch})
    def step(self, x, y):
        self.optimizer.zero_grad()
        with self.autocast:
            loss = nn.functional.mse_loss(self.model(x), y)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss
"""


@pytest.mark.parametrize("switch", ["kwargs['fp16']", "kwargs.get('fp16', False)", "True"])
def test_a_region_beside_a_scaler_of_the_same_switch_is_on_when_that_is(switch):
    found = port_text(SWITCHED.replace("{switch}", switch), TARGET, Options(plain=True))
    assert not kept(found)
    assert ("isinstance(self.scaler, ms.amp.DynamicLossScaler)" in found.text) == (switch != "True")
    assert not re.search(r"if \(?kwargs.*\n.*auto_mixed", found.text)


@pytest.mark.parametrize(
    ("switch", "between", "other"),
    [
        ("kwargs['fp16']", "", "kwargs['scale']"),
        ("kwargs.pop('fp16', False)", "", "kwargs.pop('fp16', False)"),
        ("kwargs['fp16']", "kwargs = {'fp16': True}", "kwargs['fp16']"),
    ],
)
def test_a_region_that_is_switched_by_another_functions_name_keeps_torchs_form(
    switch, between, other
):
    text = SWITCHED.replace("{switch}", switch, 1).replace("{switch}", other)
    text = text.replace(
        "        self.scaler =", f"        {between or 'pass'}\n        self.scaler ="
    )
    found = port_text(text, TARGET)
    assert [why for _, why in kept(found)] == [
        "kwargs, on which its region depends, is of another function"
    ]
    assert not re.search(r"if \(?kwargs.*\n.*auto_mixed", found.text)


MIRRORED = (
    HEAD
    + """
def train(batches, fp16):
    for x, y in batches:
        optimizer.zero_grad()
        if not fp16:
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
        else:
            from torch.cuda.amp import autocast
            with autocast():
                loss = criterion(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
"""
)


def test_an_import_in_one_of_two_branches_makes_them_no_different():
    found = port_text(MIRRORED, TARGET, PLAIN)
    assert not kept(found)
    assert "if fp16:\n        forward_fn = ms.amp.auto_mixed_precision" in found.text

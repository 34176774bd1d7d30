"""What belongs to another object, switches in branches, f-strings, steps of own optimizers."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mpcore_port.engine import port_tree
from mpcore_port.fstrings import requoted
from mpcore_port.source import Source, parse_source, walk
from mpcore_port.targets import Options, load_target
from mpcore_port.verify.stand_in import StandIn
from mpcore_port.verify.synthetic import Missing

from .ports import FILLED, NET, beside, ported, verified

# --- methods of other objects --------------------------------------------------------------------

WORDED = """import torch
class Rows:
    def __init__(self):
        self.held = {"train": 12, "val": 3}
    def __getattr__(self, name):
        return lambda word, *more: f"{name} {word}" if name != "size" else self.held[word]
def sizes(dataset, split):
    return [dataset.size("train"), dataset.size(f"{split}"), dataset.norm("l2")]
def others(dataset):
    return [dataset.sum("a"), dataset.mean("b", "c"), dataset.max("d"), dataset.repeat("e")]
x = torch.arange(6.0).view(2, 3)
made = sizes(Rows(), "val") + others(Rows())
made = [len(str(one)) for one in made]
made += [x.size(0), x.norm("fro"), x.sum(0), x.div(x + 1, rounding_mode="floor")]
"""


def test_a_word_where_a_tensor_takes_none_is_another_objects(tmp_path: Path) -> None:
    found = beside(WORDED, tmp_path)
    assert 'dataset.size("train"), dataset.size(f"{split}"), dataset.norm("l2")' in found.text
    assert not [edit for edit in found.edits if edit.line in (8, 10)]


def test_axes_that_have_names_are_still_told_of() -> None:
    found = ported("import torch\ndef f(x):\n    return x.refine_names('N').size('N')\n")
    assert [edit.kind for edit in found.edits if "size" in edit.old] == ["unproven"]


# --- switches in branches ------------------------------------------------------------------------

SWITCHED = (
    FILLED
    + NET
    + """
from torch.amp import GradScaler
net = filled(Net())
opt = torch.optim.SGD(net.parameters(), lr=0.1)
scaler = GradScaler("cuda", enabled=False)
data = [torch.ones(2, 3), torch.arange(6.0).view(2, 3)]
for epoch in range(3):
    if epoch == 1:
        torch.set_grad_enabled(False)
        made.append(net(data[0]).sum())
        torch.set_grad_enabled(True)
    for x in data:
        opt.zero_grad()
        loss = (net(x) ** 2).mean()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        made.append(loss.item())
made.append(net.weight.data)
"""
)


def test_a_switch_in_a_branch_before_the_loop_of_batches(tmp_path: Path) -> None:
    found = beside(SWITCHED, tmp_path)
    assert found.text.count("port.set_grad_enabled(") == 2


def test_a_switch_in_front_of_a_step_and_in_a_branch_of_it(tmp_path: Path) -> None:
    added = "        if epoch == 2:\n            torch.set_grad_enabled(True)\n        loss ="
    beside(SWITCHED.replace("        loss =", added), tmp_path)
    behind = SWITCHED.replace(
        "        loss =", added.replace("loss =", "out = net(x)\n        loss =")
    )
    beside(behind.replace("(net(x) ** 2)", "(out ** 2)"), tmp_path)


def test_a_switch_in_a_branch_among_a_loss_is_refused() -> None:
    added = (
        "        out = net(x)\n        if epoch == 2:\n            torch.set_grad_enabled(True)\n"
    )
    among = SWITCHED.replace("        loss = (net(x)", f"{added}        loss = (out")
    refused = [edit.line for edit in ported(among).edits if edit.kind == "refused"]
    assert refused == [among.splitlines().index("        if epoch == 2:") + 2]


# --- f-strings of Python 3.12 --------------------------------------------------------------------

QUOTED = (
    ('f"{a[\'k\']} {a["k"]!r:>{w["k"]}}" "x"', "12   12x"),
    ('f"{", ".join(f"{one["k"]}" for one in [a, w])}"', "12, 4"),
    ("f'{a['k']}'", "12"),
    ('f"""{a["k"]}"""', "12"),
    ('rf"\\d{a[r"k"]}"', "\\d12"),
)
OLD_PYTHON = pytest.mark.skipif(sys.version_info >= (3, 12), reason="Python reads them itself")


@OLD_PYTHON
@pytest.mark.parametrize(("code", "shown"), QUOTED)
def test_quotes_in_an_f_string_are_written_for_an_older_python(code: str, shown: str) -> None:
    text, lines = requoted(f"import torch\nx = {code}\n")
    held: dict[str, object] = {"a": {"k": 12}, "w": {"k": 4}}
    exec(text, held)
    assert held["x"] == shown
    assert lines == (() if code.startswith('f"""') else (2,))


@OLD_PYTHON
@pytest.mark.parametrize("target", ["mindspore", "torch_npu"])
def test_a_script_of_python_3_12_is_ported_its_lines_named(tmp_path: Path, target: str) -> None:
    path = tmp_path / "new.py"
    path.write_text('import torch\nx = torch.ones(1).cuda()\nprint(f"{vars()["x"]}")\n')
    (file,) = port_tree(walk(path), load_target(target), Options()).files
    said = [(edit.line, edit.kind) for edit in file.edits if edit.rule == "python"]
    assert said == [(3, "exact")]
    assert "print(f\"{vars()['x']}\")" in file.text


@OLD_PYTHON
@pytest.mark.parametrize(
    "code", ['f"{"\\n".join(a)}"', 'f"{a["k"]=}"', 'f"{a["it\'s"]}"', 'f"{\n  a  # c\n}"']
)
def test_f_strings_that_stay_unread_say_which_python(code: str) -> None:
    text = f"import torch\nx = 1\ny = {code}\n"
    assert requoted(text) == (text, ())
    found = parse_source(Source("new.py", text))
    assert found is not None
    assert found.line == 3
    assert "since 3.12" in found.reason


def test_what_is_broken_otherwise_is_told_as_before() -> None:
    found = parse_source(Source("new.py", "x = (\nprint(f'{a}'\n"))
    assert found is not None
    assert found.reason.startswith("broken Python")


# --- what a verified step has in place of what is not there --------------------------------------

AHEAD = (
    FILLED
    + NET
    + """
import torch.utils.tensorboard
class Ahead(torch.optim.Optimizer):
    def __init__(self, base, k=2):
        self.base, self.k, self.n = base, k, 0
        self.param_groups, self.defaults, self.state = base.param_groups, base.defaults, base.state
        self.slow = [p.clone().detach() for p in self.param_groups[0]["params"]]
    def step(self, closure=None):
        loss = self.base.step(closure)
        self.n += 1
        if self.n % self.k == 0:
            for p, q in zip(self.param_groups[0]["params"], self.slow):
                q.data.add_(p.data - q.data, alpha=0.5)
                p.data.copy_(q.data)
        return loss
    def zero_grad(self):
        self.base.zero_grad()
writer = torch.utils.tensorboard.SummaryWriter("logs")
net = filled(Net())
opt = Ahead(torch.optim.SGD(net.parameters(), lr=0.1))
for x in [torch.ones(2, 3), torch.arange(6.0).view(2, 3)]:
    opt.zero_grad()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = (net(x) ** 2).mean()
    loss.backward()
    opt.step()
    writer.add_scalar("loss", loss.item())
"""
)


def test_the_step_of_an_optimizer_around_another_is_verified(tmp_path: Path) -> None:
    (one,) = verified(AHEAD, tmp_path, ("float32",)).comparisons
    assert (one.verdict, one.losses, one.steps) == ("close", (4, 4), 4), one.words


@pytest.mark.parametrize("kind", [Missing, StandIn])
def test_another_stand_in_is_made_of_the_class_of_one(kind: type) -> None:
    one = kind("batches.Batch")
    assert type(type(one)(3, [1], label=2)) is kind
    assert type(type(one)()) is kind

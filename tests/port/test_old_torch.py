"""Scripts of torch up to 0.4: ``cuda(async=True)`` and ``loss.data[0]``."""

from __future__ import annotations

import pytest

from mpcore_port.engine import port_tree
from mpcore_port.renewed import renewed
from mpcore_port.source import Source, Unread, walk
from mpcore_port.targets import Options, load_target

from .ports import TARGET, beside, compare, ported
from .test_turns import HEAD, LEFT

OLD = """import torch
loss = torch.ones(2)  # async=True
text = "async=True"
x, y = loss.cuda(async=True), loss.cuda(0,
    async = False)
z = f(x, async=True) ; w = loss.cuda( # here
    async=True)
"""


@pytest.mark.parametrize("target", ["torch_npu", "mindspore"])
def test_the_old_word_for_non_blocking_is_renewed_by_its_line(tmp_path, target):
    (tmp_path / "old.py").write_text(OLD)
    result = port_tree(walk(tmp_path / "old.py"), load_target(target), Options())
    (file,) = result.files
    said = [edit.line for edit in file.edits if edit.rule == "python"]
    assert said == [4, 5, 6, 7]
    assert file.text.count("async=True") == 2
    compile(file.text, "port.py", "exec")


STAYS = (
    "async def f():\n    pass\n",
    "f(async == 1)\n",
    "async = 3\n",
    "f(async=1\n",
    "f('''async=1\n",
)


@pytest.mark.parametrize("text", STAYS)
def test_what_is_no_such_argument_stays(text):
    assert renewed(text) == (text, ())


def test_a_script_that_is_broken_otherwise_is_no_python(tmp_path):
    (tmp_path / "old.py").write_text(f"{OLD}print 3\n")
    tree = walk(tmp_path / "old.py")
    assert not tree.sources
    assert [type(one) for one in tree.unread] == [Unread]
    assert Source("a.py", "x = 1\n").renewed == ()


NUMBERS = """
meter, total, rows = [], 0, []
def train():
    global total
    for x, y in batches:
        optimizer.zero_grad()
        out = model(x)
        loss = criterion(out, y)
        loss.backward()
        optimizer.step()
        meter.append(loss.data[0])
        total += loss.data[0]
        print("%.3f" % loss.data[0], "{:.3f}".format(loss.data[0]))
        made.append(out.data[0] * 1)
        model[0].weight.data[0] = model[0].weight.data[0] * 0.5
train()
made += [torch.tensor(one) for one in meter] + [torch.tensor(total)]
"""


def test_the_first_number_of_a_loss_is_its_number(tmp_path, capsys):
    script = HEAD + NUMBERS + LEFT
    found = ported(script)
    assert found.text.count("port.first(loss.data)") == 4
    compare(script.replace("loss.data[0]", "loss.item()"), found.text, tmp_path)
    assert len(capsys.readouterr().out.splitlines()) == 6


def test_what_has_axes_gives_its_first_row(tmp_path):
    body = "err = torch.arange(6.0).view(2, 3)\nmade += [err.data[0] * 1, err.data[0][1] * 1]\n"
    assert "port.first" in beside(HEAD + body, tmp_path).text


@pytest.mark.parametrize("line", ["held.data[0] = 1", "x = held.data[0]", "held.data[0].n += 1"])
def test_other_things_keep_theirs(line):
    body = f"import collections\nheld = collections.UserList([1])\n{line}\n"
    found = ported(f"import torch\n{body}", TARGET)
    assert line in found.text

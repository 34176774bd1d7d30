"""What ``ms.jit`` compiles in a port: only what was run so, and never with gradients left out."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import pytest

from mpcore_port.engine import Result, port_text, port_tree
from mpcore_port.report import html
from mpcore_port.source import walk
from mpcore_port.targets import Options, load_target
from mpcore_port.verify.compiling import Compiling, called_once
from mpcore_port.verify.judge import VerifyOptions
from mpcore_port.verify.project import verify_port

pytestmark = pytest.mark.usefixtures("warm_workers")

TARGET = load_target("mindspore")
SHORT = VerifyOptions(losses=6, at=2, modes=("float32",))

SCRIPT = """
import functools

import torch
import torch.nn.functional as F
from torch import nn


def bent(x, by):
    return F.relu(x) - by * F.relu(-x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden, self.out = nn.Linear(6, 8), nn.Linear(8, 3)
        self.drop, self.act = nn.Dropout(0.3), ACT

    def forward(self, x):
        return self.out(self.drop(self.act(self.hidden(x))))


def main():
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    for _ in range(8):
        x, y = torch.randn(4, 6), torch.randint(0, 3, (4,))
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        print(loss.item())


if __name__ == "__main__":
    main()
"""
PLAIN = SCRIPT.replace("ACT", "nn.Tanh()")
PARTIAL = SCRIPT.replace("ACT", "functools.partial(bent, by=0.1)")
COMPILED = "@ms.jit(fullgraph=True)"


def verified(text: str, folder: Path, jit: bool | None = None) -> tuple[Result, Result]:
    """Return the port of a script before and after its step was verified."""
    path = folder / "train.py"
    path.write_text(text, "utf-8")
    tree = walk(path)
    before = port_tree(tree, TARGET, Options(plain=True, jit=jit))
    return before, verify_port(before, tree, TARGET, SHORT, "", lambda _: None, steps_only=True)


@pytest.mark.slow
@pytest.mark.day
def test_a_step_that_trains_as_torch_does_when_compiled_is_compiled(tmp_path: Path) -> None:
    """Its gradients too: a smoothed loss that runs in Python beside its graph has none."""
    pytest.importorskip("mindspore")
    before, after = verified(PLAIN, tmp_path)
    assert COMPILED not in before.files[0].text
    assert COMPILED in after.files[0].text
    assert "functools" not in after.files[0].text.replace("import functools", "")
    assert after.verified("train.py").endswith("compiled by ms.jit as well")
    assert after.verification is not None
    (run,) = after.verification["runs"]
    assert [one["verdict"] for one in run["compiled"]] == ["close"]
    assert any("compiled: with dropout" in line for line in after.verification["lines"])
    assert html(after).count("compiled by <code>ms.jit</code>") == 1


@pytest.mark.slow
def test_a_step_that_does_not_compile_stays_as_it_is(tmp_path: Path) -> None:
    pytest.importorskip("mindspore")
    before, after = verified(PARTIAL, tmp_path)
    assert after.files == before.files
    assert after.verified("train.py").startswith("its training step verified")
    assert "compiled" not in after.verified("train.py")
    assert after.verification is not None
    (said,) = [one for one in after.verification["lines"] if one.startswith("not compiled: ")]
    assert "float32" in said
    assert "Not compiled by <code>ms.jit</code>: float32" in html(after)


@pytest.mark.slow
def test_nothing_is_compiled_where_that_was_not_wanted(tmp_path: Path) -> None:
    pytest.importorskip("mindspore")
    before, after = verified(PLAIN, tmp_path, jit=False)
    assert after.files == before.files
    assert after.verification is not None
    assert not [line for line in after.verification["lines"] if "compiled" in line]


def test_a_loss_is_readable_in_a_graph_or_its_step_is_not_compiled() -> None:
    """MindSpore 2.10 runs a ``functools.partial`` in Python, and its gradient is zero."""
    jit = Options(plain=True, jit=True)
    made = port_text(PLAIN, TARGET, jit).text
    assert "lambda *args, **kwargs: ops.cross_entropy(*args, label_smoothing=0.1" in made
    assert COMPILED in made
    weighted = "nn.CrossEntropyLoss(weight=torch.ones(3) * 2)"
    other = PLAIN.replace("nn.CrossEntropyLoss(label_smoothing=0.1)", weighted)
    assert COMPILED not in port_text(other, TARGET, jit).text
    own = "functools.partial(F.cross_entropy, label_smoothing=0.1)"
    other = PLAIN.replace("nn.CrossEntropyLoss(label_smoothing=0.1)", own)
    assert COMPILED not in port_text(other, TARGET, jit).text


def test_two_optimizers_are_not_compiled_into_one_graph() -> None:
    """MindSpore calls the rates of both ``learning_rate_group_0``, and refuses that."""
    two = PLAIN.replace(
        "    criterion", "    other = torch.optim.Adam(model.out.parameters())\n    criterion"
    ).replace("optimizer.step()", "optimizer.step()\n        other.step()")
    text = port_text(two, TARGET, Options(plain=True, jit=True)).text
    assert "other(grads" in text
    assert COMPILED not in text


@pytest.mark.parametrize(
    ("text", "once"),
    [
        ("def main(): pass\nmain()", True),
        ("def main(): pass\nif __name__ == '__main__':\n    main()", True),
        ("def train(): pass\ndef main():\n    train()\nmain()", True),
        ("def train(): pass\ndef main():\n    for _ in range(3):\n        train()\nmain()", False),
        ("def train(): pass\ndef main():\n    train()\n    train()\nmain()", False),
        ("def train(): pass\nx = [train() for _ in range(3)]", False),
        ("def train(): pass\nimport multiprocessing as m\nm.spawn(train)", False),
        ("def train():\n    train()", False),
        ("def train(): pass", False),
    ],
)
def test_a_function_is_called_once_or_may_be_called_again(text: str, once: bool) -> None:
    name = "train" if "def train" in text else "main"
    assert called_once(ast.parse(text), name) is once
    assert called_once(ast.parse(text), "")
    assert not called_once(ast.parse(text), f"Trainer.{name}")


def test_what_would_be_compiled_often_or_stands_in_is_not_tried(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(
        PLAIN.replace("    main()\n", "    for _ in range(2):\n        main()\n"), "utf-8"
    )
    tree = walk(path)
    result = port_tree(tree, TARGET, Options(plain=True))
    one = Compiling(result, tree, TARGET)
    (file,) = result.files
    assert one.of(file) is not None
    assert "main may be called again" in one.why_not(file, stand_ins=False)
    assert "small networks stand in" in one.why_not(file, stand_ins=True)
    asked = replace(one, result=replace(result, options=Options(plain=True, jit=True)))
    assert asked.why_not(file, stand_ins=False) == ""

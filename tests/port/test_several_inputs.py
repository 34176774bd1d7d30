"""Batches of several tensors: what names and errors say of them, and how they are taken apart."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mpcore_port.verify.beside import Beside
from mpcore_port.verify.extract import extract
from mpcore_port.verify.inputs import Input, draw, read_inputs
from mpcore_port.verify.left_out import makers_of_losses, of_evaluation
from mpcore_port.verify.module import Module
from mpcore_port.verify.project import _with_settings
from mpcore_port.verify.repairs import changes
from mpcore_port.verify.required import required_arguments
from mpcore_port.verify.search import Search, by_name
from mpcore_port.verify.stand_in import StandIn
from mpcore_port.verify.synthetic import missing

PICTURE = Input("float32", (8, 3, 32, 32))


@pytest.mark.parametrize(
    ("error", "items", "wanted"),
    [
        (
            "The size of tensor a (2400) must match the size of tensor b (2048) at dimension 1",
            "float32[8,2048], float32[8,80,8]",
            "float32[8,2400], float32[8,80,8]",
        ),
        ("too many values to unpack (expected 2)", "float32[8,1,64]", "float32[8,64]"),
        (
            "not enough values to unpack (expected 4, got 3)",
            "int64[8]<9, float32[8,5,6]",
            "int64[8]<9, float32[8,1,5,6]",
        ),
        (
            "shape '[-1, 15, 3, 32, 32]' is invalid for input of size 73728",
            "float32[8,3,32,32], int64[8]<10, float32[8,3,32,32]",
            "float32[15,3,32,32], int64[15]<10, float32[15,3,32,32]",
        ),
        ("expected scalar type Long but found Float", "float32[8,4]", "int64[8,4]<2"),
        (
            "0D or 1D target tensor expected, multi-target not supported",
            "float32[15,4], float32[15,4]",
            "float32[15,4], int64[15]<10",
        ),
        ("index out of range in self", "int64[8,4]<64, float32[2]", "int64[8,4]<2, float32[2]"),
        (
            "Given groups=1, weight of size [64, 1, 3, 3], expected input[8, 3, 32, 32] to have 1 "
            "channels, but got 3 channels instead",
            "float32[8,3,32,32], float32[8,3]",
            "float32[8,1,32,32], float32[8,3]",
        ),
    ],
)
def test_errors_say_what_one_of_several_is_to_be(error: str, items: str, wanted: str) -> None:
    given = read_inputs(items)
    found = changes(error, given, range(len(given)), {})
    assert read_inputs(wanted) in list(itertools.islice(found, 20))


def test_names_say_what_a_tensor_may_be() -> None:
    assert by_name("image1", [Input("float32", (8, 1, 28, 28))]).shape == (8, 1, 28, 28)
    assert by_name("true_masks").dtype == "int64"
    assert by_name("images[1]") == PICTURE
    lengths = by_name("input_lengths")
    assert str(lengths) == "int64[8]=16"
    assert draw(f"{lengths}, float32[1]", 1)[0][0].tolist() == [16] * 8


def test_the_walk_keeps_what_comes_further() -> None:
    """A step that wants a picture, its map of labels and one class, in that order."""
    wanted = read_inputs("float32[8,3,32,32], int64[8,32,32]<2, int64[8]<10")
    tried: list[str] = []

    def attempt(text: str) -> dict[str, Any]:
        tried.append(text)
        same = [a == b for a, b in zip(read_inputs(text), wanted, strict=True)]
        came = same.index(False) if False in same else 3
        return {"enough": came == 3, "far": came, "seconds": 0.1, "error": "no"}

    job = {"names": ["p", "q", "r"], "count": 3, "target": None}
    found = Search(job, [], attempt, lambda: len(tried) > 150).find()
    assert found["answer"] == ", ".join(map(str, wanted))
    assert len(tried) == len(set(tried)) < 100


def test_another_form_of_a_networks_answers_is_tried_before_all_of_one_is() -> None:
    tried: list[str] = []

    def attempt(text: str) -> dict[str, Any]:
        tried.append(text)
        said = {"stand_ins": ["net"], "error": f"no {len(tried)}", "far": 1}
        return {"enough": True, "seconds": 0.1} if text.endswith("-> map") else said

    job = {"names": ["x", "y"], "count": 2, "target": 1}
    assert Search(job, [], attempt, lambda: False).find()["answer"].endswith("-> map")
    assert len(tried) == len(set(tried)) < 30


def test_batches_of_a_large_network_are_small_at_once() -> None:
    tried: list[str] = []

    def attempt(text: str) -> dict[str, Any]:
        tried.append(text)
        if not text.endswith("int64[2,16]<96"):
            return {"error": "Expected input batch_size", "loss": "cross_entropy", "out": [32, 96]}
        return {"enough": True, "seconds": 4.0}

    job = {"names": ["x", "y"], "count": 2, "target": 1}
    layers = [["Embedding", 96, 0]]
    found = Search(job, layers, attempt, lambda: len(tried) > 20, is_large=True).find()
    assert found["answer"] == "int64[2,16]<96, int64[2,16]<96"
    assert not any("[8" in text for text in tried)


def test_the_walk_takes_a_smaller_batch_where_one_takes_too_long() -> None:
    def attempt(text: str) -> dict[str, Any]:
        return {} if "[8" in text else {"enough": True, "seconds": 4.0}

    job = {"names": ["mel", "audio"], "count": 2, "target": None}
    found = Search(job, [], attempt, lambda: False).find()
    assert found["answer"] == "float32[2,80,8], float32[2,2048]"


LOOP = "import torch\nfor {} in loader:\n    {}\n    model(x).sum().backward()\n"


@pytest.mark.parametrize(
    ("target", "body", "names", "form"),
    [
        ("images, y", "images[0] = images[0].cuda()", ("images[0]", "y"), "([{}], {},)"),
        ("images, _", "x = torch.cat(images)", ("images[0]", "images[1]", "_"), "([{}, {}], {},)"),
        ("x, y", "log(x[0])", ("x", "y"), ""),  # the first row of a tensor
    ],
)
def test_a_part_of_a_batch_may_be_a_list(
    target: str, body: str, names: tuple[str, ...], form: str, tmp_path: Path
) -> None:
    layout = extract(LOOP.format(target, body), tmp_path).layout
    assert layout is not None
    assert (layout.names, layout.form) == (names, form)


def test_a_batch_may_have_its_tensors_as_attributes(tmp_path: Path) -> None:
    step = extract(LOOP.format("batch", "x = batch.src + batch.trg"), tmp_path)
    assert step.layout is not None
    assert (step.layout.kind, step.layout.names) == ("object", ("src", "trg"))
    script = step.script(tmp_path, "float32[1], float32[1]")
    assert "_mpcore_record(src=torch.from_numpy(_mpcore_parts[0]), trg=" in script
    mapped = extract(LOOP.format("batch", "x, y = map(f, rows(batch.trg))"), tmp_path).layout
    assert mapped is not None
    assert mapped.kind == "object"
    plain = extract(LOOP.format("batch", "x = batch.shape[0]"), tmp_path).layout
    assert plain is not None
    assert plain.kind == "alone"


@pytest.mark.parametrize("name", ["settings", "params"])
def test_settings_of_a_module_beside_are_taken(name: str, tmp_path: Path) -> None:
    (tmp_path / "settings.py").write_text("class Box(dict): pass\n")
    with (tmp_path / f"{name}.py").open("a") as file:
        file.write("params = dict(width=4)\n")
    text = (
        "import torch\nfrom settings import Box\n"
        "def train(model, loader, params):\n"
        "    for x in loader:\n        (model(x) * params.width).sum().backward()\n"
    )
    step = extract(text, tmp_path)
    along = Beside(_with_settings(text, tmp_path), tmp_path)
    assert tmp_path / f"{name}.py" in along.files  # the port's step imports it too
    assert f"from {name} import params as _mpcore_params" in step.body
    assert f"params: that of {name}" in step.assumed


def test_a_default_file_of_settings_is_found_in_a_folder_above(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "tool").mkdir()
    (tmp_path / "base.yaml").write_text("a: 1\n")
    text = (
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('--config', default='{}')"
    )
    found = required_arguments(Module(text.format("base.yaml")), tmp_path / "tool")
    assert found == ("--config", str(tmp_path / "base.yaml"))
    assert required_arguments(Module(text.format("none.yaml")), tmp_path / "tool") == ()


def test_a_branch_that_raises_assigns_what_those_beside_it_do(tmp_path: Path) -> None:
    text = (
        "import torch\n"
        "if a:\n    x, y = f()\nelif b:\n    x = y = g()\nelse:\n    raise ValueError(a)\n"
        "for z in loader:\n    (x(z) + y(z)).backward()\n"
    )
    body = extract(text, tmp_path, {7}).body
    assert "    x = _mpcore_missing('x'); y = _mpcore_missing('y')" in body.splitlines()


def test_losses_of_other_files_may_be_stood_in_for() -> None:
    text = "criterion = Loss(2)\nloss = compute(x)\nplain_loss = torch.nn.MSELoss()\nimport torch\n"
    assert makers_of_losses(Module(text)) == [1]


OPTIONS = """import argparse, torch
from mpcore_port.verify.absent import install
install()
args = argparse.ArgumentParser().parse_args([])
assert not hasattr(args, "vocab_size") and getattr(args, "vocab_size", 3) == 3
assert not args.__dict__
width = args.vocab_size
assert width + 1 == 65 and hasattr(args, "vocab_size")
try:
    getattr(args, "none")
except AttributeError:
    print("raised")
"""


def test_options_that_nobody_set_are_there_where_they_are_read() -> None:
    done = subprocess.run(
        [sys.executable, "-c", OPTIONS], capture_output=True, text=True, check=False
    )
    assert done.stdout == "raised\n", done.stderr


def test_a_setting_takes_the_first_word_that_it_is_compared_with() -> None:
    args = StandIn("args")
    assert args.arch != "eval"
    assert args.arch != "predict"
    assert args.arch == "psp"
    assert args.arch != "psa"
    assert args.arch in ("none", "psp")
    assert args.arch != 3
    assert {args: 1}[args] == 1


def test_the_rest_of_a_command_line_may_be_empty(tmp_path: Path) -> None:
    text = "import argparse\np = argparse.ArgumentParser()\np.add_argument('opts', nargs={})"
    assert required_arguments(Module(text.format("argparse.REMAINDER")), tmp_path) == ()
    assert required_arguments(Module(text.format("2")), tmp_path) == ("mpcore", "mpcore")


def test_progress_bars_hand_on_what_they_are_put_around() -> None:
    bar = missing("fastprogress.progress_bar")
    assert list(bar(range(2), total=2, leave=False)) == [0, 1]


def test_a_parameter_elsewhere_does_not_read_what_evaluation_binds() -> None:
    text = (
        "def rows(mask):\n    return mask\n"
        "for x in loader:\n"
        "    if x:\n        mask = 1\n        with torch.no_grad():\n            show(mask)\n"
        "    model(x).backward()\n"
    )
    module = Module(text)
    loop = module.tree.body[1]
    assert [node.lineno for node in of_evaluation(module, loop)] == [4]  # type: ignore[attr-defined]


def test_loops_over_data_that_are_not_there_go_on(tmp_path: Path) -> None:
    text = (
        "import torch\nimport data\ncorpus = data.Corpus('.')\nrows = corpus.train.to('cuda')\n"
        "def get_batch(source, i):\n    return source[i : i + 4], source[i + 1 : i + 5]\n"
        "for i in range(0, rows.size(0) - 1, 4):\n    x, y = get_batch(rows, i)\n"
        "    model(x).sum().backward()\n"
    )
    (tmp_path / "data.py").write_text("class Corpus: pass\n")
    step = extract(text, tmp_path, (3,))
    assert step.layout is not None
    assert step.layout.names == ("x", "y")
    assert "x, y = _mpcore_next()" in step.body
    assert StandIn("rows").size(0) > 20
    drawn = text.replace("data.Corpus('.')", "torch.ones(9)").replace("corpus.train", "corpus")
    assert extract(drawn, tmp_path).layout is None  # it makes its batches itself

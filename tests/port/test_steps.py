"""Steps taken out of scripts that cannot run whole: what is found, and what is compared."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mpcore_port.command import port
from mpcore_port.engine import port_tree
from mpcore_port.errors import PortError
from mpcore_port.source import walk
from mpcore_port.targets import Options, load_target
from mpcore_port.verify.extract import HEAD, extract
from mpcore_port.verify.inputs import draw, read_inputs
from mpcore_port.verify.judge import Comparison, VerifyOptions
from mpcore_port.verify.module import StepError
from mpcore_port.verify.project import scripts_of, verify_port
from mpcore_port.verify.standing import _code, _has_equal, _renamed, _unshown
from mpcore_port.verify.step import Place, verify_step
from mpcore_port.verify.synthetic import Batches, Missing

pytestmark = pytest.mark.usefixtures("warm_workers")

PARTIAL = Path(__file__).parent / "scripts" / "partial"
SHORT = VerifyOptions(losses=6, at=2, modes=("float32", "overflow"))
# script: how batches are taken apart, the function of the loop, what is assumed, a batch that runs
STEPS = {
    "argparse_required": (
        ("tuple", ("images", "target")),
        "main",
        ("mpcore", "--arch", "small", "--classes", "1", "--batch-size", "8"),
        "float32[8,3,28,28], int64[8]<10",
    ),
    "wandb_gpt": (("tuple", ("X", "Y")), "", (), "int64[8,16]<65, int64[8,16]<65"),
    "dataset_missing": (("dict", ("features", "price")), "train", (), "float32[8,12], float32[8]"),
    "trainer_class": (
        ("tuple", ("source", "targets")),
        "Trainer._run_epoch",
        ("1", "1", "--batch_size", "8"),
        "float32[8,2,16], float32[8]<2",
    ),
    "config_dict": (("dict", ("tokens", "label")), "run", (), "int64[8,16]<128, int64[8]<2"),
    "functions_only": (
        ("tuple", ("samples", "targets")),
        "train_one_epoch",
        (),
        "float32[8,3,32,32], int64[8]<10",
    ),
}


def _text(name: str) -> str:
    return (PARTIAL / f"{name}.py").read_text(encoding="utf-8")


def test_the_table_is_that_of_the_scripts() -> None:
    assert sorted(STEPS) == sorted(path.stem for path in PARTIAL.glob("*.py"))


@pytest.mark.parametrize("name", STEPS)
def test_step_is_the_loop_and_what_it_needs(name: str) -> None:
    layout, function, args, _ = STEPS[name]
    text = _text(name)
    step = extract(text, PARTIAL)
    assert step.layout is not None
    assert (step.layout.kind, step.layout.names) == layout
    assert (step.function, step.args) == (function, args)
    lines, old = step.body.splitlines(), text.splitlines()
    first, last = step.loop
    assert any(".backward()" in line for line in lines) or "_run_batch" in lines[last - 2]
    for number, line in enumerate(lines[: len(old)], 1):  # every line is in its place, or gone
        read = line.replace("if _mpcore_never: ", "")  # for the rules alone, it does not run
        assert read in ("", old[number - 1]) or number in step.touched
    assert lines[first - 1].strip().startswith("for ")
    gone = ('torch.save({"model"', "os.makedirs", "wandb.finish", "_save_snapshot(epoch)")
    calls = [line for line in lines if "def " not in line and "if _mpcore_never: " not in line]
    assert not [line for line in calls if any(w in line for w in (*gone, "scheduler.step()"))]
    script = step.script(PARTIAL, "float32[1], float32[1]")
    assert script.splitlines()[HEAD:] == lines
    compile(script, name, "exec")


def _verified(name: str, target: str, inputs: str, options: VerifyOptions):  # type: ignore[no-untyped-def]
    found = load_target(target)
    result = port_tree(walk(PARTIAL / f"{name}.py"), found, Options())
    place = Place(PARTIAL, PARTIAL)
    done = verify_step(
        result.files[0], result, found, place, options, inputs, "not tried", lambda _: None
    )
    assert done.whole == "not tried"
    return done


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in STEPS if name != "config_dict"])
def test_step_of_the_port_trains_as_that_of_the_original(name: str) -> None:
    inputs = STEPS[name][3]
    given = "" if name in FOUND else inputs
    done = _verified(name, "torch_npu", given, SHORT)
    assert [one.verdict for one in done.comparisons] == ["same", "same"], done.lines()
    assert done.comparisons[0].losses == (6, 6)
    assert done.step is not None
    assert done.step["inputs"] == inputs
    assert done.step["inputs_are"] == ("given" if given else FOUND[name])
    assert done.step["elsewhere"] == []
    assert done.step["port_lines"] > 20
    assert done.passed


FOUND = {
    "wandb_gpt": "found by trying: the first layer is Embedding",
    "dataset_missing": "found by trying: the first layer is Linear",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["argparse_required", "dataset_missing", "functions_only"])
def test_step_of_a_port_to_mindspore_trains_as_that_of_the_original(name: str) -> None:
    pytest.importorskip("mindspore")
    options = replace(SHORT, modes=("float32",))
    done = _verified(name, "mindspore", STEPS[name][3], options)
    assert [one.verdict for one in done.comparisons] == ["close"], done.lines()
    assert done.comparisons[0].losses == (6, 6)
    assert done.step is not None
    assert done.step["elsewhere"] == []
    assert done.passed


@pytest.mark.slow
def test_script_that_cannot_run_is_verified_by_its_step(tmp_path: Path) -> None:
    """All of the way: the script is run, fails, its step is taken out, and the report says so."""
    (tmp_path / "config_dict.py").write_text(_text("config_dict"), encoding="utf-8")
    tree, target = walk(tmp_path / "config_dict.py"), load_target("torch_npu")
    result = port_tree(tree, target, Options())
    done = verify_port(result, tree, target, SHORT, "", lambda _: None).verification
    assert done is not None
    assert done["passed"] is True
    said = "\n".join(done["lines"])
    assert "not run whole: the original recorded no loss: ModuleNotFoundError" in said
    assert "step      the loop of lines 75 to 84 in run" in said
    assert "nothing in place of load_dataset(cfg['name'], split='train')" in said
    (run,) = done["runs"]
    assert run["step"]["inputs"] == STEPS["config_dict"][3]
    assert {fact["api"] for fact in run["step"]["scalers"]} == {"torch.cuda.amp.GradScaler"}
    assert json.dumps(done, allow_nan=False)
    assert [path.name for path in tmp_path.iterdir()] == ["config_dict.py"]


@pytest.mark.slow
def test_wrong_inputs_and_another_port_are_no_proof() -> None:
    target = load_target("torch_npu")
    result = port_tree(walk(PARTIAL / "functions_only.py"), target, Options())
    other = replace(result.files[0], text=result.files[0].text.replace("isfinite", "isnan"))
    options, place = replace(SHORT, modes=("float32",)), Place(PARTIAL, PARTIAL)
    wrong = "float32[8,4,32,32], int64[8]<10"
    done = verify_step(other, result, target, place, options, wrong, "", lambda _: None)
    assert "expected input[8, 4, 32, 32] to have 3 channels" in done.lines()[-1]
    assert done.step is not None
    assert done.step["elsewhere"] == ["if not math.isfinite(loss_value):"]
    assert not done.passed
    alike = Comparison("float32", "same", (6, 6), 0.0, True, None)
    assert not replace(done, comparisons=(alike,)).passed  # another step than the port's
    assert replace(done, comparisons=(alike,), step={**done.step, "elsewhere": []}).passed


def test_files_that_train_are_run_whole_and_others_are_not(tmp_path: Path) -> None:
    main = '\nif __name__ == "__main__":\n    '
    files = {
        "engine": "def train(loader):\n    for x in loader:\n        x.backward()\n",
        "main": f"from engine import train\n{main}train([])\n",
        "called": "def f():\n    for x in y:\n        x.backward()\n\n\nf()\n",
        "prepare": f"import os\n{main}os.remove('data')\n",
        "other": "from engine import train\n",
    }
    for name, text in files.items():
        (tmp_path / f"{name}.py").write_text(text)
    result = port_tree(walk(tmp_path), load_target("torch_npu"), Options())
    assert [file.source.path for file in scripts_of(result)] == ["called.py", "main.py"]


TOP = "import torch\nfrom torch import nn\n\nclass Net(nn.Module):\n    pass\n\n"
LOOP = "    for x, y in loader:\n        model(x).backward()\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = 1\n", "no backward pass"),
        (TOP + "loss = Net()(1)\nloss.backward()\n", "no loop leads to the backward pass"),
        ("for (a, *b), c in l:\n    f(a).backward()\n", "taken apart as ((a, *b), c)"),
    ],
)
def test_what_cannot_be_taken_out_is_refused_by_name(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(StepError) as error:
        extract(text, tmp_path)
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("float32(8)", "item 1 must be DTYPE[SIZES] or DTYPE[SIZES]<BOUND, got 'float32(8)'"),
        ("float32[8], int64[8]", "item 2: whole numbers need a bound, as int64[8]<10"),
        ("float31[8]", "dtype must be one of float16, float32"),
        ("float32[8,0]", "sizes must be >= 1"),
        ("float32[99999,99999]", "268435456 elements at most"),
        ("int64[8]<0", "the bound must be in [1, 2147483647], got 0"),
        ("", "item 1 must be"),
    ],
)
def test_wrong_inputs_are_one_clear_line(text: str, words: str) -> None:
    with pytest.raises(PortError) as error:
        read_inputs(text)
    assert words in str(error.value)


_REST = ["float32", "bool", "int32"]


def test_inputs_are_drawn_alike_each_time() -> None:
    text = "float32[2,3], int64[4]<10, float32[5]<2, bool[2], int32[]<3"
    assert ", ".join(map(str, read_inputs(text))) == text
    first, again = draw(text, 3), draw(text, 3)
    for one, other in zip(first, again, strict=True):
        for a, b in zip(one, other, strict=True):
            np.testing.assert_array_equal(a, b)
    assert not np.array_equal(first[0][0], first[1][0])
    assert [str(array.dtype) for array in first[0]] == ["float32", "int64", *_REST]
    assert {*np.concatenate([one[2] for one in first])} == {0.0, 1.0}


def test_inputs_without_verify_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\n")
    with pytest.raises(PortError, match="`--inputs` is for verification"):
        port(
            tmp_path / "a.py",
            to="torch_npu",
            output=tmp_path / "b.py",
            inputs="float32[1]",
            verify=False,
        )


def test_what_stands_in_for_missing_modules_does_nothing() -> None:
    gone = Missing("wandb")
    with gone.init(project="x") as run:
        run.config["a"] = 1
    assert not gone.run
    assert gone.main()(extract).__wrapped__ is extract  # a decorator may hand over settings
    assert gone.main()(dict) is dict
    assert list(Missing("tqdm")([1, 2], desc="x")) == [1, 2]
    bar = Missing("tqdm")(range(3))
    bar.set_description("x")
    bar.update()
    assert (list(bar), len(bar)) == ([0, 1, 2], 3)
    batches = Batches([{"x": np.zeros((3, 2))}] * 2)
    batches.sampler.set_epoch(1)
    assert (len(batches), len(batches.dataset), batches.batch_size) == (2, 6, 3)


def test_a_comment_makes_no_line_of_a_bracket() -> None:
    """``)  # why`` stayed where the argument before it was left out, and failed a right port."""
    lines = _code('x = f(\n    a,\n)  # why\ny = "a # b"\n# all\n')
    assert lines == ["x = f(", "a,", ")", 'y = "a # b"', "# all"]
    assert _code("%run a\nx = (  # open\n") == ["%run a", "x = (  # open"]


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("save_image(made, 'a.png')", True),
        ("save_image(made, 'b.png')", False),
        ("show(made)", False),
        ("made = datasets.MNIST(root)", True),
    ],
)
def test_a_name_that_is_absent_in_the_step_may_have_another_in_the_port(line, found):
    there = {"port.pictures.save_image(made, 'a.png')", "plot(made)"}
    there.add("made = port.pictures.MNIST(root)")
    assert _has_equal(line, there, ["save_image", "datasets"]) is found


def test_an_absent_module_may_have_another_name_in_the_port_and_what_it_holds_may_not() -> None:
    """``torchvision.datasets.CIFAR10`` is ``port.pictures.CIFAR10`` there."""
    there = {"made = port.pictures.CIFAR10"}
    assert _has_equal("made = torchvision.datasets.CIFAR10", there, ["torchvision"])
    assert not _has_equal("made = torchvision.datasets.CIFAR100", there, ["torchvision"])
    assert not _has_equal("other = torchvision.datasets.CIFAR10", there, ["torchvision"])


def test_names_of_modules_are_those_of_the_port() -> None:
    """A script's own ``port`` is not in every step: there the runtime has its plain name."""
    own = "import mpcore_port_runtime as port\nfrom mindspore import ops\nx = port.load(report.a)"
    port = "import mpcore_port_runtime as port_\nfrom mindspore import ops\nport = 1"
    assert _renamed(own, own, port).endswith("x = port_.load(report.a)")
    assert _renamed(own, own, own) == own


def test_what_a_text_says_of_a_value_that_is_left_out_is_no_other_line() -> None:
    names = ["losses", "top"]
    text = "print(f\"{port.shown(losses['train']):.4f} {port.shown(loss):.2f}\")"
    assert _unshown(text, names) == "print(f\"{losses['train']:.4f} {port.shown(loss):.2f}\")"
    assert _unshown(text, []) == text

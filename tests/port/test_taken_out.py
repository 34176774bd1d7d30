"""Classes of scripts whose training steps are taken out: launchers, several loaders, no caller."""

from __future__ import annotations

import ast
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from mpcore_port.verify.absent import guarded_lines, install
from mpcore_port.verify.beside import Beside, absolute, in_order, roots, says_device
from mpcore_port.verify.extract import Step, extract
from mpcore_port.verify.inputs import read_inputs, split_form
from mpcore_port.verify.judge import Run, Verification, VerifyOptions, compare
from mpcore_port.verify.required import defaults

from .probing import probed

TOP = """\
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.layer = nn.Linear(dim, 10)

    def forward(self, x):
        return self.layer(x)

"""
LOOP = "    for x, y in loader:\n        model(x).backward()\n"
STEP = "    loss = model(x).sum()\n    loss.backward()\n    optimizer.step()\n"


def _step(text: str, folder: Path) -> Step:
    step = extract(text, folder)
    compile(step.script(folder, "float32[1]"), "step", "exec")
    return step


def test_a_spawned_function_is_called_in_one_process(tmp_path: Path) -> None:
    text = (
        "import torch.multiprocessing as mp\n"
        "def f(rank, world, model, loader):\n" + LOOP + "mp.spawn(f, nprocs=2, args=(2, m, l))\n"
    )
    step = _step(text, tmp_path)
    assert "_mpcore_spawn(f, nprocs=2, args=(2, m, l))" in step.body
    assert (5, "one process in place of mp.spawn") in step.replaced


def test_a_zip_of_loaders_is_one_batch_of_all(tmp_path: Path) -> None:
    text = "for (x, y), (u, _) in zip(a, b):\n    (x + y + u).backward()\n"
    layout = _step(text, tmp_path).layout
    assert layout is not None
    assert (layout.names, layout.form) == (("x", "y", "u", "_"), "(({}, {},), ({}, {},),)")


def test_a_counter_beside_a_loader_is_no_part_of_the_batch(tmp_path: Path) -> None:
    text = "for i, (x, y) in zip(range(9), loader):\n    (x + y).backward()\n"
    step = _step(text, tmp_path)
    assert step.layout is not None
    assert step.layout.names == ("x", "y")
    assert "zip(range(9), _mpcore_loader())" in step.body


def test_two_streams_give_their_own_parts(tmp_path: Path) -> None:
    text = (
        "for i in range(9):\n"
        "    x, y = next(labeled)\n"
        "    (u, v), _ = unlabeled.next()\n"
        "    (x + y + u).backward()\n"
    )
    step = _step(text, tmp_path)
    assert [layout.names for layout in step.layouts] == [("x", "y"), ("u", "v", "_")]
    assert step.layout is not None
    assert step.layout.target == 1  # y, not what the second stream ends with
    assert "_mpcore_next(1)" in step.body
    assert "_mpcore_parts[4]" in step.script(tmp_path, "float32[1]")


def test_a_function_that_nothing_calls_trains_batch_by_batch(tmp_path: Path) -> None:
    text = TOP + "def train_step(model, optimizer, x, y, cfg):\n    cfg.lr\n" + STEP
    step = _step(text, tmp_path)
    assert step.layout is not None
    assert step.layout.names == ("x", "y")
    assert "for (x, y,) in _mpcore_loader(): train_step(" in step.body
    assert "optimizer.step()" in step.body


def test_what_nothing_is_known_of_gets_a_stand_in_and_is_said(tmp_path: Path) -> None:
    step = _step("def f(model, loader, what):\n" + LOOP, tmp_path)
    assert "what: nothing is known of it, a stand-in" in step.assumed
    (network,) = [one for one in step.assumed if one.startswith("model: a stand-in network")]
    assert "there is none" in network


def test_a_function_in_a_function_leads_to_the_loss(tmp_path: Path) -> None:
    text = TOP + (
        "def f(model, loader):\n"
        "    def back(loss):\n        loss.backward()\n"
        "    for x, y in loader:\n        back(model(x))\n"
    )
    step = _step(text, tmp_path)
    assert step.loop == (15, 16)
    assert "def back(loss):" in step.body


def test_batches_handed_on_by_keywords_have_keys(tmp_path: Path) -> None:
    step = _step("for b in l:\n    f(**b).backward()\n", tmp_path)
    assert step.layout is not None
    assert step.layout.names == ("input_ids", "attention_mask", "labels")


def test_defaults_come_from_the_parser_wherever_it_is(tmp_path: Path) -> None:
    (tmp_path / "options.py").write_text("p.add_argument('--width', default=7, type=int)\n")
    (tmp_path / "broken.py").write_text("add_argument(\n")
    tree = ast.parse("p.add_argument('--no-amp', action='store_true')\np.add_argument('--x')")
    assert defaults(tree, tmp_path) == {"width": "7", "no_amp": "False"}


def test_relative_imports_get_full_names(tmp_path: Path) -> None:
    package = tmp_path / "pkg" / "core"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package.parent / "__init__.py").touch()
    (package.parent / "nets.py").write_text("from .deep import net\n")
    (package.parent / "deep.py").write_text("net = 'cuda'\n")
    text = "from ..nets import Net\nfrom . import x\nimport pkg.nets\n"
    tree = ast.parse(text)
    one, two = tree.body[:2]
    assert isinstance(one, ast.ImportFrom)
    assert isinstance(two, ast.ImportFrom)
    assert absolute(one, package) == "from pkg.nets import Net"
    assert absolute(two, package) == "from pkg.core import x"
    assert roots(tree, package) == [tmp_path]
    assert in_order(package, [tmp_path]) == [str(tmp_path), str(package)]
    beside = Beside(text, package)
    assert {path.name for path in beside.files} == {"nets.py", "deep.py", "__init__.py"}
    assert [path.name for path in filter(says_device, beside.files)] == ["deep.py"]
    assert beside.places(Path("copy")) == [Path("copy/pkg/core"), Path("copy")]


def test_an_import_that_may_fail_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules that are not there are met in scripts alone, and not where a script asks."""
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    monkeypatch.setattr("os.popen", os.popen)
    if "torch" in sys.modules:
        monkeypatch.setattr("torch.compile", sys.modules["torch"].compile)
    install()
    script = tmp_path / "script.py"
    text = (
        "import importlib.util\n"
        "import nowhere_at_all.part as part\n"
        "try:\n    import nowhere_either\n    there = True\n"
        "except ImportError:\n    there = False\n"
        "asked = importlib.util.find_spec('nowhere_third')\n"
    )
    script.write_text(text)
    names: dict[str, object] = {}
    try:
        exec(compile(text, str(script), "exec"), names)
    finally:
        for name in [n for n in sys.modules if n.startswith("nowhere_")]:
            del sys.modules[name]
    assert repr(names["part"]).startswith("<module 'nowhere_at_all.part'")
    assert names["there"] is False
    assert names["asked"] is None
    assert guarded_lines("", text) == {3, 4, 5}


def test_a_form_stands_behind_the_inputs() -> None:
    assert split_form("float32[8] -> same") == ("float32[8]", "same")
    assert [str(item) for item in read_inputs("float32[8] -> map")] == ["float32[8]"]
    with pytest.raises(ValueError, match="must be one of 'scores', 'same'"):
        read_inputs("float32[8] -> nothing")


def test_a_stand_in_is_what_it_is_used_as() -> None:
    torch = pytest.importorskip("torch")
    from mpcore_port.verify.stand_in import StandIn, set_form

    model, config = StandIn("model"), StandIn("cfg")
    assert [*range(1, config["epochs"] + 1)] == [1]
    assert config
    assert config.use_amp is True
    assert config["amp"] is True
    assert config.get("amp", False) is True
    assert config.get("width", 3) == 3
    assert not config.verbose
    assert (config.lr * 2, config.train.batch_size // 2, config.eps < 1) == (0.02, 4, True)
    first, second = StandIn("pair")()
    assert repr(first) != repr(second)
    optimizer = StandIn("timm.create_optimizer")(config, model)
    before = [p.detach().clone() for p in model.parameters()]
    loss, parts = StandIn("compute_loss")(model(torch.ones(4, 3, 8, 8)), torch.ones(4))
    loss.backward()
    optimizer.step()
    assert parts is loss
    assert any(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    try:
        shapes = {}
        for form in ("scores", "same", "map", "number"):
            set_form(form)
            shapes[form] = tuple(model(torch.ones(4, 3, 8, 8)).shape)
    finally:
        set_form("scores")
    assert shapes == {"scores": (4, 10), "same": (4, 3, 8, 8), "map": (4, 10, 8, 8), "number": ()}
    assert tuple(model(torch.ones(4, 6, dtype=torch.int64)).shape) == (4, 6, 10)
    answer = model(input_ids=torch.ones(4, 6, dtype=torch.int64))
    assert answer.loss.dim() == 0
    assert answer[0] is answer["loss"]


def test_runs_that_the_time_limit_ended_are_compared_as_far_as_both_came() -> None:
    options = VerifyOptions(at=1, time_limit=9.0)
    whole = Run((3.0, 2.0, 1.0, 0.5), (8.0, 4.0, 4.0), 3, "ok")
    short = Run((3.0, 2.0, 1.0), (8.0, 4.0), 2, "late")
    same = compare("overflow", whole, short, options)
    assert (same.verdict, same.losses) == ("same", (3, 3))
    assert same.words.endswith("; the time limit of 9 s ended them there")
    assert compare("overflow", whole, replace(short, losses=(3.0, 2.0, 9.0)), options).first == 2
    early = compare("overflow", whole, replace(short, losses=(3.0, 2.0)), options)
    assert (early.verdict, early.words) == ("not compared", "only 2 losses in 9 s")
    assert compare("overflow", whole, replace(short, end="failed"), options).verdict == "different"


def test_a_file_that_may_be_missing_is_looked_for(tmp_path: Path) -> None:
    read = "    state = torch.load('x.pt')\n"
    text = "import torch\ntry:\n" + read + "except FileNotFoundError:\n    state = 1\n"
    loop = "for x in loader:\n    (x * state).backward()\n"
    assert "torch.load('x.pt')" in _step(text + loop, tmp_path).body
    plain = "import torch\nfrom paths import best\n" + read.strip() + "\n"
    plain = plain.replace("'x.pt'", "best('x')")
    assert "torch.load(best('x'))" not in _step(plain + loop, tmp_path).body
    probe = f"{text}    raise\n{loop}"
    assert "FileNotFoundError" in str(probed(_step(probe, tmp_path), tmp_path, 30.0)["words"])


def test_runs_with_mixed_precision_off_verify_nothing() -> None:
    options = VerifyOptions(modes=("float32", "mixed"))
    run = Run((3.0, 2.0), (), 2, "ok")
    lower = Run((3.0, 2.1), (), 2, "ok")
    plain = compare("float32", run, run, options)
    off = Verification("a.py", "torch_npu", (plain, compare("mixed", run, run, options)))
    assert off.is_idle
    assert off.passed  # of a script that has none
    assert not replace(off, amp_off=True).passed
    assert replace(off, amp_off=True).why_not.startswith("mixed precision was off in it")
    on = replace(off, comparisons=(plain, compare("mixed", lower, lower, options)))
    assert not on.is_idle
    scaled = compare("mixed", replace(run, scales=(8.0,)), replace(run, scales=(8.0,)), options)
    assert not replace(off, comparisons=(plain, scaled)).is_idle


def test_a_loop_without_a_scale_is_compared_until_its_infinite_parameters_end_it() -> None:
    options = VerifyOptions()
    losses = tuple(1.0 - i / 100 for i in range(options.at + 2))
    ended = Run(losses, (), len(losses), "failed", "RuntimeError: between 0 and 1")
    went_on = Run((*losses, float("nan")), (), len(losses) + 1, "ok")
    assert compare("overflow", ended, went_on, options).verdict == "same"
    assert compare("float32", ended, went_on, options).verdict == "different"
    asked_late = replace(went_on, end="failed")  # `if not math.isfinite(loss): sys.exit()`
    assert compare("overflow", ended, asked_late, options).verdict == "same"
    longer = replace(asked_late, losses=(*asked_late.losses, float("nan")))
    assert compare("overflow", ended, longer, options).verdict == "different"
    early = replace(ended, losses=losses[: options.at])
    assert compare("overflow", early, went_on, options).verdict == "different"
    scaled = replace(ended, scales=(8.0,)), replace(went_on, scales=(8.0,))
    assert compare("overflow", *scaled, options).verdict == "different"


def test_what_classes_read_of_the_main_block_stays(tmp_path: Path) -> None:
    text = (
        "import torch\nfrom torch import nn\n"
        "def width():\n    return half * 2\n"
        "class Net(nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n"
        "        self.layer = nn.Linear(size, width())\n"
        "    def forward(self, x):\n        return self.layer(x)\n"
        "if __name__ == '__main__':\n"
        "    size = 3\n    half = 2\n    other = 5\n"
        "    model = Net()\n    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "    for epoch in range(20):\n"
        "        optimizer.zero_grad()\n        loss = model(torch.ones(2, size)).sum()\n"
        "        loss.backward()\n        optimizer.step()\n"
    )
    body = _step(text, tmp_path).body
    assert "    size = 3" in body
    assert "    half = 2" in body
    assert "other = 5" not in body

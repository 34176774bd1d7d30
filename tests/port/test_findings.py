"""Each finding is found where it is, and not in the same code without it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mpcore_port.command import check, port
from mpcore_port.engine import check_tree, port_text
from mpcore_port.errors import PortError
from mpcore_port.findings import LINTS
from mpcore_port.lint import FORMATS, lint
from mpcore_port.source import walk
from mpcore_port.targets import load_target

TOP = "import torch\nfrom torch.nn.utils import clip_grad_norm_\n"
MADE = TOP + "scaler = torch.cuda.amp.GradScaler()\nopt = torch.optim.SGD(p, lr=1)\n"
STEP = "scaler.scale(loss).backward()\nscaler.step(opt)\nscaler.update()\n"
REGION = "with torch.cuda.amp.autocast():\n    loss = f(x)\n"
SCHED = "sched = torch.optim.lr_scheduler.StepLR(opt, 1)\n"

CASES = {
    "clip-scaled": (
        MADE
        + REGION
        + "scaler.scale(loss).backward()\nclip_grad_norm_(p, 1.0)\nscaler.step(opt)\n",
        8,
        MADE
        + REGION
        + "scaler.scale(loss).backward()\nscaler.unscale_(opt)\nclip_grad_norm_(p, 1)\n",
    ),
    "scheduler-before-update": (
        MADE
        + SCHED
        + REGION
        + STEP.replace("scaler.update()\n", "sched.step()\nscaler.update()\n"),
        10,
        MADE + SCHED + REGION + STEP + "sched.step()\n",
    ),
    "float16-unscaled": (
        TOP
        + "with torch.autocast('cuda', dtype=torch.float16):\n    loss = f(x)\nloss.backward()\n",
        3,
        TOP
        + "with torch.autocast('cuda', dtype=torch.bfloat16):\n    loss = f(x)\nloss.backward()\n",
    ),
    "scaler-without-autocast": (MADE + "loss = f(x)\n" + STEP, 3, MADE + REGION + STEP),
    "scaler-with-bfloat16": (
        MADE + "with torch.autocast('cuda', torch.bfloat16):\n    loss = f(x)\n" + STEP,
        3,
        MADE + "with torch.autocast('cuda', dtype):\n    loss = f(x)\n" + STEP,
    ),
    "fused-with-scaler": (
        MADE + "opt = torch.optim.AdamW(p, fused=True)\n" + REGION + STEP,
        5,
        TOP + "opt = torch.optim.AdamW(p, fused=True)\n",
    ),
    "spent-parameters": (
        f"{TOP}params = net.parameters()\nopt = torch.optim.SGD(params, lr=1)\n"
        "clip_grad_norm_(params, 1.0)\n",
        5,
        f"{TOP}params = list(net.parameters())\nopt = torch.optim.SGD(params, lr=1)\n"
        "clip_grad_norm_(params, 1.0)\n",
    ),
    "scaler-without-device": (
        MADE.replace("torch.cuda.amp", "torch.amp") + REGION + STEP,
        3,
        MADE.replace("torch.cuda.amp.GradScaler()", "torch.amp.GradScaler('cuda')") + REGION + STEP,
    ),
    "device-bound-amp": (
        TOP
        + "on = device.type == 'cuda'\nscaler = torch.cuda.amp.GradScaler(enabled=on)\n"
        + REGION,
        4,
        TOP + "on = args.amp\nscaler = torch.cuda.amp.GradScaler(enabled=on)\n" + REGION,
    ),
    "amp-off-after-port": (
        TOP + "with torch.autocast('cuda', enabled=torch.cuda.get_device_capability()[0] >= 7):\n"
        "    y = f(x)\n",
        3,
        TOP + "with torch.autocast('cuda', enabled=True):\n    y = f(x)\n",
    ),
    "scaler-state-lost": (
        MADE
        + REGION
        + STEP
        + "torch.save({'model': m.state_dict(), 'opt': opt.state_dict()}, 'a')\n",
        10,
        MADE
        + REGION
        + STEP
        + "torch.save({'opt': opt.state_dict(), 'scaler': scaler.state_dict()}, 'a')\n",
    ),
    "vector-float16-loss": (
        MADE
        + "crit = torch.nn.MSELoss(reduction='none')\n"
        + REGION.replace("f(x)", "crit(x, y)")
        + STEP,
        8,
        MADE
        + "crit = torch.nn.MSELoss(reduction='none')\n"
        + REGION.replace("f(x)", "crit(x, y).mean()")
        + STEP,
    ),
    "unknown-name": (
        TOP + "torch.nn.function.relu(x)\n",
        3,
        TOP + "try:\n    torch.nn.function\nexcept AttributeError:\n    pass\ntorch.nn.Linear\n"
        "from torch.utils.tensorboard import SummaryWriter\n",  # another package brings it
    ),
    "softmax-before-cross-entropy": (
        "import torch\nfrom torch import nn\nclass Net(nn.Module):\n    def forward(self, x):\n"
        "        return torch.softmax(x, 1)\n\nnet = Net()\nout = net(x)\n"
        "loss = nn.CrossEntropyLoss()(out, y)\n",
        9,
        "import torch\nfrom torch import nn\nclass Net(nn.Module):\n    def forward(self, x):\n"
        "        return torch.log_softmax(x, 1)\n\nnet = Net()\n"
        "loss = nn.CrossEntropyLoss()(net(x), y)\np = torch.softmax(net(x), 1)\n",
    ),
    "parameters-in-16-bits": (
        "import torch\nnet = torch.nn.Linear(2, 2).to('cuda', torch.bfloat16)\n"
        "opt = torch.optim.SGD(net.parameters(), lr=1)\nnet(x).sum().backward()\nopt.step()\n",
        2,
        "import torch\nnet = torch.nn.Linear(2, 2).to('cuda')\nx = x.to(torch.bfloat16)\n"
        "opt = torch.optim.SGD(net.parameters(), lr=1)\nnet(x).sum().backward()\nopt.step()\n",
    ),
    "return-before-yield": (
        "from contextlib import contextmanager\n@contextmanager\ndef region(on):\n"
        "    if not on:\n        return\n    with amp():\n        yield\n",
        5,
        "from contextlib import contextmanager\n@contextmanager\ndef region(on):\n"
        "    if not on:\n        yield\n        return\n    with amp():\n        yield\n",
    ),
    "method-of-param-groups": (
        "opt.param_groups.zero_grad()\n",
        1,
        "opt.param_groups.append(g)\nopt.param_groups[0].update(lr=1)\n",
    ),
}


def _found(folder: Path, text: str) -> list[tuple[int, str]]:
    (folder / "a.py").write_text(text)
    result = check_tree(walk(folder / "a.py"))
    return [(finding.line, finding.name) for finding in result.files[0].findings]


@pytest.mark.parametrize("name", LINTS)
def test_finding_is_found_in_its_line_and_only_there(tmp_path: Path, name: str) -> None:
    bad, line, good = CASES[name]
    assert (line, name) in _found(tmp_path, bad)
    assert name not in {found for _, found in _found(tmp_path, good)}


def test_scaler_that_a_function_is_handed_is_one(tmp_path: Path) -> None:
    inside = "".join(f"    {line}\n" for line in (REGION + STEP).splitlines())
    text = f"import torch\n\n\ndef train(scaler, opt, loader):\n{inside}"
    assert "float16-unscaled" not in {name for _, name in _found(tmp_path, text)}
    plain = text.replace("scaler.scale(loss).backward()", "loss.backward()")
    assert plain != text
    assert "float16-unscaled" in {name for _, name in _found(tmp_path, plain)}


def test_unknown_name_comes_with_the_nearest_one(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("import torch.nn as nn\nnn.utils.clip_grad_nrom_(p, 1)\n")
    result = check_tree(walk(tmp_path / "a.py"))
    assert "nearest is torch.nn.utils.clip_grad_norm_" in result.files[0].findings[0].text


@pytest.mark.parametrize(
    "asked",
    [
        "if hasattr(torch.nn, 'function'):\n    f(torch.nn.function)\n",
        "f(torch.nn.function if hasattr(torch.nn, 'function') else 0)\n",
        "try:\n    f(torch.nn.function)\nexcept AttributeError:\n    pass\n",
    ],
)
def test_name_that_a_script_asks_for_first_is_no_finding(tmp_path: Path, asked: str) -> None:
    assert _found(tmp_path, f"import torch\n{asked}") == []
    assert _found(tmp_path, "import torch\nf(torch.nn.function)\n") == [(2, "unknown-name")]


def test_scaler_and_autocast_in_two_files_are_no_finding(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(MADE + STEP)
    (tmp_path / "b.py").write_text(TOP + REGION)
    result = check_tree(walk(tmp_path))
    assert not [finding for file in result.files for finding in file.findings]


@pytest.fixture
def checked(tmp_path: Path):  # type: ignore[no-untyped-def]
    (tmp_path / "a.py").write_text(CASES["clip-scaled"][0])
    (tmp_path / "b.py").write_text("def f(:\n")
    return check_tree(walk(tmp_path))


def test_github_format_is_one_annotation_a_finding(checked) -> None:  # type: ignore[no-untyped-def]
    lines = lint(checked, "github").splitlines()
    assert lines[0].startswith(
        "::warning file=a.py,line=8,col=1,title=mpcore clip-scaled::gradients"
    )
    assert lines[1].startswith("::error file=b.py,line=1::broken Python")


def test_sarif_has_every_rule_and_points_at_the_line(checked) -> None:  # type: ignore[no-untyped-def]
    log = json.loads(lint(checked, "sarif"))
    assert log["version"] == "2.1.0"
    (run,) = log["runs"]
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == list(LINTS)
    (result,) = run["results"]
    assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == result["ruleId"]
    region = result["locations"][0]["physicalLocation"]["region"]
    assert region == {"startLine": 8, "startColumn": 1}
    assert run["invocations"][0]["executionSuccessful"] is False


@pytest.mark.parametrize("form", ["text", "github", "json", "sarif"])
def test_check_writes_nothing_and_its_exit_code_says_whether_there_is_something(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    (tmp_path / "a.py").write_text(CASES["clip-scaled"][0])
    assert check(tmp_path, form=form) == 1
    assert "clip-scaled" in capsys.readouterr().out
    (tmp_path / "a.py").write_text(CASES["clip-scaled"][2])
    assert check(tmp_path, form=form) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["a.py"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"to": "torch_npv", "output": Path("o")}, "did you mean 'torch_npu'?"),
        ({"to": "torch_npu"}, "`-o` must name the file or folder"),
        ({"to": "mindspore", "output": Path("o"), "api": "mnt"}, "did you mean 'mint'?"),
        ({"to": "mindspore", "output": Path("o"), "portable": True}, "`--portable` is for"),
        ({"to": "torch_npu", "output": Path("o"), "jit": True}, "`--jit` is for --to mindspore"),
        ({"to": "mindspore", "output": Path("o"), "data": "genrator"}, "mean 'generator'?"),
        ({"to": "torch_npu", "output": Path("o"), "report": "pdf"}, "`--report` must be one of"),
    ],
)
def test_wrong_options_are_one_clear_line(
    tmp_path: Path, options: dict[str, object], words: str
) -> None:
    (tmp_path / "a.py").write_text("x = 1\n")
    with pytest.raises(PortError) as error:
        port(tmp_path, **options)  # type: ignore[arg-type]
    assert words in str(error.value)


def test_wrong_format_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(PortError, match="did you mean 'sarif'"):
        check(tmp_path, form="sarfi")


@pytest.mark.parametrize("code", [0, 2])
@pytest.mark.parametrize("form", FORMATS)
def test_answer_replaces_an_earlier_answer_and_nothing_else(
    tmp_path: Path, form: str, code: int
) -> None:
    (tmp_path / "a.py").write_text(CASES["clip-scaled"][code])
    check(tmp_path / "a.py", form=form, output=tmp_path / "new" / "answer")
    first = (tmp_path / "new" / "answer").read_bytes()
    check(tmp_path / "a.py", form=form, output=tmp_path / "new" / "answer")
    assert (tmp_path / "new" / "answer").read_bytes() == first
    before = (tmp_path / "a.py").read_bytes()
    with pytest.raises(PortError, match="there already and no earlier answer"):
        check(tmp_path / "a.py", form=form, output=tmp_path / "a.py")
    assert (tmp_path / "a.py").read_bytes() == before
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["answer"]


MORE = {
    "a checkpoint made by dict()": (
        MADE
        + REGION
        + STEP
        + "torch.save(dict(model=m.state_dict(), optimizer=opt.state_dict()), f)\n",
        "scaler-state-lost",
    ),
    "a dtype out of a table": (
        MADE + "kinds = {'a': torch.float16, 'b': torch.bfloat16}\n"
        "with torch.autocast('cuda', kinds[name]):\n    loss = f(x)\n" + STEP,
        "scaler-with-bfloat16",
    ),
    "a softmax at the end of a Sequential": (
        "import torch\nfrom torch import nn\n"
        "net = nn.Sequential(nn.Linear(2, 2), nn.Softmax(1)).cuda()\n"
        "loss = nn.functional.cross_entropy(net(x), y)\n",
        "softmax-before-cross-entropy",
    ),
}
LESS = {
    "a checkpoint with the scaler": (
        MADE
        + REGION
        + STEP
        + "torch.save(dict(optimizer=opt.state_dict(), scaler=scaler.state_dict()), f)\n",
        "scaler-state-lost",
    ),
    "a scaler that asks for the dtype": (
        MADE.replace("GradScaler()", "GradScaler(enabled=dtype == 'a')")
        + "kinds = {'a': torch.float16, 'b': torch.bfloat16}\n"
        "with torch.autocast('cuda', kinds[name]):\n    loss = f(x)\n" + STEP,
        "scaler-with-bfloat16",
    ),
    "a wrapper of a scaler alone": (
        "import torch\nclass Scaler:\n    def __init__(self):\n"
        "        self.scaler = torch.cuda.amp.GradScaler()\n    def __call__(self, loss):\n"
        "        self.scaler.scale(loss).backward()\n",
        "scaler-without-autocast",
    ),
}


@pytest.mark.parametrize("case", [*MORE, *LESS])
def test_finding_is_found_in_other_spellings_too(tmp_path: Path, case: str) -> None:
    text, name = {**MORE, **LESS}[case]
    assert (name in {found for _, found in _found(tmp_path, text)}) == (case in MORE)


def test_a_network_that_takes_its_own_place_on_a_device_ends_the_search(tmp_path: Path) -> None:
    text = (
        "import torch\nfrom torch import nn\nnet = nn.Linear(2, 2)\n"
        "for device in devices:\n    net = net.to(device)\n"
        "    loss = nn.functional.cross_entropy(net(x), y)\n"
    )
    assert "softmax-before-cross-entropy" not in {found for _, found in _found(tmp_path, text)}


@pytest.mark.parametrize("target", ["torch_npu", "mindspore"])
def test_what_a_port_has_mended_is_said_to_be_repaired(target: str) -> None:
    text = "import torch\nscaler = torch.amp.GradScaler()\n" + REGION
    (finding,) = (f for f in port_text(text, load_target(target)).findings if "device" in f.name)
    assert (finding.name, finding.repaired) == ("scaler-without-device", True)
    fused = "import torch\ns = torch.cuda.amp.GradScaler()\no = torch.optim.AdamW(p, fused=True)\n"
    found = {f.name: f.repaired for f in port_text(fused + REGION, load_target(target)).findings}
    assert found["fused-with-scaler"]


@pytest.mark.parametrize("target", ["torch_npu", "mindspore"])
def test_a_message_asks_for_what_the_port_needs(target: str) -> None:
    text = (
        "try:\n    from apex import amp\nexcept ImportError:\n"
        "    raise ImportError('Please install apex from https://example.org')\n"
        "print('apex: fast')\n"
        "model, opt = amp.initialize(model, opt, opt_level='O2')\n"
    )
    done = port_text(text, load_target(target)).text
    assert "Please install apex" not in done
    assert "pip install mpcore" in done
    assert "'apex: fast'" in done


@pytest.mark.parametrize(
    "caught", ["except ImportError:", "except:", "except (OSError, Exception):"]
)
def test_a_message_stays_where_the_import_that_it_speaks_of_does(caught: str) -> None:
    text = (
        "import torch\ntry:\n    from apex.fp16_utils import FP16_Optimizer\n"
        f"{caught}\n    print('apex not installed, ignoring --fp16')\n    fp16 = False\n"
        "opt = FP16_Optimizer(opt) if fp16 else opt\n"
    )
    done = port_text(text, load_target("torch_npu"))
    assert "apex not installed" in done.text
    (edit,) = done.edits
    assert (edit.kind, edit.line) == ("unproven", 3)
    assert "fails on an NPU" in edit.reason
    raising = text.replace("    fp16 = False\n", "    raise\n")
    (refused, *_) = port_text(raising, load_target("torch_npu")).edits
    assert (refused.kind, refused.line) == ("refused", 3)


@pytest.mark.parametrize(
    ("made", "lines"),
    [
        ("net.parameters()", 1),
        ("filter(lambda p: p.requires_grad, net.parameters())", 1),
        ("(p for p in net.parameters())", 1),
        ("[p for p in net.parameters()]", 0),
        ("list(net.parameters())", 0),
    ],
)
def test_a_port_that_clips_where_torch_does_not_says_so(made: str, lines: int) -> None:
    script = (
        f"import torch\nnet = torch.nn.Linear(2, 1)\nparams = {made}\n"
        "opt = torch.optim.SGD(params, lr=0.1)\nfor x in data:\n    net(x).sum().backward()\n"
        "    torch.nn.utils.clip_grad_norm_(params, 0.1)\n    opt.step()\n    opt.zero_grad()\n"
    )
    found = port_text(script, load_target("mindspore"))
    said = [one for one in found.edits if "nothing is clipped" in one.reason]
    assert [one.line for one in said] == [7] * lines

"""What readers of ports saw: scalers of one branch, apex beside scripts, and names of settings."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib.resources import files
from typing import TYPE_CHECKING

import pytest

from mpcore_port.engine import port_text, port_tree
from mpcore_port.settings_files import on_npu
from mpcore_port.source import walk
from mpcore_port.targets import Options, load_target

from .ports import FILLED, NET, beside, ported

if TYPE_CHECKING:
    from pathlib import Path

SCALERS = (
    FILLED
    + NET
    + """
def train(fp16, loader, one, two):
    first = torch.optim.SGD(one.parameters(), 0.1)
    second = torch.optim.SGD(two.parameters(), 0.2)
    if fp16:
        {made[0]}
        {made[1]}
    for x in loader:
        first.zero_grad()
        loss = one(x).pow(2).mean()
        if fp16:
            a.scale(loss).backward()
            a.step(first)
            a.update()
        else:
            loss.backward()
            first.step()
        second.zero_grad()
        other = two(x).sin().mean(){more}
        if fp16:
            b.scale(other).backward()
            b.step(second)
            b.update()
        else:
            other.backward()
            second.step()
    return [one.weight.detach(), two.weight.detach()]
x = torch.linspace(-1.0, 1.0, 6).view(2, 3)
made = train(False, [x, x * 2], Net(), Net(3))
"""
)
MAKERS = ["a = torch.amp.GradScaler('cpu')", "b = torch.amp.GradScaler('cpu')"]


@pytest.mark.parametrize("more", ["", " + one(x).mean()"])
@pytest.mark.parametrize("made", [MAKERS, MAKERS[::-1]])
def test_scalers_of_one_branch_stand_for_none_in_the_other(
    made: list[str], more: str, tmp_path: Path
) -> None:
    beside(SCALERS.format(made=made, more=more), tmp_path)


HANDED = """import torch
def step(fp16, losses, first, second):
    if fp16:
        a = torch.cuda.amp.GradScaler()
        b = torch.cuda.amp.GradScaler()
    for net, x in losses:
        loss = net(x).mean()
        if fp16:
            a.scale(loss).backward()
        else:
            loss.backward()
        other = net(x).sum()
        if fp16:
            b.scale(other).backward()
        else:
            other.backward()
"""


def test_losses_that_ask_for_scalers_of_one_branch_find_none() -> None:
    made = ported(HANDED).text
    assert "a = None" in made
    assert "b = None" in made


AMP = """import torch
def prepare(net, optimizer, fp16):
    if fp16:
        {}
        {}
        net, optimizer = amp.initialize(net, optimizer, opt_level="O1")
    return net, optimizer
def step(loss, optimizer):
    with amp.scale_loss(loss, optimizer) as scaled:
        scaled.backward()
    optimizer.step()
"""
LINES = ["global amp", "from apex import amp"]


@pytest.mark.parametrize("lines", [LINES, LINES[::-1]])
def test_a_name_is_of_the_module_wherever_it_is_declared_so(lines: list[str]) -> None:
    made = ported(AMP.format(*lines)).text
    assert "amp.initialize" not in made.replace("port.apex.", "")
    assert "port.apex.initialize(" in made
    assert "port.apex.scale_loss(" in made


USES = """import torch
{}
def prepare(net, optimizer):
    return amp.initialize(net, optimizer, opt_level="O1")
"""


def text_of(place: Path, target: str) -> str:
    result = port_tree(walk(place), load_target(target), Options())
    return next(one.text for one in result.files if one.source.path == "train.py")


@pytest.mark.parametrize(
    "line", ["from apex import amp", "from apex import (\n    amp,\n)", "import apex.amp as amp"]
)
@pytest.mark.parametrize("whole", [True, False])
def test_apex_beside_a_script_is_apex(line: str, whole: bool, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(USES.format(line))
    (tmp_path / "apex").mkdir()
    (tmp_path / "apex" / "__init__.py").write_text("")
    place = tmp_path if whole else tmp_path / "train.py"
    for target, made in (("mindspore", "port.apex."), ("torch_npu", "mpcore_compat")):
        text = text_of(place, target)
        assert made in text
        assert "from apex" not in text
        assert "import apex" not in text


def test_another_package_of_that_name_is_the_scripts_own(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch\nfrom apex.replay import Buffer\n")
    (tmp_path / "apex").mkdir()
    (tmp_path / "apex" / "replay.py").write_text("class Buffer:\n    pass\n")
    for target in ("mindspore", "torch_npu"):
        assert "from apex.replay import Buffer" in text_of(tmp_path, target)


GROUP = """import argparse
import torch
import torch.distributed as dist
p = argparse.ArgumentParser()
{}
dist.init_process_group({}, world_size=2)
"""
OF_SETTINGS = [
    "backend=h.dist_config['dist_backend']",
    "cfg.DIST.BACKEND",
    "backend=cfg.get('backend', 'nccl')",
    "backend=cfg['dist']['dist-backend']",
]
SAID = ["", "p.add_argument('--dist_backend', required=True)", "p.add_argument('--dist-url')"]


def of_npu(line: str, group: str) -> list[str]:
    done = port_text(GROUP.format(line, group), load_target("torch_npu"))
    return [edit.reason for edit in done.edits if edit.kind == "unproven"]


@pytest.mark.parametrize("group", OF_SETTINGS)
@pytest.mark.parametrize("line", SAID)
def test_a_backend_that_settings_name_is_listed(line: str, group: str) -> None:
    (reason,) = of_npu(line, group)
    assert "they must say hccl where they say nccl" in reason


KNOWN = [
    "p.add_argument('--dist_backend', default='nccl')",
    "p.add_argument('--dist-backend', '-b', type=str,\n    help='(its name)', default='nccl')",
    "cfg = {'dist_backend': 'nccl'}",
    "args.dist_backend = 'nccl'",
    "class Settings:\n    dist_backend: str = 'nccl'",
]


@pytest.mark.parametrize("line", KNOWN)
def test_a_backend_that_the_file_says_is_converted(line: str) -> None:
    assert of_npu(line, "backend=args.dist_backend") == []
    assert of_npu("", "backend='nccl'") == of_npu("", "backend=backend") == []


@pytest.mark.parametrize(
    ("line", "made"),
    [
        ("dist_backend: nccl", "dist_backend: hccl"),
        ('  "backend": "nccl",', '  "backend": "hccl",'),
        ("DIST_BACKEND = 'NCCL'  # fast", "DIST_BACKEND = 'hccl'  # fast"),
        ("backend: nccl or gloo", "backend: nccl or gloo"),
        ("name: nccl", "name: nccl"),
    ],
)
def test_a_backend_in_settings_is_the_npus(line: str, made: str) -> None:
    assert on_npu(f"a: 1\n{line}\n") == (f"a: 1\n{made}\n", [2] if made != line else [])


def test_the_report_says_which_settings_differ(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch\nx = torch.ones(2).cuda()\n")
    (tmp_path / "c.yaml").write_text("device: cuda\nbackend: nccl\n")
    (tmp_path / "d.yaml").write_text("backend: nccl\n")
    result = port_tree(walk(tmp_path), load_target("torch_npu"), Options())
    told = {one.path: one.reason for one in result.unread}
    assert told["c.yaml"] == "lines 1, 2 of the copy: npu and hccl, where it says cuda and nccl"
    assert told["d.yaml"] == "line 1 of the copy: hccl, where it says nccl"


def test_a_backend_of_torchs_own_is_no_setting() -> None:
    assert of_npu("", "backend=dist.Backend.GLOO") == of_npu("", "dist.Backend.NCCL") == []


ANSWERS = """
import sys, torch
from mpcore_port.stubs import devices
device = devices.install(sys.argv[1])
device.reset_accumulated_memory_stats()
device.memory_stats()["allocated_bytes.all.peak"] + device.max_memory_cached(0)
with device.device_of(torch.ones(2)), device.StreamContext(device.Stream()):
    device.set_sync_debug_mode(device.get_sync_debug_mode())
print([name for name in sys.argv[2:] if name not in vars(device)])
"""
MEMORY = ("caching_allocator_alloc", "caching_allocator_delete")
"""Names that give memory out by its address: there is none."""


@pytest.mark.parametrize("kind", ["cuda", "npu"])
def test_the_stand_in_has_what_the_device_has(kind: str) -> None:
    text = (files("mpcore_port.torch_npu") / "facts" / "cuda.toml").read_text(encoding="utf-8")
    facts = tomllib.loads(text)
    names = [name for name in (*facts["listed"], *facts["public"]) if "Storage" not in name]
    asked = [name for name in names if name not in MEMORY]
    done = subprocess.run(
        [sys.executable, "-c", ANSWERS, kind, *asked], capture_output=True, text=True, check=False
    )
    assert (done.stdout.strip(), done.returncode) == ("[]", 0), done.stderr


LOADS = """import torch
from mine import Net
def weights(path, net):
    {}
    net.load_state_dict(found, strict=False)
    return net
"""
WHOLE = [
    "file = torch.load(path)\n    found = file['model'].float().state_dict()",
    "found = torch.load(path)['model'].state_dict()",
    "whole = torch.load(path)['model'].float().fuse().eval()\n    found = whole.state_dict()",
    "file = torch.load(path)\n    found = (file.get('ema') or file['model']).float().state_dict()",
    "file = torch.load(path)\n    other = file['ema']\n    found = other.state_dict()",
    "found = torch.load(path)['model'](net)",
    "teacher = torch.load(path)['model'].to('cuda')\n    found = teacher(net)",
]
STATES = [
    "found = torch.load(path)",
    "found = torch.load(path)['model']",
    "file = torch.load(path)\n    found, x = file['model'], file['x'].float()",
    "torch.save(net, path)\n    found = torch.load(path).state_dict()",
]


def whole_ones(lines: str) -> list[str]:
    edits = ported(LOADS.format(lines)).edits
    return [edit.old for edit in edits if "whole networks is not read" in edit.reason]


@pytest.mark.parametrize("lines", WHOLE)
def test_files_that_are_asked_for_networks_are_listed_where_they_are_read(lines: str) -> None:
    assert whole_ones(lines) == ["torch.load(path)"]


@pytest.mark.parametrize("lines", STATES)
def test_files_of_states_and_of_this_file_are_not_listed(lines: str) -> None:
    assert whole_ones(lines) == []


def test_a_backend_of_another_files_option_is_converted_there(tmp_path: Path) -> None:
    made = "import argparse\np = argparse.ArgumentParser()\n"
    option = "p.add_argument('--dist-backend', default='nccl')\n"
    (tmp_path / "params.py").write_text(made + option)
    (tmp_path / "train.py").write_text(GROUP.format("", "backend=args.dist_backend"))
    result = port_tree(walk(tmp_path), load_target("torch_npu"), Options())
    edits = [edit for one in result.files for edit in one.edits]
    assert [edit.new for edit in edits if "nccl" in edit.old] == ["'hccl'"]
    assert "unproven" not in {edit.kind for edit in edits}

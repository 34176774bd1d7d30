"""The target torch_npu: cases with a before and an after, and what must stay as it is."""

from __future__ import annotations

import difflib
import importlib
import io
import tokenize
from pathlib import Path
from typing import Any

import pytest

from mpcore_port.engine import port_text
from mpcore_port.targets import Options, load_target
from mpcore_port.torch_npu import rules
from mpcore_port.torch_npu.devices import device_text
from mpcore_port.torch_npu.tables import apis
from mpcore_port.world import RULE as CLOSED_WORLD

HERE = Path(__file__).parent
CASES = sorted((HERE / "cases" / "torch_npu").iterdir())
SCRIPTS = sorted((HERE / "scripts").glob("*.py"))
TARGET = load_target("torch_npu")
PORTABLE = Options(portable=True)
TEXTS = [*(case / "before.py" for case in CASES), *SCRIPTS]


def _name(path: Path) -> str:
    return path.parent.name if path.name == "before.py" else path.stem


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_case_becomes_what_is_written_beside_it(case: Path) -> None:
    done = port_text(_read(case / "before.py"), TARGET, path=f"{case.name}.py")
    assert done.text == _read(case / "after.py")
    made = [edit for edit in done.edits if edit.rule != CLOSED_WORLD]
    edits = [f"{edit.line} {edit.kind} {edit.rule}" for edit in made]
    assert edits == _read(case / "edits.txt").splitlines()
    assert not done.failures
    for edit in done.edits:
        assert edit.reason
        assert (edit.kind == "changed") == bool(edit.effect), edit


@pytest.mark.parametrize(
    "case", [case for case in CASES if (case / "portable.py").exists()], ids=lambda case: case.name
)
def test_portable_case_becomes_what_is_written_beside_it(case: Path) -> None:
    done = port_text(_read(case / "before.py"), TARGET, PORTABLE, f"{case.name}.py")
    assert done.text == _read(case / "portable.py")


def test_portable_port_trains_on_a_cpu_where_the_original_cannot() -> None:
    pytest.importorskip("torch")
    text = (
        "import torch\nfrom torch.cuda.amp import GradScaler, autocast\n\n"
        "model = torch.nn.Linear(4, 1).cuda(0)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "scaler = GradScaler(2.0**4)\n"
        'with autocast():\n    out = model(torch.ones(2, 4, device="cuda"))\n'
        "    loss = out.float().pow(2).mean()\n"
        "scaler.scale(loss).backward()\nscaler.step(optimizer)\nscaler.update()\n"
    )
    room: dict[str, Any] = {}
    exec(compile(port_text(text, TARGET, PORTABLE).text, "port", "exec"), room)
    assert room["_port_device"] == "cpu"
    assert str(room["out"].dtype) == "torch.float16"
    assert room["scaler"].is_enabled()
    assert room["scaler"].get_scale() == 16.0


@pytest.mark.parametrize("options", [Options(), PORTABLE], ids=["npu", "portable"])
@pytest.mark.parametrize("path", TEXTS, ids=_name)
def test_port_compiles_keeps_other_lines_and_is_left_alone_by_a_second_port(
    path: Path, options: Options
) -> None:
    before = _read(path)
    done = port_text(before, TARGET, options)
    assert not done.failures
    compile(done.text, str(path), "exec")
    touched = {
        line
        for edit in done.edits
        for line in range(edit.line, edit.line + edit.old.count("\n") + 1)
    }
    old, new = before.splitlines(), done.text.splitlines()
    for tag, start, end, _, _ in difflib.SequenceMatcher(None, old, new, False).get_opcodes():
        if tag in ("replace", "delete"):
            changed = [old[i] for i in range(start, end) if i + 1 not in touched]
            assert set(changed) <= _moved_in(done), changed
    again = port_text(done.text, TARGET, options)
    assert again.text == done.text
    assert not [edit for edit in again.edits if edit.new != edit.old]


def _moved_in(done: object) -> set[str]:
    """Return lines that only got deeper, inside an autocast block that apex had no word for."""
    text = done.text.splitlines()  # type: ignore[attr-defined]
    stripped = {line.strip() for line in text}
    before = done.source.text.splitlines()  # type: ignore[attr-defined]
    o1 = any(edit.rule == "apex O1" for edit in done.edits)  # type: ignore[attr-defined]
    return {line for line in before if o1 and line.strip() in stripped}


@pytest.mark.parametrize("path", SCRIPTS, ids=_name)
def test_ported_script_names_no_cuda_but_in_words_of_its_own(path: Path) -> None:
    done = port_text(_read(path), TARGET)
    assert done.status != "does not run"
    found = []
    for token in tokenize.generate_tokens(io.StringIO(done.text).readline):
        if token.type == tokenize.NAME and token.string in ("cuda", "nccl", "apex"):
            found.append((token.start[0], token.line.strip()))
        if token.type == tokenize.STRING and device_text(token.string.strip("\"'f")):
            found.append((token.start[0], token.line.strip()))
    own = [line for _, line in found if "mpcore_compat.apex" not in line]
    assert not own


STAYS = {
    "apex.amp": "from apexes import amp\nimport apexlike.amp\n",
    "apex parts": "from mine import FusedAdam\nFusedAdam([], lr=1)\n",
    "accelerator": "import mine\nmine.accelerator.is_available()\n",
    "data parallel": "import torch\nwhole = isinstance(model, torch.nn.DataParallel)\n",
    "messages": "import apexlike\nprint('install apexlike')\nprint('Please install apex')\n",
    "packages": "try:\n    import flash_attn\nexcept ImportError:\n    flash_attn = None\n",
    "kernels": "import xformers_like.ops\nfrom mine import flash_attn\n",
    "kernel names": "from mine import flash_attn\nflash_attn.layers.rotary()\n",
    "imports": "from torch import nn\nimport torch.amp\nfrom .cuda import amp\n",
    "names": "import torch\nfrom mine import cuda\ncuda.is_available()\ntorch.autocast('cpu')\n",
    "settings": "import torch\nallowed = torch.backends.cudnn.benchmark\n",
    "timm": "from mine.timm.data import create_loader\ncreate_loader(data, (3, 8, 8), 4)\n",
    "null contexts": "import torch\nwith torch.no_grad():\n    pass\n",
    "device of settings": "import torch\np.add_argument('--device')\ntorch.device(args.device)\n"
    "torch.device(own)\n",
    "device strings": '"""cuda"""\na = b"cuda"\nb = args["cuda"]\nc = "cuda is here"\n',
    "device methods": "def cuda():\n    pass\n\n\ncuda()\nargs.cuda = cuda\n",
    "device numbers": "import torch\nx.to(dtype)\nx.to(other)\nrank.to(0.5)\nf(device=0)\n"
    "torch.device('cpu')\n",
    "portable calls": "import mine\nmine.synchronize()\nmine.Parallel(m, device_ids=[0])\n",
    "loss on the CPU": "import torch\nscaler = torch.amp.GradScaler('cpu')\n"
    "scaler.scale(loss).backward()\nx.scale(2)\n",
    "autocast arguments": "import torch\nwith torch.autocast('cpu', torch.bfloat16):\n    pass\n",
    "is_cuda": "is_cuda = True\nx.is_cpu\n",
    "environment": 'import os\nos.environ["MY_CUDA_VISIBLE_DEVICES"] = "1"\n',
    "scaler": 'import torch\nclass GradScaler: pass\nGradScaler(1)\ntorch.amp.GradScaler("cpu")\n',
    "scaler state": "import torch\nmodel.load_state_dict(state)\nclass S: pass\nscaler = S()\n"
    "scaler.load_state_dict(state)\n",
    "custom_fwd": 'import torch\n@torch.amp.custom_fwd(device_type="cpu")\ndef f(ctx, x): pass\n',
    "autocast state": 'import torch\ntorch.is_autocast_enabled("cpu")\n',
    "fused optimizers": "import torch\ntorch.optim.Adam(p, fused=True)\nmake(fused=True)\n",
    "process group": 'import torch.distributed as d\nd.init_process_group("gloo")\n'
    "d.init_process_group(**options)\n",
    "said": "import mine\nprint(mine.cuda.nccl.version())\n",
    "calls": "import torch\nwhole = isinstance(model, torch.nn.DataParallel)\n",
    "profiler": "import mine\nmine.profile(experimental_config=1).key_averages()\n",
    "flagged": "import re\nre.compile('x')\n",
    "horovod": "import horovod_like.torch as hvd\nfrom mine.horovod import torch\n",
    "horovod names": "import horovod_like.torch as hvd\nhvd.elastic.run(f)\nhvd.init(comm=1)\n",
    "apex O1": "import torch\namp.initialize(model, optimizer)\noptimizer.step()\n",
}


@pytest.mark.parametrize("rule", [rule.name for rule in rules(Options())[0]])
def test_rule_leaves_alone_what_only_looks_like_its_own(rule: str) -> None:
    done = port_text(STAYS[rule], TARGET)
    assert done.text == STAYS[rule]
    assert all(edit.old == edit.new for edit in done.edits)


@pytest.mark.parametrize("rule", [rule.name for rule in rules(PORTABLE)[0]])
def test_portable_rule_leaves_alone_what_only_looks_like_its_own(rule: str) -> None:
    same = {"names": "names", "strings": "device strings", "methods": "device methods"}
    same |= {"amp": "custom_fwd", "imports": "imports", "process group": "process group"}
    text = STAYS[same.get(rule.removeprefix("portable "), rule)]
    assert port_text(text, TARGET, PORTABLE).text == text


@pytest.mark.parametrize("setting", ["cfg.device", "self.cfg['train']['device']", "c.accelerator"])
def test_a_device_that_settings_name_is_listed(setting: str) -> None:
    done = port_text(f"import torch\nplace = torch.device({setting})\n", TARGET)
    assert done.status == "runs, 1 line unproven"
    assert "they must say npu" in done.edits[0].reason


def test_rule_that_crashes_becomes_a_line_of_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    from mpcore_port.torch_npu.devices import DeviceMethod

    def crash(*_: object) -> None:
        msg = "no such thing"
        raise KeyError(msg)

    monkeypatch.setattr(DeviceMethod, "leave", crash)
    done = port_text('import torch\nx = y.cuda()\nz = torch.device("cuda")\n', TARGET)
    assert "y.cuda()" in done.text
    assert 'torch.device("npu")' in done.text
    assert done.status == "does not run"
    assert done.failures[0].startswith("script.py:2: rule device methods failed (KeyError")


def test_refused_name_raises_its_reason_only_when_it_is_used() -> None:
    text = "from torch.cuda import nvtx\n\n\ndef f():\n    return [nvtx.mark('a')]\n"
    done = port_text(text, TARGET)
    assert done.status == "runs unless line 5 is reached"
    room: dict[str, object] = {}
    exec(done.text.replace("import torch_npu\n", ""), room)
    with pytest.raises(NotImplementedError, match="nvtx marks are for NVIDIA's profiler"):
        room["f"]()  # type: ignore[operator]


@pytest.mark.parametrize(
    "head", ["import os, pynvml\nimport torch\n", "import pynvml\nimport torch\n"]
)
def test_import_that_is_refused_in_front_of_torchs_raises_its_reason(head: str) -> None:
    text = port_text(head + "made = lambda: pynvml.nvmlInit()\n", TARGET).text
    held: dict[str, Any] = {}
    exec(text.replace("import torch_npu\n", ""), held)
    with pytest.raises(NotImplementedError, match="asks NVIDIA's driver"):
        held["made"]()


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("import torch\ntorch.ones(1).cuda()\n", "runs"),
        ("a.cuda()\n", "runs, 1 line unproven"),
        ("import torch\ntorch.compile(f)\n", "runs"),
        ("import torch\ntorch.cuda.power_draw()\n", "does not run"),
    ],
    ids=["exact", "unproven", "changed", "refused"],
)
def test_status_of_a_file_is_that_of_its_worst_site(text: str, kind: str) -> None:
    assert port_text(text, TARGET).status == kind


@pytest.mark.parametrize(
    ("flag", "goes"),
    [("", False), ("use_cuda=False", False), ("use_cuda=True", True), ("use_cuda=args.gpu", True)],
)
def test_autograds_profiler_runs_without_cudas(flag: str, goes: bool) -> None:
    text = f"import torch\nwith torch.autograd.profiler.profile(on, {flag}) as seen:\n    pass\n"
    done = port_text(text, TARGET)
    said = [edit for edit in done.edits if "times of the CPU alone" in edit.effect]
    assert [edit.kind for edit in said] == ["changed"] * goes
    assert ("use_cuda" in done.text) == (flag == "use_cuda=False")


@pytest.mark.parametrize("options", [Options(), PORTABLE], ids=["npu", "portable"])
def test_data_parallel_runs_on_one_device_and_keeps_its_names(options: Options) -> None:
    pytest.importorskip("torch")
    text = (
        "import torch\nfrom torch.nn import DataParallel as DP\nnet = torch.nn.Linear(2, 3)\n"
        "model = DP(net, device_ids=[0, 1])\nout = model(torch.ones(1, 2))\n"
        "same = isinstance(model, DP) and model.module is net and type(model) in (DP,)\n"
    )
    room: dict[str, Any] = {}
    done = port_text(text, TARGET, options).text
    exec(done.replace("\nimport torch_npu\n", "\n"), room)
    assert room["same"]
    assert tuple(room["out"].shape) == (1, 3)
    assert set(room["model"].state_dict()) == {"module.weight", "module.bias"}


def _exists(name: str) -> bool:
    module, _, last = name.rpartition(".")
    try:
        return hasattr(importlib.import_module(module), last)
    except ModuleNotFoundError:
        above, _, cls = module.rpartition(".")
        return hasattr(getattr(importlib.import_module(above), cls, None), last)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # asking for torch.jit.script warns
def test_every_name_that_stays_in_torch_exists_there() -> None:
    pytest.importorskip("torch")
    for row in apis():
        if row.to.startswith("torch.") and ".npu" not in row.to and row.kind != "refused":
            assert _exists(row.to), row.to


def test_facts_name_every_torch_name_once_with_a_reason() -> None:
    names = [row.name for row in apis()]
    assert len(names) == len(set(names))
    for row in apis():
        assert row.reason, row
        assert (row.kind == "changed") == bool(row.effect), row
        assert (row.kind == "refused") == (not row.to), row


@pytest.mark.parametrize("given", ["'torch.cuda.FloatTensor'", "torch.cuda.HalfTensor"])
@pytest.mark.parametrize("form", ["{}", "{} if fast else 'torch.FloatTensor'"])
def test_a_default_type_of_tensors_on_an_npu_is_unproven(given: str, form: str) -> None:
    text = f"import torch\ntorch.set_default_tensor_type({form.format(given)})\nf({given})\n"
    done = port_text(text, load_target("torch_npu"))
    kinds = {edit.line: edit.kind for edit in done.edits}
    assert kinds[2] == "unproven"
    assert kinds.get(3, "exact") == "exact"
    assert "torch.npu." in done.text.splitlines()[2]


@pytest.mark.parametrize("portable", [False, True])
def test_a_backend_may_be_written_in_capitals(portable: bool) -> None:
    code = (
        "import torch\ntorch.distributed.init_process_group(backend='NCCL', init_method='env://')\n"
    )
    done = port_text(code, TARGET, Options(portable=portable))
    assert "NCCL" not in done.text
    assert ("_port_backend" if portable else "'hccl'") in done.text
    assert not [edit for edit in done.edits if edit.kind == "unproven"]

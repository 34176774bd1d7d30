"""The smallest script for each way of being silently wrong: refused or unproven, by its line."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

import pytest

from mpcore_port.engine import Ported, port_text
from mpcore_port.targets import Options, load_target

TARGETS = {
    "torch_npu": ("torch_npu", Options()),
    "portable": ("torch_npu", Options(portable=True)),
    "mindspore": ("mindspore", Options()),
}
TORCH = ("torch_npu", "portable")
ALL = (*TORCH, "mindspore")


@dataclass(frozen=True)
class Case:
    """A script, the kinds of edits that some lines must have, and words of the status."""

    text: str
    on: tuple[str, ...]
    lines: dict[int, str] = field(default_factory=dict)
    status: str = ""
    never: str = ""


NORM = "import torch\nfrom torch import nn\nnorm = nn.LayerNorm(4)\n"
RATES = "import torch\nopt = torch.optim.Adam(ps, lr=0.1)\n"
CASES = {
    # a Parameter under torch's name
    "weight set on who knows what": Case(
        f"{NORM}def reset(m):\n    m.norm.weight = nn.Parameter(torch.ones(4))\n",
        ("mindspore",),
        {5: "unproven"},
    ),
    # packages built on torch
    "horovod elastic": Case(
        "import horovod.torch as hvd\nhvd.init()\nhvd.elastic.run(f)\n", ALL, {3: "refused"}
    ),
    "horovod of keras": Case("import horovod.keras as hvd\nhvd.init()\n", TORCH, {1: "refused"}),
    "horovod of keras, MindSpore": Case(
        "import horovod.keras as hvd\nhvd.init()\n", ("mindspore",), {2: "refused"}
    ),
    **{
        f"{package} on npu": Case(f"import {package}\nx = {package}.f()\n", TORCH, {1: "unproven"})
        for package in (
            *("transformers", "timm", "torchmetrics", "segmentation_models_pytorch"),
            *("torch_geometric", "torchaudio", "lightning", "accelerate", "peft", "kornia"),
            *("monai", "a_package_that_nobody_knows"),
        )
    },
    **{
        f"{package} in MindSpore": Case(
            f"import {package}\nx = {package}.f()\n", ("mindspore",), {1: "refused"}, "does not run"
        )
        for package in (
            *("transformers", "timm", "torchmetrics", "segmentation_models_pytorch"),
            *("torch_geometric", "torchaudio", "lightning", "accelerate", "peft", "ffcv"),
            *("kornia", "monai", "pytorch_lightning", "einops.layers.torch", "deepspeed"),
            *("albumentations.pytorch", "fairscale", "flash_attn", "xformers", "diffusers"),
        )
    },
    "unknown package in MindSpore": Case(
        "import nobody_knows_it\nnobody_knows_it.f()\n", ("mindspore",), {1: "unproven"}
    ),
    "ffcv": Case(
        "from ffcv.transforms import ToDevice\nToDevice('cuda:0')\n",
        TORCH,
        {1: "refused"},
        "does not run",
    ),
    "neutral packages": Case(
        "import os, json, numpy as np\nimport tqdm\nfrom PIL import Image\nnp.zeros(3)\n",
        ALL,
        {},
        "runs",
    ),
    # --portable follows torch_npu
    "DataParallel": Case(
        "import torch\nmodel = torch.nn.DataParallel(torch.nn.Linear(2, 2))\n",
        TORCH,
        {2: "changed"},
        "runs",
        never="= torch.nn.DataParallel(",
    ),
    "index of a device": Case(
        "import torch\nx = torch.ones(2)\nx.to(0)\n", ("portable",), {3: "exact"}, never="x.to(0)"
    ),
    "rank as a device": Case(
        "import torch\ndef f(rank):\n    model = torch.nn.Linear(2, 2).to(rank)\n",
        ("portable",),
        {3: "exact"},
        never=".to(rank)",
    ),
    "device_ids": Case(
        "import torch\nfrom torch.nn.parallel import DistributedDataParallel as DDP\n"
        "def f(model, rank):\n    return DDP(model, device_ids=[rank])\n",
        ("portable",),
        {4: "exact"},
        never="device_ids=[rank])",
    ),
    "set_device of a rank": Case(
        "import torch\ndef f(rank):\n    torch.cuda.set_device(rank)\n",
        ("portable",),
        {3: "exact"},
    ),
    "profiler's tables": Case(
        "import torch\nwith torch.profiler.profile() as p:\n    pass\np.key_averages()\n",
        TORCH,
        {4: "refused"},
    ),
    # autocast that may switch itself off
    "autocast of a variable device": Case(
        "import torch\ndef f(config, table, name):\n"
        "    with torch.autocast(device_type=config.device_type, dtype=table[name]):\n"
        "        pass\n",
        TORCH,
        {3: "unproven"},
    ),
    # apex broadcasts parameters only
    "apex DDP": Case(
        "import torch\nfrom apex.parallel import DistributedDataParallel as DDP\n"
        "def f(model):\n    return DDP(model)\n",
        TORCH,
        {4: "changed"},
    ),
    # rates that are set by hand reach the step: test_rates_by_hand.py runs them
    "a group that is appended": Case(
        f"{RATES}opt.param_groups.append({{'params': []}})\n",
        ("mindspore",),
        {len(RATES.splitlines()) + 1: "refused"},
    ),
    # what a line says of CUDA in strings and commands
    "nvidia-smi": Case(
        'import subprocess\nsubprocess.run(["nvidia-smi", "-L"])\n', ALL, {2: "unproven"}
    ),
    "a command that says cuda": Case(
        'import os\nos.system("python -m x --device cuda")\n', ALL, {2: "unproven"}
    ),
    "a message that says CUDA": Case('print("needs CUDA 11")\n', ALL, {1: "unproven"}),
    "a word that only looks like it": Case('print("barracuda")\n', ALL, {}, "runs"),
    # nothing is on the device
    "scale of a CPU tensor": Case(
        "import torch\nmodel = torch.nn.Linear(2, 2)\nscaler = torch.cuda.amp.GradScaler()\n"
        "loss = model(torch.ones(1, 2)).sum()\nscaler.scale(loss).backward()\n",
        ("torch_npu",),
        {5: "refused"},
        "does not run",
    ),
    # names
    "is_cuda": Case(
        "import torch\nx = torch.ones(2)\ny = 1 if x.is_cuda else 2\n",
        ("mindspore",),
        {3: "changed refused"},
        never="is_cuda",
    ),
    "an optimizer made of one of torch's": Case(
        "import torch\nclass Mine(torch.optim.Adam):\n    def step(self):\n        pass\n",
        ("mindspore",),
        {2: "refused"},
    ),
    "a name that torch_npu does not document": Case(
        "import torch\nx = torch.segment_reduce(a, 'sum')\n", TORCH, {2: "unproven"}
    ),
    # methods of values that are not known
    "cuda of what nobody knows": Case(
        "import torch\ndef f(batch):\n    return batch.cuda()\n", TORCH, {3: "unproven"}
    ),
    "cuda of a tensor": Case(
        "import torch\nx = torch.ones(2).cuda()\n", TORCH, {2: "exact"}, "runs"
    ),
    "a method that nobody knows": Case(
        "def f(batch):\n    return batch.pack_for_gpu()\n", ALL, {2: "unproven"}
    ),
    "translated method of what nobody knows": Case(
        "import torch\ndef f(batch):\n    return batch.detach().cuda()\n",
        ("mindspore",),
        {3: "unproven"},
    ),
    "cuda of what a loader gives": Case(
        "from torch.utils.data import DataLoader\nfor i, (x, y) in enumerate(DataLoader(data)):\n"
        "    x, y = x.cuda(), y.cuda()\n",
        ALL,
        {3: "exact"},
        "runs",
    ),
    "cuda of a network of one's own": Case(
        "import torch\nclass Net(torch.nn.Module):\n    def forward(self, x):\n"
        "        return x.cuda()\n\ndef train(model):\n    model.cuda()\n\ntrain(Net())\n",
        ALL,
        {4: "exact", 7: "exact"},
        "runs",
    ),
}


def ported(case: Case, target: str) -> Ported:
    """Return the port of a case."""
    name, options = TARGETS[target]
    return port_text(case.text, load_target(name), options)


@pytest.mark.parametrize(
    ("name", "target"), [(name, target) for name, case in CASES.items() for target in case.on]
)
def test_no_smallest_case_is_called_right_that_is_not(name: str, target: str) -> None:
    case = CASES[name]
    done = ported(case, target)
    ast.parse(done.text)
    assert not done.failures
    for line, kinds in case.lines.items():
        found = {edit.kind for edit in done.edits if edit.line == line}
        assert found & set(kinds.split()), (line, found, done.text)
    if case.status:
        assert done.status == case.status, (done.edits, done.text)
    elif "unproven" in case.lines.values() or "refused" in case.lines.values():
        assert done.status != "runs"
    if case.never:
        assert case.never not in done.text


LOST = {
    "f-string": 'import torch\nprint(f"at {torch.version.cuda}")\nx = torch.ones(1).cuda()\n',
    "f-string of a method": 'import torch\nprint(f"{torch.cuda.power_draw()}")\nx.cuda()\n',
    "nested f-string": "import torch\nprint(f\"{f'{torch.cuda.power_draw()}'}\")\nx.cuda()\n",
    "f-string of three": 'import torch\nprint(f"""{torch.cuda.power_draw()}""")\nx.cuda()\n',
    "f-string format": 'import torch\nprint(f"{x:{torch.cuda.power_draw()}}")\nx.cuda()\n',
    "augmented": "import torch\np.grad /= n\nx = torch.ones(1).cuda()\n",
    "augmented method": "import torch\ntorch.cuda.power_draw().x += 1\ny.cuda()\n",
    "tuple": "import torch\np.grad, x = a, b\ny = torch.ones(1).cuda()\n",
    "tuple of groups": "import torch\nfor g in o.param_groups:\n    g['lr'], x = a, b\ny.cuda()\n",
    "target": "import torch\ntorch.cuda.power_draw = 1\ny.cuda()\n",
    "deleted": "import torch\ndel p.grad\ny.cuda()\n",
    "decorator": "import torch\n@torch.cuda.jiterator\ndef f():\n    pass\nx = y.cuda()\n",
    "decorator call": "import torch\n@torch.cuda.power_draw(1)\nclass A:\n    pass\nx.cuda()\n",
    "semicolon": "import torch; torch.cuda.power_draw(); x = y.cuda()\n",
    "semicolon import": "import torch; from torch.cuda import nvtx; nvtx.mark('a'); y.cuda()\n",
    "walrus": "import torch\nif (w := torch.cuda.power_draw()) and x.cuda():\n    pass\n",
    "match": "import torch\nmatch torch.cuda.power_draw():\n    case 1:\n        x.cuda()\n",
    "match class": "import torch\nmatch x:\n    case torch.cuda.CUDAGraph():\n        y.cuda()\n",
    "nested": "import torch\ndef f():\n    def g():\n        nonlocal_ = torch.cuda.power_draw()\n"
    "        return x.cuda()\n    return g\n",
    "with": "import torch\nwith torch.cuda.graph(g) as h, open('a') as f:\n    x.cuda()\n",
    "for": "import torch\nfor p.grad in torch.cuda.power_draw():\n    x.cuda()\n",
    "elif": "import torch\nif a:\n    pass\nelif torch.cuda.power_draw():\n    x.cuda()\n",
    "lambda": "import torch\nf = lambda x=torch.cuda.power_draw(): x.cuda()\n",
    "class body": "import torch\nclass A(torch.cuda.CUDAGraph):\n    x = y.cuda()\n",
    "except": "import torch\ntry:\n    x.cuda()\nexcept torch.cuda.CudaError:\n    pass\n",
    "keyword": "import torch\nf(**torch.cuda.power_draw(), x=y.cuda())\n",
    "star": "import torch\nf(*torch.cuda.power_draw(), y.cuda())\n",
    "annotation": "import torch\ndef f(g: torch.cuda.CUDAGraph) -> int:\n    return x.cuda()\n",
    "return in brackets": "import torch\ndef f():\n    return (torch.cuda.\n      power_draw())\n"
    "x.cuda()\n",
    "global": "import torch\ndef f():\n    global model\n    model = model.cuda()\n    del torch\n",
    "async": "import torch\nasync def f():\n    async with torch.cuda.graph(g):\n"
    "        x.cuda()\n",
    "comprehension": "import torch\nx = [g.cuda() for g in torch.cuda.power_draw() if g.grad]\n",
    "conditional": "import torch\nx = y.cuda() if torch.cuda.power_draw() else z\n",
    "if()": "import torch\nif(torch.cuda.is_available()): x = y.cuda()\n",
    "return()": "import torch\ndef f():\n    return(torch.cuda.is_available())\nx.cuda()\n",
    "not()": "import torch\nx = not(torch.cuda.is_available()) or 1 in(y.cuda())\n",
    "one line if": "import torch\nif a: torch.cuda.power_draw(); x = y.cuda()\n",
    "try on a line": "import torch\ntry: import torch.cuda.nvtx\nexcept ImportError: pass\n"
    "x.cuda()\n",
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", LOST)
def test_one_bad_site_costs_its_line_alone(name: str, target: str) -> None:
    done = ported(Case(LOST[name], ()), target)
    compile(done.text, name, "exec")
    assert not done.failures
    assert done.text != LOST[name]
    assert ".cuda()" not in done.text.replace('"', "")


IDENTITY = {
    "truth": "y = True if {} else False",
    "is None": "y = {} is None",
    "is not None": "y = {} is not None",
    "equal": "y = {} == '11.8'",
    "not": "y = not {}",
    "or": "y = {} or 1",
    "f-string": 'y = f"cuda {}"',
    "str": "y = str({})",
    "format": "y = '{{}}'.format({})",
    "percent": "y = '%s' % {}",
    "order": "y = {} >= '11'",
    "in": "y = '11' in {}",
    "key": "y = {{{}: 1}}",
    "member": "y = {} in ('11', '12')",
    "sum": "y = {} + 1",
    "index": "y = {}[0]",
    "loop": "for y in {}: pass",
    "number": "y = float({})",
    "with": "with {}: y = 1",
    "held": "x = {}\ny = x is None",
}


@pytest.mark.parametrize("name", IDENTITY)
def test_a_refused_name_raises_whatever_is_asked_of_it(name: str) -> None:
    pytest.importorskip("torch")
    held = "{torch.cuda.has_magma}" if name == "f-string" else "torch.cuda.has_magma"
    text = f"import torch\n{IDENTITY[name].format(held)}\n"
    done = ported(Case(text, ()), "torch_npu")
    assert done.status == "does not run"
    with pytest.raises(NotImplementedError):
        exec(done.text.replace("import torch_npu\n", ""), {})


def test_a_branch_for_another_device_is_left_out() -> None:
    head = 'import torch\n\ndevice = torch.device("cuda" if torch.cuda.is_available() else "cpu")\n'
    for question, word in (("device.type != 'cuda'", "fast"), ("device.type == 'cuda'", "slow")):
        script = f"{head}note = 'slow' if {question} else 'fast'\n"
        assert f"note = '{word}'" in ported(Case(script, ()), "mindspore").text


def test_a_number_that_is_a_device_needs_torch_npu() -> None:
    script = "import torch\n\n\ndef move(x):\n    return x.to(0)\n"
    text = ported(Case(script, ()), "torch_npu").text
    assert "import torch_npu\n" in text
    assert 'x.to("npu:0")' in text

"""Names of packages built on torch, and of torch itself, that need not stop a port."""

from __future__ import annotations

import re
from collections import namedtuple

import mindspore as ms
import numpy as np
import pytest
import torch

import mpcore_port_runtime as port
from mpcore_port.targets import load_target

from .ports import beside, compare, loaded, ported

Row = namedtuple("Row", "number values")

# --- annotations ---------------------------------------------------------------------------------

ANNOTATED = """
from typing import Callable, Dict, List, Optional, Tuple
import torch
import transformers
from timm.task import Task as Plan
made = []

class Run:
    plan: Optional[Plan] = None

    def step(self, model: transformers.PreTrainedModel, x: torch.Tensor) -> transformers.Trainer:
        return x * 2

def go(x: torch.Tensor, plan: Optional[Plan] = None, *, table: Dict[str, List[Plan]] = None,
       pair: Tuple[Plan, torch.Tensor] = None, call: Callable[[Plan], Plan] = None,
       shaped: transformers.Tensors[int] = None) -> Optional[Plan]:
    kept: Plan = plan
    if kept is None:
        made.append(Run().step(None, x))
go(torch.eye(2))
"""


def test_annotations_of_refused_names_ask_nothing(tmp_path):
    found = ported(ANNOTATED)
    made = loaded(found.text, tmp_path)["made"]
    assert made[0].asnumpy().tolist() == [[2, 0], [0, 2]]
    assert found.status == "runs"


@pytest.mark.parametrize(
    "use", ["isinstance(model, Plan)", "Plan(model)", "[Plan.make]", "plans[Plan]"]
)
def test_what_is_asked_of_a_refused_name_is_still_refused(use):
    script = f"""
from timm.task import Task as Plan
def go(model: Plan, plans={{}}):
    return {use}
"""
    found = ported(script)
    assert found.status == "runs unless line 4 is reached"
    assert use in found.text


def test_annotations_of_names_with_an_equal_keep_it():
    found = ported("import torch\ndef go(x: torch.Tensor, y: 'Plan') -> torch.nn.Module: pass\n")
    assert "x: ms.Tensor, y: 'Plan') -> nn.Cell" in found.text


# --- names of torch -------------------------------------------------------------------------------

NAMES = """
import warnings
import torch
from torch import nn
from torch.utils.data._utils.collate import default_collate
warnings.simplefilter("ignore")
made = []

@torch.jit.script
def twice(x):
    return x * 2

@torch.compile(fullgraph=True)
def thrice(x):
    return x * 3

@torch.compile
def half(x):
    return x / 2

def init(net, how, **settings):
    how(net.weight, **settings)

def seeded(number):
    return torch.initial_seed() % 2**32

torch.manual_seed(7)
made.append(seeded(0))
x = torch.tensor([0.1, -0.5])
made += [twice(x), thrice(x), half(x), torch.atanh(x), torch.erfc(x), torch.trunc(x * 5)]
net = torch.jit.script(nn.Linear(2, 2, bias=False))
init(net, nn.init.constant_, val=0.25)
made.append(net.weight)
has_amp = False
try:
    if getattr(torch.cuda.amp, "autocast") is not None:
        has_amp = True
except AttributeError:
    pass
made.append(has_amp)
made.append(getattr(torch.nn.functional, "no_such_function", None) is None)
made.append(getattr(torch, "arange")(3))
with torch.inference_mode() if has_amp else torch.no_grad():
    made.append(net(x))
switch = torch.inference_mode if has_amp else torch.no_grad
with switch():
    made.append(net(x))
with torch.backends.cuda.sdp_kernel(enable_flash=False):
    made.append(x + 1)
torch.backends.cuda.enable_flash_sdp(True)
batch = default_collate([(1, 2.0, True, 1, "a"), (3, 4.0, False, 2.5, "b")])
made += batch[:4]
"""


def test_names_that_have_an_equal_run(tmp_path):
    found = ported(NAMES)
    plain = re.sub(r"@torch\.(jit|compile)\S*", "", NAMES).replace("torch.jit.script(", "(")
    compare(plain, found.text, tmp_path)  # compilers want a file, and take long
    assert not [edit for edit in found.edits if edit.kind == "refused"]
    assert "torch" not in found.text.replace("torch.backends.cuda.enable_flash_sdp", "")


@pytest.mark.parametrize("tail", ["net.save('x.pt')", "print(net.graph)"])
def test_a_scripted_network_that_is_saved_is_refused(tail):
    script = f"import torch\nnet = torch.jit.script(torch.nn.Linear(2, 2))\n{tail}\n"
    assert ported(script).said.stops == (2,)


TIMED = """
import torch
made = []
start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
start.record()
with torch.cuda.device(0):
    x = torch.ones(3) * 2
end.record()
torch.cuda.synchronize()
made.append(0 <= start.elapsed_time(end) < 10_000)
names = ["a"] + torch.hub.list("owner/name:main")
made.append(len(names))
"""


def test_times_are_taken_by_the_clock(tmp_path):
    found = ported(TIMED)
    assert found.status == "runs"
    assert loaded(found.text, tmp_path)["made"] == [True, 1]


INITS = """
from functools import partial
from torch import nn
made = []
for how in (nn.init.kaiming_normal_, nn.init.xavier_uniform_, nn.init.orthogonal_,
            partial(nn.init.trunc_normal_, std=0.02, a=-0.04, b=0.04), nn.init.uniform_,
            nn.init.kaiming_uniform_, nn.init.xavier_normal_, nn.init.normal_):
    net = nn.Linear(64, 64)
    how(net.weight)
    made.append(net.weight.std().item())
for how in (nn.init.zeros_, nn.init.ones_):
    how(net.weight)
    made.append(net.weight.mean().item())
"""


def test_initialisers_that_are_handed_on_have_torchs_spread(tmp_path):
    theirs = {"__name__": "script"}
    exec(INITS, theirs)
    found = ported(INITS)
    assert found.said.kind in ("runs", "unproven")
    assert loaded(found.text, tmp_path)["made"] == pytest.approx(theirs["made"], rel=0.1)


@pytest.mark.parametrize(
    "items",
    [
        [True, False],
        [1, 2.5],
        [np.float32(1), np.float32(2)],
        [np.bool_(True), np.bool_(False)],
        [np.int32(1), np.int32(2)],
        [0.5, 1.5],
        [Row(1, np.ones(2, np.float32)), Row(2, np.zeros(2, np.float32))],
        [{"a": 1, "b": (0.5, True)}, {"a": 2, "b": (1.5, False)}],
    ],
    ids=str,
)
def test_batches_have_torchs_types(items):
    def shown(value):
        if isinstance(value, dict):
            return {key: shown(one) for key, one in value.items()}
        if isinstance(value, (list, tuple)):
            parts = [shown(one) for one in value]
            return type(value)(*parts) if hasattr(value, "_fields") else parts
        array = value.asnumpy() if isinstance(value, ms.Tensor) else value.numpy()
        return array.dtype, array.tolist()

    assert shown(port.collate(items)) == shown(torch.utils.data.default_collate(items))


PICTURES = """
from torchvision.transforms.functional import InterpolationMode
import torchvision.models as zoo
made = [InterpolationMode("bilinear") == InterpolationMode.BILINEAR]
made += ["resnet18" in zoo.__dict__.keys(), "resnet18" in zoo.__dir__()]
"""


def test_names_of_torchvision(tmp_path):
    found = ported(PICTURES)
    assert found.status == "runs"
    assert loaded(found.text, tmp_path)["made"] == [True, True, True]


# --- autocast and scalers that functools.partial binds -------------------------------------------

BOUND = """
from functools import partial
import torch
made = []
new = True
if new:
    auto_cast = partial(torch.amp.autocast, device_type="cpu")
    grad_scaler = partial(torch.amp.GradScaler, device="cpu", init_scale=4.0)
else:
    auto_cast = torch.cuda.amp.autocast
    grad_scaler = torch.cuda.amp.GradScaler
net = torch.nn.Linear(2, 1)
for p in net.parameters():
    p.data.fill_(0.5)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
scaler = grad_scaler(growth_interval=2)
for k in range(4):
    with auto_cast(enabled=False):
        loss = (net(torch.ones(2, 2) * k) ** 2).mean()
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    made.append(loss.item())
"""


def test_regions_and_scalers_of_partials_are_found(tmp_path):
    found = beside(BOUND, tmp_path)
    assert "loss_scale=dynamic(init_scale=4, growth_interval=2)" in found.text


@pytest.mark.parametrize(
    "bound", ["partial(make, device='cpu')", "partial(torch.amp.GradScaler, **settings)"]
)
def test_other_partials_stay(bound):
    script = f"from functools import partial\nimport torch\nmade = {bound}\nscaler = made()\n"
    found = ported(f"{script}")
    assert "scaler = made()" in found.text


COUNTED = """
import torch
made = []
net = torch.nn.Linear(2, 1)
average = torch.optim.swa_utils.AveragedModel(net, avg_fn=lambda a, b, n: 0.9 * a + 0.1 * b)
def go(model_ema):
    for k in range(4):
        for p in net.parameters():
            p.data.fill_(float(k))
        model_ema.update_parameters(net)
        if k < 2:
            model_ema.n_averaged.fill_(0)
        made.append(int(model_ema.n_averaged))
    made.append(next(model_ema.module.parameters()))
go(average)
"""


def test_the_count_of_an_average_is_set(tmp_path):
    assert beside(COUNTED, tmp_path).status == "runs"


ALONE = """
import torch
import torch.distributed as dist
import torch.distributed.nn
made = []
x = torch.arange(3)
dist.broadcast(x, 0)
objects = ["a"]
dist.broadcast_object_list(objects, src=0)
made.append(torch.cat(torch.distributed.nn.all_gather(x * 2)))
free, total = torch.cuda.mem_get_info()
made.append(free <= total)
made.append(torch.cuda.get_device_properties(0).total_memory >= 0)
"""


def test_a_process_that_is_alone_hears_itself(tmp_path):
    found = ported(ALONE)
    assert found.said.kind == "runs"
    made = loaded(found.text, tmp_path)["made"]
    assert made[0].asnumpy().tolist() == [0, 2, 4]
    assert made[1:] == [True, True]
    with pytest.raises(NotImplementedError, match="multi_processor_count"):
        port.device_properties(0).multi_processor_count  # noqa: B018


# --- packages -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["torch_pruning", "pytorch_msssim", "tinycudann", "dassl", "piq"])
def test_packages_built_on_torch_are_refused(name):
    found = ported(f"import torch\nimport {name}\ndef go(x):\n    return {name}.make(x)\n")
    assert found.said.stops == (4,)


@pytest.mark.parametrize("name", ["submitit", "g2p_en", "SimpleITK", "natsort"])
def test_packages_without_tensors_stay(name):
    found = ported(f"import torch\nimport {name}\ndef go(x):\n    return {name}.make(x)\n")
    assert found.status == "runs"


WORDS = """import torch
from transformers import AutoModelForCTC, AutoTokenizer, HfArgumentParser as Parser, set_seed
from transformers.utils import logging
logger = logging.get_logger("train")
set_seed(3)
tokenizer = AutoTokenizer.from_pretrained("words")
ids = torch.tensor(tokenizer("a b")["input_ids"])
def network():
    return AutoModelForCTC.from_pretrained("words")
"""


def test_tokenizers_and_settings_of_transformers_stay():
    found = ported(WORDS)
    assert "from transformers import AutoTokenizer, HfArgumentParser as Parser" in found.text
    assert found.said.stops == (9,)
    assert found.said.kind == "unless"
    assert {2, 3} <= set(found.said.unproven)
    assert "set_seed(3)" in found.text


TOKENS = """import torch
from collections import UserDict
import numpy as np
class Tokenizer:
    def __call__(self, texts, padding=False, return_tensors=None):
        rows = [[ord(one) % 7 for one in text] for text in texts]
        most = max(map(len, rows))
        ids = np.array([row + [0] * (most - len(row)) for row in rows])
        found = UserDict(input_ids=ids, attention_mask=(ids > 0).astype(np.int64), words=["a"])
        if return_tensors == "pt":
            for name in ("input_ids", "attention_mask"):
                found[name] = torch.from_numpy(found[name])
        found.kind = "odd"
        return found
tokenizer = Tokenizer()
words = tokenizer(["abc", "de"], padding=True, return_tensors="pt")
scores = torch.arange(7.0)[words["input_ids"]] * words["attention_mask"]
made = [scores, scores.sum(), len(words["words"]), len(words), words.kind == "odd"]
"""


def test_tensors_that_a_tokenizer_makes_are_mindspores(tmp_path):
    found = ported(TOKENS)
    assert found.said.kind == "unproven"
    compare(TOKENS, found.text, tmp_path)
    assert 'padding=True, return_tensors="np"' in found.text


@pytest.mark.parametrize("asked", ['return_tensors="pt"', "return_tensors=TensorType.PYTORCH"])
def test_what_asks_for_tensors_later_is_refused(asked):
    text = f"import torch\ndef go(DataCollator, words):\n    return DataCollator(words, {asked})\n"
    assert ported(text).said.stops == (3,)
    plain = ported(text.replace(asked, 'return_tensors="np"'))
    assert not any(edit.kind == "refused" for edit in plain.edits)


@pytest.mark.parametrize(
    "name", ["AutoModelForCTC", "LlamaForCausalLM", "Trainer", "BitsAndBytesConfig"]
)
def test_what_holds_tensors_of_transformers_is_refused(name):
    text = f"import torch\nfrom transformers import AutoTokenizer, {name}\nmade = {name}(3)\n"
    assert ported(text).status == "does not run"


def test_what_else_a_line_imports_runs():
    found = ported("import torch\nimport os, timm\ncwd = os.getcwd()\n")
    assert found.said.kind != "stops"


def test_a_refused_package_has_a_way_out():
    found = ported("import torch\nfrom timm.models import resnet50\nnet = resnet50()\n")
    assert "the package mindcv has its usual networks" in found.text


def test_a_star_of_a_refused_package_stops_where_it_stands():
    assert ported("import torch\nfrom timm.models import *\nprint(1)\n").status == "does not run"


PACKED = """
import torch
from einops import pack, unpack
import torch.distributed as dist
made = []
x, y = torch.arange(24.0).view(2, 3, 4), torch.ones(2, 4)
whole, shapes = pack([x, y], "b * c")
made.append(whole)
made.extend(unpack(whole * 2, shapes, "b * c"))
made.append(unpack(whole, [(-1, 2)], "b * c")[0])
dist.all_reduce(x, op=dist.ReduceOp.PRODUCT)
with torch.autograd.profiler.emit_nvtx(enabled=False):
    made.append(x)
"""


def test_tensors_are_packed_as_einops_does(tmp_path):
    # what einops 0.8.2 gives
    found = ported(PACKED)
    assert found.said.kind in ("runs", "unproven")
    whole, first, second, halves, x = loaded(found.text, tmp_path)["made"]
    assert whole.shape == (2, 4, 4)
    assert whole[0, 3].asnumpy().tolist() == [1, 1, 1, 1]
    assert first.asnumpy().tolist() == (x.asnumpy() * 2).tolist()
    assert second.asnumpy().tolist() == [[2] * 4] * 2
    assert halves.shape == (2, 2, 2, 4)


@pytest.mark.parametrize("pattern", ["b c", "* *", "b * c d e", "b b *"])
def test_patterns_that_pack_nothing_are_refused(pattern):
    with pytest.raises(ValueError, match="einops pattern"):
        port.patterns.pack([np.ones((2, 3))], pattern)


OF_PYTHON = """
import torch
from torch._six import container_abcs, int_classes, string_classes
log = 3
made = []
def kind(batch):
    if isinstance(batch, container_abcs.Mapping):
        return "mapping"
    if isinstance(batch, string_classes):
        return "string"
    return isinstance(batch, int_classes)
made += [kind({}), kind("a"), kind(1), kind(1.0)]
made.append(torch.math.log(1.0) + log)
made.append(torch.math.inf)
"""


def test_names_of_python_are_pythons(tmp_path):
    found = ported(OF_PYTHON)
    assert found.status == "runs"
    made = loaded(found.text, tmp_path)["made"]
    assert made == ["mapping", "string", True, False, 3.0, float("inf")]


OF_APEX = """import torch
from apex import pyprof
from apex.normalization.fused_layer_norm import FusedLayerNorm as LayerNorm
from apex.optimizers.fused_adam import FusedAdam
net = LayerNorm(8, eps=1e-12)
optimizer = FusedAdam(net.parameters(), lr=0.1)
"""


@pytest.mark.parametrize("target", ["mindspore", "torch_npu"])
def test_names_of_apex_by_the_modules_that_define_them_are_its_own(target: str) -> None:
    found = ported(OF_APEX.replace("from apex import pyprof\n", ""), load_target(target))
    assert not [one for one in found.edits if one.kind in ("refused", "unproven")]
    assert "apex" not in "".join(one for one in found.text.splitlines() if "# mpcore" not in one)


def test_a_profiler_of_apex_goes() -> None:
    found = ported(OF_APEX + "pyprof.nvtx.init()\n")
    assert [one.kind for one in found.edits if "pyprof.nvtx.init" in one.old] == ["changed"]
    assert not [one for one in found.edits if one.kind == "refused"]


MOVED = """import torch
from absent_nets import Net
made = [Net(3).cpu(), Net(3).float(), Net(3).cpu().float().eval()]
"""


def test_what_moves_a_network_of_another_file_goes() -> None:
    assert "made = [Net(3), Net(3), Net(3).set_train(False)]" in ported(MOVED).text
    wide = ported(MOVED.replace("Net(3).float()", "Net(3).double()"))
    assert "port.to(Net(3), ms.float64)" in wide.text
    assert "unproven" in [one.kind for one in wide.edits if one.old == "Net(3).double()"]

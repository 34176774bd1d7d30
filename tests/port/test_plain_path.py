"""What a plain run of a script comes to: names there that need not stop a port."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
import torch
from mindspore import ops
from PIL import Image

import mpcore_port_runtime as port
from mpcore_port.engine import port_tree
from mpcore_port.source import walk
from mpcore_port.targets import Options, load_target

from .ports import TARGET, beside, loaded, ported

# --- imports that may fail -----------------------------------------------------------------------

GUARDED = """
import torch
made = []
try:
    from apex.multi_tensor_apply import multi_tensor_applier
except ImportError:
    multi_tensor_applier = None
try:
    from torchvision.models.video import r3d_18
except ImportError:
    r3d_18 = None
try:
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
except ImportError:
    FSDP = None
try:
    from torch.nn.utils.stateless import functional_call
    CALLS = True
except ImportError:
    CALLS = False
try:
    import torchvision
    import torch.utils.tensorboard as tensorboard
except ImportError:
    torchvision = tensorboard = None
if torchvision is None:
    raise RuntimeError("no pictures")
assert tensorboard is not None, "no board"
if torchvision and multi_tensor_applier is not None:
    multi_tensor_applier(1)
if not torchvision or (FSDP is not None and isinstance(3, FSDP)):
    raise RuntimeError
if CALLS:
    functional_call(1)
made += [multi_tensor_applier is None, r3d_18 is None, CALLS]
"""


def test_imports_that_a_script_can_do_without(tmp_path: Path) -> None:
    found = ported(GUARDED)
    assert loaded(found.text, tmp_path)["made"] == [True, True, False]
    assert found.status.startswith("runs unless")


def test_imports_whose_names_have_an_equal_stay(tmp_path: Path) -> None:
    script = """import torch
try:
    from torch.nn.modules.batchnorm import BatchNorm1d
    import torch.nn.functional as F
    there = True
except ImportError:
    there = False
made = [there, F.relu(torch.tensor([-1.0, 2.0])), BatchNorm1d(2).eps]
"""
    beside(script, tmp_path)


# --- names that are not what they look like ------------------------------------------------------

STORES = """import torch
class Store:
    def __init__(self):
        self.seen = []
    def clamp_(self, low):
        self.seen.append(low)
        return self
    def fill_(self, value):
        self.seen.append(value)
def first(store: Store):
    return store.clamp_(3)
def second(store: "Store", x: torch.Tensor):
    store.fill_(4)
    x.clamp_(0, 1)
stores = [Store(), Store()]
x = torch.tensor([-1.0, 0.5, 3.0])
for store in stores:
    store.fill_(5)
    store.clamp_(6)
    first(store)
    second(store, x)
made = [store.seen for store in stores] + [x]
"""


def test_methods_of_own_classes_that_tensors_have_too(tmp_path: Path) -> None:
    beside(STORES, tmp_path)


def test_points_of_plots_are_no_tensors() -> None:
    script = """import torch
import matplotlib.pyplot as plt
def show(x, ax):
    ax.scatter(x[:, 0], x[:, 1], c="r")
    axes = plt.subplots(2, 2)[1]
    axes[0].scatter(x, x, 3)
    fig, (left, right) = plt.subplots(1, 2)
    left.scatter(x, x, s=3)
"""
    found = ported(script)
    assert "port.scatter" not in found.text
    assert not [edit for edit in found.edits if "scatter" in edit.old]


def test_paths_are_put_into_no_mode() -> None:
    script = """import torch
from pathlib import Path
def load(model_path, net):
    model = Path(model_path)
    net.load_state_dict(torch.load(model / "a.pt"))
"""
    assert "model = Path(model_path)" in ported(script).text


def test_folders_that_hold_no_code_are_no_modules(tmp_path: Path) -> None:
    (tmp_path / "wandb" / "run-1").mkdir(parents=True)
    (tmp_path / "nets").mkdir()
    (tmp_path / "train.py").write_text("import torch, wandb, nets\nwandb.init()\n", "utf-8")
    found = port_tree(walk(tmp_path / "train.py"), TARGET, Options()).files[0]
    said = [edit.reason for edit in found.edits if edit.kind == "unproven"]
    assert said == ["nets lies beside the script and was not ported: port the folder"]


# --- pictures ------------------------------------------------------------------------------------

_ROWS = json.loads((Path(__file__).parent / "traces" / "pictures.json").read_text("utf-8"))
_BYTES = (np.arange(13 * 17 * 3) * 37 % 251).astype(np.uint8).reshape(13, 17, 3)
_FLOATS = (_BYTES.transpose(2, 0, 1) / 255).astype(np.float32)


def _picture(kind: str) -> Any:
    if kind in ("picture", "grey"):
        return Image.fromarray(_BYTES if kind == "picture" else _BYTES[:, :, 0])
    return ms.Tensor(_FLOATS if kind == "floats" else np.stack([_FLOATS, _FLOATS * 0.5]))


def _sums(found: Any) -> list[float]:
    if isinstance(found, (list, tuple)):
        return [one for part in found for one in _sums(part)]
    array = np.asarray(found.asnumpy() if isinstance(found, ms.Tensor) else found, np.float64)
    weights = np.cos(np.arange(array.size) * 0.7).reshape(array.shape)
    return [*array.shape, array.mean(), (array * weights).mean()]


@pytest.mark.parametrize("name", sorted({row[0] for row in _ROWS}))
def test_functions_of_pictures_give_what_torchvisions_give(name: str) -> None:
    act = getattr(port.picture_draws if name == "applied" else port.picture_functions, name)
    seen = 0
    for _, given, words, kind, wanted in (row for row in _ROWS if row[0] == name):
        try:
            found = _sums(act(_picture(kind), *given, **words))
        except NotImplementedError:
            assert kind in ("floats", "batch")
            continue
        seen += 1
        near = 0.05 if name == "gaussian_blur" else 3e-4  # a byte may be rounded the other way
        np.testing.assert_allclose(found, wanted, rtol=2e-4, atol=near, err_msg=f"{given} {kind}")
    assert seen


def test_gradients_go_through_sizes_and_colours() -> None:
    def loss(x: Any) -> Any:
        small = port.picture_functions.resize(x, [5, 6])
        return port.picture_functions.adjust_brightness(small, 0.5).sum()

    x = ms.Tensor(_FLOATS)
    slope = ms.grad(loss)(x)
    assert abs(slope.asnumpy().sum() - 0.5 * 5 * 6 * 3) < 1e-3


DRAWN = """
import torch
from torchvision import transforms as T
import torchvision.transforms.functional as TF
from torchvision.transforms import functional as F, GaussianBlur
from torchvision.transforms.functional import hflip, InterpolationMode
augment = T.Compose([
    T.RandomApply([GaussianBlur(3, sigma=(0.1, 2.0))], p=1.0), T.RandomSolarize(120, p=1.0),
    T.RandomInvert(), T.RandomPosterize(4), T.RandomEqualize(), T.RandomAutocontrast(),
    T.RandomAdjustSharpness(2), T.RandomPerspective(p=1.0), T.RandAugment(), T.TrivialAugmentWide(),
    T.RandomOrder([T.RandomHorizontalFlip(), T.RandomVerticalFlip()]), T.ToTensor(),
    T.ConvertImageDtype(torch.float32), T.RandomCrop(8, padding=2), T.RandomHorizontalFlip(),
    T.RandomResizedCrop(6), T.RandomGrayscale(p=1.0), T.ColorJitter(0.2, 0.2, 0.2), T.Resize(4),
    T.CenterCrop(4), T.Pad(1),
])
flip = TF.hflip
def seen(picture):
    x = augment(picture)
    y = TF.resize(F.to_tensor(picture), (5, 5), interpolation=InterpolationMode.BICUBIC)
    return x, hflip(y), flip(y), len(T.FiveCrop(4)(picture)), len(T.TenCrop(4)(picture))
"""


def test_transforms_that_draw_run(tmp_path: Path) -> None:
    found = ported(DRAWN)
    assert not [edit for edit in found.edits if edit.kind in ("refused", "unproven")]
    ms.set_seed(1107)
    seen = loaded(found.text, tmp_path)["seen"]
    for _ in range(3):
        x, one, other, five, ten = seen(_picture("picture"))
        assert (x.shape, five, ten) == ((3, 6, 6), 5, 10)
        assert (one.asnumpy() == other.asnumpy()).all()


# --- starred arguments ---------------------------------------------------------------------------

STARRED = """import torch
from torch import nn
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset
made = []
def loader(*args, **settings):
    return DataLoader(*args, **settings)
def start(**settings):
    dist.init_process_group(**settings)
def wrapped(net, **settings):
    return nn.parallel.DistributedDataParallel(net, device_ids=None, **settings)
def read(path, *args, **settings):
    return torch.load(path, *args, **settings)
def pool(*args, **settings):
    return nn.AvgPool2d(*args, **settings)
data = TensorDataset(torch.arange(12.0).view(6, 2))
for (batch,) in loader(data, 4, False, num_workers=0, drop_last=True):
    made.append(batch)
made.append(pool(2, ceil_mode=True)(torch.arange(15.0).view(1, 1, 3, 5)))
made.append(pool(2, divisor_override=3)(torch.arange(16.0).view(1, 1, 4, 4)))
"""


def test_starred_arguments_are_told_apart_when_they_come(tmp_path: Path) -> None:
    found = beside(STARRED, tmp_path)
    assert not [edit for edit in found.edits if edit.kind == "refused"]
    with pytest.raises(NotImplementedError, match="pickle_module"):
        loaded(found.text, tmp_path)["read"]("x.pt", None, "pickle")


POOLS = """import torch
from torch import nn
import torch.nn.functional as F
made = []
x = torch.sin(torch.arange(2 * 3 * 7 * 8.0) * 1.7).view(2, 3, 7, 8)
for side in (0, 1):
    for counted in (True, False):
        made.append(F.avg_pool2d(x, 3, 2, side, True, counted))
        made.append(nn.AvgPool2d((3, 2), stride=(2, 3), padding=side, ceil_mode=True,
                                 count_include_pad=counted)(x))
made.append(nn.AvgPool2d(2, 2, ceil_mode=True, count_include_pad=False)(x[0]))
made.append(F.avg_pool2d(x, 2, divisor_override=3))
net = nn.Conv2d(3, 2, 1)
with torch.no_grad():
    net.weight.fill_(0.5)
    net.bias.fill_(0.1)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
pool = nn.AvgPool2d(2, stride=2, ceil_mode=True, count_include_pad=False)
for _ in range(3):
    loss = pool(net(x)).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    made.append(loss.item())
made.append([pool.kernel_size, pool.stride])
"""


def test_means_of_windows_that_reach_over_the_edge(tmp_path: Path) -> None:
    found = beside(POOLS, tmp_path)
    said = [edit.reason for edit in found.edits if edit.kind in ("refused", "unproven")]
    assert not said, said


# --- layers of packages --------------------------------------------------------------------------

LAYERS: dict[str, tuple[Any, Any]] = {
    "a norm that never changes": (
        lambda: port.vision_layers.FrozenBatchNorm2d(4, eps=1e-3),
        lambda: torch.nn.BatchNorm2d(4, eps=1e-3).eval(),
    ),
    "convolution, norm, activation": (
        lambda: port.vision_layers.Conv2dNormActivation(4, 6, stride=2),
        lambda: torch.nn.Sequential(
            torch.nn.Conv2d(4, 6, 3, 2, 1, bias=False), torch.nn.BatchNorm2d(6), torch.nn.ReLU()
        ),
    ),
    "of two sizes, without a norm": (
        lambda: port.vision_layers.ConvNormActivation(
            *(4, 8, (3, 5)), groups=2, norm_layer=None, dilation=(1, 2), inplace=None
        ),
        lambda: torch.nn.Sequential(
            torch.nn.Conv2d(4, 8, (3, 5), 1, (1, 4), (1, 2), 2), torch.nn.ReLU()
        ),
    ),
    "linear layers": (
        lambda: port.vision_layers.MLP(5, [7, 3], norm_layer=port.torch_nn.LayerNorm),
        lambda: torch.nn.Sequential(
            *(torch.nn.Linear(5, 7), torch.nn.LayerNorm(7), torch.nn.ReLU()),
            *(torch.nn.Dropout(0.0), torch.nn.Linear(7, 3), torch.nn.Dropout(0.0)),
        ),
    ),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_of_torchvision_are_made_of_torchs(name: str) -> None:
    own, other = (make() for make in LAYERS[name])
    x = np.sin(np.arange(2 * 4 * 6 * 5) * 1.7).astype(np.float32).reshape(2, 4, 6, 5)
    with torch.no_grad():
        for place, value in enumerate(other.state_dict().values()):
            if value.is_floating_point():
                value.copy_(torch.cos(torch.arange(float(value.numel())) + place).view_as(value))
                value.abs_()
    held = {k: v.numpy() for k, v in other.state_dict().items() if "num_batches" not in k}
    assert sorted(held) == sorted(port.state_dict(own))
    port.load_state_dict(own, {k: ms.Tensor(v) for k, v in held.items()})
    found = own(ms.Tensor(x)).asnumpy()
    np.testing.assert_allclose(found, other(torch.from_numpy(x)).detach(), rtol=1e-5, atol=1e-5)


def test_parts_of_networks_that_are_asked_for() -> None:
    net = port.Sequential(*(port.torch_nn.Linear(3, 3) for _ in range(3)))
    getter = port.vision_layers.IntermediateLayerGetter(net, {"0": "first", "1": "second"})
    x = ms.Tensor(np.eye(3, dtype=np.float32))
    found = getter(x)
    assert list(found) == ["first", "second"]
    assert (found["second"].asnumpy() == net[1](net[0](x)).asnumpy()).all()
    assert len(getter) == 2
    with pytest.raises(ValueError, match="not present"):
        port.vision_layers.IntermediateLayerGetter(net, {"4": "x"})


def test_channels_scaled_and_rows_dropped() -> None:
    ms.set_seed(1107)
    x = ms.Tensor(np.ones((64, 4, 2, 2), np.float32))
    scaled = port.vision_layers.SqueezeExcitation(4, 2)
    share = ops.sigmoid(scaled.fc2(ops.relu(scaled.fc1(x)))).asnumpy()
    np.testing.assert_allclose(scaled(x).asnumpy(), share, rtol=1e-5)
    rows = port.vision_layers.StochasticDepth(0.25, "row")(x).asnumpy()
    np.testing.assert_allclose(np.unique(rows), [0.0, 4 / 3], rtol=1e-6)
    assert all(len(np.unique(row)) == 1 for row in rows)
    assert len(np.unique(port.vision_layers.stochastic_depth(x, 0.25, "batch").asnumpy())) == 1
    assert port.vision_layers.stochastic_depth(x, 0.25, "row", training=False) is x


COUNTED = """
import torch
from torch import nn
from fvcore.nn import FlopCountAnalysis, flop_count_table, parameter_count
from fvcore.nn.weight_init import c2_msra_fill
from ptflops import get_model_complexity_info
from timm.models import create_model, set_fast_norm, convert_sync_batchnorm
from torchvision.ops.misc import FrozenBatchNorm2d, ConvNormActivation
from torchvision.models._utils import IntermediateLayerGetter
from apex import amp
import apex
class Config:
    norm = apex.parallel.SyncBatchNorm
set_fast_norm()
@amp.float_function
def twice(x):
    return x * 2
net = nn.Sequential(nn.Conv2d(2, 3, 1), nn.Conv2d(3, 1, 1, bias=False))
for part in net:
    c2_msra_fill(part)
flops = FlopCountAnalysis(net, torch.ones(1, 2, 4, 4))
text = flop_count_table(flops)
counts = dict(parameter_count(net))
macs, params = get_model_complexity_info(net, (2, 4, 4), as_strings=True)
bias = net[0].bias
total = flops.unsupported_ops_warnings(False).total()
"""


@pytest.mark.filterwarnings("ignore:operations are not counted")
def test_what_counts_a_network_counts_parameters(tmp_path: Path) -> None:
    found = ported(COUNTED)
    assert not [edit for edit in found.edits if edit.kind == "refused"]
    made = loaded(found.text, tmp_path)
    counts = {"": 12, "0": 9, "1": 3, "0.weight": 6, "0.bias": 3, "1.weight": 3}
    assert made["counts"] == counts
    assert (made["params"], made["macs"]) == ("12", "nan")
    assert made["total"] != made["total"]
    assert "model" in made["text"]
    assert (made["bias"].asnumpy() == 0).all()


def test_functions_of_apex_cast_in_networks_of_level_o1() -> None:
    seen: list[Any] = []

    def act(x: Any, other: Any = None) -> Any:
        seen.append((x.dtype, None if other is None else other.dtype))
        return x

    half, full = ms.Tensor([1.0], ms.float16), ms.Tensor([1.0], ms.float32)
    port.apex.half_function(act)(full)
    with port.autocast():
        port.apex.half_function(act)(full, other=full)
        port.apex.float_function(act)(half)
        port.apex.promote_function(act)(half, full)
        port.apex.promote_function(act)(half, half)
    f16, f32 = ms.float16, ms.float32
    assert seen == [(f32, None), (f16, f16), (f32, None), (f32, f32), (f16, f16)]


# --- accelerate ----------------------------------------------------------------------------------

STATES = """import os, torch
from torch import nn
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration
made = []
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.arange(6.0).view(3, 2) / 7)
    def forward(self, x):
        return x @ self.weight
class Count:
    seen = 0
    def state_dict(self):
        return {"seen": self.seen}
    def load_state_dict(self, state):
        self.seen = state["seen"]
config = ProjectConfiguration(project_dir=FOLDER, automatic_checkpoint_naming=AUTO, total_limit=2)
accelerator = Accelerator(project_config=config, log_with="tensorboard")
accelerator.init_trackers("runs", config={"lr": 0.1})
net = Net()
opt = torch.optim.Adam(net.parameters(), lr=0.1)
sched = torch.optim.lr_scheduler.StepLR(opt, 2, gamma=0.5)
net, opt, sched = accelerator.prepare(net, opt, sched)
count = Count()
accelerator.register_for_checkpointing(count)
accelerator.register_save_state_pre_hook(lambda models, weights, folder: made.append(len(weights)))
def train():
    for step in range(3):
        loss = net(torch.ones(2, 3)).pow(2).mean()
        accelerator.backward(loss)
        opt.step()
        sched.step()
        opt.zero_grad()
        count.seen += 1
        accelerator.log({"loss": loss.item(), "text": "there"}, step=count.seen)
        made.append([loss.item(), sched.get_last_lr()[0], count.seen])
train()
for _ in range(3 if AUTO else 1):
    where = accelerator.save_state(None if AUTO else os.path.join(FOLDER, "state"))
train()
accelerator.load_state(None if AUTO else where)
train()
writer = accelerator.get_tracker("tensorboard", unwrap=True)
accelerator.end_training()
kept = sorted(os.listdir(os.path.dirname(where)))
"""


@pytest.mark.parametrize("auto", [False, True])
def test_states_of_accelerate_bring_a_run_back(auto: bool, tmp_path: Path) -> None:
    script = STATES.replace("FOLDER", repr(str(tmp_path / "there"))).replace("AUTO", str(auto))
    found = ported(script)
    assert not [edit for edit in found.edits if edit.kind == "refused"]
    held = loaded(found.text, tmp_path)
    made = [one for one in held["made"] if one != 1]
    assert len(made) == 9
    np.testing.assert_allclose(made[3:6], made[6:], rtol=1e-6)
    assert made[3][2] == 4
    assert Path(held["writer"].get_logdir()).name == "runs"
    assert list((tmp_path / "there" / "runs").glob("events*"))
    if auto:
        assert held["kept"] == ["checkpoint_1", "checkpoint_2"]


def test_logs_of_wandb_hold_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    run = types.SimpleNamespace(log=lambda *a, **k: seen.append((*a, k)), finish=lambda: None)
    config = types.SimpleNamespace(update=lambda values, **_: seen.append(values))
    module = types.ModuleType("wandb")
    vars(module).update(init=lambda **k: seen.append(k) or run, config=config)
    monkeypatch.setitem(sys.modules, "wandb", module)
    made = port.accelerate.Accelerator(log_with="wandb")
    made.init_trackers("runs", {"lr": 0.1}, {"wandb": {"name": "one"}})
    made.log({"loss": ms.Tensor(1.5)}, step=2)
    assert seen == [{"project": "runs", "name": "one"}, {"lr": 0.1}, ({"loss": 1.5}, {"step": 2})]
    assert made.get_tracker("wandb", unwrap=True) is run
    with pytest.raises(ValueError, match="not an available tracker"):
        made.get_tracker("tensorboard")
    with pytest.raises(ValueError, match="project_dir"):
        port.accelerate.Accelerator(log_with="tensorboard").init_trackers("runs")


FABRIC = """import torch
from lightning.fabric import Fabric
from lightning.fabric.loggers import CSVLogger, TensorBoardLogger
board = TensorBoardLogger(root_dir=FOLDER, name="board")
rows = CSVLogger(FOLDER, name="rows", flush_logs_every_n_steps=2)
fabric = Fabric(loggers=[rows, board])
fabric.launch()
for step in range(3):
    fabric.log("loss", torch.tensor(step / 2))
    fabric.log_dict({"rate": 0.5, "loss": step}, step=step + 10)
first = fabric.logger
first.finalize("success")
board.save()
"""


def test_loggers_of_fabric(tmp_path: Path) -> None:
    found = ported(FABRIC.replace("FOLDER", repr(str(tmp_path))))
    assert not [edit for edit in found.edits if edit.kind == "refused"]
    held = loaded(found.text, tmp_path)
    assert held["first"] is held["rows"]
    lines = (tmp_path / "rows" / "version_0" / "metrics.csv").read_text().splitlines()
    assert lines[:3] == ["loss,rate,step", "0.0,,0", "0.0,0.5,10"]
    assert len(lines) == 7
    assert list((tmp_path / "board" / "version_0").glob("events*"))
    alone = port.fabric.Fabric(loggers=port.lightning.FabricCSVLogger(tmp_path, version="one"))
    assert Path(alone.logger.log_dir).name == "one"


# --- what a result is put into -------------------------------------------------------------------

PUT = """import torch
from torch import nn
import torch.nn.functional as F
def ids(n):
    return torch.arange(0, n, out=torch.LongTensor(n))
def mask(size):
    ret = torch.ones(size, size)
    return torch.tril(ret, out=ret)
def collate(batch, worker=False):
    out = None
    if worker:
        out = batch[0].new_empty((2, 3))
    return torch.stack(batch, 0, out=out)
def sums(x):
    best = torch.cumsum(x, 0, out=None)
    return best + torch.cumsum(x, 0, out=torch.FloatTensor(3))
class Net(nn.Module):
    def forward(self, x):
        x = F.relu_(x * 2 - 1)
        x = F.leaky_relu_(x - 1, 0.2)
        return F.elu_(-x)
x = torch.linspace(-1, 1, 3)
made = [ids(4), mask(3), collate([x, x * 2]), collate([x, x], True), sums(x)]
made.append(Net()(torch.linspace(-1, 1, 5)))
made.append(str(ids(2).dtype).rpartition(".")[2].lower() == "int64")
"""


def test_results_that_are_put_into_a_place_and_asked_for(tmp_path: Path) -> None:
    found = beside(PUT, tmp_path)
    assert not [edit for edit in found.edits if edit.kind == "refused"]
    assert "out=" not in found.text.replace("out=out_", "")


def test_a_place_that_others_see_is_not_left_out() -> None:
    script = "import torch\nheld = torch.ones(3)\ny = torch.cumsum(held, 0, out=held)\n"
    assert ported(script).said.stops == (3,)


# --- data sets -----------------------------------------------------------------------------------

FOLDERS = """
import torch
from torchvision import datasets
from torchvision.datasets.folder import make_dataset, find_classes, is_image_file
from torchvision.datasets.vision import VisionDataset
class Rows(datasets.DatasetFolder):
    def __init__(self, root, **settings):
        super().__init__(root, self.read, extensions=(".txt",), **settings)
    def read(self, path):
        with open(path) as file:
            return torch.tensor([float(one) for one in file.read().split()])
    def find_classes(self, directory):
        classes, numbers = find_classes(directory)
        return classes, {name: 10 + number for name, number in numbers.items()}
class One(VisionDataset):
    def __getitem__(self, index):
        return self.transforms(index, index + 1)
    def __len__(self):
        return 3
rows = Rows(FOLDER, transform=lambda x: x * 2)
made = [rows[0][0], rows[0][1], rows.targets, len(rows), rows.class_to_idx]
made += [make_dataset(FOLDER, extensions=".txt")[1][1], is_image_file("a.PNG")]
made += [One(FOLDER, transform=lambda x: x * 10)[2]]
"""


def test_data_sets_of_folders(tmp_path: Path) -> None:
    for name, text in (("b/1.txt", "1 2"), ("b/no.png", ""), ("c/2.txt", "3 4")):
        path = tmp_path / "there" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    found = ported(FOLDERS.replace("FOLDER", repr(str(tmp_path / "there"))))
    assert not [edit for edit in found.edits if edit.kind == "refused"]
    first, *others = loaded(found.text, tmp_path)["made"]
    assert first.asnumpy().tolist() == [2, 4]
    assert others == [10, [10, 11], 2, {"b": 10, "c": 11}, 1, True, (20, 3)]
    with pytest.raises(FileNotFoundError, match="no pictures for the classes b"):
        port.pictures.make_dataset(tmp_path / "there", {"b": 0}, (".gif",))


def test_data_sets_of_scenes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "VOCdevkit" / "VOC2012"
    for folder in ("ImageSets/Main", "ImageSets/Segmentation", "JPEGImages"):
        (home / folder).mkdir(parents=True)
    for folder in ("SegmentationClass", "Annotations"):
        (home / folder).mkdir()
    for name in ("Main", "Segmentation"):
        (home / "ImageSets" / name / "train.txt").write_text("one\n", "utf-8")
    _picture("picture").save(home / "JPEGImages" / "one.jpg")
    _picture("grey").save(home / "SegmentationClass" / "one.png")
    text = (
        "<annotation><size><width>17</width></size><object><name>cat</name></object></annotation>"
    )
    (home / "Annotations" / "one.xml").write_text(text, "utf-8")
    parts = port.picture_sets.VOCSegmentation(tmp_path, transforms=lambda x, y: (x.size, y.mode))
    assert (parts[0], len(parts)) == (((17, 13), "L"), 1)
    things = port.picture_sets.VOCDetection(str(tmp_path), target_transform=lambda x: x)
    wanted = {"size": {"width": "17"}, "object": [{"name": "cat"}]}
    assert things[0][1] == {"annotation": wanted}
    listed = types.SimpleNamespace(
        imgs={7: 0},
        loadImgs=lambda _: [{"file_name": "one.jpg"}],
        getAnnIds=lambda _: [3],
        loadAnns=lambda _: [{"caption": "a cat"}],
    )
    module = types.ModuleType("pycocotools.coco")
    module.COCO = lambda _: listed  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pycocotools", types.ModuleType("pycocotools"))
    monkeypatch.setitem(sys.modules, "pycocotools.coco", module)
    said = port.picture_sets.CocoCaptions(str(home / "JPEGImages"), "x.json")
    assert (said[0][0].size, said[0][1]) == ((17, 13), ["a cat"])
    with pytest.raises(FileNotFoundError, match="ports fetch no data"):
        port.picture_sets.VOCDetection(tmp_path, year="2007")


def test_data_sets_of_arrays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "stl10_binary"
    home.mkdir()
    pixels = (np.arange(2 * 3 * 96 * 96) % 251).astype(np.uint8)
    (home / "train_X.bin").write_bytes(pixels.tobytes())
    (home / "train_y.bin").write_bytes(bytes([1, 10]))
    (home / "unlabeled_X.bin").write_bytes(pixels[: 3 * 96 * 96].tobytes())
    data = port.picture_sets.STL10(tmp_path, split="train+unlabeled")
    assert data.labels.tolist() == [0, 9, -1]
    theirs = pixels.reshape(2, 3, 96, 96)[1].transpose(2, 1, 0)
    assert (np.array(data[1][0]) == theirs).all()
    held = {"X": np.arange(32 * 32 * 3 * 2).reshape(32, 32, 3, 2) % 251, "y": np.array([[10], [3]])}
    held["X"] = held["X"].astype(np.uint8)
    module = types.ModuleType("scipy.io")
    module.loadmat = lambda _: held  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "scipy.io", module)
    (tmp_path / "test_32x32.mat").write_bytes(b"")
    data = port.picture_sets.SVHN(tmp_path, "test", target_transform=lambda x: x + 1)
    assert [data[0][1], data[1][1]] == [1, 4]
    assert (np.array(data[1][0]) == held["X"][..., 1]).all()


# --- einops and timm -----------------------------------------------------------------------------


def test_axes_by_their_names() -> None:
    x = np.sin(np.arange(24.0)).astype(np.float32).reshape(2, 3, 4)
    y = np.cos(np.arange(20.0)).astype(np.float32).reshape(4, 5)
    patterns = port.patterns
    one, other = ms.Tensor(x), ms.Tensor(y)
    found = patterns.einsum(one, other, "b h w, w out -> b out h")
    np.testing.assert_allclose(found.asnumpy(), (x @ y).transpose(0, 2, 1), rtol=1e-5, atol=1e-6)
    found = patterns.einsum(one, other, "... w, w o -> ... o")
    np.testing.assert_allclose(found.asnumpy(), x @ y, rtol=1e-5, atol=1e-6)
    assert patterns.parse_shape(one, "b _ wide") == {"b": 2, "wide": 4}
    assert patterns.parse_shape(one, "b ...") == {"b": 2}
    assert patterns.parse_shape(one, "b h 4") == {"b": 2, "h": 3}
    for pattern in ("b h", "b h 5"):
        with pytest.raises(RuntimeError):
            patterns.parse_shape(one, pattern)
    with pytest.raises(ValueError, match="arrow"):
        patterns.einsum(one, "b h w")
    assert patterns.asnumpy(one) is not None


BUILT = """
import torch
from torch import nn
from einops import parse_shape
from timm.models._builder import build_model_with_cfg
from timm.models._registry import generate_default_cfgs, register_model
from timm.models.helpers import named_apply
from timm.models.layers import make_divisible
from timm.models import create_model, checkpoint_seq
default_cfgs = generate_default_cfgs({
    "small.one": {"num_classes": 5, "input_size": (2, 8, 8), "fixed_input_size": True},
    "small.two": {"num_classes": 7},
})
class Small(nn.Module):
    def __init__(self, in_chans=3, num_classes=10, img_size=None, width=4):
        super().__init__()
        width = make_divisible(width)
        self.said = [in_chans, num_classes, img_size, width]
        self.body = nn.Sequential(nn.Linear(in_chans, width), nn.ReLU())
        self.head = nn.Linear(width, num_classes)
    def forward(self, x):
        return self.head(checkpoint_seq(self.body, x))
@register_model
def small(pretrained=False, **kwargs):
    return build_model_with_cfg(Small, "small", pretrained, **kwargs)
net, other = create_model("small"), create_model("small", num_classes=3, width=13)
names = []
named_apply(lambda module, name: names.append(name), net)
shape = net(torch.ones(6, 2)).shape
made = [net.said, other.said, net.default_cfg["input_size"], names, tuple(shape)]
"""


def test_networks_that_timm_builds(tmp_path: Path) -> None:
    found = ported(BUILT)
    assert not [edit for edit in found.edits if edit.kind == "refused"]
    held = loaded(found.text, tmp_path)
    first, second, size, names, shape = held["made"]
    assert first == [2, 5, (8, 8), 8]
    assert second == [2, 3, (8, 8), 16]
    assert (size, shape) == ((2, 8, 8), (6, 5))
    assert names == ["body.0", "body.1", "body", "head"]
    with pytest.raises(NotImplementedError, match="not fetched"):
        port.timm.create_model("small", pretrained=True)
    with pytest.raises(NotImplementedError, match="features_only"):
        port.timm.create_model("small", features_only=True)


# --- torch_npu -----------------------------------------------------------------------------------


def test_contexts_that_are_made_and_not_entered_go() -> None:
    script = (
        "import torch\ntorch.autograd.profiler.emit_nvtx(False)\n"
        "with torch.autograd.profiler.emit_nvtx():\n    x = torch.ones(2)\n"
    )
    found = ported(script, load_target("torch_npu"))
    assert found.status == "runs"
    assert "    emit" not in found.text
    assert "nullcontext():" in found.text


# --- sounds --------------------------------------------------------------------------------------

SOUNDS: list[tuple[str, dict[str, Any], list[int], list[float]]] = [
    (
        "Spectrogram",
        {"n_fft": 128, "power": 1.0, "normalized": True},
        [1, 65, 13],
        [0.121096, 0.00141627],
    ),
    (
        "MelSpectrogram",
        {"n_fft": 200, "n_mels": 20, "norm": "slaney", "mel_scale": "slaney"},
        [1, 20, 9],
        [0.614989, -0.00583679],
    ),
    (
        "MFCC",
        {"n_mfcc": 8, "melkwargs": {"n_fft": 200, "n_mels": 16}},
        [1, 8, 9],
        [-11.3417, 4.62088],
    ),
    ("Resample", {"orig_freq": 3, "new_freq": 2}, [1, 534], [0.00567647, -0.00432297]),
]
"""What torchaudio 2.11.1 gives for ``_sound``: shape, mean, and mean weighed by place."""


def _sound() -> Any:
    places = np.arange(800)
    return (np.sin(places * 0.37) * np.cos(places * 0.011)).astype(np.float32)[None]


@pytest.mark.parametrize(("name", "settings", "shape", "wanted"), SOUNDS)
def test_sounds_are_seen_as_torchaudio_sees_them(
    name: str, settings: dict[str, Any], shape: list[int], wanted: list[float]
) -> None:
    layer = getattr(port.sounds, name)(**settings)
    found = _sums(layer(ms.Tensor(_sound())))
    assert found[:-2] == shape
    np.testing.assert_allclose(found[-2:], wanted, rtol=1e-4, atol=1e-6)


def test_gradients_of_silent_frames_are_numbers() -> None:
    silent = ms.Tensor(np.zeros((1, 400), np.float32))
    layer = port.sounds.Spectrogram(n_fft=64, power=1.0)
    assert (ms.grad(lambda x: layer(x).sum())(silent).asnumpy() == 0).all()


def test_parts_of_spectrograms_are_covered() -> None:
    ms.set_seed(1108)
    x = ms.Tensor(np.ones((2, 20, 30), np.float32))
    for layer, axis in ((port.sounds.FrequencyMasking(9), 1), (port.sounds.TimeMasking(9), 2)):
        widths = set()
        for _ in range(12):
            held = (layer(x).asnumpy() == 0).all(axis=tuple({0, 1, 2} - {axis}))
            widths.add(int(held.sum()))
            assert held.sum() < 9
        assert len(widths) > 3
    sound = ms.Tensor(_sound())
    numbers = port.sounds.mu_law_encoding(sound, 256)
    assert 0 <= numbers.asnumpy().min() <= numbers.asnumpy().max() <= 255
    back = port.sounds.mu_law_decoding(numbers, 256).asnumpy()
    np.testing.assert_allclose(back, _sound(), atol=0.03)


HEARD = """
import torch, torchaudio
import torchaudio.transforms as T
import torchaudio.functional as AF
from torchaudio.transforms import MelSpectrogram
wave, rate = torchaudio.load(WHERE)
mel = torch.nn.Sequential(MelSpectrogram(sample_rate=rate, n_fft=200, n_mels=20), T.AmplitudeToDB())
small = AF.resample(wave, rate, rate // 2)
torchaudio.save(WHERE, small, rate // 2)
made = [tuple(mel(wave).shape), tuple(small.shape), torchaudio.info(WHERE).sample_rate]
"""


def test_files_of_sounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held: dict[str, Any] = {"array": _sound().T, "rate": 16000}
    module = types.ModuleType("soundfile")
    said = types.SimpleNamespace(subtype="PCM_16", samplerate=8000, frames=400, channels=1)
    vars(module).update(
        read=lambda *_, **__: (held["array"], held["rate"]),
        write=lambda _, array, rate, **__: held.update(array=array, rate=rate),
        info=lambda _: said,
    )
    monkeypatch.setitem(sys.modules, "soundfile", module)
    found = ported(HEARD.replace("WHERE", repr("x.wav")))
    assert not [edit for edit in found.edits if edit.kind == "refused"]
    assert loaded(found.text, tmp_path)["made"] == [(1, 20, 9), (1, 400), 8000]
    assert (held["rate"], held["array"].shape) == (8000, (400, 1))


# --- the second transforms, and what looks for rates ---------------------------------------------

SECOND = """
import torch
from torchvision.transforms import v2
import torchvision.transforms.v2 as T
from torchvision.transforms.v2 import functional as F
augment = v2.Compose([
    v2.RandomResizedCrop(size=(8, 8), antialias=True), v2.RandomHorizontalFlip(p=0.5),
    T.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(mean=[0.5], std=[0.5]),
])
mixup, cutmix = v2.MixUp(num_classes=4, alpha=0.4), v2.CutMix(num_classes=4)
def seen(picture):
    return augment(picture), F.resize(picture, [4, 5]).size, v2.ToDtype(torch.int64)(torch.ones(2))
"""


def test_the_second_transforms_of_torchvision(tmp_path: Path) -> None:
    found = ported(SECOND)
    assert not [edit for edit in found.edits if edit.kind in ("refused", "unproven")]
    held = loaded(found.text, tmp_path)
    x, size, whole = held["seen"](_picture("picture"))
    assert (x.shape, x.dtype, size) == ((3, 8, 8), ms.float32, (5, 4))
    assert -1 <= x.asnumpy().min() < x.asnumpy().max() <= 1
    assert whole.dtype == ms.int64
    images = ms.Tensor(np.arange(3.0, dtype=np.float32).reshape(3, 1, 1, 1) * np.ones((3, 1, 6, 6)))
    images, labels = images.astype(ms.float32), ms.Tensor([0, 1, 3], ms.int64)
    ones = np.eye(4)[[0, 1, 3]]
    others = ones[[2, 0, 1]]
    for mix in (held["mixup"], held["cutmix"]):
        for _ in range(5):
            made, shares = mix(images, labels)
            share = float(shares.asnumpy()[0, 0])
            wanted = ones * share + others * (1 - share)
            np.testing.assert_allclose(shares.asnumpy(), wanted, atol=1e-6)
            means = made.asnumpy().mean((1, 2, 3))
            np.testing.assert_allclose(means[0], 2 * (1 - share), atol=1e-5)
    with pytest.raises(ValueError, match="num_classes"):
        port.picture_mixes.MixUp()(images, labels)
    with pytest.raises(NotImplementedError, match="pictures and labels"):
        port.picture_mixes.MixUp(num_classes=4)(images)


@pytest.mark.filterwarnings("ignore:nothing is searched")
def test_what_looks_for_rates_finds_those_that_are_set(tmp_path: Path) -> None:
    script = """import torch
import lightning.pytorch as pl
from lightning.pytorch.tuner import Tuner
class Net(pl.LightningModule):
    def __init__(self, lr=0.25, batch_size=6):
        super().__init__()
        self.save_hyperparameters()
        self.layer = torch.nn.Linear(2, 1)
net = Net()
tuner = Tuner(None)
made = [tuner.scale_batch_size(net, mode="power"), tuner.lr_find(net).suggestion()]
made.append(tuner.scale_batch_size(net, batch_arg_name="other", init_val=3))
"""
    found = ported(script)
    assert not [edit for edit in found.edits if edit.kind == "refused"]
    assert loaded(found.text, tmp_path)["made"] == [6, 0.25, 3]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("torch.utils.cpp_extension.load('a', ['a.cu'])", "against torch"),
        ("torch.fx.symbolic_trace(torch.nn.Linear(2, 2))", "graphs of torch's"),
        ("torch.distributed.fsdp.ShardingStrategy.FULL_SHARD.value", "leave it out"),
    ],
)
def test_refusals_say_a_way_out(line: str, why: str) -> None:
    head = "import torch\nimport torch.utils.cpp_extension, torch.fx, torch.distributed.fsdp\n"
    said = [
        edit.reason for edit in ported(f"{head}made = {line}\n").edits if edit.kind == "refused"
    ]
    assert len(said) == 1
    assert why in said[0]

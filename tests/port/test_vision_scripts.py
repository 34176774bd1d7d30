"""What scripts of computer vision ask, as the smallest script of each kind, beside torch."""

import runpy
import sys

import numpy as np
import pytest
from mindspore import nn

import mpcore_port_runtime as port
from mpcore.errors import BackendError
from mpcore_port.engine import port_text, port_tree
from mpcore_port.source import walk
from mpcore_port.targets import Options, load_target

from .ports import compare

TARGET = load_target("mindspore")


def ported(script, *kinds):
    """Return a port whose rules all ran, with edits of these kinds alone."""
    found = port_text(script, TARGET)
    assert not found.failures
    assert {edit.kind for edit in found.edits} <= set(kinds), found.edits
    return found


def beside(script, folder, *kinds):
    """Return what a script and its port leave behind as ``made``, as numbers."""
    found = ported(script, *(kinds or ("exact", "changed")))
    compare(script, found.text, folder, atol=1e-5)
    return found


# --- settings of layers that are made -------------------------------------------------------------

SETTINGS = """import torch
from torch import nn
net = nn.Sequential(
    nn.Conv2d(3, 4, 3, stride=2, bias=False), nn.BatchNorm2d(4), nn.Dropout(0.5),
    nn.Conv2d(4, 4, 3, padding=1), nn.LayerNorm(4),
)
for m in net.modules():
    t = type(m)
    if isinstance(m, nn.BatchNorm2d):
        m.eps = 1e-1
        m.momentum *= 0.3
    elif t is nn.Dropout:
        setattr(m, "p", 0.0)
    elif t is nn.Conv2d and m.stride == (2, 2):
        m.stride = (1, 1); m.dilation = 2
        m.padding = (2, 1)
    elif type(m) in [nn.LayerNorm, nn.GroupNorm]:
        m.eps = 0.5
for p in net.parameters():
    p.data.copy_(torch.linspace(-1, 1, p.numel()).view(p.shape))
net.train()
y = net(torch.arange(2 * 3 * 6 * 6.0).view(2, 3, 6, 6) / 50)
made = [y, net[1].running_mean, net[1].running_var, net[1].momentum]
net.eval()
made.append(net(torch.ones(1, 3, 6, 6)))
"""


def test_what_is_set_on_a_layer_is_what_it_computes_with(tmp_path):
    found = beside(SETTINGS, tmp_path)
    assert "elif t is nn.Dropout" in found.text
    assert "[nn.LayerNorm, nn.GroupNorm]" in found.text


def test_settings_of_other_objects_are_attributes():
    script = "from torch import nn, optim\nnet = nn.BatchNorm2d(3)\nclass C: pass\nc = C()\n"
    script += "c.momentum = 3\nopt = optim.SGD(net.parameters(), 0.1)\nopt.momentum = 2\n"
    script += "class B(nn.Module):\n    def __init__(self):\n        self.momentum = 1\n"
    assert "set_attribute" not in ported(script, "exact", "changed").text
    plain = type("C", (), {})()
    port.set_attribute(plain, "momentum", 4)
    assert plain.momentum == 4


def test_several_settings_in_one_line_are_unproven():
    script = "from torch import nn\nm = nn.Conv2d(3, 3, 3)\nm.stride, m.padding = (1, 1), (0, 0)\n"
    found = ported(script, "exact", "unproven")
    assert [edit.line for edit in found.edits if edit.kind == "unproven"] == [3, 3]


def test_volumes_are_set_too_and_what_cannot_be_is_said():
    volume = nn.BatchNorm3d(2)
    port.set_attribute(volume, "eps", 0.5)
    assert volume.bn2d.bn_train.epsilon == pytest.approx(0.5)
    with pytest.raises(BackendError, match="cumulative"):
        port.set_attribute(volume, "momentum", None)
    with pytest.raises(BackendError, match="stride of MaxPool2d"):
        port.set_attribute(nn.MaxPool2d(2), "stride", 1)
    with pytest.raises(BackendError, match="SyncBatchNorm"):
        port.set_attribute(nn.SyncBatchNorm(3), "momentum", 0.1)


# --- classes that are compared --------------------------------------------------------------------

TYPES = """from torch import nn
kinds = (nn.Linear, nn.Conv2d)
counts = {nn.Conv2d: 3, nn.Linear: 2}
made = []
for m in (nn.Linear(2, 2), nn.Conv2d(1, 1, 1), nn.ReLU()):
    made.append(isinstance(m, kinds) + 10 * counts.get(type(m), 0) + 100 * (m.__class__ == nn.Conv2d))
"""  # noqa: E501


def test_classes_are_themselves_where_they_are_asked_for(tmp_path):
    assert "partial" not in beside(TYPES, tmp_path).text


HANDED = """from torch import nn
def named(act=nn.GELU, norm=nn.BatchNorm2d):
    return [act == nn.GELU, act is nn.ReLU, norm in (nn.BatchNorm2d, nn.LayerNorm)]
made = named() + named(nn.ReLU, nn.LayerNorm) + [type(nn.GELU()) is nn.GELU]
"""


def test_a_class_that_was_handed_on_is_compared_with_what_was_handed_on(tmp_path):
    text = beside(HANDED, tmp_path).text
    assert "act is port.torch_nn.ReLU" in text
    assert "is nn.GELU" in text


def test_a_class_without_torchs_arguments_is_compared_without_proof():
    found = ported("from torch import nn\ndef f(act): return act == nn.GLU\n", "exact", "unproven")
    assert "act == nn.GLU" in found.text
    assert "port.torch_nn" in port_text("from torch import nn\nx = [nn.Conv2d]\n", TARGET).text


# --- instances that are normalised ----------------------------------------------------------------

INSTANCES = """import torch
from torch import nn
from torch.nn import functional as F
class Block(nn.Module):
    def __init__(self, norm=nn.InstanceNorm2d):
        super().__init__()
        self.conv = nn.Conv2d(2, 3, 3)
        self.norm = norm(3, affine=True, track_running_stats=True)
    def forward(self, x):
        return F.instance_norm(self.norm(self.conv(x)), eps=0.1)
net = Block()
for m in net.modules():
    if isinstance(m, nn.InstanceNorm2d):
        nn.init.constant_(m.weight, 0.5)
        nn.init.constant_(m.bias, 2.0)
        m.momentum = 0.3
for p in net.conv.parameters():
    p.data.copy_(torch.linspace(-1.0, 1.0, p.numel()).view(p.shape))
y = net(torch.arange(200.0).view(2, 2, 5, 10).sin())
names = sorted(name for name in net.state_dict() if not name.endswith("tracked"))
made = [y, net.norm.running_var, len(names)]
net.eval()
made.append(net.norm(y[0]))
"""


def test_instances_are_normalised_as_in_torch(tmp_path):
    found = beside(INSTANCES, tmp_path, "exact", "changed", "unproven")
    assert "norm=port.InstanceNorm2d" in found.text
    assert not [edit for edit in found.edits if edit.kind == "unproven" and "Norm" in edit.old]


# --- methods that change a tensor in place --------------------------------------------------------

IN_PLACE = """import torch
def matched(x):
    best, where = x.max(1, keepdim=True)
    best.squeeze_(1)
    where.squeeze_(1)
    boxes = torch.Tensor([[0.2, 1.4, -3.0, 0.5]]).view(2, 2)
    boxes.clamp_(max=1, min=0)
    return best, where, boxes, torch.tensor([1.0, 2.0]).unsqueeze_(0)
made = matched(torch.arange(12.0).view(3, 4).sin())
"""


def test_what_no_name_holds_is_made_anew(tmp_path):
    beside(IN_PLACE, tmp_path, "exact", "changed", "unproven")


PERHAPS = """import torch
def f(self, vae, x):
    x = vae.encode(x).sample().mul_(0.18)
    y = self.predict(x)
    y.clamp_(-1.0, 1.0)
    return y
"""
SEEN = """import torch
def f(self, x, w):
    a = self.two(x)
    {}
    return a
"""


def test_what_another_file_gives_is_made_anew_without_proof():
    found = ported(PERHAPS, "exact", "unproven")
    assert ".sample().mul(0.18)" in found.text
    assert "y = y.clamp(-1.0, 1.0)" in found.text
    assert {edit.line for edit in found.edits if "made anew" in edit.reason} == {3, 5}


@pytest.mark.parametrize(
    "line",
    ["x.view(-1).add_(1)", "x.float().mul_(3)", "w.data.squeeze_(0)"],
)
def test_what_another_name_may_hold_is_refused(line):
    found = port_text(SEEN.format(line), TARGET)
    assert [edit.line for edit in found.edits if edit.kind == "refused"] == [4]


# --- losses by settings, packages of one's own ----------------------------------------------------

SETTLED = """import torch
from torch import nn
x, y = torch.linspace(-1.0, 1.0, 12).view(4, 3), torch.tensor([0, 1, 2, 2])
made = []
for kwargs in ({"ignore_index": 2}, {"label_smoothing": 0.1, "size_average": False}, {"reduce": False}):
    criterion = nn.CrossEntropyLoss(**kwargs)
    made.append(criterion(x, y))
"""  # noqa: E501


@pytest.mark.filterwarnings("ignore:size_average and reduce args will be deprecated")  # torch's
def test_a_loss_takes_its_settings_when_it_runs(tmp_path):
    beside(SETTLED, tmp_path, "exact", "changed", "unproven")


TRUTHS = """import torch
import torch.nn.functional as F
x, y = torch.linspace(-1.0, 1.0, 6).view(2, 3), torch.linspace(0.0, 1.0, 6).view(2, 3)
made = []
made.append(F.binary_cross_entropy_with_logits(x, y, reduce="none"))
made.append(F.mse_loss(x, y, reduce=0))
made.append(F.l1_loss(x, y, size_average=""))
"""


@pytest.mark.filterwarnings("ignore:size_average and reduce args will be deprecated")  # torch's
def test_torch_takes_reduce_none_for_the_mean(tmp_path):
    beside(TRUTHS, tmp_path, "exact", "changed", "unproven")
    assert "reduction='mean'" in port_text(TRUTHS, TARGET).text


@pytest.mark.parametrize("marked", [True, False])
def test_a_package_of_the_project_is_no_package_of_that_name(tmp_path, marked):
    package = tmp_path / "diffusers"
    (package / "runs").mkdir(parents=True)
    (tmp_path / "examples").mkdir()
    (package / "__init__.py").write_text("", "utf-8")
    if marked:
        (tmp_path / "setup.py").write_text("", "utf-8")
    for folder in ("examples", "diffusers/runs"):
        script = tmp_path / folder / "train.py"
        script.write_text("import torch\nfrom diffusers.models import UNet\n", "utf-8")
        (file,) = port_tree(walk(script), TARGET, Options()).files
        kinds = {edit.kind for edit in file.edits if edit.line == 2}
        assert kinds == {"unproven" if marked or "runs" in folder else "refused"}


# --- what writers, indices and types take ---------------------------------------------------------

TAKEN = """import numpy as np
import torch
def filled(x, y):
    x[..., np.r_[:2, 4:6]] = torch.zeros(2, 3, 4)
    x[0, 0, 3 + y[0].to(torch.int16).cpu().numpy()] = 7
    places = y.to(torch.int16).cpu().numpy()
    i, j = places[0], places[1:]
    x[1, i, j[0]] = 5
    return x, (x < 3).type(x.type()).sum()
made = filled(torch.ones(2, 3, 6), torch.tensor([2.0, 1.0]))
"""


def test_arrays_of_numpy_are_no_indices_and_a_type_may_be_another_tensors(tmp_path):
    found = beside(TAKEN, tmp_path, "exact", "changed", "unproven")
    assert ".astype(x.dtype)" in found.text


def test_a_type_that_is_asked_for_alone_is_that_on_a_cpu():
    found = port_text("import torch\ndef f(x): return x.type() == 'torch.FloatTensor'\n", TARGET)
    said = [edit.kind for edit in found.edits if edit.line == 2 and "on the CPU" in edit.effect]
    assert said == ["changed"]


WRITERS = """import torch
from tensorboardX import SummaryWriter
import tensorboardX as tb
writer = SummaryWriter("{0}", comment="a")
writer.add_scalar("loss", torch.ones(1), 2)
writer.add_image("picture", torch.zeros(3, 4, 4))
folder = writer.file_writer.get_logdir()
writer.close()
other = tb.SummaryWriter(logdir="{0}", flush_secs=3)
other.close()
made = []
"""


def test_writers_of_tensorboardx_take_tensors(tmp_path):
    script = WRITERS.format(tmp_path / "runs")
    assert ported(script, "exact", "changed").text.count("port.SummaryWriter") == 2
    (tmp_path / "ported.py").write_text(port_text(script, TARGET).text, "utf-8")
    runpy.run_path(str(tmp_path / "ported.py"), run_name="port")
    assert list((tmp_path / "runs").iterdir())


# --- networks that run between a loss and its step ------------------------------------------------

BETWEEN = """import torch
from torch import nn
net = nn.Linear(3, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
criterion = nn.MSELoss()
def train(batches, log):
    for x, y in batches:
        out = net(x)
        loss = criterion(out, y)
        optimizer.zero_grad()
        loss.backward()
        {}
        optimizer.step()
        log(loss.item(), out)
"""


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("out = net(x)", ["it runs a network between loss and step"]),
        ("other = criterion(out, y + 1)", []),
    ],
)
def test_a_network_that_runs_before_its_step_does_not_run_behind_it(line, why):
    found = ported(BETWEEN.format(line), "exact", "changed")
    shaped = [edit.reason for edit in found.edits if "torch's form" in edit.reason]
    assert [reason.partition(": ")[2] for reason in shaped] == why
    assert ("port.loss" in found.text) is bool(why)


# --- regions without gradients --------------------------------------------------------------------

TARGETS = """import torch
from torch import nn
net = nn.Linear(3, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for p in net.parameters():
    p.data.copy_(torch.linspace(-1.0, 1.0, p.numel()).view(p.shape))
shown = []
def compute(net, x):
    with torch.no_grad():
        target = net(x) * 2
    shown.append(target.mean().item())
    return ((net(x) - target) ** 2).mean()
def train(batches):
    for x in batches:
        loss = compute(net, x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        shown.append(loss.item())
        with torch.no_grad():
            shown.append(net(x).sum().item())
def validate(net, batches):
    net.eval()
    total = 0
    with torch.no_grad():
        for x in batches:
            total += net(x).sum().item()
    return total
batches = [torch.arange(6.0).view(2, 3).sin(), torch.ones(2, 3)]
train(batches)
made = [*shown, validate(net, batches)]
"""


def test_targets_without_gradients_have_none_where_the_loss_shows_a_number(tmp_path):
    found = beside(TARGETS, tmp_path, "exact", "changed", "unproven")
    assert found.text.count("no_grad()") == 1  # what is driven, or evaluates, records nothing


# --- names of refused imports ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "use", ["Net.from_pretrained('a').to('cuda')", "Net('a').cuda()", "Net.of('a').eval()"]
)
def test_a_method_of_what_a_refused_name_gives_maps_no_name(use):
    script = f"import torch\nfrom diffusers.models import Net\nx = torch.ones(2)\nnet = {use}\n"
    found = port_text(script, TARGET)
    assert found.status == "does not run"


def test_a_name_that_has_an_equal_does_not_stop():
    script = "import torch\nfrom apex import amp, optimizers\nx = amp.scale_loss\n"
    assert "does not run" not in port_text(script, TARGET).status


# --- loggers that know torch's tensors ------------------------------------------------------------

LOGGED = """import torch
import wandb
loss, parts = torch.ones(1), [torch.zeros(2)]
wandb.log({"loss": loss, "parts": parts, "epoch": 1}, step=2)
wandb.log({"loss": loss.item(), "epoch": 1})
wandb.log(dict(loss=loss))
"""


def test_loggers_take_numbers_and_arrays(tmp_path, monkeypatch):
    found = ported(LOGGED, "exact", "changed")
    assert 'wandb.log({"loss": loss.item(), "epoch": 1})' in found.text
    seen = []
    fake = type("wandb", (), {"log": lambda values, step=None: seen.append((values, step))})
    monkeypatch.setitem(sys.modules, "wandb", fake)
    (tmp_path / "ported.py").write_text(found.text, "utf-8")
    runpy.run_path(str(tmp_path / "ported.py"), run_name="port")
    (first, step), (second, _), (third, _) = seen
    assert (first["loss"], first["epoch"], step) == (1.0, 1, 2)
    assert isinstance(first["parts"][0], np.ndarray)
    assert second["loss"] == third["loss"] == 1.0
    assert port.logged((1, "a")) == (1, "a")


# --- networks that are rounded, collectives that give one process the result ----------------------

ROUNDED = """import torch
from torch import nn
model = nn.Linear(3, 2)
for p in model.parameters():
    p.data.copy_(torch.linspace(-1.0, 1.0, p.numel()).view(p.shape) / 3)
model.half().float()
made = [model.weight * 1.0, model(torch.ones(1, 3))]
"""


def test_a_network_that_is_halved_and_back_is_rounded(tmp_path):
    assert "port.rounded(model, ms.float16)" in beside(ROUNDED, tmp_path).text


def test_a_network_that_stays_halved_says_what_that_means():
    found = port_text("from torch import nn\nmodel = nn.Linear(3, 2)\nmodel.half()\n", TARGET)
    assert [edit.line for edit in found.edits if "kernels in 16 bits" in edit.effect] == [3]


def test_a_sum_for_one_process_is_one_for_all():
    script = (
        "import torch\nimport torch.distributed as dist\nx = torch.ones(2)\ndist.reduce(x, {})\n"
    )
    assert "port.all_reduce(x)" in ported(script.format("dst=0"), "exact", "changed").text
    grouped = ported(script.format("0, group=group, async_op=True"), "exact", "changed").text
    assert "port.all_reduce(x, group=group, async_op=True)" in grouped


# --- numbers that are scattered -------------------------------------------------------------------

SCATTERED = """import torch
def encoded(label):
    held = torch.zeros(3, 4)
    held.scatter_(1, label, 1)
    fresh = torch.zeros(3, 4).scatter_(1, label, 2)
    whole = torch.zeros(3, 4, dtype=torch.int64).scatter(1, label, 3)
    deep = torch.zeros(2, 3, 4).scatter_(1, label.view(1, 3, 1).repeat(2, 1, 1), 4)
    after = torch.zeros(3, 4).scatter(1, label, torch.ones(3, 2))
    return held, fresh, whole, torch.scatter(held, 1, label, label.float()), deep, after
made = encoded(torch.tensor([[1], [0], [2]]))
"""


def test_numbers_are_scattered_as_in_torch(tmp_path):
    """MindSpore's own raises, or writes elsewhere, behind tensors of more axes."""
    beside(SCATTERED, tmp_path, "exact", "changed", "unproven")


def test_what_is_scattered_into_what_another_holds_is_seen_there(tmp_path):
    script = """import torch
def f(x, y):
    x.scatter_(1, y, 1)
x = torch.zeros(3, 4)
f(x, torch.tensor([[1], [0], [2]]))
made = [x]
"""
    beside(script, tmp_path, "exact")


def test_a_scattered_sum_in_place_is_refused():
    line = "a = self.f(x); a.scatter_(1, y, 1, reduce='add')"
    found = port_text(f"import torch\ndef f(self, x, y):\n    {line}\n", TARGET)
    assert [edit.kind for edit in found.edits if edit.line == 3].count("refused") == 1

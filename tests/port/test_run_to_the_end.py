"""What stopped ports of public scripts when they were run, as the smallest script of each kind."""

import re
import struct

import mindspore as ms
import numpy as np
import pytest
import torch
from PIL import Image

import mpcore_port_runtime as port
from mpcore_port.targets import load_target

from .ports import loaded, ported


def run(script, **given):
    """Return what a port without doubts leaves behind."""
    found = ported(script)
    assert {edit.kind for edit in found.edits} <= {"exact", "changed"}, found.edits
    made = {"__name__": "port"} | given
    exec(found.text, made)
    return made


# --- classes that are made of a layer -------------------------------------------------------------

HEIRS = """import torch
from torch import nn
class Flat(nn.Linear):
    def __init__(self, i, o, bias=True, device=None, dtype=None):
        super().__init__(i, o, bias, device, dtype)
class Old(nn.Linear):
    def __init__(self, i, o):
        nn.Linear.__init__(self, i, out_features=o, bias=False)
class Older(nn.Module):
    def __init__(self):
        nn.Module.__init__(self)
        self.inner = nn.Linear(2, 2)
class Slow(nn.BatchNorm2d):
    def __init__(self, n):
        super(Slow, self).__init__(n, momentum=0.2)
class Twice(nn.Conv2d):
    def forward(self, x):
        return super().forward(x) * 2
flat, old, older, slow, twice = (
    Flat(3, 4), Old(3, 4), Older(), Slow(5), Twice(3, 8, 3, 1, 1, bias=False)
)
"""


def test_classes_made_of_layers_hand_mindspores_arguments_to_them():
    made = run(HEIRS)
    assert made["flat"].has_bias
    assert not made["old"].has_bias
    assert made["slow"].momentum == pytest.approx(0.2)  # kept as torch has it
    x = np.random.default_rng(0).normal(size=(2, 3, 5, 5)).astype(np.float32)
    twice = made["twice"]
    wanted = torch.nn.functional.conv2d(
        torch.from_numpy(x), torch.from_numpy(twice.weight.asnumpy()), padding=1
    )
    np.testing.assert_allclose(twice(ms.Tensor(x)).asnumpy(), 2 * wanted.numpy(), atol=1e-5)
    assert len(made["older"].trainable_params()) == 2


def test_a_layer_whose_arguments_are_others_in_mindspore_is_refused_at_its_line():
    script = (
        "from torch import nn\nclass N(nn.LayerNorm):\n    def __init__(self, n):\n"
        "        super().__init__(n, elementwise_affine=False)\n"
    )
    assert {edit.line for edit in ported(script).edits if edit.kind == "refused"} <= {4}


# --- tensors in texts -----------------------------------------------------------------------------

SHOWN = """import torch
def best(x):
    return {"loss": x.mean()}
x = torch.ones(2, 3)
loss = x.mean()
texts = [f"{loss:.4f}", f"{best(x)['loss']:6.2f}", "{:.3f} {} {a:.1e}".format(loss, 1, a=x.sum())]
held, total = {}, 0
held["a"] = loss
for row in x:
    total += row.sum()
texts += [f"{held['a']:.2f} {total:.1f} {total / 2:g}"]
texts += [f"{3.0:.2f}", f"{'a':>3}", f"{2 * loss:.2f}", "{:5d}".format(7)]
"""


METER = """
import torch

class Meter:
    def __init__(self, fmt):
        self.fmt, self.val = fmt, torch.tensor(0.5)

    def __str__(self):
        fmtstr = "val {val" + self.fmt + "}"
        return fmtstr.format(**self.__dict__)

text = str(Meter(":6.2f"))
"""


def test_tensors_that_an_object_holds_are_formatted_as_their_number():
    assert run(METER)["text"] == "val   0.50"


def test_tensors_are_formatted_as_their_number():
    plain = {}
    exec(SHOWN, plain)
    assert run(SHOWN)["texts"] == plain["texts"]


def test_what_is_no_tensor_keeps_its_text():
    script = "import time\nimport torch\nx = torch.ones(2)\nt = time.time()\nprint(f'{t:.2f}')\n"
    assert "shown" not in ported(script).text


# --- old types of tensors -------------------------------------------------------------------------

TYPES = """import numpy as np
import torch
from torch.autograd import Variable
cuda = True if torch.cuda.is_available() else False
Tensor = torch.cuda.FloatTensor if cuda else torch.FloatTensor
noise = Tensor(np.array([[1.0, 2.0]]))
ones = Variable(Tensor(3, 1).fill_(1.0), requires_grad=False)
labels = torch.LongTensor([1, 2])
sized = torch.LongTensor(5)
cast = Variable(labels.type(Tensor))
wide = noise.type(torch.LongTensor)
"""


def test_types_of_tensors_take_values_and_sizes():
    made = run(TYPES)
    assert made["noise"].asnumpy().tolist() == [[1.0, 2.0]]
    assert made["ones"].asnumpy().tolist() == [[1.0]] * 3
    assert made["ones"].dtype == made["noise"].dtype == ms.float32
    assert made["labels"].dtype == ms.int64
    assert made["sized"].shape == (5,)
    assert (made["cast"].dtype, made["wide"].dtype) == (ms.float32, ms.int64)


# --- in place, on a line of its own ---------------------------------------------------------------

FILLED = """import torch
def run(n):
    label = torch.full((n,), 1.0)
    first = label.sum()
    label.fill_(0.5)
    label.mul_(3)
    return first, label
"""


def test_methods_in_place_of_a_tensor_that_no_other_name_holds_are_assignments():
    first, label = run(FILLED)["run"](4)
    assert (float(first), label.asnumpy().tolist()) == (4.0, [1.5] * 4)


TWO_LOSSES = """import torch
from torch import nn
net = nn.Linear(2, 1)
criterion = nn.MSELoss()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for x in torch.ones(2, 4, 2):
    optimizer.zero_grad()
    label = torch.full((4, 1), 1.0)
    real = criterion(net(x), label)
    real.backward()
    label.fill_(0.0)
    fake = criterion(net(x), label)
    fake.backward()
    optimizer.step()
"""


def test_a_label_that_is_filled_between_two_losses_of_a_step_is_made_anew():
    found = ported(TWO_LOSSES)
    assert not [edit for edit in found.edits if edit.kind == "refused"]
    start = {"weight": np.full((1, 2), 0.5, np.float32), "bias": np.zeros(1, np.float32)}
    text = "net.load_state_dict({k: torch.tensor(v) for k, v in start.items()})\nfor x in"
    exec(TWO_LOSSES.replace("for x in", text), theirs := {"start": start})
    text = (
        "[p.set_data(ms.Tensor(start[k.split('.')[-1]])) for k, p in net.parameters_dict().items()]"
    )
    head, loop, tail = found.text.partition("for x in")
    exec(f"{head}{text}\n{loop}{tail}", ours := {"start": start, "__name__": "port"})
    wanted = theirs["net"].weight.detach().numpy()
    np.testing.assert_allclose(ours["net"].weight.asnumpy(), wanted, atol=1e-6)


PICTURES_OF_BEFORE = """import numpy as np
import torch
from torch import nn
g, d = nn.Linear(2, 3), nn.Linear(3, 1)
criterion = nn.MSELoss()
optimizer_g = torch.optim.SGD(g.parameters(), lr=0.05)
optimizer_d = torch.optim.SGD(d.parameters(), lr=0.05)
random = np.random.default_rng(0)
for real in torch.ones(3, 4, 3):
    valid = torch.ones(4, 1)
    fake = torch.zeros(4, 1)
    optimizer_g.zero_grad()
    z = torch.tensor(random.normal(size=(4, 2)), dtype=torch.float32)
    made = g(z)
    g_loss = criterion(d(made), valid)
    g_loss.backward()
    optimizer_g.step()
    optimizer_d.zero_grad()
    d_loss = criterion(d(real), valid) + criterion(d(made.detach()), fake)
    d_loss.backward()
    optimizer_d.step()
"""


def test_a_second_step_takes_the_pictures_and_labels_of_the_first():
    start = {
        "g": (np.full((3, 2), 0.5, np.float32), np.zeros(3, np.float32)),
        "d": (np.full((1, 3), -0.5, np.float32), np.zeros(1, np.float32)),
    }
    found = ported(PICTURES_OF_BEFORE)
    assert found.text.count("random.normal(") == 1
    theirs, ours = {"start": start}, {"start": start, "__name__": "port"}
    set_theirs = (
        "for n, m in (('g', g), ('d', d)):\n"
        "    m.weight.data = torch.tensor(start[n][0]); m.bias.data = torch.tensor(start[n][1])\n"
    )
    set_ours = (
        "for n, m in (('g', g), ('d', d)):\n"
        "    m.weight.set_data(ms.Tensor(start[n][0])); m.bias.set_data(ms.Tensor(start[n][1]))\n"
    )
    exec(PICTURES_OF_BEFORE.replace("for real", set_theirs + "for real"), theirs)
    exec(found.text.replace("for real", set_ours + "for real"), ours)
    for name in "gd":
        wanted = theirs[name].weight.detach().numpy()
        np.testing.assert_allclose(ours[name].weight.asnumpy(), wanted, atol=1e-5)


def test_a_tensor_that_another_name_holds_is_written_in_place():
    script = "import torch\nx = torch.ones(3)\ny = x\nx.fill_(2.0)\nprint(y)\n"
    assert "port.written(x" in ported(script).text


INDEXED = """import torch
x = torch.zeros(3, 4)
y = torch.tensor([0, 2, 1])
x[range(3), y] = 1.0
rows = x[range(x.shape[0]), y].sum()
flag = x.is_xpu or x.is_mps
"""


def test_a_range_is_an_index_and_a_tensor_is_on_no_other_device():
    made = run(INDEXED)
    assert made["x"].asnumpy().tolist() == [[1, 0, 0, 0], [0, 0, 1, 0], [0, 1, 0, 0]]
    assert (float(made["rows"]), made["flag"]) == (3.0, False)


TABLE = """import torch
from torch import nn
torch.set_printoptions(threshold=10)
new = int(torch.__version__.split(".")[0]) > 1
table = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
frozen = nn.Embedding.from_pretrained(table, freeze=True)
trained = nn.Embedding.from_pretrained(table, False)
out = frozen(torch.tensor([2, 0]))
"""


def test_an_embedding_of_given_rows_is_frozen_or_trained():
    made = run(TABLE)
    assert made["new"]
    assert made["out"].asnumpy().tolist() == [[5, 6], [1, 2]]
    assert [len(made[name].trainable_params()) for name in ("frozen", "trained")] == [0, 1]


# --- pictures and channels ------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(6, 5), (6, 5, 4), (6, 5, 4, 3)])
def test_dropout2d_drops_whole_channels_of_every_rank_that_torchs_takes(shape):
    layer = port.Dropout2d(p=0.5).set_train()
    out = layer(ms.ops.ones(shape, ms.float32)).asnumpy().reshape(6, 5, -1)
    assert set(np.unique(out)) <= {0.0, 2.0}
    assert (out == out[:, :, :1]).all()
    assert (layer.set_train(False)(ms.ops.ones(shape, ms.float32)).asnumpy() == 1).all()


def test_digits_are_tensors_where_a_script_asks_for_them(tmp_path):
    folder = tmp_path / "MNIST" / "raw"
    folder.mkdir(parents=True)
    pictures = np.arange(2 * 784).reshape(2, 28, 28).astype(np.uint8)
    head = struct.pack(">IIII", 2051, 2, 28, 28)
    (folder / "train-images-idx3-ubyte").write_bytes(head + pictures.tobytes())
    (folder / "train-labels-idx1-ubyte").write_bytes(struct.pack(">II", 2049, 2) + b"\x03\x07")
    held = port.pictures.MNIST(tmp_path)
    assert (len(held), held[1][1]) == (2, 7)
    assert isinstance(held.data, ms.Tensor)
    assert held.targets.asnumpy().tolist() == [3, 7]
    held.targets = held.targets[:1]
    assert (np.array(held[0][0]) == pictures[0]).all()


def test_a_grid_of_pictures_is_laid_out_as_torchvision_does(tmp_path):
    rows = np.arange(3, dtype=np.float32).reshape(3, 1, 1, 1) / 2
    pictures = ms.Tensor(np.broadcast_to(rows, (3, 1, 2, 2)).copy())
    grid = port.pictures.make_grid(pictures, nrow=2, padding=1, pad_value=0.25)
    assert grid.shape == (3, 7, 7)
    wanted = np.full((7, 7), 0.25, np.float32)
    wanted[1:3, 1:3], wanted[1:3, 4:6], wanted[4:6, 1:3] = 0.0, 0.5, 1.0
    assert (grid.asnumpy() == wanted).all()
    port.pictures.save_image(pictures, tmp_path / "x.png", nrow=3, normalize=True)
    written = np.array(Image.open(tmp_path / "x.png"))
    assert written.shape == (6, 14, 3)
    assert written[3, 10].tolist() == [255] * 3


# --- torch.accelerator ----------------------------------------------------------------------------


def test_a_script_of_torch_accelerator_imports_torch_npu_once():
    script = "import torch\ndevice = torch.accelerator.current_accelerator()\n"
    target = load_target("torch_npu")
    found = ported(script, target)
    assert "import torch_npu\n" in found.text
    assert ported(found.text, target).text == found.text


def test_randints_two_forms_are_told_apart():
    script = "import torch\nn = 5\nx = torch.randint(n, (3,))\ny = torch.randint(0, n, (3,))\n"
    made = run(script)
    for name in "xy":
        assert made[name].shape == (3,)
        assert made[name].dtype == ms.int64
        assert set(made[name].asnumpy()) <= set(range(5))


MODULES = """import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows = nn.ModuleList([nn.Linear(2, 2) for _ in range(2)])
        self.rows.append(nn.Linear(2, 3))
        self.heads = nn.ModuleDict({"a": nn.Linear(3, 1)})
        self.parts = nn.ModuleDict(dict(h=nn.ModuleList([nn.Linear(3, 3)]), f=nn.Linear(3, 3)))
    def forward(self, x):
        for row in self.rows:
            x = row(x)
        for block in self.parts.h:
            x = self.parts.f(block(x))
        assert list(self.parts.keys()) == ["h", "f"] and len(self.parts) == 2
        return self.heads["a"](x), self.rows[-1](x[:, :2])
net = Net()
names = sorted(net.state_dict())
out = net(torch.ones(4, 2))
"""


def test_lists_and_dictionaries_of_modules_hold_parameters_by_torchs_names():
    theirs = {}
    exec(MODULES, theirs)
    made = run(MODULES)
    assert made["names"] == theirs["names"]
    assert [tuple(x.shape) for x in made["out"]] == [tuple(x.shape) for x in theirs["out"]]


# --- names as values, and torch.Tensor ------------------------------------------------------------

TENSORS = """import numpy as np
import torch
whole = torch.Tensor([1, 2, 3])
wide = torch.Tensor(np.arange(3.0))
sized = torch.Tensor(2, 3)
like = torch.Tensor(whole.size())
like_too = torch.Tensor(sized.shape)
kind = torch.Tensor if len([1]) else None
handed = kind([4, 5])
asked = isinstance(whole, torch.Tensor)
"""


def test_torch_tensor_makes_float32_of_whatever_it_gets():
    plain = {}
    exec(TENSORS, plain)
    found = ported(TENSORS)
    made = {}
    exec(found.text, made)
    for name in ("whole", "wide", "sized", "like", "like_too", "handed"):
        assert tuple(made[name].shape) == tuple(plain[name].shape), name
        assert str(made[name].dtype) == "Float32", name
    np.testing.assert_array_equal(made["whole"].asnumpy(), plain["whole"].numpy())
    np.testing.assert_array_equal(made["handed"].asnumpy(), plain["handed"].numpy())
    assert made["asked"]


WRAPPED = """import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
model = nn.Linear(2, 2)
before = isinstance(model, DDP)
wrap = DDP if model is None else nn.Identity
kinds = (DDP, nn.DataParallel)
both = isinstance(model, kinds)
raw = model.module if isinstance(model, (DDP, nn.DataParallel)) else model
"""


def test_wrappers_of_networks_are_values_too():
    found = ported(WRAPPED)
    made = {}
    exec(found.text, made)
    assert not [edit for edit in found.edits if edit.kind == "refused"]
    assert not made["before"]
    assert not made["both"]
    assert made["raw"] is made["model"]
    wrapped = port.data_parallel(made["model"])
    assert isinstance(wrapped, port.DistributedDataParallel)
    assert not isinstance(wrapped, port.DataParallel)  # in torch neither is made of the other


SPLIT = """import torch
from torch.utils.data import random_split
data = list(range(100))
first, _ = random_split(data, [80, 20], generator=torch.Generator().manual_seed(42))
torch.manual_seed(7)
again, _ = random_split(data, [80, 20], generator=torch.Generator().manual_seed(42))
same = [first[i] for i in range(80)] == [again[i] for i in range(80)]
"""


def test_a_split_by_a_seed_is_the_same_in_each_run():
    assert run(SPLIT)["same"]


IDLE = """import torch
def use(model, ema, device):
    model.to(device)
    ema.inner.cuda()
    loss = model(torch.ones(2))
    loss.detach()
    return model, ema
"""


def test_lines_that_say_nothing_any_more_go():
    lines = [line.strip() for line in ported(IDLE).text.splitlines()]
    assert not {"model", "ema.inner", "ops.stop_gradient(loss)"} & set(lines)


# --- averages of weights --------------------------------------------------------------------------

AVERAGED = """import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
averages = [
    AveragedModel(model),
    AveragedModel(model, avg_fn=lambda held, new, count: 0.7 * held + 0.3 * new),
    AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9)),
    AveragedModel(model, use_buffers=True),
]
names = [name for name, _ in averages[0].named_parameters()]
counted = "num_batches_tracked"  # no Cell has it
keys = sorted(key for key in averages[0].state_dict() if counted not in key)
"""


def test_averaged_networks_hold_torchs_averages():
    plain = {}
    exec(AVERAGED, plain)
    made = {}
    exec(ported(AVERAGED).text, made)
    assert (made["names"], made["keys"]) == (plain["names"], plain["keys"])
    draw = np.random.default_rng(0)
    state = plain["model"].state_dict()
    sizes = {k: v.shape for k, v in state.items() if plain["counted"] not in k}
    for _ in range(3):
        new = {k: draw.normal(size=size).astype(np.float32) for k, size in sizes.items()}
        theirs = {k: torch.from_numpy(v) for k, v in new.items()}
        plain["model"].load_state_dict(theirs, strict=False)
        port.load_state_dict(made["model"], {k: ms.Tensor(v) for k, v in new.items()})
        for one, other in zip(plain["averages"], made["averages"], strict=True):
            one.update_parameters(plain["model"])
            other.update_parameters(made["model"])
    for one, other in zip(plain["averages"], made["averages"], strict=True):
        held = port.state_dict(other)
        for name in plain["keys"]:
            value = one.state_dict()[name].numpy()
            np.testing.assert_allclose(np.asarray(held[name]), value, atol=1e-6, err_msg=name)


# --- what a loss is made of -----------------------------------------------------------------------

INHERITED = """import torch
from elsewhere import Base
class Trainer(Base):
    def __init__(self, config):
        super().__init__(config)
        if config.detail:
            self.detail = torch.nn.Linear(2, 2)
    def train(self, loader, config):
        for x, y in loader:
            self.optimizer.zero_grad()
            if config.detail:
                out = self.detail(self.model(x))
            else:
                out = self.model(x)
            loss = self.criterion(out, y)
            if config.teacher:
                loss += self.teacher(x).mean().item() * out.mean()
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
"""


def test_networks_of_a_base_class_get_gradients_and_those_of_a_branch_may_not_be_there():
    """No weight of ``self.model`` moved, and ``self.detail`` raised where no branch made it."""
    text = ported(INHERITED).text
    line = next(line for line in text.splitlines() if "port.loss(" in line)
    assert re.search(r"self\.model|\(self, \"model\", None\)", line)
    assert not re.search(r"self\.(detail|teacher)\b", line)
    assert 'getattr(self, "detail", None)' in line


HELPED = """import torch
def shifted(given, x):
    return given
def train(model, loader, loss, optimizer, scaler):
    for x in loader:
        with torch.cuda.amp.autocast():
            model_out = model(x)
            model_out = shifted(model_out, x)
            total = loss(model_out).item() * loss(model_out)
        optimizer.zero_grad()
        scaler.scale(total).backward()
        scaler.step(optimizer)
        scaler.update()
"""


def test_what_a_loss_makes_itself_is_none_of_its_networks():
    assert "port.loss(forward, model, loss, scaler=scaler)" in ported(HELPED).text


INSIDE = """import torch
def train(net_g, net_d, loader, g, d, scaler, flag):
    for x in loader:
        with torch.cuda.amp.autocast():
            fake = net_g(x)
            loss_d = net_d(fake.detach()).mean()
            if flag:
                loss_e = net_d(fake.detach()).sum()
                d.zero_grad()
                scaler.scale(loss_e).backward()
                scaler.step(d)
        g.zero_grad()
        scaler.scale(loss_d).backward()
        scaler.step(g)
        scaler.update()
"""


def test_a_step_among_what_makes_another_loss_goes_through_what_is_recorded():
    edits = [edit for edit in ported(INSIDE).edits if edit.kind == "unproven"]
    assert any("optimizer steps among" in edit.reason for edit in edits)
    assert not [edit for edit in ported(INSIDE).edits if edit.kind == "refused"]


HANDED = """import torch
from torch import nn, optim
from elsewhere import build, make
class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.actor = nn.Linear(4, 2)
    def value(self, x):
        return 1, self.actor(x)
agent = Agent().to("cuda")
other = build("a").cuda()
process = make()
first = optim.Adam(agent.parameters(), lr=1e-3)
second = optim.Adam(other.parameters(), lr=1e-3)
def one(loader, flag):
    for x in loader:
        _, new = agent.value(x)
        if flag:
            v = (new ** 2).mean()
        else:
            v = new.mean()
        loss = v + 1
        first.zero_grad()
        loss.backward()
        first.step()
def two(loader, other_name):
    for x in loader:
        terms = process.losses(other, x, dict(y=other_name))
        loss = terms["loss"].mean()
        second.zero_grad()
        loss.backward()
        second.step()
"""


def test_a_network_is_what_is_asked_for_its_parameters_whatever_it_is_called():
    """It was taken for no network: what the loss is made of was not found."""
    found = ported(HANDED)
    assert not [edit for edit in found.edits if edit.kind == "refused"]
    assert found.text.count("ms.value_and_grad(") == 2
    assert 'build("a")' in found.text
    text = found.text.replace("from elsewhere import build, make\n", "")
    made = {"__name__": "port", "build": lambda _: None, "make": lambda: None}
    text = re.sub(r"(?m)^(other|process|second) = .*$", r"\1 = None", text)
    exec(text, made)
    before = made["agent"].actor.weight.asnumpy().copy()
    made["one"]([ms.Tensor(np.ones((3, 4), np.float32))], True)
    moved = made["agent"].actor.weight.asnumpy() - before
    assert np.abs(np.abs(moved) - 1e-3).max() < 1e-5  # Adam's first step


FIRST = """import torch
from torch import nn
net = nn.Linear(3, 2)
optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
def train(loader, skipped):
    seen = []
    for i, x in enumerate(loader):
        if i == skipped:
            with torch.no_grad():
                out, other = net(x), 1
                seen.append("first")
                continue
        # all others
        else:
            out, other = net(x), 2
        optimizer.zero_grad()
        loss = (out ** 2).mean() * other
        loss.backward()
        optimizer.step()
        seen.append(loss.item())
    return seen
"""


def test_a_branch_that_leaves_the_loop_is_no_part_of_the_loss():
    made = run(FIRST)
    weight = made["net"].weight.asnumpy().copy()
    bias = made["net"].bias.asnumpy().copy()
    xs = np.random.default_rng(0).normal(size=(4, 5, 3)).astype(np.float32)
    found = made["train"]([ms.Tensor(x) for x in xs], 1)
    scope = {}
    exec(FIRST, scope)
    with torch.no_grad():
        scope["net"].weight.copy_(torch.from_numpy(weight))
        scope["net"].bias.copy_(torch.from_numpy(bias))
    wanted = scope["train"]([torch.from_numpy(x) for x in xs], 1)
    assert found[1] == wanted[1] == "first"
    np.testing.assert_allclose([found[0], *found[2:]], [wanted[0], *wanted[2:]], rtol=1e-5)


ZEROED = """import torch
from torch import nn
net = nn.Linear(3, 2)
optimizer = torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.9)
def train(loader, scaler):
    found = []
    for x in loader:
        if scaler is None:
            out = net(x)
            optimizer.zero_grad()
            loss = (out ** 2).mean()
            loss.backward()
            optimizer.step()
        else:
            with torch.cuda.amp.autocast():
                out = net(x)
                optimizer.zero_grad()
                loss = (out ** 2).mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        found.append(loss.item())
    return found
"""


@pytest.mark.parametrize("scaled", [False, True])
def test_gradients_may_be_zeroed_where_the_loss_is_made(scaled):
    text = ported(ZEROED).text
    assert "_mpcore_refused" not in text
    made = {"__name__": "port"}
    exec(text, made)
    weight, bias = (made["net"].weight.asnumpy().copy(), made["net"].bias.asnumpy().copy())
    xs = np.random.default_rng(0).normal(size=(4, 5, 3)).astype(np.float32)
    scaler = ms.amp.DynamicLossScaler(2.0**16, 2, 2000) if scaled else None
    found = made["train"]([ms.Tensor(x) for x in xs], scaler)
    scope = {}
    exec(ZEROED, scope)
    with torch.no_grad():
        scope["net"].weight.copy_(torch.from_numpy(weight))
        scope["net"].bias.copy_(torch.from_numpy(bias))
    wanted = scope["train"]([torch.from_numpy(x) for x in xs], None)
    np.testing.assert_allclose(found, wanted, rtol=5e-3 if scaled else 1e-5)


SIZES = """import torch
from torch import nn
from torchvision import transforms
size = (3, 4)
shapes = [torch.randn(2, *size).shape, torch.zeros(*size).shape, torch.rand(*size).shape]
layer = nn.Linear(2, 2)
nn.init.constant(layer.bias, 0.5)
nn.init.kaiming_uniform(layer.weight)
scale = transforms.Scale(8)
"""


def test_sizes_may_be_starred_and_old_spellings_are_known():
    made = run(SIZES)
    assert [tuple(shape) for shape in made["shapes"]] == [(2, 3, 4), (3, 4), (3, 4)]
    assert made["layer"].bias.asnumpy().tolist() == [0.5, 0.5]


BEFORE = """import torch
from torch import nn
gen = nn.Linear(3, 4)
dis = nn.Linear(4, 2)
opt_g = torch.optim.SGD(gen.parameters(), lr=0.1)
opt_d = torch.optim.SGD(dis.parameters(), lr=0.5)
def train(loader):
    found = []
    for z, x in loader:
        fake = gen(z)
        real_out = [dis(x)]
        loss_d = 0
        for out in real_out:
            loss_d += (out - 1).pow(2).mean()
        loss_d += dis(fake.detach()).pow(2).mean()
        opt_d.zero_grad()
        loss_d.backward()
        opt_d.step()
        loss_g = (dis(fake) - real_out[0].detach()).pow(2).mean()
        opt_g.zero_grad()
        loss_g.backward()
        opt_g.step()
        found.append((loss_d.item(), loss_g.item()))
    return found
"""


@pytest.mark.parametrize("shape", ["steps", "torch's"])
def test_what_a_later_loss_reads_detached_is_of_before_the_step(shape, tmp_path):
    """It was computed again, by the weights of after the step, and so was the first loss."""
    script = BEFORE
    if shape == "torch's":  # gradients that add up keep the loop in torch's form
        script = BEFORE.replace("        opt_d.zero_grad()\n", "")
    found = ported(script)
    assert ("port.loss(" in found.text) == (shape == "torch's")
    assert not [edit for edit in found.edits if edit.kind == "refused"], found.text
    made = loaded(found.text, tmp_path)
    scope = {}
    exec(script, scope)
    with torch.no_grad():
        for name in ("gen", "dis"):
            for part in ("weight", "bias"):
                value = getattr(made[name], part).asnumpy().copy()
                getattr(scope[name], part).copy_(torch.from_numpy(value))
    draw = np.random.default_rng(0)
    pairs = [(draw.normal(size=(5, 3)), draw.normal(size=(5, 4))) for _ in range(4)]
    pairs = [(z.astype(np.float32), x.astype(np.float32)) for z, x in pairs]
    losses = made["train"]([(ms.Tensor(z), ms.Tensor(x)) for z, x in pairs])
    wanted = scope["train"]([(torch.from_numpy(z), torch.from_numpy(x)) for z, x in pairs])
    np.testing.assert_allclose(losses, wanted, rtol=1e-4)


MIXED_UP = BEFORE.replace(
    "        fake = gen(z)\n        real_out = [dis(x)]\n",
    '        with torch.autocast("cuda", enabled=False):\n'
    "            fake = gen(z)\n            real_out = [dis(x)]\n",
)


def test_where_it_cannot_be_taken_apart_it_goes_through_what_is_recorded(tmp_path):
    found = ported(MIXED_UP)
    edits = [e for e in found.edits if e.kind == "unproven" and "record()" in e.reason]
    assert "loss_g.backward" in " ".join(e.old for e in edits)
    theirs, own = {}, loaded(found.text, tmp_path)
    exec(MIXED_UP, theirs)
    with torch.no_grad():
        for name in ("gen", "dis"):
            for part in ("weight", "bias"):
                value = getattr(own[name], part).asnumpy().copy()
                getattr(theirs[name], part).copy_(torch.from_numpy(value))
    draw = np.random.default_rng(0)
    pairs = [(draw.normal(size=(5, 3)), draw.normal(size=(5, 4))) for _ in range(4)]
    pairs = [(z.astype(np.float32), x.astype(np.float32)) for z, x in pairs]
    losses = own["train"]([(ms.Tensor(z), ms.Tensor(x)) for z, x in pairs])
    wanted = theirs["train"]([(torch.from_numpy(z), torch.from_numpy(x)) for z, x in pairs])
    np.testing.assert_allclose(losses, wanted, rtol=1e-4)


CURRIED = """from elsewhere import NETS
model = NETS("a")(num_classes=3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""


def test_a_class_that_a_call_gives_is_no_network_yet():
    text = ported("import torch\n" + CURRIED).text
    assert 'model = port.in_training(NETS("a")(num_classes=3))' in text


STAR = """from data import *
from torch import nn, optim
model = nn.Linear(2, 2)
optimizer = optim.SGD(model.parameters(), lr=0.1)
def train(loader, clip):
    for x in loader:
        optimizer.zero_grad()
        loss = model(x).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
    torch.cuda.empty_cache()
"""


def test_torch_that_comes_with_a_star_is_torch():
    """The clip stood in front of the step as torch's, and nothing of torch was seen."""
    text = ported(STAR).text
    assert "ops.clip_by_global_norm(" in text
    assert not re.search(r"(?m)^[^#]*\btorch\.", text)
    text = ported(STAR, load_target("torch_npu")).text
    assert "torch.npu.empty_cache()" in text
    text = ported(STAR.replace("def train(", "def train(torch, ")).text
    assert "torch.cuda.empty_cache()" in text  # a parameter of that name is something else


BRANCHES = """import torch
from torch import nn
net = nn.Linear(3, 2)
optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
def train(loader, kind):
    found = []
    for data in loader:
        if kind == "index":
            x, index = data
        else:
            x = data
        out = net(x)
        if kind == "pairs":
            more = sum([(a - b).pow(2).mean() for a, b in zip(out, out[1:])])
        elif kind == "index":
            a = out[0]
            b = out[1]
            more = (a * b).sum() * index
        else:
            more = 0
        loss = out.pow(2).mean() + more
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found
"""


@pytest.mark.parametrize("kind", ["plain", "pairs", "index"])
def test_what_one_branch_alone_binds_is_no_argument_of_a_step(kind, tmp_path):
    """The call of the step read a name that was not there: a comprehension's, or a branch's."""
    made = loaded(ported(BRANCHES).text, tmp_path)
    scope = {}
    exec(BRANCHES, scope)
    with torch.no_grad():
        for part in ("weight", "bias"):
            value = getattr(made["net"], part).asnumpy().copy()
            getattr(scope["net"], part).copy_(torch.from_numpy(value))
    xs = np.random.default_rng(0).normal(size=(3, 4, 3)).astype(np.float32)

    def batches(tensor):
        return [(tensor(x), i) if kind == "index" else tensor(x) for i, x in enumerate(xs)]

    losses = made["train"](batches(ms.Tensor), kind)
    np.testing.assert_allclose(losses, scope["train"](batches(torch.from_numpy), kind), rtol=1e-5)


# --- copies of networks, and tensors that an optimizer moves --------------------------------------

COPIES = """import copy
import torch
import torch.nn as nn
from collections import OrderedDict
class Agent:
    def __init__(self):
        self.actor = nn.Linear(2, 2)
        self.target = copy.deepcopy(self.actor)
        self.third = copy.deepcopy(self.target).eval()
    def follow(self, tau):
        for param, target in zip(self.actor.parameters(), self.target.parameters()):
            target.data.mul_(1 - tau).add_(tau * param.data)
@torch.no_grad()
def update_ema(ema_model, model, decay=0.75):
    ema_params = OrderedDict(ema_model.named_parameters())
    for name, param in OrderedDict(model.named_parameters()).items():
        ema_params[name].mul_(decay).add_(param.data, alpha=1 - decay)
agent = Agent()
net = copy.deepcopy(agent.actor)
with torch.no_grad():
    for p in agent.actor.parameters():
        p.mul_(2.0).add_(1.0)
agent.follow(0.25)
update_ema(net, agent.target)
"""


def test_copies_of_networks_are_networks_and_move_in_chains():
    found, made = ported(COPIES), {"__name__": "port"}
    assert not [edit for edit in found.edits if edit.kind == "refused"]
    exec(found.text, made)
    agent, net = made["agent"], made["net"]
    old = agent.third.weight.asnumpy()
    new, target = agent.actor.weight.asnumpy(), agent.target.weight.asnumpy()
    np.testing.assert_allclose(new, 2 * old + 1, rtol=1e-6)
    np.testing.assert_allclose(target, 0.75 * old + 0.25 * new, rtol=1e-5)
    np.testing.assert_allclose(net.weight.asnumpy(), 0.75 * old + 0.25 * target, rtol=1e-5)


TRAINED = """import torch
import torch.optim as optim
log_alpha = torch.zeros(1, requires_grad=True, device="cpu")
optimizer = optim.Adam([log_alpha], lr=0.1)
losses = []
for step in range(4):
    log_pi = torch.ones(3) * step
    loss = (-log_alpha.exp() * (log_pi + -2.0)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
class Agent:
    def __init__(self):
        self.log_alpha = torch.full((2,), 0.5, requires_grad=True)
        self.opt = optim.SGD([self.log_alpha], lr=0.5)
    def learn(self, log_pi):
        alpha_loss = -(self.log_alpha * (log_pi + 1.0).detach()).mean()
        self.opt.zero_grad()
        alpha_loss.backward()
        self.opt.step()
        return alpha_loss.item()
agent = Agent()
losses += [agent.learn(torch.arange(2).float()) for _ in range(3)]
"""


def test_tensors_that_an_optimizer_moves_are_parameters():
    plain = {}
    exec(TRAINED, plain)
    np.testing.assert_allclose(run(TRAINED)["losses"], plain["losses"], rtol=1e-5, atol=1e-6)


ADDED = """import torch
def project(idx, src):
    m = torch.zeros(3, 4)
    offset = torch.linspace(0, 8, 3).unsqueeze(1).expand(3, 4).long()
    m.view(-1).index_add_(0, (idx + offset).view(-1), src.view(-1))
    m.view(-1).index_add_(0, (idx + offset).view(-1), 2 * src.view(-1))
    t = torch.zeros_like(m)
    for i in range(3):
        t[i].index_add_(0, idx[i], src[i])
    return m, t
idx = torch.tensor([[0, 1, 1, 2], [3, 3, 3, 0], [1, 1, 0, 0]])
m, t = project(idx, torch.arange(12).float().view(3, 4))
"""


def test_rows_and_views_of_a_fresh_tensor_are_added_to():
    plain, made = {}, run(ADDED)
    exec(ADDED, plain)
    for name in ("m", "t"):
        np.testing.assert_array_equal(made[name].asnumpy(), plain[name].numpy())


def test_a_view_that_has_a_name_is_not_made_anew():
    script = "import torch\nm = torch.zeros(4)\nv = m.view(-1)\nm.view(2, 2).add_(1.0)\nprint(v)\n"
    assert [edit.line for edit in ported(script).edits if edit.kind == "refused"] == [4]


def test_a_method_that_torch_has_not_is_its_owners():
    script = "from utils import Noise\nimport torch\ndef f(z_: Noise):\n    z_.sample_()\n"
    assert not [edit for edit in ported(script).edits if edit.kind == "refused"]


SETTINGS = """import torch
import torch.multiprocessing
torch.multiprocessing.set_sharing_strategy("file_system")
torch.set_num_threads(2)
if torch.cuda.is_available():
    torch.set_default_tensor_type("torch.cuda.FloatTensor")
else:
    torch.set_default_tensor_type(torch.FloatTensor)
torch.set_default_dtype(torch.float32)
x = torch.zeros(2)
"""


def test_settings_that_say_what_is_so_anyway_go():
    assert run(SETTINGS)["x"].dtype == ms.float32
    other = ported("import torch\ntorch.set_default_dtype(torch.float64)\n")
    assert [edit.line for edit in other.edits if edit.kind == "refused"] == [2]


@pytest.mark.parametrize("shape", [(3,), (5, 3), (2, 5, 3)])
def test_a_normal_of_several_numbers_is_torchs_with_gradients(shape):
    rng = np.random.default_rng(0)
    loc, half, value = (rng.normal(size=s).astype("f") for s in (shape, (*shape, 3), shape))
    matrix = (half @ np.swapaxes(half, -1, -2) + 2 * np.eye(3)).astype("f")

    def number(normal, loc, matrix, value):
        made = normal(loc, covariance_matrix=matrix)
        return made.log_prob(value).sum() + 2 * made.entropy().sum()

    tensors = [torch.tensor(x, requires_grad=True) for x in (loc, matrix, value)]
    wanted = number(torch.distributions.MultivariateNormal, *tensors)
    wanted.backward()
    normal = port.distributions.MultivariateNormal
    given = [ms.Tensor(x) for x in (loc, matrix, value)]
    found, grads = ms.value_and_grad(lambda *x: number(normal, *x), (0, 1, 2))(*given)
    np.testing.assert_allclose(found.asnumpy(), wanted.item(), rtol=1e-5)
    for one, tensor in zip(grads, tensors, strict=True):
        np.testing.assert_allclose(one.asnumpy(), tensor.grad.numpy(), atol=2e-6)
    many = normal(given[0], scale_tril=port.diag_embed(given[0] ** 2 + 1)).sample((400,))
    assert many.shape == (400, *shape)


# --- numbers and arrays of numpy ------------------------------------------------------------------

COUNTED = """import numpy as np
import torch
import torch.nn as nn
import torch.optim as optim
class Space:
    n = np.int64(3)
    shape = (2, 2)
class Env:
    action_space = Space()
    observation_space = Space()
def layer_init(layer):
    torch.nn.init.constant_(layer.weight, 0.01)
    torch.nn.init.constant_(layer.bias, 0.1)
    return layer
class Net(nn.Module):
    def __init__(self, envs, action_dim):
        super().__init__()
        self.fc1 = layer_init(nn.Linear(np.array(envs.observation_space.shape).prod(), 8))
        self.fc2 = layer_init(nn.Linear(8, action_dim))
    def forward(self, x):
        return self.fc2(torch.relu(self.fc1(x)))
actor = Net(Env(), Env().action_space.n)
optimizer = optim.SGD(actor.parameters(), lr=0.1)
for step in range(2):
    if step < 1:
        actions = np.array([[1.0, 2.0, 3.0]])
    else:
        actions = actor(torch.ones(1, 4))
        actions = actions.detach().cpu().numpy().clip(-1, 1)
b_obs = torch.arange(24).float().reshape(6, 4) / 24
b_inds, losses = np.arange(6), []
for start in range(0, 6, 3):
    mb_inds = b_inds[start : start + 3]
    out = actor(b_obs[mb_inds])
    loss = ((out - b_obs[mb_inds].sum(1, keepdim=True)) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(actor.parameters(), 0.5)
    optimizer.step()
    losses.append(loss.item())
b_obs[np.array([0, 2])] = 5.0
rows = b_inds[b_inds[1:3]].tolist()
"""


def test_sizes_and_places_of_numpy_reach_mindspore_as_its_own():
    found, plain, made = ported(COUNTED), {}, {"__name__": "port"}
    assert not [edit for edit in found.edits if edit.kind == "refused"]
    exec(COUNTED, plain)
    exec(found.text, made)
    np.testing.assert_allclose(made["losses"], plain["losses"], rtol=1e-5)
    np.testing.assert_allclose(made["actions"], plain["actions"], rtol=1e-5)
    assert made["rows"] == plain["rows"] == [1, 2]


def test_arrays_of_numpy_are_indexed_as_they_were():
    script = "import numpy as np\nimport torch\na = np.arange(3)\nb = a[a]\nc = torch.ones(3)[a]\n"
    text = ported(script).text
    assert "b = a[a]\n" in text
    assert "[a.tolist()]" in text


def test_what_numpy_gives_to_a_loss_or_as_an_array_stays():
    script = (
        "import numpy as np\nimport torch\nfrom torch import nn\n"
        "w = torch.FloatTensor(np.array([1.0, 2.0]))\nloss = nn.CrossEntropyLoss(weight=w)\n"
        "drop = nn.Dropout(np.max([0.5, 0.1]))\nrows = torch.tensor(np.array([[1.0]]))\n"
        "bag = nn.Embedding(1, 1, _weight=rows)\nfc = nn.Linear(np.max([2, 3]), 4)\n"
    )
    assert ported(script).text.count("int(") == 1

"""Names that stopped ports of public scripts: what stands for them does what torch's do."""

from __future__ import annotations

import struct
import sys
import types

import mindspore as ms
import numpy as np
import pytest
import torch
from mindspore import nn

import mpcore_port_runtime as port
from mpcore.errors import BackendError

from .ports import beside, ported

# --- samplers -------------------------------------------------------------------------------------

DATA = list(range(7))
SAMPLERS = [
    "SequentialSampler(DATA)",
    "RandomSampler(DATA)",
    "RandomSampler(DATA, num_samples=17)",
    "RandomSampler(DATA, True, 30)",
    "SubsetRandomSampler([4, 2, 9])",
    "WeightedRandomSampler([0.0, 1.0, 3.0], 200)",
    "WeightedRandomSampler([1.0, 1.0, 3.0], 3, replacement=False)",
    "BatchSampler(SequentialSampler(DATA), 3, False)",
    "BatchSampler(SequentialSampler(DATA), 3, drop_last=True)",
]


@pytest.mark.parametrize("code", SAMPLERS)
def test_samplers_are_as_long_and_yield_what_torchs_may(code):
    theirs = eval(code, {**vars(torch.utils.data), "DATA": DATA})
    ours = eval(code, {**vars(port), "DATA": DATA})
    assert len(ours) == len(theirs)
    made, wanted = list(ours), list(theirs)
    assert len(made) == len(wanted)
    if "Random" not in code:
        assert made == wanted
    elif "True" in code or "0.0" in code:  # with replacement: of the same numbers
        allowed = {1, 2} if "Weighted" in code else set(DATA)
        assert set(made) <= allowed
        assert len(set(made)) > 1
    else:  # each as often as in torch, but for the last pass, which may be a part of all
        assert sorted(made[: len(set(wanted))]) == sorted(wanted[: len(set(wanted))])


@pytest.mark.parametrize(
    "code", ["RandomSampler([])", "RandomSampler(DATA, num_samples=0)", "BatchSampler(DATA, 0, 1)"]
)
def test_what_torchs_samplers_refuse_is_refused(code):
    for names in (vars(torch.utils.data), vars(port)):
        with pytest.raises(ValueError, match=r"num_samples|batch_size"):
            eval(code, {**names, "DATA": DATA})


def test_a_sampler_of_ten_thousand_million_numbers_begins_at_once():
    numbers = iter(port.RandomSampler(DATA, replacement=True, num_samples=int(1e10)))
    assert {next(numbers) for _ in range(2000)} == set(DATA)


def test_a_random_sampler_follows_the_seed_and_its_generator():
    def drawn():
        ms.set_seed(3)
        return list(port.RandomSampler(range(50)))

    assert drawn() == drawn()
    loader = port.DataLoader(DATA, batch_size=2, sampler=port.SubsetRandomSampler([1, 3, 5]))
    assert sorted(int(x) for batch in loader for x in batch) == [1, 3, 5]


# --- TensorBoard ----------------------------------------------------------------------------------


def records(folder):
    """Yield the events of the one file in ``folder``."""
    proto = pytest.importorskip("tensorboardX.proto.event_pb2")
    (path,) = folder.glob("events*")
    data, place = path.read_bytes(), 0
    while place < len(data):
        (size,) = struct.unpack_from("<Q", data, place)
        event = proto.Event()
        event.ParseFromString(data[place + 12 : place + 12 + size])
        yield event
        place += 16 + size


def test_a_writer_takes_tensors_and_writes_tag_step_and_value(tmp_path):
    pytest.importorskip("tensorboardX")
    with port.SummaryWriter(log_dir=tmp_path, max_queue=1) as writer:
        writer.add_scalar("loss", ms.Tensor(0.5), 3)
        writer.add_scalar("rate", 0.25, global_step=4, new_style=True)
        writer.add_histogram("w", ms.Tensor(np.arange(4, dtype=np.float32)), 1)
        writer.add_image("x", ms.Tensor(np.zeros((3, 2, 2), np.float32)), 1)
        with pytest.warns(UserWarning, match=r"add_graph is torch's own"):
            writer.add_graph(None)
        assert writer.get_logdir() == str(tmp_path)
    found = {v.tag: (e.step, v) for e in records(tmp_path) for v in e.summary.value}
    assert (found["loss"][0], found["loss"][1].simple_value) == (3, 0.5)
    assert (found["rate"][0], found["rate"][1].simple_value) == (4, 0.25)
    assert found["w"][1].histo.num == 4
    assert (found["x"][1].image.height, found["x"][1].image.width) == (2, 2)


# --- devices and gradients ------------------------------------------------------------------------


def test_data_parallel_keeps_the_names_of_torchs():
    theirs = torch.nn.DataParallel(torch.nn.Linear(3, 2))
    ours = port.DataParallel(nn.Dense(3, 2))
    assert list(port.state_dict(ours)) == list(theirs.state_dict())
    spread = port.DistributedDataParallel(nn.Dense(3, 2))
    assert list(port.state_dict(spread)) == list(theirs.state_dict())
    assert not isinstance(spread, port.DataParallel)  # nor is torch's
    x = ms.Tensor(np.ones((1, 3), np.float32))
    assert np.array_equal(ours(x).asnumpy(), ours.module(x).asnumpy())


def test_spawn_runs_here_and_asks_for_msrun_where_there_are_more(monkeypatch):
    ran = []
    monkeypatch.delenv("MS_WORKER_NUM", raising=False)
    port.spawn(lambda *args: ran.append(args), args=("a",))
    port.spawn(lambda *args: ran.append(args), nprocs=0)
    assert ran == [(0, "a")]
    with pytest.raises(BackendError, match="msrun --worker_num 2"):
        port.spawn(print, nprocs=2)
    monkeypatch.setenv("MS_WORKER_NUM", "2")
    monkeypatch.setenv("RANK_ID", "1")
    port.spawn(lambda *args: ran.append(args), args=("b",), nprocs=2)
    assert ran[-1] == (1, "b")


@pytest.mark.parametrize("mode", [True, False])
def test_gradients_are_taken_where_the_mode_says(mode):
    def function(x):
        with port.grad_mode(mode):
            return (x * x).sum()

    grad = ms.grad(function)(ms.Tensor([2.0]))
    assert float(grad[0]) == (4.0 if mode else 0.0)


def test_apexs_scale_is_set_by_hand():
    _, _ = port.apex.initialize(
        nn.Dense(2, 2), port.SGD([ms.Parameter(ms.Tensor([1.0]))], lr=0.1), opt_level="O2"
    )
    port.apex.loss_scalers()[0]._loss_scale = 2**20
    assert port.apex.scaler().get_scale() == 2.0**20


# --- networks and pictures ------------------------------------------------------------------------


def test_a_residual_network_has_torchvisions_parameters():
    net = port.networks.resnet18(zero_init_residual=True)
    shapes = {name: tuple(p.shape) for name, p in port.named_parameters(net)}
    assert sum(p.size for p in port.parameters(net)) == 11_689_512
    assert shapes["layer2.0.downsample.0.weight"] == (128, 64, 1, 1)
    assert shapes["fc.weight"] == (1000, 512)
    assert float(net.layer1[0].bn2.gamma.asnumpy().sum()) == 0.0
    with pytest.raises(BackendError, match="no weights are fetched"):
        port.networks.resnet18(pretrained=True)


def test_pictures_that_are_made_up_are_the_same_each_time():
    data = port.pictures.FakeData(3, (3, 4, 5), 7, port.vision.ToTensor())
    image, label = data[1]
    assert image.shape == (3, 4, 5)
    assert 0 <= label < 7
    assert np.array_equal(image.asnumpy(), data[1][0].asnumpy())
    with pytest.raises(IndexError):
        data[3]


# --- rules ----------------------------------------------------------------------------------------

ONE_EXPRESSION = """import torch
import torch.nn as nn
import torch.nn.functional as F
model = nn.Linear(2, 1)
with torch.no_grad():
    model.weight.fill_(0.5)
    model.bias.zero_()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.tensor([[1.0, 2.0], [3.0, -1.0]])
y = torch.tensor([[1.0], [0.0]])
found = []
for _ in range(3):
    optimizer.zero_grad()
    F.mse_loss(model(x), y, reduction="none").mean().backward()  # at once
    optimizer.step()
    found.append((model(x) - y).square().mean().item())
"""


def test_a_loss_of_one_expression_trains_as_in_torch():
    made = ported(ONE_EXPRESSION)
    assert not made.said.stops
    theirs, ours = {"__name__": "theirs"}, {"__name__": "ours"}
    exec(ONE_EXPRESSION, theirs)
    exec(made.text, ours)
    np.testing.assert_allclose(ours["found"], theirs["found"], rtol=1e-5)


LATER = """import torch
import torch.nn as nn
model = nn.Linear(2, 2)
y = model(torch.ones(2, 2))
for t in (1.0, 2.0):
    (y - t).pow(2).mean().backward(retain_graph=True)
"""


def test_a_loss_that_reads_what_is_made_later_is_refused():
    found = ported(LATER)
    assert any("only where the backward pass is" in e.reason for e in found.edits)


SMALL = """import torch
import torch.nn as nn
import torch.multiprocessing as mp
from torch.utils.data.dataloader import DataLoader
from torch.nn.modules.loss import MSELoss
from utils import Log
log = Log()
model = nn.Linear(2, 2)
log.train(len_dataset=3)
model.train()
device = next(model.parameters()).dtype
with torch.set_grad_enabled(device is None):
    pass
torch.set_grad_enabled(False)
torch.save(model, "a")
torch.save(model.state_dict(), "b")
with torch.inference_mode(mode=False):
    pass
"""


def test_small_forms_are_translated_or_refused():
    found = ported(SMALL)
    lines = found.text.splitlines()
    for line in (
        "log.train(len_dataset=3)",
        "model.set_train()",
        "device = next(iter(port.parameters(model))).dtype",
        "with port.grad_mode(device is None):",
        "port.set_grad_enabled(False)",
        'port.save(port.state_dict(model), "a")',
        'port.save(port.state_dict(model), "b")',
        "with port.grad_mode(not (False)):",
    ):
        assert line in lines
    assert not [e for e in found.edits if e.kind == "refused"]


COPIED = """import copy
import torch
from modules import UNet
model = UNet().to("cuda")
ema = copy.deepcopy(model).eval().requires_grad_(False)
settings = copy.deepcopy({"a": 1})
settings.update({})
"""


def test_methods_of_a_copied_network_are_a_networks():
    lines = ported(COPIED).text.splitlines()
    assert "ema = port.requires_grad_(copy.deepcopy(model).set_train(False), False)" in lines
    assert "settings.update({})" in lines


# --- softmax without an axis, parts changed in place, data_parallel, networks saved whole --------


@pytest.mark.parametrize("shape", [(4,), (2, 3), (2, 3, 4), (2, 3, 4, 2), (2, 3, 2, 2, 2)])
@pytest.mark.parametrize("name", ["Softmax", "LogSoftmax"])
@pytest.mark.filterwarnings("ignore:Implicit dimension choice")
def test_softmax_without_an_axis_takes_torchs(name, shape):
    values = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    weights = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    theirs = torch.tensor(values, requires_grad=True)
    wanted = getattr(torch.nn, name)()(theirs)
    (wanted * torch.tensor(weights)).sum().backward()
    function = {"Softmax": port.softmax, "LogSoftmax": port.log_softmax}[name]
    for one in (getattr(port, name)(), function):
        made = one(ms.Tensor(values))
        np.testing.assert_allclose(made.asnumpy(), wanted.detach().numpy(), atol=1e-5)
        slope = ms.grad(lambda x, one=one: (one(x) * ms.Tensor(weights)).sum())(ms.Tensor(values))
        np.testing.assert_allclose(slope.asnumpy(), theirs.grad.numpy(), atol=1e-5)


@pytest.mark.parametrize(
    ("code", "wanted"),
    [
        ("nn.Softmax()", "port.Softmax()"),
        ("nn.Softmax(dim=None)", "port.Softmax()"),
        ("nn.Softmax(1)", "nn.Softmax(1)"),
        ("F.softmax(x)", "port.softmax(x)"),
        ("F.log_softmax(x, dim=1)", "ops.log_softmax(x, axis=1)"),
        ("F.log_softmax(x)", "port.log_softmax(x)"),
        ("nn.parallel.data_parallel(net, x, range(2))", "port.run_on_devices(net, x)"),
    ],
)
def test_calls_without_an_axis_or_with_devices(code, wanted):
    head = "import torch\nfrom torch import nn\nimport torch.nn.functional as F\n"
    assert f"y = {wanted}\n" in ported(f"{head}x = torch.ones(2, 3)\ny = {code}\n").text


def test_one_device_runs_what_data_parallel_is_given():
    net, x = nn.Dense(3, 2), ms.Tensor(np.ones((2, 3), np.float32))
    for given in (x, (x,)):
        made = port.run_on_devices(net, given)
        np.testing.assert_array_equal(made.asnumpy(), net(x).asnumpy())


PARTS = """\
import torch

torch.manual_seed(0)
delta = torch.ones(2, 3, 4)
noise = torch.full((3,), 2.0)
for i in range(3):
    delta[:, i, :].mul_(noise[i].item() + i)
delta[0, 1:].fill_(-1.0)
delta[..., :1].clamp_(0, 3)
delta[:, -1].uniform_(5, 6)
"""


def test_parts_of_tensors_that_are_changed_in_place():
    found = ported(PARTS)
    assert found.status.startswith("runs")
    assert "unless" not in found.status
    space, theirs = {}, {}
    exec(found.text, space)
    exec(PARTS, theirs)
    made, wanted = space["delta"].asnumpy(), theirs["delta"].numpy()
    np.testing.assert_allclose(made[:, :-1], wanted[:, :-1])
    assert made[:, -1].min() >= 5
    assert made[:, -1].max() < 6


@pytest.mark.parametrize("index", ["mask", "[0, 1]", "i", "torch.tensor([1])"])
def test_copies_change_alone_and_places_where_they_lie(index, tmp_path):
    head = "import torch\nf = lambda: 1\nx = torch.ones(3)\nmask = x > 0\ni = f()\n"
    beside(f"{head}x[{index}].mul_(2)\nmade = [x]\n", tmp_path)


WHOLE = """\
import torch
from torch import nn

net = nn.Linear(2, 2)
torch.save(net, "net.pt")
torch.save({"model": net, "epoch": 3}, "both.pt")
"""


def test_of_networks_that_are_saved_whole_the_weights_are(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = ported(WHOLE)
    said = [edit for edit in found.edits if "weights alone" in edit.effect]
    assert {edit.line for edit in said} == {5, 6}
    space = {}
    exec(found.text, space)
    for state in (port.load("net.pt"), port.load("both.pt")["model"]):
        np.testing.assert_array_equal(np.asarray(state["weight"]), space["net"].weight.asnumpy())
    assert port.load("both.pt")["epoch"] == 3


@pytest.mark.parametrize("more", ['net = torch.load("net.pt")', 'torch.save([net, 3], "c.pt")'])
def test_networks_that_are_loaded_whole_or_saved_in_lists_are_refused(more):
    assert ported(f"{WHOLE}{more}\n").status == "does not run"


CHOSEN = """\
import torch.nn as nn
import torch.optim as optim
from torch.autograd import Variable
from functions import get_optimizer

model = nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2))
name = "SGD"
first = getattr(optim, name)(model.parameters(), lr=0.5)
optimizer = get_optimizer(model.parameters())
optimizer.zero_grad()
optimizer.step()
a, b = map(Variable, (1, 2))
kinds = [type(m).__name__ for m in model if isinstance(m, nn.modules.conv._ConvNd)]
norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
for m in model.modules():
    if isinstance(m, nn.modules.batchnorm._BatchNorm):
        scale = m.weight
"""


def test_what_is_chosen_or_made_elsewhere_and_abstract_layers(monkeypatch):
    found = ported(CHOSEN)
    assert not [edit for edit in found.edits if edit.kind == "refused"]
    assert "port.step(optimizer)" in found.text  # it raised AttributeError, and nothing said so
    module = types.ModuleType("functions")
    module.get_optimizer = lambda params: port.Adam(list(params))
    monkeypatch.setitem(sys.modules, "functions", module)
    space = {}
    exec(found.text, space)
    assert type(space["first"]) is port.SGD
    assert (space["a"], space["b"]) == (1, 2)
    assert space["kinds"] == ["Conv2d"]
    assert len(space["norms"]) == 1
    assert space["scale"].shape == (2,)


def test_a_layer_made_of_an_abstract_one_is_refused():
    script = "from torch import nn\nclass Own(nn.modules.conv._ConvNd):\n    pass\n"
    found = ported(script)
    assert found.status == "runs unless line 2 is reached"
    exec(found.text, made := {"__name__": "port"})
    with pytest.raises(NotImplementedError, match=r"Own|_ConvNd"):
        made["Own"]()


SHADOWED = """\
import torch
import model

model = model.RNNModel(4, 2)
params = list(model.parameters())
optimizer = torch.optim.SGD(params, lr=0.1)


def train(x, y):
    model.train()
    optimizer.zero_grad()
    loss = (model(x) - y).pow(2).mean()
    loss.backward()
    optimizer.step()
"""


def test_a_network_with_the_name_of_its_module_is_a_network():
    """Its forward pass stayed outside of what is differentiated, and nothing said so."""
    text = ported(SHADOWED).text
    assert "= port.in_training(model.RNNModel(4, 2))" in text
    assert "params = list(model.parameters())" not in text
    assert "model.set_train()" in text
    inside = text.partition("def forward")[2].partition("return")[0]
    assert "model(x)" in inside


EARLY = """\
import torch
from torch import nn

model = nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in [(torch.ones(3, 2), torch.ones(3, 1) * 9)] * 2:
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    loss.backward()
    optimizer.step()
"""


def test_a_clip_in_front_of_the_backward_pass_clips_nothing():
    found = ported(EARLY)
    assert any("in front of the backward pass" in edit.reason for edit in found.edits)
    space = {}
    exec(found.text, space)
    assert float(space["loss"]) < 60  # from about 81: clipped, it would hardly move


@pytest.mark.parametrize(
    ("code", "refused"),
    [
        ("x = torch.zeros(2, requires_grad=True)\nx.grad.zero_()", True),
        ("x.requires_grad_()\ny = x.grad.detach()", True),
        ("x.requires_grad = True\ny = x.grad", True),
        ("x.requires_grad_()\no = torch.optim.Adam([x], lr=0.1)", True),
        (
            "alpha = torch.zeros(1, requires_grad=True)\no = torch.optim.Adam([alpha], lr=0.1)",
            False,
        ),
        ("x = nn.Parameter(torch.zeros(2), requires_grad=True)\no = torch.optim.Adam([x])", False),
        ("for p in net.parameters():\n    p.requires_grad = True\n    g = p.grad", False),
    ],
)
def test_gradients_of_tensors_that_are_no_parameters_are_refused(code, refused):
    head = "import torch\nfrom torch import nn\nfrom data import make\nx, net = make()\n"
    found = ported(f"{head}{code}\n")
    assert any(edit.kind == "refused" for edit in found.edits) is refused


def test_the_shape_of_a_space_is_a_tuple_of_values():
    head = "import torch\nfrom gym import space\nfrom data import x\n"
    text = ported(f"{head}a = torch.Tensor(space.shape)\nb = torch.Tensor(x.shape)\n").text
    assert "a = port.FloatTensor(space.shape)" in text
    assert "b = port.FloatTensor(*x.shape)" in text

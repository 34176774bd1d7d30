"""What stopped ports of scripts of language, speech and reinforcement learning, smallest cases."""

import mindspore as ms
import numpy as np
import pytest

import mpcore_port_runtime as port
from mpcore_port_runtime.refusal import PortWarning

from .ports import beside, loaded, ported, recorded


def kinds(script, kind):
    """Return the lines of a script that its port says something of."""
    return [edit.line for edit in ported(script).edits if edit.kind == kind]


# --- scalers that one branch alone makes ---------------------------------------------------------

BRANCH = """
import torch
from torch import nn

class Net:
    def train(self, model, optimizer, use_amp):
        losses = []
        if use_amp:
            scaler = torch.cuda.amp.GradScaler()
        for x in torch.ones(3, 2, 4):
            if use_amp:
                with torch.cuda.amp.autocast():
                    loss = model(x).mean()
                    losses.append(loss.item())
            else:
                loss = model(x).mean()
                losses.append(loss.item())
            if len(losses) % 2 == 0:
                print(loss.item())
            optimizer.zero_grad()
            if use_amp:
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
            else:
                loss.backward()
                optimizer.step()
        return losses
"""


@pytest.mark.parametrize("use_amp", [False, True])
def test_a_loop_without_its_flag_needs_no_scaler(use_amp, tmp_path):
    made = loaded(ported(BRANCH).text, tmp_path)
    net = ms.nn.Dense(4, 2)
    losses = made["Net"]().train(net, port.SGD(net.trainable_params(), lr=0.1), use_amp)
    assert losses[0] > losses[1] > losses[2]


def test_a_scaler_that_every_branch_makes_stays():
    once = BRANCH.replace(
        "        if use_amp:\n            scaler", "        if True:\n            scaler"
    )
    twice = once.replace("        losses = []\n", "        losses, scaler = [], None\n")
    assert "scaler = None" in ported(once).text
    assert "else:\n            scaler = None" not in ported(twice).text


# --- names that are imported, and then made anew -------------------------------------------------

ANEW = """
import torch
import torch.optim as optim
from torch import nn
model = nn.Linear(3, 1)
first = optim.SGD(model.parameters(), lr=0.5)
optim = torch.optim.SGD(model.parameters(), lr=0.1)
for x in torch.ones(2, 4, 3):
    loss = model(x).mean()
    loss.backward()
    optim.step()
    optim.zero_grad()
"""


def test_a_name_means_what_it_was_given_last():
    found = ported(ANEW)
    assert {edit.kind for edit in found.edits} <= {"exact", "changed"}, found.edits
    assert not found.findings
    space = {"__name__": "port"}
    exec(found.text, space)
    assert space["optim"].param_groups[0]["params"][0] is space["model"].weight


def test_what_stands_for_a_package_that_is_not_there_leaves_its_name():
    script = (
        "try:\n    from torch.cuda import amp\nexcept ImportError:\n    amp = make()\n"
        "scaler = amp.GradScaler()\n"
    )
    assert "port.GradScaler()" in ported(script).text


# --- devices -------------------------------------------------------------------------------------

DEVICE = """
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)
    def forward(self, x):
        here = torch.zeros(1, device=x.device)
        return self.lin(x) + here
def use(model, x, args):
    device = next(model.parameters()).device
    kinds = [device.type == "cuda", x.device.type != 'cuda', x.device == device]
    return kinds, str(x.device), x.to(args.device), x.to(device)
made = use(Net(), torch.ones(2, 4), torch)
"""


def test_devices_of_tensors_have_a_kind():
    found = ported(DEVICE.replace(", x.to(args.device)", "").replace(", torch)", ", None)"))
    assert not [edit for edit in found.edits if edit.kind != "exact"]
    assert "x.device)" not in found.text.partition("def use")[0]
    space = {"__name__": "port"}
    exec(found.text, space)
    there, text, _ = space["made"]
    assert there == [False, True, True]
    assert text == "cpu"
    assert port.device("cuda") != port.device("cpu")
    assert port.device("cuda:1") != port.device("cuda:0")
    assert port.device("cuda") == port.device("cuda:0")


def test_a_setting_that_says_cuda_is_no_kind_of_device():
    script = (
        "import torch\ndef f(args, dev, device, x):\n    y = torch.device('cuda')\n"
        "    return args.type == 'cuda', x.type == 'cuda', device.type == 'cuda'\n"
    )
    found = ported(script).text
    assert "args.type == 'cuda', x.type == 'cuda', device.type == \"npu\"" in found


def test_settings_keep_their_device():
    assert "args.device" in ported("import torch\ndevice = args.device\nx = torch.ones(1)\n").text


# --- networks that another file makes ------------------------------------------------------------


def test_what_is_named_as_a_network_is_no_tensor_of_floats():
    found = ported(
        "import torch\nfrom zoo import table\nmodel = table['a'](3).float()\n"
        "x = torch.ones(2).float()\ny = table.first(x).float()\n"
    )
    assert "model = port.started(table['a'])(3)\n" in found.text
    assert "x = ops.ones(2).float()" in found.text
    assert "y = table.first(x).float()" in found.text
    assert 3 in [edit.line for edit in found.edits if edit.kind == "unproven"]


# --- networks that are saved and loaded whole ----------------------------------------------------

WHOLE = """
import torch
from torch import nn
model = nn.Linear(2, 2)
torch.save(model.cpu(), "net.pt")
kept = model.weight.clone()
model.weight.data.zero_()
with open("net.pt", "rb") as file:
    model = torch.load(file).to("cpu")
same = (model.weight == kept).all().item()
"""


def test_a_network_that_is_there_takes_the_weights_of_one_that_was_saved(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert loaded(ported(WHOLE).text, tmp_path)["same"]


@pytest.mark.parametrize(
    "line",
    [
        "if flag:\n    net = torch.load(path)\nelse:\n    net = nn.Linear(2, 2)\nnet.eval()\n",
        "def use(path):\n    net = torch.load(path)\n    return net(1)\n",
    ],
)
def test_a_network_that_is_not_there_is_refused_at_its_line(line):
    assert kinds(f"import torch\nfrom torch import nn\n{line}", "refused") in ([4], [5])


def test_a_state_is_loaded_as_it_was():
    script = (
        "import torch\nnet = torch.load('a')\nmodel.load_state_dict(net)\nmodel.eval()\n"
        "held = torch.load('b')\nmodel.load_state_dict(held['model'])\n"
    )
    assert not kinds(script, "refused")


def test_a_cell_that_nothing_says_is_one_is_saved_as_its_weights(tmp_path):
    net = ms.nn.Dense(2, 2)
    with pytest.warns(PortWarning, match="of Dense the weights are saved"):
        port.save({"net": net}, tmp_path / "a")
    np.testing.assert_array_equal(
        port.load(tmp_path / "a")["net"]["weight"].asnumpy(), net.weight.asnumpy()
    )


# --- losses whose network is out of sight, profilers ---------------------------------------------

SIGHT = """
import torch
from torch import nn
held = {"net": nn.Linear(2, 1)}
def compute(x):
    return held["net"](x)
optimizer = torch.optim.SGD(held["net"].parameters(), lr=0.1)
with torch.autograd.profiler.profile(False, use_cuda=True) as prof:
    for x in torch.ones(2, 3, 2):
        with torch.profiler.record_function("forward"):
            z = compute(x)
            E = z.mean()
        before = E.detach().item()
        optimizer.zero_grad()
        E.backward()
        optimizer.step()
"""


def test_an_optimizer_in_the_same_function_says_what_gets_gradients(tmp_path):
    assert not kinds(SIGHT, "refused")
    made = loaded(ported(SIGHT).text, tmp_path)
    assert made["prof"] is None
    after = made["compute"](ms.ops.ones((3, 2))).mean().item()
    assert after == pytest.approx(made["E"].item() - 0.1 * 3, abs=1e-5)  # two weights and a bias


def test_without_one_the_backward_pass_goes_through_what_is_recorded():
    lines = SIGHT.replace("        optimizer.step()\n", "")
    assert 15 in recorded(ported(lines))


def test_profilers_say_that_they_record_nothing():
    with pytest.warns(PortWarning, match="nothing is recorded"), port.profile() as seen:
        seen.step()
    assert seen.key_averages().table() == ""


# --- lists that grow, sizes of layers ------------------------------------------------------------

GROWING = """
import torch
from torch import nn
class Wide(nn.Linear):
    def forward(self, x):
        return super().forward(x) * self.in_features
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(5, 4)
        self.norms, self.layers = nn.ModuleList(), nn.ModuleList()
        for _ in range(2):
            self.norms.append(nn.Linear(4, 4))
            self.layers.extend(nn.Linear(4, 4) for _ in range(2))
        self.last = Wide(4, 2)
    def forward(self, ids):
        x = self.table(ids) * self.table.embedding_dim ** 0.5
        for norm, layer in zip(self.norms, self.layers):
            x = layer(norm(x))
        return self.last(x) + self.last.out_features
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, nesterov=False)
sizes = [layer.in_features for layer in net.layers], net.table.num_embeddings
out = net(torch.zeros(3, dtype=torch.int64)).shape
args_size = args.in_features
"""


def test_lists_that_grow_have_names_of_their_own_and_layers_their_sizes(tmp_path):
    script = GROWING.replace("args_size = args.in_features\n", "")
    made = loaded(ported(script).text, tmp_path)
    names = [param.name for param in made["net"].trainable_params()]
    assert len(names) == len(set(names)) == 15
    assert set(port.state_dict(made["net"])) >= {"norms.1.weight", "layers.3.bias"}
    assert made["sizes"] == ([4, 4, 4, 4], 5)
    assert tuple(made["out"]) == (3, 2)
    assert "args.in_features" in ported(GROWING).text


# --- arrays of numpy as places, numpy that comes with a star -------------------------------------

PLACES = """
import torch
from helpers import *
def take(x, mask, u):
    places = np.where(mask > 0)
    ids = np.array([0, 1])
    for one in u:
        first = u[one]
    return x[places], x[np.nonzero(mask)], x[ids], first
"""


def test_places_of_numpy_are_lists_and_what_a_loop_gives_stays(tmp_path, monkeypatch):
    (tmp_path / "helpers.py").write_text("import numpy as np\n")
    monkeypatch.syspath_prepend(tmp_path)
    found = ported(PLACES.replace("ids = np", "one = np").replace("x[ids]", "x[one]"))
    assert "first = u[port.index(one)]" in found.text
    kept = loaded(found.text, tmp_path)["take"]
    assert kept(ms.Tensor([[1.0], [2.0]]), np.array([[1]]), {1: 2})[3] == 2
    made = loaded(ported(PLACES).text, tmp_path)
    mask = np.array([[0, 1], [1, 0]])
    x = ms.Tensor([[1.0, 2.0], [3.0, 4.0]])
    first, second, rows, _ = made["take"](x, mask, {1: 2})
    assert first.tolist() == second.tolist() == [2.0, 3.0]
    assert rows.shape == (2, 2)


def test_an_array_that_a_tensor_gives_is_a_fact():
    assert not kinds("import torch\ny = torch.ones(2).numpy()\n", "unproven")


# --- regions that watch, networks outside of a loss's block, formats, positions ------------------

WATCHED = """
import torch
from torch import nn
model, critic = nn.Linear(2, 1), nn.MSELoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
msg = "{0:>4} {1:>5.3}"
for x in torch.ones(2, 3, 2):
    with torch.profiler.record_function("forward"):
        out = model(x)
    # anomalies
    with torch.autograd.set_detect_anomaly(True):
        loss = critic(out, torch.zeros(3, 1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(msg.format(1, loss))
"""


def test_regions_that_watch_go_and_the_loss_keeps_its_network(tmp_path, capsys):
    assert not kinds(WATCHED, "refused")
    made = loaded(ported(WATCHED).text, tmp_path)
    first, second = (float(line.split()[1]) for line in capsys.readouterr().out.splitlines())
    assert second < first
    assert "# anomalies" in ported(WATCHED).text
    assert made["loss"].shape == ()


OUTSIDE = """
import torch
from torch import nn
model, critic = nn.Linear(2, 1), nn.MSELoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x in torch.ones(2, 3, 2):
    out = model(x){}
    if flag:
        loss = critic(out, torch.zeros(3, 1)) + model.weight.sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


def test_a_network_that_runs_outside_of_its_losss_block_runs_in_it_too_or_is_recorded(tmp_path):
    body = OUTSIDE.format("").replace("for x in", "flag = True\nfor x in")
    weights = "made = [p.detach() for p in model.parameters()]\n"
    start = "for p in model.parameters():\n    p.data.fill_(0.5)\nflag"
    found = beside(body.replace("flag", start, 1) + weights, tmp_path)
    assert "out = model(x)" in found.text.partition("if flag")[0]
    looped = OUTSIDE.format("").replace("if flag", "for flag in range(2)")
    assert recorded(ported(looped)) == [11]
    assert not kinds(OUTSIDE.format(".detach()"), "refused")


HELD = """
import torch
from torch import nn
class Trainer:
    def __init__(self):
        self.model = {"a": nn.Linear(2, 1), "b": nn.Linear(1, 1)}
        self.optimizer = {k: torch.optim.SGD(m.parameters(), lr=0.1) for k, m in self.model.items()}
    def step(self, x):
        loss = self.model["b"](self.model["a"](x)).mean()
        for one in self.optimizer.values():
            one.zero_grad()
        loss.backward()
        self.optimizer["a"].step()
        self.optimizer["b"].step()
        return loss.item()
trainer = Trainer()
losses = [trainer.step(torch.ones(3, 2)) for _ in range(3)]
"""


def test_networks_in_a_dictionary_get_gradients(tmp_path):
    assert not kinds(HELD, "refused")
    first, second, third = loaded(ported(HELD).text, tmp_path)["losses"]
    assert first != second != third
    assert third < first


POSITIONS = """
import torch
x = torch.ones(2, 1, 3)
y = x.squeeze(dim=1), x.amax(keepdim=True, dim=1), x.unsqueeze(1).squeeze(dim=2).shape
"""


def test_arguments_that_have_other_names_are_given_by_position(tmp_path):
    assert not kinds(POSITIONS, "unproven")
    made = loaded(ported(POSITIONS).text, tmp_path)["y"]
    assert [tuple(one.shape) for one in made[:2]] == [(2, 3), (2, 1, 3)]
    assert tuple(made[2]) == (2, 1, 3)


def test_a_tensor_that_was_an_array_has_a_shape():
    found = ported(
        "import numpy as np\nimport torch\ny = np.array([1.0])\n"
        "y = torch.tensor(y).unsqueeze(1)\nz = torch.randn(y.size())\n"
    )
    assert "y.shape" in found.text
    assert "a.size()" in ported("import numpy as np\nimport torch\na = np.ones(2)\na.size()\n").text


def test_values_of_a_network_may_be_of_outside():
    script = OUTSIDE.format("").replace(
        "    out = model(x)\n", "    with torch.no_grad():\n        out = model(x)\n"
    )
    assert not kinds(script, "refused")


def test_methods_with_arguments_of_numpy_stay_as_they_are():
    script = (
        "import torch\ndef f(a, b):\n    return a.squeeze(axis=1), b.std(axis=0), b.std(dim=0)\n"
    )
    found = ported(script)
    assert "return a.squeeze(axis=1), b.std(axis=0), port.std(b, 0, True, False)" in found.text
    assert len(kinds(script, "unproven")) >= 2

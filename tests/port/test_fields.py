"""Numbers in texts and windows, tensors that learn, and values of one step in another's loss."""

from __future__ import annotations

import sys
import types

import numpy as np
import pytest

from .ports import beside, loaded, ported

HEAD = """import torch
from torch import nn, optim
model = nn.Linear(3, 2)
for p in model.parameters():
    p.data.copy_(torch.linspace(-1.0, 1.0, p.numel()).view(p.shape))
batches = [torch.linspace(-1.0, s, 12).view(4, 3) for s in (1.0, 2.0, 3.0)]
made = []
"""
METER = """
class Meter:
    def __init__(self):
        self.val, self.sum, self.n = 0, 0, 0
    def update(self, val, n=1):
        self.val, self.sum, self.n = val, self.sum + val * n, self.n + n
    @property
    def avg(self):
        return self.sum / self.n
meter = Meter()
texts = []
for x in batches:
    loss = model(x).pow(2).mean()
    meter.update(loss.data, 2)
    texts.append({})
made += [float(one) for text in texts for one in text.split()]
"""
TEXTS = {
    "an attribute": '"{m.val:.4f} {m.avg:.3f}".format(m=meter)',
    "by its place": '"{0.val:.4f} {0.avg:.3f}".format(meter)',
    "without a place": '"{.val:.4f} {:.3f}".format(meter, meter.avg)',
    "a part": '"{d[loss]:.4f} {0[0]:.2e}".format([loss], d={"loss": loss})',
    "several in a row": '"{:.4f} " "{m.avg:.3f}".format(loss, m=meter)',
    "starred": '"{:.4f} {:.3f}".format(*[loss, meter.avg])',
    "the builtin": 'format(loss, ".4f") + " " + format(meter.avg, ".2e")',
    "of a name": '(text := "{m.val:.4f}", text.format(m=meter))[1]',
}


@pytest.mark.parametrize("name", sorted(TEXTS))
def test_fields_of_a_text_are_numbers(name, tmp_path):
    beside(HEAD + METER.replace("{})", f"{TEXTS[name]})"), tmp_path)


def test_numbers_that_another_file_gives(tmp_path, monkeypatch):
    beside_it = types.ModuleType("scores_beside")
    beside_it.accuracy = lambda out: (out > 0).sum() / 8
    monkeypatch.setitem(sys.modules, "scores_beside", beside_it)
    script = HEAD + (
        "from scores_beside import accuracy\n"
        "def run(net):\n    return net, accuracy(net(batches[0]))\n"
        "net, score = run(model)\nmade.append(float('{:.3f}'.format(score)))\n"
    )
    beside(script, tmp_path)


def test_what_counts_plain_numbers_stays():
    counted = METER.replace("loss.data", "loss.item()").replace("{})", f"{TEXTS['an attribute']})")
    assert "port.fields" not in ported(HEAD + counted).text
    assert "port.fields" not in ported("import torch\nprint('{a.b}'.format(a=torch))").text


def test_a_window_gets_arrays(tmp_path, monkeypatch):
    class Window:
        def __init__(self, **settings):
            self.settings, self.given = settings, []

        def line(self, *args, **settings):
            self.given.append((args, settings))
            return "win"

    package = types.ModuleType("visdom")
    package.Visdom = Window
    monkeypatch.setitem(sys.modules, "visdom", package)
    script = (
        "import torch\nimport visdom\nfrom visdom import Visdom as V\n"
        "vis, other = visdom.Visdom(env='a'), V()\n"
        "win = vis.line([torch.ones(2)], X=torch.zeros(1), opts={'a': torch.ones(1), 'b': 'c'})\n"
        "given = vis.given\n"
    )
    made = loaded(ported(script).text, tmp_path)
    ((listed,), named) = made["given"][0]
    assert made["win"] == "win"
    assert isinstance(listed[0], np.ndarray)
    assert isinstance(named["X"], np.ndarray)
    assert named["X"].shape == (1,)
    assert isinstance(named["opts"]["a"], np.ndarray)
    assert made["vis"].settings == {"env": "a"}


def test_the_first_of_a_mean_is_its_number():
    script = HEAD + "from net import Net\nnet = Net()\nprint(net.gamma.mean().data[0])\n"
    assert "port.first(net.gamma.mean().data)" in ported(script).text
    kept = HEAD + "from net import Net\nnet = Net()\nprint(net.gamma.mean(1).data[0])\n"
    assert "port.first" not in ported(kept).text


STARS = """import torch
import torch.nn.functional as F
def reduced(mean):
    return torch.mean if mean else lambda *args, **kwargs: 0.5 * torch.sum(*args, **kwargs)
def active(*args):
    return F.relu(*args)
x = torch.arange(6).float().view(2, 3) - 2.0
total = reduced(False)
made = [total(x, dim=-1), total(x, 1, keepdim=True), total(x), reduced(True)(x, dim=0), active(x)]
"""


def test_arguments_that_are_handed_through(tmp_path):
    found = beside(STARS, tmp_path)
    said = [edit for edit in found.edits if "*args" in edit.old and edit.kind == "unproven"]
    assert [edit.line for edit in said] == [4]


@pytest.mark.parametrize(
    ("call", "kind"),
    [("F.embedding(*args, **kw)", "unproven"), ("F.gumbel_softmax(*args)", "changed")],
)
def test_arguments_that_mean_something_else_are_bound_when_they_come(call, kind):
    head = "import torch\nimport torch.nn.functional as F\n"
    found = ported(f"{head}def f(*args, **kw):\n    return {call}\n")
    assert [edit.kind for edit in found.edits if edit.rule == "call"] == [kind]


LEARNS = {
    "said by itself": (
        "self.log = torch.tensor(0.5).to(device)\n        self.log.requires_grad = True"
    ),
    "said by a method": "self.log = torch.zeros(2)\n        self.log.requires_grad_(True)",
    "in a chain": "self.log = torch.ones(2).to(device).requires_grad_()",
    "by a keyword": "self.log = torch.full((2,), 0.3, requires_grad=True, device=device)",
}
GROUPS = {
    "a list": "[self.log]",
    "a group": '[{"params": [self.log], "lr": 0.2}]',
    "a sum": "list(self.net.parameters()) + [self.log]",
}
AGENT = """
class Agent:
    def __init__(self, net, device="cpu"):
        self.net = net
        {made}
        self.optimizer = optim.SGD({given}, lr=0.1)
    @property
    def alpha(self):
        return self.log.exp()
    def learn(self, x):
        loss = (self.alpha * (x[0, :2] + 1.0).detach()).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        made.append(loss.detach())
agent = Agent(model)
for x in batches:
    agent.learn(x)
made.append(agent.log.detach())
"""


@pytest.mark.parametrize("given", sorted(GROUPS))
@pytest.mark.parametrize("name", sorted(LEARNS))
def test_tensors_that_learn_by_any_spelling(name, given, tmp_path):
    found = beside(HEAD + AGENT.format(made=LEARNS[name], given=GROUPS[given]), tmp_path)
    assert "ms.Parameter(" in found.text


def test_another_dtype_makes_another_tensor():
    made = "self.log = torch.zeros(2).to(torch.float64).requires_grad_()"
    found = ported(HEAD + AGENT.format(made=made, given="[self.log]"))
    assert [edit for edit in found.edits if edit.kind == "refused"]


VALUES = """
critic = nn.Linear(2, 1)
for p in critic.parameters():
    p.data.copy_(torch.linspace(-0.5, 0.7, p.numel()).view(p.shape))
class Agent:
    def __init__(self, tune):
        self.policy, self.critic, self.tune, self.entropy = model, critic, tune, 0.5
        self.log_alpha = torch.zeros(1, requires_grad=True)
        self.popt = optim.SGD(self.policy.parameters(), lr=0.1)
        self.aopt = optim.SGD([self.log_alpha], lr=0.1)
    def update(self, x):
        pi = self.policy(x)
        log_pi = pi.sum(-1, keepdim=True)
        loss = (self.log_alpha.exp().detach() * log_pi - self.critic(pi)).mean()
        self.popt.zero_grad()
        loss.backward()
        self.popt.step()
        {head}alpha_loss = (self.log_alpha * {value}).mean()
        {tail}self.aopt.zero_grad()
        {tail}alpha_loss.backward()
        {tail}self.aopt.step()
        made.append(loss.detach())
        made.append(alpha_loss.detach())
agent = Agent(True)
for x in batches:
    agent.update(x)
"""
DETACHED = (
    "(log_pi + self.entropy).detach()",
    "(-log_pi - self.entropy).detach()",
    "-(log_pi.mean() * 2 - 1.0).detach()",
    "log_pi.detach()",
    "log_pi.sum(1).exp().data",
)


@pytest.mark.parametrize("value", DETACHED)
@pytest.mark.parametrize("inside", [False, True])
def test_a_value_of_one_step_is_of_before_it_in_anothers_loss(value, inside, tmp_path):
    parts = ("if self.tune:\n            ", "    ") if inside else ("", "")
    script = HEAD + VALUES.format(head=parts[0], tail=parts[1], value=value)
    found = beside(script, tmp_path)
    assert not [edit for edit in found.edits if "computed again" in edit.effect]


CLIPS = """
import sys
import types
beside = types.ModuleType("clip_beside")
def clip_grad_norm(optimizer, limit):
    for group in optimizer.param_groups:
        for p in group["params"]:
            p.grad = p.grad * limit
beside.clip_grad_norm = clip_grad_norm
beside.clip_grad_norm_ = clip_grad_norm
sys.modules["clip_beside"] = beside
"""


@pytest.mark.parametrize(
    ("head", "call"),
    [
        ("import clip_beside as util", "util.clip_grad_norm(optimizer, 0.5)"),
        ("from clip_beside import clip_grad_norm_", "clip_grad_norm_(optimizer, 0.5)"),
        ("from clip_beside import clip_grad_norm_ as cut", "cut(optimizer, 0.5)"),
    ],
)
def test_another_files_clip_is_its_own(head, call, tmp_path):
    script = (
        HEAD
        + CLIPS
        + (
            f"{head}\noptimizer = optim.SGD(model.parameters(), lr=0.1)\n"
            "for x in batches:\n    loss = model(x).pow(2).mean()\n    optimizer.zero_grad()\n"
            f"    loss.backward()\n    {call}\n    optimizer.step()\n"
            "    made.append(loss.detach())\n"
        )
    )
    found = beside(script, tmp_path)
    assert "clip_by_global_norm" not in found.text


def test_pictures_are_written_by_old_names_of_arguments(tmp_path):
    script = (
        "import torch\nfrom torchvision.utils import make_grid, save_image\n"
        "x = torch.linspace(-1.0, 1.0, 48).view(1, 3, 4, 4)\n"
        f"name = {str(tmp_path / 'a.png')!r}\n"
        "save_image(tensor=x, filename=name, normalize=True, range=(-1, 1))\n"
        "old = make_grid(x, normalize=True, range=(-1, 2))\n"
        "new = make_grid(x, normalize=True, value_range=(-1, 2))\n"
    )
    made = loaded(ported(script).text, tmp_path)
    assert (tmp_path / "a.png").exists()
    np.testing.assert_array_equal(made["old"].asnumpy(), made["new"].asnumpy())


PLACES = """
import numpy as np
np.random.seed(0)
x = torch.arange(24).float().view(4, 3, 2)
train = np.array([1, 2])
i, j = np.random.choice(train), np.random.randint(0, 2)
i = np.random.choice(train)
made += [x[i], x[i, :2], x[:i], x[i - 1:i + 1], x[-i, 0]]
for k in np.random.permutation(3):
    made.append(x[k].sum())
for n, k in enumerate(train):
    made += [x[n].sum(), x[k, n].sum()]
x[i] = 5.0
made.append(x)
def pick(pictures):
    at = np.argmax([1.0, 3.0, 2.0])
    return pictures[at]
made += [pick(x), float(pick([1, 2, 3]))]
"""


def test_numbers_of_numpy_are_places_in_a_tensor(tmp_path):
    found = beside(HEAD + PLACES, tmp_path)
    assert "x[i] = 5.0" not in found.text
    assert "x[n]" in found.text


NUMBERS = """
import numpy as np
optimizer = optim.SGD(model.parameters(), lr=0.1)
constant = np.log(2 * np.pi)
class Held:
    def __init__(self):
        self.scale = np.sqrt(3.0)
held = Held()
def shifted(y, by):
    return -by + y
for x in batches:
    y = model(x)
    loss = np.sqrt(2.0) * y.pow(2).mean() + (constant + y).mean() + (held.scale * y).sum() / 7.0
    loss = 0.5 * np.log(2.0) + loss + shifted(y, np.float32(0.3)).mean()
    loss = np.prod((2, 3)) * loss - np.exp(1) / (4.0 + y.exp().mean())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    made.append(loss.detach())
"""


def test_numbers_of_numpy_in_front_of_a_tensor_keep_its_gradient(tmp_path):
    found = beside(HEAD + NUMBERS, tmp_path)
    assert "port.number(np.sqrt(2.0)) * y" in found.text
    plain = "import numpy as np\nimport torch\na = np.sqrt(2.0) * 3.0\nb = np.log(2) - np.log(3)\n"
    assert "number" not in ported(plain).text


FRESH = """
def project(like, places, values):
    m = like.new_zeros(2, 3)
    m.view(-1).index_add_(0, places.view(-1), values.view(-1))
    m.view(-1).index_add_(0, places.view(-1), 2 * values.view(-1))
    return m
made.append(project(batches[0], torch.tensor([[0, 1], [5, 1]]), torch.ones(2, 2)))
"""


def test_what_new_zeros_made_is_changed_through_a_view(tmp_path):
    beside(HEAD + FRESH, tmp_path)


LOGGED = """
class Logger:
    def __init__(self):
        self.seen = []
    def log(self, value):
        self.seen.append(float(value.detach()))
class Agent:
    def __init__(self):
        self.log_alpha = torch.tensor(0.5, dtype=torch.float64)
        self.log_alpha.requires_grad = True
        self.optimizer = optim.Adam([self.log_alpha], lr=0.1)
    @property
    def alpha(self):
        return self.log_alpha.exp()
    def learn(self, x, logger):
        loss = (self.alpha * (x[0] + 1.0).detach()).mean()
        logger.log(loss)
        logger.log(self.alpha)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
agent, logger = Agent(), Logger()
for x in batches:
    agent.learn(x, logger)
made += logger.seen
"""


def test_a_weight_that_is_logged_in_front_of_its_step_is_of_before_it(tmp_path):
    beside(HEAD + LOGGED, tmp_path)


CHOSEN = """
import numpy as np
x = torch.arange(12.0).view(4, 3)
def chosen(kind):
    if kind:
        places = np.arange(4)[::2]
    else:
        places = [0, 2]
    return x[places]
made += [chosen(True), chosen(False)]
"""


def test_places_that_are_an_array_on_one_way_alone(tmp_path):
    beside(HEAD + CHOSEN, tmp_path)

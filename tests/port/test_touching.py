"""Calls between a backward pass and its step that may look at gradients, beside torch."""

from __future__ import annotations

import sys

import pytest

from .ports import beside, ported
from .test_turns import HEAD, LEFT

LOOP = """
for i, (x, y) in enumerate(batches):
    optimizer.zero_grad()
    loss = criterion(model(x), y)
    loss.backward()
    {}
    optimizer.step()
    made.append(loss.detach())
"""
HELPERS = """
def clip_gradient(optimizer, factor):
    for group in optimizer.param_groups:
        for param in group["params"]:
            if param.grad is not None:
                param.grad = param.grad * factor

def halved(params):
    for param in params:
        param.grad = param.grad * 0.5

class Held:
    def __init__(self, optimizer):
        self.optimizer = optimizer
    def __call__(self):
        clip_gradient(self.optimizer, 0.5)

def lowered(optimizer, turn):
    for group in optimizer.param_groups:
        group["lr"] = 0.01 / (turn + 1)

def looked_at(loss, turn):
    return float(loss) * turn
"""
HANDED = {
    "another file's": ("from gradient_helpers import clip_gradient", "clip_gradient(optimizer, 2)"),
    "of a module": ("import gradient_helpers as utils", "utils.clip_gradient(optimizer, 0.5)"),
    "under a condition": (
        "import gradient_helpers as u",
        "if i > 0: u.clip_gradient(optimizer, 0.5)",
    ),
    "through the script's own": (
        "from gradient_helpers import clip_gradient\n"
        "def limited(opt):\n    clip_gradient(opt, 0.25)\n"
        "class Holder:\n    def run(self, opt):\n        limited(opt)\n"
        "holder = Holder()",
        "holder.run(optimizer) if i < 0 else limited(optimizer)",
    ),
    "torch's in the script's own": (
        "def limited(net):\n    nn.utils.clip_grad_norm_(net.parameters(), 0.01)",
        "limited(model)",
    ),
    "by another name": (
        "from gradient_helpers import clip_gradient as c\nact = c",
        "act(optimizer, 2)",
    ),
    "by a lambda": (
        "from gradient_helpers import clip_gradient as c\nact = lambda: c(optimizer, 2)",
        "act()",
    ),
    "by a partial": (
        "import functools\nfrom gradient_helpers import clip_gradient as c\n"
        "act = functools.partial(c, optimizer, factor=0.5)",
        "act()",
    ),
    "one of several": (
        "import gradient_helpers as u\nhooks = [u.clip_gradient]",
        "for hook in hooks: hook(optimizer, 0.5)",
    ),
    "by a key": (
        'import gradient_helpers as u\nhooks = {"a": u.clip_gradient}',
        'hooks["a"](optimizer, 0.5)',
    ),
    "by a word": (
        "import gradient_helpers as u",
        'getattr(u, "clip_gradient")(optimizer, 0.5)',
    ),
    "an attribute": (
        "import gradient_helpers as u\nclass Held:\n    act = staticmethod(u.clip_gradient)",
        "Held.act(optimizer, 0.5)",
    ),
    "its weights alone": (
        "from gradient_helpers import halved\nweights = list(model.parameters())",
        "halved(weights)",
    ),
    "an object's": (
        "from gradient_helpers import Held\nheld = Held(optimizer)",
        "held()",
    ),
}


@pytest.fixture
def helpers(tmp_path, monkeypatch):
    """Have a module beside the script, for a script and its port."""
    (tmp_path / "gradient_helpers.py").write_text(HELPERS)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("gradient_helpers", None)


@pytest.mark.parametrize("name", sorted(HANDED))
@pytest.mark.usefixtures("helpers")
def test_a_helper_that_changes_gradients_stays_behind_the_backward_pass(name, tmp_path):
    head, call = HANDED[name]
    found = beside(f"{HEAD}{head}\n{LOOP.format(call)}{LEFT}", tmp_path)
    said = [edit.reason for edit in found.edits if "may look at gradients" in edit.reason]
    assert len(said) == 1


@pytest.mark.parametrize(
    "call", ["print(looked_at(loss, i))", "np.clip(i, 0, 1)", "scheduler.step()", "seen.append(i)"]
)
def test_what_is_handed_no_gradients_does_not_matter(call):
    head = (
        "import numpy as np\nseen = []\nfrom gradient_helpers import looked_at\n"
        "scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)\n"
    )
    assert "value_and_grad(" in ported(HEAD + head + LOOP.format(call)).text


STARS = {
    "nn and F": ("nn.utils.clip_grad_norm_(model.parameters(), 1.0)", "ops.clip_by_global_norm("),
    "torch by another name": (
        "t.nn.utils.clip_grad_norm_(model.parameters(), 1.0); t.no_grad()",
        "ops.clip_by_global_norm(",
    ),
}
STARRED = """from network import *
model = Model()
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def train(loader):
    for x, y in loader:
        optimizer.zero_grad()
        loss = criterion(F.relu(model(x)), y)
        loss.backward()
        {}
        optimizer.step()
"""


@pytest.mark.parametrize("name", STARS)
def test_a_clip_by_a_name_that_a_star_brings_is_torchs(name):
    line, wanted = STARS[name]
    assert wanted in ported(STARRED.format(line)).text


@pytest.mark.parametrize("line", ["nn.clip_grad_now(model)", "tools.clip(model)", "clip(model)"])
def test_what_a_star_brings_and_nothing_names_stays_in_its_place(line):
    """``nn`` has a name that torch.nn has not: it is another module."""
    found = ported(STARRED.format(line)).text
    assert found.index("loss.backward()") < found.index(line) < found.index("port.step(optimizer)")


WEIGHTS = """
import gradient_helpers as helpers
class Own:
    def update(self, value):
        self.value = value
own = Own()
average = helpers.Average(model)
for x, y in batches:
    optimizer.zero_grad()
    out = model(x)
    {}
    loss = criterion(out, y)
    if loss > 1e6:
        break
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("line", "count"),
    [("average.gather()", 1), ("helpers.look(model)", 1), ("own.update(out)", 0), ("x.sum()", 0)],
)
def test_what_hands_weights_to_another_file_inside_of_a_loss_is_unproven(line, count):
    """It runs where gradients are recorded: nobody knows what it does to weights."""
    found = ported(HEAD + WEIGHTS.format(line))
    said = [edit for edit in found.edits if "inside of the loss's function" in edit.reason]
    assert [edit.kind for edit in said] == ["unproven"] * count

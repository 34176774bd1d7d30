"""``x.requires_grad`` of what is made of Parameters, and steps that ``no_grad`` switches off."""

import pytest

from .ports import FILLED, beside, ported

STEP = (
    FILLED
    + """
class Trainer:
    def __init__(self, model, criterion, optimizer):
        self.model, self.criterion, self.optimizer = model, criterion, optimizer
        self.scaler = torch.amp.GradScaler("cuda", enabled=False)
    def _run_step(self, batch):
        x, y = batch["x"], batch["y"]
        with torch.autocast("cuda", enabled=False):
            outputs = self.model(x)
            if outputs.requires_grad:
                loss = self.criterion(outputs, y)
        if outputs.requires_grad:
            made.append(loss.detach())
            self.optimizer.zero_grad()
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            outputs = outputs.argmax(1)
        return {"outputs": outputs, "targets": y}
def run(trainer, x, y):
    for epoch in range(3):
        trainer.model.train()
        made.append(trainer._run_step({"x": x + epoch, "y": y})["outputs"])
        trainer.model.eval()
        with torch.no_grad():
            out = trainer._run_step({"x": x, "y": y})
        made.append(out["outputs"])
        print(out["outputs"].sum().item())
net = filled(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2)))
trainer = Trainer(net, nn.CrossEntropyLoss(), torch.optim.SGD(net.parameters(), lr=0.1))
run(trainer, torch.linspace(-1, 1, 12).view(4, 3), torch.tensor([0, 1, 1, 0]))
made.extend(net.parameters())
"""
)


def test_outputs_say_which_branch_to_take(tmp_path):
    found = beside(STEP, tmp_path)
    assert "no_grad()" in found.text
    assert {edit.kind for edit in found.edits if edit.rule == "wanted"} == {"unproven"}


SWITCHED = (
    FILLED
    + """
def compute_loss(model, batch, is_training):
    x, y = batch
    with torch.set_grad_enabled(is_training):
        simple, pruned = model(x, y)
        loss = 0.5 * simple + pruned
    assert loss.requires_grad == is_training
    assert not y.requires_grad and not x.requires_grad
    return loss, {"loss": loss.detach().cpu().item()}
def validate(model, batches):
    model.eval()
    total = 0.0
    for batch in batches:
        loss, info = compute_loss(model, batch, is_training=False)
        assert loss.requires_grad is False
        total += info["loss"]
    return total
def train(model, optimizer, batches, scaler):
    model.train()
    for batch in batches:
        with torch.autocast("cuda", enabled=False):
            loss, info = compute_loss(model, batch, is_training=True)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        made.append(torch.tensor(info["loss"]))
        made.append(torch.tensor(validate(model, batches)))
        model.train()
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 4), nn.Linear(4, 2)
    def forward(self, x, y):
        h = torch.tanh(self.a(x))
        return nn.functional.cross_entropy(h, y), nn.functional.cross_entropy(self.b(h), y)
net = filled(Net())
x, y = torch.linspace(-1, 1, 12).view(4, 3), torch.tensor([0, 1, 1, 0])
batches = [(x + i, y) for i in range(3)]
opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
train(net, opt, batches, torch.amp.GradScaler("cuda", enabled=False))
made.extend(net.parameters())
"""
)


def test_a_loss_says_whether_it_was_made_in_training(tmp_path):
    beside(SWITCHED, tmp_path)


ASKED = (
    FILLED
    + """
frozen = filled(nn.Linear(2, 2)).requires_grad_(False)
net = filled(nn.Linear(2, 2))
opt = torch.optim.SGD(net.parameters(), lr=0.1)
x = torch.ones(3, 2)
for step in range(2):
    y = net(x)
    asked = [y, y[0], y > 0, y.argmax(1), (y > 0).float(), torch.zeros_like(y) + 1, frozen(x)]
    asked += [frozen(x) + y, y.detach(), y.detach() * 2, y.new_zeros(2), torch.ones_like(y) * y]
    asked += [torch.stack([x[0], y[0]]), x * 2, y.max(1)[0], y.max(1)[1], y.sum(), y.mean(0)]
    with torch.no_grad():
        asked += [net(x), y * 2]
    made.extend(float(one.requires_grad) for one in asked)
    loss = (y ** 2).mean()
    opt.zero_grad()
    loss.backward()
    made.append(float(loss.requires_grad))
    opt.step()
"""
)


def test_what_is_made_of_a_network_answers_as_in_torch(tmp_path):
    beside(ASKED, tmp_path)


GIVEN = (
    FILLED
    + """
def step(net, x, opt):
    loss = (net(x) ** 2).mean()
    if loss.requires_grad:
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss
net = filled(nn.Linear(2, 2))
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for epoch in range(2):
    step(net, torch.ones(3, 2), opt)
    with torch.no_grad():
        made.append(step(net, torch.ones(3, 2), opt))
        made.append(float(made[-1].requires_grad))
"""
)


def test_a_step_in_no_grad_gives_its_loss_and_moves_nothing(tmp_path):
    beside(GIVEN, tmp_path)


def test_a_region_around_a_step_elsewhere_stays():
    script = (
        "import torch\ndef evaluate(trainer, batches):\n    total = 0.0\n"
        "    for batch in batches:\n        with torch.no_grad():\n"
        "            out = trainer.CALL(batch)\n        total += out.sum().item()\n"
        "    return total\n"
    )
    assert "no_grad()" in ported(script.replace("CALL", "run_step")).text
    assert "no_grad()" not in ported(script.replace("CALL", "model")).text


@pytest.mark.parametrize("last", ["", "made.append(float(loss is None))"])
def test_a_branch_without_a_loss_gives_none(tmp_path, last):
    script = FILLED + (
        "net = filled(nn.Linear(2, 2))\nopt = torch.optim.SGD(net.parameters(), lr=0.1)\n"
        "def run(x, on):\n    loss = None\n    y = net(x)\n    if on:\n        loss = y.mean()\n"
        "    if loss is not None:\n        opt.zero_grad()\n        loss.backward()\n"
        f"        opt.step()\n    {last}\n    return y\n"
        "for on in (True, False, True):\n    made.append(run(torch.ones(3, 2), on))\n"
        "made.extend(net.parameters())\n"
    )
    beside(script, tmp_path)

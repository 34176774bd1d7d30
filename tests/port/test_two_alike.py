"""Networks of one class in one optimizer: their parameters have the same names."""

from __future__ import annotations

import pytest

from .ports import beside
from .test_turns import HEAD

ALIKE = """
import itertools
class Net(nn.Module):
    def __init__(self, end):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        for p in self.parameters():
            p.data.copy_(torch.linspace(-0.5, end, p.numel()).view(p.shape))
    def forward(self, x):
        return self.fc(x)
a, b, c = Net(0.5), Net(0.6), Net(0.7)
"""
STATES = """
for net in (a, b, c):
    made += [net.state_dict()[name] * 1 for name in ("fc.weight", "fc.bias")]
"""
STEPS = {
    "a chain": """
first = torch.optim.Adam(itertools.chain(a.parameters(), b.parameters()), lr=0.01)
groups = [{"params": c.parameters()}, {"params": a.parameters(), "lr": 0.05}]
second = torch.optim.SGD(groups, lr=0.01)
for x, y in batches:
    first.zero_grad()
    loss = b(a(x)).pow(2).mean()
    loss.backward()
    first.step()
    second.zero_grad()
    other = c(a(x)).pow(2).mean()
    other.backward()
    second.step()
    made += [loss.detach(), other.detach()]
""",
    "in torch's form": """
optimizer = torch.optim.SGD(list(a.parameters()) + list(b.parameters()), lr=0.01, momentum=0.9)
optimizer.add_param_group({"params": c.fc.weight})
for x, y in batches:
    optimizer.zero_grad()
    loss = c(b(a(x))).pow(2).mean()
    loss.backward()
    made.append(a.fc.weight.grad.clone())
    if loss > 1e6:
        break
    optimizer.step()
    made.append(loss.detach())
optimizer.load_state_dict(optimizer.state_dict())
""",
    "accumulated, with a scaler": """
scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
optimizer = torch.optim.SGD([{"params": net.parameters()} for net in (a, b, c)], lr=0.01)
def train():
    for i, (x, y) in enumerate(batches + batches):
        loss = c(b(a(x))).pow(2).mean() / 2
        scaler.scale(loss).backward()
        if i % 2:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        made.append(loss.detach())
train()
""",
    "a loss of the module, by a copy": """
import copy
optimizer = torch.optim.SGD(list(a.parameters()) + list(b.parameters()), lr=0.01, momentum=0.9)
copied = copy.deepcopy(c)
copied.load_state_dict(b.state_dict())
loss = copied(b(a(batches[0][0]))).pow(2).mean()
loss.backward()
optimizer.step()
c.load_state_dict(b.state_dict())
made += [loss.detach(), sum(name == "fc.bias" for name, _ in b.named_parameters())]
""",
}


@pytest.mark.parametrize("name", sorted(STEPS))
def test_networks_of_one_class_train_by_one_optimizer(name, tmp_path):
    beside(HEAD + ALIKE + STEPS[name] + STATES, tmp_path)

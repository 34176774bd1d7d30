"""Layers and losses that are called with torch's words, beside torch."""

from __future__ import annotations

import pytest

from .ports import beside, ported
from .test_turns import HEAD, LEFT

CASES = {
    "a loss that is made there": """
for x, y in batches:
    loss = nn.CrossEntropyLoss()(input=model(x), target=y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    made.append(loss.detach())
""",
    "the target first, one by its place": """
mse, smooth = nn.MSELoss(), nn.SmoothL1Loss()
layer = nn.Linear(4, 3)
nn.init.constant_(layer.weight, 0.25)
nn.init.zeros_(layer.bias)
for x, y in batches:
    out = model(x)
    loss = mse(target=layer(input=x).detach(), input=out) + criterion(out, target=y)
    loss = loss + smooth(out, target=torch.zeros_like(out))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    made.append(loss.detach())
""",
    "an attribute": """
class Task:
    def __init__(self):
        self.criterion = torch.nn.BCEWithLogitsLoss(reduction="mean")
    def loss(self, x, y):
        return self.criterion(input=model(x), target=F.one_hot(y, 3).float()) * 3
task = Task()
for x, y in batches:
    loss = task.loss(x, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    made.append(loss.detach())
""",
}


@pytest.mark.parametrize("name", CASES)
def test_they_are_given_by_their_places(name, tmp_path):
    beside(HEAD + CASES[name] + LEFT, tmp_path)


def test_words_of_a_class_of_the_file_stay():
    script = HEAD + (
        "class Own(nn.Module):\n    def forward(self, input, target):\n"
        "        return (input - target).mean()\n"
        "own = Own()\nmade.append(own(target=batches[0][0], input=batches[1][0]))\n"
    )
    assert "own(target=batches[0][0], input=batches[1][0])" in ported(script).text

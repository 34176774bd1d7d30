"""Whole numbers where torch means floats: settings often hold 0 or 1."""

from __future__ import annotations

import numpy as np
import pytest

from mpcore_port.mindspore.checked import signature
from mpcore_port.mindspore.rules.names import native

from .ports import beside, loaded, ported

TRAINED = """import argparse
import torch
from torch import nn
from torch.nn import functional as F
class Settings:
    pass
args = Settings()
args.value = {value}
model = nn.Linear(3, 2)
nn.init.constant_(model.weight, 0.5)
nn.init.zeros_(model.bias)
criterion = nn.CrossEntropyLoss({loss})
optimizer = torch.optim.{optimizer}
scheduler = torch.optim.lr_scheduler.{schedule}
x, y = torch.linspace(-1.0, 2.0, 12).view(4, 3) ** 2, torch.tensor([0, 1, 1, 1])
for _ in range(3):
    optimizer.zero_grad()
    loss = criterion(model(x), y)
    loss.backward()
    optimizer.step()
    scheduler.step()
"""
PLAIN = {
    "loss": "",
    "optimizer": "SGD(model.parameters(), lr=0.1)",
    "schedule": "StepLR(optimizer, 2)",
}
RATES = {
    "StepLR": "2, ",
    "MultiStepLR": "[2], ",
    "LinearLR": "",
    "ConstantLR": "",
}


def weights(script, folder):
    """Return what torch and the port have trained, and the port's text."""
    found = ported(script)
    theirs = {"__name__": "script"}
    exec(script, theirs)
    mine = loaded(found.text, folder)["model"]
    return theirs["model"].weight.detach().numpy(), mine.weight.asnumpy(), found.text


def floats(name):
    """Return the parameters of a name of torch whose defaults are floats."""
    plain = [p for p in signature(name).params if p.default and not p.default.startswith("(")]
    return [p.name for p in plain if "." in p.default or p.name == "eps"]


@pytest.mark.parametrize("name", sorted(native._NATIVE))
def test_optimizers_of_ones_train_as_in_torch(name, tmp_path):
    ones = [f"{one}=args.value" for one in floats(f"torch.optim.{name}") if one != "alpha"]
    rate = "" if "lr=args.value" in ones else "lr=0.1, "
    script = PLAIN | {"optimizer": f"{name}(model.parameters(), {rate}{', '.join(ones)})"}
    theirs, mine, text = weights(TRAINED.format(value=1, **script), tmp_path)
    assert f" optim.{'AdamW' if name == 'Adam' else name}(" in text
    np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", sorted(RATES))
def test_schedules_of_ones_train_as_in_torch(name, tmp_path):
    ones = [f"{one}=args.value" for one in floats(f"torch.optim.lr_scheduler.{name}")]
    schedule = f"{name}(optimizer, {RATES[name]}{', '.join(ones)})"
    theirs, mine, text = weights(
        TRAINED.format(value=1, **PLAIN | {"schedule": schedule}), tmp_path
    )
    assert f"optim.lr_scheduler.{name}(" in text
    np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)


def test_betas_of_a_whole_number_move_the_weights(tmp_path):
    """torch before 2.13 takes (0, 0.9); MindSpore's AdamW moves nothing by it, silently."""
    script = TRAINED.format(
        value=0.0, **PLAIN | {"optimizer": "Adam(model.parameters(), betas=(0, 0.9))"}
    )
    found = ported(script)
    assert "betas=(0.0, 0.9)" in found.text
    mine = loaded(found.text, tmp_path)["model"].weight.asnumpy()
    assert np.abs(mine - 0.5).min() > 1e-4


@pytest.mark.parametrize("value", [0, 1])
def test_a_smoothing_of_a_whole_number_is_a_float(value, tmp_path):
    script = TRAINED.format(value=value, **PLAIN | {"loss": "label_smoothing=args.value"})
    theirs, mine, text = weights(script, tmp_path)
    assert "label_smoothing=float(args.value)" in text
    np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("default", "given"),
    [("0.1", "args.smoothing"), ("'0'", "args.smoothing"), ("0", "float(args.smoothing)")],
)
def test_what_surely_is_a_float_stays_as_it_is(default, given):
    script = (
        "import argparse\nfrom torch import nn\nparser = argparse.ArgumentParser()\n"
        f"parser.add_argument('--smoothing', type=float, default={default})\n"
        "args = parser.parse_args()\nloss = nn.CrossEntropyLoss(label_smoothing=args.smoothing)\n"
    )
    assert f"label_smoothing={given})" in ported(script).text


@pytest.mark.parametrize(
    "groups", ["[{'params': p, 'eps': 1}]", "[dict(params=p, betas=(0, 0.9))]"]
)
def test_groups_with_settings_of_their_own_keep_the_support(groups):
    script = f"import torch\ndef made(p):\n    return torch.optim.AdamW({groups}, lr=0.1)\n"
    assert "port.AdamW(" in ported(script).text


def test_functions_get_floats(tmp_path):
    script = (
        "import torch\nimport torch.nn.functional as F\n"
        "x = torch.linspace(-1.0, 1.0, 6).view(2, 3)\ny = torch.tensor([0, 1])\nn = 1\n"
        "made = [F.cross_entropy(x, y, label_smoothing=n), F.dropout(x, 0, True),\n"
        "        torch.nn.LayerNorm(3, eps=n)(x), torch.nn.GroupNorm(1, 3, n)(x)]\n"
    )
    beside(script, tmp_path)

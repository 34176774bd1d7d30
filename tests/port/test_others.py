"""Names of packages built on torch that have an equal, by what the packages gave, and two
distributions beside torch's; ``record_others.py`` says how the traces were made."""

from __future__ import annotations

import json
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
import torch
from mindspore import ops

import mpcore_port_runtime as port

from .ports import ported

TRACES = json.loads((Path(__file__).parent / "traces" / "others.json").read_text("utf-8"))
SCORES = [[0.5, -1.0, 2.0, 0.1], [1.5, 0.3, -0.7, 0.9], [-0.2, 0.4, 0.6, 3.0]]


@pytest.mark.parametrize(("name", "given", "rates"), TRACES["schedules"])
def test_schedules_of_transformers(name, given, rates):
    weight = ms.Parameter(ms.Tensor([0.0]), name="w")
    optimizer = port.SGD([weight], lr=0.5)
    schedule = getattr(port.others, name)(optimizer, **given)
    found = []
    for _ in rates:
        optimizer((ms.Tensor([0.0]),))
        schedule.step()
        found.append(schedule.get_last_lr()[0])
    np.testing.assert_allclose(found, rates, atol=1e-12)


@pytest.mark.parametrize(("given", "values"), TRACES["adamw"])
def test_adamw_of_transformers(given, values):
    weight = ms.Parameter(ms.Tensor([1.0, -2.0, 0.25]), name="w")
    optimizer = port.others.AdamW([weight], **given)
    for wanted in values:
        optimizer((2 * weight.value() - 1,))
        np.testing.assert_allclose(weight.asnumpy(), wanted, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize(("name", "given", "target", "loss", "grad"), TRACES["losses"])
def test_losses_of_timm(name, given, target, loss, grad):
    kind = ms.int64 if name.startswith("Label") else ms.float32
    cell = getattr(port.others, name)(**given)
    function = ms.value_and_grad(lambda x: cell(x, ms.Tensor(target, kind)))
    found, slope = function(ms.Tensor(SCORES, ms.float32))
    assert float(found) == pytest.approx(loss, abs=1e-6)
    np.testing.assert_allclose(slope.asnumpy(), grad, atol=1e-6)


@pytest.mark.parametrize(("topk", "wanted"), TRACES["accuracy"])
def test_accuracy_of_timm(topk, wanted):
    found = port.others.accuracy(ms.Tensor(SCORES), ms.Tensor([2, 3, 1]), topk=tuple(topk))
    np.testing.assert_allclose([float(x) for x in found], wanted, rtol=1e-6)


def test_dropped_paths_are_whole_samples_in_training_alone():
    cell = port.others.DropPath(0.5)
    x = ops.ones((400, 2, 3))
    assert (cell.set_train(False)(x) == x).all()
    rows = cell.set_train()(x).asnumpy().reshape(400, -1)
    assert set(np.unique(rows)) == {0.0, 2.0}
    assert all(len(set(row)) == 1 for row in rows)
    assert 100 < (rows[:, 0] > 0).sum() < 300


@pytest.mark.parametrize("row", TRACES["patterns"], ids=lambda row: f"{row[0]} {row[2]} {row[3]}")
def test_patterns_of_einops(row):
    name, shape, pattern, more, sizes, wanted, values = row
    x = ms.Tensor(np.arange(1, 1 + int(np.prod(shape)), dtype=np.float32).reshape(shape) / 8)
    found = getattr(port.patterns, name)(x, pattern, *more, **sizes)
    assert list(found.shape) == wanted
    np.testing.assert_allclose(found.asnumpy().ravel(), values, rtol=1e-5)
    array = getattr(port.patterns, name)(x.asnumpy(), pattern, *more, **sizes)
    assert isinstance(array, np.ndarray)
    assert list(array.shape) == wanted


@pytest.mark.parametrize(
    ("name", "pattern", "sizes"),
    [
        ("rearrange", "a b -> a", {}),
        ("rearrange", "a b c -> a b c", {}),
        ("rearrange", "a (b c) -> a b c", {"c": 4}),
        ("rearrange", "a (b c) -> a b c", {}),
        ("rearrange", "a a -> a", {}),
        ("rearrange", "a b -> a b!", {}),
        ("repeat", "a b -> a b c", {}),
        ("repeat", "a b -> a", {}),
    ],
)
def test_what_einops_refuses_is_refused(name, pattern, sizes):
    with pytest.raises(ValueError, match=r"einops pattern"):
        getattr(port.patterns, name)(ops.ones((2, 3)), pattern, **sizes)


def test_a_layer_of_a_pattern_has_a_gradient():
    cell = port.patterns.Rearrange("b (h w) -> b w h", h=2)
    grad = ms.grad(lambda x: (cell(x) * ms.Tensor([[[1.0, 2.0], [3.0, 4.0]]])).sum())
    assert grad(ops.ones((1, 4))).asnumpy().tolist() == [[1.0, 3.0, 2.0, 4.0]]


@pytest.mark.parametrize("how", ["probs", "logits"])
def test_categorical_is_torchs(how):
    scores = np.abs(np.array(SCORES, np.float32)) + 0.1
    places = np.array([[2, 3, 1], [0, 0, 3]])

    theirs = torch.tensor(scores, requires_grad=True)
    law = torch.distributions.Categorical(**{how: theirs})
    torch_sum = law.log_prob(torch.tensor(places)).sum() + law.entropy().mean()
    torch_sum.backward()

    def ours(x):
        law = port.distributions.Categorical(**{how: x})
        return law.log_prob(ms.Tensor(places)).sum() + law.entropy().mean()

    value, slope = ms.value_and_grad(ours)(ms.Tensor(scores))
    assert float(value) == pytest.approx(torch_sum.item(), abs=1e-5)
    np.testing.assert_allclose(slope.asnumpy(), theirs.grad.numpy(), atol=1e-5)
    made = port.distributions.Categorical(**{how: ms.Tensor(scores)})
    np.testing.assert_allclose(made.probs.asnumpy(), law.probs.detach().numpy(), atol=1e-6)
    assert made.sample((5,)).shape == (5, 3)
    assert made.sample().shape == (3,)


def test_categorical_draws_by_its_probabilities():
    law = port.distributions.Categorical(probs=ms.Tensor([[0.0, 1.0], [0.25, 0.75]]))
    drawn = law.sample((1000,)).asnumpy()
    assert (drawn[:, 0] == 1).all()
    assert 0.65 < drawn[:, 1].mean() < 0.85


def test_normal_is_torchs():
    loc, scale = np.array([[0.5], [-1.0]], np.float32), np.array([0.3, 2.0], np.float32)
    at = np.array([0.1, 0.7], np.float32)
    theirs = [torch.tensor(loc, requires_grad=True), torch.tensor(scale, requires_grad=True)]
    law = torch.distributions.Normal(*theirs)
    total = law.log_prob(torch.tensor(at)).sum() + law.entropy().mean()
    total.backward()

    def ours(loc, scale):
        law = port.distributions.Normal(loc, scale)
        return law.log_prob(ms.Tensor(at)).sum() + law.entropy().mean()

    value, slopes = ms.value_and_grad(ours, (0, 1))(ms.Tensor(loc), ms.Tensor(scale))
    assert float(value) == pytest.approx(total.item(), rel=1e-5)
    for slope, wanted in zip(slopes, theirs, strict=True):
        np.testing.assert_allclose(slope.asnumpy(), wanted.grad.numpy(), rtol=1e-4, atol=1e-5)
    drawn = port.distributions.Normal(ms.Tensor(loc), ms.Tensor(scale)).sample((4000,)).asnumpy()
    assert drawn.shape == (4000, 2, 2)
    np.testing.assert_allclose(drawn.mean(0), loc + 0 * scale, atol=0.2)
    np.testing.assert_allclose(drawn.std(0), scale + 0 * loc, rtol=0.1)


MIXED = """import torch
from torch import nn
from transformers import AdamW, AutoModelForCTC, get_linear_schedule_with_warmup
import transformers.optimization
from timm.models.layers import DropPath, trunc_normal_
from timm.layers.helpers import to_2tuple
import einops
from einops.layers.torch import Rearrange
net = nn.Sequential(Rearrange("b (h w) -> b h w", h=2), nn.Linear(2, 2), DropPath(0.1))
trunc_normal_(net[1].weight, std=0.02)
optimizer = AdamW(net.parameters(), lr=1e-3)
schedule = get_linear_schedule_with_warmup(optimizer, 2, 10)
other = transformers.optimization.get_constant_schedule(optimizer)
x = einops.repeat(torch.ones(2), "a -> b a", b=to_2tuple(3)[0])
"""


def test_names_with_an_equal_are_translated_beside_those_without():
    found = ported(MIXED)
    assert found.status == "runs"
    assert [edit.line for edit in found.edits if edit.kind == "refused"] == [3]
    assert "AutoModelForCTC = _refused(" in found.text
    assert "einops" not in found.text.replace("port.patterns", "")
    made = {}
    exec(found.text, made)
    assert made["x"].shape == (3, 2)


def test_a_name_without_an_equal_stops_where_it_is_used():
    found = ported(MIXED + "model = AutoModelForCTC.from_pretrained('a')\n")
    assert found.status == "does not run"
    assert found.said.stops == (15,)


BEFORE = """import torch
from torch import nn
from pytorch_transformers import AdamW, WarmupLinearSchedule
from pytorch_transformers.optimization import WarmupConstantSchedule, WarmupCosineSchedule
net = nn.Linear(2, 1)
def rates(optimizer, schedule):
    found = []
    for turn in range(7):
        found.append(float(optimizer.param_groups[0]["lr"]))
        schedule.step()
    return found
optimizers = [AdamW(net.parameters(), lr=1.0, eps=1e-8) for turn in range(4)]
first, second, third, fourth = optimizers
made = [rates(first, WarmupLinearSchedule(first, warmup_steps=2, t_total=6))]
made += [rates(second, WarmupLinearSchedule(second, 0, 4))]
made += [rates(third, WarmupConstantSchedule(third, 3))]
made += [rates(fourth, WarmupCosineSchedule(fourth, 2, t_total=6))]
"""


def test_the_names_of_pytorch_transformers_have_its_rates():
    found = ported(BEFORE)
    assert found.status == "runs"
    made = {}
    exec(found.text, made)
    linear = [0.0, 0.5, 1.0, 0.75, 0.5, 0.25, 0.0]
    whole = [1.0, 0.75, 0.5, 0.25, 0.0, 0.0, 0.0]
    constant = [0.0, 1 / 3, 2 / 3, 1.0, 1.0, 1.0, 1.0]
    cosine = [0.0, 0.5, *(0.5 * (1 + np.cos(np.pi * turn / 4)) for turn in range(5))]
    for one, other in zip(made["made"], (linear, whole, constant, cosine), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-7)


# --- what counts operations -----------------------------------------------------------------------

COUNTED = """\
import torch
from torch import nn
from thop import profile, clever_format
from torchsummary import summary

model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
flops, params = profile(model, inputs=(torch.randn(2, 4),))
flops, params = clever_format([flops, params])
summary(model, (4,))
print(params, flops)
"""


def test_parameters_are_counted_and_operations_are_not(capsys):
    found = ported(COUNTED)
    assert found.status == "runs"
    exec(found.text, {})
    said = capsys.readouterr().out
    assert said.splitlines()[-1] == "21.00B nanB"  # 4 x 3 + 3 + 3 + 3 of torch's network too
    assert "Trainable params: 21" in said


@pytest.mark.parametrize("number", [0.0, 999.0, 1500.0, 2.5e6, 3e9, 4e12])
def test_numbers_have_the_units_of_thop(number):
    places = {"T": 1e12, "G": 1e9, "M": 1e6, "K": 1e3, "B": 1.0}
    text = port.others.clever_format([number, number], "%.3f")[1]
    assert float(text[:-1]) * places[text[-1]] == pytest.approx(number)
    assert port.others.clever_format([number], "%.3f") == text

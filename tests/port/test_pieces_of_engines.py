"""Pieces of packages that engines use, by what they gave (``record_engines.py``)."""

from __future__ import annotations

import json
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
import torch
from mindspore import nn

import mpcore_port_runtime as port

from .ports import loaded, ported

TRACES = json.loads((Path(__file__).parent / "traces" / "engines.json").read_text("utf-8"))
PICTURES, LABELS = (4, 1, 5, 3), [0, 1, 2, 1]


@pytest.mark.parametrize(("given", "mode", "seed", "mixed", "shares", "behind"), TRACES["mixtures"])
def test_batches_are_mixed_by_the_same_numbers(given, mode, seed, mixed, shares, behind):
    # linspace in float32, as torch has it
    x = ms.Tensor(torch.linspace(-1, 1, 60).view(PICTURES).numpy())
    np.random.seed(seed)  # noqa: NPY002  # the stream that scripts draw from
    found, made = port.Mixup(mode=mode, num_classes=3, **given)(x, ms.Tensor(LABELS))
    assert found is x
    np.testing.assert_allclose(found.asnumpy().ravel(), mixed, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(made.asnumpy().ravel(), shares, rtol=1e-6)
    assert np.random.rand() == behind  # noqa: NPY002


def test_a_switch_and_odd_batches():
    mix = port.Mixup(num_classes=3, label_smoothing=0.0)
    mix.mixup_enabled = False
    x, shares = mix(ms.Tensor(np.ones(PICTURES, np.float32)), ms.Tensor(LABELS))
    assert shares.asnumpy().tolist() == np.eye(3)[LABELS].tolist()
    with pytest.raises(AssertionError, match="even number"):
        mix(x[:3], ms.Tensor(LABELS[:3]))
    with pytest.raises(AssertionError, match="mixup_alpha"):
        port.Mixup(mixup_alpha=0.0)(x, ms.Tensor(LABELS))


def _filled(state, step):
    for place, (name, value) in enumerate(state.items()):
        made = torch.linspace(0.1 * step, 1.0 + _PLACES.get(name, place), value.numel())
        port.put(value, ms.Tensor(made.view(tuple(value.shape)).numpy()))


# of torch's state: between a norm's statistics and what follows there is a count; the weight that
# two layers share is filled last by the second
_PLACES = {"0.weight": 0, "0.bias": 1, "1.weight": 2, "1.bias": 3, "1.running_mean": 4}
_PLACES |= {"1.running_var": 5, "2.weight": 7, "3.weight": 8, "weight": 0, "bias": 1}


@pytest.mark.parametrize("name", ["ModelEma", "ModelEmaV2"])
def test_states_are_averaged_with_statistics_and_tied_weights(name):
    layers = [nn.Dense(3, 4), nn.BatchNorm1d(4), *(nn.Dense(4, 4, has_bias=False) for _ in "ab")]
    layers[3].weight = layers[2].weight
    net = nn.SequentialCell(*layers)
    _filled(port.live_state_dict(net), 0)
    average = getattr(port, name)(net, decay=0.8)
    for step in (1, 2, 3):
        _filled(port.live_state_dict(net), step)
        average.update(net)
    held = average.ema if name == "ModelEma" else average.module
    wanted = TRACES["averages"][name]
    for key, value in port.state_dict(held).items():
        np.testing.assert_allclose(value.asnumpy().ravel(), wanted[key], rtol=1e-6, err_msg=key)
    assert not held.training
    wants = {param.requires_grad for param in port.parameters(held)}
    assert wants == {name == "ModelEmaV2"}
    assert port.unwrap_model(average) is held
    assert set(port.get_state_dict(average)) == set(port.state_dict(held))


@pytest.mark.parametrize(("given", "whole", "online", "averaged"), TRACES["warmed"])
def test_averages_that_warm_up_move_as_they_did(given, whole, online, averaged):
    layers = [nn.Dense(3, 4), nn.BatchNorm1d(4), *(nn.Dense(4, 4, has_bias=False) for _ in "ab")]
    layers[3].weight = layers[2].weight
    net = nn.SequentialCell(*layers)
    _filled(port.live_state_dict(net), 0)
    average = port.EMA(net, **given)
    for step in range(1, 8):
        _filled(port.live_state_dict(net), step)
        average.update()
    for held, wanted in ((average, whole), (net, online), (average.ema_model, averaged)):
        state = port.state_dict(held)
        counts = {key for key in wanted if key.endswith("num_batches_tracked")}
        assert set(state) == set(wanted) - counts, set(state) ^ set(wanted)
        for key, value in state.items():
            np.testing.assert_allclose(value.asnumpy().ravel(), wanted[key], 1e-5, 1e-6, key)
    assert not any(one.requires_grad for one in port.parameters(average.ema_model))
    assert all(one.requires_grad for one in port.parameters(net))


def test_an_average_that_warms_up_runs_instead_of_its_network():
    net = nn.SequentialCell(nn.Dense(3, 4), nn.Dropout(p=0.5))
    net.set_train()
    average = port.EMA(net, forward_method_names=("extend_repr",))
    x = ms.Tensor(np.ones((2, 3), np.float32))
    assert average.eval() is average.ema_model
    assert net.training
    assert not average.ema_model.training
    np.testing.assert_array_equal(average(x).asnumpy(), average.ema_model(x).asnumpy())
    port.train(average.ema_model)
    average.forward_eval(x)
    assert average.ema_model.training
    assert average.extend_repr() == average.ema_model.extend_repr()
    with pytest.raises(NotImplementedError, match="call update"):
        average.add_to_optimizer_post_step_hook(None)
    other = port.EMA(net, ema_model=lambda: nn.SequentialCell(nn.Dense(3, 4)))
    port.put(average.step, 7)
    port.load_state_dict(average, port.state_dict(average))
    assert int(average.step.asnumpy()) == 7
    assert len(other.ema_model) == 1


def test_averages_of_ema_pytorch_are_ported(tmp_path):
    script = """import torch
from torch import nn
from ema_pytorch import EMA
from ema_pytorch.ema_pytorch import EMA as Other
net = nn.Linear(3, 2)
ema = EMA(net, beta=0.9, update_after_step=0, update_every=1)
other = Other(net, beta=0.5)
for _ in range(3):
    ema.update()
same = torch.equal(ema.ema_model.weight, net.weight)
keys = sorted(ema.state_dict())
"""
    found = ported(script)
    assert not [edit for edit in found.edits if edit.kind == "refused"]
    made = loaded(found.text, tmp_path)
    assert bool(made["same"])
    assert made["keys"][:2] == ["ema_model.bias", "ema_model.weight"]
    assert "initted" in made["keys"]


@pytest.mark.parametrize(("counts", "wanted"), TRACES["moving"])
def test_weights_inside_of_an_average_and_behind_it(counts, wanted):
    net = nn.Dense(3, 2)
    _filled(port.live_state_dict(net), 0)
    one = port.ExponentialMovingAverage(port.parameters(net), 0.7, counts)
    for step in (1, 2, 3):
        _filled(port.live_state_dict(net), step)
        one.update()
    found = []
    with one.average_parameters():
        found.append(net.weight.asnumpy().ravel().copy())
    found.append(net.weight.asnumpy().ravel().copy())
    other = port.ExponentialMovingAverage(port.parameters(net), 0.9)
    other.load_state_dict(one.state_dict())
    other.update()
    other.copy_to()
    found.append(net.weight.asnumpy().ravel().copy())
    other.restore()
    found.append(net.weight.asnumpy().ravel().copy())
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_what_an_average_cannot_take_it_refuses():
    net = nn.Dense(3, 2)
    average = port.ExponentialMovingAverage(port.parameters(net), 0.7)
    with pytest.raises(RuntimeError, match="store"):
        average.restore()
    with pytest.raises(ValueError, match="must be 2, got 1"):
        average.update([net.weight])
    with pytest.raises(ValueError, match="decay"):
        port.ExponentialMovingAverage([], 1.5)


@pytest.mark.parametrize(("shape", "wanted"), TRACES["clips"])
def test_gradients_are_held_to_a_share_of_the_weights(shape, wanted):
    count = int(np.prod(shape))
    weight = ms.Parameter(ms.Tensor(torch.linspace(-0.4, 0.2, count).view(shape).numpy()))
    weight.grad = ms.Tensor(torch.linspace(0.0, 0.02, count).view(shape).numpy())
    port.dispatch_clip_grad([weight], 0.01, mode="agc")
    np.testing.assert_allclose(weight.grad.asnumpy().ravel(), wanted, rtol=1e-5, atol=1e-9)


# --- whole steps ----------------------------------------------------------------------------------

ENGINE = """
import numpy as np
import torch
from torch import nn
{imports}
made = []

@register_model
def net(**settings):
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 4))

def train(model, criterion, loader, optimizer, scaler, ema=None, mix=None):
    model.train()
    for x, y in loader:
        if mix is not None:
            x, y = mix(x, y)
        with torch.autocast("cpu", enabled=False):
            loss = criterion(model(x), y)
        optimizer.zero_grad()
        scaler(loss, optimizer, clip_grad=0.5, parameters=model.parameters(), create_graph=False)
        if ema is not None:
            ema.update(model)
        made.append(loss.item())

model = net()
for p in model.parameters():
    p.data.copy_(torch.linspace(-1, 1, p.numel()).view(p.shape))
loader = [(torch.linspace(0, k, 48).view(4, 3, 2, 2), torch.arange(4)) for k in (1.0, 2.0, 3.0)]
ema = ModelEma(model, decay=0.9, device="", resume="")
opt = torch.optim.SGD(model.parameters(), lr=0.1)
train(model, SoftTargetCrossEntropy(), loader, opt, NativeScaler(), ema,
      Mixup(num_classes=4, prob=0.0))
made += [v for v in get_state_dict(ema).values()]
made += [p for p in unwrap_model(model).parameters()]
made.append(sum(IMAGENET_DEFAULT_MEAN) + sum(IMAGENET_DPN_STD))
"""
OF_TIMM = """from timm.data import Mixup, IMAGENET_DEFAULT_MEAN
from timm.data.constants import IMAGENET_DPN_STD
from timm.utils import NativeScaler, ModelEma, get_state_dict
from timm.utils.model import unwrap_model
from timm.models.registry import register_model
from timm.loss import SoftTargetCrossEntropy"""
# The same by hand, in torch: what timm does in this script.
BY_HAND = """import copy
IMAGENET_DEFAULT_MEAN, IMAGENET_DPN_STD = (0.485, 0.456, 0.406), (1 / (0.0167 * 255),) * 3
register_model = unwrap_model = lambda one: one
get_state_dict = lambda average: average.ema.state_dict()
class Mixup:
    def __init__(self, num_classes, prob):
        self.count = num_classes
    def __call__(self, x, y):
        return x, nn.functional.one_hot(y, self.count) * 0.9 + 0.1 / self.count
class SoftTargetCrossEntropy(nn.Module):
    def forward(self, x, y):
        return -(y * x.log_softmax(-1)).sum(-1).mean()
class ModelEma:
    def __init__(self, model, decay, device, resume):
        self.ema, self.decay = copy.deepcopy(model), decay
    def update(self, model):
        with torch.no_grad():
            for own, other in zip(self.ema.parameters(), model.parameters()):
                own.copy_(own * self.decay + other * (1 - self.decay))
class NativeScaler:
    def __call__(self, loss, optimizer, clip_grad, parameters, create_graph):
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, clip_grad)
        optimizer.step()"""


def test_an_engine_of_timms_pieces_gives_torchs_numbers(tmp_path):
    theirs = {"__name__": "script"}
    exec(ENGINE.format(imports=BY_HAND), theirs)
    found = ported(ENGINE.format(imports=OF_TIMM))
    assert found.said.kind == "runs"
    assert "import timm" not in found.text
    assert "from timm" not in found.text
    made = loaded(found.text, tmp_path)["made"]
    for one, other in zip(made, theirs["made"], strict=True):
        own = one.asnumpy() if isinstance(one, ms.Tensor) else one
        plain = other.detach().numpy() if hasattr(other, "detach") else other
        np.testing.assert_allclose(own, plain, rtol=1e-5, atol=1e-6)


def test_what_has_no_equal_is_refused_beside_what_has_one():
    script = "import torch\nfrom timm.data import Mixup, create_parser\n{}\n"
    assert ported(script.format("mix = Mixup(num_classes=3)")).said.kind == "runs"
    assert ported(script.format("loader = create_parser(1)")).status == "does not run"


RESUMED = """import io
import torch
from torch import nn
from timm.utils import ModelEma, get_state_dict

made = []
net = nn.Linear(2, 3)
for p in net.parameters():
    p.data.copy_(torch.linspace(-1, 1, p.numel()).view(p.shape))
first = ModelEma(net, decay=0.5, device="cpu", resume="")
for p in net.parameters():
    p.data.mul_(3.0)
first.update(net)


def load_average(average, checkpoint):
    file = io.BytesIO()
    torch.save(checkpoint, file)
    file.seek(0)
    average._load_checkpoint(file)


second = ModelEma(nn.Linear(2, 3), decay=0.5)
load_average(second, {"state_dict_ema": get_state_dict(first)})
made += [v for v in second.ema.state_dict().values()]
torch.save({"state_dict_ema": get_state_dict(first)}, "PATH")
third = ModelEma(nn.Linear(2, 3), decay=0.5, device="", resume="PATH")
made += [v for v in third.ema.state_dict().values()]
"""


def test_averages_are_resumed_from_checkpoints(tmp_path):
    script = RESUMED.replace("PATH", str(tmp_path / "average.pth"))
    found = ported(script)
    made = loaded(found.text, tmp_path)["made"]
    line = np.linspace(-1, 1, 6, dtype=np.float32).reshape(3, 2) * 2
    for held in (made[0], made[2]):
        np.testing.assert_allclose(held.asnumpy(), line, rtol=1e-6)

"""Networks of torchvision, by what the package gave; ``record_networks.py`` says how."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
from safetensors.numpy import save_file

import mpcore_port_runtime as port
from mpcore.errors import BackendError
from mpcore_port_runtime.networks.weights import _renamed

from .networks_filled import filled, pictures
from .ports import loaded, ported

TRACES = json.loads((Path(__file__).parent / "traces" / "networks.json").read_text("utf-8"))


def _start(name, *args, **given):
    net = getattr(port.networks, name)(*args, **given)
    arrays = filled((k, tuple(v.shape)) for k, v in port.state_dict(net).items())
    port.load_state_dict(net, arrays)
    return net


@pytest.mark.parametrize(
    ("name", "args", "given", "side", "loss", "slopes"),
    TRACES["trained"],
    ids=[f"{row[0]}-{number}" for number, row in enumerate(TRACES["trained"])],
)
def test_losses_and_gradients_are_torchvisions(name, args, given, side, loss, slopes):
    net = _start(name, *args, **given)
    assert net.training
    net.set_train(False)  # two pictures' own statistics are too near to 0 / 0 in the last stages
    names = [key for key, _ in port.named_parameters(net)]
    weights = port.parameters(net)
    step = ms.value_and_grad(lambda x: net(x).square().mean(), None, weights)
    found, grads = step(ms.Tensor(pictures(side)))
    np.testing.assert_allclose(float(found), loss, rtol=2e-5)
    norms = {key: float(grad.norm()) for key, grad in zip(names, grads, strict=True)}
    assert list(norms) == list(slopes)
    top = max(slopes.values())
    np.testing.assert_allclose([*norms.values()], [*slopes.values()], rtol=2e-3, atol=1e-5 * top)


@pytest.mark.nightly
@pytest.mark.parametrize(("name", "side", "answer"), TRACES["asked"])
def test_larger_ones_answer_as_torchvisions(name, side, answer):
    net = _start(name).set_train(False)
    made = net(ms.Tensor(pictures(side, 1)))[0, :8].asnumpy()
    np.testing.assert_allclose(made, answer, rtol=1e-4, atol=1e-5 * np.abs(answer).max())


@pytest.mark.parametrize(
    ("name", "digest", "ids"),
    [
        pytest.param(
            *row, marks=() if row[0] in ("resnet101", "densenet161") else pytest.mark.nightly
        )
        for row in TRACES["named"]
    ],
)
def test_weights_have_torchvisions_names_and_shapes(name, digest, ids):
    net = getattr(port.networks, name)()
    found = [key for key, _ in port.named_parameters(net)]
    assert found[:3] + found[-3:] == ids
    state = {key: tuple(value.shape) for key, value in port.state_dict(net).items()}
    assert hashlib.sha256(json.dumps(_as_torch(state)).encode()).hexdigest() == digest


def _as_torch(state):
    """Return names and shapes in torch's order: of a norm the statistics behind its weights."""
    held = {}
    for name in state:
        held.setdefault(name.rpartition(".")[0], []).append(name)
    order = ("weight", "bias", "running_mean", "running_var")
    return [
        [name, list(state[name])]
        for names in held.values()
        for name in sorted(names, key=lambda one: _place(one, order))
    ]


def _place(name, order):
    last = name.rpartition(".")[2]
    return order.index(last) if last in order else -1


def test_weights_are_read_where_they_lie_and_asked_for_elsewhere(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    with pytest.raises(BackendError, match=r"resnet18-f37072fd\.pth at .* mpcore convert-weights"):
        port.networks.resnet18(pretrained=True)
    with pytest.raises(BackendError, match="must be one of IMAGENET1K_V1"):
        port.networks.resnet18(weights="IMAGENET21K")
    with pytest.raises(BackendError, match="`num_classes` must be 1000"):
        port.networks.resnet18(weights="DEFAULT", num_classes=10)
    folder = tmp_path / "hub" / "checkpoints"
    folder.mkdir(parents=True)
    shapes = [(k, tuple(v.shape)) for k, v in port.state_dict(port.networks.resnet18()).items()]
    arrays = filled(shapes)
    counted = {"bn1.num_batches_tracked": np.zeros((), np.int64)}
    save_file(arrays | counted, folder / "resnet18-f37072fd.safetensors")
    known = port.networks.ResNet18_Weights
    for made in (
        port.networks.resnet18(True),
        port.networks.resnet18(weights=known.IMAGENET1K_V1, progress=False),
        port.networks.resnet18(weights=known.DEFAULT),
    ):
        assert np.array_equal(port.state_dict(made)["fc.weight"].asnumpy(), arrays["fc.weight"])
        assert made.training


def test_old_names_in_files_are_those_of_today():
    old = {
        "features.denseblock2.denselayer13.norm.1.weight": 1,
        "features.denseblock2.denselayer13.conv.2.weight": 2,
        "features.norm5.num_batches_tracked": 0,
        "encoder.layers.encoder_layer_3.mlp.linear_1.weight": 3,
        "encoder.layers.encoder_layer_3.mlp.linear_2.bias": 4,
        "layer1.0.conv1.weight": 5,
    }
    assert dict(_renamed(old)) == {
        "features.denseblock2.denselayer13.norm1.weight": 1,
        "features.denseblock2.denselayer13.conv2.weight": 2,
        "encoder.layers.encoder_layer_3.mlp.0.weight": 3,
        "encoder.layers.encoder_layer_3.mlp.3.bias": 4,
        "layer1.0.conv1.weight": 5,
    }


SCRIPT = """import torch
from torchvision import models
from torchvision.models import ResNet18_Weights
from torchvision.models.resnet import BasicBlock, ResNet
class Small(ResNet):
    def __init__(self):
        super().__init__(BasicBlock, [1, 1, 1, 1], num_classes=4)
        self.last = torch.nn.Linear(4, 2)
    def forward(self, x):
        return self.last(super().forward(x))
names = sorted(
    name for name in models.__dict__
    if name.islower() and not name.startswith("__") and callable(models.__dict__[name])
)
net = Small()
net.eval()
made = [*net(torch.ones(1, 3, 32, 32)).shape, len([n for n in names if n.startswith("resnet")])]
def weights():
    return models.resnet18(weights=ResNet18_Weights.DEFAULT)
"""


def test_a_script_that_derives_from_them_and_lists_them(tmp_path):
    found = ported(SCRIPT)
    assert not [one for one in found.edits if one.kind == "refused"]
    held = loaded(found.text, tmp_path)
    assert held["made"] == [1, 2, 5]
    assert {"alexnet", "densenet121", "mobilenet_v2", "resnet18", "vgg16", "vit_b_16"} <= set(
        held["names"]
    )
    assert not {"conv1x1", "conv3x3", "maker", "filled"} & set(held["names"])

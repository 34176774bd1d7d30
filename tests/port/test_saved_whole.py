"""Networks that are saved whole, in checkpoints of YOLO's kind, and what comes back of them."""

import pytest
from mindspore import Tensor, nn

import mpcore_port_runtime as port
from mpcore.errors import CheckpointError
from mpcore_port_runtime.refusal import PortWarning

from .ports import FILLED, beside, ported

SCRIPT = (
    FILLED.replace("import torch\n", "import torch\nimport io, os, tempfile\n")
    + """
from copy import deepcopy
folder = tempfile.mkdtemp()
def save_checkpoint(ckpt, name):
    torch.save(ckpt, os.path.join(folder, name + ".pt"))
def strip(name):
    path = os.path.join(folder, name + ".pt")
    ckpt = torch.load(path, map_location=torch.device("cpu"), weights_only=False)
    if ckpt.get("ema"):
        ckpt["model"] = ckpt["ema"]
    for key in ["optimizer", "ema"]:
        ckpt[key] = None
    ckpt["model"].half()
    for p in ckpt["model"].parameters():
        p.requires_grad = False
    torch.save(ckpt, os.path.join(folder, name + ".pt"))
def load(name, model):
    ckpt = torch.load(os.path.join(folder, name + ".pt"), map_location="cpu", weights_only=False)
    state = ckpt["model"].float().state_dict()
    own = model.state_dict()
    state = {k: v for k, v in state.items() if k in own and v.shape == own[k].shape}
    model.load_state_dict(state, strict=False)
    return model
net = filled(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)))
ema = deepcopy(net).eval()
for p in ema.parameters():
    p.data.mul_(0.3)
opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
for step in range(2):
    loss = net(torch.linspace(-1, 1, 12).view(4, 3) + step).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
save_checkpoint({"model": deepcopy(net).half(), "ema": deepcopy(ema).half(),
                 "optimizer": opt.state_dict(), "epoch": 3}, "last")
first = load("last", nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)))
made.extend(first.parameters())
strip("last")
second = load("last", nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)))
made.extend(second.parameters())
again = torch.load(os.path.join(folder, "last.pt"), map_location="cpu", weights_only=False)
made.append(float(len(list(again["model"].parameters()))))
made.append(float(again["epoch"]))
"""
)


@pytest.mark.filterwarnings("ignore::mpcore_port_runtime.refusal.PortWarning")
def test_a_checkpoint_of_whole_networks_is_stripped_and_loaded(tmp_path):
    found = beside(SCRIPT, tmp_path)
    told = [edit for edit in found.edits if edit.rule == "loaded"]
    assert told
    assert {edit.kind for edit in told} == {"changed"}


def test_what_comes_back_is_no_network(tmp_path):
    net = nn.SequentialCell(nn.Dense(2, 3), nn.BatchNorm1d(3))
    with pytest.warns(PortWarning):
        port.save({"model": net, "n": 1}, tmp_path / "a.pt")
    found = port.load(tmp_path / "a.pt")["model"]
    names = [name for name, _ in found.named_parameters()]
    assert names == ["0.weight", "0.bias", "1.weight", "1.bias"]
    assert set(found.state_dict()) == set(port.state_dict(net))
    assert {str(one.dtype) for one in found.half().parameters()} == {"Float16"}
    assert {str(one.dtype) for one in found.float().cpu().eval().parameters()} == {"Float32"}
    with pytest.raises(CheckpointError, match="cannot be called"):
        found(Tensor([[1.0, 2.0]]))
    with pytest.raises(AttributeError, match="without `names`"):
        _ = found.names
    assert not hasattr(found, "module")
    with pytest.raises(CheckpointError, match="names that were saved"):
        found.load_state_dict({})


def test_what_a_checkpoint_holds_besides_is_not_called_a_network():
    script = (
        "import torch\nckpt = torch.load('a.pt')\nopt = ckpt['optimizer']\n"
        "n = ckpt['loss'].item()\n"
    )
    assert not [edit for edit in ported(script).edits if edit.rule == "loaded"]

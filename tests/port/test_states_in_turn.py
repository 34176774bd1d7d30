"""States that each module of a network has a say in: torch asks every one as it saves or loads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .ports import FILLED, beside, ported

if TYPE_CHECKING:
    from pathlib import Path

_NET = (
    FILLED
    + """
class Part(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(3)
        self.fc = nn.Linear(3, 2)
        self.register_buffer("count", torch.zeros(2))
"""
)

_LOOP = """
def load_state(model, state, ignore="index"):
    missing, unexpected, errors = [], [], []
    metadata = getattr(state, "_metadata", None)
    state = state.copy()
    if metadata is not None:
        state._metadata = metadata

    def load(module, prefix=""):
        local = {} if metadata is None else metadata.get(prefix[:-1], {})
        module._load_from_state_dict(state, prefix, local, True, missing, unexpected, errors)
        for name, child in module._modules.items():
            if child is not None:
                load(child, prefix + name + ".")

    load(model)
    return [key for key in missing if ignore not in key], unexpected, errors

net, other = nn.Sequential(filled(Part()), nn.ReLU()), nn.Sequential(Part(), nn.ReLU())
state = net.state_dict()
state["0.count"] = torch.ones(2)
del state["0.fc.bias"]
state["0.head.weight"] = torch.ones(1)
state["0.index"] = torch.ones(1)
missing, unexpected, errors = load_state(other, state)
made.extend([other[0].norm.weight, other[0].norm.bias, other[0].fc.weight, other[0].count])
made.extend([missing == ["0.fc.bias"], sorted(unexpected) == ["0.head.weight", "0.index"]])
made.append(len(errors))
"""

_OWN = """
class Old(Part):
    def _load_from_state_dict(self, state_dict, prefix, local_metadata, strict,
                              missing_keys, unexpected_keys, error_msgs):
        key = prefix + "scale"
        if key in state_dict:
            state_dict[prefix + "norm.weight"] = state_dict.pop(key)
        super()._load_from_state_dict(state_dict, prefix, local_metadata, strict,
                                      missing_keys, unexpected_keys, error_msgs)

net = nn.Sequential(Old(), nn.Linear(2, 1))
state = nn.Sequential(filled(Part()), filled(nn.Linear(2, 1))).state_dict()
state["0.scale"] = state.pop("0.norm.weight") * 2
said = net.load_state_dict(state)
made.extend([net[0].norm.weight, net[0].fc.weight, net[1].weight, len(said.missing_keys)])
del state["1.bias"]
said = net.load_state_dict(state, strict=False)
made.extend([said.missing_keys == ["1.bias"], len(said.unexpected_keys)])
try:
    net.load_state_dict(state)
    made.append(False)
except RuntimeError as error:
    made.append("1.bias" in str(error))
"""

_HOOK = """
class Hooked(Part):
    def __init__(self, with_module):
        super().__init__()
        if with_module:
            self._register_load_state_dict_pre_hook(Hooked.renamed, with_module=True)
        else:
            self._register_load_state_dict_pre_hook(self.hook)
    def renamed(module, state_dict, prefix, *args):
        module.hook(state_dict, prefix)
    def hook(self, state_dict, prefix, *args):
        for key in [k for k in state_dict if k.startswith(prefix + "old.")]:
            state_dict[key.replace("old.", "norm.")] = state_dict.pop(key) + 1

for with_module in (False, True):
    net = nn.Sequential(Hooked(with_module))
    state = nn.Sequential(filled(Part())).state_dict()
    state = {k.replace("norm.", "old."): v for k, v in state.items()}
    net.load_state_dict(state)
    made.extend([net[0].norm.weight, net[0].norm.bias, net[0].fc.bias])
"""

_SAVED = """
class Saved(Part):
    def _save_to_state_dict(self, destination, prefix, keep_vars):
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[prefix + "more"] = torch.ones(2)
        destination.pop(prefix + "count")

class Silent(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(2, 2)
    def state_dict(self, *args, destination=None, prefix="", keep_vars=False):
        return {} if destination is None else destination

net = nn.Sequential(filled(Saved()), Silent(), filled(nn.Linear(2, 1)))
state = net.state_dict()
made.append(sorted(state) == sorted(
    ["0.norm.weight", "0.norm.bias", "0.fc.weight", "0.fc.bias", "0.more", "2.weight", "2.bias"]
))
made.extend([state["0.norm.weight"], state["2.weight"], state["0.more"]])
"""


def test_a_state_that_a_loop_puts_into_each_module(tmp_path: Path) -> None:
    """BEiT's way to load what fits: norms, whose Cells have other names, got nothing."""
    beside(_NET + _LOOP, tmp_path)


def test_a_modules_own_way_to_load(tmp_path: Path) -> None:
    """It ran in torch alone: ``load_state_dict`` of a port asked no module."""
    beside(_NET + _OWN, tmp_path)


def test_hooks_before_loading(tmp_path: Path) -> None:
    """A Cell has no method of this private name; the hook is handed no module."""
    beside(_NET + _HOOK, tmp_path)


def test_a_modules_own_way_to_save(tmp_path: Path) -> None:
    """A part that saves more, and one that saves nothing."""
    beside(_NET + _SAVED, tmp_path)


def test_a_loop_that_is_handed_the_network() -> None:
    """Nothing in the file says what the module is; its method says it."""
    helper = _LOOP.partition("\nnet, other")[0]
    resumed = """
def resume(args, epoch):
    if args.resume:
        checkpoint = torch.load(args.resume, map_location="cpu")
    elif epoch >= 0:
        args.resume = os.path.join(args.folder, "checkpoint-%d" % epoch)
"""
    found = ported("import os\nimport torch\n" + helper + resumed)
    assert "port.load_from_state_dict(module, state" in found.text

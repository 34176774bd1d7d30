"""What a plain run of a script comes to: names there that need not stop a port."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mpcore_port.engine import port_tree
from mpcore_port.source import walk
from mpcore_port.targets import Options

from .ports import TARGET, beside, loaded, ported

if TYPE_CHECKING:
    from pathlib import Path

# --- imports that may fail -----------------------------------------------------------------------

GUARDED = """
import torch
made = []
try:
    from apex.multi_tensor_apply import multi_tensor_applier
except ImportError:
    multi_tensor_applier = None
try:
    from torchvision.models.video import r3d_18
except ImportError:
    r3d_18 = None
try:
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
except ImportError:
    FSDP = None
try:
    from torch.nn.utils.stateless import functional_call
    CALLS = True
except ImportError:
    CALLS = False
try:
    import torchvision
    import torch.utils.tensorboard as tensorboard
except ImportError:
    torchvision = tensorboard = None
if torchvision is None:
    raise RuntimeError("no pictures")
assert tensorboard is not None, "no board"
if torchvision and multi_tensor_applier is not None:
    multi_tensor_applier(1)
if not torchvision or (FSDP is not None and isinstance(3, FSDP)):
    raise RuntimeError
if CALLS:
    functional_call(1)
made += [multi_tensor_applier is None, r3d_18 is None, CALLS]
"""


def test_imports_that_a_script_can_do_without(tmp_path: Path) -> None:
    found = ported(GUARDED)
    assert loaded(found.text, tmp_path)["made"] == [True, True, False]
    assert found.status.startswith("runs unless")


def test_imports_whose_names_have_an_equal_stay(tmp_path: Path) -> None:
    script = """import torch
try:
    from torch.nn.modules.batchnorm import BatchNorm1d
    import torch.nn.functional as F
    there = True
except ImportError:
    there = False
made = [there, F.relu(torch.tensor([-1.0, 2.0])), BatchNorm1d(2).eps]
"""
    beside(script, tmp_path)


# --- names that are not what they look like ------------------------------------------------------

STORES = """import torch
class Store:
    def __init__(self):
        self.seen = []
    def clamp_(self, low):
        self.seen.append(low)
        return self
    def fill_(self, value):
        self.seen.append(value)
def first(store: Store):
    return store.clamp_(3)
def second(store: "Store", x: torch.Tensor):
    store.fill_(4)
    x.clamp_(0, 1)
stores = [Store(), Store()]
x = torch.tensor([-1.0, 0.5, 3.0])
for store in stores:
    store.fill_(5)
    store.clamp_(6)
    first(store)
    second(store, x)
made = [store.seen for store in stores] + [x]
"""


def test_methods_of_own_classes_that_tensors_have_too(tmp_path: Path) -> None:
    beside(STORES, tmp_path)


def test_points_of_plots_are_no_tensors() -> None:
    script = """import torch
import matplotlib.pyplot as plt
def show(x, ax):
    ax.scatter(x[:, 0], x[:, 1], c="r")
    axes = plt.subplots(2, 2)[1]
    axes[0].scatter(x, x, 3)
    fig, (left, right) = plt.subplots(1, 2)
    left.scatter(x, x, s=3)
"""
    found = ported(script)
    assert "port.scatter" not in found.text
    assert not [edit for edit in found.edits if "scatter" in edit.old]


def test_paths_are_put_into_no_mode() -> None:
    script = """import torch
from pathlib import Path
def load(model_path, net):
    model = Path(model_path)
    net.load_state_dict(torch.load(model / "a.pt"))
"""
    assert "model = Path(model_path)" in ported(script).text


def test_folders_that_hold_no_code_are_no_modules(tmp_path: Path) -> None:
    (tmp_path / "wandb" / "run-1").mkdir(parents=True)
    (tmp_path / "nets").mkdir()
    (tmp_path / "train.py").write_text("import torch, wandb, nets\nwandb.init()\n", "utf-8")
    found = port_tree(walk(tmp_path / "train.py"), TARGET, Options()).files[0]
    said = [edit.reason for edit in found.edits if edit.kind == "unproven"]
    assert said == ["nets lies beside the script and was not ported: port the folder"]

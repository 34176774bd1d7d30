"""What networks of transformers and diffusers give, and what scripts ask of these packages."""

from __future__ import annotations

import sys
import types
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mpcore_port_runtime import outputs

from .ports import FILLED, beside, ported

SCRIPT = f"""{FILLED}
from dataclasses import dataclass
from typing import Optional
import diffusers
import transformers
from diffusers.utils import BaseOutput, check_min_version, is_wandb_available, logging
from diffusers.utils.import_utils import is_xformers_available
from transformers.file_utils import ModelOutput
from transformers.utils import send_example_telemetry
check_min_version("0.10.0")
logger = logging.get_logger(__name__)

@dataclass
class Found(ModelOutput):
    loss: Optional[torch.FloatTensor] = None
    logits: torch.FloatTensor = None
    hidden: Optional[tuple] = None

@dataclass
class Sample(BaseOutput):
    sample: torch.FloatTensor

class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        return Sample(sample=self.fc(x))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Inner()
        self.fc = nn.Linear(4, 2)

    def forward(self, x, y=None):
        logits = self.fc(self.inner(x).sample)
        return Found(loss=((logits - y) ** 2).mean(), logits=logits)

net = filled(Net())
opt = torch.optim.SGD(net.parameters(), lr=0.05)
send_example_telemetry("run", None)
diffusers.utils.logging.set_verbosity_info()
for step in range(4):
    x = torch.cos(torch.arange(32.0)).view(8, 4) + step / 4
    found = net(x, x[:, :2])
    loss = found.loss
    loss.backward()
    opt.step()
    opt.zero_grad()
    if is_xformers_available() or is_wandb_available():
        raise RuntimeError("neither is there")
    made += [loss, found["logits"], found[0], len(found)]
"""


@pytest.fixture
def _there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the original find what it imports."""

    def module(name: str, **names: Any) -> types.ModuleType:
        made = types.ModuleType(name)
        vars(made).update(names)
        monkeypatch.setitem(sys.modules, name, made)
        return made

    said = types.SimpleNamespace(get_logger=print, set_verbosity_info=print)
    module("script")  # dataclasses ask for the module that they are made in
    module("port")
    module("transformers")
    module("transformers.utils", send_example_telemetry=print)
    module("transformers.file_utils", ModelOutput=outputs.ModelOutput)
    utils = module(
        "diffusers.utils",
        logging=said,
        is_wandb_available=lambda: False,
        check_min_version=print,
        BaseOutput=outputs.BaseOutput,
    )
    module("diffusers", utils=utils)
    module("diffusers.utils.import_utils", is_xformers_available=lambda: False)


@pytest.mark.usefixtures("_there")
def test_networks_that_give_fields_train_beside_torchs(tmp_path: Path) -> None:
    found = ported(SCRIPT)
    assert found.status == "runs"
    beside(SCRIPT, tmp_path)


@dataclass
class Fields(outputs.ModelOutput):
    """As transformers 5.23.0 answers with ``ModelOutput`` in its place."""

    a: Any = None
    b: Any = None
    c: Any = None


def test_fields_are_read_by_name_key_and_place() -> None:
    one = Fields(a=4, c=(1, 2))
    assert list(one) == ["a", "c"]
    assert (one["c"], one[1], one[:1], one.b) == ((1, 2), (1, 2), (4,), None)
    one.c = 7
    one["a"] = 9
    one.b = 5
    assert (one["c"], one.a, list(one), one.to_tuple()) == (7, 9, ["a", "c", "b"], (9, 7, 5))
    for change in (
        lambda: one.pop("a"),
        lambda: one.update({"a": 1}),
        lambda: one.__delitem__("a"),
    ):
        with pytest.raises(TypeError, match="entries of Fields stay"):
            change()


def test_the_last_checkpoint_is_that_of_the_greatest_number(tmp_path: Path) -> None:
    assert outputs.get_last_checkpoint(str(tmp_path)) is None
    for name in ("checkpoint-9", "checkpoint-10", "checkpoint-11x", "other"):
        (tmp_path / name).mkdir()
    (tmp_path / "checkpoint-12").write_text("", encoding="utf-8")
    assert outputs.get_last_checkpoint(str(tmp_path)) == str(tmp_path / "checkpoint-10")


TABLES = f"""{FILLED}
import numpy as np

class Table:
    def __init__(self, rows, kind=None):
        self.rows, self.kind = rows, kind
    def shuffle(self, seed):
        return Table(self.rows[::-1], self.kind)
    def select(self, places):
        return Table([self.rows[p] for p in places], self.kind)
    def with_format(self, type):
        return Table(self.rows, type)
    def __len__(self):
        return len(self.rows)
    def __getitem__(self, i):
        made = np.array(self.rows[i], np.float32)
        return {{"x": torch.from_numpy(made) if self.kind == "torch" else made}}

def table():
    return {{"train": Table([[float(i), 1.0] for i in range(9)])}}

data = table()
small = data["train"].shuffle(seed=3).select(range(6)).with_format("torch")
for batch in torch.utils.data.DataLoader(small, batch_size=2):
    made += [batch["x"] * 2]
"""


def test_rows_of_tables_are_selected_and_come_as_arrays(tmp_path: Path) -> None:
    found = beside(TABLES, tmp_path)
    reasons = [one.reason for one in found.edits if one.kind == "unproven"]
    assert any("takes an axis and a place" in one for one in reasons)
    assert any("a table gives arrays of numpy" in one for one in reasons)
    assert 'with_format("numpy")' in found.text


def test_what_measures_pictures_in_folders_stays_and_is_listed() -> None:
    script = (
        "import torch\nimport torch_fidelity\ndef fid(a, b):\n"
        "    return torch_fidelity.calculate_metrics(input1=a, input2=b, cuda=False)\n"
    )
    found = ported(script)
    assert found.status == "runs, 1 line unproven"
    assert "import torch_fidelity\n" in found.text
    assert "it measures pictures of folders" in found.edits[-1].reason

"""Modules that Lightning's Trainer trains run on MindSpore with the Trainer's numbers.

``traces/lightning.json`` holds what ``hosts/lightning_lives.py`` leaves behind under lightning
2.6.6; ``record_lightning.py`` says how.
"""

from __future__ import annotations

import gc
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from .ports import FILLED, loaded, ported

HERE = Path(__file__).parent
SCRIPT = (HERE / "hosts" / "lightning_lives.py").read_text(encoding="utf-8")
TRACE = json.loads((HERE / "traces" / "lightning.json").read_text(encoding="utf-8"))
pytestmark = pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler")


@pytest.mark.day
def test_trainers_end_where_lightnings_do(tmp_path: Path) -> None:
    """Hooks in their order, schedules, files, metrics; in float16 with a scaler as well."""
    found = ported(SCRIPT)
    assert not [one for one in found.edits if one.kind == "refused"]
    left = loaded(found.text, tmp_path)
    made, split = np.array([float(one) for one in left["made"]]), left["split"]
    del left
    gc.collect()  # Trainers hold themselves, and their scalers count for later losses
    assert split == TRACE["split"]
    whole, half = np.split(made, [split])
    theirs, in_half = np.split(np.array(TRACE["made"], float), [TRACE["split"]])
    np.testing.assert_allclose(whole, theirs, rtol=2e-4, atol=2e-4)
    np.testing.assert_allclose(half, in_half, rtol=5e-3, atol=2e-3)


HEAD = f"""{FILLED}
import pytorch_lightning as pl
from torch.utils.data import DataLoader, TensorDataset
x = torch.linspace(-1.03, 2.1, 12).view(4, 3)
y = x.sum(1, keepdim=True)
batches = DataLoader(TensorDataset(x, y), batch_size=2)
class Lit(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = filled(nn.Linear(3, 1))
    def training_step(self, batch, batch_idx):
        loss = ((self.net(batch[0]) - batch[1]) ** 2).mean()
        return {{"loss": loss, "n": batch_idx}}
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
"""
SILENT = "max_epochs=1, logger=False, enable_checkpointing=False"


def test_what_a_trainer_does_is_said() -> None:
    found = ported(f"{HEAD}pl.Trainer({SILENT}).fit(Lit(), batches)\n")
    (said,) = [one for one in found.edits if one.old.startswith("pl.Trainer(")]
    assert said.kind == "changed"
    assert "one device" in said.effect
    assert "port.in_training(Lit())" in found.text  # no forward says that it is a network


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (f"pl.Trainer(devices=2, {SILENT})", "devices"),
        (f"pl.Trainer(gpus=4, {SILENT})", "devices"),
        (f"pl.Trainer(plugins=[object()], {SILENT})", "plugins"),
        (f"pl.Trainer(overfit_batches=2, {SILENT})", "overfit_batches"),
        (f"pl.Trainer(accumulate_grad_batches={{0: 2}}, {SILENT})", "accumulate_grad_batches"),
    ],
)
def test_what_a_trainer_cannot_do_raises(script: str, said: str, tmp_path: Path) -> None:
    found = ported(f"{HEAD}{script}\n")
    with pytest.raises(NotImplementedError, match=said):
        loaded(found.text, tmp_path)


@pytest.mark.parametrize(
    ("method", "said"),
    [
        ("def on_epoch_end(self):\n        pass", "on_epoch_end"),
        (
            "def training_step(self, batch, batch_idx, optimizer_idx):\n        pass",
            "optimizer_idx",
        ),
        ("def configure_optimizers(self):\n        return [self.one(), self.one()]", "several"),
    ],
)
def test_modules_of_older_versions_raise(method: str, said: str, tmp_path: Path) -> None:
    """Where a version decides what a hook does, it is not guessed."""
    heir = f"""class Heir(Lit):
    def one(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
    {method}
pl.Trainer({SILENT}).fit(Heir(), batches)
"""
    with pytest.raises(NotImplementedError, match=said):
        loaded(ported(HEAD + heir).text, tmp_path)


ENDS = f"""class Heir(Lit):
    def validation_step(self, batch, batch_idx):
        return {{"x": batch[0].sum(), "n": batch_idx}}
    def validation_epoch_end(self, outputs):
        made.append(torch.stack([one["x"] for one in outputs]).sum())
        made.append(len(outputs))
    def training_epoch_end(self, outputs):
        made.extend(one["loss"] for one in outputs)
        made.append([one["n"] for one in outputs])
trainer = pl.Trainer(num_sanity_val_steps=1, gpus=1, precision=32, {SILENT})
trainer.fit(Heir(), batches, batches)
"""
PLAIN = """
class pl:
    class LightningModule(nn.Module):
        pass
    class Trainer:
        def __init__(self, **settings):
            pass
        def fit(self, module, train, val):
            optimizer = module.configure_optimizers()
            some = [module.validation_step(b, n) for n, b in enumerate(val)]
            module.validation_epoch_end(some[:1])
            outputs = []
            for number, batch in enumerate(train):
                outputs.append(module.training_step(batch, number))
                optimizer.zero_grad()
                outputs[-1]["loss"].backward()
                optimizer.step()
            module.validation_epoch_end(some)
            module.training_epoch_end(outputs)
"""


def test_epoch_ends_of_older_versions_get_what_steps_returned(tmp_path: Path) -> None:
    """pytorch_lightning 1.9: the lists of outputs, in front of ``on_*_epoch_end``."""
    theirs: dict[str, Any] = {"__name__": "script"}
    exec(HEAD.replace("import pytorch_lightning as pl\n", PLAIN) + ENDS, theirs)
    made = loaded(ported(HEAD + ENDS).text, tmp_path)["made"]
    found = [one if isinstance(one, (int, list)) else one.item() for one in made]
    wanted = [one if isinstance(one, (int, list)) else one.item() for one in theirs["made"]]
    assert found.pop() == wanted.pop() == [0, 1]
    assert found == pytest.approx(wanted, rel=1e-5)


def test_a_trainer_hands_its_closure_on_once() -> None:
    """``optimizer_step`` of a network gets the Trainer's own; any other optimizer raises."""
    found = ported(
        f"""{HEAD}class Heir(Lit):
    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure):
        optimizer.step(closure=optimizer_closure)
class Other:
    def optimizer_step(self, optimizer, closure):
        optimizer.step(closure)
""",
    )
    said = [one for one in found.edits if one.old.startswith("optimizer.step")]
    assert {one.kind for one in said if one.line == min(o.line for o in said)} == {"unproven"}
    assert "refused" in {one.kind for one in said if one.line == max(o.line for o in said)}


SAID = """import torch
import pytorch_lightning as pl
from pytorch_lightning.utilities import rank_zero_info, rank_zero_warn
from pytorch_lightning.utilities.model_summary import summarize
from pytorch_lightning.utilities.parsing import AttributeDict
class Lit(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1))
        self.net[0].weight.requires_grad = False
rank_zero_info("begun")
rank_zero_warn("slow")
found = summarize(Lit(), max_depth=2)
settings = AttributeDict(lr=0.5)
"""


def test_what_a_script_says_itself_it_says(tmp_path: Path) -> None:
    """An import of names of a package leaves the package itself as it is."""
    ported_ = ported(SAID)
    assert not [one for one in ported_.edits if one.kind == "refused"]
    with pytest.warns(UserWarning, match="slow"):
        left = loaded(ported_.text, tmp_path)
    found = left["found"]
    assert found.rows == [
        ("net", "SequentialCell", 11),
        ("net.0", "Dense", 8),
        ("net.1", "Dense", 3),
    ]
    assert (found.total_parameters, found.trainable_parameters) == (11, 5)
    assert "5 trainable parameters of 11" in str(found)
    assert left["settings"].lr == 0.5


def test_a_name_that_is_refused_leaves_its_package_as_it_is() -> None:
    found = ported(SAID.replace("import summarize", "import _is_lazy_weight_tensor"))
    assert [one.line for one in found.edits if one.kind == "refused"] == [4]

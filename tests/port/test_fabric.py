"""Scripts that train through Lightning Fabric run on MindSpore with Fabric's numbers.

``traces/fabric.json`` holds what ``hosts/fabric_lives.py`` leaves behind under lightning 2.6.6;
``record_fabric.py`` says how.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from mpcore_port_runtime import fabric as port_fabric

from .ports import FILLED, loaded, ported

if TYPE_CHECKING:
    from mpcore_port.engine import Ported

HERE = Path(__file__).parent
SCRIPT = (HERE / "hosts" / "fabric_lives.py").read_text(encoding="utf-8")
TRACE = json.loads((HERE / "traces" / "fabric.json").read_text(encoding="utf-8"))
HEAD = f"""{FILLED}
import torch.nn.functional as F
from lightning.fabric import Fabric
x = torch.linspace(-1.03, 2.1, 12).view(4, 3)
y = x.sum(1, keepdim=True)
"""
STEP = """fabric = Fabric({asked})
fabric.launch()
model = filled(nn.Linear(3, 1))
optimizer = torch.optim.SGD(model.parameters(), lr={rate})
model, optimizer = fabric.setup(model, optimizer)
for step in range(3):
    optimizer.zero_grad()
    loss = F.mse_loss(model(x), y)
    fabric.backward(loss)
    {line}
    optimizer.step()
    made.append(loss.item())
made += [p.detach() for p in model.parameters()]
"""
pytestmark = pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler")


def refused(found: Ported) -> list[Any]:
    return [one for one in found.edits if one.kind in ("refused", "unproven")]


@pytest.mark.day
def test_loops_end_where_fabrics_do(tmp_path: Path) -> None:
    """In float32, and in float16 with a scaler whose first steps overflow."""
    found = ported(SCRIPT)
    assert not refused(found)
    made = np.array([float(one) for one in loaded(found.text, tmp_path)["made"]])
    whole, half = np.split(made, 2)
    theirs, in_half = np.split(np.array(TRACE, float), 2)
    np.testing.assert_allclose(whole, theirs, rtol=2e-4, atol=1e-5)
    np.testing.assert_allclose(half, in_half, rtol=5e-3, atol=2e-3)


def test_what_a_fabric_does_is_said() -> None:
    (said,) = [one for one in ported(SCRIPT).edits if one.old.startswith("L.Fabric(")]
    assert said.kind == "changed"
    assert "steps may be skipped at other losses" in said.effect


HANDED = """def train(fabric, model, optimizer, batches):
    for a, b in batches:
        optimizer.zero_grad()
        loss = F.mse_loss(model(a), b)
        fabric.backward(loss, model=model)
        fabric.clip_gradients(model, optimizer, max_norm=1.0)
        optimizer.step()
        made.append(loss.item())
def run(fabric):
    model = filled(nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    model, optimizer, schedule = fabric.setup(model, optimizer, scheduler=schedule)
    data = torch.utils.data.TensorDataset(x, y)
    batches, held = fabric.setup_dataloaders(
        torch.utils.data.DataLoader(data, batch_size=2), torch.utils.data.DataLoader(data)
    )
    for epoch in range(2):
        train(fabric, model, optimizer, batches)
        schedule.step()
    with torch.no_grad():
        for a, b in held:
            made.append(fabric.all_gather(F.mse_loss(model(a), b)).item())
    made.extend(p.detach() for p in model.parameters())
Fabric(accelerator="auto", devices="auto", strategy="ddp").launch(run)
"""
PLAIN = """
class Fabric:
    def __init__(self, **given):
        pass
    def launch(self, function):
        function(self)
    def setup(self, *given, scheduler):
        return (*given, scheduler)
    def setup_dataloaders(self, *given):
        return given
    def backward(self, loss, model):
        loss.backward()
    def clip_gradients(self, model, optimizer, max_norm):
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    def all_gather(self, value):
        return value
"""


def test_a_fabric_that_is_handed_on(tmp_path: Path) -> None:
    """In float32, on one device, Fabric does nothing but what its names say."""
    theirs: dict[str, Any] = {"__name__": "script"}
    plain = HEAD.replace("from lightning.fabric import Fabric\n", PLAIN) + HANDED
    exec(plain, theirs)
    found = ported(HEAD + HANDED)
    assert not [one for one in refused(found) if one.kind == "refused"]
    for own, other in zip(loaded(found.text, tmp_path)["made"], theirs["made"], strict=True):
        own = own if isinstance(own, float) else own.asnumpy()
        other = other if isinstance(other, float) else other.numpy()
        np.testing.assert_allclose(own, other, rtol=1e-5, atol=1e-6)


def test_a_norm_that_is_not_finite_raises(tmp_path: Path) -> None:
    """As torch's does where it is asked to, and Fabric asks by default: gradients stay."""
    line = "fabric.clip_gradients(model, optimizer, max_norm=1.0)"
    script = HEAD + STEP.format(asked="", line=line, rate=0.1).replace("(x), y)", "(x * 1e30), y)")
    with pytest.raises(RuntimeError, match=r"gradients is (inf|nan)"):
        loaded(ported(script).text, tmp_path)


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        ("devices=2", "`devices` must be 1"),
        ("devices=[0, 1]", "`devices` must be 1"),
        ("num_nodes=2", "for one process"),
        ('strategy="fsdp"', "`strategy` must be left out"),
        ('precision="bf16-true"', "`precision` must be one of"),
        ('precision="transformer-engine"', "`precision` must be one of"),
    ],
)
def test_what_is_known_when_it_runs(asked: str, error: str, tmp_path: Path) -> None:
    name, _, value = asked.partition("=")
    script = HEAD + f"asked = {value}\n" + STEP.format(asked=f"{name}=asked", line="", rate=0.1)
    found = ported(script)
    assert not refused(found)
    with pytest.raises(NotImplementedError, match=error):
        loaded(found.text, tmp_path)


@pytest.mark.parametrize(
    "asked",
    [
        "devices=2",
        'devices="4"',
        "devices=[0, 1]",
        "num_nodes=2",
        'strategy="fsdp"',
        "precision=64",
    ],
)
def test_what_is_written_out_is_refused_by_its_line(asked: str) -> None:
    script = HEAD + STEP.format(asked=asked, line="pass", rate=0.1)
    (one,) = refused(ported(script))
    assert one.line == HEAD.count("\n") + 1
    assert f"`{asked.partition('=')[0]}` must be one of" in one.reason


@pytest.mark.parametrize("asked", ["devices=1", "devices=[3]", "precision=32", 'strategy="ddp"'])
def test_one_device_by_any_name(asked: str, tmp_path: Path) -> None:
    found = ported(HEAD + STEP.format(asked=asked, line="pass", rate=0.1))
    assert not refused(found)
    assert len(loaded(found.text, tmp_path)["made"]) == 5


def test_float16_on_a_cpu_is_bfloat16() -> None:
    """Fabric says so, and goes on; a port that was asked for a CPU has it as well."""
    assert port_fabric.Fabric(accelerator="cpu", precision=16).precision == "bf16-mixed"
    assert port_fabric.Fabric(accelerator="cuda", precision=16).precision == "16-mixed"


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('fabric.call("on_end")', "there are no callbacks"),
        ('fabric.save("f", {}, filter={})', "save the parts"),
        ("fabric.something_else()", "the port's Fabric has no such"),
        ("Fabric(callbacks=[made])", "call them in the loop"),
    ],
)
def test_what_is_not_there_is_refused_by_its_line(line: str, why: str) -> None:
    script = HEAD + STEP.format(asked="", line="pass", rate=0.1) + line + "\n"
    (one,) = [edit for edit in ported(script).edits if edit.kind == "refused"]
    assert one.line == script.count("\n")
    assert why in one.reason


def test_other_parts_of_lightning_stay_refused() -> None:
    script = "import lightning as L\nL.Fabric()\nL.pytorch.demos.BoringModel()\n"
    assert "write its loop out" in next(iter(refused(ported(script)))).reason
    assert "lightning" not in sys.modules

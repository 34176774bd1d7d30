"""Scalers that another file's functions get: they ask for what torch's have."""

from __future__ import annotations

from pathlib import Path

import mindspore as ms
import pytest

import mpcore_port_runtime as port
from mpcore_port.engine import port_tree
from mpcore_port.source import walk
from mpcore_port.targets import Options

from .ports import FILLED, TARGET, ported

KEPT = """import torch
def keep(model, scaler, path):
    torch.save({"model": model.state_dict(), "scaler": scaler.state_dict()}, path)
"""
STEPS = (
    FILLED
    + """
from keeping import keep
def train(path, on, x=torch.arange(6.0).reshape(2, 3)):
    net = filled(nn.Linear(3, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = torch.cuda.amp.GradScaler(enabled=on, init_scale=8.0)
    for _ in range(2):
        optimizer.zero_grad()
        with torch.autocast("cuda", enabled=on):
            loss = net(x).pow(2).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    keep(net, scaler, path)
    return torch.load(path)["scaler"]
"""
)


@pytest.mark.parametrize("on", [True, False])
def test_a_scaler_is_saved_by_another_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on: bool
) -> None:
    """``keep(net, scaler)`` raised at ``state_dict``: MindSpore's loss scalers have none."""
    (tmp_path / "keeping.py").write_text(KEPT, encoding="utf-8")
    (tmp_path / "steps.py").write_text(STEPS, encoding="utf-8")
    found = {
        Path(one.source.path).name: one
        for one in port_tree(walk(tmp_path), TARGET, Options()).files
    }
    other = tmp_path / "other"
    other.mkdir()
    for name, one in found.items():
        (other / name).write_text(one.text, encoding="utf-8")
    monkeypatch.syspath_prepend(other)
    space: dict[str, object] = {}
    code = compile(
        (other / "steps.py").read_text(encoding="utf-8"), str(other / "steps.py"), "exec"
    )
    exec(code, space)
    state = space["train"](str(tmp_path / "kept.pth"), on)  # type: ignore[operator]
    assert state.get("scale") == (8.0 if on else None)


@pytest.mark.parametrize(
    ("line", "native"),
    [
        ("keep(model, scaler)", False),
        ("saver.keep(scaler=scaler)", False),
        ("own(scaler)", True),
        ("isinstance(scaler, object)", True),
    ],
)
def test_steps_stay_mindspores_where_the_scaler_stays(line: str, native: bool) -> None:
    """A function of the file is ported with the scaler; what another has is not seen."""
    script = f"""import torch
from other import keep, saver
def own(scaler):
    return scaler.state_dict()
def train(model, loader, optimizer):
    scaler = torch.cuda.amp.GradScaler()
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = ((model(x) - y) ** 2).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        {line}
"""
    assert ("DynamicLossScaler(" in ported(script).text) is native


def test_a_scaler_of_mindspore_has_the_state_of_torchs() -> None:
    scaler = ms.amp.DynamicLossScaler(8.0, 2, 3)
    assert port.state_dict(scaler) == {"scale": 8.0, "_growth_tracker": 0}
    scaler.adjust(ms.Tensor(True))
    saved = port.state_dict(scaler)
    scaler.adjust(ms.Tensor(False))
    port.load_state_dict(scaler, saved)
    assert port.state_dict(scaler) == saved == {"scale": 8.0, "_growth_tracker": 1}
    port.load_state_dict(
        ms.amp.StaticLossScaler(1.0), port.state_dict(ms.amp.StaticLossScaler(1.0))
    )

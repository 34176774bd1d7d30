"""Steps of ports to MindSpore whose networks are not there: small ones, the same on both sides.

A port with a planted fault has to be called different.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from mpcore_port.engine import port_tree
from mpcore_port.mindspore.replay import _no_pictures
from mpcore_port.source import walk
from mpcore_port.targets import Options, load_target
from mpcore_port.verify import step as steps
from mpcore_port.verify.asked import Kept, Replayed
from mpcore_port.verify.extract import extract
from mpcore_port.verify.judge import Verification, VerifyOptions, compare
from mpcore_port.verify.left_out import makers_of_optimizers
from mpcore_port.verify.module import Module
from mpcore_port.verify.run import _events
from mpcore_port.verify.step import Place

if TYPE_CHECKING:
    from pathlib import Path

SCRIPT = """
import torch
import torch.nn.functional as F
from zoo import Classifier, SmoothLoss, accuracy

model = Classifier("resnet", classes=10).cuda()
criterion = SmoothLoss(0.1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)
model.train()
for epoch in range(2):
    for images, target in loader:
        images, target = images.cuda(), target.cuda()
        output = model(images)
        loss = F.cross_entropy(output, target) + 0.1 * criterion(output, target)
        top = accuracy(output, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
FAULTS = {
    "another rate": ("lr=0.05", "lr=0.06"),
    "another reduction": (
        "cross_entropy(output, target)",
        "cross_entropy(output, target, reduction='sum')",
    ),
    "a dropped decay": (", weight_decay=1e-3", ""),
    "a dropped term": (" + 0.1 * criterion(output, target)", ""),
    "a step that moves nothing": ("optimizer(grads)", "pass"),
}
INPUTS = "float32[8,3,8,8], int64[8]<10"
OPTIONS = VerifyOptions(losses=6, modes=("float32",))


def _scripts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str, Verification]:
    """Return the step of the script, that of its port, and what is said of them."""
    (folder / "train.py").write_text(SCRIPT, encoding="utf-8")
    texts: list[str] = []

    def verify(original: Path, port: Path, *_: Any) -> Verification:
        texts.extend(path.read_text(encoding="utf-8") for path in (original, port))
        return Verification("", "mindspore", ())

    monkeypatch.setattr(steps, "verify", verify)
    target = load_target("mindspore")
    result = port_tree(walk(folder / "train.py"), target, Options())
    place = Place(folder, folder)
    done = steps.verify_step(
        result.files[0], result, target, place, OPTIONS, INPUTS, "", lambda _: None
    )
    return texts[0], texts[1], done


@pytest.mark.slow
@pytest.mark.parametrize(
    "faults",
    [["another rate"], pytest.param([*FAULTS], marks=pytest.mark.nightly)],
    ids=["one", "all"],
)
def test_port_with_a_stand_in_is_close_and_one_with_a_fault_is_not(
    faults: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("mindspore")
    from mpcore_port.mindspore.replay import run_role

    original, port, done = _scripts(tmp_path, monkeypatch)
    assert done.step is not None
    assert done.step["elsewhere"] == []
    runs = {}
    for name, text in _ports(original, port, faults).items():
        role = name if name == "original" else f"port, {name}"
        script = tmp_path / f"{role}.py"
        script.write_text(text, encoding="utf-8")
        end, words = run_role(role, script, "float32", tmp_path, losses=6, at=3)
        runs[name] = _events(tmp_path / f"{role}.jsonl", end, words)
    first = runs.pop("original")
    found = {name: compare("float32", first, run, OPTIONS) for name, run in runs.items()}
    assert found["as it is"].verdict in ("same", "close"), found["as it is"]
    assert found["as it is"].losses == (6, 6)
    wrong = {name: one.verdict for name, one in found.items() if name != "as it is"}
    assert wrong == dict.fromkeys(faults, "different")


def _ports(original: str, port: str, faults: list[str]) -> dict[str, str]:
    """Return the original, the port, and ports with a fault each."""
    texts = {"original": original, "as it is": port}
    for name in faults:
        old, new = FAULTS[name]
        assert port.count(old) == 1, (old, port)
        texts[name] = port.replace(old, new)
    return texts


APEX = """
import torch
import torch.nn.functional as F
from apex import amp
from zoo import Classifier

model = Classifier("resnet", classes=10).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
model, optimizer = amp.initialize(models=model, optimizers=optimizer, opt_level="O2")
amp._amp_state.loss_scalers[0]._loss_scale = 2**20
for images, target in loader:
    loss = F.cross_entropy(model(images.cuda()), target.cuda())
    optimizer.zero_grad()
    with amp.scale_loss(loss, optimizer) as scaled:
        scaled.backward()
    optimizer.step()
"""


@pytest.mark.slow
def test_a_stand_in_rounds_where_apex_does_and_its_scaler_is_there_in_float32(
    tmp_path: Path,
) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("mindspore")
    (tmp_path / "train.py").write_text(APEX, encoding="utf-8")
    target = load_target("mindspore")
    result = port_tree(walk(tmp_path / "train.py"), target, Options())
    options = VerifyOptions(losses=6, modes=("float32", "mixed"))
    place = Place(tmp_path, tmp_path)
    done = steps.verify_step(
        result.files[0], result, target, place, options, INPUTS, "", lambda _: None
    )
    assert done.passed, done
    float32, mixed = done.comparisons
    assert float32.original_scales == ()
    assert min(mixed.original_scales) < 2**20  # float16 overflowed, on both sides
    assert mixed.port_scales == mixed.original_scales


def test_what_callers_ask_of_a_stand_in_is_replayed(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "asked.json")
    assert kept.of("net", lambda: ["parts", "a", "loss"]) == ["parts", "a", "loss"]
    assert kept.of("net", lambda: ["loss"]) == ["loss"]
    assert kept.of("criterion", lambda: [1, False]) == [1, False]
    again = Replayed(tmp_path / "asked.json")
    other: list[Any] = ["other"]
    assert again.of("net", lambda: other) == ["parts", "a", "loss"]
    assert [again.of("net", lambda: other) for _ in range(2)] == [["loss"], ["loss"]]
    assert again.of("criterion", lambda: other) == [1, False]
    assert again.of("new", lambda: other) == other
    assert Replayed(tmp_path / "none.json").of("net", lambda: other) == other


def test_an_optimizer_beside_the_script_is_left_out_and_keeps_what_it_is_made_for(
    tmp_path: Path,
) -> None:
    """It is refused in the port: SGD stands in on both sides, and the report says so."""
    text = SCRIPT.replace("torch.optim.SGD(", "rates.Lars(").replace(
        "from zoo", "import rates\nfrom zoo"
    )
    module = Module(text)
    line = text[: text.index("rates.Lars(")].count("\n") + 1
    stopped = "optimizer = rates.Lars(port.parameters(model), lr=0.05,"
    assert makers_of_optimizers(module, stopped) == [line]
    assert makers_of_optimizers(module, "model = Classifier(") == []
    assert makers_of_optimizers(Module(SCRIPT)) == []  # torch's own
    step = extract(text, tmp_path, (line,))
    assert "_mpcore_missing('optimizer rates.Lars')(model.parameters(), lr=0.05" in step.body
    assert (line, "SGD, on both sides, in place of rates.Lars") in step.replaced


def test_sets_of_pictures_are_nothing_in_a_port_as_in_its_original() -> None:
    """Without torchvision the original reads none; the port raised for files that are not there."""
    runtime = SimpleNamespace(pictures=SimpleNamespace(make_grid=len))
    _no_pictures(runtime)
    assert len(runtime.pictures.CIFAR10("./data", train=True)) > 0
    assert runtime.pictures.make_grid is len

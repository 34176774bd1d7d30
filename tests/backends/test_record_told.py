"""What a recording says by itself: settings, left-over gradients, ops inside, and who is off.

Run with --backend torch.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import mpcore as mp
from mpcore.tools.recording.compare_runs import Runs, compare_runs

torch = pytest.importorskip("torch")
nn, functional = torch.nn, torch.nn.functional
pytestmark = pytest.mark.backend("torch")


class Net(nn.Module):  # type: ignore[misc]  # torch is untyped here
    """A convolution, a normalisation, and two layers of one shape; some of it in functions."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.bn = nn.BatchNorm2d(4, eps=1e-2 if fault == "eps" else 1e-5)
        names = ("late", "early") if fault == "renamed" else ("first", "second")
        self.names = names
        for name in names:
            setattr(self, name, nn.Linear(16, 16))
        self.head = nn.Linear(16, 5)
        self.fault = fault
        self.factor = 0.6 if fault == "constant" else 0.5

    def forward(self, x: Any) -> Any:
        x = functional.adaptive_avg_pool2d(functional.relu(self.bn(self.conv(x))), 2).flatten(1)
        for name in self.names:
            if self.fault == "bfloat16":
                x = (x.bfloat16() * 1.0).float()
            x = functional.gelu(getattr(self, name)(x)) * self.factor
        return self.head(x)


def run(folder: Path, fault: str = "", **more: Any) -> Path:
    """Train four steps by hand, recorded, with a fault from the third step on or in the model."""
    torch.manual_seed(0)
    model = Net(fault)
    rate, betas = (2e-2 if fault == "rate" else 1e-2), (0.9, 0.9 if fault == "betas" else 0.999)
    optimizer = torch.optim.AdamW(model.parameters(), rate, betas=betas)
    if fault == "frozen":
        model.bn.weight.requires_grad_(False)
    with mp.record(model, folder, steps=4, **more):
        for number in range(4):
            x, y = torch.randn(8, 3, 6, 6), torch.randint(0, 5, (8,))
            late = number >= 2
            if not (fault == "zero_grad" and late):
                optimizer.zero_grad()
            smooth = 0.1 if fault == "smooth" or (fault == "late smooth" and late) else 0.0
            functional.cross_entropy(model(x), y, label_smoothing=smooth).backward()
            if fault == "clip":
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
            if fault == "schedule" and late:
                optimizer.param_groups[0]["lr"] = 5e-3
            optimizer.step()
    return folder


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("sound"))


def between(a: Path, b: Path, **more: Any) -> Runs:
    (found,) = compare_runs(a, b, **more).values()
    return found


@pytest.mark.day(3)  # each fault is told by other numbers
@pytest.mark.parametrize(
    ("fault", "step", "kind", "word"),
    [
        ("rate", 0, "optimizer constants", "rate is 0.01 there and 0.02 here"),
        ("betas", 0, "optimizer constants", "beta2 is 0.999 there and 0.9 here"),
        ("schedule", 2, "schedule", "rate is 0.01 there and 0.005 here"),
        ("zero_grad", 2, "other setting", "those of the step before"),
        ("clip", 0, "clipping", "scaled after the backward pass"),
        ("frozen", 0, "other setting", "bn.weight gets no gradient in this side"),
        ("constant", 0, "other setting", "mul gets 0.5 in the reference and 0.6 here"),
        ("smooth", 0, "label", "smoothed by 0.1"),
    ],
)
def test_a_fault_is_named(
    sound: Path, tmp_path: Path, fault: str, step: int, kind: str, word: str
) -> None:
    found = between(sound, run(tmp_path, fault))
    assert found.step == step, found.verdict
    assert found.found is not None
    cause = found.found.root_causes[0]
    assert cause.kind == kind, cause
    assert word in " ".join((*cause.evidence, cause.fix)), cause


def test_smoothed_labels_are_never_called_another_reduction(sound: Path, tmp_path: Path) -> None:
    found = between(sound, run(tmp_path, "late smooth"))
    assert found.step == 2
    assert found.found is not None
    assert found.found.root_causes[0].kind in ("label", "unknown")


def test_a_function_in_16_bits_does_not_widen_what_is_the_same(sound: Path, tmp_path: Path) -> None:
    found = between(sound, run(tmp_path, "bfloat16"))
    assert found.step == 0, found.verdict
    assert found.found is not None
    assert found.found.first is not None
    assert found.found.first.phase == "forward"


def test_renamed_layers_of_one_shape_are_matched_in_the_order_of_calls(
    sound: Path, tmp_path: Path
) -> None:
    assert between(sound, run(tmp_path, "renamed")).same


@pytest.mark.slow
def test_settings_of_a_layer_are_nobody_s_error_and_a_wrong_kernel_is(
    sound: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "parts.py"
    found = between(sound, run(tmp_path / "eps", "eps"), replay=True, reproduce=script)
    assert found.judgement is not None, found.alone
    assert found.judgement.wrong == "neither", found.judgement
    assert "they part here" in found.alone
    linear = functional.linear
    with monkeypatch.context() as patched:
        patched.setattr(functional, "linear", lambda x, w, b=None: linear(x, w, b) * 1.001)
        run(tmp_path / "kernel")
    found = between(sound, tmp_path / "kernel", replay=True)
    assert found.judgement is not None, found.alone
    assert found.judgement.wrong == "own", found.judgement
    assert min(found.judgement.off["output"]) < 1e-6 < max(found.judgement.off["output"])


def test_a_later_step_is_replayed_if_its_layer_was_kept(sound: Path, tmp_path: Path) -> None:
    found = between(sound, run(tmp_path / "plain", "late smooth"), replay=True)
    assert found.judgement is None
    assert "no layer that runs alone" in found.alone
    assert json.dumps(found.to_dict())


RANKS = """
import sys, torch, torch.distributed as dist, mpcore as mp
from torch import nn
fault, rank, folder, meet = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
import os
os.environ["RANK"] = str(rank)
dist.init_process_group("gloo", init_method="file://" + meet, rank=rank, world_size=2)
torch.manual_seed(0)
inner = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 3))
if fault == "eps" and rank == 1:
    inner[1].eps = 1e-1
model = nn.parallel.DistributedDataParallel(inner)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
drawn = torch.Generator().manual_seed(7 + rank)
with mp.record(model, folder, steps=3):
    for number in range(3):
        x, y = torch.randn(4, 6, generator=drawn), torch.randint(0, 3, (4,), generator=drawn)
        if fault == "batch" and rank == 1 and number == 1:
            x = x * 2
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
dist.barrier()  # no rank closes its sockets while the other one still talks
dist.destroy_process_group()
os._exit(0)  # a thread of torch's that outlives it was seen to abort the process at its end
"""


def ranks(folder: Path, fault: str) -> Path:
    """Train on two ranks, one of which may have a fault."""
    folder.mkdir()
    script = folder / "ranks.py"
    script.write_text(RANKS)
    told = [sys.executable, str(script), fault]
    meet = str(folder / "meet")
    each = [subprocess.Popen([*told, str(n), str(folder / "run"), meet]) for n in (0, 1)]
    assert [one.wait() for one in each] == [0, 0]
    return folder / "run"


@pytest.mark.slow
def test_the_fault_of_one_rank_is_found_there_and_named(tmp_path: Path) -> None:
    plain = ranks(tmp_path / "plain", "")
    for fault, step, phase in (("eps", 0, "forward"), ("batch", 1, "input")):
        found = compare_runs(plain, ranks(tmp_path / fault, fault))
        assert sorted(found) == [0, 1]
        own = found[1].found
        assert found[1].step == step, found[1].verdict
        assert own is not None
        assert own.first is not None
        assert own.first.phase == phase, found[1].verdict
        assert fault == "batch" or own.root_causes[0].kind == "eps", own.root_causes
        assert "rank 1" in found[0].verdict, found[0].verdict

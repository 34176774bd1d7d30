"""Recorded scripts whose models call functions between their layers, and draw after the record."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

import mpcore as mp  # noqa: E402
from mpcore.tools.recording.compare_runs import Runs, compare_runs  # noqa: E402


class Coder(nn.Module):
    """What layers hand on passes functions: of the model's own, and of torch."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.enter = nn.Linear(12, 16)
        self.mean = nn.Linear(16, 4)
        self.spread = nn.Linear(16, 4)
        self.leave = nn.Linear(4, 16)
        self.out = nn.Linear(16, 12)

    def forward(self, x):
        hidden = functional.relu(self.enter(x))
        mean, spread = self.mean(hidden), self.spread(hidden)
        wide = torch.exp(spread if self.fault == "factor" else 0.5 * spread)
        drawn = mean + torch.randn_like(mean) * wide
        drawn = drawn.clamp(-1, 1) if self.fault == "clamp" else drawn
        function = functional.gelu if self.fault == "gelu" else functional.relu
        hidden = function(self.leave(drawn))
        if self.fault == "bfloat16":
            weights = self.out.weight.bfloat16(), self.out.bias.bfloat16()
            made = functional.linear(hidden.bfloat16(), *weights).float()
        else:
            made = self.out(hidden)
        return torch.sigmoid(made), mean, spread


def script(folder: Path, fault: str = "") -> None:
    torch.manual_seed(0)
    model = Coder(fault)
    mp.record(model, folder, steps=2)
    if fault == "drawn again":
        nn.init.xavier_uniform_(model.leave.weight)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(2):
        x = torch.rand(8, 12)
        made, mean, spread = model(x)
        apart = 0.5 * (mean.square() + spread.exp() - 1 - spread).sum()
        loss = functional.binary_cross_entropy(made, x, reduction="sum") + apart
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if fault == "clamped":
            with torch.no_grad():
                model.leave.weight.clamp_(-0.2, 0.2)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reference")
    script(folder)
    return folder


def compared(reference: Path, folder: Path, fault: str) -> Runs:
    script(folder, fault)
    (found,) = compare_runs(reference, folder).values()
    assert not found.same
    assert found.step == 0
    return found


@pytest.mark.parametrize(
    ("fault", "kind", "words"),
    [
        ("factor", "other setting", ("the reference runs mul", "spread", "leave")),
        ("clamp", "other setting", ("this side runs clamp", "leave")),
        ("gelu", "activation variant", ("relu", "gelu", "leave", "out")),
        ("bfloat16", "missing cast", ("bfloat16", "out")),
    ],
)
def test_what_a_function_does_is_told_between_its_layers(
    reference: Path, tmp_path: Path, fault: str, kind: str, words: tuple[str, ...]
) -> None:
    found = compared(reference, tmp_path, fault).found
    assert found is not None
    assert found.first is not None
    cause = found.root_causes[0]
    assert (found.first.phase, cause.kind) == ("forward", kind), cause
    told = " ".join((*cause.evidence, cause.fix))
    assert all(word in told for word in words), told


def test_weights_that_change_after_the_record_are_told_before_what_follows(
    reference: Path, tmp_path: Path
) -> None:
    found = compared(reference, tmp_path, "drawn again")
    assert "other first weights: leave" in found.verdict
    assert "after mp.record" in found.verdict


def test_weights_that_are_set_between_steps_are_told(reference: Path, tmp_path: Path) -> None:
    script(tmp_path, "clamped")
    (found,) = compare_runs(reference, tmp_path).values()
    assert found.step == 1
    assert found.found is not None
    cause = found.found.root_causes[0]
    assert (cause.kind, cause.own_layer) == ("other setting", "leave"), cause
    assert "after step 0 and before step 1, by no optimizer, in this side" in cause.evidence[0]


def test_what_both_set_alike_is_no_difference(tmp_path: Path) -> None:
    for name in ("a", "b"):
        script(tmp_path / name, "clamped")
    (found,) = compare_runs(tmp_path / "a", tmp_path / "b").values()
    assert found.same, found.verdict

"""Recorded torch scripts that know nothing of mpcore: same, a planted fault, and bad input."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import mpcore as mp  # noqa: E402
from mpcore.tools.recording.compare_runs import compare_runs  # noqa: E402

STEPS = 5


def script(folder: Path, fault: str = "", **more: Any) -> None:
    """Train as scripts do: accumulation by two, a scheduler, clipping."""
    torch.manual_seed(0)
    eps = 1e-3 if fault == "eps" else 1e-5
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.BatchNorm2d(8, eps=eps),
        nn.GELU(approximate="tanh" if fault == "gelu" else "none"),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(32, 5),
    )
    decay = 0.1 if fault == "decay" else 0.0
    optimizer = torch.optim.AdamW(model.parameters(), 0.01, weight_decay=decay)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.1 if fault == "schedule" else 0.5)
    mp.record(model, folder, **{"steps": STEPS, **more})
    draw = torch.Generator().manual_seed(1)
    for number in range(2 * STEPS):
        x = torch.randn(4, 3, 8, 8, generator=draw)
        y = torch.randint(0, 5, (4,), generator=draw)
        if fault == "labels" and number == 6:
            y = (y + 1) % 5
        smoothing = 0.1 if fault == "smoothed" else 0.0
        loss = nn.functional.cross_entropy(model(x), y, label_smoothing=smoothing)
        loss = loss / (1 if fault == "sum" else 2)
        loss.backward()
        if number % 2:
            nn.utils.clip_grad_norm_(model.parameters(), 0.01 if fault == "clip" else 10.0)
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reference")
    script(folder)
    return folder


def test_the_same_script_twice_is_the_same(reference: Path, tmp_path: Path) -> None:
    script(tmp_path)
    (found,) = compare_runs(reference, tmp_path).values()
    assert found.same, found.verdict
    assert found.drift == (0.0,) * STEPS


@pytest.mark.parametrize(
    ("fault", "step", "phase", "kind"),
    [
        ("eps", 0, "forward", "eps"),
        ("gelu", 0, "forward", "activation variant"),
        ("decay", 0, "update", ""),
        ("schedule", 2, "update", ""),
        ("labels", 3, "input", "label"),
        ("clip", 0, "update", "clipping"),
        ("sum", 0, "loss", ""),
        ("smoothed", 0, "loss", "label"),
    ],
)
def test_a_fault_is_found_where_it_is(
    reference: Path, tmp_path: Path, fault: str, step: int, phase: str, kind: str
) -> None:
    script(tmp_path, fault)
    (found,) = compare_runs(reference, tmp_path).values()
    assert not found.same
    assert found.step == step, found.verdict
    assert found.found is not None
    assert found.found.first is not None
    assert found.found.first.phase == phase, found.verdict
    if kind:
        assert found.found.root_causes[0].kind == kind


def test_smoothed_labels_are_named_where_the_output_is_kept(tmp_path: Path) -> None:
    """In the first step it is, unless `whole` says otherwise."""
    for keep, kind in (((), "unknown"), (("5",), "label")):
        for name, fault in (("a", ""), ("b", "smoothed")):
            script(tmp_path / name, fault, keep=keep, steps=1, whole=0)
        for sides in (("a", "b"), ("b", "a")):
            (found,) = compare_runs(*(tmp_path / side for side in sides)).values()
            assert found.found is not None
            assert found.found.root_causes[0].kind == kind
            assert ("keep=('5',)" in found.advice) == (not keep)


def test_a_rank_whose_gradients_alone_differ_is_behind_the_one_that_parts(
    reference: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank, fault in ((0, "clip"), (1, "eps")):
        monkeypatch.setenv("RANK", str(rank))
        script(tmp_path / "a")
        script(tmp_path / "b", fault)
    found = compare_runs(tmp_path / "a", tmp_path / "b")
    assert "forward, 1" in found[1].verdict
    assert found[0].verdict.endswith("behind rank 1")
    assert found[0].found is not None
    assert found[0].found.root_causes[0].fix == "look at rank 1 first"


def test_the_script_ends_as_it_would_have(tmp_path: Path) -> None:
    before = torch.autograd.backward
    script(tmp_path, steps=2)
    assert torch.autograd.backward is before
    assert len(list(tmp_path.glob("rank-0/step-*"))) == 2
    size = sum(path.stat().st_size for path in tmp_path.glob("rank-0/step-000001/*"))
    # Two passes of 7 calls, 4 tensors each at most; 6 parameters and 2 statistics, three times.
    assert size < 900 * (2 * 7 * 4 + 3 * 8) + 8000


def test_another_model_and_bad_arguments_are_refused(reference: Path, tmp_path: Path) -> None:
    with pytest.raises(mp.MpcoreError, match="the models differ"):
        mp.record(nn.Linear(2, 2), tmp_path, start=reference)
    with pytest.raises(mp.MpcoreError, match="`steps` must be a whole number >= 1, got 0"):
        mp.record(nn.Linear(2, 2), tmp_path, steps=0)
    with pytest.raises(mp.MpcoreError, match="`keep` must be several paths"):
        mp.record(nn.Linear(2, 2), tmp_path, keep="head")
    with pytest.raises(mp.MpcoreError, match=r"must be a folder that mp\.record wrote"):
        compare_runs(reference, tmp_path / "nothing")
